"""Where a requirement leads: locks, renames and redirects, publishers and required signatures, over data alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from logged import warned
from memory_source import MemorySource, commit_of, context, kernel, moved_to

from kernels.errors import (
    InvalidRepository,
    LockError,
    NotLocked,
    RepositoryNotFound,
    RevisionNotFound,
    UntrustedPublisher,
    UntrustedSignature,
)
from kernels.models.lockfile import ContentHash, Lock, Pin
from kernels.models.requirement import Requirement
from kernels.resolver.context import ResolveContext
from kernels.resolver.find import find
from kernels.resolver.found import FoundSnapshot
from kernels.resolver.locks import NO_LOCK, ActiveLock
from kernels.trust.policy import Policy, Rule
from kernels.trust.publishers import Admission, TrustPolicy

RELU = Requirement("acme/relu", version=1)
V2 = {"v1": kernel(), "v2": kernel(version=2)}


def found(within: ResolveContext, asked: Requirement, *, admit: bool = True) -> FoundSnapshot:
    return find(within, asked, lambda each: each, admit=admit)


def lock(*pins: tuple[str, str], required: str | None = None, content: bool = False) -> ActiveLock:
    """A lock that pins version 1 of repositories to the heads of branches, perhaps with their content."""
    hashes = {
        (repo_id, commit_of(repo_id, branch)): {"torch-cpu": ContentHash("sha256sum", f"sha256-{'0' * 64}")}
        for repo_id, branch in pins
    }
    locked = tuple(Pin(Requirement(repo_id, version=1), commit_of(repo_id, branch)) for repo_id, branch in pins)
    return ActiveLock(Lock(locked, hashes if content else {}), required)


@pytest.mark.parametrize(
    ("asked", "pins", "steps"),
    [
        ("acme/plain version 1", (), "acme/plain@v1"),
        ("acme/plain version 2", (), "acme/plain@v2"),
        ("acme/plain", (), "acme/plain@v2"),
        ("acme/main", (), "acme/main@main"),
        ("acme/plain", (("acme/plain", "v1"),), "acme/plain@v1"),
        ("acme/plain version 1", (("acme/plain", "v2"),), "acme/plain@v2"),
        ("acme/plain version 1", (("acme/other", "v2"),), "acme/plain@v1"),
        ("acme/moved version 1", (), "acme/moved@v1 acme/plain@v1"),
        ("acme/twice version 1", (), "acme/twice@v1 acme/moved@v1 acme/plain@v1"),
        ("acme/to-v2 version 1", (), "acme/to-v2@v1 acme/plain@v2"),
        ("acme/moved version 1", (("acme/moved", "v1"), ("acme/plain", "v2")), "acme/moved@v1 acme/plain@v2"),
        ("acme/renamed version 1", (), "acme/plain@v1"),
        ("acme/renamed-twice version 1", (), "acme/plain@v1"),
        ("acme/to-renamed version 1", (), "acme/to-renamed@v1 acme/plain@v1"),
    ],
)
def test_a_requirement_leads_to_the_commit_of_its_lock_or_branch(
    asked: str, pins: tuple[tuple[str, str], ...], steps: str
) -> None:
    source = MemorySource(
        {
            "acme/plain": V2,
            "acme/main": {"main": kernel(version=None)},
            "acme/moved": moved_to("acme/plain"),
            "acme/twice": moved_to("acme/moved"),
            "acme/to-v2": moved_to("acme/plain", "v2"),
            "acme/to-renamed": moved_to("acme/renamed"),
        },
        renamed={"acme/renamed": "acme/plain", "acme/renamed-twice": "acme/renamed"},
    )
    repo_id, _, version = asked.partition(" version ")
    requirement = Requirement(repo_id, version=int(version) if version else None)
    last = found(context(source, lock=lock(*pins)), requirement)
    expected = [tuple(step.split("@")) for step in steps.split()]
    way = [(step.snapshot.repo_id, step.snapshot.commit) for step in last.steps]
    assert way == [(repo_id, commit_of(repo_id, branch)) for repo_id, branch in expected]
    assert last.admission is Admission.GRANTED
    assert requirement in (last.steps[0].asked, *last.steps[0].former)
    assert [step.lock is not None for step in last.steps] == [step[0] in dict(pins) for step in expected]


@pytest.mark.parametrize(
    ("asked", "locked", "error", "message"),
    [
        ("acme/nothing", NO_LOCK, RepositoryNotFound, "has no repository acme/nothing"),
        ("acme/plain version 7", NO_LOCK, RevisionNotFound, "acme/plain has no version 7; it has 1, 2"),
        ("acme/circle", NO_LOCK, InvalidRepository, "moved in a circle: acme/circle -> acme/round -> acme/circle"),
        ("acme/m0", NO_LOCK, InvalidRepository, "acme/m0 moved more than 5 times"),
        ("acme/own version 1", NO_LOCK, InvalidRepository, "acme/own at v2, the same repository"),
        ("other/relu", NO_LOCK, UntrustedPublisher, "'other' is not one that"),
        ("acme/away version 1", NO_LOCK, UntrustedPublisher, "'other' is not one that"),
        ("acme/plain version 2", lock(("acme/plain", "v1")), LockError, "acme/plain version 2 was requested"),
        ("acme/plain version 1", lock(("acme/plain", "gone")), RevisionNotFound, "kernels.lock pins acme/plain to"),
        ("acme/plain version 1", lock(("acme/plain", "gone")), LockError, "kernels lock --upgrade-repo acme/plain"),
        ("acme/plain version 1", lock(required="it has to be"), NotLocked, "is not locked"),
        ("acme/moved version 1", lock(("acme/moved", "v1"), content=True), LockError, "does not list. *"),
        (
            "acme/moved version 1",
            lock(("acme/moved", "v1"), ("acme/plain", "v1"), content=True),
            LockError,
            "is locked with its content, and now leads to acme/plain:",
        ),
    ],
)
def test_a_requirement_that_leads_nowhere_is_an_error(
    asked: str, locked: ActiveLock, error: type[Exception], message: str
) -> None:
    source = MemorySource(
        {
            "acme/plain": V2,
            "acme/moved": moved_to("acme/plain"),
            "acme/circle": {"main": moved_to("acme/round")},
            "acme/round": {"main": moved_to("acme/circle")},
            "acme/own": {"v1": moved_to("acme/own", "v2"), "v2": kernel()},
            "acme/away": moved_to("other/relu"),
            "other/relu": kernel(),
            **{f"acme/m{each}": {"main": moved_to(f"acme/m{each + 1}")} for each in range(9)},
        }
    )
    repo_id, _, version = asked.partition(" version ")
    with pytest.raises(error, match=message if "*" in message else re.escape(message)):
        found(context(source, lock=locked), Requirement(repo_id, version=int(version) if version else None))


@pytest.mark.parametrize(
    ("repositories", "offline", "admission"),
    [
        ({"acme/relu": kernel()}, False, Admission.GRANTED),
        ({"mist/relu": kernel()}, False, Admission.REFUSED),
        ({"mist/relu": kernel()}, True, Admission.ON_DISK),
        ({"acme/old": moved_to("mist/relu"), "mist/relu": kernel()}, True, Admission.ON_DISK),
        ({"mist/old": moved_to("acme/relu"), "acme/relu": kernel()}, True, Admission.ON_DISK),
        ({"mist/old": moved_to("acme/relu"), "acme/relu": kernel()}, False, Admission.REFUSED),
    ],
    ids=["trusted", "unknown", "unknown, offline", "to unknown", "from unknown, offline", "from unknown"],
)
def test_the_least_that_a_step_allows_is_what_is_allowed(
    repositories: dict[str, dict[str, bytes]], offline: bool, admission: Admission
) -> None:
    source = MemorySource(repositories, unknown=["mist"], offline=offline)
    asked = Requirement(next(iter(repositories)), version=1)
    assert found(context(source), asked).admission is admission


def test_a_caller_may_allow_one_repository() -> None:
    source = MemorySource({"other/relu": kernel(), "other/gelu": kernel()})
    within = context(source, trust=TrustPolicy.of(["other/relu"]))
    assert found(within, Requirement("other/relu", version=1)).admission is Admission.GRANTED
    assert "trust other/relu" not in source.asked
    with pytest.raises(UntrustedPublisher):
        found(within, Requirement("other/gelu", version=1))


@pytest.mark.parametrize(
    ("old", "new", "refused"), [(True, False, True), (True, True, False), (False, False, False), (False, True, False)]
)
def test_a_redirect_does_not_lead_out_of_a_required_signature(old: bool, new: bool, refused: bool) -> None:
    source = MemorySource({"acme/old": moved_to("acme/relu"), "acme/relu": kernel()})
    policy = Policy({"acme/old": Rule(required=old), "acme/relu": Rule(required=new)})
    within, asked = context(source, signing=policy), Requirement("acme/old", version=1)
    if not refused:
        assert found(within, asked).signing_rule(within) == (Rule(required=True) if new else None)
        return
    with pytest.raises(UntrustedSignature, match="acme/old must be signed"):
        found(within, asked)


def test_what_the_lock_refuses_is_refused_before_any_request() -> None:
    source = MemorySource({"acme/relu": kernel()})
    with pytest.raises(NotLocked):
        found(context(source, lock=lock(required="it has to be")), RELU)
    assert source.asked == []


def test_each_move_and_what_the_lock_does_not_list_is_said() -> None:
    source = MemorySource({"acme/old": moved_to("acme/relu"), "acme/relu": kernel()})
    within = context(source, lock=lock(("acme/old", "v1")))
    with warned() as caught:
        found(within, Requirement("acme/old", version=1))
    assert [each.partition(";")[0].partition(", and")[0] for each in caught] == [
        "acme/old has moved to acme/relu",
        "acme/old version 1 is locked",
    ]


def test_a_renamed_repository_keeps_its_pin() -> None:
    source = MemorySource({"acme/relu": V2}, renamed={"acme/old": "acme/relu"})
    pins = Lock((Pin(Requirement("acme/old", version=1), commit_of("acme/relu", "v2")),))

    with warned("acme/old has moved to acme/relu"):
        new = found(context(source, lock=ActiveLock(pins)), Requirement("acme/old", version=1), admit=False)
    assert (new.snapshot.commit, new.listed_as) == (commit_of("acme/relu", "v2"), "acme/old")
    assert new.former == (Requirement("acme/old", version=1),)


def test_a_folder_takes_the_place_of_a_repository_unless_all_must_be_locked(tmp_path: Path) -> None:
    build = tmp_path / "build" / "torch-cpu"
    build.mkdir(parents=True)
    (build / "metadata.json").write_bytes(kernel()["build/torch-cpu/metadata.json"])
    source = MemorySource({"acme/relu": kernel()})
    overrides = {"acme/relu": tmp_path}
    assert found(context(source, overrides=overrides), RELU).source.user_owned
    assert source.asked == []
    with pytest.raises(NotLocked, match="`LOCAL_KERNELS` puts"):
        found(context(source, lock=lock(required="it has to be"), overrides=overrides), RELU)
