"""What may be done with a repository, by what is known of its publisher and of the commit."""

from __future__ import annotations

import pytest

from kernels.errors import HubUnavailable, UntrustedPublisher
from kernels.models.snapshot import Snapshot
from kernels.trust.publishers import Admission, TrustPolicy, admission, unverified

YES, NO, UNKNOWN = True, False, None
GRANTED, ON_DISK, REFUSED = Admission.GRANTED, Admission.ON_DISK, Admission.REFUSED


class Told:
    """Publishers that know what the test says; `published` is None where nobody can be asked."""

    authority = "the Hub"

    def __init__(self, published: bool | None, usable: bool, problem: str | None = None) -> None:
        self.published, self.usable, self._problem = published, usable, problem
        self.remembered: list[str] = []

    def trusts(self, repo_id: str) -> bool | None:
        raise AssertionError("it was asked before")

    def problem(self, repo_id: str) -> str | None:
        return self._problem

    def publishes(self, repo_id: str, commit: str) -> bool:
        if self.published is None:
            raise HubUnavailable("down")
        return self.published

    def may_use_cached(self, snapshot: Snapshot) -> bool:
        return self.usable

    def remember_allowed(self, snapshot: Snapshot) -> None:
        self.remembered.append(snapshot.commit)


@pytest.mark.parametrize(
    ("trusted", "published", "usable", "listed", "expected"),
    [
        (YES, True, False, True, GRANTED),
        (YES, True, True, True, GRANTED),
        (YES, True, True, False, ON_DISK),  # what another tool cached may be another Hub's
        (YES, False, False, True, None),
        (YES, False, True, True, ON_DISK),
        (YES, None, False, True, REFUSED),
        (YES, None, True, True, ON_DISK),
        (UNKNOWN, True, False, True, REFUSED),
        (UNKNOWN, True, True, True, ON_DISK),
        (NO, True, True, True, None),
    ],
)
def test_a_publisher_and_a_commit_are_admitted(
    trusted: bool | None, published: bool | None, usable: bool, listed: bool, expected: Admission | None
) -> None:
    publishers, snapshot = Told(published, usable), Snapshot("acme/relu", "c" * 40, (), listed=listed)
    if expected is None:
        with pytest.raises(UntrustedPublisher):
            admission("acme/relu", trusted, publishers, TrustPolicy(), snapshot)
    else:
        assert admission("acme/relu", trusted, publishers, TrustPolicy(), snapshot) is expected
    assert publishers.remembered == []
    assert admission("acme/relu", trusted, None, TrustPolicy(), snapshot) is GRANTED  # a folder of the user


@pytest.mark.parametrize("trusted", [YES, NO, UNKNOWN])
def test_a_caller_who_allows_a_repository_allows_any_commit_of_it(trusted: bool | None) -> None:
    snapshot = Snapshot("acme/relu", "c" * 40, ())
    for policy in (TrustPolicy.of(True), TrustPolicy.of(["acme/relu"])):
        publishers = Told(published=False, usable=False)
        assert admission("acme/relu", trusted, publishers, policy, snapshot) is GRANTED
        assert publishers.remembered == [snapshot.commit]
        assert admission("acme/relu", trusted, publishers, policy, snapshot, remember=False) is GRANTED
        assert publishers.remembered == [snapshot.commit]


@pytest.mark.parametrize(("published", "usable", "expected"), [(True, False, GRANTED), (None, False, REFUSED)])
def test_a_publisher_whom_the_user_lists_is_trusted_with_its_own_commits(
    monkeypatch: pytest.MonkeyPatch, published: bool | None, usable: bool, expected: Admission
) -> None:
    monkeypatch.setenv("KERNELS_TRUSTED_PUBLISHERS", "acme")
    snapshot = Snapshot("acme/relu", "c" * 40, ())
    assert admission("acme/relu", NO, Told(published, usable), TrustPolicy(), snapshot) is expected
    with pytest.raises(UntrustedPublisher, match="has it in the history of no branch or tag"):
        admission("acme/relu", NO, Told(published=False, usable=False), TrustPolicy(), snapshot)


@pytest.mark.parametrize("problem", [None, "https://hub answered 500. Try again later.", "TRY AGAIN, said the Hub."])
def test_the_error_says_what_to_do_whatever_the_words_of_its_cause(problem: str | None) -> None:
    message = str(unverified("acme/relu", Told(None, usable=False, problem=problem)))
    assert message.startswith(f"{problem} acme/relu is refused" if problem else "acme/relu is refused")
    assert "Load it when it can be asked; or, if you trust it, pass trust_remote_code=['acme/relu']" in message
