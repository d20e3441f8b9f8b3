"""`kernels mirror` where something is wrong: what it takes all the same, what it says, and how that is put right."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hub import TestHub
from mirror_tree import MirrorTree

from kernels.models.mirror import index_path
from kernels.models.mirror_document import MirrorDocument

pytestmark = pytest.mark.skipif(find_spec("zstandard") is None, reason="zstandard is not installed")

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("moves", "says"),
    [
        ({"acme/a": "acme/b", "acme/b": "acme/a"}, "acme/a moved in a circle: acme/a -> acme/b -> acme/a."),
        ({"acme/a": "acme/a"}, "acme/a moved in a circle: acme/a -> acme/a."),
        ({"acme/a": "acme/A", "acme/A": "acme/a"}, "acme/a moved in a circle: acme/a -> acme/A -> acme/a."),
        (
            {f"acme/a{'' if each == 0 else each}": f"acme/a{each + 1}" for each in range(1000)},
            "acme/a moved more than 5 times: acme/a -> acme/a1 -> acme/a2 -> acme/a3 -> acme/a4 -> acme/a5 -> acme/a6.",
        ),
    ],
    ids=["circle", "itself", "case", "chain"],
)
@pytest.mark.parametrize("by", ["--repo", "--publisher", "all"])
def test_a_repository_that_moved_in_a_circle_is_an_error_and_the_rest_is_taken(
    kernels: Run, isolated_env: Path, tmp_path: Path, moves: dict[str, str], says: str, by: str
) -> None:
    tree = MirrorTree(tmp_path / "old")
    tree.add("acme/relu")
    tree.add("acme/a")
    for name, destination in moves.items():  # the mirror's own index lists the first one only
        index = msgspec.structs.replace(tree.indexes["acme/a"], repo_id=name, moved_to=destination)
        path = tree.root / index_path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(MirrorDocument.of(index).to_bytes())
    what = {"--repo": ["--repo", "acme/a", "--repo", "acme/relu"], "--publisher": ["--publisher", "acme"], "all": []}
    done = kernels("mirror", tmp_path / "new", "--from", tree.root, *what[by])
    assert done.exit_code == 1
    assert (says in done.stderr.splitlines()[0], len(done.stderr.splitlines())) == (True, 1), done.stderr
    assert "acme/relu" in done.stdout
    assert kernels("mirror", tmp_path / "new", "--verify").exit_code == 0


def test_a_branch_at_a_commit_that_is_not_listed_is_an_error_of_that_repository(
    kernels: Run, hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu")
    hub.make_repo("acme/gelu")
    place = tmp_path / "mirror"
    assert kernels("mirror", place, "--repo", "acme/relu").exit_code == 0
    path = place / index_path("acme/relu")
    index = MirrorDocument.parse(path.read_bytes(), "").repository("acme/relu", "")
    branches = {**index.branches, "v3": "9" * 40}
    path.write_bytes(MirrorDocument.of(msgspec.structs.replace(index, branches=branches)).to_bytes())
    says = f"'v3' is at commit {'9' * 40}, which it does not list"
    hub.make_repo("acme/relu", version=2)
    done = kernels("mirror", place, "--repo", "acme/relu", "--repo", "acme/gelu")
    assert (done.exit_code, says in done.stderr, "acme/gelu" in done.stdout) == (1, True, True), done.output
    assert says in kernels("mirror", place, "--verify").stderr
    monkeypatch.setenv("KERNELS_HUB", str(place))
    assert says in kernels("info", "acme/relu", "--version", "1").stderr
