"""kernels.lock is read in both formats, written in one, and refused with the entry named when it is neither."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kernels.errors import LockError
from kernels.models.lockfile import ContentHash, Lock, Pin, hashes_path
from kernels.models.requirement import Requirement

ONE, TWO, LONG = "1" * 40, "2" * 40, "3" * 64
HASH = "sha256-" + "0123456789abcdef" * 4

#: What the existing client writes for these pins, whatever the order in which it is told of them.
WRITTEN = """\
[
  {
    "dependency": {
      "repo-id": "org/B",
      "revision": "abc"
    },
    "lock": {
      "commit": "1111111111111111111111111111111111111111"
    }
  },
  {
    "dependency": {
      "repo-id": "org/a-x",
      "version": 1
    },
    "lock": {
      "commit": "2222222222222222222222222222222222222222"
    }
  },
  {
    "dependency": {
      "repo-id": "org/a_x",
      "version": 2
    },
    "lock": {
      "commit": "1111111111111111111111111111111111111111"
    }
  },
  {
    "dependency": {
      "repo-id": "org/a_x",
      "version": 10
    },
    "lock": {
      "commit": "2222222222222222222222222222222222222222"
    }
  },
  {
    "dependency": {
      "repo-id": "org/a_x",
      "revision": "main"
    },
    "lock": {
      "commit": "3333333333333333333333333333333333333333333333333333333333333333"
    }
  }
]"""
PINS = (
    Pin(Requirement("org/a_x", revision="main"), LONG),
    Pin(Requirement("org/a_x", version=10), TWO),
    Pin(Requirement("org/B", revision="abc"), ONE),
    Pin(Requirement("org/a-x", version=1), TWO),
    Pin(Requirement("org/a_x", version=2), ONE),
)


def entry(repo_id: str = "org/relu", commit: str = ONE, **named: Any) -> dict[str, Any]:
    return {"dependency": {"repo-id": repo_id, **(named or {"version": 1})}, "lock": {"commit": commit}}


def older(repo_id: str = "org/relu", sha: str = ONE, **variants: str) -> dict[str, Any]:
    hashes = {name: {"hash": value, "hash_type": "git_lfs_concat"} for name, value in variants.items()}
    return {"repo_id": repo_id, "sha": sha, "variants": hashes}


def encoded(*entries: Any) -> bytes:
    return json.dumps(entries).encode()


# Written


def test_it_is_written_as_the_existing_client_writes_it() -> None:
    assert Lock(PINS).to_bytes().decode() == WRITTEN
    assert Lock(PINS[::-1]).to_bytes().decode() == WRITTEN
    assert Lock().to_bytes() == b"[]"


def test_what_is_written_is_read_back() -> None:
    assert Lock.from_bytes(WRITTEN.encode()).pins == Lock(PINS).pins
    assert Lock.from_bytes(WRITTEN.encode()).to_bytes().decode() == WRITTEN


def test_hashes_are_written_in_the_order_of_names_and_read_back(tmp_path: Path) -> None:
    file = tmp_path / "kernels.lock"
    variants = {"torch-cuda": ContentHash("git_lfs_concat", HASH), "torch-cpu": ContentHash("sha256sum", HASH)}
    lock = Lock(PINS[:2], {("org/b", TWO): {}, ("org/a_x", LONG): variants})
    file.write_bytes(lock.to_bytes())
    hashes_path(file).write_bytes(lock.hashes_to_bytes())
    assert Lock.read(file).hashes == lock.hashes
    written = json.loads(lock.hashes_to_bytes())
    assert [(each["repo-id"], list(each["variants"])) for each in written["kernels"]] == [
        ("org/a_x", ["torch-cpu", "torch-cuda"]),
        ("org/b", []),
    ]


# Read


@pytest.mark.parametrize(
    ("written", "pin"),
    [
        (entry(version=0), Pin(Requirement("org/relu", version=0), ONE)),
        (entry(revision="refs/pr/1"), Pin(Requirement("org/relu", revision="refs/pr/1"), ONE)),
        (entry(version=1, revision=None), Pin(Requirement("org/relu", version=1), ONE)),
        (entry(commit="AB" * 20), Pin(Requirement("org/relu", version=1), "ab" * 20)),
        (older(), Pin(Requirement("org/relu"), ONE)),
        (older(sha="AB" * 32), Pin(Requirement("org/relu"), "ab" * 32)),
        ({"repo_id": "org/relu", "sha": ONE}, Pin(Requirement("org/relu"), ONE)),
    ],
    ids=["version 0", "revision", "null", "capital letters", "older", "older, SHA-256", "older, without variants"],
)
def test_an_entry_is_read(written: dict[str, Any], pin: Pin) -> None:
    assert Lock.from_bytes(encoded(written)).pins == (pin,)


def test_the_older_format_is_recognized_with_its_hashes() -> None:
    lock = Lock.from_bytes(encoded(older("org/b"), older("org/a", **{"torch-cpu": HASH})))
    assert lock.older
    assert [pin.requirement.repo_id for pin in lock.pins] == ["org/a", "org/b"]
    assert lock.hashes == {("org/a", ONE): {"torch-cpu": ContentHash("git_lfs_concat", HASH)}}
    assert not Lock.from_bytes(encoded(entry())).older


BAD = {
    "nothing": b"",
    "no JSON": b"[{",
    "a byte order mark": b"\xef\xbb\xbf[]",
    "UTF-16": "[]".encode("utf-16"),
    "bytes that are no text": b'["\xff"]',
    "half a character": b'[{"\\ud800": 1}]',
    "no list": b'{"dependency": 1}',
    "a number": b"1",
    "a number of 5,000 digits": b"[" + b"9" * 5000 + b"]",
    "not a number": b"[NaN]",
    "nested too deep": b"[" * 200_000,
    "an entry that is no object": b"[1]",
    "no lock": encoded({"dependency": {"repo-id": "org/relu", "version": 1}}),
    "another field": encoded(entry() | {"hash": 1}),
    "another field of the dependency": encoded(entry(version=1, branch="v1")),
    "another field of the lock": encoded(entry() | {"lock": {"commit": ONE, "tree": ONE}}),
    "a field that stands twice": encoded(entry()).replace(b'{"commit"', b'{"commit": "x", "commit"'),
    "a control character in a field": b'[{"\\u001b[2J": 1}]',
    "neither version nor revision": encoded(entry(revision=None)),
    "both version and revision": encoded(entry(version=1, revision="main")),
    "a version in quotes": encoded(entry(version="1")),
    "a revision that leaves its folder": encoded(entry(revision="../x")),
    "a revision with a line break": encoded(entry(revision="main\n")),
    "a name without a publisher": encoded(entry("relu")),
    "a name with a control character": encoded(entry("org/re\x1b[2Jlu")),
    "a name that leaves its folder": encoded(entry("../relu")),
    "a name that is a number": encoded(entry() | {"dependency": {"repo-id": 1, "version": 1}}),
    "a shortened commit": encoded(entry(commit="1234567")),
    "a branch for a commit": encoded(entry(commit="main")),
    "a commit that is a number": encoded(entry(commit=1)),  # type: ignore[arg-type]
    "the same twice": encoded(entry(), entry()),
    "the same with two commits": encoded(entry(), entry(commit=TWO)),
    "both formats": encoded(entry("org/a"), older("org/b")),
    "older: the same twice": encoded(older(), older(sha=TWO)),
    "older: another field": encoded(older() | {"version": 1}),
    "older: no commit": encoded({"repo_id": "org/relu"}),
    "older: a hash that is none": encoded(older(**{"torch-cpu": "sha256-0"})),
    "older: another kind of hash": encoded(
        older() | {"variants": {"torch-cpu": {"hash": HASH, "hash_type": "md5"}}},
    ),
    "older: variants that are a list": encoded(older() | {"variants": []}),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_what_is_no_lock_is_refused_in_one_line_that_names_the_file(data: bytes) -> None:
    with pytest.raises(LockError) as refused:
        Lock.from_bytes(data, where="gpu.lock")
    message = str(refused.value)
    assert message.startswith("gpu.lock")
    assert message.isprintable()
    assert len(message) < 600


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (encoded(entry("org/a"), entry("org/b", commit="v1")), "got 'v1' - at `$[1].lock`"),
        (encoded(entry("org/a"), entry("org/b"), entry("org/a")), "org/a version 1 twice"),
        (encoded(entry("org/a"), entry("org/b") | {"x": 1}), "$[1]"),
        (encoded(older("org/a"), older("org/b", **{"torch-cpu": "no"})), "`$[1].variants[...].hash`"),
    ],
    ids=["commit", "twice", "field", "hash"],
)
def test_the_entry_that_is_wrong_is_named(data: bytes, named: str) -> None:
    with pytest.raises(LockError) as refused:
        Lock.from_bytes(data)
    assert named in str(refused.value)


def test_a_file_that_cannot_be_read_is_a_lock_error(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.lock", tmp_path):
        with pytest.raises(LockError, match="Cannot read"):
            Lock.read(path)


@pytest.mark.parametrize("what", ["a link that leads nowhere", "a pipe", "a folder"])
def test_hashes_that_cannot_be_read_are_not_passed_over(what: str, tmp_path: Path) -> None:
    file = tmp_path / "kernels.lock"
    file.write_bytes(Lock().to_bytes())
    beside = hashes_path(file)
    if what == "a pipe":
        os.mkfifo(beside)
    elif what == "a folder":
        beside.mkdir()
    else:
        beside.symlink_to("elsewhere.json")
    with pytest.raises(LockError, match=r"Cannot read .*kernels\.hashes\.json"):
        Lock.read(file)


def test_a_file_is_not_read_beyond_what_a_lock_can_have(tmp_path: Path) -> None:
    file = tmp_path / "kernels.lock"
    with file.open("wb") as large:
        large.truncate(100_000_000)
    with pytest.raises(LockError, match="more than 2097152 bytes"):
        Lock.read(file)


def kernel(**changes: Any) -> dict[str, Any]:
    variants = {"torch-cpu": {"hash": HASH, "hash-type": "sha256sum"}}
    return {"repo-id": "org/relu", "commit": ONE, "variants": variants} | {
        name.replace("_", "-"): value for name, value in changes.items()
    }


BAD_HASHES = {
    "no JSON": b"{",
    "a list": b"[]",
    "another format": json.dumps({"format": 2, "kernels": []}).encode(),
    "another field": json.dumps({"format": 1, "kernels": [], "x": 1}).encode(),
    "nested too deep": b'{"kernels": ' + b"[" * 200_000,
    "half a character": b'{"format": 1, "kernels": [], "\\udfff": 1}',
    **{
        name: json.dumps({"format": 1, "kernels": kernels}).encode()
        for name, kernels in {
            "a commit twice": [kernel(), kernel()],
            "a name that is none": [kernel(repo_id="relu")],
            "a commit that is none": [kernel(commit="v1")],
            "a hash that is none": [kernel(variants={"torch-cpu": {"hash": "x", "hash-type": "sha256sum"}})],
            "another kind of hash": [kernel(variants={"torch-cpu": {"hash": HASH, "hash-type": "md5"}})],
            "no kind of hash": [kernel(variants={"torch-cpu": {"hash": HASH}})],
            "variants that are a list": [kernel(variants=[])],
        }.items()
    },
}


@pytest.mark.parametrize("data", BAD_HASHES.values(), ids=BAD_HASHES)
def test_what_is_no_file_of_hashes_is_refused_in_one_line_that_names_it(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "kernels.lock"
    file.write_bytes(b"[]")
    hashes_path(file).write_bytes(data)
    with pytest.raises(LockError) as refused:
        Lock.read(file)
    assert str(refused.value).startswith(str(tmp_path / "kernels.hashes.json"))
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "data", [b"{}", encoded(entry(commit="xyz")), encoded(older("relu"))], ids=["{}", "xyz", "name"]
)
def test_a_broken_lock_says_what_helps_also_one_that_came_with_a_package(data: bytes) -> None:
    with pytest.raises(LockError, match="Lock again: kernels lock --upgrade"):
        Lock.from_bytes(data)
    with pytest.raises(LockError) as refused:
        Lock.from_bytes(data, where="/env/site-packages/model-1.0.dist-info/kernels.lock")
    assert "It came with model-1.0: install that package again" in str(refused.value)
    assert "kernels lock" not in str(refused.value)


# Asked


@pytest.mark.parametrize(
    ("asked", "commit"),
    [
        (Requirement("org/a_x", version=10), TWO),
        (Requirement("org/a_x", revision="main"), LONG),
        (Requirement("org/a_x", revision=LONG), LONG),  # the pinned commit itself
        (Requirement("org/B"), ONE),  # the only pin of the repository
        (Requirement("org/other", version=1), None),
    ],
    ids=str,
)
def test_the_pin_of_a_requirement_is_found(asked: Requirement, commit: str | None) -> None:
    pin = Lock(PINS).find(asked)
    assert (pin.commit if pin is not None else None) == commit


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (Requirement("org/a_x", version=3), ["org/a_x version 3", "version 10", "--upgrade-repo org/a_x"]),
        (Requirement("org/a_x", revision="dev"), ["org/a_x at dev", "version 2", "main"]),
        (Requirement("org/a_x"), ["without a version", "version 2", "version 10", "main"]),
    ],
    ids=["version", "revision", "neither"],
)
def test_something_else_than_what_is_pinned_is_an_error_that_names_both(asked: Requirement, named: list[str]) -> None:
    with pytest.raises(LockError) as refused:
        Lock(PINS, where="gpu.lock").find(asked)
    assert [part for part in ["gpu.lock", *named] if part not in str(refused.value)] == []
