"""The section `[general]` of `build.toml`: name, version, backends, repository and dependencies.

Each function reads one part and raises `RequestError`, with file and line, if it is missing or wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels.authoring.compile.build_toml.fields import TablesField
from kernels.authoring.compile.build_toml.keys import BackendNeedsKeys, GeneralKeys, HubKeys, KernelDependsKeys
from kernels.backends import all_backends, allowed_python_depends, find, known
from kernels.errors import RequestError
from kernels.models.metadata import KernelName
from kernels.models.requirement import Requirement, check_repo_id, check_revision, check_version
from kernels.support.formatting import did_you_mean
from kernels.support.toml import Section
from kernels.support.version import MajorMinor

__all__ = ["BackendNeeds", "backend_needs", "hub", "kernel_backends", "kernel_name", "kernel_version"]

#: The longest name: a build's library is called `_<name>_<backend>_<state>.abi3.so`, in 255 bytes on most file systems.
_MAX_NAME = 200


def kernel_name(general: Section) -> KernelName:
    """The kernel's name."""
    key = GeneralKeys.name
    name = key.require(general)
    if len(name) > _MAX_NAME:
        raise general.error(
            (key.key,), f"`{general.name(key.key)}` has {len(name)} characters; expected {_MAX_NAME} at most."
        )
    if not KernelName.allows(name):
        raise general.wrong(key.key, name, key.expected)
    return KernelName(name)


def kernel_version(general: Section) -> int:
    """The kernel's major version."""
    key = GeneralKeys.version
    version = key.require(general)
    try:
        return check_version(version)
    except ValueError:
        raise general.wrong(key.key, version, key.expected) from None


def kernel_backends(general: Section) -> tuple[str, ...]:
    """The backends, each once and by its canonical name."""
    every = [backend.name for backend in all_backends()]
    registered = ", ".join(sorted(every))
    key = GeneralKeys.backends.key
    names = GeneralKeys.backends.read(general)
    if not names:
        allowed = f"a list of backends: {registered}"
        raise general.wrong(key, [], allowed) if key in general.table else general.missing(key, allowed)
    for index, name in enumerate(names):
        if known(name) is None:
            raise general.wrong((key, index), name, _expected(name, registered), did_you_mean(name, every))
    return tuple(dict.fromkeys(names))


def _expected(name: str, registered: str) -> str:
    try:
        return f"{find(name).name!r}, the canonical name of that backend"
    except RequestError:
        return f"one of {registered}, or the backend of a vendor's package or of a file in KERNELS_BACKENDS_JSON"


def hub(general: Section) -> tuple[str | None, str | None]:
    """The repository and the branch that the kernel is published to, from `[general.hub]`; None if not set."""
    section = GeneralKeys.hub.read(general)
    if section is None:
        return None, None
    repo_id, branch = HubKeys.repo_id.read(section), HubKeys.branch.read(section)
    section.refuse_unknown()
    for field, value, check in ((HubKeys.repo_id, repo_id, check_repo_id), (HubKeys.branch, branch, check_revision)):
        try:
            if value is not None:
                check(value)
        except RequestError as error:
            raise section.error((field.key,), f"`{section.name(field.key)}`: {error}") from None
    return repo_id, branch


@dataclass(frozen=True)
class BackendNeeds:
    """What the kernel needs, by backend: Python packages, other kernels, and the oldest and newest toolkit."""

    python_depends: Mapping[str, tuple[str, ...]]
    kernel_depends: Mapping[str, tuple[Mapping[str, Any], ...]]
    minver: Mapping[str, MajorMinor]
    maxver: Mapping[str, MajorMinor]


def backend_needs(general: Section, backends: tuple[str, ...]) -> BackendNeeds:
    """What each backend needs, from `[general]` and `[general.<backend>]`."""
    python_general = GeneralKeys.python_depends.read(general)
    kernels_general = _kernel_depends(GeneralKeys.kernel_depends, general)
    allowed = {backend.name: allowed_python_depends(backend) for backend in all_backends()}
    own_python: dict[str, tuple[str, ...]] = {}
    own_kernels: dict[str, tuple[Mapping[str, Any], ...]] = {}
    oldest: dict[str, MajorMinor] = {}
    newest: dict[str, MajorMinor] = {}
    for backend in all_backends():
        name = backend.name
        section = general.section(name)
        if section is None:
            continue
        own_python[name] = BackendNeedsKeys.python_depends.read(section)
        own_kernels[name] = _kernel_depends(BackendNeedsKeys.kernel_depends, section)
        if backend.versioned:
            for field, versions in ((BackendNeedsKeys.minver, oldest), (BackendNeedsKeys.maxver, newest)):
                if (version := field.read(section)) is not None:
                    versions[name] = version
        section.refuse_unknown()
        _check_depends(section, own_python[name], allowed[name])
    _check_depends(general, python_general, {each: None for name in backends for each in allowed[name]})
    # A package that only some backends allow is a dependency of those.
    python = {
        name: (*(each for each in python_general if each in allowed[name]), *own_python.get(name, ()))
        for name in backends
    }
    return BackendNeeds(
        {name: tuple(dict.fromkeys(names)) for name, names in python.items()},
        {name: (*kernels_general, *own_kernels.get(name, ())) for name in backends},
        oldest,
        newest,
    )


def _check_depends(section: Section, names: tuple[str, ...], allowed: Mapping[str, Any]) -> None:
    for index, name in enumerate(names):
        if name not in allowed:
            raise section.wrong((GeneralKeys.python_depends.key, index), name, "one of " + ", ".join(sorted(allowed)))


def _kernel_depends(field: TablesField, section: Section) -> tuple[Mapping[str, Any], ...]:
    depends = []
    for each in field.read(section):
        repo_id = KernelDependsKeys.repo_id.read(each)
        version, revision = KernelDependsKeys.version.read(each), KernelDependsKeys.revision.read(each)
        each.refuse_unknown()
        if repo_id is None or (version is None) == (revision is None):
            raise each.error((), f"`{each.name()}` needs a repo-id, and either a version or a revision.")
        try:
            Requirement(repo_id, version=version, revision=revision)
        except RequestError as error:
            raise each.error((), f"`{each.name()}`: {error}") from None
        depends.append(each.table)
    return tuple(depends)
