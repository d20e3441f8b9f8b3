"""Where the files of a variant lie, what it says about itself, and whether the two agree."""

from __future__ import annotations

import re

from kernels import backends
from kernels.authoring.check.subject import Subject
from kernels.authoring.compile.freshness import digest_remedy
from kernels.errors import InvalidMetadata, InvalidVariant, KernelsError
from kernels.models.metadata import MAX_METADATA_BYTES, Metadata
from kernels.models.snapshot import METADATA_FILE, is_bytecode
from kernels.models.spdx import license_problem
from kernels.resolver.variant import UNIVERSAL, parse_variant
from kernels.support.checks import StepResults, failed, missing, ok, skipped
from kernels.support.formatting import plural
from kernels.trust.digest import verify_digest

__all__ = ["digest", "layout", "metadata"]

#: Faults of one kind that are shown; a hostile folder may have any number.
_SHOWN = 20

_INIT = "__init__.py"


def layout(subject: Subject) -> StepResults:
    """Whether the files lie where a client looks for them, and no others."""
    faults = [*_name_faults(subject), *subject.files.faults]
    names = subject.files.sizes
    if subject.files.safe:
        faults += [f"{name}: bytecode, which is never downloaded; delete it" for name in names if is_bytecode(name)]
        faults += [f"{name}: a hidden file; delete it" for name in names if _is_hidden(name)]
        if METADATA_FILE not in names:
            faults.append(f"there is no {METADATA_FILE}")
        if not any(name.split("/")[1:] in ([], [_INIT]) and name.endswith(_INIT) for name in names):
            faults.append(f"there is no {_INIT}: the kernel's module")
    yield from map(failed, faults[:_SHOWN])
    if len(faults) > _SHOWN:
        yield failed(f"and {len(faults) - _SHOWN} more")
    if not faults:
        if _INIT not in names:
            yield missing(f"{_INIT} lies in a folder of its own, as in older builds; put it at the top")
        yield ok(plural(len(names), "file"))


def _name_faults(subject: Subject) -> list[str]:
    try:
        parse_variant(subject.folder.name)
    except InvalidVariant as error:
        return [str(error)]
    return []


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def metadata(subject: Subject) -> StepResults:
    """Whether `metadata.json` is valid, and agrees with the variant's name."""
    if METADATA_FILE not in subject.files.sizes:
        yield skipped(f"there is no {METADATA_FILE}")
        return
    data = subject.read(METADATA_FILE, MAX_METADATA_BYTES)
    if data is None:
        yield failed(f"{METADATA_FILE} has more than {MAX_METADATA_BYTES} bytes; metadata never has")
        return
    try:
        found = subject.metadata = Metadata.from_bytes(data)
    except InvalidMetadata as error:
        yield failed(str(error))
        return
    said = [*_required(found), *_agreement(found, subject), *_depends(found)]
    yield from said
    if all(verdict != "failed" for verdict, _ in said):
        yield ok(f"{found.name} version {found.version}, id {found.id}, for {found.backend.type}")


def _required(found: Metadata) -> StepResults:
    if found.version is None:
        yield failed("there is no `version`; add it to build.toml")
    if not found.license:
        yield missing("there is no `license`: nobody knows whether they may use the kernel")
    elif problem := license_problem(found.license):
        yield missing(problem)
    if found.provenance is not None and found.provenance.dirty:
        yield missing("built from sources with uncommitted changes: commit them, and build again")
    convention = rf"_{re.escape(found.name.python_name)}_{re.escape(found.backend.type)}_[a-z0-9_]+"
    if re.fullmatch(convention, found.id) is None:
        yield missing(
            f"`id` is {found.id!r}; by convention it is _{found.name.python_name}_{found.backend.type}_ and the "
            "first digits of the commit, so that two kernels never share one"
        )


def _agreement(found: Metadata, subject: Subject) -> StepResults:
    backend = backends.known(found.backend.type)
    if backend is None:
        yield missing(f"`backend.type` is {found.backend.type!r}, which is not registered here")
    elif found.backend.archs:
        unknown = [arch for arch in found.backend.archs if not backends.arch_of_build(backend, arch)]
        if unknown:
            yield missing(f"`backend.archs` has {backends.listed(unknown)}, which {backend.name} does not know")
    elif backend.checks_archs:
        yield missing("`backend.archs` is missing: on a device that the build does not cover it fails at run time")
    named = None if subject.variant is None else subject.variant.backend
    if named not in (None, UNIVERSAL, found.backend.type):
        yield failed(f"`backend.type` is {found.backend.type!r}, but {subject.folder.name} is a variant for {named}")


def _depends(found: Metadata) -> StepResults:
    backend = backends.known(found.backend.type)
    allowed = backends.GENERAL_PYTHON_DEPENDS if backend is None else backends.allowed_python_depends(backend)
    unknown = [name for name in found.python_depends if name not in allowed]
    if unknown:
        yield failed(
            f"`python-depends` has {backends.listed(unknown)}; a {found.backend.type} kernel may ask for "
            f"{', '.join(sorted(allowed))}"
        )


def digest(subject: Subject) -> StepResults:
    """Whether the files are those that the metadata's digest describes."""
    if subject.metadata is None:
        yield skipped("the metadata is not known")
    elif subject.metadata.digest is None:
        yield missing("there is no `digest`: nobody can tell whether the files are those that were built")
    else:
        try:
            verify_digest(subject.folder, subject.metadata.digest, digest_remedy(subject.folder))
        except KernelsError as error:
            yield failed(str(error))
        else:
            yield ok(f"{subject.metadata.digest.algorithm} of {plural(len(subject.metadata.digest.files), 'file')}")
