"""On an NVIDIA GPU: the pinned kernel set, each kernel at its commit, forward and backward against float64."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_kernels import CHECKS
from pinned_kernels import build_kernel_set, locked_commits

from kernels import get_kernel
from kernels.server import HubServer

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def kernel_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_kernel_set(tmp_path_factory.mktemp("kernel-set"))


@pytest.mark.parametrize(("repo_id", "version"), locked_commits())
def test_a_pinned_kernel_computes_what_its_reference_does(
    repo_id: str, version: int, kernel_set: Path, isolated_env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    with HubServer(kernel_set, trusted=[repo_id.partition("/")[0]]) as server:
        monkeypatch.setenv("KERNELS_HUB", server.url)
        kernel = get_kernel(repo_id, revision=locked_commits()[repo_id, version])
    check, function = CHECKS[repo_id.partition("/")[2]]
    check(function(kernel), "cuda", [torch.float32, torch.bfloat16, torch.float16])
