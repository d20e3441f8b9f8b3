"""Modes combine where that makes sense, and a requested one is served in a fixed order."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from kernels.errors import RequestError
from kernels.layer import KernelizeFallback, Mode
from kernels.layer.mode import REGISTERED_MODES, serving_modes

INFERENCE, TRAINING, COMPILE, FALLBACK = Mode.INFERENCE, Mode.TRAINING, Mode.TORCH_COMPILE, Mode.FALLBACK


@pytest.mark.parametrize(
    ("left", "right", "says"),
    [
        (INFERENCE, TRAINING, "mutually exclusive"),
        (TRAINING | COMPILE, INFERENCE, "mutually exclusive"),
        (FALLBACK, INFERENCE, "cannot be combined"),
        (COMPILE, FALLBACK, "cannot be combined"),
    ],
)
def test_flags_that_exclude_each_other_do_not_combine(left: Mode, right: Mode, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        left | right
    with pytest.raises(ValueError, match=says):
        left ^ right


def test_a_flag_is_taken_away_by_its_complement_which_is_no_mode_itself() -> None:
    assert (TRAINING | COMPILE) & ~COMPILE == TRAINING
    assert (INFERENCE | COMPILE) ^ COMPILE == INFERENCE
    assert ~~COMPILE == COMPILE
    for flag in Mode:
        assert ~flag not in REGISTERED_MODES
        with pytest.raises(RequestError):
            serving_modes(~flag)


def test_a_flag_combines_with_itself_and_with_compile() -> None:
    assert FALLBACK | FALLBACK == FALLBACK
    assert TRAINING in TRAINING | COMPILE
    assert str(INFERENCE | COMPILE) == "INFERENCE | TORCH_COMPILE"
    with pytest.raises(TypeError):
        INFERENCE | 3  # type: ignore[operator]
    with pytest.raises(TypeError):
        INFERENCE ^ 3  # type: ignore[operator]


def test_a_mode_is_imported_by_the_path_that_other_libraries_use_and_pickles() -> None:
    from kernels.layer.mode import Mode as imported

    assert imported is Mode
    assert pickle.loads(pickle.dumps(TRAINING | COMPILE)) == TRAINING | COMPILE


@pytest.mark.parametrize(
    ("asked", "order"),
    [
        (INFERENCE, [INFERENCE, INFERENCE | COMPILE, TRAINING, TRAINING | COMPILE, FALLBACK]),
        (TRAINING, [TRAINING, TRAINING | COMPILE, FALLBACK]),
        (INFERENCE | COMPILE, [INFERENCE | COMPILE, TRAINING | COMPILE, FALLBACK]),
        (TRAINING | COMPILE, [TRAINING | COMPILE, FALLBACK]),
    ],
)
def test_a_mode_is_served_by_itself_then_by_those_that_do_more(asked: Mode, order: list[Mode]) -> None:
    assert list(serving_modes(asked)) == order


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        (FALLBACK, RequestError, "only be used to register"),
        (COMPILE, RequestError, "must contain Mode.INFERENCE or Mode.TRAINING"),
        (Mode(0), RequestError, "NONE"),
        (Mode(6), RequestError, "TRAINING | INFERENCE; .* and not both".replace("|", r"\|")),
        ("inference", TypeError, "`mode`: expected a Mode such as Mode.INFERENCE, got 'inference'"),
    ],
)
def test_a_mode_that_no_model_can_have_is_refused(asked: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        serving_modes(asked)


def test_the_default_falls_back_in_every_case_but_a_failed_load() -> None:
    assert KernelizeFallback.ALL & ~KernelizeFallback.DEFAULT == KernelizeFallback.CANNOT_LOAD
    assert not KernelizeFallback.NONE
