"""The content of a `tune_configs.yaml`, and how a wrong one is refused."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path
from typing import Any

import pytest
from logged import warned

from kernels.errors import RequestError
from kernels.tuning import TuneEntry, TuneFile, read_configs

#: Every shape that FlagGems' files have.
FILE = """
mm:
  - META:
      BLOCK_M: 64
      BLOCK_N: 128
    num_stages: 5
    num_warps: 4
  - META: {BLOCK_M: 16, BLOCK_N: 64}
    num_ctas: 2
    maxnreg: 128
softmax_inner:
- META:
    TILE_N: 32
- META:
    TILE_N: 64
attention:
  - gen: true
    param_map:
      META:
        BLOCK_M: block_m
        BLOCK_N: 32
        PRE_LOAD_V: pre_load_v
      num_warps: warps
      num_stages: 3
    block_m:
      - 32
      - 64
    pre_load_v:
      - true
      - false
    warps: [4, 8, 16]
attention_bwd:
  - gen: true
    param_map:
      META: metas
      num_warps: warps
      num_stages: [2, 3]
    metas:
      - {BLOCK_M1: 32, BLOCK_N1: 128}
      - {BLOCK_M1: 64, BLOCK_N1: 64}
    warps: [4, 8]
layer_norm:
  - gen : true
    param_map:
      META: {}
      num_warps: warps
    warps: [4, 8, 16]
randperm:
  - gen: true
    param_map: {META: {}}
mixed:
  - META: {TILE: 1}
  - gen: true
    param_map: {META: {TILE: tile}}
    tile: [2, 3]
  - gen: true
    param_map: {META: {TILE: [4, 5], KIND: [fp16]}}
none: []
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tune_configs.yaml"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


@pytest.fixture
def file(tmp_path: Path) -> TuneFile:
    return read_configs(written(tmp_path, FILE))


def test_a_literal_entry_is_taken_as_it_stands(file: TuneFile) -> None:
    first, second = file.operators["mm"]
    assert first == TuneEntry({"BLOCK_M": 64, "BLOCK_N": 128}, num_warps=4, num_stages=5)
    assert second == TuneEntry({"BLOCK_M": 16, "BLOCK_N": 64}, num_ctas=2, others={"maxnreg": 128})


def test_what_is_left_out_is_as_in_flaggems_and_not_as_in_the_entry_before(file: TuneFile) -> None:
    numbers = [(each.num_warps, each.num_stages, each.num_ctas) for each in file.operators["softmax_inner"]]
    assert numbers == [(4, 2, 1)] * 2
    assert (file.operators["mm"][1].num_warps, file.operators["mm"][1].num_stages) == (4, 2)


def test_a_generated_entry_is_the_product_of_its_lists(file: TuneFile) -> None:
    expected = [
        TuneEntry({"BLOCK_M": block_m, "BLOCK_N": 32, "PRE_LOAD_V": pre_load}, num_warps=warps, num_stages=3)
        for block_m, pre_load, warps in itertools.product([32, 64], [True, False], [4, 8, 16])
    ]
    assert list(file.operators["attention"]) == expected


def test_whole_parameter_sets_can_be_chosen_from(file: TuneFile) -> None:
    metas = [{"BLOCK_M1": 32, "BLOCK_N1": 128}, {"BLOCK_M1": 64, "BLOCK_N1": 64}]
    assert list(file.operators["attention_bwd"]) == [
        TuneEntry(meta, num_warps=warps, num_stages=stages)
        for meta, warps, stages in itertools.product(metas, [4, 8], [2, 3])
    ]


def test_entries_without_parameters_vary_the_numbers_alone(file: TuneFile) -> None:
    assert [(dict(each.meta), each.num_warps) for each in file.operators["layer_norm"]] == [({}, 4), ({}, 8), ({}, 16)]
    assert list(file.operators["randperm"]) == [TuneEntry({})]


def test_literal_and_generated_entries_stand_in_one_list(file: TuneFile) -> None:
    assert [each.meta["TILE"] for each in file.operators["mixed"]] == [1, 2, 3, 4, 5]
    assert file.operators["mixed"][-1].meta["KIND"] == "fp16"
    assert file.operators["none"] == ()


def test_an_entry_knows_its_place_and_cannot_be_changed(file: TuneFile) -> None:
    entry = file.operators["mm"][1]
    assert entry.place == "mm[1]"
    with pytest.raises(AttributeError):
        entry.num_warps = 8  # type: ignore[misc]
    with pytest.raises(TypeError):
        entry.meta["BLOCK_M"] = 1  # type: ignore[index]


def test_an_architecture_has_a_section_of_its_own(tmp_path: Path) -> None:
    file = read_configs(
        written(
            tmp_path,
            """
            archs:
              9.0: {mm: [{META: {BLOCK: 128}}]}
              gfx942:
                mm: []
            mm: [{META: {BLOCK: 64}}]
            """,
        )
    )
    assert file.operators == {"mm": (TuneEntry({"BLOCK": 64}),)}
    assert file.archs == {"9.0": {"mm": (TuneEntry({"BLOCK": 128}),)}, "gfx942": {"mm": ()}}


def test_an_empty_file_has_no_operators(tmp_path: Path) -> None:
    path = written(tmp_path, "# nothing yet\n")
    assert read_configs(str(path)) == TuneFile(path, {}, {})


def test_anchors_serve_to_write_a_configuration_once(tmp_path: Path) -> None:
    file = read_configs(
        written(
            tmp_path,
            """
            mm: &mm
              - META: &small {BLOCK_M: 16, BLOCK_N: 16}
              - META: {<<: *small, BLOCK_N: 32}
            addmm: *mm
            """,
        )
    )
    assert file.operators["addmm"] == file.operators["mm"]
    assert file.operators["mm"][1].meta == {"BLOCK_M": 16, "BLOCK_N": 32}


GEN = "mm:\n  - gen: true\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mm: 4\n", "operator 'mm' is 4; expected a list of configurations"),
        ("mm: {META: {}}\n", "operator 'mm' is a mapping"),
        ("mm:\n  - 64\n", "a configuration of 'mm' is 64; expected a mapping"),
        ("- mm\n", "the file is a list; expected a mapping"),
        ("archs: [9.0]\n", "`archs` is a list"),
        ("archs:\n  '9.0': 1\n", "architecture '9.0' is 1"),
        ("archs:\n  '9.0':\n    mm: 1\n", "operator 'mm' is 1"),
        ("mm:\n  - num_warps: 4\n", "`META` is missing; found 'num_warps'"),
        ("mm:\n  - {}\n", "`META` is missing; found nothing"),
        ("mm:\n  - META: BLOCK\n", "META is 'BLOCK'; expected a mapping"),
        ("mm:\n  - META: {BLOCK: [1]}\n", "`BLOCK` is a list; expected a number"),
        ("mm:\n  - META: {BLOCK: {a: 1}}\n", "`BLOCK` is a mapping"),
        ("mm:\n  - META: {2B: 1}\n", "META has '2B'; expected the name"),
        ("mm:\n  - META: {num_warps: 4}\n", "`num_warps` is in META"),
        ("mm:\n  - META: {}\n    num_warps: four\n", "`num_warps` is 'four'; expected a power of two from 1"),
        ("mm:\n  - META: {}\n    num_warps: '4'\n", "`num_warps` is '4'"),
        ("mm:\n  - META: {}\n    num_warps: 6\n", "`num_warps` is 6"),
        ("mm:\n  - META: {}\n    num_warps: 0\n", "`num_warps` is 0"),
        ("mm:\n  - META: {}\n    num_warps: -4\n", "`num_warps` is -4"),
        ("mm:\n  - META: {}\n    num_warps: 4.0\n", "`num_warps` is 4.0"),
        ("mm:\n  - META: {}\n    num_warps: true\n", "`num_warps` is True"),
        ("mm:\n  - META: {}\n    num_warps: null\n", "`num_warps` is None"),
        ("mm:\n  - META: {}\n    num_warps: [4]\n", "`num_warps` is a list"),
        ("mm:\n  - META: {}\n    num_stages: -1\n", "`num_stages` is -1; expected a whole number from 0"),
        ("mm:\n  - META: {}\n    num_ctas: 0\n", "`num_ctas` is 0; expected a whole number from 1"),
        (f"mm:\n  - META: {{{', '.join(f'B{n}: 1' for n in range(65))}}}\n", "META has more than 64"),
        ("mm:\n  - gen: false\n", "`gen` is False; expected true"),
        (GEN, "`param_map` is missing; found 'gen'"),
        (GEN + "    param_map: 4\n", "`param_map` is 4"),
        (GEN + "    param_map: {num_warps: 4}\n", "`META` is missing; found 'num_warps'"),
        (GEN + "    param_map: {META: {B: b}}\n    b: 4\n", "`B` is 4; expected a list of values"),
        (GEN + "    param_map: {META: {B: b}}\n", "`B` names the list 'b', which is not found; found none"),
        (GEN + "    param_map: {META: {B: b}}\n    a: [1]\n    c: [1]\n", "the list 'b', .* found a, c"),
        (GEN + "    param_map: {META: metas}\n", "`META` names the list 'metas'"),
        (GEN + "    param_map: {META: {B: []}}\n", "the list for `B` is empty"),
        (GEN + "    param_map: {META: {B: b}}\n    b: []\n", "the list for `B` is empty"),
        (GEN + "    param_map: {META: {B: {c: 1}}}\n", "`B` is a mapping"),
        (GEN + "    param_map: {META: {B: b}}\n    b: [1, [2]]\n", "`B` is a list"),
        (GEN + "    param_map: {META: metas}\n    metas: [{B: 1}, 4]\n", "META is 4"),
        (GEN + "    param_map: {META: metas}\n    metas: [{num_ctas: 1}]\n", "`num_ctas` is in META"),
        (GEN + "    param_map: {META: {num_ctas: 1}}\n", "`num_ctas` is in META"),
        (GEN + "    param_map: {META: {}, num_warps: w}\n    w: [4, 5]\n", "`num_warps` is 5"),
        (
            GEN + f"    param_map: {{META: {{B: 1}}, {', '.join(f'option{n}: 1' for n in range(64))}}}\n",
            "`param_map` has more than 64 parameters",
        ),
    ],
)
def test_what_breaks_the_form_is_refused_with_its_value(tmp_path: Path, text: str, why: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(RequestError, match=why) as refused:
        read_configs(path)
    assert str(refused.value).startswith(str(path))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("mm: 4\n", ""),
        ("mm:\n  - META: {}\n  - META: {}\n    num_warps: 6\n", ", mm[1]"),
        ("archs:\n  9.0:\n    mm: [{META: 4}]\n", ", archs.9.0.mm[0]"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, place: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(RequestError) as refused:
        read_configs(path)
    assert str(refused.value).startswith(f"{path}{place}: ")


def test_a_value_beside_the_map_has_no_effect_and_a_warning_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, GEN + "    param_map: {META: {B: b}}\n    b: [1]\n    num_stages: 1\n")
    with warned(r"mm\[0\]: `num_stages: 1` beside `param_map` has no effect"):
        file = read_configs(path)
    assert file.operators["mm"] == (TuneEntry({"B": 1}, num_stages=2),)


@pytest.mark.parametrize("parameters", [5, 60])
def test_a_product_that_explodes_is_refused_before_it_is_made(tmp_path: Path, parameters: int) -> None:
    named = ", ".join(f"B{number}: b" for number in range(parameters))
    text = f"mm:\n  - gen: true\n    param_map: {{META: {{{named}}}}}\n    b: {list(range(2000))}\n"
    with pytest.raises(RequestError, match=r"mm\[0\]: operator 'mm' has [0-9]{16,}.* or more; the limit is 10000"):
        read_configs(written(tmp_path, text))


def generated(configs: int) -> str:
    return f"  - {{gen: true, param_map: {{META: {{B: b}}}}, b: {list(range(configs))}}}\n"


def test_ten_thousand_configurations_are_the_most_of_an_operator(tmp_path: Path) -> None:
    assert len(read_configs(written(tmp_path, "mm:\n" + generated(10_000))).operators["mm"]) == 10_000
    with pytest.raises(RequestError, match=r"mm\[1\]: operator 'mm' has 10001 configurations"):
        read_configs(written(tmp_path, "mm:\n" + generated(10_000) + "  - META: {B: 1}\n"))
    with pytest.raises(RequestError, match=r"mm\[1\]: operator 'mm' has 10002 configurations"):
        read_configs(written(tmp_path, "mm:\n" + generated(10_000) + generated(2)))


def test_twenty_thousand_configurations_are_the_most_of_a_file(tmp_path: Path) -> None:
    text = "".join(f"op{number}:\n" + generated(10_000) for number in range(2))
    assert len(read_configs(written(tmp_path, text)).operators) == 2
    with pytest.raises(RequestError, match=r"mm\[0\]: the file has more than 20000"):
        read_configs(written(tmp_path, text + "mm:\n  - META: {B: 1}\n"))


@pytest.mark.parametrize("path", [4, None, b"x"])
def test_a_wrong_path_is_named(path: Any) -> None:
    with pytest.raises(TypeError, match="`path`: expected a path, got"):
        read_configs(path)
