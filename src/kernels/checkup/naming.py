"""Steps about names: the members that were given, how they are spelled, the builds that carry them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from kernels.backends import lookup
from kernels.backends.base import Backend, MajorMinor
from kernels.backends.clashes import check_clashes
from kernels.backends.join.declared import DeclaredBackend
from kernels.backends.members import checked
from kernels.checkup.finding import Said, Subject, failed, missing, ok
from kernels.errors import InvalidVariant

__all__ = ["build_names", "build_versions", "members", "mine", "names"]

#: Versions that are tried in build names where no device tells one: two digits, three, five.
_VERSIONS = (MajorMinor(1, 0), MajorMinor(12, 8), MajorMinor(2025, 3))

_NAMES = ("name", "noarch_name", "token", "device_type", "mapping_device", "dispatch_key")


def members(subject: Subject) -> Said:
    """Every member has the right type; which are the vendor's, and which have the default."""
    checked(subject.entry.given if subject.entry.given is not None else subject.backend)
    if isinstance(subject.backend, DeclaredBackend):
        yield ok(f"declared: {', '.join(subject.backend.declaration.given())}")
        return
    own = mine(subject.backend)
    yield ok(f"given: {', '.join(own)}")
    rest = [name for name in _all_members() if name not in own]
    if rest:
        yield ok(f"as the base class has them: {', '.join(rest)}")


def mine(backend: Backend) -> list[str]:
    """The members that a backend has of its own.

    Example:
        >>> from kernels import get_backend
        >>> "torch_build" in mine(get_backend("xpu")), "platform_reason" in mine(get_backend("xpu"))
        (True, False)
    """
    above = type(backend).__mro__[: type(backend).__mro__.index(Backend)]
    return [name for name in _all_members() if name in vars(backend) or any(name in vars(kind) for kind in above)]


def _all_members() -> list[str]:
    annotated = list(inspect.get_annotations(Backend))
    return annotated + [name for name, member in vars(Backend).items() if inspect.isfunction(member)]


def names(subject: Subject) -> Said:
    """The names are spelled as names are, and mean this backend alone."""
    backend = subject.backend
    beneath = subject.entry.overrides
    others = [entry for entry in lookup.entries() if entry.backend is not backend]
    check_clashes(subject.entry, others)
    yield ok(", ".join(f"{member} {getattr(backend, member)}" for member in _NAMES))
    if beneath is not None:
        yield ok(f"stands in for {beneath.name}, {beneath.origin}")
    sharing = [entry.name for entry in others if entry.backend.device_type == backend.device_type]
    if sharing:
        yield ok(f"shares Torch's device {backend.device_type} with {', '.join(sharing)}: the installed Torch decides")


def build_versions(subject: Subject) -> Iterator[tuple[MajorMinor | None, Any]]:
    """Versions that build names can carry, this machine's first, each with how a name writes it."""
    backend = subject.backend
    there = (subject.probe.version,) if subject.probe.version is not None else ()
    for version in dict.fromkeys((*there, *_VERSIONS)) if backend.versioned else (None,):
        try:
            text = backend.format_accelerator(version)
        except ValueError:
            continue  # no build name can carry it
        yield version, text


def build_names(subject: Subject) -> Said:
    """What a build's folder is called comes back as this backend and this version, compiled and noarch."""
    from kernels.variant import Variant, parse_variant

    backend = subject.backend
    tried = list(build_versions(subject))
    if not tried:
        yield failed(
            f"format_accelerator has no name for any of {', '.join(map(str, _VERSIONS))}; it must return the token "
            "and the version, such as cu128, or, with versioned = False, the token alone for None"
        )
    for version, text in tried:
        if not isinstance(text, str):
            yield failed(f"format_accelerator({version}) returned {text!r}; it must return text")
            continue
        found = lookup.parse_accelerator(text)
        if found is None or found[0] is not backend or found[1] != version:
            read = "nothing" if found is None else f"{found[0].name} {found[1] or ''}".strip()
            yield failed(
                f"format_accelerator({version}) writes {text!r}, which parse_accelerator reads as {read}; the "
                "two must be each other's reverse"
            )
            continue
        try:
            variant = Variant.compiled("torch", (2, 9), backend.name, version, cpu="x86_64", os="linux")
        except InvalidVariant as error:
            yield failed(f"a folder cannot be called so: {error}")
            continue
        yield ok(f"{variant.name} is {variant.backend}{'' if version is None else f' {version}'}")
    there = subject.probe.version
    if backend.versioned and there is not None and there not in [version for version, _ in tried]:
        yield missing(f"no build name can carry this machine's version, {there}: no compiled build fits here")
    noarch = parse_variant(f"torch-{backend.noarch_name}")
    verdict = ok if noarch.backend == backend.name else failed
    yield verdict(f"{noarch.name} is {noarch.backend}")
