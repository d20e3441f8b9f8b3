"""A cache that others can write: what they put there does not decide what is trusted, checked or locked.

Attackers here own their files, or can write the folders: so they can also rename what the victim owns.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub

from kernels import get_kernel, has_kernel, install_kernel, settings
from kernels.cache.records import Answer
from kernels.cache.store import RepoStore
from kernels.errors import UntrustedPublisher
from kernels.models.cache_places import endpoint_key
from kernels.models.snapshot import RepoFile
from kernels.support.record_file import StoredRecord, is_ours, read_record, write_record

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has other owners and permissions")

#: Another user of the machine.
SOMEBODY = 54321

COMMIT = "c" * 40


class Fact(StoredRecord):
    value: int


def as_somebody_else(path: Path) -> None:
    """Make a file look as somebody else's: by its owner where that can be changed, else by who may write it."""
    if os.geteuid() == 0:
        os.chown(path, SOMEBODY, SOMEBODY, follow_symlinks=False)
    else:
        path.chmod(0o664)


def all_as_somebody_else(root: Path) -> None:
    for parent, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(parent, name)
            if os.geteuid() == 0 or (not path.is_symlink() and path.is_file()):
                as_somebody_else(path)


@pytest.fixture
def umask() -> Iterator[Callable[[int], None]]:
    before = os.umask(0o022)
    yield lambda value: (os.umask(value), None)[1]
    os.umask(before)


# Records


def planted(path: Path, content: str | None = None) -> None:
    """A record as an attacker writes it, who knows the form."""
    text = path.read_text() if content is None else content
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o444)
    as_somebody_else(path)


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o027, 0o077, 0o277, 0o777])
def test_own_records_count_whatever_the_umask(umask: Callable[[int], None], tmp_path: Path, mask: int) -> None:
    folder = tmp_path / "kind"
    folder.mkdir(mode=0o775)
    umask(mask)
    write_record(folder / "a.json", Fact(3))
    found = read_record(folder / "a.json", Fact)
    assert found is not None
    assert found.value == 3
    mode = stat.S_IMODE((folder / "a.json").stat().st_mode)
    assert mode & 0o333 == 0
    assert mode & 0o044 & mask == 0
    write_record(folder / "a.json", Fact(4))  # over a read-only one
    found = read_record(folder / "a.json", Fact)
    assert found is not None
    assert found.value == 4
    assert [path.name for path in folder.iterdir()] == ["a.json"]


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o464, 0o446, 0o666, 0o664, 0o777])
def test_a_record_that_anybody_may_write_is_none(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a.json"
    write_record(path, Fact(3))
    path.chmod(mode)
    assert read_record(path, Fact) is None
    write_record(path, Fact(3))
    assert read_record(path, Fact) is not None


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("owner", [SOMEBODY, 65534])
def test_a_record_of_somebody_else_is_none(tmp_path: Path, owner: int) -> None:
    path = tmp_path / "a.json"
    write_record(path, Fact(3))
    os.chown(path, owner, -1)
    assert not is_ours(path.stat())
    assert read_record(path, Fact) is None


@pytest.mark.parametrize("how", ["renamed", "hard link", "symbolic link", "folder renamed", "folder linked"])
def test_a_record_under_another_ones_name_is_none(tmp_path: Path, how: str) -> None:
    one, other = tmp_path / "one" / "a.json", tmp_path / "other" / "a.json"
    write_record(one, Fact(3))
    if how == "folder renamed":
        one.parent.rename(other.parent)
    elif how == "folder linked":
        other.parent.symlink_to(one.parent)
    else:
        other.parent.mkdir()
        {"renamed": os.rename, "hard link": os.link, "symbolic link": os.symlink}[how](one, other)
    assert read_record(other, Fact) is None


@pytest.mark.parametrize("what", ["a pipe", "a folder", "a device", "too large", "no folder"])
def test_what_is_no_file_of_a_bounded_size_is_no_record(tmp_path: Path, what: str) -> None:
    path = tmp_path / "kind" / "a.json"
    path.parent.mkdir()
    if what == "a pipe":
        os.mkfifo(path, 0o444)
    elif what == "a folder":
        path.mkdir()
    elif what == "a device":
        path.symlink_to("/dev/zero")
    elif what == "too large":
        path.write_text(json.dumps({"value": 3, "about": "/".join(path.parts[-3:])}) + " " * 1024 * 1024)
        path.chmod(0o444)
    else:
        path.parent.rmdir()
    assert read_record(path, Fact) is None


def test_nothing_is_written_where_a_link_stands_in_the_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "kind").symlink_to(tmp_path / "victim")
    write_record(tmp_path / "kind" / "a.json", Fact(3))
    assert list((tmp_path / "victim").iterdir()) == []


def test_listings_and_branches_are_those_of_their_own_commit_and_hub(tmp_path: Path) -> None:
    store, other = (RepoStore(tmp_path, name) for name in ("acme/relu", "mallory/relu"))
    files = [RepoFile("build/torch-cpu/__init__.py", 3, "a" * 40)]
    other.keep_listed("http://one", COMMIT, files)
    other.keep_answer("http://one", Answer("hub", "http://one", 1.0, {"v1": COMMIT}))
    for name, wanted in (
        (f"{COMMIT}-{endpoint_key('http://two')}.json", lambda: other.listed("http://two", COMMIT)),
        (f"{'d' * 40}-{endpoint_key('http://one')}.json", lambda: other.listed("http://one", "d" * 40)),
        (f"heads-{endpoint_key('http://two')}.json", lambda: other.answer("http://two")),
    ):
        kind = "heads-" if name.startswith("heads") else COMMIT
        [source] = (other.folder / "index").glob(f"{kind}*{endpoint_key('http://one')}.json")
        os.link(source, source.with_name(name))
        assert wanted() is None
    other.folder.rename(store.folder)
    assert store.listed("http://one", COMMIT) is None
    assert store.answer("http://one") is None


# Verdicts


def verdict_of(hub: TestHub, publisher: str) -> Path:
    return settings.cache_dir() / ".locks" / "kernels-verdicts" / endpoint_key(hub.url) / f"{publisher}.json"


def test_a_planted_verdict_makes_nobody_trusted(hub: TestHub, new_process: Callable[[], None]) -> None:
    hub.make_repo("mallory/relu")
    path = verdict_of(hub, "mallory")
    path.parent.mkdir(parents=True)
    about = "/".join(path.parts[-3:])
    content = json.dumps({"publisher": "mallory", "trusted": True, "time": time.time(), "about": about})
    planted(path, content)
    with pytest.raises(UntrustedPublisher):
        get_kernel("mallory/relu", version=1)


def test_a_verdict_renamed_to_another_publisher_or_hub_counts_for_neither(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.make_repo("acme/relu")
    hub.make_repo("mallory/relu")
    assert has_kernel("acme/relu", version=1)
    shutil.copy2(verdict_of(hub, "acme"), verdict_of(hub, "mallory"))
    os.link(verdict_of(hub, "acme"), verdict_of(hub, "acme").with_name("moved.json"))
    with pytest.raises(UntrustedPublisher):
        get_kernel("mallory/relu", version=1)
    with TestHub(tmp_path / "other", trusted=()) as other:
        other.make_repo("acme/relu")
        there = verdict_of(other, "acme")
        verdict_of(hub, "acme").parent.rename(there.parent)
        monkeypatch.setenv("KERNELS_HUB", other.url)
        new_process()
        with pytest.raises(UntrustedPublisher):
            get_kernel("acme/relu", version=1)


def test_a_downloaded_file_renamed_to_a_verdict_counts_for_nothing(
    hub: TestHub, new_process: Callable[[], None], tmp_path: Path
) -> None:
    """The victim owns it and nobody else can write it, but its content is the attacker's."""
    path = verdict_of(hub, "mallory")
    about = "/".join(path.parts[-3:])
    verdict = json.dumps({"publisher": "mallory", "trusted": True, "time": time.time(), "about": about})
    hub.make_repo("acme/data", variants={"torch-cpu": {"notes.json": verdict}})
    hub.make_repo("mallory/relu")
    downloaded = (install_kernel("acme/data", version=1) / "notes.json").resolve()
    assert is_ours(downloaded.stat())
    downloaded.rename(path)
    new_process()
    with pytest.raises(UntrustedPublisher):
        get_kernel("mallory/relu", version=1)


# What was found of a build's content


@pytest.fixture
def loaded_in_a_new_process(hub: TestHub) -> Callable[[], str]:
    def load() -> str:
        code = "from kernels import get_kernel; print(get_kernel('acme/relu', version=1).__doc__)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        return done.stdout + done.stderr

    return load


def test_a_planted_mark_that_content_was_compared_is_not_believed(
    hub: TestHub, isolated_env: Path, loaded_in_a_new_process: Callable[[], str]
) -> None:
    from kernels.operations.install_check import CheckRecord
    from kernels.trust.content import BuildContent

    hub.make_repo("acme/relu")
    folder = install_kernel("acme/relu", version=1)
    init = (folder / "__init__.py").resolve()
    init.write_bytes(init.read_bytes().replace(b'"""Kernel', b'"""Evil  '))
    [path] = isolated_env.rglob("*.checked")
    mark = json.loads(path.read_text())
    mark["files"] = BuildContent(folder).identities()
    planted(path, json.dumps(mark))
    assert "Evil" not in loaded_in_a_new_process()
    # The same content in the victim's own record would have been believed: this is what the attack is about.
    init.write_bytes(init.read_bytes().replace(b'"""Kernel', b'"""Evil  '))
    write_record(path, CheckRecord(mark["facts"], BuildContent(folder).identities()))
    assert "Evil" in loaded_in_a_new_process()


def test_a_mark_of_another_build_is_not_believed(hub: TestHub, isolated_env: Path) -> None:
    from kernels.operations.install_check import CheckRecord

    hub.make_repo("acme/relu")
    hub.make_repo("acme/gelu")
    marks = []
    for name in ("relu", "gelu"):
        install_kernel(f"acme/{name}", version=1)
        marks += list((isolated_env / f"kernels--acme--{name}" / "index").glob("*.checked"))
    os.replace(marks[0], marks[1])
    assert read_record(marks[1], CheckRecord) is None


# A cache of a team


@pytest.mark.parametrize("network", ["online", "offline"])
@pytest.mark.parametrize("asked", ["version", "commit"])
def test_a_cache_that_somebody_else_filled_serves(
    hub: TestHub,
    isolated_env: Path,
    new_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    network: str,
) -> None:
    hub.make_repo("acme/relu", digest=True)
    install_kernel("acme/relu", version=1)
    all_as_somebody_else(isolated_env)
    monkeypatch.setenv("KERNELS_TRUSTED_PUBLISHERS", "acme")
    new_process()
    hub.clear()
    if network == "offline":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    which: dict[str, Any] = {"version": 1} if asked == "version" else {"revision": hub.commit("acme/relu")}
    assert get_kernel("acme/relu", **which).repo_id == "acme/relu"
    # More work than with one's own records, but nothing is downloaded.
    assert hub.count("/resolve/") == 0
    assert hub.count("/tree/") == (0 if network == "offline" else 1)


def test_a_team_that_shares_a_cache_loads_in_turn(
    hub: TestHub, isolated_env: Path, new_process: Callable[[], None]
) -> None:
    hub.make_repo("acme/relu", digest=True)
    folder = install_kernel("acme/relu", version=1)
    for _ in range(3):  # each finds the records of the one before
        all_as_somebody_else(isolated_env)
        new_process()
        hub.clear()
        assert install_kernel("acme/relu", version=1) == folder
        assert hub.count("/resolve/") == 0
        # From then on they are one's own.
        new_process()
        hub.clear()
        assert install_kernel("acme/relu", version=1) == folder
        assert (hub.count("/tree/"), hub.count("overview"), hub.count("/resolve/")) == (0, 0, 0)


def test_without_a_network_a_planted_listing_does_not_change_what_is_wanted(
    hub: TestHub, isolated_env: Path, new_process: Callable[[], None]
) -> None:
    """A listing says which hashes the files must have."""
    hub.make_repo("acme/relu")
    install_kernel("acme/relu", version=1)
    [index] = (isolated_env / "kernels--acme--relu" / "index").glob(f"{hub.commit('acme/relu')}-*.json")
    _, about = json.loads(index.read_text())
    planted(index, json.dumps([[], about]))
    new_process()
    hub.clear()
    install_kernel("acme/relu", version=1)
    assert hub.count("/tree/") == 1
