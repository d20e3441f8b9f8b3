"""Check that a variant's native files load on other systems than the one that built them.

The format: https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

from kernels.authoring.check.checked_variant import CheckedVariant
from kernels.authoring.check.elf_file import open_elf, require_pyelftools
from kernels.authoring.check.faults import report_faults
from kernels.authoring.check.foreign_library import library_format, require_lief
from kernels.authoring.check.foreign_native import FOREIGN, foreign_faults
from kernels.authoring.check.stable_abi import PYTHON, beyond_stable_abi
from kernels.backends import listed
from kernels.support.checks import StepResult, StepResults, failed, missing, ok, skipped

__all__ = ["POLICY", "SymbolPolicy", "is_native", "native_files", "require_reader"]


@dataclass(frozen=True)
class SymbolPolicy:
    """The newest symbol versions that a native file may need.

    `newest` has the newest version of each symbol family, such as `GLIBC`; `others` are allowed without a number.
    """

    name: str
    newest: Mapping[str, tuple[int, ...]]
    others: frozenset[str] = frozenset()

    def allows(self, version: str) -> bool:
        """Whether a symbol version is allowed; versions of unknown families are.

        Example:
            >>> POLICY.allows("GLIBC_2.28"), POLICY.allows("GLIBC_2.29"), POLICY.allows("GLIBC_PRIVATE")
            (True, False, False)
        """
        family, _, number = version.partition("_")
        if family not in self.newest or version in self.others:
            return True
        if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9}){0,5}", number) is None:
            return False
        return tuple(map(int, number.split("."))) <= self.newest[family]


#: manylinux_2_28 as auditwheel 6.8 has it for x86_64 and aarch64
#: (https://github.com/pypa/auditwheel/blob/main/src/auditwheel/policy/manylinux-policy.json).
POLICY = SymbolPolicy(
    "manylinux_2_28",
    MappingProxyType({"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}),
    frozenset({"CXXABI_FLOAT128", "CXXABI_TM_1"}),
)

#: Bounds for one file; flash-attention's has some 10,000 symbols.
_MAX_SYMBOLS, _MAX_VERSIONS, _MAX_TAGS = 500_000, 10_000, 10_000

_MAGIC = b"\x7fELF"

#: Suffixes of native files (PEP 3149, and what `ctypes` loads).
_SUFFIXES = (".so", ".pyd", ".dll", ".dylib")

#: The processor in a variant's name, and in an ELF header.
_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}


def is_native(checked: CheckedVariant, name: str) -> bool:
    """Whether a file is native code, by its name or by its first bytes."""
    return name.endswith(_SUFFIXES) or library_format(checked.start(name, 1024)) is not None


def require_reader(checked: CheckedVariant) -> None:
    """Raise `MissingPythonDependency` unless what reads the variant's native files is installed."""
    if checked.variant is not None and checked.variant.os in FOREIGN:
        require_lief()
        return
    require_pyelftools()


def native_files(checked: CheckedVariant) -> StepResults:
    """Whether the native files need only what every supported system has."""
    natives = [name for name in checked.files.sizes if is_native(checked, name)]
    variant = checked.variant
    if variant is None:
        yield skipped("the variant's name is invalid, so its system is unknown")
    elif variant.noarch:
        if not natives:
            yield skipped("a noarch variant has no native files")
        yield from report_faults([f"{name}: native code; a noarch variant is for every system" for name in natives])
    elif not natives:
        yield failed("a compiled variant must have a native file, and this has none")
    elif variant.os in FOREIGN:
        for name in natives:
            yield from foreign_faults(checked, name)
    elif variant.os != "linux":
        yield skipped(f"native files for {variant.os} are not checked")
    else:
        for name in natives:
            faults = list(_faults(checked, name, variant.cpu))
            yield from faults
            if not any(verdict == "failed" for verdict, _ in faults):
                yield ok(f"{name}: {POLICY.name}, Python {PYTHON}")
        library = _tvm_ffi_library(checked)
        if library is not None and library not in natives:
            yield failed(
                f"{library}, which tvm-ffi loads, is missing; it must be a plain library, not an abi3 extension"
            )


def _tvm_ffi_library(checked: CheckedVariant) -> str | None:
    """The library that tvm-ffi loads; None for other variants."""
    if checked.variant is None or checked.variant.kind != "tvm-ffi" or checked.metadata is None:
        return None
    return f"{checked.metadata.id}.so"


def _faults(checked: CheckedVariant, name: str, cpu: str | None) -> Iterator[StepResult]:
    if checked.start(name, len(_MAGIC)) != _MAGIC:
        yield failed(f"{name}: expected an ELF file")
        return
    try:
        with open_elf(checked.folder / name) as elf:
            found = _look(elf, name, cpu, name == _tvm_ffi_library(checked))
            yield from ((verdict, f"{name}: {what}") for verdict, what in found)
    except Exception as error:  # noqa: BLE001 - pyelftools does not validate the file
        yield failed(f"{name}: cannot be read as an ELF file ({type(error).__name__})")


def _look(elf: Any, name: str, cpu: str | None, tvm_ffi: bool) -> Iterator[StepResult]:
    machine = elf["e_machine"]
    if cpu in _MACHINES and (machine != _MACHINES[cpu] or elf.elfclass != 64):
        yield failed(f"compiled for {machine}, {elf.elfclass} bits; the variant is for {cpu}")
    yield from _stack(elf)

    tags = _bounded(_dynamic(elf), _MAX_TAGS, "dynamic entries")
    present = {tag.entry.d_tag for tag in tags}
    sections = {section["sh_type"]: section for section in elf.iter_sections()}
    # The linker reads the segments; sections that omit symbols would hide them from this check.
    for tag, kind in (("DT_SYMTAB", "SHT_DYNSYM"), ("DT_VERNEED", "SHT_GNU_verneed")):
        if tag in present and kind not in sections:
            yield failed("its section headers are missing or incomplete, so its symbols cannot be read")
            return
    yield from _libraries(tags)
    if "DT_VERNEED" in present:
        yield from _versions(sections["SHT_GNU_verneed"], sections["SHT_DYNSYM"], sections.get("SHT_GNU_versym"))
    if "DT_SYMTAB" in present:
        symbols = _bounded(sections["SHT_DYNSYM"].iter_symbols(), _MAX_SYMBOLS, "symbols")
        yield from _python_symbols(symbols, name)
        if tvm_ffi and not any(_is_tvm_ffi_export(symbol) for symbol in symbols):
            yield missing("exports no function to tvm-ffi (TVM_FFI_DLL_EXPORT_TYPED_FUNC), so `ops` is empty")


def _stack(elf: Any) -> Iterator[StepResult]:
    # Without the segment the stack is executable (`man 8 execstack`); glibc 2.41 refuses to load that.
    flags = [segment["p_flags"] for segment in elf.iter_segments() if segment["p_type"] == "PT_GNU_STACK"]
    if not flags or any(flag & 1 for flag in flags):  # PF_X
        yield failed("it needs an executable stack; link it with -z noexecstack")


def _dynamic(elf: Any) -> Iterator[Any]:
    for segment in elf.iter_segments():
        if segment["p_type"] == "PT_DYNAMIC":
            yield from segment.iter_tags()


def _libraries(tags: Iterable[Any]) -> Iterator[StepResult]:
    for tag in tags:
        kind = tag.entry.d_tag
        if kind == "DT_NEEDED" and re.match(r"libpython[0-9]", tag.needed):
            yield failed(f"needs {tag.needed}, which only one Python version has; do not link with Python's library")
        if kind in ("DT_RPATH", "DT_RUNPATH"):
            paths = tag.rpath if kind == "DT_RPATH" else tag.runpath
            absolute = [path for path in paths.split(":") if path and not path.startswith("$ORIGIN")]
            if absolute:
                yield missing(
                    f"searches for libraries in {listed(absolute[:50])}, folders of the build machine; use $ORIGIN"
                )


def _versions(needed: Any, symbols: Any, versym: Any) -> Iterator[StepResult]:
    indices: dict[int, str] = {}
    # Entries of a hostile file may refer to themselves and never end, so their number is limited.
    every = (version for _, versions in needed.iter_versions() for version in versions)
    for count, version in enumerate(every, 1):
        if count > _MAX_VERSIONS:
            yield failed(f"more than {_MAX_VERSIONS} symbol versions")
            return
        if not POLICY.allows(version.name):
            indices[version["vna_other"]] = version.name
    if not indices:
        return
    users: dict[str, list[str]] = {name: [] for name in indices.values()}
    for number in range(min(versym.num_symbols() if versym else 0, _MAX_SYMBOLS)):
        index = versym.get_symbol(number).entry["ndx"]
        if index in indices:
            users[indices[index]].append(symbols.get_symbol(number).name)
    for version, by in sorted(users.items()):
        wanted = f" (for {listed([symbol[:80] for symbol in sorted(by)][:50])})" if by else ""
        yield failed(
            f"needs {version}{wanted}, which systems of {POLICY.name} do not have; build it on such a system or "
            "an older one"
        )


def _python_symbols(symbols: Iterable[Any], name: str) -> Iterator[StepResult]:
    used, offers = set(), False
    for symbol in symbols:
        undefined = symbol["st_shndx"] == "SHN_UNDEF"
        if undefined and symbol.name.startswith(("Py", "_Py")):
            used.add(symbol.name)
        offers = offers or (not undefined and symbol.name.startswith("PyInit_"))
    if (what := beyond_stable_abi(used)) is not None:
        yield failed(what)
    if offers and not name.endswith(".abi3.so"):
        yield failed("a Python extension without the suffix .abi3.so, so only one Python version loads it")


def _is_tvm_ffi_export(symbol: Any) -> bool:
    # The ABI's prefix (tvm/ffi/extra/module.h, `tvm_ffi_symbol_prefix`); names with another `_` are internal.
    return symbol["st_shndx"] != "SHN_UNDEF" and re.match("__tvm_ffi_[^_]", symbol.name) is not None


def _bounded(items: Iterable[Any], limit: int, what: str) -> list[Any]:
    kept = list(islice(items, limit + 1))
    if len(kept) > limit:
        raise ValueError(f"more than {limit} {what}")
    return kept
