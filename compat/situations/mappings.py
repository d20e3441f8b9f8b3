"""What repositories, devices, modes and mappings do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelize import marked_model
from setting import Setting, situation


def _layer(**changes: Any) -> Any:
    from kernels import LayerRepository

    return LayerRepository(**({"repo_id": "acme/relu", "layer_name": "SiluAndMul", "version": 1} | changes))


@situation("LayerRepository: a version and a revision")
def _(setting: Setting) -> object:
    return _layer(revision="v1") is None


@situation("LayerRepository: neither version nor revision")
def _(setting: Setting) -> object:
    return _layer(version=None) is None


@situation("LayerRepository: neither version nor revision, loaded")
def _(setting: Setting) -> object:
    return _layer(version=None).load()


@situation("LayerRepository: load")
def _(setting: Setting) -> object:
    return _layer().load().__name__


@situation("LayerRepository: load by revision")
def _(setting: Setting) -> object:
    return _layer(version=None, revision="v1").load().__name__


@situation("LayerRepository: load, no such layer")
def _(setting: Setting) -> object:
    return _layer(layer_name="Missing").load()


@situation("LayerRepository: load, no such version")
def _(setting: Setting) -> object:
    return _layer(version=9).load()


@situation("LayerRepository: compared")
def _(setting: Setting) -> object:
    one = _layer()
    others = [
        _layer(),
        _layer(version=2),
        _layer(version=None, revision="v1"),
        _layer(layer_name="Other"),
        _layer(trust_remote_code=True),
        _layer(user_agent={"app": "test"}),
        "acme/relu",
    ]
    return [one == other for other in others]


@situation("LayerRepository: hashed")
def _(setting: Setting) -> object:
    return len({_layer(), _layer(), _layer(version=2), _layer(trust_remote_code=["acme/relu"])})


@situation("LocalLayerRepository: compared")
def _(setting: Setting) -> object:
    from kernels import LocalLayerRepository

    one = LocalLayerRepository(Path("a"), layer_name="A")
    others = [
        LocalLayerRepository(Path("a"), layer_name="A"),
        LocalLayerRepository(Path("b"), layer_name="A"),
        _layer(),
    ]
    return [one == other for other in others]


@situation("LockedLayerRepository: compared")
def _(setting: Setting) -> object:
    from kernels import LockedLayerRepository

    lockfile = setting.lock()
    one, two, other = (
        LockedLayerRepository("acme/relu", lockfile=lockfile, layer_name=name) for name in ("A", "A", "B")
    )
    return [one == two, one == other, len({one, two, other})]


@situation("LockedLayerRepository: no such lockfile")
def _(setting: Setting) -> object:
    from kernels import LockedLayerRepository

    return LockedLayerRepository("acme/relu", lockfile=setting.own / "none.lock", layer_name="A")


@situation("LockedLayerRepository: the kernel is not pinned")
def _(setting: Setting) -> object:
    from kernels import LockedLayerRepository

    return LockedLayerRepository("acme/gpu-only", lockfile=setting.lock(), layer_name="A")


@situation("FuncRepository: made")
def _(setting: Setting) -> object:
    from kernels import FuncRepository

    one, two = (FuncRepository("acme/relu", func_name="double", version=1) for _ in range(2))
    return [one == two, one.func_name]


@situation("FuncRepository: neither version nor revision")
def _(setting: Setting) -> object:
    from kernels import FuncRepository

    return FuncRepository("acme/relu", func_name="double") is None


@situation("FuncRepository: a version and a revision")
def _(setting: Setting) -> object:
    from kernels import FuncRepository

    return FuncRepository("acme/relu", func_name="double", version=1, revision="v1") is None


@situation("Device: CUDAProperties of a device that is not CUDA")
def _(setting: Setting) -> object:
    from kernels import CUDAProperties, Device

    return Device("cpu", CUDAProperties(75, 90)) is None


@situation("Device: ROCMProperties of a device that is not ROCm")
def _(setting: Setting) -> object:
    from kernels import Device, ROCMProperties

    return Device("cuda", ROCMProperties(75, 90)) is None


@situation("Device: a type that is not text")
def _(setting: Setting) -> object:
    from kernels import Device

    return Device(5) is None


@situation("Device: an unknown type")
def _(setting: Setting) -> object:
    from kernels import Device

    return Device("abacus").type


@situation("Device: validate")
def _(setting: Setting) -> object:
    from kernels import Device

    return Device("cpu").validate()


@situation("Device: compared and hashed")
def _(setting: Setting) -> object:
    from kernels import CUDAProperties, Device

    narrow, wide = CUDAProperties(75, 89), CUDAProperties(75, 90)
    return [
        Device("cpu") == Device("cpu"),
        Device("cuda", narrow) == Device("cuda", wide),
        len({Device("cuda", wide), Device("cuda", CUDAProperties(75, 90))}),
        Device("cpu") == "cpu",
    ]


@situation("Device: an attribute is set")
def _(setting: Setting) -> object:
    from kernels import Device

    Device("cpu").type = "cuda"
    return None


@situation("CUDAProperties: the lowest above the highest")
def _(setting: Setting) -> object:
    from kernels import CUDAProperties

    return CUDAProperties(90, 75) is None


@situation("CUDAProperties: text")
def _(setting: Setting) -> object:
    from kernels import CUDAProperties

    return CUDAProperties("75", 90) is None


@situation("CUDAProperties: validate and validate_capability_range")
def _(setting: Setting) -> object:
    from kernels import CUDAProperties

    properties = CUDAProperties(75, 90)
    return [properties.validate(), properties.validate_capability_range()]


@situation("ROCMProperties: the lowest above the highest")
def _(setting: Setting) -> object:
    from kernels import ROCMProperties

    return ROCMProperties(90, 75) is None


@situation("ROCMProperties: compared with CUDAProperties")
def _(setting: Setting) -> object:
    from kernels import CUDAProperties, ROCMProperties

    return ROCMProperties(75, 90) == CUDAProperties(75, 90)


@situation("Mode: INFERENCE | TRAINING")
def _(setting: Setting) -> object:
    from kernels import Mode

    return str(Mode.INFERENCE | Mode.TRAINING)


@situation("Mode: FALLBACK | INFERENCE")
def _(setting: Setting) -> object:
    from kernels import Mode

    return str(Mode.FALLBACK | Mode.INFERENCE)


@situation("Mode: in and compared")
def _(setting: Setting) -> object:
    from kernels import Mode

    both = Mode.INFERENCE | Mode.TORCH_COMPILE
    return [Mode.INFERENCE in both, Mode.TRAINING in both, both == Mode.TORCH_COMPILE | Mode.INFERENCE]


def _mapping(mapping: Any) -> object:
    from kernels import use_kernel_mapping

    with use_kernel_mapping(mapping):
        return None


@situation("use_kernel_mapping: an unknown device type")
def _(setting: Setting) -> object:
    return _mapping({"SiluAndMul": {"abacus": _layer()}})


@situation("use_kernel_mapping: Device objects, and modes")
def _(setting: Setting) -> object:
    from kernels import CUDAProperties, Device, Mode

    devices = {Device("cuda", CUDAProperties(75, 90)): _layer(), "cuda": {Mode.TRAINING: _layer()}, "rocm": _layer()}
    return _mapping({"SiluAndMul": devices})


@situation("use_kernel_mapping: the same range twice")
def _(setting: Setting) -> object:
    from kernels import CUDAProperties, Device

    ranges = {Device("cuda", CUDAProperties(75, 90)): _layer(), Device("cuda", CUDAProperties(80, 95)): _layer()}
    return _mapping({"SiluAndMul": ranges})


@situation("use_kernel_mapping: ends with its block")
def _(setting: Setting) -> object:
    from kernels import LayerRepository, Mode, kernelize, register_kernel_mapping, use_kernel_mapping

    good = {"SiluAndMul": {"cpu": LayerRepository("acme/relu", layer_name="SiluAndMul", version=1)}}
    found = []
    with use_kernel_mapping(good, inherit_mapping=False):
        with use_kernel_mapping({}):
            found.append(kernelize(marked_model(), mode=Mode.INFERENCE, device="cpu"))
        with use_kernel_mapping({}, inherit_mapping=False):
            found.append(kernelize(marked_model(), mode=Mode.INFERENCE, device="cpu"))
    register_kernel_mapping(good)
    found.append(kernelize(marked_model(), mode=Mode.INFERENCE, device="cpu"))
    return [model.act.forward.__func__ is not type(model.act).forward for model in found]


@situation("use_kernel_mapping: as a decorator")
def _(setting: Setting) -> object:
    from kernels import use_kernel_mapping

    @use_kernel_mapping({})
    def decorated() -> str:
        return "called"

    return [decorated(), decorated()]


@situation("register_kernel_mapping: given away later with inherit_mapping=False")
def _(setting: Setting) -> object:
    from kernels import Mode, kernelize, register_kernel_mapping

    register_kernel_mapping({"SiluAndMul": {"cpu": _layer()}})
    register_kernel_mapping({}, inherit_mapping=False)
    model = kernelize(marked_model(), mode=Mode.INFERENCE, device="cpu")
    return model.act.forward.__func__ is type(model.act).forward
