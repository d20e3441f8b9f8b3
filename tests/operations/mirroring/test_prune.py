"""What is removed from a mirror, and what is never removed."""

from __future__ import annotations

import os
import time
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from mirror_tree import MirrorTree

from kernels.errors import InvalidRepository, RequestError, StoreError
from kernels.mirror.stores.folder import FolderStore
from kernels.models.lockfile import Lock, Pin
from kernels.models.mirror import MIRROR_FILE, archive_path, commit_path, index_path
from kernels.models.mirror_document import MirrorDocument
from kernels.models.requirement import Requirement
from kernels.operations.mirroring.prune import MirrorPrunePlan, plan_mirror_prune, prune_mirror
from kernels.operations.mirroring.request import MirrorVersions
from kernels.operations.mirroring.verify import verify_mirror

pytestmark = pytest.mark.skipif(find_spec("zstandard") is None, reason="zstandard is not installed")

DAY = 24 * 3600.0


@pytest.fixture
def tree(tmp_path: Path) -> MirrorTree:
    """A mirror of two repositories: three versions, and two older commits."""
    tree = MirrorTree(tmp_path / "mirror")
    for seed in (1, 2):
        tree.add("acme/relu", version=1, variants=["torch-cpu"], seed=seed)
    for version in (2, 3):
        tree.add("acme/relu", version=version, variants=["torch-cpu"])
    for seed in (1, 2):
        tree.add("acme/gelu", version=1, variants=["torch-cpu"], seed=seed)
    return tree


def commits(plan: MirrorPrunePlan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in plan.remove:
        found.setdefault(each.repo_id, []).append(each.commit)
    return found


def check(tree: MirrorTree) -> None:
    store = FolderStore(tree.root)
    report = verify_mirror(store, writable=store)
    assert report.problems == ()
    assert report.unnamed == ()


def test_commits_that_no_branch_is_at_are_removed_with_their_archives(tree: MirrorTree) -> None:
    store = FolderStore(tree.root)
    before = {path: path.read_bytes() for path in tree.root.rglob("*") if path.is_file()}
    plan = plan_mirror_prune(store)
    assert {path: path.read_bytes() for path in tree.root.rglob("*") if path.is_file()} == before
    older = {name: list(index.older) for name, index in tree.indexes.items()}
    assert commits(plan) == older
    assert {each.why for each in plan.remove} == {"no branch is at it"}
    assert (len(plan.archives), plan.recent, plan.documents, plan.branches) == (2, (), (), {})
    result = prune_mirror(store, plan)
    assert (result.problems, len(result.archives), result.freed) == ((), 2, plan.frees)
    check(tree)
    assert not (tree.root / commit_path("acme/relu", older["acme/relu"][0])).exists()
    again = plan_mirror_prune(store)
    assert again.empty
    documents = {path: path.read_bytes() for path in (tree.root / "api").rglob("*") if path.is_file()}
    prune_mirror(store, again)
    assert {path: path.read_bytes() for path in (tree.root / "api").rglob("*") if path.is_file()} == documents


def test_what_a_lockfile_pins_is_kept(tree: MirrorTree) -> None:
    older = tree.indexes["acme/relu"].older[0]
    lock = Lock((Pin(Requirement("acme/relu", version=1), older),), where="app.lock")
    plan = plan_mirror_prune(FolderStore(tree.root), locks=[lock])
    assert list(commits(plan)) == ["acme/gelu"]
    assert [(each.commit, each.why) for each in plan.kept] == [(older, "pinned by app.lock")]
    with pytest.raises(RequestError, match=r"app\.lock pins acme/relu at .*: it cannot be removed"):
        plan_mirror_prune(FolderStore(tree.root), remove=["acme/relu"], locks=[lock])
    versions = MirrorVersions(newest=1)
    pinned = Lock((Pin(Requirement("acme/relu", version=2), tree.indexes["acme/relu"].branches["v2"]),))
    result = prune_mirror(
        FolderStore(tree.root), plan_mirror_prune(FolderStore(tree.root), versions=versions, locks=[pinned])
    )
    assert result.problems == ()
    check(tree)
    assert (tree.root / commit_path("acme/relu", tree.indexes["acme/relu"].branches["v2"])).exists()


def test_a_commit_that_is_newer_than_the_branches_is_named_as_such(tree: MirrorTree) -> None:
    # A lockfile that was locked again: it brought a commit, and moved no branch.
    index = tree.indexes["acme/gelu"]
    older = index.older[0]
    path = tree.root / commit_path("acme/gelu", older)
    document = MirrorDocument.parse(path.read_bytes(), "").repository("acme/gelu", "", older)
    entry = msgspec.structs.replace(document.commits[older], taken="2026-01-09T00:00:00Z")
    path.write_bytes(MirrorDocument.of(msgspec.structs.replace(document, commits={older: entry})).to_bytes())
    why = {each.commit: each.why for each in plan_mirror_prune(FolderStore(tree.root)).remove}
    assert why == {
        tree.indexes["acme/relu"].older[0]: "no branch is at it",
        older: "no branch is at it; newer in this mirror than its branches: a lockfile may pin it",
    }


def test_older_versions_are_removed(tree: MirrorTree) -> None:
    store, index = FolderStore(tree.root), tree.indexes["acme/relu"]
    plan = plan_mirror_prune(store, ["acme/relu"], versions=MirrorVersions(newest=2))
    assert plan.branches == {"acme/relu": {"v1": index.branches["v1"]}}
    assert sorted(commits(plan)["acme/relu"]) == sorted([index.branches["v1"], *index.older])
    assert "acme/gelu" not in commits(plan)
    prune_mirror(store, plan)
    check(tree)
    found = MirrorDocument.parse((tree.root / index_path("acme/relu")).read_bytes(), "").repository("acme/relu", "")
    assert (sorted(found.branches), found.number) == (["v2", "v3"], index.number + 1)
    own = MirrorDocument.parse((tree.root / MIRROR_FILE).read_bytes(), "").mirror("")
    assert own.repositories["acme/relu"].versions == (3, 2)


def test_a_repository_is_removed_as_a_whole(tree: MirrorTree) -> None:
    store = FolderStore(tree.root)
    shared = next(iter(tree.indexes["acme/gelu"].builds.values())).archive.name
    prune_mirror(store, plan_mirror_prune(store, remove=["acme/relu"], repositories=["acme/relu"]))
    check(tree)
    assert not (tree.root / "api/kernels/acme/relu").exists()
    assert (tree.root / shared).exists()
    # Also one that is damaged: nothing else names what it names.
    (tree.root / index_path("acme/gelu")).write_bytes(b"{")
    with pytest.raises(InvalidRepository, match=r"It may name archives: none was removed\. `kernels mirror --verify`"):
        plan_mirror_prune(store)
    prune_mirror(store, plan_mirror_prune(store, remove=["acme/gelu"]))
    assert MirrorDocument.parse((tree.root / MIRROR_FILE).read_bytes(), "").mirror("").repositories == {}


def test_only_what_was_taken_long_ago_is_removed(tree: MirrorTree) -> None:
    plan = plan_mirror_prune(FolderStore(tree.root), older_than=30 * DAY, now=time.mktime((2026, 1, 20) + (0,) * 6))
    assert plan.remove == ()
    assert {each.why for each in plan.kept} == {"taken recently"}
    assert plan_mirror_prune(FolderStore(tree.root), older_than=DAY).remove


def test_archives_of_a_writer_at_work_are_kept(tree: MirrorTree) -> None:
    store = FolderStore(tree.root)
    for digit, age in (("0", 0.0), ("1", 2 * DAY)):
        path = tree.root / archive_path(digit * 64)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        document = tree.root / commit_path("acme/relu", digit * 40)
        document.write_bytes(b"x")
        for each in (path, document):
            os.utime(each, (time.time() - age,) * 2)
    plan = plan_mirror_prune(store, ["acme/gelu"])
    assert [each.path for each in plan.recent] == [archive_path("0" * 64)]
    assert archive_path("1" * 64) in [each.path for each in plan.archives]
    assert plan.documents == (commit_path("acme/relu", "1" * 40),)
    prune_mirror(store, plan)
    assert (tree.root / archive_path("0" * 64)).exists()
    assert not (tree.root / archive_path("1" * 64)).exists()


def test_a_repository_that_the_index_lacks_is_kept(tree: MirrorTree) -> None:
    # A run that was broken off before it wrote the mirror's index.
    own = MirrorDocument.parse((tree.root / MIRROR_FILE).read_bytes(), "").mirror("")
    lacking = msgspec.structs.replace(
        own, repositories={name: each for name, each in own.repositories.items() if name != "acme/relu"}
    )
    (tree.root / MIRROR_FILE).write_bytes(MirrorDocument.of(lacking).to_bytes())
    for path in tree.root.rglob("*"):
        os.utime(path, (time.time() - 9 * DAY,) * 2)
    store = FolderStore(tree.root)
    plan = plan_mirror_prune(store)
    assert (plan.documents, list(commits(plan))) == ((), ["acme/gelu"])
    prune_mirror(store, plan)
    (tree.root / MIRROR_FILE).write_bytes(MirrorDocument.of(own).to_bytes())
    report = verify_mirror(store, ["acme/relu"])
    assert report.problems == ()


class Interrupted(FolderStore):
    """A store in which another writer is at work: `meanwhile` runs before the first change."""

    def __init__(self, root: Path, meanwhile: object) -> None:
        super().__init__(root)
        self.meanwhile = meanwhile
        self.deleted: list[str] = []

    def write(self, path: str, *args: object, **options: object) -> str:  # type: ignore[override]
        if self.meanwhile is not None:
            action, self.meanwhile = self.meanwhile, None
            action()  # type: ignore[operator]
        return super().write(path, *args, **options)  # type: ignore[arg-type]

    def delete(self, path: str) -> None:
        self.deleted.append(path)
        super().delete(path)


def test_a_branch_that_moved_back_meanwhile_keeps_its_commit(tree: MirrorTree) -> None:
    index = tree.indexes["acme/relu"]
    older = index.older[0]

    def move_back() -> None:
        found = MirrorDocument.parse((tree.root / commit_path("acme/relu", older)).read_bytes(), "")
        document = found.repository("acme/relu", "", older)
        moved = msgspec.structs.replace(
            index,
            number=index.number + 1,
            branches={**index.branches, "v1": older},
            commits={**index.commits, **document.commits},
            builds={**index.builds, **document.builds},
            older=(),
        )
        heads = {older, index.branches["v2"], index.branches["v3"]}
        tree.write(
            msgspec.structs.replace(
                moved,
                commits={commit: entry for commit, entry in moved.commits.items() if commit in heads},
                older=(index.branches["v1"],),
            )
        )

    store = Interrupted(tree.root, move_back)
    result = prune_mirror(store, plan_mirror_prune(store, ["acme/relu"]))
    assert (result.commits, result.archives, result.problems) == ((), (), ())
    assert store.deleted == []
    assert verify_mirror(FolderStore(tree.root), ["acme/relu"]).problems == ()


def test_documents_go_before_archives(tree: MirrorTree) -> None:
    store = Interrupted(tree.root, None)
    prune_mirror(store, plan_mirror_prune(store))
    kinds = [path.partition("/")[0] for path in store.deleted]
    assert kinds == sorted(kinds)
    assert set(kinds) == {"api", "archives"}


def test_a_document_that_a_writer_wrote_meanwhile_names_no_archive_that_was_removed(tree: MirrorTree) -> None:
    index = tree.indexes["acme/gelu"]
    older = index.older[0]
    document = MirrorDocument.parse((tree.root / commit_path("acme/gelu", older)).read_bytes(), "").repository(
        "acme/gelu", "", older
    )
    name = next(iter(document.builds.values())).archive.name

    class Named(FolderStore):
        def delete(self, path: str) -> None:
            if path == name:  # another writer's branch comes back to the commit, just now
                tree.write(
                    msgspec.structs.replace(
                        index,
                        number=index.number + 2,
                        branches={**index.branches, "v2": older},
                        commits={**index.commits, **document.commits},
                        builds={**index.builds, **document.builds},
                        older=(),
                    )
                )
            super().delete(path)

    store = Named(tree.root)
    result = prune_mirror(store, plan_mirror_prune(store))
    assert {each.path for each in result.problems} == {index_path("acme/gelu"), commit_path("acme/gelu", older)}
    problems = verify_mirror(store).problems
    assert not any(each.path.startswith("archives/") for each in problems)
    found = MirrorDocument.parse((tree.root / index_path("acme/gelu")).read_bytes(), "").repository("acme/gelu", "")
    assert (found.commits[older].variants, found.commits[older].absent) == ({}, ("torch-cpu",))


def test_a_break_loses_nothing(tree: MirrorTree) -> None:
    class Broken(FolderStore):
        def delete(self, path: str) -> None:
            raise StoreError("Cannot remove: the connection broke.")

    store = Broken(tree.root)
    with pytest.raises(StoreError):
        prune_mirror(store, plan_mirror_prune(store))
    assert verify_mirror(FolderStore(tree.root)).problems == ()
    for path in tree.root.rglob("*"):
        os.utime(path, (time.time() - 2 * DAY,) * 2)
    rest = plan_mirror_prune(FolderStore(tree.root))
    assert (len(rest.documents), len(rest.archives)) == (2, 2)
    prune_mirror(FolderStore(tree.root), rest)
    check(tree)
