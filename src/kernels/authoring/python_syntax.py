"""Parse and compile Python sources that may be hostile, in a process of its own: callers use `call_limited`."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from pathlib import Path

from kernels.support.documents import TooComplex, check_source
from kernels.support.files import FileTooLarge, read_bounded

__all__ = ["find_syntax_errors", "parse_source", "syntax_error"]


def parse_source(data: bytes | str, name: str = "<source>") -> ast.Module:
    """The syntax tree of a source.

    Args:
        data: The source.
        name: Its file, for the error.

    Raises:
        SyntaxError: It is not Python.
        ValueError: It has too many signs (`TooComplex`), a zero byte, or is nested too deep.

    Example:
        >>> len(parse_source(b"a = 1\\nb = 2").body)
        2
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the kernel's code, such as an invalid escape
            check_source(data.encode() if isinstance(data, str) else data)
            return ast.parse(data, name)
    except TooComplex:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"cannot be parsed ({type(error).__name__})") from None


def find_syntax_errors(files: Sequence[tuple[Path, str]], limit: int) -> list[tuple[str, int, str]]:
    """The files that Python cannot compile: the name that is given with each, the line and the problem.

    Args:
        files: Each file, and the name that it has in the result.
        limit: The most bytes of a file.
    """
    found = []
    for path, name in files:
        try:
            problem = syntax_error(read_bounded(path, limit), name)
        except FileTooLarge:
            problem = 1, f"it has more than {limit} bytes"
        if problem is not None:
            found.append((name, *problem))
    return found


def syntax_error(data: bytes, name: str) -> tuple[int, str] | None:
    """Why Python cannot compile a source: the line and the problem; None if it can. Nothing is run.

    Args:
        data: The source.
        name: Its file's name.

    Example:
        >>> syntax_error(b"one = 1\\nreturn one\\n", "a.py")
        (2, "'return' outside function")
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the file's own, such as for an invalid escape
            check_source(data)
            compile(data, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.lineno or 1, error.msg
    except TooComplex as error:
        return 1, str(error)
    except (ValueError, RecursionError, MemoryError) as error:  # a null byte; nested too deep
        return 1, f"it cannot be compiled ({type(error).__name__})"
    return None
