"""The Hub that `situations.py` asks: repositories of every kind that it names, and the answers that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hub import TestHub

_BAD_LAYERS = """
import torch
from torch import nn


class Constructed(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, input):
        return input


class Members(nn.Module):
    def forward(self, input):
        return input

    def another(self):
        return 1


class Signature(nn.Module):
    def forward(self, input, other):
        return input


class ForwardOnly(nn.Module):
    has_backward = False

    def forward(self, input):
        return input


NoModule = 5
"""

_BENCHMARK = """
import torch
from kernels.benchmark import Benchmark


class Doubled(Benchmark):
    seed = 1

    def setup(self):
        self.x = torch.rand(8, device=self.device)
        self.out = torch.empty_like(self.x)

    def benchmark_plain(self):
        self.out = self.kernel.double(self.x)

    def verify_plain(self):
        return {factor} * self.x
"""

_PROVENANCE = {
    "kernel-builder": {"version": "0.17.0", "commit": "a" * 40, "dirty": False},
    "kernel": {"commit": "b" * 40, "dirty": True},
}


@contextmanager
def hub_for_situations(folder: Path) -> Iterator[TestHub]:
    """A Hub with these repositories; the publisher `acme` is trusted, `stranger` is not."""
    hub = TestHub(folder, trusted=["acme"])
    _write(hub)
    hub.fail("/acme/refused", status=401)
    hub.fail("/acme/forbidden", status=403)
    hub.gate("acme/gated")
    with hub:
        yield hub


def heads(hub: TestHub) -> dict[str, str]:
    """The commit of each branch, by `repository@branch`."""
    repositories = [f"{path.parent.name}/{path.name}" for path in sorted(hub.root.glob("*/*"))]
    return {f"{repo}@{name}": head for repo in repositories for name, head in hub.catalog.branches(repo).items()}


def _write(hub: TestHub) -> None:
    def build(init: str) -> dict[str, dict[str, str]]:
        return {"torch-cpu": {"__init__.py": init}}

    for version in (1, 2):
        hub.make_repo("acme/versions", version=version)
    for name in (
        "acme/relu",
        "acme/refused",
        "acme/forbidden",
        "acme/gated",
        "acme/agent",
        "acme/agent-off",
        "stranger/relu",
    ):
        hub.make_repo(name)
    hub.make_repo("acme/gpu-only", variants=["torch-neuron"])
    hub.make_repo("acme/variants", variants=["torch-cpu", "torch-neuron", "torch-universal"])
    hub.make_repo("acme/empty", variants=[], files={"README.md": "# Empty"})
    no_metadata = hub.make_repo("acme/no-metadata")
    (no_metadata / "build" / "torch-cpu" / "metadata.json").unlink()
    hub.make_repo("acme/not-json", variants={"torch-cpu": {"metadata.json": "no JSON"}})
    hub.make_repo("acme/no-id", metadata={"id": None})
    hub.make_repo("acme/odd-backend", metadata={"backend": {"type": "abacus"}})
    hub.make_repo("acme/needs-helion", python_depends=["helion"])
    hub.make_repo("acme/needs-unknown", python_depends=["leftpad"])
    hub.make_repo("acme/newer", metadata={"kernels-minver": "99.0.0"})
    hub.make_repo("acme/dirty", metadata={"provenance": _PROVENANCE})

    below = "from kernels import get_kernel_dep\nbelow = get_kernel_dep('acme/relu')\n"
    hub.make_repo("acme/dependent", variants=build(below), depends=[("acme/relu", 1)])
    hub.make_repo("acme/undeclared", variants=build(below))
    hub.make_repo("acme/dangling", depends=[("acme/missing", 1)])
    hub.make_repo("acme/circle-a", depends=[("acme/circle-b", 1)])
    hub.make_repo("acme/circle-b", depends=[("acme/circle-a", 1)])
    hub.make_repo("acme/trusting", depends=[("stranger/relu", 1)])

    hub.make_repo("acme/raises-runtime", variants=build("raise RuntimeError('no luck')"))
    hub.make_repo("acme/raises-import", variants=build("import no_such_module_anywhere"))
    hub.make_repo("acme/raises-syntax", variants=build("def def"))

    moved = {"kind": "redirect", "destination": "acme/relu", "revision": "v1"}
    hub.make_repo("acme/moved", variants=[], status=moved)
    hub.make_repo("acme/loop-a", variants=[], status={**moved, "destination": "acme/loop-b"})
    hub.make_repo("acme/loop-b", variants=[], status={**moved, "destination": "acme/loop-a"})

    no_layers = hub.make_repo("acme/no-layers", variants=build("double = 2"))
    (no_layers / "build" / "torch-cpu" / "layers.py").unlink()
    hub.make_repo(
        "acme/bad-layers",
        variants={"torch-cpu": {"__init__.py": "from . import layers", "layers.py": _BAD_LAYERS}},
    )
    hub.make_repo("acme/bad-signature", variants={"torch-cpu": {"metadata.json.sigstore": "{}"}})
    for name, factor in (("acme/benchmarked", 2), ("acme/wrong-benchmark", 3)):
        hub.make_repo(name, files={"benchmarks/benchmark_double.py": _BENCHMARK.format(factor=factor)})
