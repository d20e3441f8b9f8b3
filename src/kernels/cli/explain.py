"""`kernels explain`: which build of a kernel fits a machine, and why each other build does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from kernels.cli._arguments import AsJson, BackendName, Kernel, Revision, Version, parse_target, require_no_version
from kernels.cli._output import format_size, print_json, print_line, print_table, untrusted_line
from kernels.errors import RequestError

if TYPE_CHECKING:
    from kernels.backends.registration import Origin
    from kernels.resolver.build_choice import BuildChoice

__all__ = ["explain"]


def explain(
    kernel: Kernel,
    version: Version = None,
    revision: Revision = None,
    backend: BackendName = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",  # typer 0.27 takes the name from a metavar that is the same word
            metavar="TARGET",
            help="Another machine: a string such as torch2.9-cu128-x86_64-linux+sm_90, or a file with a target's JSON.",
        ),
    ] = None,
    lockfile: Annotated[
        Path | None,
        typer.Option(
            "--lockfile", metavar="FILE", help="Lockfile that pins the kernel. Default: the active one, if it does."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Exit with status 1 if no build fits, or the one that fits needs other software."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show for each build of a kernel whether it fits this machine, or another one, and why.

    The exit status is 0 also if no build fits, unless --check is given. Downloads and runs nothing of a build but its
    metadata. A last line says if the chosen build could not be loaded: it needs a Python package or a newer client, or
    its publisher or commit is not trusted.

    Examples:
        $ kernels explain org/my-kernel --version 1
        $ kernels explain org/my-kernel --version 1 --target torch2.9-cu128-x86_64-linux+sm_90
        $ kernels explain ./my-kernel
        $ kernels explain org/my-kernel --target torch2.9-cu128-x86_64-linux+sm_90 --check
        $ kernels explain org/my-kernel --lockfile kernels.lock
    """
    from kernels import api
    from kernels.operations.explain import explain_folder, is_path

    machine = None if target is None else parse_target(target)
    if is_path(kernel):
        require_no_version(kernel, version, revision)
        if lockfile is not None:
            raise RequestError(f"{kernel} is a folder, which no lockfile pins; leave --lockfile out.")
        choice = explain_folder(Path(kernel), backend=backend, target=machine)
    else:
        choice = api.explain(
            kernel, version=version, revision=revision, backend=backend, target=machine, lockfile=lockfile
        )
    here = machine is None
    unmet = _unmet(choice, here=here)
    _show(choice, unmet, as_json=as_json, here=here)
    if check and (choice.best is None or unmet is not None):
        raise typer.Exit(1)


def _unmet(choice: BuildChoice, *, here: bool) -> str | None:
    """What the chosen build needs and the machine does not have, as the error of `get_kernel` says it."""
    from kernels.resolver.requirements import unmet_prerequisite

    metadata = None if choice.best is None else choice.metadata.get(choice.best)
    error = None if metadata is None else unmet_prerequisite(metadata, here=here)
    return None if error is None else str(error)


def _show(choice: BuildChoice, unmet: str | None, *, as_json: bool, here: bool) -> None:
    rows = _rows(choice)
    if as_json:
        print_json(_plain(choice, rows, unmet))
        return
    held = choice.snapshot.builds  # a mirror may not have all builds of its origin
    print_table(
        ("Variant", "Verdict", "Reason", ">Size"),
        [
            (row["variant"], row["verdict"], row["reason"], format_size(row["size"]) if row["variant"] in held else "")
            for row in rows
        ],
        title=choice.title,
    )
    if choice.best is None and choice.resolution.decisions:
        from kernels.operations.explain import what_helps

        print_line()
        for line in what_helps(choice, here=here):
            print_line(line)
    origins = _origins(choice.resolution.backend)
    if [each.kind for each in origins] != ["built-in"]:
        print_line()
        print_line(f"Backend {choice.resolution.backend}: {'; '.join(map(str, origins))}")
    if unmet is not None:
        print_line()
        print_line(f"Loading it would fail: it {unmet}")
    if choice.best is not None and _is_untrusted(choice):
        print_line()
        print_line(untrusted_line(choice.snapshot.repo_id))


def _rows(choice: BuildChoice) -> list[dict[str, Any]]:
    rows = (each.row for each in choice.resolution.decisions)
    return [
        {"variant": name, "verdict": verdict, "reason": reason, "size": choice.snapshot.size(name)}
        for name, verdict, reason in rows
    ]


def _origins(backend: str) -> list[Origin]:
    """Where a backend comes from, and what adds to it, the first one first."""
    from kernels.backends import lookup

    entry = lookup.entry_of(backend)
    return entry.origins


def _is_untrusted(choice: BuildChoice) -> bool:
    """Whether `get_kernel` refuses it: the publisher is not trusted, or the commit is of no branch or tag."""
    from kernels.trust.publishers import is_refused

    return is_refused(choice.snapshot, choice.source.publishers)


def _plain(choice: BuildChoice, rows: list[dict[str, Any]], unmet: str | None) -> dict[str, Any]:
    from kernels.resolver.found import why_passed

    device = choice.resolution.device
    return {
        "repo_id": choice.snapshot.repo_id,
        "revision": choice.requirement.branch,
        "commit": choice.snapshot.commit or None,
        "lock": choice.lock,
        "from": choice.source.name,
        "passed_over": [
            {"from": source.name, "reason": why_passed(choice.found.asked, source, error)}
            for source, error in choice.found.passed
        ],
        "target": str(choice.resolution.target),
        "backend": choice.resolution.backend,
        "backend_origins": [msgspec.structs.asdict(each) for each in _origins(choice.resolution.backend)],
        "device": None if device is None else device.index,
        "chosen": choice.best,
        "unmet": unmet,
        "variants": rows,
    }
