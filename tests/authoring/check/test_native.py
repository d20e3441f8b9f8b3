"""What a check finds in native files: symbol versions, Python's stable ABI, the stack, search paths."""

from __future__ import annotations

import platform
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kernels.authoring.check.native as native
from kernels.authoring.check.audit import audit
from kernels.errors import MissingPythonDependency

pytest.importorskip("elftools")
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="compiles ELF files for x86_64"
)

NATIVE = "torch213-cxx11-cpu-x86_64-linux"
EXTENSION = "_add_one_cpu_1a2b3c4.abi3.so"
GOOD = "int PyModule_Create2(void);\nint PyInit_add(void) { return PyModule_Create2(); }\n"

Compile = Callable[..., bytes]
Check = Callable[..., list[tuple[str, str]]]


@pytest.fixture
def check(write_variant: Callable[..., Path]) -> Check:
    def look(content: bytes | None, file: str = EXTENSION, name: str = NATIVE) -> list[tuple[str, str]]:
        folder = write_variant({} if content is None else {file: content}, name=name)
        [found] = audit(folder, dynamic=False)
        return [(each.verdict, each.what) for each in found.findings if each.step == "native files"]

    return look


def test_a_limited_extension_passes(check: Check, compile_native: Compile) -> None:
    assert check(compile_native(GOOD)) == [("ok", f"{EXTENSION}: manylinux_2_28, Python 3.9")]


@pytest.mark.parametrize(
    ("source", "flags", "what"),
    [
        ("void f(void);\nvoid g(void) { f(); }", ["-z", "execstack"], "executable stack"),
        (
            "int PyUnicode_AsUTF8(void), _PyPrivate(void);\nint g(void) { return PyUnicode_AsUTF8() + _PyPrivate(); }",
            [],
            "uses 2 symbols beyond Python 3.9's stable ABI: PyUnicode_AsUTF8, _PyPrivate",
        ),
    ],
)
def test_what_other_systems_lack_is_refused(
    check: Check, compile_native: Compile, source: str, flags: list[str], what: str
) -> None:
    [(verdict, said)] = check(compile_native(source, *flags))
    assert verdict == "failed"
    assert what in said


def test_a_newer_symbol_version_is_named_with_its_symbol(
    check: Check, compile_native: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = compile_native("#include <string.h>\nvoid *f(void *a, void *b, int n) { return memcpy(a, b, n); }")
    assert [verdict for verdict, _ in check(content)] == ["ok"]  # memcpy@GLIBC_2.14
    strict = native.SymbolPolicy("manylinux_2_5", {"GLIBC": (2, 5)})
    monkeypatch.setattr(native, "POLICY", strict)
    [(verdict, said)] = check(content)
    assert verdict == "failed"
    assert "needs GLIBC_2.14 (for memcpy), which systems of manylinux_2_5 do not have" in said


@pytest.mark.parametrize(
    ("library", "version", "verdict"),
    [
        ("libc.so.6", "GLIBC_2.28", "ok"),
        ("libc.so.6", "GLIBC_2.34", "failed"),
        ("libstdc++.so.6", "GLIBCXX_3.4.24", "ok"),
        ("libstdc++.so.6", "GLIBCXX_3.4.29", "failed"),
        ("libstdc++.so.6", "CXXABI_1.3.13", "failed"),
    ],
)
def test_what_a_newer_system_was_linked_against_is_refused(
    check: Check, compile_native: Compile, tmp_path: Path, library: str, version: str, verdict: str
) -> None:
    # A library of another system stands in for the real one: what is linked asks for the version it has there.
    (tmp_path / "versions").write_text(f"{version} {{ global: newer; }};\n")
    script, name = f"-Wl,--version-script={tmp_path / 'versions'}", f"-Wl,-soname,{library}"
    (tmp_path / "libnewer.so").write_bytes(compile_native("int newer(void) { return 0; }", script, name))
    content = compile_native("int newer(void);\nint f(void) { return newer(); }", str(tmp_path / "libnewer.so"))
    [(found, said)] = check(content)
    assert found == verdict
    if verdict == "failed":
        assert f"needs {version} (for newer), which systems of manylinux_2_28 do not have" in said


@pytest.mark.parametrize(
    ("version", "allowed"),
    [
        ("GLIBC_2.2.5", True),
        ("GLIBC_2.28", True),
        ("GLIBC_2.29", False),
        ("GLIBC_PRIVATE", False),
        ("GLIBC_ABI_DT_RELR", False),
        ("GLIBCXX_3.4.24", True),
        ("GLIBCXX_3.4.26", False),
        ("CXXABI_1.3.11", True),
        ("CXXABI_1.3.12", False),
        ("CXXABI_TM_1", True),
        ("libcudart.so.13", True),
        ("GOMP_5.0", True),
    ],
)
def test_the_policy_says_which_versions_are_allowed(version: str, allowed: bool) -> None:
    assert native.POLICY.allows(version) is allowed


def test_an_absolute_search_path_is_mentioned(check: Check, compile_native: Compile) -> None:
    answers = check(compile_native(GOOD, "-Wl,-rpath,/opt/acme/lib:$ORIGIN/lib"))
    assert [verdict for verdict, _ in answers] == ["missing", "ok"]
    assert "/opt/acme/lib" in answers[0][1]
    assert [verdict for verdict, _ in check(compile_native(GOOD, "-Wl,-rpath,$ORIGIN"))] == ["ok"]


def test_an_extension_for_one_python_is_refused(check: Check, compile_native: Compile) -> None:
    [(verdict, said)] = check(compile_native(GOOD), "add.cpython-311-x86_64-linux-gnu.so")
    assert verdict == "failed"
    assert "without the suffix .abi3.so" in said


TVM_FFI = "tvm-ffi01-cpu-x86_64-linux"
LIBRARY = EXTENSION.replace(".abi3", "")


@pytest.mark.parametrize(
    ("source", "file", "answers"),
    [
        ("int __tvm_ffi_add_one(void) { return 0; }", LIBRARY, [("ok", f"{LIBRARY}: manylinux_2_28")]),
        ("int __tvm_ffi__ctx(void) { return 0; }", LIBRARY, [("missing", "exports no function"), ("ok", "")]),
        (
            "int __tvm_ffi_add_one(void) { return 0; }",
            EXTENSION,
            [("ok", ""), ("failed", f"{LIBRARY}, which")],
        ),
        (
            "int __tvm_ffi_add_one(void) { return 0; }",
            "other.so",
            [("ok", ""), ("failed", f"{LIBRARY}, which")],
        ),
        (GOOD, LIBRARY, [("failed", "without the suffix .abi3.so"), ("missing", "exports no function")]),
    ],
    ids=["good", "nothing offered", "named as an extension", "under another name", "a Python extension"],
)
def test_tvm_ffi_loads_a_plain_library(
    check: Check, compile_native: Compile, source: str, file: str, answers: list[tuple[str, str]]
) -> None:
    found = check(compile_native(source), file, TVM_FFI)
    assert [verdict for verdict, _ in found] == [verdict for verdict, _ in answers]
    assert all(what in said for (_, said), (_, what) in zip(found, answers, strict=True))


def test_pythons_own_library_is_refused(check: Check, compile_native: Compile, tmp_path: Path) -> None:
    (tmp_path / "libpython3.11.so.1.0").write_bytes(
        compile_native("int PyModule_Create2(void) { return 0; }", "-Wl,-soname,libpython3.11.so.1.0")
    )
    [(verdict, said)] = check(compile_native(GOOD, str(tmp_path / "libpython3.11.so.1.0")))
    assert verdict == "failed"
    assert "needs libpython3.11.so.1.0" in said


def test_the_processor_is_the_variants(check: Check, compile_native: Compile) -> None:
    [(verdict, said)] = check(compile_native(GOOD), name="torch213-cxx11-cpu-aarch64-linux")
    assert verdict == "failed"
    assert "compiled for EM_X86_64, 64 bits; the variant is for aarch64" in said


def test_a_compiled_variant_has_a_native_file(check: Check) -> None:
    assert check(None) == [("failed", "a compiled variant must have a native file, and this has none")]


def test_a_native_file_under_another_name_is_found(check: Check, compile_native: Compile) -> None:
    [(verdict, said)] = check(compile_native("void g(void) {}", "-z", "execstack"), "data.bin")
    assert verdict == "failed"
    assert said.startswith("data.bin: it needs an executable stack")


def _without_sections(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[0x28:0x30] = bytes(8)  # e_shoff
    changed[0x3C:0x40] = bytes(4)  # e_shnum, e_shstrndx
    return bytes(changed)


def _endless_versions(content: bytes, *, inside: bool = False) -> bytes:
    """The section of needed versions says that it has as many entries as can be, and each of them that (`inside`)."""
    changed = bytearray(content)
    [offset], [size, count] = struct.unpack_from("<Q", changed, 0x28), struct.unpack_from("<HH", changed, 0x3A)
    for number in range(count):
        start = offset + number * size
        if struct.unpack_from("<I", changed, start + 4)[0] == 0x6FFFFFFE:  # SHT_GNU_verneed
            struct.pack_into("<I", changed, start + 44, 0xFFFFFFFF)
            at = struct.unpack_from("<Q", changed, start + 24)[0]
            struct.pack_into("<I", changed, at + 12, 0)  # the next entry is this one
            if inside:
                [first] = struct.unpack_from("<I", changed, at + 8)
                struct.pack_into("<H", changed, at + 2, 0xFFFF)
                struct.pack_into("<I", changed, at + first + 12, 0)
    return bytes(changed)


@pytest.mark.parametrize(
    ("attack", "what"),
    [
        (lambda content: content[:64], "cannot be read as an ELF file"),
        (lambda content: b"\x7fELF" + b"\xff" * 500, "cannot be read as an ELF file"),
        (lambda content: b"no library", "expected an ELF file"),
        (_without_sections, "section headers are missing"),
    ],
)
def test_a_file_that_is_not_what_it_says_is_refused(
    check: Check, compile_native: Compile, attack: Callable[[bytes], bytes], what: str
) -> None:
    answers = check(attack(compile_native(GOOD)))
    assert any(verdict == "failed" and what in said for verdict, said in answers), answers


def test_a_list_of_versions_without_end_comes_to_one(check: Check, compile_native: Compile) -> None:
    content = compile_native("#include <string.h>\nvoid *f(void *a, void *b, int n) { return memcpy(a, b, n); }")
    for inside in (False, True):
        assert ("failed", "more than 10000 symbol versions") in [
            (verdict, said.partition(": ")[2]) for verdict, said in check(_endless_versions(content, inside=inside))
        ]


def test_more_symbols_than_any_library_has_are_not_read(
    check: Check, compile_native: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_MAX_SYMBOLS", 1)
    assert "cannot be read" in check(compile_native(GOOD))[0][1]


def test_without_pyelftools_the_error_says_what_to_install(
    check: Check, compile_native: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = compile_native(GOOD)
    monkeypatch.setitem(sys.modules, "elftools.elf.elffile", None)
    with pytest.raises(MissingPythonDependency, match="pip install pyelftools"):
        check(content)
