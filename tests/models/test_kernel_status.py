"""kernel-status.toml as data; what following it means is tested over the Hub."""

from __future__ import annotations

import pytest

from kernels.models.kernel_status import destination
from kernels.models.requirement import Requirement

MOVED = b'kind = "redirect"\ndestination = "org/new"\n'


@pytest.mark.parametrize(
    ("asked", "content", "expected"),
    [
        (Requirement("org/old", version=2), MOVED, Requirement("org/new", version=2)),
        (Requirement("org/old", revision="dev"), MOVED, Requirement("org/new", revision="dev")),
        (Requirement("org/old"), MOVED, Requirement("org/new")),
        (Requirement("org/old", version=2), MOVED + b'revision = "v3"', Requirement("org/new", revision="v3")),
    ],
)
def test_the_destination_is_asked_for_the_same_unless_it_names_a_revision(
    asked: Requirement, content: bytes, expected: Requirement
) -> None:
    assert destination(content, asked) == expected
