"""Versions of two numbers, as vendors write them."""

from __future__ import annotations

import pytest

from kernels.support.version import MajorMinor


@pytest.mark.parametrize(
    ("text", "version"),
    [("12.8", (12, 8)), ("6.4.43482-0f2d60242", (6, 4)), ("8.2.RC1", (8, 2)), ("x", None), ("", None)],
)
def test_versions_are_read_from_how_vendors_write_them(text: str, version: tuple[int, int] | None) -> None:
    assert MajorMinor.parse(text) == version
