"""The `[general]` section of `build.toml`: who the kernel is, what it is for, and what it needs.

Each function reads one part of the section and raises `RequestError`, with file and line, for what is missing or wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels.backends import all_backends, allowed_python_depends, find, known
from kernels.errors import RequestError
from kernels.models.metadata import KernelName
from kernels.models.requirement import Requirement, check_repo_id, check_revision, check_version
from kernels.support.formatting import did_you_mean
from kernels.support.toml import Section
from kernels.support.version import MajorMinor

__all__ = ["by_backend", "hub", "kernel_backends", "kernel_name", "kernel_version"]


def kernel_name(general: Section) -> KernelName:
    """The kernel's name: `general.name`."""
    allowed = "lower-case letters, digits and dashes, starting with a letter"
    name = general.text("name", allowed)
    if name is None:
        raise general.missing("name", allowed)
    if not KernelName.allows(name):
        raise general.wrong("name", name, allowed)
    return KernelName(name)


def kernel_version(general: Section) -> int:
    """The kernel's major version: `general.version`."""
    allowed = "0 or a positive integer"
    version = general.integer("version", allowed)
    if version is None:
        raise general.missing("version", allowed)
    try:
        return check_version(version)
    except ValueError:
        raise general.wrong("version", version, allowed) from None


def kernel_backends(general: Section) -> tuple[str, ...]:
    """The backends it is for: `general.backends`, each by its own name and once."""
    registered = ", ".join(sorted(backend.name for backend in all_backends()))
    names = general.texts("backends")
    if not names:
        allowed = f"a list of backends: {registered}"
        if "backends" in general.table:
            raise general.error(("backends",), f"`general.backends` is empty; allowed is {allowed}.")
        raise general.missing("backends", allowed)
    for index, name in enumerate(names):
        if known(name) is None:
            every = [backend.name for backend in all_backends()]
            raise general.wrong(("backends", index), name, _one_of(name, registered), did_you_mean(name, every))
    return tuple(dict.fromkeys(names))


def _one_of(name: str, registered: str) -> str:
    try:
        return f"{find(name).name!r}, which is the own name of that backend"
    except RequestError:
        return f"one of {registered}, or a backend that a vendor's package adds"


def hub(general: Section) -> tuple[str | None, str | None]:
    """Where it is published to: the repository and the branch of `[general.hub]`, each None where it is not said."""
    section = general.section("hub")
    if section is None:
        return None, None
    repo_id, branch = section.text("repo-id", "'org/name'"), section.text("branch", "a branch's name")
    section.refuse_unknown()
    for key, value, check in (("repo-id", repo_id, check_repo_id), ("branch", branch, check_revision)):
        try:
            if value is not None:
                check(value)
        except RequestError as error:
            raise section.error((key,), f"`{section.name(key)}`: {error}") from None
    return repo_id, branch


def by_backend(general: Section, backends: tuple[str, ...]) -> tuple[Any, Any, Any, Any]:
    """What is said for every backend and for each: Python and kernel dependencies, oldest and newest toolkit."""
    python_general, kernels_general = general.texts("python-depends"), _kernel_depends(general)
    own_python: dict[str, tuple[str, ...]] = {}
    own_kernels: dict[str, tuple[Mapping[str, Any], ...]] = {}
    minver: dict[str, MajorMinor] = {}
    maxver: dict[str, MajorMinor] = {}
    for backend in all_backends():
        name = backend.name
        section = general.section(name)
        if section is None:
            continue
        own_python[name] = section.texts("python-depends")
        own_kernels[name] = _kernel_depends(section)
        if backend.versioned:
            for bound, versions in (("minver", minver), ("maxver", maxver)):
                version = section.version(bound)
                if version is not None:
                    versions[name] = version
        section.refuse_unknown()
        _check_depends(section, own_python[name], allowed_python_depends(backend))
    allowed = {name: allowed_python_depends(find(name)) for name in backends}
    _check_depends(general, python_general, {each: None for names in allowed.values() for each in names})
    # A name that only some backends' kernels may ask for is for those.
    python = {
        name: (*(each for each in python_general if each in allowed[name]), *own_python.get(name, ()))
        for name in backends
    }
    return (
        {name: tuple(dict.fromkeys(names)) for name, names in python.items()},
        {name: (*kernels_general, *own_kernels.get(name, ())) for name in backends},
        minver,
        maxver,
    )


def _check_depends(section: Section, names: tuple[str, ...], allowed: Mapping[str, Any]) -> None:
    for index, name in enumerate(names):
        if name not in allowed:
            raise section.wrong(("python-depends", index), name, "one of " + ", ".join(sorted(allowed)))


def _kernel_depends(section: Section) -> tuple[Mapping[str, Any], ...]:
    depends = []
    for each in section.sections("kernel-depends"):
        repo_id = each.text("repo-id", "'org/name'")
        version, revision = each.integer("version", "0 or a positive integer"), each.text("revision")
        each.refuse_unknown()
        if repo_id is None or (version is None) == (revision is None):
            raise each.error((), f"`{each.name()}`: allowed is a repo-id with either a version or a revision.")
        try:
            Requirement(repo_id, version=version, revision=revision)
        except RequestError as error:
            raise each.error((), f"`{each.name()}`: {error}") from None
        depends.append(each.table)
    return tuple(depends)
