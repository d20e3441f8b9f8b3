"""The name that a mistyped one probably means."""

from __future__ import annotations

import time

import pytest

from kernels import Mode, kernelize, register_kernel_mapping
from kernels.errors import RequestError
from kernels.layer.device import requested_device
from kernels.layer.mode import serving_modes
from kernels.resolver.variant import parse_variant
from kernels.settings import verify_when
from kernels.support.formatting import did_you_mean, nearest_name


@pytest.mark.parametrize(
    ("word", "meant"),
    [("cdua", "cuda"), ("CUDA", "cuda"), ("", None), ("abacus", None), (None, None), (3, None), ("\x1b" * 50, None)],
)
def test_the_likely_name(word: object, meant: str | None) -> None:
    assert nearest_name(word, ["cuda", "cpu"]) == meant


def test_hostile_names_cost_little() -> None:
    started = time.monotonic()
    assert did_you_mean("a" * 10**6, ["a" * 10**6 for _ in range(10)]) == ""
    assert did_you_mean("ab" * 50, (f"{number:050d}ab" for number in range(10**6))) == ""
    assert time.monotonic() - started < 5


def test_devices_modes_variants_and_words() -> None:
    with pytest.raises(RequestError, match=r"got 'cdua'\. Did you mean 'cuda'\?"):
        requested_device("cdua:1")
    with pytest.raises(RequestError, match=r"Did you mean 'cuda'\?"):
        register_kernel_mapping({"Norm": {"cdua": object()}})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"a Mode such as Mode\.TRAINING, got 'training'"):
        serving_modes("training")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"did you mean Mode\.INFERENCE\?"):
        register_kernel_mapping({"Norm": {"cuda": {"inference": object()}}})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"did you mean 'rocm'\?"):
        parse_variant("torch29-cxx11-rocmm63-x86_64-linux")
    with pytest.raises(RequestError, match=r"Did you mean 'install'\?"):
        verify_when("instal")


def test_a_mode_by_its_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"Mode\.INFERENCE, got 'inference'"):
        kernelize(torch.nn.Linear(1, 1), mode="inference")
    assert Mode.INFERENCE.name == "INFERENCE"
