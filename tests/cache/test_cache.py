"""The cache, looked at, cleared and checked: what is this project's, what frees what, and what is never touched."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hf_cache import complaints
from hub import TestHub
from opened_files import opened_below

from kernels import install_kernel
from kernels.cache.inventory import CachedCommit, freed_size, scan_cache
from kernels.cache.prune import plan_prune, prune
from kernels.cache.verify import verify_contents
from kernels.errors import StoreError
from kernels.models.lockfile import Lock, Pin
from kernels.models.requirement import Requirement
from kernels.support.lock import WorkLock, exclusively

BIG = "#" * 100_000


@pytest.fixture
def two_commits(hub: TestHub, new_process: Callable[[], None]) -> tuple[str, str]:
    """acme/relu at a commit that no branch names any more, and at the one that v1 names; big.py is in both."""
    hub.make_repo("acme/relu", variants={"torch-cpu": {"big.py": BIG}})
    install_kernel("acme/relu", version=1)
    first = hub.commit("acme/relu")
    new_process()
    hub.make_repo("acme/relu", variants={"torch-cpu": {"big.py": BIG}}, seed="second")
    install_kernel("acme/relu", version=1)
    return first, hub.commit("acme/relu")


def by_commit() -> dict[str, CachedCommit]:
    return {each.commit: each for each in scan_cache().commits}


def everything_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


# Looking


def test_a_commit_is_shown_with_its_branch_hub_builds_and_times(hub: TestHub, two_commits: tuple[str, str]) -> None:
    before = time.time()
    old, new = (by_commit()[commit] for commit in two_commits)
    assert (new.repo_id, new.branches, new.hubs) == ("acme/relu", ("v1",), (hub.url,))
    assert old.branches == ()
    [build] = new.builds
    assert (build.variant, build.complete) == ("torch-cpu", True)
    assert build.size == new.size > len(BIG)
    assert new.downloaded is not None
    assert new.used is not None
    assert abs(new.downloaded - before) < 300


def test_contents_that_two_commits_share_count_once_and_free_nothing(two_commits: tuple[str, str]) -> None:
    contents = scan_cache()
    old, new = (by_commit()[commit] for commit in two_commits)
    assert contents.size < old.size + new.size - len(BIG) + 1
    assert freed_size(contents, [old]) < len(BIG)
    assert freed_size(contents, [old, new]) == contents.size


def test_a_build_of_which_a_file_is_missing_is_partial(hub: TestHub, isolated_env: Path) -> None:
    hub.make_repo("acme/relu")
    path = install_kernel("acme/relu", version=1)
    (path / "layers.py").unlink()
    [commit] = scan_cache().commits
    assert [build.complete for build in commit.builds] == [False]


def test_of_a_cache_that_another_client_filled_it_is_said_what_cannot_be_known(
    hub: TestHub, isolated_env: Path
) -> None:
    from huggingface_hub import snapshot_download

    hub.make_repo("acme/relu")
    snapshot_download("acme/relu", repo_type="kernel", revision="v1", cache_dir=isolated_env, endpoint=hub.url)
    [commit] = scan_cache().commits
    assert (commit.branches, commit.refs, commit.hubs, commit.used) == ((), ("v1",), (), None)
    assert [build.complete for build in commit.builds] == [None]
    assert commit.downloaded is not None


def test_a_half_written_listing_counts_as_none(hub: TestHub, isolated_env: Path) -> None:
    hub.make_repo("acme/relu")
    install_kernel("acme/relu", version=1)
    commit = hub.commit("acme/relu")
    for path in isolated_env.glob("kernels--*/index/*"):
        path.write_bytes(path.read_bytes()[:-10])
    [found] = scan_cache().commits
    assert (found.commit, found.branches) == (commit, ())
    assert [build.complete for build in found.builds] == [None]
    assert all(each.ok and not each.listed for each in verify_contents(scan_cache()))


# What may go


def test_all_is_what_branches_name_too_and_never_what_a_lock_pins(two_commits: tuple[str, str]) -> None:
    old, new = two_commits
    assert {each.commit for each in plan_prune(scan_cache(), everything=True).remove} == {old, new}
    lock = Lock((Pin(Requirement("acme/relu", version=1), old),), where="gpu.lock")
    planned = plan_prune(scan_cache(), everything=True, locks=[lock])
    assert [each.commit for each in planned.remove] == [new]
    assert [each.reason for each in planned.kept] == ["pinned by gpu.lock"]


def test_a_time_and_repositories_narrow_it(two_commits: tuple[str, str]) -> None:
    assert plan_prune(scan_cache(), older_than=1).remove == ()
    assert len(plan_prune(scan_cache(), older_than=1, now=time.time() + 2 * 86400).remove) == 1
    assert plan_prune(scan_cache(), repos=["acme/gelu"], everything=True).remove == ()
    assert len(plan_prune(scan_cache(), repos=["acme/relu"], everything=True).remove) == 2


@pytest.mark.parametrize(("named", "days", "kept"), [(True, 31, 1), (False, 29, 1), (False, 31, 0)])
def test_branches_of_an_address_that_is_not_used_any_more_keep_a_commit_for_a_month(
    two_commits: tuple[str, str], monkeypatch: pytest.MonkeyPatch, named: bool, days: int, kept: int
) -> None:
    if not named:
        monkeypatch.setenv("KERNELS_HUB", "https://other.example")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + days * 86400)
    assert len(plan_prune(scan_cache()).kept) == kept


def test_where_no_branch_is_known_only_all_takes_it(hub: TestHub, isolated_env: Path) -> None:
    from huggingface_hub import snapshot_download

    hub.make_repo("acme/relu")
    commit = hub.commit("acme/relu")  # asked for by commit: no branch is recorded
    snapshot_download("acme/relu", repo_type="kernel", revision=commit, cache_dir=isolated_env, endpoint=hub.url)
    planned = plan_prune(scan_cache())
    assert planned.remove == ()
    assert [each.reason for each in planned.kept] == ["no branch of it is recorded"]
    assert [each.commit for each in plan_prune(scan_cache(), everything=True).remove] == [commit]


# Removal


def test_what_is_removed_frees_what_was_said_and_the_rest_loads(
    hub: TestHub, two_commits: tuple[str, str], new_process: Callable[[], None], isolated_env: Path
) -> None:
    planned = plan_prune(scan_cache())
    done = prune(planned)
    assert done.freed == planned.frees > 0
    assert [each.commit for each in done.removed] == [two_commits[0]]
    assert list(by_commit()) == [two_commits[1]]
    assert not list((isolated_env / "kernels--acme--relu" / "index").glob(f"{two_commits[0]}*"))
    assert next(iter(verify_contents(scan_cache()))).ok
    new_process()
    hub.clear()
    install_kernel("acme/relu", version=1)
    assert hub.count("/resolve/") == 0


def test_a_repository_that_is_removed_whole_leaves_no_folder(
    hub: TestHub, two_commits: tuple[str, str], isolated_env: Path
) -> None:
    hub.make_repo("acme/gelu")
    install_kernel("acme/gelu", version=1)
    prune(plan_prune(scan_cache(), everything=True, repos=["acme/relu"]))
    assert not (isolated_env / "kernels--acme--relu").exists()
    assert [each.repo_id for each in scan_cache().commits] == ["acme/gelu"]
    assert complaints(isolated_env) == []
    assert install_kernel("acme/relu", version=1).is_dir()


def test_what_other_tools_put_there_stays(hub: TestHub, isolated_env: Path, new_process: Callable[[], None]) -> None:
    from huggingface_hub import snapshot_download

    hub.make_repo("acme/relu")
    snapshot_download("acme/relu", repo_type="kernel", cache_dir=isolated_env, endpoint=hub.url, revision="v1")
    model = isolated_env / "models--acme--llm"
    for path in ("refs/main", f"snapshots/{'a' * 40}/weights.bin", f"snapshots/{'a' * 40}/build/torch-cpu/x.py"):
        (model / path).parent.mkdir(parents=True, exist_ok=True)
        (model / path).write_text("a" * 40)
    before = everything_below(isolated_env)
    contents = scan_cache()
    assert {each.repo_id for each in contents.commits} == {"acme/relu"}
    # Recorded under refs/ by another tool: its own.
    planned = plan_prune(contents, everything=True)
    assert planned.remove == ()
    assert {each.reason for each in planned.kept} == {"recorded by another tool: v1"}
    prune(planned)
    assert {path for path in before - everything_below(isolated_env) if ".locks" not in path} == set()
    assert complaints(isolated_env) == []


@pytest.mark.parametrize("what", ["snapshot", "folder", "file", "blob", "blobs", "snapshots", "index", "repository"])
def test_no_link_is_followed_out_of_the_cache(hub: TestHub, isolated_env: Path, tmp_path: Path, what: str) -> None:
    hub.make_repo("acme/relu")
    build = install_kernel("acme/relu", version=1)
    repository = isolated_env / "kernels--acme--relu"
    outside = tmp_path / "outside"
    places = {
        "snapshot": build.parent.parent,
        "folder": build,
        "file": build / "layers.py",
        "blob": (build / "layers.py").resolve(),
        "blobs": repository / "blobs",
        "snapshots": repository / "snapshots",
        "index": repository / "index",
        "repository": repository,
    }
    if what == "file":
        outside.write_bytes(b"#" * 30)
        places[what].unlink()
    else:
        places[what].rename(outside)
    places[what].symlink_to(outside)
    before = everything_below(outside) if outside.is_dir() else {outside.read_bytes()}
    for each in verify_contents(scan_cache(), repair=True):
        assert each.commit.repo_id == "acme/relu"
    prune(plan_prune(scan_cache(), everything=True))
    assert outside.exists()
    assert (everything_below(outside) if outside.is_dir() else {outside.read_bytes()}) == before


def test_what_another_process_downloads_is_left_alone(hub: TestHub, two_commits: tuple[str, str]) -> None:
    store = next(iter(scan_cache().commits)).store
    held = threading.Event()
    done = threading.Event()

    def download() -> None:
        with exclusively(store.lock(f"{two_commits[0]}-torch-cpu")):
            held.set()
            done.wait(60)

    thread = threading.Thread(target=download)
    thread.start()
    try:
        assert held.wait(60)
        result = prune(plan_prune(scan_cache()))
    finally:
        done.set()
        thread.join()
    assert result.removed == ()
    assert [each.commit for each in result.skipped] == [two_commits[0]]
    assert set(by_commit()) == set(two_commits)


def test_leftovers_of_killed_processes_and_idle_locks_go(hub: TestHub, isolated_env: Path) -> None:
    hub.make_repo("acme/relu")
    install_kernel("acme/relu", version=1)
    blobs = isolated_env / "kernels--acme--relu" / "blobs"
    stale, young, of_a_model = blobs / "ab.incomplete", blobs / "cd.incomplete", isolated_env / "models--acme--llm"
    (of_a_model / "blobs").mkdir(parents=True)
    (of_a_model / "blobs" / f"{'a' * 64}.incomplete").write_bytes(b"half")
    for path in (stale, young):
        path.write_bytes(b"half")
    locks = isolated_env / ".locks" / "kernels--acme--relu"
    with exclusively(WorkLock(locks / "held.lock")):
        long_ago = time.time() - 3 * 86400
        for path in (stale, of_a_model / "blobs" / f"{'a' * 64}.incomplete", *locks.glob("*.lock")):
            os.utime(path, (long_ago, long_ago))
        planned = plan_prune(scan_cache())
        assert stale in planned.leftovers
        assert young not in planned.leftovers
        prune(planned)
        assert [path.name for path in locks.glob("*.lock")] == ["held.lock"]
    assert not stale.exists()
    assert young.exists()
    assert (of_a_model / "blobs" / f"{'a' * 64}.incomplete").exists()


def test_a_cache_that_cannot_be_written_is_an_error_that_says_so(
    two_commits: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(StoreError, match="Permission denied"):
        prune(plan_prune(scan_cache()))
    assert set(by_commit()) == set(two_commits)


# Checking


def test_a_large_file_is_read_once_for_its_listing_and_its_digest(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": {"_relu.abi3.so": b"x" * 2**18}}, digest=True)
    folder = install_kernel("acme/relu", version=1)
    with opened_below(folder) as opened:
        assert all(each.ok for each in verify_contents(scan_cache()))
    assert opened.count("_relu.abi3.so") == 1


def test_a_file_that_no_hub_listed_is_found_and_removed(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    folder = install_kernel("acme/relu", version=1)
    (folder / "more.py").write_text("")
    [found] = verify_contents(scan_cache(), repair=True)
    assert found.unlisted == ("build/torch-cpu/more.py",)
    assert not (folder / "more.py").exists()
    assert [each.ok for each in verify_contents(scan_cache())] == [True]


def test_a_digest_that_a_publisher_got_wrong_is_said(hub: TestHub) -> None:
    digest = {"algorithm": "sha256", "files": {"__init__.py": "A" * 43 + "="}}
    hub.make_repo("acme/relu", metadata={"digest": digest})
    install_kernel("acme/relu", version=1, verify="off")
    [found] = verify_contents(scan_cache())
    assert "digest" in found.digest[0]


def test_without_a_listing_files_are_held_against_their_own_names(hub: TestHub, isolated_env: Path) -> None:
    from huggingface_hub import snapshot_download

    hub.make_repo("acme/relu")
    folder = Path(
        snapshot_download("acme/relu", repo_type="kernel", revision="v1", cache_dir=isolated_env, endpoint=hub.url)
    )
    [found] = verify_contents(scan_cache())
    assert (found.ok, found.listed) == (True, False)
    path = (folder / "build" / "torch-cpu" / "layers.py").resolve()
    path.write_bytes(b"#" + path.read_bytes()[1:])
    [found] = verify_contents(scan_cache())
    assert found.changed == ("build/torch-cpu/layers.py",)


def test_a_store_is_told_by_its_folder(tmp_path: Path) -> None:
    for name in ("kernels--a--b--c", "kernels--a", "datasets--a--b", "kernels--..--b", "other"):
        (tmp_path / name / "snapshots" / ("c" * 40)).mkdir(parents=True)
    assert scan_cache(tmp_path).commits == ()
    assert scan_cache(tmp_path / "none").commits == ()
