"""Backends that a JSON file declares, without code: new ones, and changes of registered ones."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from kernels import settings
from kernels.backends import lookup, registry
from kernels.backends.base import Backend, BackendProbe, Device, Found, PythonDependency
from kernels.backends.plugins.arch_rules import arch_number, rule_allows, rule_reads, rule_reason
from kernels.backends.plugins.json_probe import DeclaredQueries
from kernels.backends.plugins.json_schema import (
    SCHEMA_PATH,
    Declaration,
    DeclaredDependency,
    read_declarations,
    read_file,
)
from kernels.backends.registration import BackendEntry, DeclarationError, Origin
from kernels.backends.torch_extension import extends, initialized_device
from kernels.errors import RequestError
from kernels.support.logs import logger

__all__ = [
    "SCHEMA_PATH",
    "Declaration",
    "DeclarationError",
    "DeclaredBackend",
    "declare",
    "enter_declared",
    "load_backends",
    "owner_of",
    "read_declarations",
    "replaced_fields",
]

_log = logger(__name__)

#: Fields whose values are a backend's members as they are.
_MEMBERS = {
    "name": "name",
    "device_string": "device_type",
    "variant_token": "token",
    "dispatch_key": "dispatch_key",
    "device_language": "device_language",
    "experimental": "experimental",
    "vendor": "vendor",
    "guidance_block": "guidance_block",
    "kernel_guidance": "kernel_guidance",
    "cuda_hacks_to_strip": "cuda_hacks_to_strip",
}


def load_backends(path: os.PathLike[str] | str) -> list[BackendEntry]:
    """Add the backends that a JSON file declares, all of them or none.

    Under any name of a registered backend (`cann`, `npu`), the file's fields replace that backend's;
    `unregister_backend` brings it back as it was. Files with KernelAgent's platforms have this form.

    Args:
        path: The file: one object, backend name to fields. Its JSON Schema is at `SCHEMA_PATH`.

    Returns:
        The registry's entries of these backends, in the file's order.

    Raises:
        TypeError: `path` is not a path.
        RequestError: The file cannot be read or has a wrong value; the message has the file and the value's path in
            it. The registry is unchanged.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from kernels import unregister_backend
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "acme.json")
        ...     _ = file.write_text('{"acme": {"device_string": "acme", "version": "1.2", "archs": ["a100x"]}}')
        ...     entries = load_backends(file)
        >>> [entry.name for entry in entries], entries[0].backend.parse_accelerator("acme12").version
        (['acme'], MajorMinor(major=1, minor=2))
        >>> unregister_backend("acme")
    """
    return enter_declared(path, Origin("declared", str(path)), override=True)


def enter_declared(path: os.PathLike[str] | str, origin: Origin, *, override: bool) -> list[BackendEntry]:
    """As `load_backends`, for a file from another place.

    Args:
        path: The file.
        origin: Where it comes from.
        override: Whether it may change a registered backend.
    """
    declarations, ignored = read_file(path)
    disabled = settings.disabled_backends()
    backends: dict[str, Backend] = {}
    unknown: dict[str, tuple[tuple[str, str], ...]] = {}
    try:
        for key, declaration in declarations.items():
            name = owner_of(key, path)
            if name in disabled and lookup.known(name) is None:
                continue
            if name != key:
                declaration = _added(key, declaration, name)
            existing = backends.get(name) or registry.would_override(name)
            beside = [each for each in backends.values() if each.name != name]
            backends[name] = declare(name, declaration, existing, beside=beside, reserved=declarations)
            unknown[name] = (*unknown.get(name, ()), *ignored.get(key, ()))
        arrivals = [(backend, origin) for backend in backends.values()]
        return registry.enter(arrivals, override=override, unknown_fields=unknown)
    except ValueError as error:  # a `RequestError` is one
        raise DeclarationError(f"{path}: {error}", tuple(declarations)) from None


def owner_of(name: str, place: os.PathLike[str] | str) -> str:
    """The own name of the backend that a declared name means: itself, if it is no other name of a registered one.

    Args:
        name: The name that is declared.
        place: The file or folder, for the log.

    Example:
        >>> owner_of("npu", "acme.json"), owner_of("acme", "acme.json")
        ('cann', 'acme')
    """
    lookup.entries()  # the environment's backends are registered first
    registered = [entry.backend for entry in registry.registered()]
    if any(each.name == name for each in registered):
        return name
    # Names that only one backend has go before the Torch device, which two may share.
    one = [each for each in registered if name in (each.noarch_name, each.token)]
    shared = [each for each in registered if name in (*each.device_names(), each.mapping_device)]
    for each in (*one, *shared):
        _log.info("%s: %r is another name of backend %r, to which its fields are added.", place, name, each.name)
        return each.name
    return name


def _added(key: str, declaration: Declaration, name: str) -> Declaration:
    """What a file declares under another name of a backend: everything but the names."""
    backend = lookup.known(name)
    fields = declaration.given()
    device = fields.pop("device_string", None)
    if backend is not None and device is not None and device not in backend.device_names():
        raise RequestError(
            f"`{key}` is another name of backend {name!r}, whose device is {backend.device_type!r}, but its "
            f"`device_string` is {device!r}. Choose another key for a new backend."
        )
    fields.pop("name", None)
    return Declaration(**fields)


def declare(
    name: str,
    declaration: Declaration,
    existing: Backend | None,
    *,
    beside: Sequence[Backend] = (),
    reserved: Collection[str] = (),
) -> Backend:
    """The backend that a declaration makes: a new one, or a changed copy of an existing one.

    Args:
        name: Its own name.
        declaration: What the file says.
        existing: The backend of that name, if there is one.
        beside: Backends that will be registered with it.
        reserved: Names that they will have.

    Raises:
        RequestError: A new backend has no `device_string` or needs a `variant_token`, or a version is declared for a
            backend whose build names carry none.

    Example:
        >>> declare("acme", Declaration(device_string="acme", vendor="Acme"), None).vendor
        'Acme'
    """
    if existing is None:
        others = [*(each for each in lookup.all_backends() if each.name != name), *beside]
        return DeclaredBackend(name, declaration, others, reserved)
    if isinstance(existing, DeclaredBackend):
        # A later file adds to the fields of an earlier one for the same backend.
        merged = Declaration(**{**existing.declaration.given(), **declaration.given()})
        made = declare(name, merged, None, beside=beside, reserved=reserved)
        made.folder = existing.folder
        return made
    return _changed(existing, declaration)


class DeclaredBackend(Backend):
    """A backend that only a declaration describes.

    Args:
        name: Its own name.
        declaration: What the file says.
        others: The backends that it stands beside.
        reserved: Further names that are not free.

    Raises:
        RequestError: The declaration has no `device_string`, or needs a `variant_token`.
    """

    def __init__(
        self, name: str, declaration: Declaration, others: Sequence[Backend], reserved: Collection[str] = ()
    ) -> None:
        if declaration.device_string is None:
            known = ", ".join(sorted(each.name for each in others))
            raise RequestError(
                f"`{name}` has no `device_string`, which a new backend needs; to change an existing one, use its name: "
                f"{known}."
            )
        digit_last = declaration.variant_token is None and name[-1].isdigit()
        if digit_last and declaration.version is not None:
            raise RequestError(
                f"`{name}` has no `variant_token`, and its name ends with a digit: the version follows there in build "
                "names. Give a `variant_token` without a digit at its end."
            )
        self.declaration = declaration
        self.queries = DeclaredQueries(declaration)
        self.name = name
        if digit_last:
            self.token = f"{name}_"  # no version follows
        _set_members(self, declaration)
        sharing = [each for each in others if each.device_type == self.device_type]
        taken = {*reserved, *(own for each in others for own in _own_names(each))}
        free = self.device_type.islower() and self.device_type not in taken  # names in mappings are lower-case
        self.mapping_device = self.device_type if free else name
        self.versioned = declaration.version is not None
        self.arch_rule = declaration.arch_rule or ("any" if declaration.archs is None else "exact")
        self.checks_archs = self.arch_rule != "any"
        if sharing:
            # After the others of its device: a declared backend on `cpu` must not become the default.
            self.order = max(each.order for each in sharing) + 1
            if declaration.dispatch_key is None:
                self.dispatch_key = sharing[0].dispatch_key

    def arch_reason(self, archs: Sequence[str] | None, device: Device | None) -> str | None:
        return rule_reason(self.arch_rule, archs, device)

    def device_capability(self, device: Device) -> int | None:
        return arch_number(device.arch)

    @property
    def arch_form(self) -> str:
        return rule_allows(self.arch_rule)

    def parse_arch(self, text: str) -> str | None:
        return text if rule_reads(self.arch_rule, text) else None

    def torch_build(self, torch: Any) -> Found | None:
        shared = _shared_build(self, torch)
        if shared is None and not extends(torch, self.device_type, stock=True):
            return None
        facts = self.queries.cached()
        # That Torch has the device of another backend says nothing about this one's hardware.
        return None if shared is not None and facts.absent is not None else Found(facts.version)

    def probe(self) -> BackendProbe:
        facts = self.queries.ask(self.parse_arch, self.arch_form)
        devices = _devices(self, facts.archs or (), ())
        return BackendProbe(
            facts.absent is None,
            facts.version,
            devices,
            facts.notes,
            facts.needs_torch,
            unanswered=facts.unanswered,
        )

    def current_device(self) -> int:
        return initialized_device(self.device_type)


def replaced_fields(backend: Backend, beneath: Backend) -> list[str]:
    """The fields of a declaration that replace what the backend beneath it has, by name.

    Args:
        backend: What `declare` has made.
        beneath: What it was made of.

    Example:
        >>> before = declare("acme", Declaration(device_string="acme", archs=("a1", "a2"), vendor="Acme"), None)
        >>> replaced_fields(declare("acme", Declaration(archs=("a1",), experimental=True), before), before)
        ['archs']
    """
    declaration: Declaration | None = getattr(backend, "declaration", None)
    if declaration is None:
        return []
    given = declaration.given()
    if isinstance(beneath, DeclaredBackend):
        before = beneath.declaration.given()
        return [name for name in given if name in before and given[name] != before[name]]
    # Of a class, the probe tells some, and it always has an answer.
    return [
        name for name in given if name not in _MEMBERS or getattr(beneath, _MEMBERS[name]) not in ("", (), given[name])
    ]


def _set_members(backend: Backend, declaration: Declaration) -> None:
    for field, value in declaration.given().items():
        if field in _MEMBERS:
            setattr(backend, _MEMBERS[field], value)
        elif field == "python_depends":
            backend.python_depends = {key: _dependency(key, each) for key, each in value.items()}


def _dependency(name: str, given: str | DeclaredDependency | None) -> PythonDependency:
    if isinstance(given, DeclaredDependency):
        return PythonDependency(given.package, given.module)
    return PythonDependency(name, given)


def _own_names(backend: Backend) -> tuple[str, ...]:
    return backend.name, backend.noarch_name, backend.token, backend.mapping_device


def _devices(backend: Backend, archs: Sequence[str], known: Sequence[Device]) -> tuple[Device, ...]:
    """A device for each architecture, with what is known of it otherwise."""
    there = {device.index: device for device in known}
    devices = (replace(there.get(index, Device(backend.name, index)), arch=arch) for index, arch in enumerate(archs))
    return tuple(replace(device, capability=backend.device_capability(device)) for device in devices)


# What Torch can drive

#: Set while a declared backend asks others, which may ask in turn.
_asking = threading.local()


def _shared_build(backend: Backend, torch: Any) -> Found | None:
    """The result of `torch_build` of another backend with the same Torch device."""
    if getattr(_asking, "now", False):
        return None
    _asking.now = True
    try:
        for other in lookup.all_backends():
            if other.name != backend.name and other.device_type == backend.device_type:
                try:
                    found = other.torch_build(torch)
                except AttributeError:
                    raise  # it needs more of Torch than a stand-in has
                except Exception:  # noqa: BLE001 - another plugin that fails
                    continue
                if found is not None:
                    return found
    finally:
        _asking.now = False
    return None


# Changes of an existing backend


def _changed(existing: Backend, declaration: Declaration) -> Backend:
    """A copy of a backend with the declared changes."""
    name = existing.name
    if declaration.version is not None and not existing.versioned:
        raise RequestError(f"`{name}.version` is declared, but build names of {name} carry no version; leave it out.")
    backend = copy.copy(existing)
    queries = DeclaredQueries(declaration)
    changes: dict[str, Any] = {"declaration": declaration}
    rule = declaration.arch_rule
    if rule is not None:
        changes["checks_archs"] = rule != "any"
        changes["arch_reason"] = lambda archs, device: rule_reason(rule, archs, device)
    if declaration.version is not None:
        changes["torch_build"] = _torch_build_of(backend, queries)
    if declaration.version is not None or declaration.archs is not None or declaration.detect is not None:
        changes["probe"] = _probe_of(backend, queries, declaration.detect is not None)
    try:
        _set_members(backend, declaration)
        for member, value in changes.items():
            setattr(backend, member, value)
    except AttributeError as error:
        raise RequestError(f"`{name}` cannot be changed by a declaration: {error}.") from None
    return backend


def _torch_build_of(backend: Backend, queries: DeclaredQueries) -> Any:
    own = backend.torch_build

    def torch_build(torch: Any) -> Found | None:
        found = own(torch)
        return None if found is None else Found(queries.cached().version or found.version)

    return torch_build


def _probe_of(backend: Backend, queries: DeclaredQueries, detects: bool) -> Any:
    own = backend.probe

    def probe() -> BackendProbe:
        facts = queries.ask(backend.parse_arch, f"an architecture of {backend.name}")
        if facts.absent is not None:
            return BackendProbe(notes=facts.notes, unanswered=facts.unanswered)
        machine = own()
        return replace(
            machine,
            found=machine.found or detects,
            version=facts.version or machine.version,
            devices=machine.devices if facts.archs is None else _devices(backend, facts.archs, machine.devices),
            notes=(*machine.notes, *facts.notes),
            needs_torch=facts.needs_torch,
            unanswered=(*machine.unanswered, *facts.unanswered),
        )

    return probe
