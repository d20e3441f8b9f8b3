"""Steps about names: the members that were given, how they are spelled, the builds that carry them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from typing import Any

from kernels.backend_check.checked_backend import CheckedBackend
from kernels.backends import lookup
from kernels.backends.base import Backend
from kernels.backends.conflicts import SAMPLE_VERSIONS, check_clashes
from kernels.backends.interface_check import validated
from kernels.backends.plugins.json_backend import DeclaredBackend, replaced_fields
from kernels.errors import InvalidVariant
from kernels.support.checks import StepResults, failed, missing, ok
from kernels.support.formatting import format_value
from kernels.support.version import MajorMinor

__all__ = ["build_names", "build_versions", "members", "mine", "names"]

#: How like a member's name another must be (`difflib`, 0 to 1) to be taken for it: `verson` and `versioned` have 0.8.
_NEAR = 0.75

_NAMES = ("name", "noarch_name", "token", "device_type", "mapping_device", "dispatch_key")

#: What who declares a backend calls these: by their fields, or by where they are read.
_FIELDS = {
    "name": "name",
    "noarch_name": "in names of noarch builds",
    "token": "variant_token",
    "device_type": "device_string",
    "mapping_device": "in kernel mappings",
    "dispatch_key": "dispatch_key",
}


def members(checked: CheckedBackend) -> StepResults:
    """Every member has the right type; which are the vendor's, and which have the default."""
    validated(checked.entry.given if checked.entry.given is not None else checked.backend)
    for field, nearest in checked.entry.unknown_fields:
        hint = f"; did you mean `{nearest}`?" if nearest else ""
        yield failed(f"{format_value(field)} is no known field, and is ignored{hint}")
    if isinstance(checked.backend, DeclaredBackend):
        yield ok(f"declared: {', '.join(checked.backend.declaration.given())}")
        return
    own = mine(checked.backend)
    yield ok(f"given: {', '.join(own)}")
    rest = [name for name in _all_members() if name not in own]
    if rest:
        yield ok(f"as the base class has them: {', '.join(rest)}")
    given = checked.entry.given if checked.entry.given is not None else checked.backend
    for name in _strange(given):
        near = difflib.get_close_matches(name, _all_members(), n=1, cutoff=_NEAR)
        if near and near[0] in rest:  # beside `probe`, `probes` is a vendor's own
            yield missing(f"`{name}` is no member of a backend; did you mean `{near[0]}`?")


def _strange(given: object) -> list[str]:
    """The public attributes of an object, its own and its classes', that are no members of a backend."""
    known = {*_all_members(), *dir(Backend)}
    places = [given, *(kind for kind in type(given).__mro__ if kind not in Backend.__mro__)]
    found = dict.fromkeys(name for place in places for name in getattr(place, "__dict__", {}))
    return [name for name in found if isinstance(name, str) and not name.startswith("_") and name not in known]


def mine(backend: Backend) -> list[str]:
    """The members that a backend has of its own.

    Example:
        >>> from kernels import get_backend
        >>> "torch_build" in mine(get_backend("xpu")), "platform_reason" in mine(get_backend("xpu"))
        (True, False)
    """
    above = type(backend).__mro__[: type(backend).__mro__.index(Backend)]
    own = vars(backend)
    return [name for name in _all_members() if name in own or any(name in vars(kind) for kind in above)]


def _all_members() -> list[str]:
    annotated = list(inspect.get_annotations(Backend))
    return annotated + [name for name, member in vars(Backend).items() if inspect.isfunction(member)]


def names(checked: CheckedBackend) -> StepResults:
    """The names are spelled as names are, and mean this backend alone."""
    backend = checked.backend
    beneath = checked.entry.overrides
    others = [entry for entry in lookup.entries() if entry.backend is not backend]
    check_clashes(checked.entry, others)
    said = _FIELDS if isinstance(backend, DeclaredBackend) else dict(zip(_NAMES, _NAMES, strict=True))
    yield ok(", ".join(f"{word} {getattr(backend, member)}" for member, word in said.items()))
    if beneath is not None:
        yield ok(f"{'adds to' if checked.entry.adds_to else 'overrides'} {beneath.name}, {beneath.origin}")
        replaced = replaced_fields(backend, beneath.backend) if checked.entry.adds_to else []
        if replaced:
            yield ok(f"replaces its {', '.join(replaced)}")
    sharing = [entry.name for entry in others if entry.backend.device_type == backend.device_type]
    if sharing:
        yield ok(f"shares Torch's device {backend.device_type} with {', '.join(sharing)}: the installed Torch decides")


def build_versions(checked: CheckedBackend) -> Iterator[tuple[MajorMinor | None, Any]]:
    """Versions that build names can carry, this machine's first, each with how a name writes it."""
    backend = checked.backend
    there = (checked.probe.version,) if checked.probe.version is not None else ()
    for version in dict.fromkeys((*there, *SAMPLE_VERSIONS)) if backend.versioned else (None,):
        try:
            text = backend.format_accelerator(version)
        except ValueError:
            continue  # no build name can carry it
        yield version, text


def build_names(checked: CheckedBackend) -> StepResults:
    """What a build's folder is called comes back as this backend and this version, compiled and noarch."""
    from kernels.resolver.variant import Variant, parse_variant

    backend = checked.backend
    tried = list(build_versions(checked))
    if not tried:
        yield failed(
            f"format_accelerator has no name for any of {', '.join(map(str, SAMPLE_VERSIONS))}; it must return the "
            "token and the version, such as cu128, or, with versioned = False, the token alone for None"
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
    there = checked.probe.version
    if backend.versioned and there is not None and there not in [version for version, _ in tried]:
        yield missing(
            f"no build name can carry this machine's version, {there}, as the last digit is the minor: no compiled "
            "build fits here; declare no version (versioned = False), or one whose minor has one digit"
        )
    noarch = parse_variant(f"torch-{backend.noarch_name}")
    verdict = ok if noarch.backend == backend.name else failed
    yield verdict(f"{noarch.name} is {noarch.backend}")
