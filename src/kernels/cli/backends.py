"""`kernels backends`: list the backends, show one, or check a registration."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels.cli._arguments import AsJson
from kernels.cli._output import (
    console,
    count_failed,
    describe_error,
    format_size,
    print_fields,
    print_json,
    print_line,
    print_table,
)
from kernels.cli._values import Choice
from kernels.errors import KernelsError, RequestError

if TYPE_CHECKING:
    from kernels.backends import Backend, BackendEntry
    from kernels.resolver.target import Target

__all__ = ["backends"]


class _Action(Choice):
    """What to do."""

    list = "list", "List all backends, with the origin of each, and registrations that failed."
    show = "show", "Show all facts about one backend, by any of its names.", "NAME"
    check = (
        "check",
        "Check a registration step by step: of a backend, a file with declarations, or a vendor's folder. A file or "
        "folder is registered only during the check.",
        "NAME|FILE|FOLDER",
    )


def _names() -> list[str]:
    from kernels.backends import reserved_names

    return list(reserved_names())


def backends(
    action: Annotated[
        _Action,
        typer.Argument(metavar="ACTION"),
    ] = _Action.list,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE|FOLDER",
            help="Any name of a backend. For check also a JSON file with declarations, or a vendor's folder.",
            autocompletion=_names,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the backends, show one, or check a vendor's registration.

    `Here` is the version that was found on this machine, or yes or no. `check` exits with status 1 if a step failed;
    what is missing is optional, or cannot be checked on this machine.

    Examples:
        $ kernels backends
        $ kernels backends show cuda
        $ kernels backends check acme.json
    """
    if action is _Action.list:
        if what is not None:
            raise typer.BadParameter(f"`list` takes no name. To show one: kernels backends show {what}")
        _list(as_json)
    elif action is _Action.show:
        if what is None:
            raise typer.BadParameter("`show` needs the name of a backend")
        _show(what, as_json)
    else:
        if what is None:
            raise typer.BadParameter("`check` needs the name of a backend, or the path of a file or folder")
        _check(what, as_json)


# list


def _list(as_json: bool) -> None:
    from kernels.backends import list_backends, problems

    machine = _machine()
    found = list_backends()
    missing = problems()
    if as_json:
        print_json(
            {
                "backends": [_plain(entry, machine) for entry in found],
                "problems": [
                    {"origin": _origin(each), "message": each.message, "names": each.names} for each in missing
                ],
            }
        )
        return
    print_table(
        ("Name", "Noarch", "Compiled", "Torch", "Mappings", "Dispatch key", "Here", "Origin"),
        [_row(entry, machine) for entry in found],
    )
    if missing:
        print_line()
        print_fields({"Not registered": [line for each in missing for line in each.message.splitlines()]})


def _row(entry: BackendEntry, machine: Target) -> tuple[str, ...]:
    backend = entry.backend
    here = (machine.backends[entry.name] or "yes") if entry.name in machine.backends else "no"
    return (
        backend.name,
        backend.noarch_name,
        _token(backend),
        backend.device_type,
        backend.mapping_device,
        backend.dispatch_key,
        here,
        "; ".join((*map(str, entry.origins), *["experimental"] * backend.experimental)),
    )


def _token(backend: Backend) -> str:
    return f"{backend.token}<version>" if backend.versioned else backend.token


def _machine() -> Target:
    from kernels.resolver.target import Target

    try:
        return Target.current()
    except RequestError:  # KERNELS_BACKEND is not available here; `kernels doctor` reports it
        return Target.probe()


def _origin(of: Any) -> dict[str, str]:
    return {"kind": of.origin.kind, "place": of.origin.place}


def _plain(entry: BackendEntry, machine: Target) -> dict[str, Any]:
    """The JSON of a backend: the same keys in `list` and in `show`."""
    backend = entry.backend
    return {
        "name": backend.name,
        "noarch_name": backend.noarch_name,
        "token": backend.token,
        "device_type": backend.device_type,
        "mapping_device": backend.mapping_device,
        "dispatch_key": backend.dispatch_key,
        "versioned": backend.versioned,
        "checks_archs": backend.checks_archs,
        "experimental": backend.experimental,
        "vendor": backend.vendor,
        "origin": _origin(entry),
        "found": entry.name in machine.backends,
        "version": machine.backends.get(entry.name),
        "devices": machine.backend_devices(entry.name),
    }


# show


def _show(name: str, as_json: bool) -> None:
    from kernels.backends import entry_of, get_backend

    with _without_repeated_warnings(name):
        entry = entry_of(get_backend(name).name)
    machine = _machine()
    if as_json:
        print_json(_plain(entry, machine) | _more(entry))
        return
    print_fields(_fields(entry, machine))
    backend = entry.backend
    _print_text("Hardware (guidance_block)", backend.guidance_block.splitlines())
    _print_text("How to write kernels (kernel_guidance)", backend.kernel_guidance.splitlines())
    _print_text("Source lines that are not allowed in a kernel (cuda_hacks_to_strip)", backend.cuda_hacks_to_strip)


def _more(entry: BackendEntry) -> dict[str, Any]:
    """The keys of the JSON that only `show` has."""
    from kernels.backend_check import offered_configs, offered_operators, own_stages
    from kernels.backends import allowed_python_depends

    backend = entry.backend
    return {
        "order": backend.order,
        "overrides": None if entry.overrides is None else _origin(entry.overrides),
        "python_depends": {
            name: {"package": each.package, "module": each.module}
            for name, each in allowed_python_depends(backend).items()
        },
        "stages": own_stages(backend),
        "folder": backend.folder,
        "operators": _or_none(offered_operators, backend),
        "tune_configs": _or_none(offered_configs, backend),
        "guidance_block": backend.guidance_block,
        "kernel_guidance": backend.kernel_guidance,
        "cuda_hacks_to_strip": list(backend.cuda_hacks_to_strip),
    }


def _or_none(offered: Callable[[Backend], Any], backend: Backend) -> Any:
    """What a vendor's folder offers; None if it cannot be read, which `check` reports."""
    try:
        return offered(backend)
    except KernelsError:
        return None


def _fields(entry: BackendEntry, machine: Target) -> dict[str, str | list[str]]:
    from kernels.backend_check import own_stages
    from kernels.backends import allowed_python_depends

    backend = entry.backend
    version = machine.backends.get(entry.name)
    here = "no" if entry.name not in machine.backends else f"yes, version {version}" if version else "yes"
    return {
        "Name": backend.name,
        "Vendor": backend.vendor,
        "Origin": str(entry.origin),
        **_extended(entry),
        "Experimental": "yes: warns once when it is used" if backend.experimental else "no",
        "Compiled builds": _token(backend),
        "Noarch builds": f"torch-{backend.noarch_name}",
        "Torch device": backend.device_type,
        "In mappings": backend.mapping_device,
        "Dispatch key": backend.dispatch_key,
        "Architectures": "checked against the device's" if backend.checks_archs else "not checked",
        "Python packages": ", ".join(sorted(allowed_python_depends(backend))),
        "Stages": ", ".join(own_stages(backend)) or "the default stages",
        "Folder": "" if backend.folder is None else str(backend.folder),
        **_folder(backend),
        "Found here": here,
        "Devices": [_device(device) for device in machine.backend_devices(entry.name)],
        "Notes": [f"{entry.name}: {note}" for note in machine.backend_notes.get(entry.name, ())],
    }


def _extended(entry: BackendEntry) -> dict[str, str]:
    """The registrations that this one extends (files and vendor folders do), or the one that it replaces."""
    if entry.adds_to:
        return {"Adds to": "; ".join(str(each.origin) for each in entry.adds_to)}
    return {"Replaces": "" if entry.overrides is None else f"{entry.overrides.name}, {entry.overrides.origin}"}


def _folder(backend: Backend) -> dict[str, str]:
    """What a vendor's folder offers; if it cannot be read, the error."""
    from kernels.backend_check import offered_configs, offered_operators

    fields = {}
    try:
        names = offered_operators(backend)
        fields["Operators"] = f"{len(names)}: {', '.join(names)}" if names else ""
    except KernelsError as error:
        fields["Operators"] = describe_error(error)
    try:
        counts = str(offered_configs(backend))
        fields["Tuned"] = f"configurations: {counts}" if counts else ""
    except KernelsError as error:
        fields["Tuned"] = describe_error(error)
    return fields


def _device(device: Any) -> str:
    facts = (
        device.name,
        device.arch,
        "" if device.capability is None else f"capability {device.capability}",
        "" if device.memory is None else format_size(device.memory),
    )
    return f"{device.index}: {', '.join(filter(None, facts)) or 'unknown'}"


def _print_text(title: str, lines: Sequence[str]) -> None:
    """Print a title and the indented lines below it, if there are any."""
    if lines:
        console().print(f"\n{title}", style="bold", markup=False)
        for part in "\n".join(lines).splitlines():
            print_line(f"  {part}".rstrip())


# check


def _check(what: str, as_json: bool) -> None:
    from kernels.backend_check import checkup

    with _without_repeated_warnings(what):
        found = checkup(what)
    failed = sum(finding.verdict == "failed" for finding in found.findings)
    if as_json:
        print_json(
            {"checked": found.checked, "origins": found.origins, "findings": found.findings, "failed": found.failed}
        )
    else:
        several = len(found.origins) > 1
        rows = [(each.backend or "", each.step, each.verdict, each.what)[not several :] for each in found.findings]
        print_table(("Backend", "Step", "Verdict", "What")[not several :], rows)
        print_line()
        print_line(count_failed(", ".join(found.origins) or os.path.basename(found.checked), failed))
    if found.failed:
        raise typer.Exit(1)


@contextlib.contextmanager
def _without_repeated_warnings(name: str) -> Iterator[None]:
    """Delay warnings about plugins, and drop them if that backend could not be registered: the command says why."""
    from kernels.backends import problems
    from kernels.backends.plugins.discovery import DISCOVERY_LOG

    delayed: list[logging.LogRecord] = []

    def delay(record: logging.LogRecord) -> bool:
        delayed.append(record)
        return False

    DISCOVERY_LOG.addFilter(delay)
    try:
        yield
    finally:
        DISCOVERY_LOG.removeFilter(delay)
        if not any(name in problem.names for problem in problems()):
            for each in delayed:
                DISCOVERY_LOG.handle(each)
