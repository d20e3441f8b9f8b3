"""`kernels explain`: which build of a kernel suits a machine, and why each other one does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels.cli._arguments import AsJson, BackendName, Kernel, Revision, Version, machine

if TYPE_CHECKING:
    from kernels.resolver.planner import Choice
    from kernels.resolver.target import Target

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
    as_json: AsJson = False,
) -> None:
    """Show for every build of a kernel whether it suits this machine, or another, and why."""
    from kernels import api
    from kernels.cli._output import format_size, print_json, print_table, say, visible
    from kernels.operations.info import is_path

    there = None if target is None else machine(target)
    if is_path(kernel):
        choice = _of_folder(kernel, version, revision, backend, there)
    else:
        choice = api.explain(kernel, version=version, revision=revision, backend=backend, target=there)
    rows = _rows(choice)
    if as_json:
        print_json(_plain(choice, rows))
        return
    print_table(
        ("Variant", "Verdict", "Reason", ">Size"),
        [(row["variant"], row["verdict"], row["reason"], format_size(row["size"])) for row in rows],
        title=_title(choice),
    )
    if choice.best is not None and _refused(choice):
        say("")
        allowing = f"trust_remote_code=[{choice.snapshot.repo_id!r}]"
        say(visible(f"Its publisher is not trusted here: get_kernel takes it with {allowing} only."))


def _of_folder(
    path: str, version: int | None, revision: str | None, backend: str | None, target: Target | None
) -> Choice:
    from kernels.errors import RequestError
    from kernels.resolver.planner import Planner
    from kernels.resolver.target import Target
    from kernels.sources import PathSource, Sources
    from kernels.trust.publishers import TrustPolicy

    if version is not None or revision is not None:
        raise RequestError(f"{path} is a folder, which has one version only; leave --version and --revision out.")
    source = PathSource(Path(path).expanduser().absolute())
    planner = Planner(Sources(source), target or Target.current(), TrustPolicy(), backend)
    return planner.choose(source.requirement, every=True)


def _rows(choice: Choice) -> list[dict[str, Any]]:
    from kernels.resolver.selection import VariantRejected

    best = choice.best
    rows = []
    for decision in choice.resolution.decisions:
        name = decision.variant.name
        if isinstance(decision, VariantRejected):
            verdict, reason = "rejected", decision.reason
        elif name == best:
            verdict, reason = "chosen", _merit(choice)
        else:
            verdict, reason = "accepted", f"suits, but {best} is preferred"
        rows.append({"variant": name, "verdict": verdict, "reason": reason, "size": choice.snapshot.size(name)})
    return rows


def _merit(choice: Choice) -> str:
    count = len(choice.resolution.accepted)
    merit = "the best of those that suit" if count > 1 else "the only one that suits"
    from kernels.backends import listed

    uncovered = choice.resolution.uncovered_devices
    if uncovered:
        devices = listed([f"{device.index} ({device.arch})" for device in uncovered])
        merit += f"; does not cover device {devices}"
    return merit


def _title(choice: Choice) -> str:
    resolution = choice.resolution
    pinned = "" if choice.lock is None else f", pinned by {choice.lock}"
    commit = f" (commit {choice.snapshot.commit[:12]}{pinned})" if choice.snapshot.commit else ""
    device = "" if resolution.device is None else f", device {resolution.device.index}"
    outcome = "" if choice.best is not None else "\nNo build suits." if resolution.decisions else "\nIt has no builds."
    return f"{choice.requirement}{commit} for {resolution.target}, backend {resolution.backend}{device}{outcome}"


def _refused(choice: Choice) -> bool:
    """Whether the Hub says that the publisher is not a trusted one; not where it cannot be asked."""
    from kernels.trust.publishers import PublisherTrust, TrustPolicy, ask_trust

    return ask_trust(choice.snapshot.repo_id, choice.source.publishers, TrustPolicy()) is PublisherTrust.UNTRUSTED


def _plain(choice: Choice, rows: list[dict[str, Any]]) -> dict[str, Any]:
    device = choice.resolution.device
    return {
        "repo_id": choice.snapshot.repo_id,
        "revision": choice.requirement.branch,
        "commit": choice.snapshot.commit or None,
        "lock": choice.lock,
        "target": str(choice.resolution.target),
        "backend": choice.resolution.backend,
        "device": None if device is None else device.index,
        "chosen": choice.best,
        "variants": rows,
    }
