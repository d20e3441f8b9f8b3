"""What a command fetched without asking for trust is not trusted later: not offline, nor with a Hub that is silent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hub import TestHub
from logged import logged

from kernels import get_kernel, get_kernel_variants, install_kernel
from kernels.authoring.check.repository import audit_repository
from kernels.cache import records as repo_records
from kernels.errors import KernelsError, NotInCache, StoreError, UntrustedPublisher
from kernels.models.project import KernelProject
from kernels.operations.explain import repository_info
from kernels.operations.lock import lock_project
from kernels.operations.verify import verify_repository

REPO = "mallory/relu"

#: What fetches builds, or parts of them, and runs none of their code.
FETCHING: dict[str, Callable[[], object]] = {
    "verify": lambda: verify_repository(REPO, version=1),
    "verify --all-variants": lambda: verify_repository(REPO, version=1, all_variants=True),
    "check --static": lambda: audit_repository(REPO, version=1, dynamic=False),
    "explain": lambda: get_kernel_variants(REPO, version=1),
}

#: How the Hub is silent about the publisher afterwards.
SILENCE: dict[str, Callable[[TestHub, pytest.MonkeyPatch], object]] = {
    "offline": lambda hub, patch: patch.setenv("HF_HUB_OFFLINE", "1"),
    "503 about the publisher": lambda hub, patch: hub.fail("/overview"),
    "403 about the publisher": lambda hub, patch: hub.fail("/overview", status=403),
    "no JSON about the publisher": lambda hub, patch: hub.fail("/overview", status=200, body=b"<html>"),
    "silence about the publisher": lambda hub, patch: hub.disconnect("/overview"),
    "503 about everything": lambda hub, patch: hub.fail(""),
    "no Hub": lambda hub, patch: hub.down(),
}


@pytest.fixture
def untrusted(hub: TestHub) -> TestHub:
    hub.make_repo(REPO, variants={"torch-cpu": {"__init__.py": "raise SystemExit('it ran')"}})
    return hub


@pytest.mark.parametrize("silence", SILENCE)
@pytest.mark.parametrize("fetch", FETCHING)
def test_what_was_fetched_without_asking_for_trust_is_not_loaded_later(
    untrusted: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch, fetch: str, silence: str
) -> None:
    FETCHING[fetch]()
    new_process()
    SILENCE[silence](untrusted, monkeypatch)
    for _ in range(2):  # the second time with what the first one learned
        with pytest.raises((UntrustedPublisher, NotInCache)) as raised:
            get_kernel(REPO, version=1)
        assert "mallory/relu" in str(raised.value)
        with pytest.raises((UntrustedPublisher, NotInCache)):
            install_kernel(REPO, revision=untrusted.catalog.commit(REPO).id)


@pytest.mark.parametrize("why", ["a word of it is the token", "it is too large", "the record is gone"])
def test_a_listing_that_is_not_kept_admits_nobody(
    untrusted: TestHub,
    new_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    isolated_env: Path,
    why: str,
) -> None:
    if why.startswith("a word"):
        monkeypatch.setenv("KERNELS_HUB_TOKEN", "layers")
    elif why.startswith("it is"):
        monkeypatch.setattr(repo_records, "write_record", lambda path, record: None)
    verify_repository(REPO, version=1)
    for path in isolated_env.glob("kernels--*/index/*.json") if why.endswith("gone") else ():
        path.unlink()
    new_process()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises((UntrustedPublisher, NotInCache)):
        get_kernel(REPO, version=1)
    with pytest.raises(UntrustedPublisher):
        get_kernel(REPO, revision=untrusted.catalog.commit(REPO).id)


@pytest.mark.parametrize("mode", [0o664, 0o666, 0o644, 0o600])
def test_a_cache_whose_permissions_were_widened_admits_nobody(
    untrusted: TestHub,
    new_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    isolated_env: Path,
    mode: int,
) -> None:
    verify_repository(REPO, version=1)
    for path in isolated_env.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)
    new_process()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises((UntrustedPublisher, NotInCache)):
        get_kernel(REPO, version=1)
    with pytest.raises(UntrustedPublisher):
        get_kernel(REPO, revision=untrusted.catalog.commit(REPO).id)


def test_nothing_is_fetched_where_that_cannot_be_marked(untrusted: TestHub, isolated_env: Path) -> None:
    (isolated_env / "kernels--mallory--relu").mkdir(parents=True)
    (isolated_env / "kernels--mallory--relu" / "index").write_text("no folder")
    with pytest.raises(StoreError):
        verify_repository(REPO, version=1)
    assert not list(isolated_env.glob("kernels--*/snapshots/*/build/*/*.py"))


def test_a_cache_of_one_hub_admits_nobody_at_another(
    untrusted: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    FETCHING["verify"]()
    new_process()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("KERNELS_HUB", "http://127.0.0.1:1")
    with pytest.raises(UntrustedPublisher):
        get_kernel(REPO, revision=untrusted.catalog.commit(REPO).id)


def test_what_was_allowed_to_be_locked_is_not_allowed_to_be_loaded(
    untrusted: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.kernels.dependencies]\n"{REPO}" = 1\n')
    lock_project(KernelProject.read(tmp_path), trust_remote_code=True)
    FETCHING["verify"]()
    new_process()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UntrustedPublisher):
        get_kernel(REPO, version=1)


@pytest.mark.parametrize("silence", ["offline", "503 about everything", "no Hub"])
def test_what_a_caller_allowed_once_is_loaded_with_one_warning(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch, silence: str
) -> None:
    hub.make_repo(REPO)
    get_kernel(REPO, version=1, trust_remote_code=[REPO])
    new_process()
    SILENCE[silence](hub, monkeypatch)
    with logged() as caught:
        assert get_kernel(REPO, version=1).repo_id == REPO
    assert len([each for each in caught if "Hub's word" in each.getMessage()]) == 1


def test_allowing_one_commit_allows_no_other(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo(REPO)
    get_kernel(REPO, version=1, trust_remote_code=True)
    hub.make_repo(REPO, version=2, seed="worse")
    new_process()
    verify_repository(REPO, version=2)
    new_process()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UntrustedPublisher):
        get_kernel(REPO, version=2)


def test_a_dependency_is_admitted_on_its_own(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/gelu", depends=[(REPO, 1)])
    hub.make_repo(REPO)
    verify_repository(REPO, version=1)
    with pytest.raises(UntrustedPublisher, match=REPO):
        get_kernel("acme/gelu", version=1)
    verify_repository("acme/gelu", version=1)
    new_process()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UntrustedPublisher, match=REPO):
        get_kernel("acme/gelu", version=1)


@pytest.mark.parametrize("silence", [each for each in SILENCE if each.endswith("the publisher")])
def test_a_cache_that_another_client_filled_is_no_verdict_while_the_hub_answers(
    hub: TestHub,
    isolated_env: Path,
    monkeypatch: pytest.MonkeyPatch,
    silence: str,
) -> None:
    from huggingface_hub import snapshot_download

    hub.make_repo(REPO)
    snapshot_download(REPO, repo_type="kernel", revision="v1", cache_dir=isolated_env, endpoint=hub.url)
    SILENCE[silence](hub, monkeypatch)
    for _ in range(2):
        with pytest.raises(UntrustedPublisher, match="could not be asked"):
            get_kernel(REPO, version=1)


def test_a_hub_that_stops_answering_once_it_answered_gains_nothing(hub: TestHub, isolated_env: Path) -> None:
    from huggingface_hub import snapshot_download

    hub.make_repo(REPO)
    snapshot_download(REPO, repo_type="kernel", revision="v1", cache_dir=isolated_env, endpoint=hub.url)
    hub.fail("/overview")
    hub.fail("/tree/")
    for _ in range(3):
        with pytest.raises(KernelsError):
            get_kernel(REPO, version=1)


def test_information_about_a_repository_asks_for_no_trust(untrusted: TestHub) -> None:
    assert repository_info(REPO, version=1).snapshot.repo_id == REPO
    with logged() as records:
        assert get_kernel_variants(REPO, version=1)
    assert not records
