"""What diffusers does with kernels, on tiny models with stand-ins from a Hub in this process: docs/compatibility.md.

    python compat/diffusers_models.py [--python PYTHON] [--device cuda] [--no-page]

Each case runs in a process of its own: the attention backends of the Hub on a Flux transformer, the GGUF and Nunchaku
layers, and NATTEN in the decoder of LTX-2. What checks for a GPU is told that there is one where there is none.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
DIFFUSERS, TORCH = "0.42.1", "2.13.0"

BACKENDS = [
    "flash_hub",
    "flash_varlen_hub",
    "_flash_3_hub",
    "_flash_3_varlen_hub",
    "flash_4_hub",
    "aiter_fa2_hub",
    "sage_hub",
    "sage_blackwell_hub",
]

# ---------------------------------------------------------------------------------------------------------------------
# Stand-ins: each function takes what the published kernel takes, and computes it with Torch.
# ---------------------------------------------------------------------------------------------------------------------

_ATTENTION = """
import torch

calls = {}


def _attend(q, k, v, scale, causal):
    assert not causal
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.float()).to(q.dtype)


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, **options):
    calls["flash_attn_func"] = calls.get("flash_attn_func", 0) + 1
    return _attend(q, k, v, softmax_scale, causal)


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False, **options
):
    calls["flash_attn_varlen_func"] = calls.get("flash_attn_varlen_func", 0) + 1
    out = torch.empty_like(q)
    ends_q, ends_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for a, b, c, d in zip(ends_q, ends_q[1:], ends_k, ends_k[1:]):
        out[a:b] = _attend(q[None, a:b], k[None, c:d], v[None, c:d], softmax_scale, causal)[0]
    return out


def sageattn(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, return_lse=False):
    assert tensor_layout == "NHD"
    calls["sageattn"] = calls.get("sageattn", 0) + 1
    return _attend(q, k, v, sm_scale, is_causal)


def sageattn3_blackwell(q, k, v, is_causal=False):
    calls["sageattn3_blackwell"] = calls.get("sageattn3_blackwell", 0) + 1
    return _attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None, is_causal).transpose(1, 2)


class flash_attn_interface:
    _flash_attn_forward = _flash_attn_backward = staticmethod(lambda *args, **kwargs: None)
    _flash_attn_varlen_forward = _flash_attn_varlen_backward = staticmethod(lambda *args, **kwargs: None)
"""

_GGUF = '''
import torch

calls = {}


def ggml_dequantize(weight, kind, rows, columns, dtype=None):
    """Q8_0: blocks of a half-precision scale and 32 bytes."""
    assert int(kind) == 8
    calls["ggml_dequantize"] = calls.get("ggml_dequantize", 0) + 1
    blocks = weight.reshape(-1, 34)
    scale = blocks[:, :2].contiguous().view(torch.float16).to(torch.float32)
    return (scale * blocks[:, 2:].contiguous().view(torch.int8).to(torch.float32)).reshape(rows, columns)
'''

_NUNCHAKU = '''
import torch

calls = {}


def _nibbles(packed):
    """Two signed numbers of four bits in each byte."""
    both = packed.view(torch.uint8)
    low, high = (both & 15).to(torch.int8), (both >> 4).to(torch.int8)
    both = torch.stack((low, high), dim=-1).flatten(-2)
    return torch.where(both > 7, both - 16, both).float()


class ops:
    @staticmethod
    def quantize_w4a4_act_fuse_lora(x, out, scales, down, lora, smooth, glu, fp4):
        calls["quantize_w4a4_act_fuse_lora"] = calls.get("quantize_w4a4_act_fuse_lora", 0) + 1
        rows, groups = x.shape[0], (x.float() / smooth.float()).reshape(x.shape[0], -1, 64)
        scale = groups.abs().amax(-1).clamp(min=1e-6) / 7
        numbers = (groups / scale[..., None]).round().clamp(-8, 7).to(torch.int8).reshape(rows, -1)
        out[:rows] = ((numbers[:, ::2] & 15) | (numbers[:, 1::2] << 4)).view(torch.uint8)
        scales[:, :rows] = scale.T.to(scales.dtype)
        lora[:rows] = x.float() @ down.float()

    @staticmethod
    def gemm_w4a4(act, weight, out, qout, ascales, wscales, oscales, pool, lora, up, *rest):
        calls["gemm_w4a4"] = calls.get("gemm_w4a4", 0) + 1
        bias, rows = rest[5], out.shape[0]
        wide = _nibbles(act)[:rows].reshape(rows, -1, 64) * ascales[:, :rows].T.float()[..., None]
        weight = _nibbles(weight).reshape(weight.shape[0], -1, 64) * wscales.T.float()[..., None]
        result = wide.reshape(rows, -1) @ weight.reshape(weight.shape[0], -1).T + lora[:rows] @ up.float().T
        out.copy_(result if bias is None else result + bias.float())

    @staticmethod
    def gemv_awq(x, weight, scales, zeros, m, n, k, group):
        calls["gemv_awq"] = calls.get("gemv_awq", 0) + 1
        numbers = _nibbles(weight.contiguous().view(torch.uint8)).reshape(n, -1, group)
        wide = numbers * scales.T.float()[..., None] + zeros.T.float()[..., None]
        return (x.float() @ wide.reshape(n, k).T).to(x.dtype)

    @staticmethod
    def awq_gemm_w4a16_g64_int32(x, weight, scales, zeros):
        return ops.gemv_awq(x, weight, scales, zeros, x.shape[0], scales.shape[1], x.shape[1], 64)
'''

_NATTEN = '''
import torch
import torch.nn.functional as F

calls = {}


def _window(length, size):
    """Which positions each one sees: `size` neighbours, the first or last ones at an end."""
    at = torch.arange(length)
    start = (at - size // 2).clamp(0, length - size)
    return (at[None] >= start[:, None]) & (at[None] < start[:, None] + size)


def na3d(query, key, value, kernel_size, scale=None, backend=None):
    calls["na3d"] = calls.get("na3d", 0) + 1
    batch, *grid, heads, size = query.shape
    t, h, w = (_window(length, size) for length, size in zip(grid, kernel_size))
    mask = (t[:, None, None, :, None, None] & h[None, :, None, None, :, None] & w[None, None, :, None, None, :])
    mask = mask.reshape(mask.shape[0] * mask.shape[1] * mask.shape[2], -1).to(query.device)
    q, k, v = (each.reshape(batch, -1, heads, size).transpose(1, 2) for each in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2).reshape(query.shape)
'''

KERNELS = {
    "kernels-community/flash-attn2": (3, _ATTENTION),
    "kernels-community/flash-attn3": (1, _ATTENTION),
    "kernels-community/flash-attn4": (0, _ATTENTION),
    "kernels-community/aiter-flash-attn-ck": (1, _ATTENTION),
    "SageAttention/sage-attention": (3, _ATTENTION),
    "SageAttention/sage-blackwell": (1, _ATTENTION),
    "Isotr0py/ggml": (1, _GGUF),
    "rootonchair/nunchaku-lite-kernels": (2, _NUNCHAKU),
    "shi-labs/natten": (1, _NATTEN),
}


def write_kernels(hub: Path) -> None:
    for repo_id, (version, code) in KERNELS.items():
        name = repo_id.split("/")[1]
        for backend in ("cpu", "cuda"):
            build = hub / repo_id / f"v{version}" / "build" / f"torch-{backend}"
            build.mkdir(parents=True)
            metadata = {
                "id": f"_{name.replace('-', '_')}_{backend}_0a1b2c3",
                "name": name,
                "version": version,
                "license": "Apache-2.0",
                "python-depends": [],
                "backend": {"type": backend},
            }
            (build / "metadata.json").write_text(json.dumps(metadata))
            (build / "__init__.py").write_text(code)


# ---------------------------------------------------------------------------------------------------------------------
# Cases: each returns what differs, and which functions of which kernels ran how often.
# ---------------------------------------------------------------------------------------------------------------------


def _flux(device: str, dtype: Any) -> tuple[Any, dict[str, Any]]:
    import torch
    from diffusers import FluxTransformer2DModel

    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=64,
        num_attention_heads=2,
        joint_attention_dim=64,
        pooled_projection_dim=64,
        axes_dims_rope=(16, 24, 24),
    )
    inputs = {
        "hidden_states": torch.randn(2, 16, 16),
        "encoder_hidden_states": torch.randn(2, 8, 64),
        "pooled_projections": torch.randn(2, 64),
        "timestep": torch.tensor([0.3, 0.6]),
        "img_ids": torch.randn(16, 3).abs(),
        "txt_ids": torch.zeros(8, 3),
    }
    cast = {name: each.to(device, dtype if "ids" not in name else torch.float32) for name, each in inputs.items()}
    return model.to(device, dtype).eval(), cast


def _calls() -> dict[str, int]:
    import kernels

    return {name: count for each in kernels.get_loaded_kernels() for name, count in each.module.calls.items()}


def _apart(one: Any, other: Any) -> float:
    return float((one.float() - other.float()).abs().max() / one.float().abs().max())


def attention(backend: str, device: str) -> dict[str, Any]:
    """`set_attention_backend` on a Flux transformer, against Torch's own attention."""
    import torch

    model, inputs = _flux(device, torch.bfloat16)
    with torch.no_grad():
        model.set_attention_backend("native")
        before = model(**inputs).sample
        model.set_attention_backend(backend)
        after = model(**inputs).sample
        calls = _calls()
        model.set_attention_backend("native")
        again = model(**inputs).sample
    assert torch.equal(before, again), "Torch's own attention gives something else than before"
    assert calls == _calls(), "the kernel is still used"
    return {"difference": _apart(before, after), "calls": calls, "allowed": 0.02}


def gguf(device: str) -> dict[str, Any]:
    """Linear layers of a Flux transformer in Q8_0, unpacked by the kernel, against diffusers' own unpacking."""
    import torch

    with _a_gpu(device, (8, 0)):
        from diffusers.quantizers.gguf import utils
    import gguf

    assert utils.ops is not None, "no kernel was loaded"
    model, inputs = _flux(device, torch.bfloat16)
    packed = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and module.weight.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            data = torch.from_numpy(gguf.quants.quantize(module.weight.detach().float().cpu().numpy(), kind))
            packed[f"{name}.weight"] = utils.GGUFParameter(data.to(device), quant_type=kind)
    biases = {name: each for name, each in model.state_dict().items() if name.endswith("bias")}
    utils._replace_with_gguf_linear(model, torch.bfloat16, packed)
    for name, value in [
        *packed.items(),
        *((name, each) for name, each in biases.items() if name[:-4] + "weight" in packed),
    ]:
        owner, _, attribute = name.rpartition(".")
        layer = model.get_submodule(owner)
        setattr(layer, attribute, value if isinstance(value, torch.nn.Parameter) else torch.nn.Parameter(value))
    linear = utils.GGUFLinear
    with torch.no_grad():
        linear.forward = linear.forward_native
        before = model(**inputs).sample
        linear.forward = linear.forward_cuda
        after = model(**inputs).sample
    return {"difference": _apart(before, after), "calls": _calls(), "allowed": 0.02}


def nunchaku(device: str) -> dict[str, Any]:
    """Feed-forward layers of a Flux transformer with four bits, against the same numbers in floating point."""
    import torch
    from diffusers.quantizers.nunchaku import utils

    model, inputs = _flux(device, torch.bfloat16)
    wide = {
        name: each.weight.detach().float() for name, each in model.named_modules() if isinstance(each, torch.nn.Linear)
    }
    config = {
        "svdq_w4a4": {"precision": "int4", "group_size": 64, "rank": 16, "targets": ["transformer_blocks.0.attn.to_q"]},
        "awq_w4a16": {"precision": "int4", "group_size": 64, "targets": ["transformer_blocks.1.norm1.linear"]},
    }
    with torch.no_grad():
        before = model(**inputs).sample
        biases = {name: each.detach().clone() for name, each in model.state_dict().items() if name.endswith("bias")}
        utils.replace_with_nunchaku_linear(model, config, torch.bfloat16)
        for name, layer in model.named_modules():
            if isinstance(layer, (utils.SVDQW4A4Linear, utils.AWQW4A16Linear)):
                _fill(layer, wide[name], biases[f"{name}.bias"], device)
        after = model(**inputs).sample
    return {"difference": _apart(before, after), "calls": _calls(), "allowed": 0.2}


def _fill(layer: Any, weight: Any, bias: Any, device: str) -> None:
    import torch

    groups = weight.cpu().reshape(weight.shape[0], -1, 64)
    scale = (groups.abs().amax(-1) / 7).to(torch.bfloat16)
    numbers = (groups / scale.float()[..., None]).round().clamp(-8, 7).to(torch.int8).reshape(weight.shape)
    packed = ((numbers[:, ::2] & 15) | (numbers[:, 1::2] << 4)).contiguous()
    zeros = {name: torch.zeros(each.shape, dtype=each.dtype) for name, each in layer.named_parameters()}
    values = zeros | {"wscales": scale.T.contiguous(), "bias": bias.cpu().to(torch.bfloat16)}
    if "smooth_factor" in values:
        values["smooth_factor"] = torch.ones_like(values["smooth_factor"])
    values["qweight"] = packed.view(zeros["qweight"].dtype).reshape(zeros["qweight"].shape)
    for name, value in values.items():
        setattr(layer, name, torch.nn.Parameter(value.to(device), requires_grad=False))


def natten(device: str) -> dict[str, Any]:
    """The decoder attention of LTX-2 with NATTEN, against the same with FlexAttention."""
    import torch
    from diffusers.models.autoencoders import ltx2_diffusion_decoder as decoder

    torch.manual_seed(0)
    layer = decoder.LTX2VideoVaeNeighborhoodAttention(dim=64, kernel_size=(3, 3, 3), head_dim=32).to(device).eval()
    hidden = torch.randn(1, 4, 5, 6, 64, device=device)
    with torch.no_grad():
        before = layer(hidden, layer.build_block_mask(hidden))
        layer.set_processor(decoder.LTX2VideoVaeNeighborhoodNattenProcessor())
        after = layer(hidden)
    return {"difference": _apart(before, after), "calls": _calls(), "allowed": 1e-4}


class _a_gpu:
    """Say that there is a GPU where there is none, while a module is imported that looks for one."""

    def __init__(self, device: str, capability: tuple[int, int]) -> None:
        self._needed, self._capability = device == "cpu", capability

    def __enter__(self) -> None:
        import torch

        import kernels.resolver.target

        kernels.resolver.target.Target.current()  # probed before, as it is
        self._before = torch.cuda.is_available, torch.cuda.get_device_capability
        if self._needed:
            torch.cuda.is_available = lambda: True
            torch.cuda.get_device_capability = lambda *arguments: self._capability

    def __exit__(self, *exception: object) -> None:
        import torch

        torch.cuda.is_available, torch.cuda.get_device_capability = self._before


CASES: dict[str, Callable[[str], dict[str, Any]]] = {
    **{f'`set_attention_backend("{name}")`': (lambda device, name=name: attention(name, device)) for name in BACKENDS},
    "GGUF layers (`DIFFUSERS_GGUF_CUDA_KERNELS`)": gguf,
    "Nunchaku layers": nunchaku,
    "`LTX2VideoVaeNeighborhoodNattenProcessor`": natten,
}

# ---------------------------------------------------------------------------------------------------------------------


def run_case(name: str, device: str) -> dict[str, Any]:
    """One case, in this process, with a Hub of its own."""
    from kernels.server import HubServer

    with tempfile.TemporaryDirectory() as folder:
        hub = Path(folder, "hub")
        write_kernels(hub)
        with HubServer(hub, trusted={"kernels-community", "SageAttention", "shi-labs"}) as server:
            os.environ |= {
                "HF_ENDPOINT": server.url,
                "HF_HOME": str(Path(folder, "home")),
                "KERNELS_CACHE": str(Path(folder, "cache")),
                "DIFFUSERS_GGUF_CUDA_KERNELS": "true",
                "NO_PROXY": "*",
            }
            if "attention" not in name and "Natten" not in name:
                os.environ["DIFFUSERS_TRUST_REMOTE_KERNELS"] = "true"
            return CASES[name](device)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, help="an environment that has diffusers")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-page", action="store_true", help="print the results only")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run_case(arguments.case, arguments.device)))
        return 0
    python = arguments.python
    if python is None:
        from environment import make_environment

        required = [
            f"diffusers=={DIFFUSERS}",
            "gguf",
            "accelerate",
            "transformers",
            f"torch=={TORCH}",
            f"--editable={ROOT}",
        ]
        python = make_environment("diffusers", required)
    lines, failed = ["| diffusers | functions of the kernels, calls | largest difference |", "|---|---|---|"], 0
    for name in CASES:
        command = [python, __file__, f"--case={name}", f"--device={arguments.device}"]
        done = subprocess.run(command, capture_output=True, text=True)
        try:
            result = json.loads(done.stdout.splitlines()[-1])
            good = result["calls"] and result["difference"] <= result["allowed"]
            calls = ", ".join(f"`{function}` {count}" for function, count in sorted(result["calls"].items()))
            outcome = f"{result['difference']:.1g}" if good else f"FAILED: {result['difference']:.1g}"
        except (IndexError, ValueError):
            good, calls = False, ""
            outcome = "FAILED: " + (done.stderr.strip().splitlines() or ["no output"])[-1][:300]
            print(done.stderr[-3000:], file=sys.stderr)
        failed += not good
        lines.append(f"| {name} | {calls} | {outcome} |")
        print(lines[-1], flush=True)
    if not arguments.no_page and not failed:
        from page import write_section

        write_section(PAGE, "diffusers", lambda before: "\n".join(lines))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
