"""What differs between a mirror and another mirror, a Hub or a lockfile."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from hub import TestHub
from mirror_tree import MirrorTree, StaticServer

from kernels.errors import InvalidRepository, RequestError
from kernels.models.lockfile import Lock, Pin
from kernels.models.mirror import commit_path
from kernels.models.mirror_document import MirrorDocument
from kernels.models.requirement import Requirement
from kernels.operations.mirroring.diff import diff_mirror
from kernels.operations.mirroring.difference import (
    BuildChange,
    CommitChange,
    FieldChange,
    FileDifference,
    MirrorDifference,
    RefChange,
    RepositoryDifference,
)

pytestmark = pytest.mark.skipif(find_spec("zstandard") is None, reason="zstandard is not installed")


@pytest.fixture
def tree(tmp_path: Path) -> MirrorTree:
    tree = MirrorTree(tmp_path / "old")
    tree.add("acme/relu", version=1, variants=["torch-cpu", "torch-cuda"])
    tree.add("acme/gelu", version=1)
    return tree


@pytest.fixture
def changed(tree: MirrorTree, tmp_path: Path) -> Callable[[], MirrorTree]:
    """Copy the mirror as it is now; what is added then is only in the copy."""

    def copy() -> MirrorTree:
        shutil.copytree(tree.root, tmp_path / "new")
        other = MirrorTree(tmp_path / "new")
        other.indexes = dict(tree.indexes)
        return other

    return copy


def diff(tree: MirrorTree, other: MirrorTree) -> MirrorDifference:
    return diff_mirror(str(tree.root), str(other.root))


def test_the_same_mirror_has_no_difference(tree: MirrorTree, changed: Callable[[], MirrorTree]) -> None:
    found = diff(tree, changed())
    assert (found.repositories, found.compared) == ((), 2)


def test_a_moved_branch_is_shown_with_its_builds(tree: MirrorTree, changed: Callable[[], MirrorTree]) -> None:
    other = changed()
    old = tree.indexes["acme/relu"].branches["v1"]
    new = other.add(
        "acme/relu",
        version=1,
        variants={"torch-cpu": {"__init__.py": b"changed = 1\n", "more.py": b"x"}, "torch-rocm": None},
        depends=[("acme/gelu", 1)],
        python_depends=["einops"],
        trusted=False,
    )
    assert len(diff(tree, other).repositories) == 1
    found = diff(tree, other).repositories[0]
    assert (found.repo_id, found.change, found.refs) == ("acme/relu", "changed", (RefChange("v1", old, new),))
    assert found.fields == (FieldChange("publisher", "trusted", "not trusted"),)
    builds = {each.variant: each for each in found.builds}
    assert {name: each.change for name, each in builds.items()} == {
        "torch-cpu": "changed",
        "torch-cuda": "removed",
        "torch-rocm": "added",
    }
    cpu = builds["torch-cpu"]
    assert {each.path: each.change for each in cpu.files} == {
        "__init__.py": "changed",
        "metadata.json": "changed",
        "more.py": "added",
    }
    assert next(each for each in cpu.files if each.path == "more.py") == FileDifference("more.py", "added", None, 1)
    assert FieldChange("kernels", None, "acme/gelu version 1") in cpu.fields
    assert FieldChange("python", None, "einops") in cpu.fields
    # The other way around.
    back = diff(other, tree).repositories[0]
    assert back.refs == (RefChange("v1", new, old),)


def test_commits_that_no_branch_is_at_are_shown(tree: MirrorTree, changed: Callable[[], MirrorTree]) -> None:
    # A lockfile brings a commit, and moves no branch.
    import msgspec

    other = changed()
    before = tree.indexes["acme/relu"]
    pinned = other.add("acme/relu", version=1, variants=["torch-rocm"], seed=2)
    index = other.indexes["acme/relu"]
    other.write(msgspec.structs.replace(before, number=9, older=(pinned,)))
    found = diff(tree, other).repositories[0]
    assert (found.refs, found.commits) == ((), (CommitChange(pinned, "added"),))
    assert [(each.name, each.variant, each.change) for each in found.builds] == [(pinned, "torch-rocm", "added")]
    assert diff(other, tree).repositories[0].commits == (CommitChange(pinned, "removed"),)
    # The branch moves to it, and its former commit is removed.
    moved = msgspec.structs.replace(index, number=10, older=())
    other.write(moved)
    former = before.branches["v1"]
    found = diff(tree, other).repositories[0]
    assert found.refs == (RefChange("v1", former, pinned),)
    assert found.commits == (CommitChange(former, "removed"),)


def test_a_build_of_an_older_commit_is_shown(tree: MirrorTree, changed: Callable[[], MirrorTree]) -> None:
    # The same lockfile, for another target.
    import msgspec

    old = tree.indexes["acme/relu"].branches["v1"]
    tree.add("acme/relu", version=1, variants=["torch-cpu"], seed=2)
    other = changed()
    path = other.root / commit_path("acme/relu", old)
    document = MirrorDocument.parse(path.read_bytes(), "").repository("acme/relu", "", old)
    variants = {"torch-cpu": document.commits[old].variants["torch-cpu"]}
    commits = {old: msgspec.structs.replace(document.commits[old], variants=variants)}
    builds = {content: document.builds[content] for content in variants.values()}
    path.write_bytes(MirrorDocument.of(msgspec.structs.replace(document, commits=commits, builds=builds)).to_bytes())
    found = diff(other, tree).repositories[0]
    assert (found.refs, found.commits) == ((), ())
    assert [(each.name, each.variant, each.change) for each in found.builds] == [(old, "torch-cuda", "added")]


def test_a_build_of_the_same_commit_is_shown(tree: MirrorTree, changed: Callable[[], MirrorTree]) -> None:
    # Another run took it for another target.
    import msgspec

    other = changed()
    index = other.indexes["acme/relu"]
    commit = index.branches["v1"]
    entry = msgspec.structs.replace(
        index.commits[commit], variants={"torch-cpu": index.commits[commit].variants["torch-cpu"]}
    )
    other.write(msgspec.structs.replace(index, number=2, commits={commit: entry}))
    assert [(each.variant, each.change) for each in diff(tree, other).repositories[0].builds] == [
        ("torch-cuda", "removed")
    ]


def test_repositories_that_one_side_has(tree: MirrorTree, changed: Callable[[], MirrorTree]) -> None:
    other = changed()
    other.add("acme/silu", version=2)
    del other.indexes["acme/gelu"]
    other.write(other.indexes["acme/relu"])
    found = {each.repo_id: each for each in diff(tree, other).repositories}
    assert {name: each.change for name, each in found.items()} == {"acme/gelu": "removed", "acme/silu": "added"}
    assert [(each.variant, each.change) for each in found["acme/silu"].builds] == [("torch-cpu", "added")]
    assert diff_mirror(str(tree.root), str(other.root), ["acme/relu"]).repositories == ()
    with pytest.raises(RequestError, match=r"Neither .* has acme/tanh"):
        diff_mirror(str(tree.root), str(other.root), ["acme/tanh"])


def test_a_mirror_behind_a_web_server_is_compared(tree: MirrorTree, changed: Callable[[], MirrorTree]) -> None:
    other = changed()
    other.add("acme/gelu", version=2)
    with StaticServer(other.root) as server:
        found = diff_mirror(str(tree.root), server.url)
    assert (found.new, [each.repo_id for each in found.repositories]) == (server.url, ["acme/gelu"])


@pytest.fixture
def from_hub(hub: TestHub, tmp_path: Path) -> MirrorTree:
    """A mirror whose commits are those of the Hub."""
    from kernels.operations.mirroring.request import MirrorRequest
    from kernels.operations.mirroring.run import mirror

    hub.make_repo("acme/relu", version=1, variants=["torch-cpu", "torch-cuda"])
    result = mirror(
        MirrorRequest(str(tmp_path / "mirror"), repositories=["acme/relu"], targets=["torch2.9-cpu-x86_64-linux"])
    )
    assert not result.failures
    return MirrorTree(tmp_path / "mirror")


def test_a_mirror_is_compared_with_its_origin(from_hub: MirrorTree, hub: TestHub) -> None:
    from kernels.sources.session_cache import forget

    found = diff_mirror(str(from_hub.root))
    # torch-cuda was left out on purpose.
    assert (found.new, found.compared, found.repositories) == (hub.url, 1, ())
    hub.make_repo("acme/relu", version=1, variants={"torch-cpu": {"more.py": "x"}, "torch-cuda": {}})
    hub.make_repo("acme/relu", version=2, variants=["torch-cpu"])
    forget()
    found = diff_mirror(str(from_hub.root))
    relu = found.repositories[0]
    assert [each.name for each in relu.refs] == ["v1", "v2"]
    assert {(each.name, each.variant, each.change) for each in relu.builds} == {
        ("v1", "torch-cpu", "changed"),
        ("v2", "torch-cpu", "added"),
    }


def test_a_lockfile_is_compared_with_a_mirror(
    tree: MirrorTree, changed: Callable[[], MirrorTree], tmp_path: Path
) -> None:
    other = changed()
    old = tree.indexes["acme/relu"].branches["v1"]
    lock = tmp_path / "kernels.lock"
    lock.write_bytes(Lock((Pin(Requirement("acme/relu", version=1), old),)).to_bytes())
    assert diff_mirror(str(lock), str(tree.root)).repositories == ()
    new = other.add("acme/relu", version=1, variants=["torch-cpu"], seed=2)
    found = diff_mirror(str(lock), str(other.root)).repositories
    assert found[0].refs == (RefChange("v1", old, new),)
    assert {(each.variant, each.change) for each in found[0].builds} == {
        ("torch-cpu", "changed"),
        ("torch-cuda", "removed"),
    }
    with pytest.raises(RequestError, match="A lockfile has no origin"):
        diff_mirror(str(lock))


def test_signatures_that_are_lost_are_shown(tmp_path: Path) -> None:
    pytest.importorskip("sigstore")
    from hub import kernel_files
    from sigstore_root import OTHERS, SigstoreRoot

    content = kernel_files("acme/relu", "torch-cpu", version=1)
    root = SigstoreRoot()
    signed = [
        root.sign(content["metadata.json"], each) for each in (OTHERS["another branch"], OTHERS["another issuer"])
    ]
    trees = []
    for number, own in enumerate(({}, {"metadata.json.sigstore": signed[0]}, {"metadata.json.sigstore": signed[1]})):
        tree = MirrorTree(tmp_path / str(number))
        tree.add("acme/relu", variants={"torch-cpu": {**content, **own}})
        trees.append(tree)
    first = "https://github.com/acme/kernels/.github/workflows/build.yaml@refs/heads/attack"
    second = "https://github.com/acme/kernels/.github/workflows/build.yaml@refs/heads/main"

    def fields(old: int, new: int) -> tuple[FieldChange, ...]:
        changes: tuple[RepositoryDifference, ...] = diff(trees[old], trees[new]).repositories
        builds: tuple[BuildChange, ...] = changes[0].builds
        return builds[0].fields

    assert fields(0, 1) == (FieldChange("signer", None, first),)
    assert fields(1, 0) == (FieldChange("signer", first, None),)
    assert fields(1, 2) == (FieldChange("signer", first, second),)


def test_a_damaged_mirror_is_an_error(tree: MirrorTree, tmp_path: Path, changed: Callable[[], MirrorTree]) -> None:
    other = changed()
    (other.root / "api/kernels/acme/relu/refs").write_bytes(b"{}")
    with pytest.raises(InvalidRepository, match="not a valid document"):
        diff(tree, other)
    with pytest.raises(RequestError, match="is not a mirror"):
        diff_mirror(str(tree.root), str(tmp_path / "none"))
    with pytest.raises(RequestError, match="the Hub can be the second"):
        diff_mirror("hub", str(tree.root))
