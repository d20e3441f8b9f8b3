"""A mirror is written from a Hub: what is in it, what a second run costs, and what it never loses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub import TestHub

from kernels.mirror.archive import unpack
from kernels.mirror.stores.folder import FolderStore
from kernels.models.mirror import MirrorDocument, RepositoryIndex, commit_path, index_path
from kernels.operations.mirroring.request import MirrorRequest, MirrorResult, MirrorVersions
from kernels.operations.mirroring.run import mirror


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "mirror"


def run(place: Path, *repositories: str, **options: object) -> MirrorResult:
    return mirror(MirrorRequest(str(place), repositories=repositories, **options))  # type: ignore[arg-type]


def index(place: Path, repo_id: str, commit: str | None = None) -> RepositoryIndex:
    path = index_path(repo_id) if commit is None else commit_path(repo_id, commit)
    return MirrorDocument.parse((place / path).read_bytes(), path).repository(repo_id, path, commit)


def state(place: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(place)): (path.stat().st_mtime_ns, path.stat().st_ino)
        for path in place.rglob("*")
        if path.is_file()
    }


def test_the_mirror_has_every_build_as_it_was_published(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"], files={"README.md": "# Relu\n"}, digest=True)
    result = run(place, "acme/relu")
    assert (result.failures, [each.variant for each in result.builds]) == ((), ["torch-cpu", "torch-cuda"])
    found = index(place, "acme/relu")
    commit = hub.commit()
    assert (found.branches, list(found.commits), found.older) == ({"v1": commit}, [commit], ())
    assert (found.origin.url, found.publisher.name, found.publisher.trusted) == (hub.url, "acme", True)
    assert found.commits[commit].texts == {"README.md": "# Relu\n"}
    assert index(place, "acme/relu", commit).builds == found.builds
    for variant in ("torch-cpu", "torch-cuda"):
        build = found.build(commit, variant)
        assert build is not None
        folder = hub.root / "acme" / "relu" / "v1" / "build" / variant
        assert build.metadata == (folder / "metadata.json").read_text()
        unpack([(place / build.archive.name).read_bytes()], build, None, "the archive")
    top = MirrorDocument.parse((place / "mirror.json").read_bytes(), "mirror.json").mirror("mirror.json")
    assert {name: each.versions for name, each in top.repositories.items()} == {"acme/relu": (1,)}
    assert FolderStore(place).size("mirror.json") is not None


def test_a_second_run_asks_for_the_branches_alone_and_writes_nothing(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/gelu")
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"], depends=[("acme/gelu", 1)])
    run(place, "acme/relu")
    before = state(place)
    hub.clear()
    result = run(place, "acme/relu")
    assert state(place) == before
    assert [each for each in hub.asked() if "/organizations/" not in each] == [
        "GET /api/kernels/acme/relu/refs",
        "GET /api/kernels/acme/gelu/refs",
    ]
    assert [(each.repo_id, each.new) for each in result.builds] == [
        ("acme/gelu", False),
        ("acme/relu", False),
        ("acme/relu", False),
    ]


def test_a_new_commit_sends_only_the_builds_that_changed(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"])
    run(place, "acme/relu")
    old = hub.commit()
    hub.make_repo("acme/relu", variants={"torch-cpu": {"extra.py": "changed = True\n"}})
    new = hub.commit()
    hub.clear()
    result = run(place, "acme/relu")
    assert [(each.variant, each.new) for each in result.builds] == [("torch-cpu", True), ("torch-cuda", False)]
    assert hub.count("torch-cuda/__init__.py") == 0
    found = index(place, "acme/relu")
    assert (found.branches, found.older, found.number) == ({"v1": new}, (old,), 2)
    assert len(list((place / "archives").rglob("*.zst"))) == 3
    assert set(index(place, "acme/relu", old).commits) == {old}


@pytest.mark.parametrize(
    ("versions", "branches"),
    [("all", ["v1", "v2", "v3"]), ("newest:2", ["v2", "v3"]), ("1,3", ["v1", "v3"])],
)
def test_versions_are_chosen(hub: TestHub, place: Path, versions: str, branches: list[str]) -> None:
    for version in (1, 2, 3):
        hub.make_repo("acme/relu", version=version)
    result = run(place, "acme/relu", versions=MirrorVersions.parse(versions))
    assert result.failures == ()
    assert list(index(place, "acme/relu").branches) == branches
