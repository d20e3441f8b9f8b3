"""What must be rejected: each line says which error it has, for mypy and for pyright."""

# ruff: noqa: B018, F401, I001

import torch
from torch import nn

import kernels
from kernels import get_kernle  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnusedImport]
from kernels import (
    Benchmark,
    CUDAProperties,
    Device,
    FuncSpec,
    KernelizeFallback,
    KernelMapping,
    LayerRepository,
    LocalLayerRepository,
    Mode,
    Target,
    get_kernel,
    get_local_kernel,
    has_kernel,
    install_kernel,
    kernelize,
    kernelize_report,
    register_backend,
    register_kernel_mapping,
    replace_kernel_forward_from_hub,
    use_kernel_forward_from_hub,
    use_kernel_func_from_hub,
    use_kernel_mapping,
    use_kernelized_func,
)

get_kernel(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
get_kernel("acme/norm", nothing=4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
get_kernel("acme/norm", 1)  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportCallIssue]
get_kernel("acme/norm", version="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
get_kernel("acme/norm", verify="always")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
get_kernel("acme/norm", trust_remote_code=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
kernels.get_kernle("acme/norm")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
get_local_kernel(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
get_local_kernel("norm", version=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
install_kernel("acme/norm", target=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
answer: str = has_kernel("acme/norm", version=1)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
Target.parse(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Target.current().default_backnd  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

hub = LayerRepository("acme/norm", layer_name="RMSNorm", version=1)
LayerRepository("acme/norm", version=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
LayerRepository("acme/norm", "RMSNorm")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
LocalLayerRepository(3, layer_name="RMSNorm")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
CUDAProperties("8.0", 90)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
FuncSpec("acme/norm", version=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
kernelize("model", mode=Mode.INFERENCE)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
kernelize(nn.Identity(), mode="inference")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
kernelize(nn.Identity(), Mode.INFERENCE)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
kernelize(nn.Identity(), by_class=["Norm"])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
kernelize(nn.Identity(), use_fallback=Mode.FALLBACK)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
kernelize_report(KernelizeFallback.ALL)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
named: nn.Linear = kernelize(nn.Identity())  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
flat: KernelMapping = {"RMSNorm": hub}  # type: ignore[dict-item]  # pyright: ignore[reportAssignmentType]
register_kernel_mapping({"RMSNorm": {"cuda": {"inference": hub}}})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
register_kernel_mapping({"RMSNorm": {"cuda": nn.LayerNorm}})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
register_kernel_mapping({3: {"cuda": hub}})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
use_kernel_mapping({"RMSNorm": {Device("cuda"): "acme/norm"}})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
use_kernel_mapping({"RMSNorm": {"cuda": hub}}, False)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@use_kernel_forward_from_hub("rotary")
def rotary(x: torch.Tensor) -> torch.Tensor:
    return x


@use_kernel_func_from_hub("scale")
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@use_kernelized_func(rotary)
@use_kernel_forward_from_hub("Attention")
class Attention(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads


def is_wide(module: nn.Linear) -> bool:
    return module.in_features > 4096


rotary("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
rotary(torch.ones(2)).nothing  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
scale(torch.ones(2))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Attention()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Attention(heads="two")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
use_kernel_forward_from_hub(nn.Identity)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
use_kernel_forward_from_hub("rotary")(3)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
use_kernelized_func("rotary")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
replace_kernel_forward_from_hub(nn.LayerNorm, "LayerNorm", condition=is_wide)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
replace_kernel_forward_from_hub(nn.LayerNorm(2), "LayerNorm")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
register_backend("acme")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Double(Benchmark):
    seed = "zero"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]

    def setup(self, width: int) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self.width = width
