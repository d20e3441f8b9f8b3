"""Torch, the backends and this machine's devices: whether they fit each other."""

from __future__ import annotations

import importlib.util
import sysconfig
import time
from itertools import pairwise

from kernels import backends, settings
from kernels.backends import BackendEntry
from kernels.backends.hindrance import Hindrance
from kernels.backends.plugins.entry_points import installed_names
from kernels.backends.plugins.json_backend import replaced_fields
from kernels.backends.registry import host_among, registered
from kernels.backends.torch_build import installed_torch
from kernels.diagnosis.finding import Findings
from kernels.errors import RequestError
from kernels.resolver.target import Target
from kernels.support.formatting import did_you_mean, format_error, format_value

__all__ = ["check_backends", "check_queries", "check_system", "check_torch", "joined_backends", "probed_target"]

#: The dispatch key of devices that extensions add to Torch.
_EXTENSION = "PrivateUse1"

#: A clock that is behind this package's first release is not set (2025-01-01).
_RELEASED = 1_735_689_600


def probed_target() -> tuple[Target, Findings]:
    """This machine; with a `KERNELS_BACKEND` that it does not have, its own default."""
    found = Findings("variables")
    try:
        return Target.current(), found
    except RequestError as error:
        found.problem(str(error), "Correct KERNELS_BACKEND, or unset it.")
        return Target.probe(), found


def joined_backends() -> dict[str, str]:
    """Backends that are not built in, each with its origin and those of what it adds to."""
    return {
        entry.name: "; ".join(map(str, entry.origins))
        for entry in backends.entries()
        if entry.origin.kind != "built-in"
    }


def check_torch(target: Target) -> Findings:
    """Whether driver, devices and Torch fit each other, for each backend."""
    found = Findings("torch")
    if target.torch is None and importlib.util.find_spec("torch") is not None and installed_torch() is None:
        try:
            import torch  # noqa: F401
        except Exception as error:  # noqa: BLE001 - a broken installation raises anything
            found.problem(f"Torch is installed, but cannot be imported: {format_error(error)}.", "Install Torch again.")
    elif target.torch is None:
        found.note("Torch is not installed: kernels cannot be loaded here.", "Install Torch: https://pytorch.org")
    host = backends.host().name
    served = {device.backend for device in target.devices} & set(target.torch_backends) - {host}
    for name, hindrances in target.hindrances.items():
        if name == host:
            continue
        built, there = name in target.torch_backends, name in target.backends
        # An extension of Torch is loaded by the program, if it is wanted.
        extension = backends.get(name).dispatch_key == _EXTENSION
        for each in hindrances:
            text = f"{name}: {each.reason}."
            fix = f"{each.fix[0].upper()}{each.fix[1:]}."
            if each.kind == "failed":
                found.problem(text, fix)
            elif built and each.kind == "absent":
                # Who has chosen another backend does without the device.
                chosen = settings.preferred_backend() is not None and target.default_backend != name
                (found.note if chosen else found.problem)(text, _without_device(fix, name, host))
            elif built:
                found.problem(text, fix)
            elif each.kind == "driver" or (each.kind == "torch" and there and target.torch is not None):
                # Beside the device that Torch is built for, another one is not missed.
                (found.note if served or extension else found.problem)(_with_device(name, each, target), fix)
            elif each.kind == "hidden" and not served:
                found.note(text, fix)
    return found


def _without_device(fix: str, name: str, host: str) -> str:
    return f"{fix} Without one, install a Torch for the CPU, or set KERNELS_BACKEND={host}."


def _with_device(name: str, hindrance: Hindrance, target: Target) -> str:
    device = next((each for each in target.devices if each.backend == name), None)
    there = f"{device.name or name} is there, but " if device is not None and hindrance.kind == "torch" else ""
    return f"{name}: {there}{hindrance.reason}."


#: The field of a declaration that makes a query, where it has another name; and what follows without an answer.
_FIELDS = {"architectures": "archs"}
_FOLLOWS = {
    "architectures": ". Builds for other architectures are not rejected",
    "detect": ". Its devices are not used",
}


def check_queries(target: Target) -> Findings:
    """What backends asked of this machine, and got no answer to."""
    found = Findings("backends")
    for name, queries in target.unanswered.items():
        for each in queries:
            # A program may add the device to Torch that this process does not.
            report = found.note if each.of_torch and name not in target.torch_backends else found.problem
            field = _FIELDS.get(each.query, each.query)
            report(
                f"{name}: {each}{_FOLLOWS.get(each.query, '')}.",
                f"Correct `{field}`, or what it runs; `kernels backends check {name}` tries it again.",
            )
    return found


def check_backends() -> Findings:
    """Backends of plugins that could not be registered, and those that are disabled."""
    found = Findings("backends")
    fixes = {
        "installed": "Update the package, or uninstall it.",
        "declared": "Correct the file, or take it out of KERNELS_BACKENDS_JSON.",
        "vendor": "Correct the folder, or take it out of KERNELS_VENDOR_PATH.",
    }
    for problem in backends.problems():
        fix = fixes.get(problem.origin.kind, "Take it out of KERNELS_DISABLE_BACKENDS.")
        found.problem(problem.message, fix)
    for entry in backends.entries():
        _add_replaced_fields(found, entry)
        for layer in entry.layers():
            for field, near in layer.unknown_fields:
                found.problem(
                    f"{entry.name}, {layer.origin}: {format_value(field)} is no known field, and is ignored.",
                    f"Write {near!r}, if that is meant." if near else "Remove it, or update this package.",
                )
    every = {entry.name: entry for entry in registered()}
    host = host_among(every.values()).name
    active = {entry.name for entry in backends.entries()}
    offered = installed_names()
    for name in sorted(settings.disabled_backends()):
        shown = format_value(name)
        if name == host:
            continue  # a problem of the registry
        if name in every or name in offered:
            found.note(f"Backend {shown} is disabled by KERNELS_DISABLE_BACKENDS.", "To use it, remove it from there.")
        else:
            hint = did_you_mean(name, [*active, *every, *offered]).strip()
            found.problem(
                f"KERNELS_DISABLE_BACKENDS has {shown}, which is no backend here.",
                hint or "Take it out of the variable.",
            )
    return found


def _add_replaced_fields(found: Findings, entry: BackendEntry) -> None:
    """Note where a file or a folder replaces what another vendor may have declared under the same name."""
    for above, beneath in pairwise([entry, *reversed(entry.adds_to)]):
        fields = replaced_fields(above.backend, beneath.backend) if beneath.origin.kind != "built-in" else []
        if fields:
            said = ", ".join(fields)
            found.note(
                f"{entry.name}, {above.origin}, replaces fields of the one that is {beneath.origin}: {said}.",
                "If these are two chips, give one of them another name.",
            )


def check_system(target: Target | None) -> Findings:
    """The operating system, Python and the clock."""
    found = Findings("system")
    if target is not None:
        reason = backends.get(target.default_backend).platform_reason(target)
        if reason is not None:
            found.problem(f"{reason}.", "Update the operating system, or use kernels that are not compiled (noarch).")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        found.note(
            "This Python is free-threaded: only kernels that are built for it, or not compiled, can be loaded.",
            "Use a Python with the global lock where a kernel has no such build.",
        )
    seconds = time.time()
    if seconds < _RELEASED:
        now = time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
        found.problem(f"This machine's clock says {now}.", "Set the clock: no Hub's certificate is valid then.")
    return found
