"""A report says for every layer which kernel serves it, or why none does."""

from __future__ import annotations

import json

import pytest
from html_cells import HOSTILE, ReadHtml
from layer_models import Gives, KernelNorm, Model, Norm, registered
from torch import nn

from kernels.layer import KernelizeReport, KernelizeRow, Mode, kernelize, kernelize_report, unkernelize

NOT_MEASURED = "Not measured: kernels.autotune(model, (inputs,)) keeps only the kernels that pay."


def test_the_report_is_the_same_later() -> None:
    registered(Norm=Gives(KernelNorm))
    model = Model()
    report = kernelize(model, mode=Mode.INFERENCE, report=True)
    assert kernelize_report(model) == report
    assert {row.reason for row in kernelize_report(unkernelize(model))} == {"not kernelized"}


def test_rows_come_in_the_model_s_order_with_a_module_s_functions_before_it() -> None:
    assert [row.module for row in kernelize_report(Model())] == [
        "blocks.0.scale",
        "blocks.0.norm",
        "blocks.0.act",
        "blocks.1.scale",
        "blocks.1.norm",
        "blocks.1.act",
    ]


def test_it_is_plain_data_for_programs() -> None:
    registered(Norm=Gives(KernelNorm))
    [row] = json.loads(json.dumps(kernelize(Norm(), mode=Mode.INFERENCE, report=True).to_list()))
    assert row == {
        "module": "",
        "layer": "Norm",
        "kernel": "Gives",
        "commit": None,
        "variant": None,
        "mode": "INFERENCE",
        "registered": "FALLBACK",
        "reason": None,
    }


def test_it_prints_as_a_table_in_which_equal_layers_share_a_line() -> None:
    kernel = {"kernel": "org/norm", "commit": "0123456789abcdef", "variant": "torch-cpu", "mode": "INFERENCE"}
    rows = (
        *(KernelizeRow(f"layers.{i}.norm", "RMSNorm", **kernel, registered="INFERENCE") for i in range(12)),
        *(KernelizeRow(f"layers.{i}.mlp", "MLP", reason="no kernel is mapped to layer 'MLP'") for i in range(12)),
        KernelizeRow("norm", "RMSNorm", **kernel, registered="FALLBACK"),
        KernelizeRow("head.2b", "Head", mode="INFERENCE", kernel="org/head", reason="cannot load: gone"),
    )
    assert str(KernelizeReport(rows)).splitlines() == [
        "13 of 26 layers run through a kernel",
        "module              layer    kernel    commit   variant    mode",
        "layers.*.norm (12)  RMSNorm  org/norm  0123456  torch-cpu  INFERENCE",
        "layers.*.mlp (12)   MLP      its own forward: no kernel is mapped to layer 'MLP'",
        "norm                RMSNorm  org/norm  0123456  torch-cpu  INFERENCE (any mode)",
        "head.2b             Head     its own forward: cannot load: gone (org/head)",
        NOT_MEASURED,
    ]


def test_it_says_how_to_measure_only_where_kernels_serve_and_none_was_measured() -> None:
    kernel = {"kernel": "org/norm", "mode": "INFERENCE", "registered": "INFERENCE"}
    rows = KernelizeRow("a", "Norm", **kernel), KernelizeRow("b", "Norm", reason="not kernelized")
    tuned = KernelizeRow("c", "Norm", **kernel, measured=True, from_size="from 4,096 elements")
    assert [KernelizeReport(each).measured for each in (rows, rows[1:], (*rows, tuned))] == [False, True, True]
    assert ReadHtml(KernelizeReport(rows)._repr_html_()).cells[-1] == NOT_MEASURED
    assert str(KernelizeReport((*rows, tuned))).splitlines()[2:] == [
        "a       Norm   org/norm  -       -        INFERENCE",
        "b       Norm   its own forward: not kernelized",
        "c       Norm   org/norm  -       -        INFERENCE; measured from 4,096 elements",
    ]
    assert KernelizeReport((tuned,)).to_list()[0]["measured"] is True


@pytest.mark.parametrize("text", HOSTILE)
def test_a_notebook_shows_a_table_in_which_nothing_is_markup(text: str) -> None:
    rows = (
        KernelizeRow("norm", text, kernel=text, commit=text, variant=text, mode="INFERENCE", registered="INFERENCE"),
        KernelizeRow("mlp", "MLP", reason=text),
    )
    read = ReadHtml(KernelizeReport(rows)._repr_html_())
    assert read.tags == {"table", "div", "thead", "tbody", "tr", "th", "td"}
    assert read.attributes == {"class", "style"}
    assert read.cells[0] == "1 of 2 layers run through a kernel"
    empty = ReadHtml(kernelize_report(nn.Linear(1, 1))._repr_html_())
    assert empty.cells[-1].startswith("No layer of this model is marked")


def test_a_model_that_is_one_layer_and_one_without_any_print_too() -> None:
    assert str(kernelize_report(Norm())).splitlines()[2].startswith("(the model)  Norm")
    assert str(kernelize_report(nn.Linear(1, 1))) == (
        "0 of 0 layers run through a kernel\n"
        "No layer of this model is marked for kernels. `kernelize(model, by_class=…)` names classes without a mark."
    )
    assert len(kernelize_report(nn.Linear(1, 1))) == 0
