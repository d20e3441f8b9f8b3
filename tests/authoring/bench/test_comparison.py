"""Which results agree with their reference, and how the others are reported."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kernels.authoring.bench.comparison import compare

torch = pytest.importorskip("torch")

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
ROW = torch.linspace(-4, 4, 101, dtype=DOUBLE)


@pytest.mark.parametrize(
    ("dtype", "within", "beyond"), [(HALF, 0.001, 0.01), (BRAIN, 0.01, 0.1), (SINGLE, 1e-6, 1e-4), (DOUBLE, 1e-6, 1e-4)]
)
def test_results_may_differ_by_what_their_type_rounds(dtype: Any, within: float, beyond: float) -> None:
    wanted = ROW.to(dtype)
    assert compare((ROW * (1 + within)).to(dtype), wanted).reason == ""
    assert "not close! Mismatched elements" in compare((ROW * (1 + beyond)).to(dtype), wanted).reason


def test_the_narrower_type_counts_and_the_reference_may_be_wider() -> None:
    assert compare(ROW.to(BRAIN), ROW).reason == ""
    assert compare(ROW.to(HALF), ROW.to(HALF).to(BRAIN)).reason == ""
    assert compare(ROW * 1.001, ROW).reason != ""


def test_small_results_are_not_taken_for_zero() -> None:
    assert compare(torch.zeros(101), ROW.float() * 1e-4).reason != ""


@pytest.mark.parametrize(
    ("out", "wanted", "message"),
    [
        (
            torch.zeros(2, 3),
            torch.zeros(3),
            r"self\.out: .* 'shape' do not match: torch.Size\(\[2, 3\]\)",
        ),
        (None, torch.zeros(3), r"self\.out is None; the workload or its setup must set it"),
        (torch.zeros(3), None, r"self\.out is a Tensor, the reference a NoneType"),
        ([torch.zeros(3)], torch.zeros(3), r"self\.out is a list, the reference a Tensor"),
        ((torch.zeros(3),), (torch.zeros(3),) * 2, r"self\.out has 1 results, the reference 2"),
        (
            (torch.zeros(3), torch.zeros(3)),
            (torch.zeros(3), torch.tensor([0, 2.5, 0])),
            r"self\.out\[1\]: .* elements: 1 / 3 .* absolute difference: 2\.5 at index \(1,\) \(up to 2\.5e-05",
        ),
        (torch.tensor([1, 2, 3]), torch.tensor([1, 5, 4]), r"self\.out: .* elements: 2 / 3"),
        (torch.zeros(1), torch.zeros(1, dtype=torch.complex64), r"self\.out is of torch\.float32, the reference of"),
        (torch.tensor([1j, 1]), torch.tensor([2j, 1]), r"self\.out: .* elements: 1 / 2"),
        (torch.tensor([float("nan")] * 2), torch.tensor([float("nan")] * 2), r"elements: 2 / 2 .* difference: nan"),
        (torch.tensor(2.0), torch.tensor(1.0), r"self\.out: Scalars are not close! Expected 1\.0 but got 2\.0"),
        (3, 4, r"self\.out: Scalars are not equal! Expected 4 but got 3"),
        (1.0, 1.1, r"self\.out: Scalars are not close! Expected 1\.1 but got 1\.0"),
    ],
)
def test_a_difference_is_reported(out: Any, wanted: Any, message: str) -> None:
    assert re.search(message, compare(out, wanted).reason)


@pytest.mark.parametrize(
    ("out", "wanted"),
    [
        (torch.empty(0, 4), torch.empty(0, 4)),
        (torch.tensor([True, False]), torch.tensor([True, False])),
        (torch.tensor([1j, 2.0]), torch.tensor([1j, 2.0])),
        (torch.tensor([float("inf"), 1.0]), torch.tensor([float("inf"), 1.0])),
        ([torch.ones(2), 7], (torch.ones(2), 7)),
        (torch.zeros(3), torch.zeros(3)),
        (0.3, 0.1 + 0.2),
    ],
)
def test_what_is_equal_is_equal(out: Any, wanted: Any) -> None:
    assert compare(out, wanted).reason == ""


def test_the_largest_difference_is_known_also_of_results_that_agree() -> None:
    comparison = compare(
        (torch.tensor([1.0]), torch.tensor([2.0 + 2**-20])), (torch.tensor([1.0]), torch.tensor([2.0]))
    )
    assert (comparison.reason, comparison.largest) == ("", 2**-20)
    assert compare(torch.tensor([float("inf")]), torch.tensor([1.0])).largest is None


def test_an_author_may_say_how_far_results_may_differ() -> None:
    out, wanted = torch.tensor([1.05]), torch.tensor([1.0])
    assert compare(out, wanted).reason != ""
    assert compare(out, wanted, rtol=0.1).reason == ""
    assert compare(out, wanted, atol=0.1).reason == ""
