"""On an NVIDIA GPU: kernels from a mirror, chosen by the card's architecture."""

from __future__ import annotations

from pathlib import Path

import pytest
from mirror_tree import MirrorTree, StaticServer
from this_card import arch, compiled_name

from kernels import get_kernel

pytestmark = pytest.mark.gpu

#: A Triton kernel, as a repository has it.
TRITON = """
import torch
import triton
import triton.language as tl


@triton.jit
def _relu(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(x + at, mask=inside)
    tl.store(out + at, tl.where(value > 0, value, 0.0), mask=inside)


def relu(x):
    out = torch.empty_like(x)
    _relu[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out
"""


def test_the_build_for_the_card_arrives_in_two_requests_and_runs(
    isolated_env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    tree = MirrorTree(tmp_path / "mirror")
    tree.add("acme/excluded", variants=[compiled_name()], archs=["5.0"])
    tree.add("acme/relu", variants={"torch-cuda": {"__init__.py": TRITON}, "torch-cpu": None}, archs=[arch()])
    with StaticServer(tree.root) as server:
        monkeypatch.setenv("KERNELS_HUB", server.url)
        kernel = get_kernel("acme/relu", version=1)
        assert len(server.requests) == 2, server.asked()
        assert Path(str(kernel.__file__)).parent.name == "torch-cuda"
        x = torch.randn(100_003, device="cuda")
        assert torch.equal(kernel.relu(x), torch.relu(x))
        with pytest.raises(FileNotFoundError, match=arch()):
            get_kernel("acme/excluded", version=1)
        assert not any("archives" in each.path for each in server.requests[2:]), server.asked()
