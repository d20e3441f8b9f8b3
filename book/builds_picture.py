"""The picture of a choice: one kernel's builds on three machines, as the resolver decides when it is drawn."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from drawing import SMALL, Box, Gap, Marked, Part, Row, Stack, Words
from picture import Picture

from kernels import Target
from kernels.operations.explain import explain_folder
from kernels.resolver.decision import Decision

__all__ = ["MACHINES", "PICTURE", "decided"]


#: One kernel's builds, as its author published them: the name of each, and the architectures in its metadata.
BUILDS: Mapping[str, tuple[str, Sequence[str]]] = {
    "torch-stable-abi29-cu130-x86_64-linux": ("cuda", ("9.0", "10.0")),
    "torch-stable-abi29-cu128-x86_64-linux": ("cuda", ("9.0",)),
    "torch29-cxx11-cu128-x86_64-linux": ("cuda", ("8.0", "9.0")),
    "torch-cuda": ("cuda", ("8.0", "9.0", "10.0")),
    "torch-cpu": ("cpu", ()),
}
#: The machines that choose among them: what each is, and its target.
MACHINES = {
    "H100, Torch 2.13, CUDA 13.0": "torch2.13-cu130-x86_64-linux+sm_90",
    "A100, Torch 2.9, CUDA 12.8": "torch2.9-cu128-x86_64-linux+sm_80",
    "Laptop, Torch 2.13, no GPU": "torch2.13-cpu-x86_64-linux",
}
_MARKS = {"chosen": "tick", "accepted": "dash", "rejected": "cross"}


@cache
def decided() -> dict[str, dict[str, Decision]]:
    """What the resolver decides: the verdict for each build, by machine and build."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (backend, archs) in BUILDS.items():
            build = Path(folder, "build", name)
            build.mkdir(parents=True)
            listed = ", ".join(f'"{arch}"' for arch in archs)
            named = (
                f'"name": "relu", "id": "_relu_{backend}", "version": 1, "license": "Apache-2.0", "python-depends": []'
            )
            backend_facts = f'"backend": {{"type": "{backend}", "archs": [{listed}]}}'
            (build / "metadata.json").write_text(f"{{{named}, {backend_facts}}}", encoding="utf-8")
            (build / "__init__.py").touch()
        found = {
            machine: explain_folder(Path(folder), target=Target.parse(target)).resolution.decisions
            for machine, target in MACHINES.items()
        }
    return {machine: {each.variant.name: each for each in verdicts} for machine, verdicts in found.items()}


def _reason(verdict: Decision) -> str:
    """A reason without the name of the build that another one is preferred to: that one is marked."""
    return re.sub(r"fits, but \S+ is preferred", "fits, but another build is preferred", verdict.row[2])


def _verdict(verdict: Decision) -> Part:
    look = "good" if verdict.verdict == "chosen" else "ink"
    words = Words(f"**{verdict.verdict}**: {_reason(verdict)}", look, SMALL)
    return Marked(_MARKS[verdict.verdict], words)


def _builds(narrow: bool) -> Part:
    verdicts = decided()
    if narrow:
        machines: list[Part] = []
        for machine, target in MACHINES.items():
            lines: list[Part] = [Words(machine, "main", bold=True), Words(f"`{target}`", "soft", SMALL), Gap(2)]
            for build in BUILDS:
                chosen = verdicts[machine][build].verdict == "chosen"
                name = Words(f"`{build}`", size=SMALL)
                lines.append(Box([name, _verdict(verdicts[machine][build])], "good" if chosen else "plain", pad=(8, 6)))
            machines.append(Stack(lines, gap=6))
        return Stack(machines, gap=18)
    heads = [
        Box(
            [
                Words(machine.partition(", ")[0], "main", bold=True),
                Words(machine.partition(", ")[2], size=SMALL),
                Words(f"`{target}`", "soft", SMALL),
            ],
            "main",
        )
        for machine, target in MACHINES.items()
    ]
    rows: list[Part] = [Row(heads)]
    for build, (_, archs) in BUILDS.items():
        listed = f" for capability {', '.join(archs)}" if archs else ""
        cells = [
            Box(
                [_verdict(verdicts[machine][build])],
                "good" if verdicts[machine][build].verdict == "chosen" else "plain",
            )
            for machine in MACHINES
        ]
        rows.append(Stack([Words(f"`{build}`{listed}"), Row(cells)], gap=4))
    return Stack(rows, gap=12)


def _builds_says() -> str:
    machines = []
    for machine, target in MACHINES.items():
        verdicts = "; ".join(
            f"{build} is {each.verdict}: {_reason(each)}"
            for build, each in ((build, decided()[machine][build]) for build in BUILDS)
        )
        machines.append(f"{machine} ({target}): {verdicts}.")
    return f"The same {len(BUILDS)} builds of a kernel on three machines. " + " ".join(machines)


PICTURE = Picture("One kernel on three machines", _builds_says(), _builds)
