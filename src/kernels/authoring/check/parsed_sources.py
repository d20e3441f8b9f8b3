"""Parse the Python sources in a variant; they are never run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator

from kernels.authoring.check.checked_variant import MAX_TEXT_BYTES, CheckedVariant
from kernels.support.documents import TooComplex, check_source

__all__ = ["parsed"]


def parsed(checked: CheckedVariant, names: Iterable[str]) -> Iterator[tuple[str, ast.Module | str]]:
    """Parse Python sources of a variant: yields each path with its syntax tree, or the reason why it has none."""
    for name in names:
        data = checked.read(name)
        if data is None:
            yield name, f"it has more than {MAX_TEXT_BYTES} bytes"
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the kernel's code, such as an invalid escape
                check_source(data)
                yield name, ast.parse(data, name)
        except SyntaxError as error:
            yield name, f"line {error.lineno}: {error.msg}"
        except TooComplex as error:
            yield name, str(error)
        except (ValueError, RecursionError, MemoryError) as error:  # a zero byte, or nested too deeply
            yield name, f"cannot be parsed ({type(error).__name__})"
