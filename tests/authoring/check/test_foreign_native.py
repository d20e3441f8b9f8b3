"""What a check finds in native files for macOS and Windows: real libraries, recorded by `foreign_natives/record.py`."""

from __future__ import annotations

import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.authoring.check import foreign_library, foreign_native
from kernels.authoring.check.audit import audit
from kernels.authoring.check.foreign_library import UnreadableLibrary, library_format, read_library
from kernels.errors import MissingPythonDependency

lief = pytest.importorskip("lief")

RECORDED = Path(__file__).parents[2] / "fixtures" / "foreign_natives"

MACOS, WINDOWS = "torch213-cxx11-cpu-aarch64-darwin", "torch213-cxx11-cpu-x86_64-windows"
METAL = "torch213-metal-aarch64-darwin"
INTEL = "torch213-cxx11-cpu-x86_64-darwin"
MACOS_NAME, WINDOWS_NAME = "_add_one_cpu_1a2b3c4.abi3.so", "_add_one_cpu_1a2b3c4.pyd"

Check = Callable[..., list[tuple[str, str]]]


def recorded(name: str) -> bytes:
    return lzma.decompress((RECORDED / f"{name}.xz").read_bytes())


@pytest.fixture
def check(write_variant: Callable[..., Path]) -> Check:
    def look(content: bytes, variant: str = MACOS, file: str = MACOS_NAME) -> list[tuple[str, str]]:
        [found] = audit(write_variant({file: content}, name=variant), dynamic=False)
        return [(each.verdict, each.what) for each in found.findings if each.step == "native files"]

    return look


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read libraries in this process: importing LIEF takes longer than reading them."""

    def read(path: Path, format: str) -> list[foreign_library.LibraryFacts]:
        lief.logging.disable()
        return (foreign_library._macho if format == "Mach-O" else foreign_library._pe)(lief, str(path))

    monkeypatch.setattr(foreign_native, "read_library", read)


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("name", "variant", "file", "what"),
    [
        ("aarch64_good.dylib", MACOS, MACOS_NAME, "macOS 15.0, Python 3.9"),
        ("x86_64_good.dylib", INTEL, MACOS_NAME, "macOS 15.0, Python 3.9"),
        ("aarch64_plain.dylib", MACOS, "lib/helper.dylib", "macOS 15.0, Python 3.9"),
        ("aarch64_good.dylib", METAL, MACOS_NAME, "macOS 26.0, Python 3.9"),
        ("x86_64_good.dll", WINDOWS, WINDOWS_NAME, "Windows, Python 3.9"),
        ("aarch64_good.dll", "torch213-cxx11-cpu-aarch64-windows", WINDOWS_NAME, "Windows, Python 3.9"),
    ],
)
def test_what_loads_elsewhere_passes(check: Check, name: str, variant: str, file: str, what: str) -> None:
    assert check(recorded(name), variant, file) == [("ok", f"{file}: {what}")]


def test_what_other_macs_lack_is_refused(check: Check) -> None:
    answers = check(recorded("aarch64_bad.dylib"))
    assert [verdict for verdict, _ in answers] == ["failed", "failed", "failed", "missing"]
    for (_, said), what in zip(
        answers,
        (
            "uses 1 symbol beyond Python 3.9's stable ABI: PyUnicode_AsUTF8",
            "needs macOS 26.0; compile it for 15.0 or older",
            "needs /opt/homebrew/opt/other/lib/libother.dylib, which is on the build machine",
            "searches for libraries in /Users/ada/kernel/lib, folders of the build machine",
        ),
        strict=True,
    ):
        assert what in said


def test_a_build_for_metal_may_need_the_macos_that_metal_needs(check: Check) -> None:
    said = "\n".join(what for _, what in check(recorded("aarch64_bad.dylib"), METAL))
    assert "beyond Python 3.9's stable ABI" in said
    assert "needs macOS" not in said
    newer = _changed("aarch64_good.dylib", _for_newer_macos)
    assert any("needs macOS 27.0; compile it for 26.0 or older" in what for _, what in check(newer, METAL))


def test_what_other_windows_machines_lack_is_refused(check: Check) -> None:
    answers = check(recorded("x86_64_bad.dll"), WINDOWS, WINDOWS_NAME)
    assert {verdict for verdict, _ in answers} == {"failed"}
    said = "\n".join(what for _, what in answers)
    assert "beyond Python 3.9's stable ABI: PyUnicode_AsUTF8" in said
    assert "needs python311.dll, which only one Python version has; link with python3.lib" in said
    assert "needs vcruntime140d.dll, which comes with a compiler" in said


@pytest.mark.parametrize(
    ("name", "variant", "file", "what"),
    [
        (
            "aarch64_good.dylib",
            "torch213-cxx11-cpu-x86_64-darwin",
            MACOS_NAME,
            "for aarch64; the variant is for x86_64",
        ),
        ("aarch64_good.dll", WINDOWS, WINDOWS_NAME, "compiled for aarch64; the variant is for x86_64"),
        ("x86_64_good.dll", MACOS, MACOS_NAME, "expected a Mach-O file"),
        ("aarch64_good.dylib", WINDOWS, WINDOWS_NAME, "expected a PE file"),
        ("aarch64_good.dylib", MACOS, "add.cpython-311-darwin.so", "only that one loads it"),
        ("x86_64_good.dll", WINDOWS, "add.cp311-win_amd64.pyd", "only that one loads it"),
    ],
)
def test_a_file_for_another_machine_is_refused(check: Check, name: str, variant: str, file: str, what: str) -> None:
    [(verdict, said)] = check(recorded(name), variant, file)
    assert verdict == "failed"
    assert what in said


def _changed(name: str, change: Callable[[Any], object]) -> bytes:
    """A recorded library that LIEF has changed."""
    kind = lief.MachO if name.endswith(".dylib") else lief.PE
    binary = kind.parse(list(recorded(name)))
    binary = binary.at(0) if kind is lief.MachO else binary
    change(binary)
    return bytes(binary.write_to_bytes())


def _for_newer_macos(binary: Any) -> None:
    binary.build_version.minos = [27, 0, 0]


def _for_phones(binary: Any) -> None:
    binary.build_version.platform = lief.MachO.BuildVersion.PLATFORMS.IOS


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("change", "verdict", "what"),
    [
        (lambda binary: binary.remove_signature(), "failed", "has no code signature"),
        (_for_phones, "failed", "compiled for the system IOS"),
        (
            lambda binary: binary.add_library("@rpath/libpython3.11.dylib"),
            "failed",
            "needs @rpath/libpython3.11.dylib, which only one Python version has",
        ),
        (
            lambda binary: binary.add_library("/Library/Frameworks/Python.framework/Versions/3.11/Python"),
            "failed",
            "which only one Python version has",
        ),
        (lambda binary: binary.add_library("@rpath/libtorch.dylib"), None, ""),
        (lambda binary: binary.add_library("/System/Library/Frameworks/Metal.framework/Metal"), None, ""),
    ],
)
def test_mach_o_commands_are_judged(
    check: Check, change: Callable[[Any], object], verdict: str | None, what: str
) -> None:
    answers = check(_changed("aarch64_good.dylib", change))
    # Every change invalidates the signature, and LIEF may remove it.
    answers = [each for each in answers if "code signature" not in each[1] or "signature" in what]
    if verdict is None:
        assert not [each for each in answers if each[0] == "failed"]
    else:
        assert any(found == verdict and what in said for found, said in answers), answers


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\xcf\xfa\xed\xfe" + b"\xff" * 4000, "Mach-O file"),
        (b"\xca\xfe\xba\xbe" + b"\xff" * 4000, "Mach-O file"),
        (b"\xca\xfe\xba\xbe" + bytes(4000), "Mach-O file"),
    ],
)
def test_a_broken_file_is_refused(check: Check, content: bytes, what: str) -> None:
    [(verdict, said)] = check(content)
    assert verdict == "failed"
    assert what in said or "compiled for" in said


def test_damage_anywhere_ends_in_an_answer(tmp_path: Path) -> None:
    for name, format in (("aarch64_bad.dylib", "Mach-O"), ("x86_64_bad.dll", "PE")):
        content = recorded(name)
        for start in (64, 1500):
            path = tmp_path / "damaged"
            path.write_bytes(content[:start] + b"\xff" * 200 + content[start + 200 :])
            try:
                read_library(path, format)
            except UnreadableLibrary:
                continue


def test_a_reader_that_takes_too_long_or_too_much_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "library"
    path.write_bytes(recorded("aarch64_good.dylib"))
    with pytest.raises(UnreadableLibrary, match=r"more than 0\.001 seconds"):
        read_library(path, "Mach-O", seconds=0.001)
    monkeypatch.setattr(foreign_library, "_MEMORY", 1)
    with pytest.raises(UnreadableLibrary, match="LIEF cannot read it"):
        read_library(path, "Mach-O")


def test_formats_are_known_by_their_first_bytes() -> None:
    assert library_format(recorded("x86_64_good.dll")[:1024]) == "PE"
    assert library_format(recorded("x86_64_good.dylib")[:1024]) == "Mach-O"
    assert library_format(b"") is None


def test_a_noarch_variant_has_no_library_of_any_system(check: Check) -> None:
    [(verdict, said)] = check(recorded("x86_64_good.dll"), "torch-cpu", "data.bin")
    assert (verdict, said) == ("failed", "data.bin: native code; a noarch variant is for every system")


def test_without_lief_the_error_says_what_to_install(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lief", None)
    with pytest.raises(MissingPythonDependency, match="pip install lief"):
        check(recorded("aarch64_good.dylib"))
