"""`kernels mirror --verify`, `--prune` and `diff`, as commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from mirror_tree import MirrorTree, StaticServer

from kernels.models.lockfile import Lock, Pin
from kernels.models.requirement import Requirement

pytestmark = pytest.mark.skipif(find_spec("zstandard") is None, reason="zstandard is not installed")

Run = Callable[..., Any]


@pytest.fixture
def tree(tmp_path: Path, isolated_env: Path) -> MirrorTree:
    """A mirror of two repositories, one with an older commit."""
    tree = MirrorTree(tmp_path / "mirror")
    tree.add("acme/relu", version=1, variants=["torch-cpu"], seed=1)
    tree.add("acme/relu", version=1, variants=["torch-cpu"], seed=2)
    tree.add("acme/gelu", version=2)
    return tree


def test_verify_reads_everything_back(kernels: Run, tree: MirrorTree) -> None:
    done = kernels("mirror", tree.root, "--verify")
    assert done.exit_code == 0, done.output
    assert f"{tree.root}, written 2026-01-02T03:04:05Z (" in done.stdout
    assert "2 repositories, 3 commits, 3 archives (" in done.stdout
    assert "Everything is complete. Who wrote it was not checked: KERNELS_MIRROR_KEYS is not set." in done.stdout
    with StaticServer(tree.root) as server:
        found = json.loads(kernels("mirror", server.url, "--verify", "--repo", "acme/relu", "--json").stdout)
    assert (found["mirror"], found["failed"], found["commits"], found["unnamed"]) == (server.url, False, 2, None)
    archive = next(iter(tree.indexes["acme/relu"].builds.values())).archive.name
    (tree.root / archive).unlink()
    done = kernels("mirror", tree.root, "--verify")
    assert done.exit_code == 1
    assert f"{archive}: it is missing; named by api/kernels/acme/relu/" in done.stderr
    assert "1 problem." in done.stdout
    found = json.loads(kernels("mirror", tree.root, "--verify", "--json").stdout)
    assert [each["path"] for each in found["problems"]] == [archive]


def test_prune_shows_a_plan_and_asks(kernels: Run, tree: MirrorTree, tmp_path: Path) -> None:
    older = tree.indexes["acme/relu"].older[0]
    before = sorted(path for path in tree.root.rglob("*") if path.is_file())
    for arguments, status in (((), 1), (("--dry-run",), 0), (("--json",), 0), (("--json", "--dry-run", "--yes"), 0)):
        done = kernels("mirror", tree.root, "--prune", *arguments)
        assert (done.exit_code, older[:12] in done.stdout) == (status, True), done.output
        assert sorted(path for path in tree.root.rglob("*") if path.is_file()) == before
    assert "To remove without confirmation: --yes" in kernels("mirror", tree.root, "--prune").stdout
    note = "What lockfiles pin is removed too; --keep-lockfile FILE keeps it."
    assert note in kernels("mirror", tree.root, "--prune", "--dry-run").stderr
    assert note not in kernels("mirror", tree.root, "--prune", "--dry-run", "--remove", "acme/relu").stderr
    lock = tmp_path / "app.lock"
    lock.write_bytes(Lock((Pin(Requirement("acme/relu", version=1), older),)).to_bytes())
    done = kernels("mirror", tree.root, "--prune", "--yes", "--keep-lockfile", lock)
    assert "Nothing to remove." in done.stdout
    assert "pinned by" in done.stdout
    assert "taken recently" in kernels("mirror", tree.root, "--prune", "--older-than", 36500).stdout
    done = kernels("mirror", tree.root, "--prune", "--yes")
    assert done.exit_code == 0, done.output
    assert "Removed 1 commit and 1 archive, freed " in done.stdout
    done = kernels("mirror", tree.root, "--prune", "--yes", "--json", "--remove", "acme/gelu")
    assert json.loads(done.stdout)["repositories"] == ["acme/gelu"]
    assert kernels("mirror", tree.root, "--verify").exit_code == 0
    assert "acme/gelu" not in (tree.root / "mirror.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["m", "--verify", "--prune"], "--prune is no option of --verify"),
        (["m", "--verify", "--sign-key", "k"], "--sign-key is no option of --verify"),
        (["m", "--prune", "--lockfile", "k"], "--lockfile is no option of --prune"),
        (["m", "--repo", "a/b", "--remove", "a/b"], "--remove is an option of --prune"),
        (["m", "--repo", "a/b", "--policy", "p"], "--policy is an option of --verify"),
        (["m", "other", "--repo", "a/b"], "unexpected extra argument(s) (other)"),
    ],
)
def test_options_of_another_action_are_refused(kernels: Run, arguments: list[str], says: str) -> None:
    done = kernels("mirror", *arguments)
    assert done.exit_code == 2
    assert says in done.stderr


def test_prune_brings_the_pages_up_to_date(kernels: Run, tree: MirrorTree) -> None:
    pytest.importorskip("jinja2")
    from kernels.operations.mirroring.pages import write_pages

    write_pages(str(tree.root))
    assert "acme/gelu" in (tree.root / "index.html").read_text()
    assert kernels("mirror", tree.root, "--prune", "--yes", "--remove", "acme/gelu").exit_code == 0
    assert "acme/gelu" not in (tree.root / "index.html").read_text()
