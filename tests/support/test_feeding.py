"""Pieces that are made in one thread and used in another: in order, and an error on either side ends both."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kernels.support.feeding import feed


@pytest.mark.parametrize("made", [0, 1, 2, 50])
def test_pieces_are_used_while_others_are_made(made: int) -> None:
    used: list[int] = []
    feed(range(made), used.extend, ahead=3, name="test")
    assert used == list(range(made))


@pytest.mark.parametrize("fails", ["the use", "the making", "both"])
def test_an_error_on_one_side_ends_the_other(fails: str) -> None:
    used: list[int] = []
    made: list[int] = []

    def pieces() -> Iterator[int]:
        for piece in range(1000):
            if piece == 500 and fails != "the use":
                raise KeyError("made")
            made.append(piece)
            yield piece

    def use(given: Iterator[int]) -> None:
        for piece in given:
            used.append(piece)
            if piece == 10 and fails != "the making":
                raise ValueError("used")

    with pytest.raises(KeyError if fails == "the making" else ValueError):
        feed(pieces(), use, ahead=3, name="feeding")
    assert used == (made if fails == "the making" else list(range(11)))
    assert len(made) <= 500
    assert not any("feeding" in thread.name for thread in threading.enumerate())


def test_a_use_that_takes_only_some_pieces() -> None:
    feed(range(100), next, ahead=3, name="test")
