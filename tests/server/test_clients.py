"""An unmodified huggingface_hub lists and downloads from the embedded Hub."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hub import TestHub
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile

REPO = "acme/relu"


@pytest.fixture
def api(hub: TestHub) -> HfApi:
    hub.make_repo(REPO, version=1)
    hub.make_repo(REPO, version=2, variants=["torch-cpu", "torch-cuda"])
    hub.make_repo(REPO, revision="main", version=2)
    hub.make_repo(REPO, version=1, variants={"torch213-cxx11-cpu-x86_64-linux": {"_relu.abi3.so": b"\x7fELF" * 1000}})
    return HfApi(endpoint=hub.url)


@pytest.fixture
def overviews(api: HfApi, hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> HfApi:
    # Overviews ignore `endpoint=` in huggingface_hub 1.10: only what HF_ENDPOINT set at import counts there.
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    return api


def test_refs_are_the_sub_folders(api: HfApi, hub: TestHub) -> None:
    refs = api.list_repo_refs(REPO, repo_type="kernel", include_pull_requests=True)
    assert {ref.name: ref.ref for ref in refs.branches} == {
        "main": "refs/heads/main",
        "v1": "refs/heads/v1",
        "v2": "refs/heads/v2",
    }
    assert {ref.target_commit for ref in refs.branches} == {hub.commit(REPO, name) for name in ("main", "v1", "v2")}
    assert (refs.tags, refs.converts, refs.pull_requests) == ([], [], [])


@pytest.mark.parametrize("revision", ["v1", "refs/heads/v1", "commit"])
def test_a_revision_is_a_branch_or_a_commit(api: HfApi, hub: TestHub, revision: str) -> None:
    head = hub.commit(REPO, "v1")
    info = api.kernel_info(REPO, revision=head if revision == "commit" else revision)
    assert (info.id, info.author, info.sha) == (REPO, "acme", head)
    assert info.last_modified is not None


def test_without_a_revision_the_info_is_of_main(api: HfApi, hub: TestHub) -> None:
    assert api.kernel_info(REPO).sha == hub.commit(REPO, "main")


def test_without_main_the_info_is_of_the_newest_version(api: HfApi, hub: TestHub) -> None:
    for version in (2, 9, 10):
        hub.make_repo("acme/gelu", version=version)
    assert api.kernel_info("acme/gelu").sha == hub.commit("acme/gelu", "v10")


def test_the_tree_has_the_hashes_git_would_give(api: HfApi, hub: TestHub) -> None:
    tree = {entry.path: entry for entry in api.list_repo_tree(REPO, recursive=True, repo_type="kernel", revision="v1")}
    path = "build/torch-cpu/__init__.py"
    data = (hub.root / REPO / "v1" / path).read_bytes()
    entry = tree[path]
    assert isinstance(entry, RepoFile)
    assert entry.size == len(data)
    assert entry.blob_id == hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    assert (entry.lfs, entry.xet_hash) == (None, None)
    assert not isinstance(tree["build/torch-cpu"], RepoFile)


def test_native_code_is_in_lfs(api: HfApi) -> None:
    (entry,) = [
        entry
        for entry in api.list_repo_tree(REPO, recursive=True, repo_type="kernel", revision="v1", expand=True)
        if entry.path.endswith(".so")
    ]
    assert isinstance(entry, RepoFile)
    assert entry.lfs is not None
    assert entry.lfs.sha256 == hashlib.sha256(b"\x7fELF" * 1000).hexdigest()
    assert (entry.size, entry.lfs.size) == (4000, 4000)
    assert entry.last_commit is not None


def test_a_folder_is_listed_without_what_lies_deeper(api: HfApi) -> None:
    entries = api.list_repo_tree(REPO, "build", repo_type="kernel", revision="v2")
    assert [entry.path for entry in entries] == ["build/torch-cpu", "build/torch-cuda"]
    entries = api.list_repo_tree(REPO, "build/torch-cpu", repo_type="kernel", revision="v2", recursive=True)
    assert [entry.path.rpartition("/")[2] for entry in entries] == ["__init__.py", "layers.py", "metadata.json"]


def test_a_snapshot_is_the_folder(api: HfApi, hub: TestHub) -> None:
    snapshot = Path(api.snapshot_download(REPO, repo_type="kernel", revision="v1"))
    assert snapshot.name == hub.commit(REPO, "v1")
    source = hub.root / REPO / "v1"
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    assert sorted(path.relative_to(snapshot) for path in snapshot.rglob("*") if path.is_file()) == files
    for path in files:
        assert (snapshot / path).read_bytes() == (source / path).read_bytes()


@pytest.mark.parametrize("path", ["build/torch-cpu/__init__.py", "build/torch213-cxx11-cpu-x86_64-linux/_relu.abi3.so"])
@pytest.mark.parametrize("pinned", [False, True])
def test_one_file_downloads(api: HfApi, hub: TestHub, path: str, pinned: bool) -> None:
    revision = hub.commit(REPO, "v1") if pinned else "v1"
    file = api.hf_hub_download(REPO, path, repo_type="kernel", revision=revision)
    assert Path(file).read_bytes() == (hub.root / REPO / "v1" / path).read_bytes()


def test_existence_is_answered(api: HfApi) -> None:
    assert api.repo_exists(REPO, repo_type="kernel")
    assert not api.repo_exists("acme/absent", repo_type="kernel")
    assert not api.repo_exists(REPO, repo_type="model")
    assert not api.repo_exists(REPO, repo_type="dataset")
    assert api.revision_exists(REPO, "v2", repo_type="kernel")
    assert not api.revision_exists(REPO, "v3", repo_type="kernel")
    assert api.file_exists(REPO, "build/torch-cpu/metadata.json", repo_type="kernel", revision="v1")
    assert not api.file_exists(REPO, "kernel-status.toml", repo_type="kernel", revision="v1")


def test_what_is_missing_raises_huggingface_hubs_own_errors(api: HfApi, hub: TestHub) -> None:
    with pytest.raises(RepositoryNotFoundError):
        api.list_repo_refs("acme/absent", repo_type="kernel")
    with pytest.raises(RevisionNotFoundError):
        api.kernel_info(REPO, revision="refs/pr/1")
    with pytest.raises(RevisionNotFoundError):
        api.hf_hub_download(REPO, "x", repo_type="kernel", revision="0" * 40)
    with pytest.raises(RemoteEntryNotFoundError) as missing:
        api.hf_hub_download(REPO, "kernel-status.toml", repo_type="kernel", revision="v1")
    assert missing.value.response.headers["X-Repo-Commit"] == hub.commit(REPO, "v1")
    with pytest.raises(RemoteEntryNotFoundError):
        list(api.list_repo_tree(REPO, "absent", repo_type="kernel", revision="v1"))


def test_a_gated_repository_refuses_its_files(api: HfApi, hub: TestHub) -> None:
    hub.gate(REPO)
    with pytest.raises(GatedRepoError):
        api.hf_hub_download(REPO, "build/torch-cpu/metadata.json", repo_type="kernel", revision="v1")
    assert api.repo_exists(REPO, repo_type="kernel")


def test_only_trusted_publishers_are_marked(overviews: HfApi, hub: TestHub) -> None:
    hub.make_repo("stranger/relu")
    assert overviews.get_organization_overview("acme").trustedKernelPublisher is True  # type: ignore[attr-defined]
    assert overviews.get_organization_overview("stranger").trustedKernelPublisher is False  # type: ignore[attr-defined]
    with pytest.raises(HfHubHTTPError):
        overviews.get_organization_overview("absent")


def test_a_person_is_no_organization(overviews: HfApi, hub: TestHub) -> None:
    hub.make_repo("jane/relu")
    hub.users.add("jane")
    assert overviews.get_user_overview("jane").username == "jane"
    with pytest.raises(HfHubHTTPError):
        overviews.get_organization_overview("jane")
    with pytest.raises(HfHubHTTPError):
        overviews.get_user_overview("acme")


def test_commits_and_paths_info_are_answered(api: HfApi, hub: TestHub) -> None:
    (commit,) = api.list_repo_commits(REPO, repo_type="kernel", revision="v1")
    assert commit.commit_id == hub.commit(REPO, "v1")
    found = api.get_paths_info(REPO, ["build", "build/torch-cpu/layers.py", "no"], repo_type="kernel", revision="v1")
    assert [entry.path for entry in found] == ["build", "build/torch-cpu/layers.py"]


def test_a_large_listing_comes_in_pages(api: HfApi, hub: TestHub) -> None:
    commit = hub.list_files("acme/huge", (f"build/torch-x{number:05}/__init__.py" for number in range(1250)))
    tree = list(api.list_repo_tree("acme/huge", recursive=True, repo_type="kernel", revision=commit.id))
    assert len(tree) == 2501
    assert len({entry.path for entry in tree}) == 2501
    assert hub.count("/tree/") == 3


def test_a_changed_file_moves_the_branch(api: HfApi, hub: TestHub) -> None:
    before = hub.commit(REPO, "v1")
    (hub.root / REPO / "v1/build/torch-cpu/__init__.py").write_text("changed = True\n")
    after = api.kernel_info(REPO, revision="v1").sha
    assert after not in (None, before)
    with pytest.raises(RevisionNotFoundError):
        api.kernel_info(REPO, revision=before)


def test_huggingface_hubs_question_about_coding_agents_is_answered(hub: TestHub) -> None:
    from huggingface_hub.utils import get_session

    answer = get_session().get(f"{hub.url}/api/agent-harnesses")
    assert answer.status_code == 200
    assert answer.json() == {"standardEnvVars": [], "harnesses": {}}
