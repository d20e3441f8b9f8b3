"""Names in a mapping without a layer, and devices without a kernel, are mentioned."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from layer_models import Gives, KernelAct, KernelNorm, Model, Norm
from torch import nn

from kernels.layer import (
    Mode,
    kernelize,
    kernelize_report,
    register_kernel_mapping,
    unkernelize,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
)
from kernels.support.logs import forget_warnings

NORM, ACT = {"cpu": Gives(KernelNorm)}, {"cpu": Gives(KernelAct)}
ON_GPUS = {"cuda": Gives(KernelNorm), "rocm": Gives(KernelNorm)}
MISSPELT = "The mapping has 'Nrom', but no layer of this model has this name. Did you mean 'Norm'?"


def notes(model: nn.Module, **options: Any) -> tuple[str, ...]:
    return kernelize(model, mode=Mode.INFERENCE, report=True, **options).notes


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="kernels")
    forget_warnings()
    return caplog


def test_a_name_that_no_layer_has_is_in_the_report_and_the_log(log: pytest.LogCaptureFixture) -> None:
    model = Model()
    report = kernelize(model, {"Nrom": NORM, "Act": ACT}, mode=Mode.INFERENCE, report=True)
    assert report.notes == (MISSPELT,)
    assert str(report).splitlines()[-2] == MISSPELT
    assert "Did you mean &#x27;Norm&#x27;?" in report._repr_html_()
    assert [each.levelname for each in log.records if each.getMessage() == MISSPELT] == ["INFO"]
    assert kernelize_report(model) == report


def test_a_name_that_is_like_none_is_mentioned_where_it_was_given_for_this_call() -> None:
    with use_kernel_mapping({"Attention": NORM}):
        assert notes(Model()) == ("The mapping has 'Attention', but no layer of this model has this name.",)


def test_a_name_that_is_a_class_s_says_how_to_use_it() -> None:
    [note] = notes(nn.Sequential(nn.SiLU(), Norm()), mapping={"SiLU": ACT, "Norm": NORM})
    assert note.endswith("The class 'SiLU' carries no mark: by_class={'SiLU': 'SiLU'} names its layers.")
    register_kernel_mapping({"Norm": NORM})
    assert notes(nn.Sequential(nn.SiLU(), Norm())) == ()


def test_registered_names_are_not_mentioned() -> None:
    # A library registers them for all its models.
    register_kernel_mapping(dict.fromkeys(["Attention", "NormGated", "scales"], NORM))
    assert notes(Model()) == ()


def test_of_many_names_the_first_are_mentioned() -> None:
    names = ["Nrom", *(f"z{index:03d}" for index in range(100))]
    found = notes(Model(), mapping=dict.fromkeys(names, NORM))
    assert (len(found), found[0]) == (21, MISSPELT)
    assert found[-1] == "The mapping has 81 more names that no layer of this model has."


def test_the_notes_are_those_of_the_last_call() -> None:
    model = Model()
    assert notes(model, mapping={"Nrom": NORM}) == (MISSPELT,)
    assert notes(model) == ()
    assert notes(model, mapping={"Nrom": NORM})
    assert kernelize_report(unkernelize(model)).notes == ()


def test_a_misspelt_name_in_by_class_is_mentioned(log: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.SiLU())
    kernelize(model, {"SiLU": NORM}, mode=Mode.INFERENCE, by_class={"SiLU": "SilU"})
    [record] = [each for each in log.records if each.levelname == "WARNING"]
    assert record.getMessage() == (
        "No kernel is mapped to layer 'SilU': it keeps its own forward. Did you mean 'SiLU'?"
    )
    with pytest.raises(ValueError, match=r"no kernel is mapped to layer 'SilU'\. Did you mean 'SiLU'\?"):
        kernelize(model, {"SiLU": NORM}, by_class={"SiLU": "SilU"}, use_fallback=False)


def test_many_layers_without_a_mapping_are_one_warning_and_each_has_its_row(log: pytest.LogCaptureFixture) -> None:
    class Layer(nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    model = nn.Sequential(
        *(use_kernel_forward_from_hub(f"L{i:03d}")(type(f"L{i}", (Layer,), {}))() for i in range(400))
    )
    for _ in range(2):
        report = kernelize(model, mode=Mode.INFERENCE, device="cpu", report=True)
    assert warnings(log) == [
        "No kernel is mapped to 400 kinds of layers: 'L000', 'L001', 'L002' and 397 more. They keep their own "
        "forwards. `register_kernel_mapping` maps kernels."
    ]
    assert [row.reason for row in report] == [f"no kernel is mapped to layer 'L{i:03d}'" for i in range(400)]
    log.clear()
    model = nn.Sequential(nn.Linear(1, 1), nn.SiLU(), nn.GELU())
    names = {"Linear": "Aaa", "SiLU": "SilU", "GELU": "Gelu"}
    kernelize(model, {"SiLU": NORM}, mode=Mode.INFERENCE, by_class=names)
    assert warnings(log)[0] == (
        "No kernel is mapped to 3 kinds of layers: 'SilU', 'Aaa', 'Gelu'. They keep their own forwards. "
        "'SilU': Did you mean 'SiLU'?"
    )


def test_a_device_without_any_kernel_is_mentioned_once(log: pytest.LogCaptureFixture) -> None:
    mapping = {"Norm": ON_GPUS, "Act": {"xpu": Gives(KernelAct)}, "scale": ON_GPUS}
    model = Model(blocks=4)
    for _ in range(3):
        kernelize(model, mapping, mode=Mode.INFERENCE)
    assert [each.getMessage() for each in log.records if each.levelname == "WARNING"] == [
        "No kernel is mapped for device type 'cpu': the model keeps its own forwards. For its layers, kernels are "
        "mapped for cuda, rocm, xpu."
    ]


def test_a_device_with_a_kernel_for_one_layer_is_not_mentioned(log: pytest.LogCaptureFixture) -> None:
    kernelize(Model(), {"Norm": NORM, "Act": ON_GPUS, "scale": ON_GPUS}, mode=Mode.INFERENCE)
    assert [each.getMessage() for each in log.records if each.levelname == "WARNING"] == []


def test_without_mappings_nothing_is_mentioned(log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISABLE_KERNEL_MAPPING", "1")
    assert notes(Model(), mapping={"Nrom": NORM, "Norm": ON_GPUS}) == ()
    assert [each for each in log.records if each.name == "kernels.layer.notices"] == []


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in log.records if each.levelname == "WARNING"]


def test_a_mapping_for_this_call_that_names_no_layer_is_a_warning(log: pytest.LogCaptureFixture) -> None:
    kernelize(Model(), {"Nrom": NORM}, mode=Mode.INFERENCE)
    assert warnings(log)[-1] == f"The mapping given to `kernelize` does nothing. {MISSPELT}"
    log.clear()
    model = nn.Sequential(nn.Linear(1, 1), nn.SiLU())
    kernelize(model, {"SiLU": ACT}, mode=Mode.INFERENCE)
    [warning] = warnings(log)
    assert "does nothing" in warning
    assert "by_class={'SiLU': 'SiLU'} names its layers." in warning
    log.clear()
    kernelize(model, dict.fromkeys(["Aa", "Bb", "Cc", "Dd"], NORM), mode=Mode.INFERENCE)
    [warning] = warnings(log)
    assert warning.endswith("'Cc', but no layer of this model has this name.")


def test_other_mappings_without_a_layer_are_no_warning(log: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.SiLU())
    register_kernel_mapping({"Silu": ACT})
    kernelize(model, mode=Mode.INFERENCE)
    kernelize(model, {}, mode=Mode.INFERENCE)
    with use_kernel_mapping({"SiLU": ACT}):
        kernelize(model, mode=Mode.INFERENCE)
    kernelize(nn.Sequential(Norm()), {"Norm": NORM, "Attention": NORM}, mode=Mode.INFERENCE)
    kernelize(model, {"SiLU": ACT, "Other": ACT}, mode=Mode.INFERENCE, by_class={"SiLU": "SiLU"})
    assert warnings(log) == []


def test_a_name_in_by_class_is_not_offered_as_the_right_one(log: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.SiLU())
    [note] = notes(model, mapping={"SiLU": ACT}, device="cpu", by_class={"SiLU": "SilU"})
    assert note == "The mapping has 'SiLU', but no layer of this model has this name."
    [warning] = warnings(log)
    assert warning.endswith("Did you mean 'SiLU'?")
