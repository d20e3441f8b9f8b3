"""What a mirror or Hub does not have, refuses, or answers with something else: each is said as what it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub import TestHub
from logged import warned
from mirror_tree import MirrorTree, StaticServer
from typer.testing import CliRunner

from kernels import get_kernel, install_kernel
from kernels.cli import app
from kernels.errors import (
    ArchiveDamaged,
    HubUnavailable,
    InvalidRepository,
    NotInCache,
    PinnedCommitGone,
    PublisherUnknown,
    RepositoryNotFound,
    RevisionNotFound,
    UntrustedPublisher,
)
from kernels.models.lockfile import LOCK_FILE
from kernels.models.requirement import Requirement
from kernels.operations.open_sources import open_sources
from kernels.trust.content import BuildContent

GONE = "1" * 40
PAGE = b"<!doctype html><html><body>Welcome to nginx!</body></html>"


@pytest.fixture
def tree(tmp_path: Path) -> MirrorTree:
    tree = MirrorTree(tmp_path / "mirror")
    tree.add()
    return tree


@pytest.fixture
def server(tree: MirrorTree, isolated_env: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StaticServer]:
    """A plain web server over the mirror, that `KERNELS_HUB` names."""
    with StaticServer(tree.root) as running:
        monkeypatch.setenv("KERNELS_HUB", running.url)
        yield running


@pytest.fixture(params=["web", "folder"])
def address(request: pytest.FixtureRequest, server: StaticServer, tree: MirrorTree) -> str:
    """The mirror on a web server, or as a folder."""
    return server.url if request.param == "web" else str(tree.root)


def run(*arguments: str) -> str:
    """What a command that fails says."""
    result = CliRunner().invoke(app, list(arguments), prog_name="kernels")
    assert result.exit_code != 0, result.output
    return " ".join(result.output.split())


# Commits and repositories


def test_a_commit_that_a_mirror_lacks_is_a_missing_revision_with_a_command_that_adds_it(
    address: str, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    monkeypatch.setenv("KERNELS_HUB", address)
    advice = rf"has no commit {GONE} of acme/relu\. Add it with `kernels mirror … --repo acme/relu --revision {GONE}`"
    with pytest.raises(RevisionNotFound, match=advice):
        get_kernel("acme/relu", revision=GONE)
    for command in ("explain", "verify", "download"):
        new_process()
        assert f"has no commit {GONE}" in run(command, "acme/relu", "--revision", GONE)


def test_a_commit_of_a_repository_that_a_mirror_lacks_is_a_missing_repository(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_HUB", address)
    with pytest.raises(RepositoryNotFound, match="has no repository acme/nosuch"):
        get_kernel("acme/nosuch", revision=GONE)


def test_a_pinned_commit_that_a_mirror_lacks_is_gone(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    monkeypatch.setenv("KERNELS_HUB", address)
    project = tmp_path / "project"
    project.mkdir()
    lock = project / LOCK_FILE
    (project / "pyproject.toml").write_text('[tool.kernels.dependencies]\n"acme/relu" = 1\n')
    assert CliRunner().invoke(app, ["lock", str(project)], prog_name="kernels").exit_code == 0
    [commit] = {each for each in lock.read_text().split('"') if len(each) == 40}
    lock.write_text(lock.read_text().replace(commit, GONE))
    monkeypatch.setenv("KERNELS_LOCKFILE", str(lock))
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "another cache"))
    new_process()
    with pytest.raises(PinnedCommitGone, match=f"has no commit {GONE}.*pins acme/relu to commit 111111111111"):
        get_kernel("acme/relu", version=1)
    for command in (("verify", "--lockfile", str(lock)), ("download", str(project)), ("explain", "acme/relu")):
        new_process()
        assert f"has no commit {GONE}" in run(*command)


# Refused access


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("revision", [None, GONE])
def test_a_refusal_is_said_and_no_other_address_takes_its_place(
    server: StaticServer, hub: TestHub, monkeypatch: pytest.MonkeyPatch, status: int, revision: str | None
) -> None:
    hub.make_repo("acme/relu")
    monkeypatch.setenv("KERNELS_HUB", f"{server.url},{hub.url}")
    server.answer("", status)
    requested = {"version": 1} if revision is None else {"revision": revision}
    with pytest.raises(HubUnavailable, match=rf"{server.url} answered {status} about .*KERNELS_HUB_TOKEN") as refused:
        get_kernel("acme/relu", **requested)  # type: ignore[arg-type]
    assert not isinstance(refused.value, UntrustedPublisher)
    assert hub.asked() == []
    assert f"answered {status}" in run("versions", "acme/relu")


def test_a_refused_archive_is_not_taken_from_another_address(
    server: StaticServer, hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu")
    monkeypatch.setenv("KERNELS_HUB", f"{server.url},{hub.url}")
    server.answer("archives/", 403)
    with pytest.raises(HubUnavailable, match="answered 403 about archives/"):
        install_kernel("acme/relu", version=1)
    assert hub.asked() == []


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Error-Code": "RepoNotFound"},
        {"X-Error-Message": "Invalid username or password."},  # the public Hub, without a token
    ],
)
def test_a_hub_that_says_401_of_a_missing_repository_leads_to_the_next_address(
    hub: TestHub, address: str, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    hub.fail("/refs", status=401, headers=headers)
    monkeypatch.setenv("KERNELS_HUB", hub.url)
    with pytest.raises(RepositoryNotFound, match="has no repository acme/relu"):
        get_kernel("acme/relu", version=1)
    monkeypatch.setenv("KERNELS_HUB", f"{hub.url},{address}")
    assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_is_no_missing_revision(hub: TestHub, status: int) -> None:
    hub.make_repo("acme/relu")
    hub.fail("/revision/", status=status)
    with pytest.raises(HubUnavailable, match=f"answered {status} about refs/pr/1 of acme/relu"):
        get_kernel("acme/relu", revision="refs/pr/1", trust_remote_code=True)


def test_what_cannot_be_reached_is_no_unknown_publisher(isolated_env: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB", "http://127.0.0.1:1")
    with pytest.raises(HubUnavailable, match=r"^http://127\.0\.0\.1:1 did not answer .*refused") as away:
        get_kernel("acme/relu", version=1)
    assert not isinstance(away.value, (UntrustedPublisher, PublisherUnknown))
    assert isinstance(away.value, ValueError)  # as of the existing client


# Something else in the place of an answer


@pytest.mark.parametrize("known", [True, False])
def test_a_page_in_the_place_of_a_document_is_asked_for_twice_and_named(
    server: StaticServer, new_process: Callable[[], None], known: bool
) -> None:
    if known:
        get_kernel("acme/relu", version=1)
        new_process()
    server.clear()
    server.answer("", 200, PAGE)
    with pytest.raises(HubUnavailable, match="answered with a web page that is not the JSON of a Hub or a mirror"):
        get_kernel("acme/other" if not known else "acme/gelu", version=1)
    assert len(server.requests) == 2
    if known:
        new_process()
        with warned("answered with a web page"):
            assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"
        assert len(server.requests) == 4


@pytest.mark.parametrize("known", [True, False])
def test_a_document_that_is_cut_short_names_the_command_that_finds_it(
    server: StaticServer, tree: MirrorTree, new_process: Callable[[], None], known: bool
) -> None:
    if known:
        tree.add("acme/gelu")
        get_kernel("acme/gelu", version=1)
    server.clear()
    index = tree.root / "api/kernels/acme/relu/refs"
    index.write_bytes(index.read_bytes()[:500])
    with pytest.raises(HubUnavailable, match=r"document that is cut short \(`kernels mirror MIRROR --verify`"):
        get_kernel("acme/relu", version=1)
    assert len(server.requests) == 2


def test_a_document_that_is_cut_short_in_a_folder_is_an_invalid_repository(
    tree: MirrorTree, isolated_env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tree.root / "api/kernels/acme/relu/refs"
    index.write_bytes(index.read_bytes()[:500])
    monkeypatch.setenv("KERNELS_HUB", str(tree.root))
    with pytest.raises(InvalidRepository, match="not a valid document of a mirror: Input data was truncated") as found:
        get_kernel("acme/relu", version=1)
    assert type(found.value) is InvalidRepository


@pytest.mark.parametrize("change", ["cut", "damaged"])
def test_an_archive_that_is_not_as_listed_names_the_commands_that_repair_it(
    address: str, tree: MirrorTree, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setenv("KERNELS_HUB", address)
    [archive] = (tree.root / "archives").rglob("*.zst")
    content = archive.read_bytes()
    archive.write_bytes(content[:100] if change == "cut" else bytes(len(content)))
    error = HubUnavailable if change == "cut" else ArchiveDamaged
    with pytest.raises(error, match=r"`kernels mirror MIRROR --verify` finds damaged files, `--repair` replaces"):
        install_kernel("acme/relu", version=1)


def test_a_redirect_of_documents_to_another_host_is_said(server: StaticServer, tree: MirrorTree) -> None:
    with StaticServer(tree.root) as other:
        for path in ("refs", "mirror.json"):
            server.answer(path, 302, headers={"Location": f"{other.url}/api/kernels/acme/relu/refs"})
        with pytest.raises(HubUnavailable) as refused:
            get_kernel("acme/relu", version=1)
        assert f"redirected the request about acme/relu to another host, '{other.url}'; only the" in str(refused.value)
        assert "310" not in str(refused.value)
        assert other.requests == []


def test_a_redirect_to_a_login_page_is_said_without_its_query(server: StaticServer) -> None:
    server.answer("", 302, headers={"Location": "/login?back=secret"})
    with pytest.raises(
        HubUnavailable, match=rf"redirected .* about acme/relu to '{server.url}/login', which"
    ) as refused:
        get_kernel("acme/relu", version=1)
    assert "secret" not in str(refused.value)


# Requests that are not needed


def test_a_hub_where_a_mirror_was_takes_one_request_more(server: StaticServer, new_process: Callable[[], None]) -> None:
    get_kernel("acme/relu", version=1)
    new_process()
    server.clear()
    server.answer("/refs", 200, b'{"branches": [], "tags": []}')
    with pytest.raises(RevisionNotFound):
        get_kernel("acme/relu", version=1)
    assert [each.path for each in server.requests if "/acme/relu/" in each.path] == ["/api/kernels/acme/relu/refs"] * 2


def test_after_a_pinned_commit_failed_one_attempt_per_call_is_made_for_thirty_seconds(
    isolated_env: Path, monkeypatch: pytest.MonkeyPatch, brief_waits: list[float]
) -> None:
    monkeypatch.setenv("KERNELS_HUB", "http://127.0.0.1:1")
    waits = []
    for name in ("acme/one", "acme/two"):
        brief_waits.clear()
        with pytest.raises(HubUnavailable):
            get_kernel(name, revision=GONE, trust_remote_code=True)
        waits.append(len(brief_waits))
    assert waits == [3, 0]


def test_a_mirror_is_not_asked_for_files_that_another_process_has_repaired(
    server: StaticServer, new_process: Callable[[], None]
) -> None:
    folder = install_kernel("acme/relu", version=1)
    blob = (folder / "layers.py").resolve()
    content = blob.read_bytes()
    new_process()
    [source] = open_sources().all_of("acme/relu")
    snapshot = source.snapshot(Requirement("acme/relu", version=1), folder.parent.parent.name)
    blob.write_bytes(b"#" * len(content))
    server.clear()
    server.answer("", 503)
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:  # it holds the build's lock, and repairs the file
        from kernels.cache.store import RepoStore
        from kernels.support.lock import exclusively

        store = RepoStore(folder.parents[4], "acme/relu")
        with exclusively(store.lock(f"{snapshot.commit}-torch-cpu")):
            os.write(writer, b"1")
            __import__("time").sleep(0.3)
            blob.write_bytes(content)
        os._exit(0)
    os.read(reader, 1)
    source.repair(snapshot, "torch-cpu", BuildContent(folder))
    os.waitpid(process, 0)
    assert server.requests == []


def test_no_request_is_sent_where_only_local_files_are_asked_for(server: StaticServer) -> None:
    from kernels.sources.http import Http, Patience
    from kernels.sources.hub_responses import REFS

    client = Http(server.url, list, offline=True)
    with pytest.raises(NotInCache, match="local_files_only"):
        client.json("/api/kernels/acme/relu/refs", Patience(), REFS)
    assert server.requests == []
