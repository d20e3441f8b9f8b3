"""How an ELF file is opened that says wrong things of itself."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import kernels.authoring.check.elf_file as elf_file
from kernels.authoring.check.audit import audit
from kernels.authoring.wheel.platform_tag import oldest_glibc
from kernels.errors import RequestError

pytest.importorskip("elftools")

SYMBOLS, NAME = 20_000, b"P" * 1_000_000


def _header(offset: int, segments: int) -> bytes:
    sizes = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, segments, offset, 0, 64, 56, 2, 64, 4, 1)
    return b"\x7fELF\x02\x01\x01" + bytes(9) + sizes


def _section(kind: int, offset: int = 0, size: int = 0, link: int = 0, count: int = 0, entry: int = 0) -> bytes:
    return struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, size, link, count, 1, entry)


def _segment(kind: int, offset: int, size: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, 6, offset, 0, 0, size, size, 8)


def _many_long_names() -> bytes:
    """Every symbol and version has the same name, which is as long as the file: 20 GB of names in one megabyte."""
    names = b"\0" + NAME + b"\0"
    symbols = struct.pack("<IBBHQQ", 1, 18, 0, 0, 0, 0) * SYMBOLS
    version = struct.pack("<HHIIIIHHII", 1, 0xFFFF, 0, 16, 0, 0, 0, 0, 1, 0)
    dynamic = struct.pack("<QQQQ", 6, 0, 0, 0)
    start = 64 + 4 * 64
    places = [start]
    for part in (names, symbols, version, dynamic):
        places.append(places[-1] + len(part))
    at_names, at_symbols, at_version, at_dynamic, end = places
    sections = [
        _section(0x6FFFFFFE, at_version, len(version), 1, 0xFFFF),
        _section(3, at_names, len(names)),
        _section(11, at_symbols, len(symbols), 1, 0, 24),
        _section(6, at_dynamic, len(dynamic), 1, 0, 16),
    ]
    segments = _segment(2, at_dynamic, len(dynamic)) + _segment(0x6474E551, 0, 0)
    return b"".join([_header(64, end), *sections, names, symbols, version, dynamic, segments])


def test_a_file_whose_names_never_end_is_refused_soon(
    write_variant: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elf_file, "_BUDGET", 64 * 1024**2)
    file = "_add_one_cpu_1a2b3c4.abi3.so"
    folder = write_variant({file: _many_long_names()}, name="torch213-cxx11-cpu-x86_64-linux")
    [found] = audit(folder, dynamic=False)
    said = [each.what for each in found.findings if each.step == "native files" and each.verdict == "failed"]
    assert f"{file}: cannot be read as an ELF file (ValueError)" in said
    with pytest.raises(RequestError, match="cannot be read as an ELF file"):
        oldest_glibc(folder / file)
