"""Requirements: names that a Hub and a file system both accept, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.errors import RequestError
from kernels.models.requirement import Requirement, check_repo_id, check_revision, check_version, is_commit


@pytest.mark.parametrize("repo_id", ["a/b", "kernels-community/flash-attn3", "Org_1/name.with.dots", "a" * 96 + "/b"])
def test_repository_names_that_a_hub_has_are_accepted(repo_id: str) -> None:
    assert check_repo_id(repo_id) == repo_id


@pytest.mark.parametrize(
    "repo_id",
    ["", "a", "a/b/c", "/a", "a/", "../a", "a/..", "a/.", "a--b/c", "a/b..c", "-a/b", "a/b-", "a b/c", "a/b\n",
     "a/é", "a" * 97 + "/b", "a\\b/c", "a/b:c", "C:/x"],
)  # fmt: skip
def test_other_names_are_refused(repo_id: str) -> None:
    with pytest.raises(RequestError, match="repo_id"):
        check_repo_id(repo_id)


@given(st.text(max_size=40))
def test_an_accepted_name_can_be_a_folder_below_another(text: str) -> None:
    try:
        check_repo_id(text)
    except RequestError:
        return
    org, name = text.split("/")
    for part in (org, name):
        assert part not in ("", ".", "..")
        assert not set(part) & set("/\\:\0\n")


@pytest.mark.parametrize("revision", ["main", "v1", "feature/x", "refs/pr/1", "1.0", "a" * 40, "release-2_x"])
def test_revisions_that_git_has_are_accepted(revision: str) -> None:
    assert check_revision(revision) == revision


@given(st.text(max_size=40))
def test_an_accepted_revision_cannot_leave_a_folder(text: str) -> None:
    try:
        check_revision(text)
    except RequestError:
        return
    assert not text.startswith(("/", "-", "."))
    assert all(part not in ("", ".", "..") for part in text.split("/"))
    assert "\\" not in text
    assert text.isprintable() or not any(ord(character) < 32 for character in text)


@pytest.mark.parametrize("version", [0, 1, 10**6])
def test_versions_are_small_numbers(version: int) -> None:
    assert check_version(version) == version


def test_a_version_that_was_computed_is_a_number_like_another() -> None:
    class Index:  # as NumPy's integers
        def __index__(self) -> int:
            return 2

    computed: Any = Index()
    assert Requirement("a/b", version=computed) == Requirement("a/b", version=2)


@pytest.mark.parametrize(
    ("version", "error"), [(-1, ValueError), (10**7, ValueError), (1.0, TypeError), ("1", TypeError), (True, TypeError)]
)
def test_other_versions_are_refused(version: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="version"):
        check_version(version)


@pytest.mark.parametrize(
    ("requirement", "branch", "commit", "text"),
    [
        (Requirement("a/b", version=3), "v3", None, "a/b version 3"),
        (Requirement("a/b", revision="main"), "main", None, "a/b at main"),
        (Requirement("a/b", revision="f" * 40), "f" * 40, "f" * 40, f"a/b at {'f' * 40}"),
        (Requirement("a/b"), None, None, "a/b"),
    ],
)
def test_a_requirement_says_what_it_asks_for(
    requirement: Requirement, branch: str | None, commit: str | None, text: str
) -> None:
    assert (requirement.branch, requirement.commit, str(requirement)) == (branch, commit, text)


@pytest.mark.parametrize(
    ("text", "answer"), [("a" * 40, True), ("0" * 64, True), ("a" * 39, False), ("A" * 40, False), ("main", False)]
)
def test_a_commit_is_40_or_64_hexadecimal_digits(text: str, answer: bool) -> None:
    assert is_commit(text) is answer
