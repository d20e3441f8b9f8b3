"""Open an ELF file for pyelftools, which believes what the file says of itself: how much it reads is limited."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import Any

from kernels.errors import MissingPythonDependency
from kernels.support.files import open_regular

__all__ = ["open_elf", "require_pyelftools"]

#: What reading one file may cost: its bytes, and `_READ` for each read. 500,000 symbols take half of it.
_BUDGET, _READ = 2 * 1024**3, 256


class _LimitedReader(BufferedReader):
    """A file that ends with an error where a reader goes through it again and again."""

    def __init__(self, path: os.PathLike[str] | str) -> None:
        super().__init__(open_regular(path))  # type: ignore[arg-type]
        self._left = _BUDGET

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self._left -= _READ + len(data)
        if self._left < 0:
            raise ValueError("the file refers to the same places too often")
        return data


@contextmanager
def open_elf(path: os.PathLike[str] | str) -> Iterator[Any]:
    """An ELF file as pyelftools' `ELFFile`.

    Args:
        path: The file.

    Raises:
        MissingPythonDependency: pyelftools is not installed.
        NotRegularFile: It is not a regular file.
        Exception: Of any class, also later from the `ELFFile`: it is no ELF file, or takes too many steps to read.
    """
    require_pyelftools()
    from elftools.elf.elffile import ELFFile

    with _LimitedReader(path) as file:
        yield ELFFile(file)


def require_pyelftools() -> None:
    """Raise `MissingPythonDependency` unless pyelftools is installed."""
    try:
        import elftools.elf.elffile  # noqa: F401
    except ImportError:
        raise MissingPythonDependency(
            "Reading native files needs pyelftools, which is not installed: pip install pyelftools (extra `build`)"
        ) from None
