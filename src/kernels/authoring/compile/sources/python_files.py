"""The files of a kernel's Python package, and whether Python can compile them."""

from __future__ import annotations

import warnings
from pathlib import Path, PurePosixPath

from kernels.authoring.compile.build_toml.model import KernelSource
from kernels.authoring.compile.sources.source_files import source_entries
from kernels.errors import RequestError
from kernels.support.documents import TooComplex, check_source
from kernels.support.files import FileTooLarge, read_bounded

__all__ = ["check_python", "file_syntax_error", "package_files", "syntax_error"]

#: The largest Python file that is compiled: a generated module has some 100 kB.
_MAX_PYTHON_BYTES = 2 * 1024 * 1024


def package_files(source: KernelSource) -> list[tuple[PurePosixPath, Path]]:
    """The files of a source's Python package that go into its builds: each path in the package, and the file.

    Raises:
        RequestError: A link leads out of the source folder or to a folder, or a name is not allowed on every system.
    """
    suffixes = {f".{suffix}" for suffix in source.pyext}
    found = []
    for name in source_entries(source.package_dir):
        path = source.package_dir / name
        if path.is_dir():
            raise RequestError(f"{path} is a link to a folder; a package holds its own files.")
        if not path.is_file() or path.suffix not in suffixes or str(name) == "_ops.py":  # the builder's
            continue
        if not path.resolve().is_relative_to(source.folder):
            raise RequestError(f"{path} is a link that leads out of {source.folder}; a package holds its own files.")
        if not str(name).isprintable() or "\\" in str(name):
            raise RequestError(f"{source.package_dir} has {str(name)[:200]!r}, a name that not every system allows.")
        found.append((name, path))
    return found


def check_python(source: KernelSource) -> None:
    """Check that Python can compile every file of the package: otherwise the builds could not be imported.

    Raises:
        RequestError: It cannot; the message has the file and the line.
    """
    for _, path in package_files(source):
        problem = file_syntax_error(path, path.name) if path.suffix == ".py" else None
        if problem is not None:
            raise RequestError(f"{path}:{problem[0]}: not valid Python: {problem[1]}.")


def file_syntax_error(path: Path, name: str) -> tuple[int, str] | None:
    """As `syntax_error`, for a file of a limited size that is called `name`."""
    try:
        return syntax_error(read_bounded(path, _MAX_PYTHON_BYTES), name)
    except FileTooLarge:
        return 1, f"it has more than {_MAX_PYTHON_BYTES} bytes"


def syntax_error(data: bytes, name: str) -> tuple[int, str] | None:
    """Why Python cannot compile a file: the line and the problem; None if it can. Nothing is run.

    Args:
        data: The file's content.
        name: The file's name.

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
