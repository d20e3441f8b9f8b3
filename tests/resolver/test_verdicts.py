"""What became of each build is told in words, and shown as a table."""

from __future__ import annotations

import pytest
from html_cells import HOSTILE, ReadHtml

from kernels.resolver.selection import resolve
from kernels.resolver.target import Target
from kernels.resolver.verdicts import VariantList, Verdict, verdicts

CPU = Target.parse("torch2.9-cpu-x86_64-linux")


def test_each_build_is_chosen_accepted_or_rejected() -> None:
    resolution = resolve(["torch-universal", "torch-cpu", "torch-cuda"], CPU)
    assert verdicts(resolution) == [
        Verdict("torch-cpu", "chosen", "the best that fits"),
        Verdict("torch-universal", "accepted", "fits, but torch-cpu is preferred"),
        Verdict("torch-cuda", "rejected", "for cuda, not cpu"),
    ]
    [only] = verdicts(resolve(["torch-cpu"], CPU))
    assert only.reason == "the only one that fits"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_notebook_shows_decisions_as_a_table_in_which_nothing_is_markup(name: str) -> None:
    read = ReadHtml(VariantList(resolve(["torch-cpu", name], CPU).decisions)._repr_html_())
    assert read.cells[:6] == ["variant", "verdict", "reason", "torch-cpu", "accepted", ""]
    assert read.cells[7] == "rejected"
    assert read.tags == {"table", "thead", "tbody", "tr", "th", "td"}
