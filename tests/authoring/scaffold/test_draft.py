"""What is asked of a new kernel is checked before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from kernels.authoring.scaffold import draft_kernel
from kernels.authoring.scaffold.draft import TEMPLATES
from kernels.backends import all_backends
from kernels.errors import RequestError

HOSTILE_NAMES = [
    "", "a", "-", "../up", "a/b", "/etc", "Upper", "under_score", "dot.ted", "1st", "-flag", "end-", "two--dashes",
    "sp ace", "new\nline", "nul\0", "é", "$(id)", 'quo"te', "@NAME@", "\ud800x", "x" * 97, "x" * 10_000,
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=lambda name: ascii(name)[:20])
def test_a_name_that_no_kernel_can_have_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match=r"`name` is .* expected 2 to 96 lower-case letters") as refused:
        draft_kernel(name)
    assert len(str(refused.value)) < 2000


@pytest.mark.parametrize("name", ["rms-norm", "a1", "class", "torch", "any", "tests", "build", "x" * 96])
def test_a_name_that_a_kernel_can_have_is_taken(name: str) -> None:
    assert draft_kernel(name).test_repo_id == f"local/{name}"


@pytest.mark.parametrize("name", ["json", "string", "sys"])
def test_a_name_of_the_standard_library_is_refused_before_tests_cannot_import_it(name: str) -> None:
    with pytest.raises(RequestError, match=f"`import {name}` gives a module of Python's standard library"):
        draft_kernel(name)


@pytest.mark.parametrize("license", ["", "MIT\n", 'MIT"', "@NAME@", "x" * 200, " MIT"])
def test_a_licence_that_is_no_spdx_expression_is_refused(license: str) -> None:
    with pytest.raises(RequestError, match=r"`license` is .* expected an SPDX expression"):
        draft_kernel("relu", license=license)


@pytest.mark.parametrize("license", ["MIT", "Apache-2.0 OR MIT", "(GPL-2.0+ WITH Classpath-exception-2.0)"])
def test_an_spdx_expression_is_taken(license: str) -> None:
    assert draft_kernel("relu", license=license).license == license


@pytest.mark.parametrize("repo_id", ["relu", "org/", "a/b/c", "../x/y", 'org/"x'])
def test_a_repository_that_is_no_org_and_name_is_refused(repo_id: str) -> None:
    with pytest.raises(RequestError, match="`repo_id` is"):
        draft_kernel("relu", repo_id=repo_id)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": 3}, r"`name`: expected a string, got 3"),
        ({"license": None}, "`license`: expected a string, got None"),
        ({"repo_id": 3}, "`repo_id` is 3"),
        ({"backends": "cpu"}, "`backends`: expected a list of names, got 'cpu'"),
        ({"backends": [3]}, "`backend`: expected a backend's name, got 3"),
    ],
)
def test_an_argument_of_another_type_is_a_type_error(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        draft_kernel(**{"name": "relu", **arguments})


def test_an_unknown_backend_is_answered_with_those_there_are() -> None:
    with pytest.raises(RequestError, match="'abacus'") as refused:
        draft_kernel("relu", backends=["cpu", "abacus"])
    assert all(backend.name in str(refused.value) for backend in all_backends())


def test_no_backend_at_all_is_refused() -> None:
    with pytest.raises(RequestError, match="`backends` is empty"):
        draft_kernel("relu", backends=[])


def test_backends_are_taken_by_any_of_their_names_and_once() -> None:
    draft = draft_kernel("relu", backends=["npu", "cpu", "cann"])
    assert [backend.name for backend in draft.backends] == ["cann", "cpu"]


def test_without_backends_it_is_for_those_whose_templates_say_so() -> None:
    said = {path.parent.name for path in (TEMPLATES / "device").glob("*/by-default")}
    assert {backend.name for backend in draft_kernel("relu").backends} == said == {"cpu", "cuda"}
