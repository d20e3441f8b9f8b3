"""Check a variant's layout, metadata and digest."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from kernels import backends
from kernels.authoring.check.checked_variant import CheckedVariant
from kernels.authoring.check.faults import report_faults, report_hints
from kernels.authoring.check.source_steps import source_findings
from kernels.authoring.compile.freshness import digest_remedy
from kernels.authoring.spdx import license_problem
from kernels.errors import InvalidMetadata, InvalidVariant, KernelsError
from kernels.models.metadata import MAX_METADATA_BYTES, Metadata
from kernels.models.snapshot import METADATA_FILE, is_bytecode
from kernels.resolver.variant import UNIVERSAL, parse_variant
from kernels.support.checks import StepResults, failed, missing, ok, skipped
from kernels.support.formatting import plural
from kernels.trust.content import BuildContent

__all__ = ["digest", "layout", "metadata"]

_INIT = "__init__.py"

#: What is there where a kernel is loaded: with Python, with Torch or with this package.
_PRESENT = frozenset({"kernels", "numpy", "torch", "triton", "typing_extensions", *sys.stdlib_module_names})


def layout(checked: CheckedVariant) -> StepResults:
    """Whether the variant has the files that a client expects, and no others."""
    faults = list(checked.files.faults)
    try:
        parse_variant(checked.folder.name)
    except InvalidVariant as error:
        faults.insert(0, str(error))
    names = checked.files.sizes
    if checked.files.safe:
        faults += [f"{name}: bytecode, which is never downloaded; delete it" for name in names if is_bytecode(name)]
        faults += [f"{name}: a hidden file; delete it" for name in names if "/." in f"/{name}"]
        if METADATA_FILE not in names:
            faults.append(f"{METADATA_FILE} is missing")
        if not any(name.split("/")[1:] in ([], [_INIT]) and name.endswith(_INIT) for name in names):
            faults.append(f"{_INIT}, the kernel's module, is missing")
    yield from report_faults(faults)
    if not faults:
        if _INIT not in names:
            yield missing(f"{_INIT} is in a sub-folder, as in older builds; move it to the top")
        yield ok(plural(len(names), "file"))


def metadata(checked: CheckedVariant) -> StepResults:
    """Whether `metadata.json` is valid and matches the variant's name."""
    if METADATA_FILE not in checked.files.sizes:
        yield skipped(f"{METADATA_FILE} is missing")
        return
    data = checked.read(METADATA_FILE, MAX_METADATA_BYTES)
    if data is None:
        yield failed(f"{METADATA_FILE} has more than {MAX_METADATA_BYTES} bytes")
        return
    try:
        found = checked.metadata = Metadata.from_bytes(data)
    except InvalidMetadata as error:
        yield failed(str(error))
        return
    results = [*_required(found), *_agreement(found, checked), *_depends(found, checked)]
    yield from results
    if all(verdict != "failed" for verdict, _ in results):
        yield ok(f"{found.name} version {found.version}, id {found.id}, for {found.backend.type}")


def _required(found: Metadata) -> StepResults:
    if found.version is None:
        yield failed("`version` is missing; add it to build.toml")
    if not found.license:
        yield missing("`license` is missing, so users do not know whether they may use the kernel")
    elif problem := license_problem(found.license):
        yield missing(problem)
    if found.provenance is not None and found.provenance.dirty:
        yield missing("built from sources with uncommitted changes; commit them and build again")
    convention = rf"_{re.escape(found.name.python_name)}_{re.escape(found.backend.type)}_[a-z0-9_]+"
    if re.fullmatch(convention, found.id) is None:
        yield missing(
            f"`id` is {found.id!r}; by convention it is _{found.name.python_name}_{found.backend.type}_ and some "
            "digits that are different for each state of the sources"
        )


def _agreement(found: Metadata, checked: CheckedVariant) -> StepResults:
    backend = backends.known(found.backend.type)
    if backend is None:
        yield missing(f"`backend.type` is {found.backend.type!r}, which is not registered here")
    elif found.backend.archs:
        unknown = [arch for arch in found.backend.archs if not backends.arch_of_build(backend, arch)]
        if unknown:
            yield missing(f"`backend.archs` has {backends.listed(unknown)}, which {backend.name} does not know")
    elif backend.checks_archs:
        yield missing("`backend.archs` is missing, so on an unsupported device the kernel fails only when it runs")
    named = None if checked.variant is None else checked.variant.backend
    if named not in (None, UNIVERSAL, found.backend.type):
        yield failed(f"`backend.type` is {found.backend.type!r}, but {checked.folder.name} is a variant for {named}")


def _depends(found: Metadata, checked: CheckedVariant) -> StepResults:
    backend = backends.known(found.backend.type)
    allowed = backends.GENERAL_PYTHON_DEPENDS if backend is None else backends.allowed_python_depends(backend)
    unknown = [name for name in found.python_depends if name not in allowed]
    if unknown:
        yield failed(
            f"`python-depends` has {backends.listed(unknown)}; a {found.backend.type} kernel may ask for "
            f"{', '.join(sorted(allowed))}"
        )
    yield from report_hints(_not_listed(found, checked, allowed))


def _not_listed(
    found: Metadata, checked: CheckedVariant, allowed: Mapping[str, backends.PythonDependency]
) -> list[str]:
    """What a load imports at the top of a file, and the metadata does not list; an import in `if` or `try` may fail."""
    names = {each.module: name for name, each in allowed.items() if each.module is not None}
    present = _PRESENT | {module for module, name in names.items() if name in found.python_depends}
    if checked.variant is not None and checked.variant.kind == "tvm-ffi":
        present |= {"tvm_ffi"}
    hints = []
    for file, line, name in source_findings(checked).imports:
        # Torch's packages for devices, such as torch_npu, are there where the backend is.
        if name not in present and not name.startswith("torch_"):
            what = f"{file}, line {line}: imports {name}, which `python-depends` does not list"
            listed = f"a {found.backend.type} kernel may ask for {', '.join(sorted(allowed))}"
            hints.append(f"{what}; {f'add {names[name]!r} in build.toml' if name in names else listed}")
    return hints


def digest(checked: CheckedVariant) -> StepResults:
    """Whether the files match the digest in the metadata."""
    if checked.metadata is None:
        yield skipped("the metadata is missing or invalid")
    elif checked.metadata.digest is None:
        yield missing("`digest` is missing, so changes to the files cannot be detected")
    else:
        try:
            BuildContent(checked.folder).check_digest(checked.metadata.digest, digest_remedy(checked.folder))
        except KernelsError as error:
            yield failed(str(error))
        else:
            yield ok(f"{checked.metadata.digest.algorithm} of {plural(len(checked.metadata.digest.files), 'file')}")
