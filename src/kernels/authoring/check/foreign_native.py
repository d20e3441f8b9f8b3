"""Check that native files for macOS and Windows load on other machines than the one that built them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernels import backends
from kernels.authoring.check.checked_variant import CheckedVariant
from kernels.authoring.check.foreign_library import LibraryFacts, UnreadableLibrary, library_format, read_library
from kernels.authoring.check.stable_abi import PYTHON, beyond_stable_abi
from kernels.backends import listed
from kernels.resolver.variant import Variant
from kernels.support.checks import StepResult, failed, missing, ok

__all__ = ["FOREIGN", "MACOS", "foreign_faults"]

#: The newest version of macOS that a build may need, the oldest that publishers of kernels support; a backend may need
#: a newer one.
MACOS = (15, 0)

#: Libraries that every macOS has.
_SYSTEM = ("/usr/lib/", "/System/Library/")

#: DLLs of compilers that users do not have: debug versions of Microsoft's, and MinGW's.
_COMPILERS = re.compile(r"(vcruntime\w*d|msvcp\w*d|ucrtbased|libgcc_s_\S*|libstdc\+\+\S*|libwinpthread\S*)\.dll", re.I)

_PYTHONS_DLL = re.compile(r"python3[0-9]+(_d)?\.dll|python3_d\.dll", re.I)


@dataclass(frozen=True)
class _System:
    format: str
    what: Callable[[Variant], str]  # what is right, for the result
    faults: Callable[[LibraryFacts, Variant], Iterator[StepResult]]
    one_python: re.Pattern[str]  # the names of extensions that only one Python loads


def foreign_faults(checked: CheckedVariant, name: str) -> Iterator[StepResult]:
    """The results for one native file of a variant for one of the systems in `FOREIGN`."""
    variant = checked.variant
    assert variant is not None
    system = FOREIGN[variant.os or ""]
    if library_format(checked.start(name, 1024)) != system.format:
        yield failed(f"{name}: expected a {system.format} file")
        return
    try:
        parts = read_library(checked.folder / name, system.format)
    except UnreadableLibrary as error:
        yield failed(f"{name}: {error}")
        return
    found = next((part for part in parts if part.cpu == variant.cpu), None)
    if found is None:
        cpus = ", ".join(sorted({part.cpu for part in parts}))
        yield failed(f"{name}: compiled for {cpus}; the variant is for {variant.cpu}")
        return
    results = [*_general(found, name, system), *system.faults(found, variant)]
    yield from ((verdict, f"{name}: {what}") for verdict, what in results)
    if all(verdict != "failed" for verdict, _ in results):
        yield ok(f"{name}: {system.what(variant)}, Python {PYTHON}")


def _general(found: LibraryFacts, name: str, system: _System) -> Iterator[StepResult]:
    if not found.loadable:
        yield failed("it is a program or an object file; expected a library")
    if (what := beyond_stable_abi(found.python_uses)) is not None:
        yield failed(what)
    if found.python_offers and system.one_python.search(name):
        yield failed("a Python extension with the name of one Python version, and only that one loads it")
    if found.build_paths:
        yield missing(f"has {listed(found.build_paths[:50])}, paths of the build machine")


def _macos_of(variant: Variant) -> tuple[int, int]:
    """The newest version of macOS that a variant's files may need."""
    return max(MACOS, (backends.get(variant.backend).min_macos, 0))


def _macos(found: LibraryFacts, variant: Variant) -> Iterator[StepResult]:
    newest = _macos_of(variant)
    if found.platform not in ("MACOS", ""):
        yield failed(f"compiled for the system {found.platform}; the variant is for macOS")
    if found.min_os[:2] > newest:
        yield failed(
            f"needs macOS {_dotted(found.min_os)}; compile it for {_dotted(newest)} or older "
            f"(MACOSX_DEPLOYMENT_TARGET={_dotted(newest)})"
        )
    if found.cpu == "aarch64" and not found.signed:
        yield failed("has no code signature, so macOS ends a process that loads it; run `codesign -s - FILE`")
    for library in found.needs:
        if re.search(r"(^|/)(libpython3\.[0-9]+\w*\.dylib|Python3?\.framework/.*)$", library):
            yield failed(f"needs {library}, which only one Python version has; link with -undefined dynamic_lookup")
        elif library.startswith("/") and not library.startswith(_SYSTEM):
            yield failed(f"needs {library}, which is on the build machine; refer to it by @rpath or @loader_path")
    absolute = [folder for folder in found.search if folder.startswith("/") and not folder.startswith(_SYSTEM)]
    if absolute:
        yield missing(
            f"searches for libraries in {listed(absolute[:50])}, folders of the build machine; use @loader_path"
        )


def _windows(found: LibraryFacts, variant: Variant) -> Iterator[StepResult]:
    for library in found.needs:
        if _PYTHONS_DLL.fullmatch(library):
            yield failed(f"needs {library}, which only one Python version has; link with python3.lib")
        elif _COMPILERS.fullmatch(library):
            yield failed(f"needs {library}, which comes with a compiler; link with the runtime that is redistributed")
        elif re.search(r"[\\/:]", library):
            yield failed(f"needs {library}; expected the name of a DLL without a path")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version[:2]))


#: The systems whose native files are read here, by their names in variants.
FOREIGN = {
    "darwin": _System(
        "Mach-O", lambda variant: f"macOS {_dotted(_macos_of(variant))}", _macos, re.compile(r"\.so$(?<!\.abi3\.so)")
    ),
    "windows": _System("PE", lambda variant: "Windows", _windows, re.compile(r"\.cp[0-9]+-\w+\.pyd$")),
}
