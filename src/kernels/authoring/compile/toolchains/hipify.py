"""Which sources are CUDA that is translated to HIP before AMD's compiler gets it: with Torch's own translator."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from kernels.support.files import open_regular
from kernels.support.logs import logger, warn_once

__all__ = ["hip_translator"]

_log = logger(__name__)

_LANGUAGE = "hip"

_SUFFIXES = frozenset({".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl"})

#: Names that only CUDA's headers and libraries have, and Torch's headers for CUDA. A macro such as `CUDA_KERNEL` or
#: Torch's `kCUDA`, which ROCm's Torch has too, is none.
_NAMES = re.compile(
    rb"\bcuda[A-Z_]|[</\"]cuda[/_.]|\bcub(?:::|/)|\bcu(?:blas|dnn|fft|rand|solver|sparse|tensor|File)|\bCU(?:stream|device|"
    rb"context|module|function|result)\b|\bnv(?:rtc|tx|cuda|ml)|\bnccl[A-Z.]|__nv_|\bthrust/system/cuda|mma\.h>"
)


def hip_translator(folder: Path, files: Iterable[str], language: str, torch_lib: Path | None) -> Path | None:
    """The translator that the sources of a build need.

    Args:
        folder: The source folder.
        files: The paths of its files.
        language: The backend's `device_language`.
        torch_lib: The folder of Torch's libraries; None if Torch is not used.

    Returns:
        The folder of Torch's translator; None if the language is another one, no source uses CUDA's names, or Torch
        has no translator, which is warned of.
    """
    if language != _LANGUAGE or torch_lib is None:
        return None
    sources = (path for path in files if PurePosixPath(path).suffix in _SUFFIXES)
    first = next((path for path in sources if _names_cuda(folder / path)), None)
    if first is None:
        return None
    translator = torch_lib.parent / "utils" / "hipify"
    if not (translator / "hipify_python.py").is_file():
        warn_once(_log, f"{folder / first} is CUDA, and there is no {translator} to translate it to HIP.")
        return None
    return translator


def _names_cuda(path: Path) -> bool:
    with open_regular(path) as file:
        return _NAMES.search(file.read()) is not None
