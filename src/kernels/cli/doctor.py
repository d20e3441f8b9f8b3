"""`kernels doctor`: what was found on this machine, what was not, and which problems there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kernels.cli._installation import installation_lines
from kernels.cli._output import console, format_size, print_fields, print_json, print_table
from kernels.support.formatting import plural

if TYPE_CHECKING:
    from kernels.diagnosis import Diagnosis, Finding, HubReport, ToolkitReport
    from kernels.resolver.target import Device, Target

__all__ = ["doctor"]


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Show what was found on this machine, and what is wrong; exit with status 1 if there is a problem.

    Checks variables, Torch, backends, cache, Hub, lockfile, autotune, packages, system and toolkits at the same time,
    each with a time limit. Changes nothing, and prints no tokens or passwords. Each problem is followed by what to do.

    Examples:
        $ kernels doctor
        $ kernels doctor --json
    """
    from kernels.diagnosis import diagnose

    report = diagnose()
    if json:
        print_json(report)
    else:
        _print(report)
    if report.problems:
        raise typer.Exit(1)


def _print(report: Diagnosis) -> None:
    cache = report.cache
    has_torch = report.target is None or report.target.torch is not None
    print_fields(
        {
            "kernels": [report.version, *installation_lines(report.location, report.origin)],
            "python": f"{_python_version(report.target)}{report.python}",
            **({} if report.target is None else _machine(report.target)),
            "joined": [f"{name}: {origin}" for name, origin in report.joined.items()],
            "toolkits": [_toolkit(each, has_torch) for each in report.toolkits]
            or "none (needed to build compiled kernels only)",
            "cache": [
                cache.path,
                f"{plural(cache.repositories, 'kernel')}, {format_size(cache.bytes)}" if cache.path else "",
                cache.note or "",
            ],
            "hub": [line for hub in (report.hub, *report.following) for line in _hub(hub)],
            "packages": [f"{name} {version}" for name, version in report.packages.items()],
            "variables": [f"{name}={value}" for name, value in report.variables.items()] or "none are set",
            "notes": [line for note in report.notes for line in _lines(note)],
            "problems": [line for problem in report.problems for line in _lines(problem)] or "none",
        }
    )
    if report.target is not None and report.target.devices:
        console().print()
        print_table(("device", "name", "architecture", ">capability", ">memory"), map(_row, report.target.devices))


def _hub(report: HubReport) -> tuple[str, str]:
    answers = {True: "answers", False: "does not answer", None: ""}[report.answers]
    return report.endpoint, report.note or answers


def _lines(finding: Finding) -> tuple[str, str]:
    return f"{finding.check}: {finding.message}", f"  > {finding.fix}"


def _toolkit(report: ToolkitReport, has_torch: bool) -> str:
    if report.name is None:
        return f"{report.backend}: none" + (f" for {report.torch}, with which Torch was built" if report.torch else "")
    torch = f"Torch was built with {report.torch}" if report.torch else f"Torch is not built for {report.backend}"
    where = f"{report.backend}: {report.name} {report.version} in {report.folder}, from {report.found_by}"
    return f"{where}; {torch}" if has_torch else where


def _python_version(target: Target | None) -> str:
    if target is None:
        return ""
    return f"{target.python}{' (free-threaded)' if target.free_threaded else ''} at "


def _machine(target: Target) -> dict[str, str | list[str]]:
    found = [f"{name} {version}" if version else name for name, version in target.backends.items()]
    return {
        "system": " ".join(filter(None, (target.os, target.os_version, target.cpu))),
        "glibc": target.glibc or "",
        "torch": f"{target.torch} for {', '.join(target.torch_backends)}" if target.torch else "not installed",
        "c++ abi": {True: "cxx11", False: "cxx98", None: ""}[target.cxx11_abi],
        "tvm-ffi": target.tvm_ffi or "not installed",
        "backends": f"{', '.join(found)}; default: {target.default_backend}",
        "target": str(target),
        "probes": list(target.notes),
    }


def _row(device: Device) -> tuple[str, ...]:
    return (
        f"{device.backend}:{device.index}",
        device.name,
        device.arch,
        "" if device.capability is None else str(device.capability),
        "" if device.memory is None else format_size(device.memory),
    )
