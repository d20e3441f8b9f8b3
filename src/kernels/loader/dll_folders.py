"""The folders where Windows looks for the libraries that a kernel's native code needs.

Windows looks in no folder of the path for them (Python, `os.add_dll_directory`). Elsewhere there is nothing to do.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from kernels.backends import known
from kernels.loader.registry import KernelPackage

__all__ = ["dll_folders"]


@contextmanager
def dll_folders(package: KernelPackage) -> Iterator[None]:
    """Let Windows find Torch's libraries, the toolkit's and the build's own, while a kernel is imported.

    Args:
        package: The kernel.
    """
    add = getattr(os, "add_dll_directory", None)  # on Windows only
    with ExitStack() as stack:
        if add is not None:
            for folder in _folders(package):
                with suppress(OSError):  # it is removed, or not allowed
                    stack.enter_context(add(str(folder)))
        yield


def _folders(package: KernelPackage) -> list[Path]:
    backend = known(package.metadata.backend.type)
    torch = importlib.util.find_spec("torch")
    found = [package.path, package.init.parent]
    if torch is not None and torch.origin is not None:
        found.append(Path(torch.origin).parent / "lib")
    found += [] if backend is None else backend.library_folders()
    return [folder for folder in dict.fromkeys(map(Path.absolute, found)) if folder.is_dir()]
