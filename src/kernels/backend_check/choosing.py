"""Steps about use: which of several builds is chosen for a machine with this backend, and which mapping entry."""

from __future__ import annotations

import msgspec

from kernels.backend_check.checked_backend import CheckedBackend
from kernels.backend_check.machine import other_arch
from kernels.backend_check.naming import build_versions
from kernels.backends import lookup
from kernels.backends.base import Device
from kernels.models.metadata import BackendInfo, KernelName, Metadata
from kernels.resolver.advice import no_suitable_build
from kernels.resolver.choice import Resolution, resolve
from kernels.resolver.target import Target
from kernels.resolver.variant import Variant
from kernels.support.checks import StepResults, failed, missing, ok, skipped

__all__ = ["choosing", "mappings"]

#: Machines that builds are chosen for where this one is none that the backend has builds for.
_MACHINES = (
    ("linux", "x86_64", None),
    ("linux", "aarch64", None),
    ("darwin", "aarch64", "26.0"),
    ("windows", "x86_64", None),
)


def choosing(checked: CheckedBackend) -> StepResults:
    """Of several builds the compiled one is chosen, then the noarch one, and none for another version or device."""
    backend = checked.backend
    noarch = Variant.for_noarch(backend.name)
    other = next(each for each in lookup.all_backends() if each is not backend)
    strange = Variant.for_noarch(other.name)
    target = _target(checked)
    if target is None:
        target = msgspec.structs.replace(Target.parse("torch2.9-cpu-x86_64-linux"), **_here(checked, None))
        yield skipped("platform_reason turns every machine down: no compiled build can fit")
    compiled = None
    version = target.backend_version(backend.name)
    if (not backend.versioned or version is not None) and backend.platform_reason(target) is None:
        compiled = Variant.compiled("torch", (2, 9), backend.name, version, cpu=target.cpu, os=target.os)
    builds = [strange, noarch, *([compiled] if compiled else [])]
    for best in [each for each in (compiled, noarch) if each is not None]:
        found = _resolve(checked, builds, target)
        if found.best != best:
            why = next((each.reason for each in found.rejected if each.variant == best), "another one is preferred")
            yield failed(f"on {target}, {best} is not chosen of {', '.join(map(str, builds))}: {why}")
        else:
            yield ok(f"on {target}, {best} is chosen of {', '.join(map(str, builds))}")
        builds.remove(best)
    yield ok(f"{strange} is rejected: {_resolve(checked, [strange], target).rejected[0].reason}")
    if compiled is not None:
        yield from _other_version(checked, target)
        yield from _other_arch(checked, compiled, target)


def _here(checked: CheckedBackend, version: object) -> dict[str, object]:
    backend = checked.backend
    host = lookup.host().name
    return {
        "backends": {host: None, backend.name: None if version is None else str(version)},
        "torch_backends": (backend.name,),
        "devices": checked.probe.devices or (Device(backend.name, 0),),
        "default_backend": backend.name,
    }


def _target(checked: CheckedBackend) -> Target | None:
    """A machine with the backend and a Torch for it, as like this one as the backend allows."""
    version = next((version for version, _ in build_versions(checked)), None)
    this = Target.probe()
    for os, cpu, os_version in ((this.os, this.cpu, this.os_version), *_MACHINES):
        plain = Target(os=os, cpu=cpu, os_version=os_version, python="3.12", torch="2.9.0", default_backend="")
        target = msgspec.structs.replace(plain, **_here(checked, version))
        if checked.backend.platform_reason(target) is None:
            return target
    return None


def _resolve(
    checked: CheckedBackend, variants: list[Variant], target: Target, archs: tuple[str, ...] | None = None
) -> Resolution:
    device = checked.device
    if archs is None and device is not None and device.arch:
        archs = (device.arch,)
    listed = None if archs is None else list(archs)
    facts = {
        each.name: Metadata(
            id="_check",
            name=KernelName("check"),
            backend=BackendInfo(each.backend, listed),
        )
        for each in variants
    }
    return resolve([each.name for each in variants], target, backend=checked.backend.name, metadata=facts)


def _other_version(checked: CheckedBackend, target: Target) -> StepResults:
    backend = checked.backend
    if not backend.versioned:
        return
    tried = []
    for version, _ in build_versions(checked):
        if version != target.backend_version(backend.name):
            variant = Variant.compiled("torch", (2, 9), backend.name, version, cpu=target.cpu, os=target.os)
            found = _resolve(checked, [variant], target)
            tried.append(variant.name)
            if found.rejected:
                yield ok(f"{variant} is rejected: {found.rejected[0].reason}")
                return
    yield missing(f"version_reason accepts every version: {', '.join(tried)}")


def _other_arch(checked: CheckedBackend, compiled: Variant, target: Target) -> StepResults:
    backend, device = checked.backend, checked.device
    if not backend.checks_archs or device is None or not device.arch:
        return
    other = other_arch(backend, device)
    if other is None:
        return  # the step about architectures says so
    found = _resolve(checked, [compiled], target, (other[0],))
    if found.best is None:
        yield ok(str(no_suitable_build(f"a kernel for {other[0]} alone", found)).splitlines()[1].strip())
    else:
        yield failed(f"{compiled} for {other[0]} alone is chosen for device 0 ({device.arch})")


def mappings(checked: CheckedBackend) -> StepResults:
    """A mapping's device finds this backend."""
    from kernels.layer.device import Device as MappingDevice
    from kernels.layer.device import mapped_backend, requested_device

    backend = checked.backend
    name = MappingDevice(backend.mapping_device).type
    found = mapped_backend(name).backend
    if found is not backend:
        where = lookup.entry_of(found.name).origin
        yield failed(f"Device({name!r}) is another backend, {found.name} ({where})")
        return
    yield ok(f"Device({name!r}) is {found.name}")
    asked = requested_device(backend.device_type)
    if asked is not None and asked.type != name:
        yield ok(f"kernelize(device={backend.device_type!r}) is {asked.type} here: the installed Torch decides")
