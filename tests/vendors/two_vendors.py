"""Two vendors' chips and the processor in one process: one vendor's is a device in Torch, the other's is on `cpu`.

A third machine is only recorded: a `Target` in JSON.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import acme_device
import torch
from acme_kernels import Acme
from acme_model import Model

import kernels
from kernels import CapabilityRange, Device, LayerRepository, Mode, Target, get_kernel
from kernels.api import explain
from kernels.backends.plugins.json_backend import load_backends
from kernels.operators import FuncSpec, active_ops, use_kernel_ops
from kernels.resolver.variant import parse_variant

ZETA, RECORDED = Path(sys.argv[1]), Path(sys.argv[2])


def state() -> dict[str, object]:
    """What the processor's and the first vendor's side looks like."""
    target = Target.current()
    return {
        "builds": [get_kernel("acme/both", version=1, backend=name).variant for name in ("acme", "cpu", None)],
        "devices": target.backend_devices("acme"),
        "found": [(name, target.backends[name]) for name in ("acme", "cpu")],
        "default": (target.default_backend, target.torch_backends[0]),
        "parsed": [parse_variant(name) for name in ("torch-acme", "torch-cpu", "torch213-cxx11-cu130-x86_64-linux")],
        "accelerator": [kernels.get_backend(name).name for name in ("acme", "cpu", "cuda", "cu")],
    }


torch.manual_seed(0)
acme_device.install()
warnings.simplefilter("error")
alone = Target.current()
kernels.register_backend(Acme())
before = state()
assert before["builds"] == ["torch-acme", "torch-cpu", "torch-acme"]
recorded = Target.from_json(RECORDED.read_bytes())
on_recorded = explain("acme/both", version=1, target=recorded).best
assert on_recorded == "torch-cuda"

# The other vendor joins.
load_backends(ZETA)
assert state() == before
target = Target.current()
assert (target.backends["zeta"], target.backend_devices("zeta")[0].arch) == ("3.1", "z9")
assert get_kernel("acme/both", version=1, backend="zeta").variant == "torch-zeta"
assert parse_variant("torch213-cxx11-zeta31-x86_64-linux").backend == "zeta"
assert explain("acme/both", version=1, target=recorded).best == on_recorded

# Each one's model runs through its own kernel.
layer = LayerRepository("acme/both", layer_name="SiluAndMul", version=1)
x = torch.randn(2, 8)
mapping = {"SiluAndMul": {Device("acme", CapabilityRange(100, 100)): layer, "zeta": layer}}
with kernels.use_kernel_mapping(mapping):
    on_acme, on_zeta, on_cpu = Model().to("acme"), Model(), Model()
    rows = [
        *kernels.kernelize(on_acme, mode=Mode.INFERENCE, report=True),
        *kernels.kernelize(on_zeta, mode=Mode.INFERENCE, device="zeta", report=True),
        *kernels.kernelize(on_cpu, mode=Mode.INFERENCE, report=True),
    ]
assert [row.variant for row in rows] == ["torch-acme", "torch-zeta", None]
for model, device, kernel in ((on_acme, "acme", "torch-acme"), (on_zeta, "cpu", "torch-zeta"), (on_cpu, "cpu", "")):
    torch.acme.launches.clear()
    y = model(x.to(device))
    assert y.device.type == device
    assert torch.acme.launches == ([kernel] if kernel else []), (device, torch.acme.launches)

# Operators of one vendor's device are not those of the other's.
for backend, device, other in (("acme", "acme", "cpu"), ("zeta", "cpu", "acme")):
    torch.acme.launches.clear()
    with use_kernel_ops({"aten::silu": FuncSpec("acme/both", "silu", version=1)}, backend=backend):
        torch.nn.functional.silu(x.to(other))
        assert torch.acme.launches == []
        torch.nn.functional.silu(x.to(device))
        assert torch.acme.launches == [f"torch-{backend}"]
assert active_ops() == []

# It leaves, and the first one leaves too; what is not theirs is as it was.
kernels.unregister_backend("zeta")
assert state() == before
load_backends(ZETA)
kernels.unregister_backend("acme")
assert "acme" not in Target.current().backends
assert get_kernel("acme/both", version=1, backend="zeta").variant == "torch-zeta"
assert get_kernel("acme/both", version=1, backend="cpu").variant == "torch-cpu"
kernels.unregister_backend("zeta")
assert Target.current() == alone
print("held")
