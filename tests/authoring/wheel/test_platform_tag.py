"""The systems of a wheel are those on which its libraries load."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from kernels.authoring.wheel.platform_tag import oldest_glibc, oldest_macos, wheel_tag
from kernels.errors import RequestError
from kernels.resolver.variant import parse_variant


def _macho(tmp_path: Path, *commands: bytes) -> Path:
    """A library for macOS, as far as its load commands."""
    path = tmp_path / "_kernel.abi3.so"
    header = struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 6, len(commands), sum(map(len, commands)), 0, 0)
    path.write_bytes(header + b"".join(commands))
    return path


_UUID = struct.pack("<2I16s", 0x1B, 24, b"")


@pytest.mark.parametrize(
    ("command", "macos"),
    [
        (struct.pack("<6I", 0x32, 24, 1, 26 << 16 | 1 << 8, 0, 0), (26, 1)),
        (struct.pack("<4I", 0x24, 16, 10 << 16 | 15 << 8, 0), (10, 15)),
    ],
)
def test_a_library_for_macos_says_which(tmp_path: Path, command: bytes, macos: tuple[int, int]) -> None:
    library = _macho(tmp_path, _UUID, command)
    assert oldest_macos(library) == macos
    tag = wheel_tag(parse_variant("torch213-metal-aarch64-darwin"), {library.name: library})
    assert str(tag) == f"cp310-abi3-macosx_{macos[0]}_{macos[1] if macos[0] < 11 else 0}_arm64"


@pytest.mark.parametrize("data", [b"", b"\xcf\xfa\xed\xfe", b"\xcf\xfa\xed\xfe" + b"\xff" * 100, b"x" * 64])
def test_a_file_that_says_nothing_is_refused(tmp_path: Path, data: bytes) -> None:
    library = tmp_path / "_kernel.abi3.so"
    library.write_bytes(data)
    with pytest.raises(RequestError, match="does not say which macOS"):
        oldest_macos(library)
    with pytest.raises(RequestError, match="cannot be read as an ELF file"):
        oldest_glibc(library)


def test_other_systems_are_named_by_the_variant(tmp_path: Path) -> None:
    library = tmp_path / "_kernel.pyd"
    tag = wheel_tag(parse_variant("torch213-cu130-x86_64-windows"), {library.name: library})
    assert str(tag) == "cp310-abi3-win_amd64"
    with pytest.raises(RequestError, match="a compiled build without a native file"):
        wheel_tag(parse_variant("torch213-cu130-x86_64-windows"), {})


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("symbol", "glibc"),
    [("memcpy@GLIBC_2.14", 17), ("pthread_create@GLIBC_2.34", 34), ("made_up@GLIBC_2.99", 99), ("other@OTHER_7.5", 17)],
)
def test_a_library_for_linux_needs_the_newest_of_its_symbols(tmp_path: Path, symbol: str, glibc: int) -> None:
    name, _, version = symbol.partition("@")
    library = tmp_path / "libneeded.so"
    (tmp_path / "versions").write_text(f"{version} {{ global: {name}; }};\n")
    (tmp_path / "needed.c").write_text(f"void {name}(void) {{}}\n")
    flags = ["-shared", "-fPIC", "-nostdlib", "-fno-builtin"]
    script = f"-Wl,--version-script={tmp_path / 'versions'}"
    subprocess.run(["cc", *flags, script, tmp_path / "needed.c", "-o", library], check=True)
    (tmp_path / "user.c").write_text(f"void {name}(void); void use(void) {{ {name}(); }}\n")
    user = tmp_path / "_user.so"
    subprocess.run(["cc", *flags, tmp_path / "user.c", library, "-o", user], check=True)
    assert oldest_glibc(user) == glibc
    # A library that is no extension fits every Python.
    tag = wheel_tag(parse_variant("tvm-ffi01-cpu-x86_64-linux"), {user.name: user})
    assert str(tag) == f"py3-none-manylinux_2_{glibc}_x86_64"
