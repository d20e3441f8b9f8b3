"""Why a machine cannot use a backend: the same sentence in errors and in `kernels doctor`."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from hub import TestHub

from kernels import backends, get_kernel
from kernels.backends import BackendProbe, Device, MajorMinor
from kernels.backends.hindrance import hindrances
from kernels.errors import BackendUnavailable, RequestError
from kernels.resolver.choice import resolve
from kernels.resolver.target import Target

GPU = Device("cuda", 0, "NVIDIA H200", "9.0", 90)
CPU_ONLY = {"cpu": None}


@pytest.mark.parametrize(
    ("probe", "torch", "builds", "found"),
    [
        (BackendProbe(True, MajorMinor(12, 8), (GPU,)), None, {}, []),
        (BackendProbe(True, devices=(GPU,), driver=MajorMinor(12, 2)), "2.9", {"cuda": MajorMinor(12, 8)}, []),
        (
            BackendProbe(notes=("no NVIDIA driver",)),
            "2.9.0+cpu",
            CPU_ONLY,
            [("absent", "no NVIDIA driver"), ("torch", "this Torch (2.9.0+cpu) is built for cpu")],
        ),
        (BackendProbe(), None, {}, [("absent", "no device of NVIDIA was found")]),
        (
            BackendProbe(True, devices=(GPU,)),
            "2.9.0+cpu",
            CPU_ONLY,
            [("torch", "this Torch (2.9.0+cpu) is built for cpu")],
        ),
        (
            BackendProbe(True, hidden="CUDA_VISIBLE_DEVICES=''"),
            None,
            {},
            [("hidden", "CUDA_VISIBLE_DEVICES='' hides every device")],
        ),
        (
            BackendProbe(True, devices=(GPU,), driver=MajorMinor(12, 2)),
            "2.12",
            {"cuda": MajorMinor(13, 0)},
            [("driver", "the NVIDIA driver runs CUDA 12.2 at most, and this Torch is built for CUDA 13.0")],
        ),
    ],
)
def test_each_hindrance_has_a_reason(
    probe: BackendProbe, torch: str | None, builds: dict[str, MajorMinor | None], found: list[tuple[str, str]]
) -> None:
    each = hindrances(backends.get("cuda"), probe, torch=torch, builds=builds)
    assert [(one.kind, one.reason) for one in each] == found
    assert all(one.fix for one in each)


def hindered() -> Target:
    """A machine without a GPU, as it is probed."""
    probe = BackendProbe(notes=("no NVIDIA driver",))
    why = hindrances(backends.get("cuda"), probe, torch="2.9.0+cpu", builds=CPU_ONLY)
    return msgspec.structs.replace(Target.parse("torch2.9-cpu-x86_64-linux"), hindrances={"cuda": why})


@pytest.mark.parametrize("asked", [{"device": "cuda"}, {"device": "cuda:1"}, {"backend": "cuda"}, {"backend": "cu"}])
def test_a_refused_device_says_why(asked: dict[str, str]) -> None:
    with pytest.raises(BackendUnavailable) as caught:
        resolve(["torch-cuda"], hindered(), **asked)  # type: ignore[arg-type]
    assert str(caught.value).endswith(
        "has cpu.\nNot cuda: no NVIDIA driver; and this Torch (2.9.0+cpu) is built for cpu. Install NVIDIA's driver, "
        "or use a machine with such a device; install a Torch that is built for cuda, or a package that adds its "
        "device to this one."
    )


def test_a_torch_device_is_a_device() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(BackendUnavailable, match="`device` is 'cuda:1'"):
        resolve(["torch-cuda"], hindered(), device=torch.device("cuda", 1))
    assert resolve(["torch-cpu"], hindered(), device=torch.device("cpu")).backend == "cpu"
    with pytest.raises(TypeError, match="`device`: expected an index"):
        resolve(["torch-cpu"], hindered(), device=SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize("asked", [{"device": "cdua"}, {"device": "cdua:1"}, {"backend": "cdua"}])
def test_a_mistyped_device_names_the_likely_one(asked: dict[str, str]) -> None:
    with pytest.raises(RequestError, match=r"Did you mean 'cuda'\?$"):
        resolve(["torch-cuda"], hindered(), **asked)  # type: ignore[arg-type]


def test_a_disabled_backend_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_DISABLE_BACKENDS", "xpu")
    with pytest.raises(RequestError, match=r"'xpu' is disabled by KERNELS_DISABLE_BACKENDS\."):
        resolve(["torch-cuda"], hindered(), backend="xpu")


def test_this_machine_knows_what_is_in_the_way_of_each_backend() -> None:
    target = Target.current()
    for backend in backends.all_backends():
        usable = backend.name in target.backends and backend.name in target.torch_backends
        assert usable or target.why_not(backend.name), backend.name
    assert Target.from_json(target.to_json()) == target


def test_no_more_than_the_first_request_is_sent_for_a_device_that_is_not_there(
    isolated_env: object, hub: TestHub
) -> None:
    missing = next(each.name for each in backends.all_backends() if each.name not in Target.current().backends)
    with pytest.raises(BackendUnavailable, match=f"Not {missing}: "):
        get_kernel("acme/relu", backend=missing)
    assert not [each for each in hub.requests if not each.path.endswith("/refs")]
    assert hub.count("/refs") <= 1
