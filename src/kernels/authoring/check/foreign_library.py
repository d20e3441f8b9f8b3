"""What a library of macOS or Windows says about itself: read by LIEF, in a process with a limit of time and memory.

LIEF is C++, and the file may be hostile. Nothing of the file runs.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from kernels.errors import MissingPythonDependency
from kernels.support.limited_call import LimitExceeded, call_limited

__all__ = ["LibraryFacts", "UnreadableLibrary", "library_format", "read_library", "require_lief"]

#: The time limit of one file.
_SECONDS = 120.0

#: Bytes of memory beside three times the file: LIEF keeps the file, and what it parses.
_MEMORY = 2 * 1024**3

#: Bounds for one file; the largest published libraries have some 10,000 symbols.
_MAX_SYMBOLS, _MAX_LIBRARIES = 500_000, 2_000

#: The first bytes of Mach-O files, of one processor or several.
_MACHO = (b"\xcf\xfa\xed\xfe", b"\xfe\xed\xfa\xcf", b"\xce\xfa\xed\xfe", b"\xfe\xed\xfa\xce", b"\xca\xfe\xba\xbe")


class LibraryFacts(msgspec.Struct, frozen=True):
    """One library: of a file for several processors, the part for one of them.

    Attributes:
        format: `Mach-O` or `PE`.
        cpu: The processor as in a variant's name, or LIEF's name for another one.
        loadable: Whether it is a library that a process can load, not a program or an object file.
        platform: The system of a Mach-O file, such as `MACOS`; "" if it does not say.
        min_os: The oldest version of macOS that loads it; () if it does not say.
        signed: Whether it has a code signature.
        needs: The libraries that it needs.
        search: The folders that it searches for them.
        python_uses: The functions and data of Python that it uses.
        python_offers: Whether it is a Python extension.
        build_paths: Paths of the build machine that it contains.
    """

    format: str
    cpu: str
    loadable: bool
    platform: str = ""
    min_os: tuple[int, ...] = ()
    signed: bool = False
    needs: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    python_uses: tuple[str, ...] = ()
    python_offers: bool = False
    build_paths: tuple[str, ...] = ()


class UnreadableLibrary(Exception):
    """A file is no library of that format; the message is a clause."""


def library_format(start: bytes) -> str | None:
    """The format of a library by the first kB of its file; None for others.

    Example:
        >>> library_format(b"\\xcf\\xfa\\xed\\xfe"), library_format(b"\\x7fELF"), library_format(b"MZ are letters")
        ('Mach-O', 'ELF', None)
    """
    if start.startswith(b"\x7fELF"):
        return "ELF"
    if start.startswith(_MACHO):
        return "Mach-O"
    offset = int.from_bytes(start[60:64], "little")
    return "PE" if start.startswith(b"MZ") and start[offset : offset + 4] == b"PE\0\0" else None


def require_lief() -> None:
    """Raise `MissingPythonDependency` unless LIEF is installed."""
    if importlib.util.find_spec("lief") is None:
        raise MissingPythonDependency(
            "Checking the libraries of macOS and Windows needs LIEF, which is not installed: pip install lief (extra "
            "`build`)"
        )


def read_library(path: Path, format: str, seconds: float = _SECONDS) -> list[LibraryFacts]:
    """Read a library in a new process.

    Args:
        path: The file.
        format: `Mach-O` or `PE`.
        seconds: The time limit.

    Returns:
        The library for each processor in the file.

    Raises:
        UnreadableLibrary: It cannot be read as that format.
    """
    memory = _MEMORY + 3 * path.stat().st_size
    try:
        return call_limited(_parts, os.fspath(path), format, seconds=seconds, memory=memory)
    except LimitExceeded as error:
        raise UnreadableLibrary(f"LIEF cannot read it as a {format} file: {error}") from error


def _parts(path: str, format: str) -> list[LibraryFacts]:
    import lief

    lief.logging.disable()
    try:
        return _macho(lief, path) if format == "Mach-O" else _pe(lief, path)
    except (UnreadableLibrary, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - what LIEF raises
        raise UnreadableLibrary(f"LIEF cannot read it as a {format} file ({type(error).__name__})") from None


def _macho(lief: Any, path: str) -> list[LibraryFacts]:
    found = lief.MachO.parse(path)
    if found is None or not found.size:
        raise UnreadableLibrary("it is no Mach-O file")
    return [_macho_part(lief, each) for each in found]


def _macho_part(lief: Any, part: Any) -> LibraryFacts:
    cpus, types = lief.MachO.Header.CPU_TYPE, lief.MachO.Header.FILE_TYPE
    cpu = {cpus.ARM64: "aarch64", cpus.X86_64: "x86_64"}.get(part.header.cpu_type)
    # Symbols of C have an underscore before their name.
    used = {_text(each.name)[1:] for each in _bounded(part.imported_symbols, _MAX_SYMBOLS, "symbols")}
    offered = {_text(each.name)[1:] for each in _bounded(part.exported_symbols, _MAX_SYMBOLS, "symbols")}
    own = part.get(lief.MachO.LoadCommand.TYPE.ID_DYLIB)
    needs = [each for each in part.libraries if each.command != lief.MachO.LoadCommand.TYPE.ID_DYLIB]
    version = part.build_version if part.has_build_version else None
    if version is not None:
        platform, min_os = version.platform.name, tuple(version.minos)
    elif part.has_version_min:
        platform, min_os = "MACOS", tuple(part.version_min.version)
    else:
        platform, min_os = "", ()
    return LibraryFacts(
        "Mach-O",
        cpu or part.header.cpu_type.name,
        part.header.file_type in (types.DYLIB, types.BUNDLE),
        platform,
        min_os,
        bool(part.has_code_signature),
        _texts(each.name for each in needs),
        _texts(each.path for each in part.rpaths),
        _python(used),
        any(name.startswith("PyInit_") for name in offered),
        tuple(name for name in _texts([own.name] if own is not None else []) if name.startswith("/")),
    )


def _pe(lief: Any, path: str) -> list[LibraryFacts]:
    found = lief.PE.parse(path)
    if found is None:
        raise UnreadableLibrary("it is no PE file")
    machines = lief.PE.Header.MACHINE_TYPES
    cpu = {machines.ARM64: "aarch64", machines.AMD64: "x86_64"}.get(found.header.machine)
    imports = [*_bounded(found.imports, _MAX_LIBRARIES, "libraries")]
    imports += _bounded(found.delay_imports, _MAX_LIBRARIES, "libraries")
    used = {_text(entry.name) for each in imports for entry in _bounded(each.entries, _MAX_SYMBOLS, "symbols")}
    exports = found.get_export() if found.has_exports else None
    offered = [] if exports is None else _bounded(exports.entries, _MAX_SYMBOLS, "symbols")
    debug = found.codeview_pdb
    paths = [] if debug is None else [debug.filename]
    return [
        LibraryFacts(
            "PE",
            cpu or found.header.machine.name,
            found.header.has_characteristic(lief.PE.Header.CHARACTERISTICS.DLL),
            needs=_texts(each.name for each in imports),
            python_uses=_python(used),
            python_offers=any(_text(each.name).startswith("PyInit_") for each in offered),
            build_paths=tuple(each for each in _texts(paths) if re.match(r"[A-Za-z]:[\\/]|/", each)),
        )
    ]


def _python(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if name.startswith(("Py", "_Py"))))


def _texts(items: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(_text, _bounded(items, _MAX_LIBRARIES, "libraries"))))


def _text(name: Any) -> str:
    """A name of the file, which LIEF gives as bytes where it is no text."""
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
    return text.encode("utf-8", "replace").decode("utf-8")[:1000]


def _bounded(items: Any, limit: int, what: str) -> list[Any]:
    kept: list[Any] = []
    for item in items:
        if len(kept) == limit:
            raise UnreadableLibrary(f"it has more than {limit} {what}")
        kept.append(item)
    return kept
