"""Devices in mappings: types that a backend has, ranges of capabilities, and what Torch's names mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import backends
from kernels.errors import RequestError
from kernels.layer import CUDAProperties, Device, ROCMProperties
from kernels.layer.device import CapabilityRange, ModuleDevice, of_tensor, requested_device
from kernels.resolver.target import Target


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an A100 and an H100."""
    target = Target.parse("torch2.13-cu130-x86_64-linux+sm_80+sm_90")
    monkeypatch.setattr(Target, "current", staticmethod(lambda: target))


@pytest.fixture
def rocm_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Torch that is built for ROCm."""
    monkeypatch.setattr("kernels.backends.torch_build.torch_builds", lambda: {"rocm": None, "cpu": None})


def test_devices_are_equal_by_value() -> None:
    assert Device("cuda", CUDAProperties(75, 90)) == Device(type="cuda", properties=CUDAProperties(75, 90))
    assert len({Device("cuda"), Device("cuda"), Device("cuda", CUDAProperties(75, 90))}) == 2
    assert CUDAProperties(75, 90) != ROCMProperties(75, 90)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: CUDAProperties(90, 80), RequestError, r"`min_capability` \(90\) > `max_capability` \(80\)"),
        (
            lambda: CUDAProperties(-1, 80),
            RequestError,
            "expected 0 or a positive integer such as 75, got -1",
        ),
        (
            lambda: CUDAProperties(8.0, 90),
            TypeError,
            r"`min_capability`: expected an int .*, got 8.0",
        ),
        (
            lambda: ROCMProperties(0, True),
            TypeError,
            r"`max_capability`: expected an int .*, got True",
        ),
        (
            lambda: Device("rocm", CUDAProperties(75, 90)),
            RequestError,
            "`type`: expected 'cuda' for CUDAProperties, got 'rocm'",
        ),
        (
            lambda: Device("cuda", ROCMProperties(75, 90)),
            RequestError,
            "`type`: expected 'rocm' for ROCMProperties, got 'cuda'",
        ),
        (lambda: Device("cuda", (75, 90)), TypeError, r"\(tuple\)"),
        (lambda: Device(0), TypeError, "`type`: expected a string, got 0"),
    ],
)
def test_a_wrong_device_is_refused(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


def test_a_vendor_can_define_its_own_properties() -> None:
    class NPUProperties(CapabilityRange):
        device_type = "npu"

    assert Device("npu", NPUProperties(1, 2)).range == (1, 2)
    with pytest.raises(ValueError, match="expected 'npu' for NPUProperties"):
        Device("cpu", NPUProperties(1, 2))


@pytest.mark.parametrize(
    ("asked", "device"),
    [
        (None, None),
        ("cpu", ModuleDevice("cpu")),
        ("cuda", ModuleDevice("cuda")),
        ("cuda:1", ModuleDevice("cuda", 1)),
        ("rocm", ModuleDevice("rocm")),
        ("npu", ModuleDevice("npu")),
        (torch.device("cuda", 2), ModuleDevice("cuda", 2)),
        (torch.device("mps"), ModuleDevice("mps")),
        (Device("cpu"), ModuleDevice("cpu")),
    ],
)
def test_a_requested_device_is_a_type_and_perhaps_an_index(asked: Any, device: ModuleDevice | None) -> None:
    assert requested_device(asked) == device


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ("kuda", RequestError, "expected one of the device types cpu, cuda, .*, got 'kuda'"),
        ("cuda:one", RequestError, "a type and an index"),
        (3, TypeError, "`device`: expected a device type, .* got 3"),
    ],
)
def test_an_unknown_device_is_refused(asked: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        requested_device(asked)


@pytest.mark.usefixtures("rocm_torch")
def test_under_a_rocm_torch_cuda_means_an_amd_gpu() -> None:
    assert of_tensor(torch.device("cuda:1")) == ModuleDevice("rocm", 1)
    assert requested_device("cuda") == ModuleDevice("rocm")
    assert requested_device(torch.device("cuda:0")).torch_device == "cuda:0"  # type: ignore[union-attr]


def test_a_torch_device_that_no_backend_has_keeps_its_name() -> None:
    assert of_tensor(torch.device("meta")) == ModuleDevice("meta")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "capability", "arch"),
    [
        (ModuleDevice("cuda", 0), 80, "8.0"),
        (ModuleDevice("cuda", 1), 90, "9.0"),
        (ModuleDevice("cuda"), 80, "8.0"),
        (ModuleDevice("cuda", 7), None, None),
        (ModuleDevice("cpu"), None, None),
    ],
)
def test_capability_and_architecture_are_those_of_the_device_meant(
    device: ModuleDevice, capability: int | None, arch: str | None
) -> None:
    assert device.capability() == capability
    assert device.arch() == arch


def test_a_third_party_backend_is_a_device_type_at_once() -> None:
    class Acme(backends.Backend):
        name = device_type = "acme"

        def probe(self) -> backends.BackendProbe:
            return backends.BackendProbe(found=True)

    backends.register_backend(Acme())
    try:
        assert requested_device("acme") == ModuleDevice("acme")
        assert str(ModuleDevice("acme", 3)) == ModuleDevice("acme", 3).torch_device == "acme:3"
    finally:
        backends.unregister_backend("acme")
    with pytest.raises(ValueError, match="expected one of the device types"):
        requested_device("acme")


def test_what_is_checked_when_it_is_made_can_be_checked_again() -> None:
    for properties in (CUDAProperties(75, 90), ROCMProperties(90, 94)):
        properties.validate()
        properties.validate_capability_range()
    Device("cuda", CUDAProperties(75, 90)).validate()
    changed = CUDAProperties(75, 90)
    object.__setattr__(changed, "max_capability", 70)
    for check in (changed.validate, changed.validate_capability_range):
        with pytest.raises(RequestError, match="`min_capability`"):
            check()
