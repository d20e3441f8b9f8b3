"""An unmodified huggingface_hub writes to the embedded Hub: all of a change or nothing, and only with the token."""

from __future__ import annotations

import hashlib
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, RemoteEntryNotFoundError, RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile

from kernels.errors import RequestError, RevisionNotFound
from kernels.server import Catalog, HubServer, changes
from kernels.server.changes import RepositoryChange, Writer
from kernels.server.snapshot import File, blob_oid

REPO = "acme/relu"
TOKEN = "hf_secret"
LIBRARY = b"\x7fELF" * 500


@pytest.fixture
def server(tmp_path: Path, isolated_env: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    # huggingface_hub 1.x makes the same calls for kernels, once it no longer refuses their type.
    monkeypatch.setattr(constants, "REPO_TYPES", constants.REPO_TYPES_WITH_KERNEL)
    with HubServer(_folder(tmp_path / "hub"), token=TOKEN, writable=True) as server:
        yield server


@pytest.fixture
def api(server: HubServer) -> HfApi:
    return HfApi(endpoint=server.url, token=TOKEN)


@pytest.fixture
def repo(api: HfApi) -> str:
    api.create_repo(REPO, repo_type="kernel")
    api.create_branch(REPO, branch="v1", repo_type="kernel")
    return REPO


Ask = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """One Hub for all tests that leave the branch `v1` as it is."""
    with HubServer(_folder(tmp_path_factory.mktemp("shared") / "hub"), token=TOKEN, writable=True) as server:
        writer = Writer(server.catalog)
        writer.create_repository(REPO)
        writer.create_branch(REPO, "v1")
        writer.commit(REPO, "v1", RepositoryChange({"_x.so": LIBRARY}))
        yield server


@pytest.fixture
def ask(server: HubServer) -> Ask:
    return _asking(server)


@pytest.fixture(scope="module")
def ask_shared(shared: HubServer) -> Ask:
    return _asking(shared)


def _asking(server: HubServer) -> Ask:
    """A function that sends requests without a client; it returns the status and the JSON of the answer."""

    def ask(path: str, body: Any, *, token: str | None = TOKEN, method: str = "POST") -> tuple[int, dict[str, Any]]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        url = path if path.startswith("http") else f"{server.url}{path}"
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")

    return ask


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _add(path: str, content: bytes | Path) -> CommitOperationAdd:
    return CommitOperationAdd(path_in_repo=path, path_or_fileobj=content)


def _commit(api: HfApi, *operations: CommitOperationAdd | CommitOperationDelete, **options: Any) -> Any:
    options = {"revision": "v1", "repo_type": "kernel", "commit_message": "A build"} | options
    return api.create_commit(REPO, operations, **options)


def _ndjson(*operations: tuple[str, dict[str, Any]]) -> bytes:
    lines = [("header", {"summary": "x"}), *operations]
    return b"".join(json.dumps({"key": key, "value": value}).encode() + b"\n" for key, value in lines)


def _paths(api: HfApi, revision: str = "v1") -> list[str]:
    entries = api.list_repo_tree(REPO, recursive=True, repo_type="kernel", revision=revision)
    return [entry.path for entry in entries if isinstance(entry, RepoFile)]


def test_what_is_committed_is_served_and_lies_in_the_folder(
    api: HfApi, repo: str, server: HubServer, tmp_path: Path
) -> None:
    library = tmp_path / "_relu.abi3.so"
    library.write_bytes(LIBRARY)
    operations = [_add("build/torch-cpu/__init__.py", b"x = 1\n"), _add("build/torch-cpu/_relu.abi3.so", library)]
    operations.append(_add("README.md", b"---\nlicense: mit\n---\n"))
    info = _commit(api, *operations)
    assert info.oid == api.kernel_info(REPO, revision="v1").sha == server.catalog.commit(REPO, "v1").id
    branch = server.catalog.root / REPO / "v1"
    assert (branch / "build/torch-cpu/_relu.abi3.so").read_bytes() == LIBRARY
    entries = {
        each.path: each for each in api.list_repo_tree(REPO, "build/torch-cpu", repo_type="kernel", revision="v1")
    }
    entry = entries["build/torch-cpu/_relu.abi3.so"]
    assert isinstance(entry, RepoFile)
    assert entry.lfs is not None
    assert entry.lfs.sha256 == hashlib.sha256(LIBRARY).hexdigest()
    path = api.hf_hub_download(REPO, "build/torch-cpu/__init__.py", repo_type="kernel", revision="v1")
    assert Path(path).read_text() == "x = 1\n"


def test_a_repository_begins_with_an_empty_main_and_is_made_once(api: HfApi, repo: str) -> None:
    refs = api.list_repo_refs(REPO, repo_type="kernel")
    assert sorted(branch.name for branch in refs.branches) == ["main", "v1"]
    assert _paths(api, "main") == []
    api.create_repo(REPO, repo_type="kernel", exist_ok=True)
    api.create_branch(REPO, branch="v1", repo_type="kernel", exist_ok=True)
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_repo(REPO, repo_type="kernel")
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_branch(REPO, branch="v1", repo_type="kernel")


def test_a_branch_starts_from_main_or_the_revision_named(api: HfApi, repo: str) -> None:
    _commit(api, _add("a.txt", b"main"), revision="main")
    _commit(api, _add("b.txt", b"one"))
    api.create_branch(REPO, branch="v2", repo_type="kernel")
    api.create_branch(REPO, branch="v3", revision="v1", repo_type="kernel")
    assert (_paths(api, "v2"), _paths(api, "v3")) == (["a.txt"], ["b.txt"])


def test_files_and_folders_are_deleted_in_the_same_commit(api: HfApi, repo: str) -> None:
    _commit(api, _add("build/a/x.py", b"1"), _add("build/a/y.py", b"2"), _add("build/b/x.py", b"3"), _add("c.py", b"4"))
    operations = [CommitOperationDelete("build/a/"), CommitOperationDelete("c.py"), _add("build/d/x.py", b"5")]
    _commit(api, *operations)
    assert _paths(api) == ["build/b/x.py", "build/d/x.py"]


def test_what_a_branch_was_is_still_served_under_its_commit(api: HfApi, repo: str) -> None:
    first = _commit(api, _add("x.py", b"1")).oid
    _commit(api, _add("x.py", b"2"))
    path = api.hf_hub_download(REPO, "x.py", repo_type="kernel", revision=first)
    assert Path(path).read_bytes() == b"1"


def test_a_commit_made_on_an_older_head_is_refused(api: HfApi, repo: str) -> None:
    parent = api.kernel_info(REPO, revision="v1").sha
    _commit(api, _add("x.py", b"1"), parent_commit=parent)
    with pytest.raises(HfHubHTTPError, match="412"):
        _commit(api, _add("y.py", b"2"), parent_commit=parent)
    assert _paths(api) == ["x.py"]


def test_what_does_not_exist_cannot_be_deleted(api: HfApi, repo: str) -> None:
    for path in ("absent.py", "absent/"):
        with pytest.raises(RemoteEntryNotFoundError):
            _commit(api, CommitOperationDelete(path), _add("x.py", b"1"))
    assert _paths(api) == []


def test_a_pull_request_leaves_the_branch_and_can_be_read(api: HfApi, repo: str) -> None:
    _commit(api, _add("x.py", b"1"))
    first = _commit(api, _add("y.py", b"2"), create_pr=True)
    second = _commit(api, _add("z.py", b"3"), create_pr=True)
    assert (first.pr_revision, second.pr_revision) == ("refs/pr/1", "refs/pr/2")
    assert (_paths(api), _paths(api, "refs/pr/1")) == (["x.py"], ["x.py", "y.py"])
    _commit(api, CommitOperationDelete("x.py"), revision="refs/pr/1")
    assert _paths(api, "refs/pr/1") == ["y.py"]
    refs = api.list_repo_refs(REPO, repo_type="kernel", include_pull_requests=True).pull_requests
    assert [ref.ref for ref in refs or []] == ["refs/pr/1", "refs/pr/2"]


def _everything(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


ODD_REVISIONS = [
    "", "HEAD", "refs", "refs/heads", "refs/heads/", "refs/tags/v1", "refs/heads/refs/heads/1", "refs/heads/refs/pr/1",
    "heads/1", "refs/pr", "refs/pr/", "refs/pr/0", "refs/pr/01", "refs/pr/9", "refs/pr/1/x", "refs/pr/\uff11",
    "refs/pr/+1", ".pulls", ".pulls/1", "../relu/v1", "v1/../1", "V1", "\uff561", "v\u00b9", "v1\0", "v1 ", "%76%31",
    "%2e%2e", "refs/heads/{kept}", "refs/heads/{upper}", "{upper}", "{kept}0", "{kept}/x", "{kept}", "0" * 40, "0" * 64,
]  # fmt: skip


@pytest.mark.parametrize("revision", ODD_REVISIONS)
def test_an_odd_revision_changes_nothing(api: HfApi, repo: str, ask: Ask, server: HubServer, revision: str) -> None:
    kept = _commit(api, _add("x.py", b"1")).oid
    api.create_branch(REPO, branch="1", revision="v1", repo_type="kernel")  # of the same content, and so commit
    _commit(api, _add("y.py", b"2"), revision="v1")
    _commit(api, _add("x.py", b"another"), revision="1", create_pr=True)
    before = _everything(server.catalog.root / REPO)
    named = revision.format(kept=kept, upper=kept.upper())
    url = urllib.parse.quote(named, safe="")
    body = _ndjson(("file", {"path": "x.py", "content": "evil"}))
    for query in ("", "?create_pr=1"):
        status, answer = ask(f"/api/kernels/{REPO}/commit/{url}{query}", body)
        assert (status, bool(answer["error"])) == (400 if named in (kept, "0" * 40, "0" * 64) else 404, True)
    assert _everything(server.catalog.root / REPO) == before
    for folder in (server.catalog.root, server.catalog):
        content = Catalog(folder) if isinstance(folder, Path) else folder
        assert content.commit(REPO, kept).files["x.py"].source.read_bytes() == b"1"
    if named not in (kept, f"{kept}/x"):
        with pytest.raises(HfHubHTTPError, match="404"):
            api.kernel_info(REPO, revision=named)


@pytest.mark.parametrize("name", ["{upper}", "{mixed}", "{kept}", "\ufb00" * 20, "refs", "refs/heads/x", ""])
def test_no_branch_has_a_name_that_can_be_taken_for_a_commit(api: HfApi, repo: str, ask: Ask, name: str) -> None:
    kept = _commit(api, _add("x.py", b"1")).oid
    mixed = kept[:20] + kept[20:].upper()
    branch = urllib.parse.quote(name.format(kept=kept, upper=kept.upper(), mixed=mixed), safe="")
    assert ask(f"/api/kernels/{REPO}/branch/{branch}", {})[0] == 400


@pytest.mark.parametrize("name", ["0" * 39, "0" * 41, "A" * 41, "HEAD", "heads", "\u00e9", "v1+cu128"])
def test_a_branch_with_any_other_name_is_written_and_read(api: HfApi, repo: str, name: str) -> None:
    api.create_branch(REPO, branch=name, repo_type="kernel")
    for revision in (name, f"refs/heads/{name}"):
        assert _commit(api, _add(f"{revision[:1]}.py", b"1"), revision=revision).oid
        assert f"{revision[:1]}.py" in _paths(api, revision)
    assert _paths(api) == []


def test_a_file_that_is_edited_in_place_changes_its_branch_only(api: HfApi, repo: str, server: HubServer) -> None:
    first = _commit(api, _add("_x.so", LIBRARY), _add("x.py", b"1")).oid
    _commit(api, _add("y.py", b"2"))
    api.create_branch(REPO, branch="v2", revision="v1", repo_type="kernel")
    _commit(api, _add("z.py", b"3"), create_pr=True)
    other = LIBRARY[::-1]
    for path, content in (("_x.so", other), ("x.py", b"9")):
        with (server.catalog.root / REPO / "v1" / path).open("r+b") as file:
            file.write(content)
    for revision, library, source in (
        (first, LIBRARY, b"1"), ("v2", LIBRARY, b"1"), ("refs/pr/1", LIBRARY, b"1"), ("v1", other, b"9"),
    ):  # fmt: skip
        for path, content in (("_x.so", library), ("x.py", source)):
            found = api.hf_hub_download(REPO, path, repo_type="kernel", revision=revision)
            assert Path(found).read_bytes() == content, (revision, path)
    # The good library, uploaded again: what the Hub has of it is not what the branch has now.
    _commit(api, _add("_x.so", LIBRARY))
    assert (server.catalog.root / REPO / "v1" / "_x.so").read_bytes() == LIBRARY


@pytest.mark.parametrize(
    "changed", [LIBRARY[::-1], b"\0" * len(LIBRARY), LIBRARY[:-1]], ids=["edited", "zeros", "short"]
)
def test_an_uploaded_object_that_was_changed_is_sent_again(
    api: HfApi, repo: str, ask: Ask, server: HubServer, changed: bytes
) -> None:
    sha256 = hashlib.sha256(LIBRARY).hexdigest()
    assert ask(_address(ask, LIBRARY), LIBRARY, method="PUT")[0] == 200
    (server.catalog.root / ".incoming" / sha256).write_bytes(changed)
    body = _ndjson(("lfsFile", {"path": "_x.so", "oid": sha256, "algo": "sha256", "size": len(LIBRARY)}))
    status, answer = ask(f"/api/kernels/{REPO}/commit/v1", body)
    assert (status, "was not uploaded" in answer["error"]) == (400, True)
    _commit(api, _add("_x.so", LIBRARY))
    assert (server.catalog.root / REPO / "v1" / "_x.so").read_bytes() == LIBRARY


def test_a_branch_that_is_edited_during_a_commit_is_not_kept_as_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / REPO / "v1").mkdir(parents=True)
    catalog = Catalog(tmp_path)
    writer = Writer(catalog)
    first = writer.commit(REPO, "v1", RepositoryChange({"a.py": b"1"}))[0].id
    exchange = changes._exchange

    def late(staging: Path, target: Path) -> None:
        (target / "a.py").write_bytes(b"edited")
        exchange(staging, target)

    monkeypatch.setattr(changes, "_exchange", late)
    writer.commit(REPO, "v1", RepositoryChange({"b.py": b"2"}))
    assert sorted(path.name for path in (tmp_path / REPO).iterdir()) == ["v1"]
    with pytest.raises(RevisionNotFound):
        catalog.commit(REPO, first)


def test_a_private_repository_is_there_only_with_the_token(api: HfApi, server: HubServer) -> None:
    api.create_repo(REPO, repo_type="kernel", private=True)
    _commit(api, _add("_x.so", LIBRARY), revision="main")
    assert api.repo_exists(REPO, repo_type="kernel")
    path = api.hf_hub_download(REPO, "_x.so", repo_type="kernel", revision="main")
    assert Path(path).read_bytes() == LIBRARY
    stranger = HfApi(endpoint=server.url, token=False)
    assert not stranger.repo_exists(REPO, repo_type="kernel")
    with pytest.raises(RepositoryNotFoundError):
        stranger.list_repo_refs(REPO, repo_type="kernel")


def test_the_token_says_who_one_is(api: HfApi, server: HubServer) -> None:
    assert api.whoami()["auth"]["accessToken"]["role"] == "write"
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        HfApi(endpoint=server.url, token="hf_other").whoami()


_WRITES = [
    ("/api/repos/create", {"organization": "acme", "name": "gelu", "type": "kernel"}),
    (f"/api/kernels/{REPO}/branch/v9", {}),
    (f"/api/kernels/{REPO}/preupload/v1", {"files": []}),
    (f"/kernels/{REPO}.git/info/lfs/objects/batch", {"operation": "upload", "objects": []}),
    (f"/api/kernels/{REPO}/commit/v1", {"key": "header", "value": {"summary": "x"}}),
    ("/api/validate-yaml", {"content": ""}),
]


@pytest.mark.parametrize(("path", "body"), _WRITES)
@pytest.mark.parametrize(("token", "status"), [(None, 401), ("hf_other", 401), ("", 401), (TOKEN, 200)])
def test_every_write_needs_the_token(ask_shared: Ask, path: str, body: Any, token: str | None, status: int) -> None:
    assert ask_shared(path, body, token=token)[0] == status


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_hub_that_only_reads_refuses_every_write(tmp_path: Path, token: str | None) -> None:
    (tmp_path / "other" / REPO / "v1").mkdir(parents=True)
    with HubServer(tmp_path / "other", token=token) as hub:
        ask = _asking(hub)
        assert {ask(path, body, token=TOKEN)[0] for path, body in _WRITES} == {403}
    assert sorted(path.name for path in (tmp_path / "other").rglob("*")) == ["acme", "relu", "v1"]


def test_writing_for_everyone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="needs a `token`"):
        HubServer(tmp_path, writable=True)
    with pytest.raises(RequestError, match="`token` is empty"):
        HubServer(tmp_path, writable=True, token=" ")


@pytest.mark.parametrize(
    "path",
    ["../out.py", "/etc/x", "a/../../x", "a//b", "./a", ".git/config", "a/.GIT/hooks", "a\\b", "a\0b", "", "c:x",
     "a/" + "b" * 300, "a\n", "/".join("ab" * 1000), "__pycache__/x.py", "a/x.pyc", None, 3, "nul.", "a/. "],
)  # fmt: skip
@pytest.mark.parametrize("key", ["file", "lfsFile"])
def test_hostile_paths_write_nothing(ask_shared: Ask, shared: HubServer, path: object, key: str) -> None:
    before = sorted(shared.catalog.root.rglob("[!.]*"))  # but for the folder of what is being received
    body = _ndjson((key, {"path": path, "content": "", "oid": hashlib.sha256(LIBRARY).hexdigest(), "algo": "sha256"}))
    status, answer = ask_shared(f"/api/kernels/{REPO}/commit/v1", body)
    assert (status, "`path` is" in answer["error"]) == (400, True)
    assert sorted(shared.catalog.root.rglob("[!.]*")) == before
    assert not list(shared.catalog.root.parent.glob("out.py"))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "truncated"),
        (b"[" * 5000, "nest|recursion|truncated"),
        (b"3\n", "Line 1"),
        (_ndjson(("file", {"path": "x", "content": "%%%", "encoding": "base64"})), "not base64"),
        (_ndjson(("file", {"path": "x"})), "no `content`"),
        (_ndjson(("lfsFile", {"path": "x", "oid": "0" * 64})), "not uploaded before"),
        (_ndjson(("lfsFile", {"path": "x", "oid": "../../etc"})), "not uploaded before"),
        (_ndjson(("renamed", {"path": "x"})), "unknown key"),
        (b'{"key": ["file"], "value": {"path": "x"}}', "Line 1"),
        (b'{"key": {"file": 1}, "value": {"path": "x"}}', "Line 1"),
        (
            _ndjson(("file", {"path": "a", "content": "1"}), ("file", {"path": "a/b", "content": "2"})),
            "a file, not a folder",
        ),
    ],
)
def test_an_invalid_commit_changes_nothing(ask_shared: Ask, shared: HubServer, body: bytes, said: str) -> None:
    head = shared.catalog.commit(REPO, "v1").id
    status, answer = ask_shared(f"/api/kernels/{REPO}/commit/v1", body)
    assert status == 400
    assert re.search(said, answer["error"])
    assert shared.catalog.commit(REPO, "v1").id == head


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/repos/create", {"organization": "..", "name": "x", "type": "kernel"}, 400),
        ("/api/repos/create", {"name": "x", "type": "kernel"}, 400),
        ("/api/repos/create", {"organization": "acme", "name": "x", "type": "model"}, 400),
        ("/api/repos/create", [], 400),
        (f"/api/kernels/{REPO}/branch/a%2Fb", {}, 400),
        (f"/api/kernels/{REPO}/branch/.pulls", {}, 400),
        (f"/api/kernels/{REPO}/branch/{'0' * 40}", {}, 400),
        (f"/api/kernels/{REPO}/branch/{'%C3%A9' * 128}", {}, 400),
        (f"/api/kernels/{REPO}/branch/v2", {"startingPoint": 3}, 400),
        (f"/api/kernels/{REPO}/branch/v2", {"startingPoint": "absent"}, 404),
        ("/api/kernels/acme/absent/branch/v2", {}, 404),
        (f"/api/models/{REPO}/commit/v1", {}, 400),
        (f"/api/kernels/{REPO}/commit/v99", {"key": "header", "value": {}}, 404),
        (f"/api/kernels/{REPO}/commit/{'0' * 40}", {"key": "header", "value": {}}, 400),
        (f"/api/kernels/{REPO}/preupload/v1", {}, 400),
        (f"/api/kernels/{REPO}/preupload/v1", {"files": [{"path": "x"}]}, 400),
        (f"/kernels/{REPO}.git/info/lfs/objects/batch", {"operation": "download", "objects": []}, 400),
        (f"/kernels/{REPO}.git/info/lfs/objects/batch", {"operation": "upload", "objects": [{"oid": "x"}]}, 400),
        (f"/api/kernels/{REPO}/preupload/v1", b"x" * (9 * 2**20), 413),
    ],
)
def test_an_invalid_request_is_answered_with_an_error(ask_shared: Ask, path: str, body: Any, status: int) -> None:
    found, answer = ask_shared(path, body)
    assert found == status
    assert answer["error"]


def _address(ask: Ask, content: bytes, size: int | None = None) -> str:
    wanted = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content) if size is None else size}
    body = {"operation": "upload", "objects": [wanted]}
    _, answer = ask(f"/kernels/{REPO}.git/info/lfs/objects/batch", body)
    return str(answer["objects"][0]["actions"]["upload"]["href"])


@pytest.mark.parametrize(
    ("sent", "said"),
    [(LIBRARY[:-1] + b"x", "The SHA-256 is"), (LIBRARY[:-1], "The SHA-256 is"), (LIBRARY + b"x", "more than")],
)
def test_an_object_is_kept_only_if_it_is_the_one_announced(
    repo: str, ask: Ask, server: HubServer, sent: bytes, said: str
) -> None:
    status, answer = ask(_address(ask, LIBRARY), sent, method="PUT", token=None)
    assert status == 400
    assert said in answer["error"]
    assert list((server.catalog.root / ".incoming").iterdir()) == []


def test_an_address_is_good_for_one_object_for_a_while(repo: str, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    address = _address(ask, LIBRARY)
    for changed in (address.replace("size=2000", "size=9000"), address[:-1], address.partition("?")[0]):
        assert ask(changed, LIBRARY, method="PUT")[0] == 403
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr("kernels.server.lfs_objects.time.time", lambda: now + 24 * 3600)
        assert ask(address, LIBRARY, method="PUT")[0] == 403
    assert ask(address, LIBRARY, method="PUT")[0] == 200


def test_an_object_that_arrived_is_not_asked_for_again_and_goes_after_a_day(
    repo: str, ask: Ask, server: HubServer
) -> None:
    assert ask(_address(ask, LIBRARY), LIBRARY, method="PUT")[0] == 200
    wanted = {"oid": hashlib.sha256(LIBRARY).hexdigest(), "size": len(LIBRARY)}
    body = {"operation": "upload", "objects": [wanted]}
    assert ask(f"/kernels/{REPO}.git/info/lfs/objects/batch", body)[1]["objects"] == [wanted]
    (kept,) = (server.catalog.root / ".incoming").iterdir()
    os.utime(kept, (0, 0))
    assert ask(_address(ask, b"other"), b"other", method="PUT")[0] == 200
    assert not kept.exists()


def test_an_object_too_large_is_refused_before_it_is_sent(repo: str, ask: Ask) -> None:
    body = {"operation": "upload", "objects": [{"oid": "0" * 64, "size": 2**60}]}
    _, answer = ask(f"/kernels/{REPO}.git/info/lfs/objects/batch", body)
    assert answer["objects"][0]["error"]["code"] == 413


def test_a_link_to_elsewhere_is_no_place_to_write(api: HfApi, server: HubServer, tmp_path: Path) -> None:
    outside = _folder(tmp_path / "outside")
    (server.catalog.root / "linked").symlink_to(outside)
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_repo("linked/relu", repo_type="kernel")
    assert list(outside.iterdir()) == []


def test_a_file_is_no_publisher(api: HfApi, server: HubServer) -> None:
    (server.catalog.root / "notes").write_text("mine")
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_repo("notes/relu", repo_type="kernel")
    assert (server.catalog.root / "notes").read_text() == "mine"


@pytest.mark.parametrize("large", [False, True])
def test_a_commit_between_looking_and_reading_changes_no_answer(
    api: HfApi, repo: str, server: HubServer, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    path, old, new = ("_x.so", LIBRARY, LIBRARY[::-1]) if large else ("x.py", b"x = 1\n", b"x = 2\n")
    head = _commit(api, _add(path, old)).oid
    opens, due = File.open, [None, RepositoryChange({path: new})]

    def late(file: File) -> Any:
        if len(due) > 1:  # someone commits before the file that was looked up is open
            Writer(server.catalog).commit(REPO, "v1", due.pop())  # type: ignore[arg-type]
        opened = opens(file)
        if due and opened is not None:  # and again once it is
            due.pop()
            Writer(server.catalog).commit(REPO, "v1", RepositoryChange({path: b"x = 3\n"}))
        return opened

    monkeypatch.setattr(File, "open", late)
    url = f"{server.url}/kernels/{REPO}/resolve"
    with urllib.request.urlopen(f"{url}/{head}/{path}", timeout=30) as answer:
        assert answer.read() == old
    due[:] = [None, RepositoryChange({path: old})]
    with urllib.request.urlopen(f"{url}/v1/{path}", timeout=30) as answer:
        content = answer.read()
        assert answer.headers["ETag"].strip('"') in (hashlib.sha256(content).hexdigest(), blob_oid(content))


def test_a_commit_is_there_also_while_another_one_takes_its_place(
    api: HfApi, repo: str, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = _commit(api, _add("x.py", b"1")).oid
    asked = Thread(target=lambda: found.append(server.catalog.commit(REPO, head).id))
    found: list[str] = []
    keep = changes._keep

    def slowly(*arguments: Any) -> None:
        asked.start()
        asked.join(0.2)  # it waits
        keep(*arguments)

    monkeypatch.setattr(changes, "_keep", slowly)
    _commit(api, _add("x.py", b"2"))
    asked.join(30)
    assert found == [head]


def test_a_failure_in_the_middle_leaves_the_branch_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / REPO / "v1").mkdir(parents=True)
    catalog = Catalog(tmp_path)
    writer = Writer(catalog)
    head = writer.commit(REPO, "v1", RepositoryChange({"a.py": b"1", "b.py": b"2"}))[0].id
    listed = sorted(tmp_path.rglob("*"))

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space"):
            writer.commit(REPO, "v1", RepositoryChange({"c.py": b"3"}))
    assert catalog.commit(REPO, "v1").id == head
    assert sorted(tmp_path.rglob("*")) == listed


def test_folders_change_places_also_where_the_system_cannot_exchange_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / REPO / "v1").mkdir(parents=True)
    catalog = Catalog(tmp_path)
    monkeypatch.setattr("sys.platform", "another")
    writer = Writer(catalog)
    first = writer.commit(REPO, "v1", RepositoryChange({"a.py": b"1"}))[0]
    second = writer.commit(REPO, "v1", RepositoryChange({"a.py": b"2"}, parent=first.id))[0]
    assert (tmp_path / REPO / "v1" / "a.py").read_bytes() == b"2"
    assert sorted(path.name for path in (tmp_path / REPO).iterdir()) == sorted(["v1", first.id])
    assert catalog.commit(REPO, "v1").id == second.id
