"""Kernels in a model: marks keep the types of what they mark, mappings take what `kernels` documents."""

import torch
from torch import nn
from typing_extensions import assert_type

from kernels import (
    CapabilityRange,
    CUDAProperties,
    Device,
    KernelizeFallback,
    KernelizeReport,
    KernelMapping,
    LayerMapping,
    LayerRepository,
    LocalLayerRepository,
    LockedLayerRepository,
    Mode,
    RepositoryProtocol,
    kernelize,
    kernelize_report,
    register_kernel_mapping,
    replace_kernel_forward_from_hub,
    unkernelize,
    use_kernel_forward_from_hub,
    use_kernel_func_from_hub,
    use_kernel_mapping,
    use_kernelized_func,
)
from kernels.layer import kernelize as kernelize_by_path
from kernels.layer.mode import Mode as ModeByPath


@use_kernel_forward_from_hub("rotary", condition=lambda module: bool(module.training))
def rotary(x: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    return x if interleaved else -x


@use_kernel_func_from_hub("scale")
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@use_kernel_forward_from_hub("RMSNorm")
class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


@use_kernelized_func(rotary, scale)
class Attention(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scale(rotary(x, interleaved=True), factor=0.5)


class Model(nn.Sequential):
    pass


def is_narrow(norm: nn.LayerNorm) -> bool:
    return norm.eps > 0


assert_type(rotary(torch.ones(2), interleaved=True), torch.Tensor)
assert_type(scale(torch.ones(2), 0.5), torch.Tensor)
assert_type(RMSNorm(4, eps=1e-5), RMSNorm)
assert_type(RMSNorm(4).eps, float)
assert_type(Attention(heads=2).heads, int)
replace_kernel_forward_from_hub(nn.LayerNorm, "LayerNorm")
replace_kernel_forward_from_hub(nn.LayerNorm, "LayerNorm", condition=is_narrow)

hub = LayerRepository("acme/norm", layer_name="RMSNorm", version=1)
folder = LocalLayerRepository("norm", layer_name="RMSNorm")
locked = LockedLayerRepository("acme/norm", lockfile="kernels.lock", layer_name="RMSNorm")
assert_type(hub.load(), type[nn.Module])


class Own:
    def load(self) -> type[RMSNorm]:
        return RMSNorm


own: RepositoryProtocol = Own()
by_type: dict[str, LayerRepository] = {"cuda": hub}
by_device: dict[Device, dict[Mode, LayerRepository]] = {Device("rocm"): {Mode.TRAINING: hub}}
layer: LayerMapping = {"cuda": hub, Device("cuda", CUDAProperties(80, 90)): {Mode.INFERENCE | Mode.TORCH_COMPILE: own}}
mapping: KernelMapping = {"RMSNorm": layer, "rotary": {"cuda": Own(), "rocm": folder}, "scale": by_device}
register_kernel_mapping(mapping)
register_kernel_mapping({"RMSNorm": by_type}, inherit_mapping=False)
register_kernel_mapping({"RMSNorm": by_type, "rotary": by_device})
register_kernel_mapping(
    {
        "RMSNorm": {
            "cuda": {Mode.INFERENCE: hub, Mode.TRAINING | Mode.TORCH_COMPILE: locked},
            Device(type="rocm"): folder,
            "cpu": Own(),
        }
    }
)
with use_kernel_mapping({"RMSNorm": {Device("cuda", CapabilityRange(80, 90)): hub}}, inherit_mapping=False):
    assert_type(kernelize(Model(), mode=Mode.INFERENCE), Model)
with use_kernel_mapping({"RMSNorm": {"cuda": hub}}):
    assert_type(kernelize_by_path(Model(), mode=ModeByPath.TRAINING, device=torch.device("cuda")), Model)

assert_type(kernelize(Model(), device="cuda", use_fallback=KernelizeFallback.ALL), Model)
assert_type(kernelize(Model(), mode=Mode.TRAINING | Mode.TORCH_COMPILE, report=True), KernelizeReport)
assert_type(unkernelize(Model()), Model)
for row in kernelize_report(Model()):
    assert_type(row.reason, str | None)
