"""A folder's builds are published whole, in one commit, or not at all; and only builds that may be."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from example_kernels import SOURCES
from hub import TestHub, kernel_files
from huggingface_hub import HfApi, constants
from writable_hub import TOKEN, WritableHub

from kernels.authoring.compile import build_kernel
from kernels.authoring.publish import Upload, publishing, read_builds, sending, upload_kernel
from kernels.errors import (
    DigestMismatch,
    HubUnavailable,
    InvalidMetadata,
    InvalidRepository,
    InvalidVariant,
    NotInCache,
    RequestError,
)

REPO = "acme/relu"
#: An ELF header for x86-64 with one entry, a stack that holds no code, and bytes after it.
_ELF = (b"\x7fELF", 2, 1, 1, 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
_STACK = (0x6474E551, 6, 0, 0, 0, 0, 0, 16)
LIBRARY = struct.pack("<4sBBB9xHHIQQQIHHHHHH", *_ELF) + struct.pack("<IIQQQQQQ", *_STACK) + b"x" * 4000


@pytest.fixture
def hub(writable_hub: WritableHub) -> WritableHub:
    return writable_hub


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    return _builds(tmp_path / "kernel", "torch-cpu", "torch-cuda", "torch213-cxx11-cpu-x86_64-linux")


def _builds(folder: Path, *variants: str, seed: str = "", **options: Any) -> Path:
    for variant in variants:
        files = {"_relu.abi3.so": LIBRARY} if "cxx11" in variant else {}
        for path, data in kernel_files(REPO, variant, digest=True, seed=seed, files=files, **options).items():
            target = folder / "build" / variant / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    return folder


def _sources(folder: Path) -> None:
    """What the builds could have been made of."""
    general = 'name = "relu"\nversion = 1\nlicense = "MIT"\nedition = 5\nbackends = ["cpu", "cuda"]\n'
    (folder / "build.toml").write_text(f"[general]\n{general}\n[torch-noarch]\n")
    (folder / "torch-ext" / "relu").mkdir(parents=True)
    (folder / "torch-ext" / "relu" / "__init__.py").touch()


def _served(hub: TestHub, branch: str = "v1") -> dict[str, bytes]:
    return {path: file.source.read_bytes() for path, file in hub.catalog.commit(REPO, branch).files.items()}


def _local(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _published(hub: TestHub) -> list[str]:
    """The commits of builds: the card also goes to `main`."""
    return [each.path for each in hub.requests if "/commit/v" in each.path and each.status == 200]


def test_a_kernel_is_published_with_its_repository_branch_and_card(hub: TestHub, kernel: Path) -> None:
    (kernel / "benchmarks").mkdir()
    (kernel / "benchmarks" / "benchmark_relu.py").write_text("pass\n")
    (kernel / "notes.txt").write_text("not sent")
    done = upload_kernel(kernel, REPO)
    served = _served(hub)
    card = served.pop("README.md").decode()
    assert served == {path: data for path, data in _local(kernel).items() if path != "notes.txt"}
    assert f'get_kernel("{REPO}", version=1)' in card
    assert all(f"`{variant}`" in card for variant in done.variants)
    assert (done.branch, done.commit, done.changed) == ("v1", hub.commit(REPO, "v1"), True)
    assert len(_published(hub)) == 1


@pytest.mark.parametrize(
    ("written", "published"),
    [
        ("# ReLU\n", "---\nlibrary_name: kernels\nlicense: apache-2.0\ntags:\n- kernels\n---\n\n# ReLU\n"),
        (
            "\ufeff---\nlicense: mit\n---\n# ReLU\n",
            "---\nlicense: mit\nlibrary_name: kernels\ntags:\n- kernels\n---\n\n# ReLU\n",
        ),
    ],
    ids=["without a front matter", "with one"],
)
def test_the_authors_page_is_the_card(hub: TestHub, kernel: Path, written: str, published: str) -> None:
    (kernel / "README.md").write_text(written)
    upload_kernel(kernel, REPO, branch="v1")
    assert "# ReLU\n" not in _card(hub, REPO, "v1")  # no sources: the page of another time
    _sources(kernel)
    assert upload_kernel(kernel, REPO, branch="v1", check=False, keep_variants=True).sent == ("README.md",)
    card = _card(hub, REPO, "v1")
    assert card.startswith(published)
    assert f'get_kernel("{REPO}", version=1)' in card


def test_main_shows_the_card_of_the_newest_version(hub: TestHub, kernel: Path, tmp_path: Path) -> None:
    upload_kernel(_builds(tmp_path / "two", "torch-cpu", version=2), REPO)
    before = _card(hub, REPO, "main")
    assert "version=2" in before
    done = upload_kernel(kernel, REPO)
    assert (done.main_commit, _card(hub, REPO, "main")) == (None, before)
    assert "version=1" in _card(hub, REPO, "v1")
    assert upload_kernel(kernel, REPO, branch="next").main_commit is None


def test_an_edit_on_main_stays_until_it_is_replaced(hub: TestHub, kernel: Path, tmp_path: Path) -> None:
    _sources(kernel)
    (kernel / "README.md").write_text("# Mine\n")
    first = upload_kernel(kernel, REPO, check=False)
    assert first.main_commit == hub.commit(REPO, "main")
    edited = _card(hub, REPO, "main").replace("# Mine", "# Mine\n\nFound a bug? Write to us.")
    page = hub.root / REPO / "main" / "README.md"
    page.unlink()  # it is one file with the kept state of the branch
    page.write_text(edited)
    shutil.rmtree(kernel / "build" / "torch-cuda")
    again = upload_kernel(kernel, REPO, check=False, remove_variants=True)
    assert "--replace-card" in again.notes[-1]
    for branch in ("v1", "main"):
        assert "Write to us." in _card(hub, REPO, branch)
        assert "`torch-cuda`" not in _card(hub, REPO, branch)
    assert not upload_kernel(kernel, REPO, check=False).changed
    upload_kernel(kernel, REPO, check=False, replace_card=True)
    assert "Write to us." not in _card(hub, REPO, "main") + _card(hub, REPO, "v1")


def test_a_folder_without_a_text_keeps_the_authors_page(hub: TestHub, kernel: Path, tmp_path: Path) -> None:
    _sources(kernel)
    (kernel / "README.md").write_text("# Mine\n")
    upload_kernel(kernel, REPO, check=False)
    released = _builds(tmp_path / "released", "torch-cpu", "torch-cuda", seed="released")
    done = upload_kernel(released, REPO, keep_variants=True)
    assert any("its text is kept" in note for note in done.notes)
    for branch in ("v1", "main"):
        assert "# Mine" in _card(hub, REPO, branch)
    (kernel / "README.md").write_text("# Mine, and new\n")
    done = upload_kernel(kernel, REPO, check=False)
    assert not any("was edited" in note for note in done.notes)
    assert "# Mine, and new" in _card(hub, REPO, "main")


def test_a_generated_page_is_generated_again(hub: TestHub, kernel: Path, tmp_path: Path) -> None:
    upload_kernel(kernel, REPO)
    again = _builds(tmp_path / "again", "torch-cpu", "torch-cuda", seed="again")
    for build in (again / "build").iterdir():
        (build / "__init__.py").write_text('"""Rectified, and documented anew."""\n')
        metadata = {**json.loads((build / "metadata.json").read_text()), "digest": None}
        (build / "metadata.json").write_text(json.dumps(metadata))
    upload_kernel(again, REPO, check=False, keep_variants=True)
    assert "documented anew" in _card(hub, REPO, "main")


def test_a_card_that_main_refuses_does_not_hide_that_the_builds_are_there(hub: TestHub, kernel: Path) -> None:
    hub.fail("/commit/main", status=403)
    said: list[str] = []
    done = upload_kernel(kernel, REPO, report=said.append)
    assert (done.commit, done.main_commit) == (hub.commit(REPO, "v1"), None)
    assert said[-1].startswith("Note: the builds are published. The card on main is not: ")


def test_plots_are_published_beside_the_card(hub: TestHub, kernel: Path) -> None:
    (kernel / "media").mkdir()
    for page in ("light", "dark"):
        (kernel / "media" / f"h100_{page}.svg").write_text(f"<svg>{page}</svg>")
    upload_kernel(kernel, REPO)
    assert 'srcset="media/h100_dark.svg"' in _card(hub, REPO, "main")
    for branch in ("v1", "main"):
        assert _served(hub, branch)["media/h100_dark.svg"] == b"<svg>dark</svg>"
    assert not upload_kernel(kernel, REPO).changed


def test_an_authors_page_that_is_no_text_is_refused(hub: TestHub, kernel: Path) -> None:
    _sources(kernel)
    (kernel / "README.md").write_bytes(b"\xff\xfe")
    with pytest.raises(RequestError, match="not UTF-8"):
        upload_kernel(kernel, REPO, branch="v1", check=False)
    assert _published(hub) == []


def test_publishing_again_makes_no_commit(hub: TestHub, kernel: Path) -> None:
    first = upload_kernel(kernel, REPO)
    again = upload_kernel(kernel, REPO)
    assert again == Upload(REPO, "v1", first.commit, first.variants)
    assert not again.changed
    assert len(_published(hub)) == 1


@pytest.mark.parametrize("first", ["noarch", "compiled"])
def test_builds_of_a_framework_without_sources_here_are_kept_by_default(
    hub: TestHub, tmp_path: Path, first: str
) -> None:
    made = {"noarch": "torch-cpu", "compiled": "torch213-cxx11-cpu-x86_64-linux"}
    folders = {name: _builds(tmp_path / name, variant) for name, variant in made.items()}
    for name, folder in folders.items():
        _sources(folder)
        if name == "compiled":
            text = (folder / "build.toml").read_text().replace("[torch-noarch]", "[torch]\nsrc = []")
            (folder / "build.toml").write_text(text)
    [second] = made.keys() - {first}
    said: list[str] = []
    upload_kernel(folders[first], REPO, check=False)
    done = upload_kernel(folders[second], REPO, check=False, report=said.append)
    assert not any(path.startswith("build/") for path in done.deleted)
    assert {path.split("/")[1] for path in _served(hub) if path.startswith("build/")} == set(made.values())
    assert any(line.startswith(f"Kept: {made[first]}: ") and "--remove-variants" in line for line in said)
    assert all(f"`{variant}`" in _card(hub, REPO, "v1") for variant in made.values())
    again = upload_kernel(folders[second], REPO, check=False, remove_variants=True)
    assert again.deleted == (f"build/{made[first]}/",)


def test_what_a_new_build_replaces_or_no_longer_has_is_removed_in_the_same_commit(
    hub: TestHub, kernel: Path, tmp_path: Path
) -> None:
    (kernel / "build" / "torch-cpu" / "old.txt").touch()
    metadata = kernel / "build" / "torch-cpu" / "metadata.json"
    metadata.write_text(
        json.dumps({key: value for key, value in json.loads(metadata.read_text()).items() if key != "digest"})
    )
    (kernel / "benchmarks").mkdir()
    (kernel / "benchmarks" / "benchmark_old.py").touch()
    upload_kernel(kernel, REPO)
    done = upload_kernel(_builds(tmp_path / "next", "torch-cpu", seed="next"), REPO, remove_variants=True)
    assert sorted(path.split("/")[1] for path in _served(hub) if path.startswith("build/")) == ["torch-cpu"] * 3
    assert done.deleted == (
        "build/torch-cuda/",
        "build/torch213-cxx11-cpu-x86_64-linux/",
        "benchmarks/benchmark_old.py",
        "build/torch-cpu/old.txt",
    )
    assert len(_published(hub)) == 2


@pytest.mark.parametrize("sources", [True, False], ids=["with sources", "without"])
def test_builds_for_another_torch_are_not_lost(hub: TestHub, tmp_path: Path, sources: bool) -> None:
    older, newer = "torch212-cxx11-cpu-x86_64-linux", "torch213-cxx11-cpu-x86_64-linux"
    folder = _builds(tmp_path / "newer", newer)
    if sources:
        _sources(folder)
        (folder / "build.toml").write_text((folder / "build.toml").read_text().replace("torch-noarch", "torch"))
    upload_kernel(_builds(tmp_path / "older", older), REPO)
    with pytest.raises(RequestError, match=f"builds that this folder does not have: {older}. Give --keep-variants"):
        upload_kernel(folder, REPO, check=False)
    assert upload_kernel(folder, REPO, check=False, keep_variants=True).deleted == ()
    assert upload_kernel(folder, REPO, check=False, remove_variants=True).deleted == (f"build/{older}/",)


def test_another_machines_builds_are_kept_on_demand(hub: TestHub, tmp_path: Path) -> None:
    one = _builds(tmp_path / "one", "torch-cuda")
    (one / "benchmarks").mkdir()
    (one / "benchmarks" / "benchmark_relu.py").touch()
    upload_kernel(one, REPO)
    done = upload_kernel(_builds(tmp_path / "two", "torch-cpu"), REPO, keep_variants=True)
    assert done.deleted == ()
    assert {path.split("/")[1] for path in _served(hub) if path.startswith("build/")} == {"torch-cpu", "torch-cuda"}
    assert b"`torch-cuda`" in _served(hub)["README.md"]


def test_the_rest_of_a_branch_stays(hub: TestHub, kernel: Path) -> None:
    hub.make_repo(REPO, version=1, variants=[], files={"kernel-status.toml": "", "notes.md": "mine"})
    upload_kernel(kernel, REPO)
    assert _served(hub)["notes.md"] == b"mine"


def test_bytecode_is_left_out(hub: TestHub, kernel: Path) -> None:
    cache = kernel / "build" / "torch-cpu" / "__pycache__"
    cache.mkdir()
    (cache / "__init__.cpython-311.pyc").touch()
    (kernel / "build" / "torch-cpu" / "layers.pyc").touch()
    assert not [path for path in upload_kernel(kernel, REPO).sent if "pyc" in path]


def test_repository_and_branch_come_from_build_toml(hub: TestHub, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(SOURCES / "rms-norm" / "noarch", source)
    text = (source / "build.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith(("repo-id", "[general.hub]"))]
    (source / "build.toml").write_text("\n".join(lines) + '\n[general.hub]\nrepo-id = "acme/norms"\nbranch = "next"\n')
    build_kernel(source, source, backends=["cpu"])
    done = upload_kernel(source)
    assert (done.repo_id, done.branch) == ("acme/norms", "next")
    assert 'revision="next"' in _card(hub, "acme/norms", "next")


def _card(hub: TestHub, repo_id: str, branch: str) -> str:
    return hub.catalog.commit(repo_id, branch).files["README.md"].source.read_text()


def test_private_creates_a_private_repository_and_refuses_a_public_one(hub: TestHub, kernel: Path) -> None:
    upload_kernel(kernel, REPO, private=True)
    assert not HfApi(endpoint=hub.url, token=False).repo_exists(REPO, repo_type="kernel")
    assert not upload_kernel(kernel, REPO, private=True).changed
    upload_kernel(kernel, "acme/open")
    with pytest.raises(RequestError, match=r"`private` is set, but acme/open is public at"):
        upload_kernel(kernel, "acme/open", private=True)


def test_a_pull_request_leaves_the_branch(hub: TestHub, kernel: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="does not exist"):
        upload_kernel(kernel, REPO, create_pr=True)
    upload_kernel(kernel, REPO)
    before = _served(hub)
    with pytest.raises(RequestError, match="no branch 'next'"):
        upload_kernel(kernel, REPO, branch="next", create_pr=True)
    done = upload_kernel(
        _builds(tmp_path / "next", "torch-cpu", seed="next"), REPO, create_pr=True, remove_variants=True
    )
    assert done.pull_request == f"{hub.url}/kernels/{REPO}/discussions/1"
    assert _served(hub) == before
    assert hub.catalog.commit(REPO, "refs/pr/1").id == done.commit


# ---------------------------------------------------------------------------------------------------------------------
# What must not be published
# ---------------------------------------------------------------------------------------------------------------------


def _edit(kernel: Path, **fields: Any) -> None:
    path = kernel / "build" / "torch-cpu" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def _changed_file(kernel: Path) -> None:
    (kernel / "build" / "torch-cpu" / "__init__.py").write_text("other")


def _linked_file(kernel: Path) -> None:
    (kernel.parent / "secret").write_text("x")
    (kernel / "build" / "torch-cpu" / "extra").symlink_to(kernel.parent / "secret")


def _linked_folder(kernel: Path) -> None:
    (kernel / "build" / "torch-cpu" / "extra").symlink_to(kernel)


def _linked_variant(kernel: Path) -> None:
    shutil.move(kernel / "build" / "torch-cpu", kernel.parent / "elsewhere")
    (kernel / "build" / "torch-cpu").symlink_to(kernel.parent / "elsewhere")


def _broken_link(kernel: Path) -> None:
    (kernel / "build" / "torch-cpu" / "extra").symlink_to("absent")


def _cache_folder(kernel: Path) -> None:
    (kernel / "build" / "torch-cpu" / ".cache").mkdir()


def _without_metadata(kernel: Path) -> None:
    (kernel / "build" / "torch-cpu" / "metadata.json").unlink()


def _renamed(kernel: Path) -> None:
    (kernel / "build" / "torch-cpu").rename(kernel / "build" / "my build")


def _without_builds(kernel: Path) -> None:
    shutil.rmtree(kernel / "build")
    (kernel / "build").mkdir()


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (_changed_file, DigestMismatch, "changed: '__init__.py'"),
        (_linked_file, InvalidRepository, "a link that leaves"),
        (_linked_folder, InvalidRepository, "a link to a folder"),
        (_linked_variant, InvalidRepository, "a link that leaves"),
        (_broken_link, InvalidRepository, "broken link"),
        (_cache_folder, InvalidRepository, "reserved on the Hub"),
        (_without_metadata, InvalidMetadata, "Cannot read"),
        (_renamed, InvalidVariant, "'my build'"),
        (_without_builds, RequestError, "has no builds"),
        (lambda kernel: shutil.rmtree(kernel / "build"), RequestError, "has no folder build/"),
        (lambda kernel: shutil.rmtree(kernel), RequestError, "which is not a folder"),
        (lambda kernel: _edit(kernel, version=2), RequestError, r"differ in `version` \(2: torch-cpu; 1: torch-cuda"),
        (lambda kernel: _edit(kernel, name="gelu"), RequestError, "differ in `name`"),
        (lambda kernel: _edit(kernel, backend={"type": "xpu"}), InvalidMetadata, "this variant needs 'cpu'"),
        (lambda kernel: _edit(kernel, id="1"), InvalidMetadata, "a Python identifier"),
    ],
)
def test_what_must_not_be_published_is_refused_before_anything_is_sent(
    hub: TestHub, kernel: Path, spoil: Callable[[Path], None], error: type[Exception], said: str
) -> None:
    spoil(kernel)
    with pytest.raises(error, match=said):
        upload_kernel(kernel, REPO)
    assert hub.requests == []


@pytest.mark.parametrize(("inside", "above"), [("build", "the folder above it"), ("build/torch-cpu", "two above it")])
def test_a_folder_inside_a_kernels_folder_is_recognized(kernel: Path, inside: str, above: str) -> None:
    with pytest.raises(RequestError, match=above):
        read_builds(kernel / inside)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"repo_id": None}, "give --repo-id org/name"),
        ({"repo_id": "relu"}, "expected 'org/name'"),
        ({"branch": "v2"}, "builds have version 1"),
        ({"branch": "a/b"}, "without slashes"),
        ({"branch": "0" * 40}, "not a commit"),
        ({"hub": "folder"}, "expected a URL"),
        ({"hub": "http://127.0.0.1:1"}, "No token for"),
        ({"token": ""}, "No token for"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(
    hub: TestHub, kernel: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        upload_kernel(kernel, **({"repo_id": REPO} | options))
    assert hub.requests == []


def test_builds_without_a_version_need_a_branch(hub: TestHub, tmp_path: Path) -> None:
    kernel = _builds(tmp_path / "kernel", "torch-cpu", version=None)
    with pytest.raises(RequestError, match="have no version"):
        upload_kernel(kernel, REPO)
    assert upload_kernel(kernel, REPO, branch="main", check=False).branch == "main"


# ---------------------------------------------------------------------------------------------------------------------
# Tokens, and Hubs that fail
# ---------------------------------------------------------------------------------------------------------------------


def test_no_token_is_said_with_where_it_comes_from(hub: TestHub, kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELS_HUB_TOKEN")
    with pytest.raises(RequestError, match="KERNELS_HUB_TOKEN"):
        upload_kernel(kernel, REPO)
    monkeypatch.delenv("KERNELS_HUB")
    with pytest.raises(RequestError, match="HF_TOKEN"):
        upload_kernel(kernel, REPO)


def test_huggingface_hubs_token_goes_to_its_own_hub_alone(
    hub: TestHub, kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.delenv("KERNELS_HUB_TOKEN")
    with pytest.raises(RequestError, match="No token for"):
        upload_kernel(kernel, REPO)
    monkeypatch.delenv("KERNELS_HUB")
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    assert upload_kernel(kernel, REPO).changed


def test_a_folder_or_no_network_is_no_hub_to_publish_to(
    hub: TestHub, kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NotInCache, match="HF_HUB_OFFLINE"):
        upload_kernel(kernel, REPO)
    monkeypatch.setenv("KERNELS_HUB", str(hub.root))
    with pytest.raises(RequestError, match=r"kernels serve .* --writable"):
        upload_kernel(kernel, REPO)


def test_a_refused_token_is_reported(hub: TestHub, kernel: Path) -> None:
    with pytest.raises(RequestError, match=r"refuses the token \(401\).*Nothing was published") as refused:
        upload_kernel(kernel, REPO, token="hf_other")
    assert "(Invalid credentials in Authorization header). " in str(refused.value)
    assert "developer.mozilla.org" not in str(refused.value)
    hub.fail("/api/repos/create", status=403)
    with pytest.raises(RequestError, match=r"refuses the token \(403\).*a writable Hub with enough space, and a token"):
        upload_kernel(kernel, REPO)


@pytest.mark.parametrize(
    ("pattern", "doing"),
    [
        ("/refs$", "asking for"),
        ("/api/repos/create", "creating"),
        ("/branch/", "creating the branch"),
        ("/tree/", "listing"),
        ("/xet-write-token/", "asking how"),
        ("/preupload/", "sending the files"),
        ("/objects/batch", "sending the files"),
        ("/lfs-upload/", "sending the files"),
        ("/commit/", "making the commit"),
    ],
)
def test_a_connection_that_drops_publishes_nothing_and_the_next_run_does(
    hub: TestHub, kernel: Path, pattern: str, doing: str
) -> None:
    hub.disconnect(pattern)
    with pytest.raises(HubUnavailable, match=f"broke while {doing}.*Nothing was published.*Run the same command again"):
        upload_kernel(kernel, REPO)
    assert not any(path.startswith("build/") for path in (_served(hub) if (hub.root / REPO / "v1").exists() else {}))
    hub.heal()
    assert upload_kernel(kernel, REPO).changed
    assert "build/torch-cpu/__init__.py" in _served(hub)


async def _without_answer(call: Any) -> None:
    async def discard(message: Any) -> None: ...

    await call.app(call.scope, call.receive, discard)
    call.abort()


def test_a_commit_whose_answer_is_lost_is_looked_up(hub: TestHub, kernel: Path) -> None:
    hub._add("/commit/", 1, _without_answer, None, 0)
    done = upload_kernel(kernel, REPO)
    assert done.commit == hub.commit(REPO, "v1")
    assert "build/torch-cpu/__init__.py" in done.sent
    assert hub.count("/commit/v1") == 1


def test_an_upload_outlives_a_hub_that_is_busy(hub: TestHub, kernel: Path, quick_retries: list[float]) -> None:
    hub.fail("/commit/v1", times=2, status=503)
    hub.fail("/objects/batch", times=7, status=429, headers={"Retry-After": "33"})
    said: list[str] = []
    assert upload_kernel(kernel, REPO, report=said.append).changed
    assert any("429" in line and line.endswith("trying again in 33 s") for line in said)
    assert any("503" in line and line.endswith("trying again in 5 s") for line in said)
    assert len(_published(hub)) == 1


def test_large_files_that_arrived_are_not_sent_twice(hub: TestHub, kernel: Path) -> None:
    hub.fail("/commit/", status=503)
    with pytest.raises(
        HubUnavailable, match=r"answered 503 while making the commit \(injected\)\. Nothing was published"
    ):
        upload_kernel(kernel, REPO)
    assert hub.count("/lfs-upload/") == 1
    hub.heal()
    assert upload_kernel(kernel, REPO).changed
    assert hub.count("/lfs-upload/") == 1


def _release(folder: Path, count: int = 6, **same: bytes) -> Path:
    """Builds with a library each, and libraries that all of them have."""
    for number in range(count):
        name = f"torch2{10 + number}-cxx11-cpu-x86_64-linux"
        files = {"_relu.abi3.so": LIBRARY + bytes([number]), **{f"{key}.so": data for key, data in same.items()}}
        for path, data in kernel_files(REPO, name, digest=True, files=files).items():
            target = folder / "build" / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    return folder


def test_an_upload_that_broke_sends_only_the_rest(hub: TestHub, tmp_path: Path) -> None:
    kernel = _release(tmp_path / "release")
    hub.fail("/lfs-upload/", after=4, status=500)
    with pytest.raises(HubUnavailable, match="answered 500 while sending the files"):
        upload_kernel(kernel, REPO)
    assert not any(path.startswith("build/") for path in _served(hub))
    arrived = sum(each.status == 200 and "/lfs-upload/" in each.path for each in hub.requests)
    assert arrived == 4
    hub.heal()
    hub.clear()
    done = upload_kernel(kernel, REPO)
    assert hub.count("/lfs-upload/") == 2
    assert len(_published(hub)) == 1
    assert len(done.variants) == 6


def test_files_with_the_same_content_are_sent_once(hub: TestHub, tmp_path: Path) -> None:
    kernel = _release(tmp_path / "release", 4, one=LIBRARY, other=LIBRARY)
    upload_kernel(kernel, REPO)
    assert hub.count("/lfs-upload/") == 4 + 1
    assert sum(path.endswith(".so") for path in _served(hub)) == 4 * 3


def test_a_process_that_is_killed_loses_nothing_that_was_sent(hub: TestHub, tmp_path: Path) -> None:
    kernel = _release(tmp_path / "release")
    hub.hang("/lfs-upload/", after=3)
    command = [sys.executable, "-m", "kernels", "upload", str(kernel), "--repo-id", REPO]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while hub.count("/lfs-upload/") < 6 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    hub.heal()
    hub.clear()
    assert upload_kernel(kernel, REPO).changed
    assert hub.count("/lfs-upload/") == 3


def test_what_another_branch_has_is_not_sent_again(hub: TestHub, tmp_path: Path) -> None:
    kernel = _release(tmp_path / "release")
    upload_kernel(kernel, REPO)
    shutil.rmtree(hub.root / ".incoming")
    hub.clear()
    upload_kernel(kernel, REPO, branch="next")
    assert hub.count("/lfs-upload/") == 0
    assert _served(hub, "next").keys() == _served(hub).keys()


def test_a_file_that_changes_while_it_is_sent_is_not_published(
    hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = _release(tmp_path / "release", 1)
    send = sending.PublishClient.send

    def slow(*arguments: Any, **options: Any) -> None:
        send(*arguments, **options)
        (kernel / "build" / "torch210-cxx11-cpu-x86_64-linux" / "layers.py").write_text("other")

    monkeypatch.setattr(sending.PublishClient, "send", slow)
    with pytest.raises(RequestError, match=r"Nothing was published: .*layers\.py changed while the files were sent"):
        upload_kernel(kernel, REPO)
    assert _published(hub) == []


@pytest.mark.parametrize(
    ("pattern", "status", "said"),
    [
        ("/lfs-upload/", 507, r"has no space for this \(507\) while sending the files"),
        ("/commit/", 413, r"has no space for this \(413\) while making the commit"),
        ("/commit/", 403, r"refuses the token \(403\) while making the commit \(quota\)"),
    ],
)
def test_a_full_hub_is_said(hub: TestHub, kernel: Path, pattern: str, status: int, said: str) -> None:
    hub.fail(pattern, status=status, body=b'{"error": "quota"}')
    with pytest.raises(RequestError, match=said):
        upload_kernel(kernel, REPO)
    assert _published(hub) == []


def _meanwhile(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Do something after the branch was read, and before the commit; once."""
    send = publishing.send_files
    actions = [action]

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        if actions:
            actions.pop()()
        return send(*arguments, **options)

    monkeypatch.setattr(publishing, "send_files", meanwhile)


def test_a_commit_to_other_files_meanwhile_is_kept_and_published_upon(
    hub: TestHub, kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = _builds(kernel.parent / "theirs", "torch-xpu")
    ours = _builds(kernel.parent / "ours", "torch-cuda")
    _meanwhile(monkeypatch, lambda: upload_kernel(theirs, REPO, keep_variants=True))
    said: list[str] = []
    done = upload_kernel(ours, REPO, keep_variants=True, report=said.append)
    assert {path.split("/")[1] for path in _served(hub) if path.startswith("build/")} == {"torch-cuda", "torch-xpu"}
    assert any("publishing on top of it" in line for line in said)
    assert done.commit == hub.commit(REPO, "v1")
    for branch in ("v1", "main"):
        assert all(f"`{name}`" in _card(hub, REPO, branch) for name in ("torch-cuda", "torch-xpu"))


@pytest.mark.parametrize("variant", ["torch-cuda", "torch-xpu"])
def test_a_commit_to_the_same_files_meanwhile_is_not_overwritten(
    hub: TestHub, kernel: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    theirs = _builds(kernel.parent / "theirs", variant, seed="theirs")
    _meanwhile(monkeypatch, lambda: upload_kernel(theirs, REPO, keep_variants=True))
    with pytest.raises(RequestError, match="Someone else changed the branch meanwhile") as refused:
        upload_kernel(_builds(kernel.parent / "ours", "torch-cuda"), REPO, remove_variants=True)  # theirs would go
    assert f"build/{variant}/" in str(refused.value)
    assert b"theirs" in _served(hub)[f"build/{variant}/__init__.py"]


def test_the_same_builds_published_by_someone_else_meanwhile_are_enough(
    hub: TestHub, kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _meanwhile(monkeypatch, lambda: upload_kernel(kernel, REPO))
    assert upload_kernel(kernel, REPO).commit == hub.commit(REPO, "v1")
    assert len(_published(hub)) == 1


@pytest.mark.parametrize(("status", "error"), [(400, RequestError), (404, FileNotFoundError), (429, HubUnavailable)])
def test_what_a_hub_refuses_is_reported(hub: TestHub, kernel: Path, status: int, error: type[Exception]) -> None:
    hub.fail("/branch/", status=status)
    with pytest.raises(error, match=f"answered {status} while creating the branch"):
        upload_kernel(kernel, REPO)


def test_a_card_that_a_hub_refuses_stops_the_upload(hub: TestHub, kernel: Path) -> None:
    hub.fail("/validate-yaml", status=400, body=b'{"errors": [{"message": "license is unknown"}]}')
    with pytest.raises(RequestError, match="license is unknown"):
        upload_kernel(kernel, REPO)
    assert _published(hub) == []


# ---------------------------------------------------------------------------------------------------------------------
# The whole way
# ---------------------------------------------------------------------------------------------------------------------

_LOAD = """
import sys, torch
from kernels import get_kernel

kernel = get_kernel("acme/rms-norm", version=1)
x = torch.randn(3, 8)
torch.testing.assert_close(kernel.rms_norm(x, torch.ones(8), 1e-6), torch.nn.functional.rms_norm(x, (8,), eps=1e-6))
print(kernel.__file__)
"""


def test_a_kernel_is_built_published_and_loaded_in_a_fresh_process(hub: TestHub, tmp_path: Path) -> None:
    built = tmp_path / "built"
    build_kernel(SOURCES / "rms-norm" / "noarch", built, backends=["cpu"])
    command = [sys.executable, "-m", "kernels", "upload", str(built), "--repo-id", "acme/rms-norm"]
    uploaded = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert uploaded.returncode == 0, uploaded.stderr
    loaded = subprocess.run([sys.executable, "-c", _LOAD], capture_output=True, text=True, timeout=120)
    assert loaded.returncode == 0, loaded.stderr
    assert hub.commit("acme/rms-norm", "v1") in loaded.stdout


def test_two_uploads_in_threads_leave_each_others_settings_alone(hub: WritableHub, tmp_path: Path) -> None:
    before = constants.REPO_TYPES, constants.HF_HUB_DISABLE_XET
    hub.latency = 0.02
    folders = [_builds(tmp_path / name, "torch-cpu", seed=name) for name in ("one", "two", "three")]
    with ThreadPoolExecutor() as pool:
        done = [pool.submit(upload_kernel, folder, f"acme/{folder.name}", check=False) for folder in folders]
    assert all(each.result().commit for each in done)
    assert before == (constants.REPO_TYPES, constants.HF_HUB_DISABLE_XET)
