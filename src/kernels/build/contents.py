"""What stands in a source folder, file by file: what an id, and whether to build again, are decided by."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernels.build.source import source_files

__all__ = ["Contents", "read_contents"]

#: The macros that carry a build's id into its sources: Torch's, and tvm-ffi's.
_ID_MACROS = (b"TORCH_EXTENSION_NAME", b"TVM_FFI_EXTENSION_NAME")

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Contents:
    """The files of a source folder.

    Attributes:
        hashes: SHA-256, in hexadecimal, by the path relative to the folder.
        id: SHA-256, in hexadecimal, of all files and their names.
        naming: The files that mention a macro of the build's id; what they become changes with every id.
    """

    hashes: Mapping[str, str]
    id: str
    naming: frozenset[str]


def read_contents(folder: Path) -> Contents:
    """Read a source folder, without `build/`, where builds go.

    Args:
        folder: The folder.

    Example:
        >>> sorted(read_contents(Path(__file__).parent / "include").hashes)
        ['older_glibc.h', 'registration.h']
    """
    hashes, naming = {}, set()
    for name, path in source_files(folder):
        if name.parts[0] == "build" and len(name.parts) > 1:
            continue
        digest, tail = hashlib.sha256(), b""
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                if any(macro in tail + chunk for macro in _ID_MACROS):
                    naming.add(str(name))
                tail = chunk[-max(map(len, _ID_MACROS)) :]
        hashes[str(name)] = digest.hexdigest()
    together = "".join(f"{name}\0{value}\n" for name, value in hashes.items())
    return Contents(hashes, hashlib.sha256(together.encode()).hexdigest(), frozenset(naming))
