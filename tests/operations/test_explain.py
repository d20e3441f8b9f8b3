"""What a repository offers, asked for from Python."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hub import TestHub, make_repo
from logged import logged, warned

from kernels.errors import HubUnavailable, NotInCache, RepositoryNotFound, RequestError
from kernels.operations.explain import is_path, repository_info, repository_versions


@pytest.mark.parametrize("repo_id", ["relu", "a/b/c", "acme/..", ""])
def test_a_name_that_is_no_repositorys_is_refused(repo_id: str) -> None:
    with pytest.raises(RequestError, match="expected 'org/name'"):
        repository_versions(repo_id)


@pytest.mark.parametrize("kernel", ["relu", "a/b/c", "", "x" * 5000, "a" * 300 + "/b"])
def test_a_kernel_is_a_repository_or_a_path(kernel: str) -> None:
    with pytest.raises(RequestError, match="expected 'org/name'"):
        repository_info(kernel)


def test_a_repository_that_no_source_has_is_not_found(hub: TestHub) -> None:
    with pytest.raises(RepositoryNotFound, match="acme/absent"):
        repository_versions("acme/absent")


def test_a_folder_whose_name_reads_like_a_repository_is_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_repo(tmp_path, "acme/relu").rename(tmp_path / "moved")
    (tmp_path / "acme" / "relu").rmdir()
    (tmp_path / "moved").rename(tmp_path / "acme" / "relu")
    monkeypatch.chdir(tmp_path)
    assert repository_info("acme/relu").source.user_owned


def test_a_path_in_the_home_of_nobody_is_refused() -> None:
    with pytest.raises(RequestError, match="`kernel` is '~no-such-user/x'"):
        repository_info("~no-such-user/x")


@pytest.mark.parametrize("kernel", [".", "./relu", "../relu", "/relu", "~/relu", Path("relu"), os.sep])
def test_a_dot_or_a_slash_at_the_start_makes_a_path(kernel: str | Path) -> None:
    assert is_path(kernel)


def test_every_build_is_described_though_none_fits(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants=["torch-xpu", "torch-metal"])
    info = repository_info("acme/relu", version=1)
    assert info.best is None
    assert {each.variant.name: each.verdict for each in info.resolution.decisions} == {
        "torch-metal": "rejected",
        "torch-xpu": "rejected",
    }
    assert {each.backend.type for each in info.metadata.values()} == {"metal", "xpu"}


def test_older_versions_are_listed_without_a_warning(hub: TestHub) -> None:
    for version in (1, 2, 10):
        hub.make_repo("acme/relu", version=version)
    with logged() as records:
        assert [info.version for info in repository_versions("acme/relu")] == [10, 2, 1]
    assert not records


def test_with_the_hub_away_what_was_seen_is_still_told(hub: TestHub, new_process: object) -> None:
    hub.make_repo("acme/relu")
    before = repository_versions("acme/relu")
    hub.down()
    assert callable(new_process)
    new_process()
    with warned("acme/relu"):
        after = repository_versions("acme/relu")
    assert [(info.version, info.commit, info.builds) for info in after] == [
        (info.version, info.commit, info.builds) for info in before
    ]


def test_offline_and_never_seen_says_so(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises((NotInCache, HubUnavailable), match="acme/relu"):
        repository_info("acme/relu", version=1)
