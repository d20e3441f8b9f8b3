"""The names at the path where programs that list builds themselves import them from."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub import make_repo

import kernels
from kernels import variants

NAMES = ["torch-npu", "torch-universal", "torch-cpu"]


def test_a_program_chooses_among_the_names_it_listed() -> None:
    parsed = [variants.parse_variant(name) for name in NAMES]
    chosen, decisions = variants.resolve_variant(parsed, "cpu")
    assert chosen is not None
    assert chosen.variant_str == "torch-cpu"
    assert [type(decision) for decision in decisions] == [kernels.VariantAccepted] * 2 + [kernels.VariantRejected]
    assert variants.variants_trace_str(decisions).splitlines() == [
        "torch-cpu: compatible, preferred",
        "torch-universal: compatible",
        "torch-npu: for cann, not cpu",
    ]


def test_all_that_suit_come_the_best_first() -> None:
    suitable, decisions = variants.resolve_variants(map(variants.parse_variant, NAMES), "cpu")
    assert [variant.name for variant in suitable] == ["torch-cpu", "torch-universal"]
    assert len(decisions) == len(NAMES)


def test_where_none_suits_there_is_no_variant() -> None:
    chosen, decisions = variants.resolve_variant([variants.parse_variant("torch-npu")], "cpu")
    assert chosen is None
    assert variants.variants_trace_str(decisions) == "torch-npu: for cann, not cpu"
    assert variants.resolve_variant([]) == (None, [])


def test_a_name_that_is_none_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="variant"):
        variants.parse_variant("not a variant")


def test_the_builds_of_a_downloaded_repository_are_listed(tmp_path: Path) -> None:
    make_repo(tmp_path, variants=["torch-cpu", "torch-npu"], files={"build/notes/README.md": "", "build/torch-x": ""})
    found = variants.get_variants_local(tmp_path / "acme" / "relu" / "v1" / "build")
    assert [variant.variant_str for variant in found] == ["torch-cpu", "torch-npu"]
    assert variants.get_variants_local(tmp_path / "nothing") == []
