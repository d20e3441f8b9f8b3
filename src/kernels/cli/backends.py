"""`kernels backends`: which accelerators there are, what one of them is, and whether a registration is complete."""

from __future__ import annotations

import contextlib
import enum
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels.cli._arguments import AsJson

if TYPE_CHECKING:
    from kernels.backend_check import CheckResult, Checkup
    from kernels.backends import Backend, Entry
    from kernels.resolver.target import Target

__all__ = ["backends"]


class _Action(str, enum.Enum):
    """What to do; the value is the word that is typed."""

    list = "list"
    show = "show"
    check = "check"


def _names() -> list[str]:
    from kernels.backends import reserved_names

    return list(reserved_names())


def backends(
    action: Annotated[
        _Action,
        typer.Argument(
            help="List all; show one with everything that is known of it; check a registration, step by step."
        ),
    ] = _Action.list,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE|FOLDER",
            help="A backend, by any of its names. To check, also a JSON file that declares some, or a vendor's folder.",
            autocompletion=_names,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the accelerators there are, show one, or check what a vendor's registration lacks."""
    if action is _Action.list:
        if what is not None:
            raise typer.BadParameter(f"`list` takes no name; to see one: kernels backends show {what}")
        _list(as_json)
        return
    if what is None:
        raise typer.BadParameter(f"`{action.value}` needs a backend's name{_or_path(action)}")
    if action is _Action.show:
        _show(what, as_json)
    else:
        _check(what, as_json)


def _or_path(action: _Action) -> str:
    return ", or the path of a file or folder" if action is _Action.check else ""


# list


def _list(as_json: bool) -> None:
    from kernels.backends import list_backends, problems
    from kernels.cli._output import console, print_fields, print_json, print_table

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
        console().print()
        print_fields({"Not here": [line for each in missing for line in each.message.splitlines()]})


def _row(entry: Entry, machine: Target) -> tuple[str, ...]:
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
        "; ".join((*_origins(entry), *["experimental"] * backend.experimental)),
    )


def _origins(entry: Entry) -> list[str]:
    """Where a backend comes from, and the files and folders that add to it."""
    from kernels.backend_check import added_to

    return [str(each.origin) for each in (*added_to(entry), entry)]


def _token(backend: Backend) -> str:
    return f"{backend.token}<version>" if backend.versioned else backend.token


def _machine() -> Target:
    from kernels.errors import RequestError
    from kernels.resolver.target import Target

    try:
        return Target.current()
    except RequestError:  # KERNELS_BACKEND names one that is not here; `kernels doctor` says so
        return Target.probe()


def _origin(of: Any) -> dict[str, str]:
    return {"kind": of.origin.kind, "place": of.origin.place}


def _plain(entry: Entry, machine: Target) -> dict[str, Any]:
    """What programs read: the same keys for every backend, in `list` and in `show`."""
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
    from kernels.cli._output import print_fields, print_json

    with _said_once():
        entry = entry_of(get_backend(name).name)
    machine = _machine()
    if as_json:
        print_json(_plain(entry, machine) | _more(entry))
        return
    print_fields(_fields(entry, machine))
    backend = entry.backend
    _print_text("Hardware (guidance_block)", backend.guidance_block.splitlines())
    _print_text("How to write kernels (kernel_guidance)", backend.kernel_guidance.splitlines())
    _print_text("Source lines that must not stand in a kernel (cuda_hacks_to_strip)", backend.cuda_hacks_to_strip)


def _more(entry: Entry) -> dict[str, Any]:
    """What `show` adds for programs."""
    from kernels.backend_check import offered_configs, offered_operators
    from kernels.backends import allowed_python_depends

    backend = entry.backend
    return {
        "order": backend.order,
        "overrides": None if entry.overrides is None else _origin(entry.overrides),
        "python_depends": {
            name: {"package": each.package, "module": each.module}
            for name, each in allowed_python_depends(backend).items()
        },
        "stages": _stages(backend),
        "folder": backend.folder,
        "operators": _or_none(offered_operators, backend),
        "tune_configs": _or_none(offered_configs, backend),
        "guidance_block": backend.guidance_block,
        "kernel_guidance": backend.kernel_guidance,
        "cuda_hacks_to_strip": list(backend.cuda_hacks_to_strip),
    }


def _or_none(offered: Callable[[Backend], Any], backend: Backend) -> Any:
    """What a vendor's folder offers, None where it cannot be read: `check` says why."""
    from kernels.errors import KernelsError

    try:
        return offered(backend)
    except KernelsError:
        return None


def _fields(entry: Entry, machine: Target) -> dict[str, str | list[str]]:
    from kernels.backends import allowed_python_depends

    backend = entry.backend
    version = machine.backends.get(entry.name)
    here = "no" if entry.name not in machine.backends else f"yes, version {version}" if version else "yes"
    return {
        "Name": backend.name,
        "Vendor": backend.vendor,
        "Origin": str(entry.origin),
        **_beneath(entry),
        "Experimental": "yes: using it warns, once" if backend.experimental else "no",
        "Compiled builds": _token(backend),
        "Noarch builds": f"torch-{backend.noarch_name}",
        "Torch device": backend.device_type,
        "In mappings": backend.mapping_device,
        "Dispatch key": backend.dispatch_key,
        "Architectures": "checked against the device's" if backend.checks_archs else "not checked",
        "Python packages": ", ".join(sorted(allowed_python_depends(backend))),
        "Stages": ", ".join(_stages(backend)) or "none of its own",
        "Folder": "" if backend.folder is None else str(backend.folder),
        **_folder(backend),
        "Found here": here,
        "Devices": [_device(device) for device in machine.backend_devices(entry.name)],
        "Notes": [note for note in machine.notes if note.startswith(f"{entry.name}: ")],
    }


def _beneath(entry: Entry) -> dict[str, str]:
    """The registrations beneath: what a file or folder adds to still counts, what another object stands in for not."""
    from kernels.backend_check import added_to

    added = added_to(entry)
    if added:
        return {"Adds to": "; ".join(str(each.origin) for each in added)}
    return {"Stands in for": "" if entry.overrides is None else f"{entry.overrides.name}, {entry.overrides.origin}"}


def _folder(backend: Backend) -> dict[str, str]:
    """What a vendor's folder offers; what cannot be read is told in its place."""
    from kernels.backend_check import offered_configs, offered_operators
    from kernels.cli._failure import describe
    from kernels.errors import KernelsError

    fields = {}
    try:
        names = offered_operators(backend)
        fields["Operators"] = f"{len(names)}: {', '.join(names)}" if names else ""
    except KernelsError as error:
        fields["Operators"] = describe(error)
    try:
        counts = str(offered_configs(backend))
        fields["Tuned"] = f"configurations: {counts}" if counts else ""
    except KernelsError as error:
        fields["Tuned"] = describe(error)
    return fields


def _device(device: Any) -> str:
    from kernels.cli._output import format_size

    facts = (
        device.name,
        device.arch,
        "" if device.capability is None else f"capability {device.capability}",
        "" if device.memory is None else format_size(device.memory),
    )
    return f"{device.index}: {', '.join(filter(None, facts)) or 'nothing more is known'}"


def _stages(backend: Backend) -> list[str]:
    """The stages that a backend has of its own."""
    from kernels.backend_check import own_stages

    return own_stages(backend)


def _print_text(title: str, lines: Sequence[str]) -> None:
    """A block of text below its title, indented; left out when there is none."""
    from rich.text import Text

    from kernels.cli._output import console, visible

    if not lines:
        return
    out = console()
    out.print()
    out.print(Text(title, style="bold"))
    for line in lines:
        for part in line.splitlines():
            out.print(Text(f"  {visible(part)}".rstrip()))


# check


def _check(what: str, as_json: bool) -> None:
    from kernels.backend_check import checkup
    from kernels.cli._output import print_json

    with _said_once() as said:
        found = checkup(what)
        said += [finding.what for finding in found.findings]
    if as_json:
        print_json({**_plain_checkup(found), "failed": found.failed})
    else:
        _print_checkup(found)
    if found.failed:
        raise typer.Exit(1)


@contextlib.contextmanager
def _said_once() -> Iterator[list[str]]:
    """Hold warnings back, and leave out those that an error, or a text put in the list, says again."""
    said: list[str] = []
    held: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            held = caught
            yield said
    except Exception as error:
        said.append(str(error))
        raise
    finally:
        for each in held:
            first = str(each.message).partition("\n")[0]
            if not any(first in text for text in said):
                warnings.showwarning(each.message, each.category, each.filename, each.lineno)


def _plain_checkup(found: Checkup) -> dict[str, Any]:
    return {"checked": found.checked, "origins": found.origins, "findings": found.findings}


def _print_checkup(found: Checkup) -> None:
    from rich.text import Text

    from kernels.cli._output import console, print_table, visible

    several = len(found.origins) > 1
    columns = ("Step", "Verdict", "What")
    print_table(("Backend", *columns) if several else columns, [_finding(each, several) for each in found.findings])
    console().print()
    console().print(Text(visible(_outcome(found))))


def _finding(finding: CheckResult, several: bool) -> tuple[str, ...]:
    row = finding.step, finding.verdict, finding.what
    return (finding.backend or "", *row) if several else row


def _outcome(found: Checkup) -> str:
    count = sum(finding.verdict == "failed" for finding in found.findings)
    names = ", ".join(found.origins) or os.path.basename(found.checked)
    if count:
        return f"{names}: {count} failed."
    return f"{names}: nothing failed."
