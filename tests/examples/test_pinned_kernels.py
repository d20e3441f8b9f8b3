"""The kernel set that GPU runs use is pinned, and the pins are those of the sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from pinned_kernels import LOCK, build_kernel_set, lock_kernel_set, locked_commits

from kernels import get_kernel
from kernels.models.lockfile import Lock
from kernels.server import HubServer


@pytest.fixture(scope="module")
def kernel_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_kernel_set(tmp_path_factory.mktemp("kernel-set"))


def test_every_kernel_of_the_set_is_pinned(kernel_set: Path) -> None:
    assert {repo_id for repo_id, _ in locked_commits()} == {
        path.relative_to(kernel_set).as_posix() for path in kernel_set.glob("*/*")
    }


def test_the_lock_is_that_of_the_sources(kernel_set: Path, isolated_env: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.lock"
    lock_kernel_set(kernel_set, fresh)
    assert Lock.read(LOCK).pins == Lock.read(fresh).pins, (
        f"make lock-kernels: {LOCK.name} is not that of examples/kernels"
    )


@pytest.mark.parametrize(("repo_id", "version"), locked_commits())
def test_a_pinned_kernel_loads_by_its_commit(
    repo_id: str, version: int, kernel_set: Path, isolated_env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HubServer(kernel_set, trusted=[repo_id.partition("/")[0]]) as server:
        monkeypatch.setenv("KERNELS_HUB", server.url)
        kernel = get_kernel(repo_id, revision=locked_commits()[repo_id, version], backend="cpu")
    assert kernel.layers
