"""The functions of other packages that call `kernels`, run here with stand-in kernels: docs/compatibility.md.

    python compat/call_sites.py [--wheels FOLDER] [--no-page]

A function is taken out of its wheel, with the constants of its module, and run by itself: the package around it needs a
GPU, or a hundred others. What the function uses of it is a stand-in too.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib
import json
import logging
import os
import sys
import tempfile
import threading
import types
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"

_ATTENTION = """
import torch


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **options):
    scores = torch.einsum("qhd,khd->hqk", q, k) * options["softmax_scale"]
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def flash_attn_func(q, k, v, **options):
    return q


flash_attn_with_kvcache = flash_attn_func
"""

_MAMBA = {
    "__init__.py": "",
    "ops/__init__.py": "",
    "ops/selective_scan_interface.py": "def mamba_inner_fn(): ...\ndef selective_scan_fn(): ...\n",
    "ops/triton/__init__.py": "",
    "ops/triton/selective_state_update.py": "def selective_state_update(): ...\n",
    "ops/triton/ssd_combined.py": (
        "def mamba_chunk_scan_combined(): ...\ndef mamba_split_conv1d_scan_combined(): ...\n"
    ),
    "ops/triton/ssd_chunk_scan.py": (
        "class _chunk_scan_fwd_kernel:\n    keys = []\n    arg_names = ['x_ptr', 'BLOCK_SIZE_M', 'chunk_size']\n"
    ),
}

#: The kernels that are called for: repository, version, files.
KERNELS: list[tuple[str, int, dict[str, str]]] = [
    ("kernels-community/mamba-ssm", 2, _MAMBA),
    ("kernels-community/causal-conv1d", 1, {"__init__.py": "causal_conv1d_fn = causal_conv1d_update = print\n"}),
    ("kernels-community/deep-gemm", 2, {"__init__.py": "def m_grouped_fp8_fp4_gemm_nt_contiguous(): ...\n"}),
    ("kernels-community/flash-attn2", 4, {"__init__.py": _ATTENTION}),
    ("kernels-community/flash-attn3", 1, {"__init__.py": _ATTENTION}),
    ("kernels-community/sgl-flash-attn3", 1, {"__init__.py": _ATTENTION}),
    ("kernels-community/sage-attention", 2, {"__init__.py": "def sageattn(): ...\n"}),
    ("kernels-community/sonic-moe", 2, {"__init__.py": "def moe(): ...\n"}),
    ("kernels-community/bitsandbytes-mps", 1, {"__init__.py": "def gemv(): ...\n"}),
    ("shi-labs/natten", 1, {"__init__.py": "class token_permute:\n    token_permute_operation = print\n"
                                           "    token_unpermute_operation = print\n"}),
]  # fmt: skip


class Function:
    """A function of a package, taken out of its wheel.

    Args:
        wheel: The wheel.
        file: The module, by its path in it.
        names: The functions; the first is called.
        around: What it uses of the rest of its module.
        modules: What it imports of other packages.
    """

    def __init__(
        self, wheel: Path, file: str, names: list[str], around: Mapping[str, Any], modules: Mapping[str, Any]
    ) -> None:
        with zipfile.ZipFile(wheel) as archive:
            tree = ast.parse(archive.read(file).decode("utf-8"))
        kept = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names]
        constants = [node for node in tree.body if isinstance(node, (ast.Assign, ast.AnnAssign)) and _is_constant(node)]
        self._modules = modules
        self.namespace: dict[str, Any] = {
            "__name__": file,
            "annotations": __import__("__future__").annotations,
            "Any": Any,
            "Optional": None,
            "Path": Path,
            "cache": functools.cache,
            "importlib": importlib,
            "lru_cache": functools.lru_cache,
            "os": os,
            "threading": threading,
            "logger": logging.getLogger(file),
            "LOG": logging.getLogger(file),
            **around,
        }
        module = ast.Module([*constants, *kept], type_ignores=[])
        flags = __import__("__future__").annotations.compiler_flag
        exec(compile(ast.fix_missing_locations(module), file, "exec", flags=flags), self.namespace)
        self._function = self.namespace[names[0]]

    def __call__(self, *arguments: Any) -> Any:
        before = {name: sys.modules.get(name) for name in self._modules}
        sys.modules.update({name: _module(name, values) for name, values in self._modules.items()})
        try:
            return self._function(*arguments)
        finally:
            for name, module in before.items():
                sys.modules.pop(name, None) if module is None else sys.modules.update({name: module})


def _module(name: str, values: Mapping[str, Any]) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(values)
    return module


def _is_constant(node: ast.Assign | ast.AnnAssign) -> bool:
    try:
        ast.literal_eval(node.value)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return False
    return True


# ---------------------------------------------------------------------------------------------------------------------
# Each runs one function and says what came of it.
# ---------------------------------------------------------------------------------------------------------------------

Take = Callable[..., Function]


def _raised(kind: type[Exception], act: Callable[..., Any], *arguments: Any) -> Exception:
    try:
        act(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def axolotl_mamba(take: Take, folder: Path) -> str:
    bindings = take("axolotl", "axolotl/model_support/mamba/fla_mixer.py", "_kernel_bindings")
    assert bindings("mamba")["selective_scan_fn"] is not None
    return f"{len(bindings('mamba2'))} functions of two kernels, imported from modules below them"


def axolotl_deep_gemm(take: Take, folder: Path) -> str:
    load = take("axolotl", "axolotl/integrations/kernels/libs/scattermoe_lora/dequant_grouped.py", "_dg")
    assert load() is load()
    return "loaded from the branch `v2`, once"


def axolotl_attention(take: Take, folder: Path) -> str:
    fallbacks = {"flash_attention_2": "kernels-community/flash-attn2", "flash_attention_3": "acme/none"}
    why = take(
        "axolotl",
        "axolotl/utils/schemas/validation.py",
        "_flash_attn_kernel_failure",
        "_get_kernel_from_cache",
        modules={
            "transformers": {},
            "transformers.integrations": {},
            "transformers.integrations.hub_kernels": {"get_attn_kernel_version": lambda repo_id: 4},
            "transformers.modeling_flash_attention_utils": {"FLASH_ATTN_KERNEL_FALLBACK": fallbacks},
        },
    )
    assert why("flash_attention_2") is None
    assert "RepositoryNotFound" in why("flash_attention_3")
    # What was downloaded is found in the cache, where the Hub does not answer.
    cached = why.namespace["_get_kernel_from_cache"]("kernels-community/flash-attn2", 4)
    return f"no failure, a failure with its reason, and `{cached.__name__.rsplit('_', 1)[0]}…` from the cache"


def bitsandbytes(take: Take, folder: Path) -> str:
    load = take(
        "bitsandbytes", "bitsandbytes/backends/mps/ops.py", "_get_kernel", around={"_kernel_load_failed": False}
    )
    assert load().gemv is not None
    return "loaded"


def ms_swift_variant(take: Take, folder: Path) -> str:
    names = ["torch-cpu", "torch-npu", "nothing"]

    class Answer:
        @staticmethod
        def json() -> Any:
            return {"Data": {"Files": [{"Name": name} for name in names]}}

        raise_for_status = staticmethod(lambda: None)

    around = {
        "HubApi": lambda: types.SimpleNamespace(endpoint=""),
        "requests": types.SimpleNamespace(get=lambda *arguments, **options: Answer),
        "ModelScopeConfig": types.SimpleNamespace(get_cookies=lambda: None),
        "Optional": {str: str},
    }
    resolve = take("ms_swift", "swift/utils/hub_utils.py", "_resolve_kernel_variant_str", around=around)
    assert resolve("org/name") == "torch-cpu"
    names.remove("torch-cpu")
    assert "torch-npu: for cann" in str(_raised(FileNotFoundError, resolve, "org/name"))
    return "the build for this machine; without one, an error with the reasons"


def ms_swift_load(take: Take, folder: Path) -> str:
    from packaging.version import Version

    asked: list[str] = []
    hub = _module("hub_kernels", {"get_kernel": asked.append})
    around = {
        "use_hf_hub": lambda: False,
        "_resolve_kernel_variant_str": lambda repo_id: None,
        "safe_snapshot_download": lambda *arguments, **options: (
            folder / "hub" / "kernels-community" / "sonic-moe" / "v2"
        ),
        "Version": Version,
    }
    patch = take(
        "ms_swift",
        "swift/utils/hub_utils.py",
        "patch_kernels",
        around=around,
        modules={"transformers": {}, "transformers.integrations": {"hub_kernels": hub}},
    )
    assert patch()
    assert hub.get_kernel("org/name", version=1).moe is not None
    assert not asked
    return "a downloaded folder, loaded"


def sglang(take: Take, folder: Path) -> str:
    from kernels.server import Catalog

    commit = Catalog(folder / "hub").commit("kernels-community/sgl-flash-attn3", "v1").id
    envs = types.SimpleNamespace(
        SGLANG_USE_SGL_FA3_KERNEL=types.SimpleNamespace(get=lambda: False),
        SGLANG_CACHE_DIR=types.SimpleNamespace(get=lambda: str(folder)),
    )
    load = take(
        "sglang",
        "sglang/kernels/ops/attention/flash_attention_v3.py",
        "_load_fa3_kernels",
        around={"cache_once": lambda function: function, "envs": envs, "_load_fa3_kernel_from_sgl": lambda: None},
    )
    from_hub = load()
    lockfile = folder / "kernels.lock"
    lockfile.write_text(json.dumps([{"repo_id": "kernels-community/sgl-flash-attn3", "sha": commit, "variants": {}}]))
    from_lock = load()
    assert from_hub is not None
    assert from_hub == from_lock
    return "from the Hub, and from the cache with its lockfile: the same functions"


def trl(take: Take, folder: Path) -> str:
    import torch

    attend = take(
        "trl",
        "trl/experimental/async_grpo/packing.py",
        "tree_attention",
        "_flash_attn",
        around={"torch": torch, "get_target_dtype": lambda query, module: None},
    )
    query, key, value = (torch.randn(1, 2, 6, 8) for _ in range(3))
    ends = torch.tensor([0, 6], dtype=torch.int32)
    options = {
        "tree_kv_index": torch.arange(6),
        "tree_cu_seqlens_q": ends,
        "tree_cu_seqlens_k": ends,
        "tree_max_seqlen_q": 6,
        "tree_max_seqlen_k": 6,
        "scaling": 0.35,
    }
    out, _ = functools.partial(attend._function, **options)(None, query, key, value, None)
    wanted = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=0.35).transpose(1, 2)
    difference = float((out - wanted).abs().max())
    assert difference < 1e-5
    return f"attention, {difference:.0e} from Torch's"


def unsloth(take: Take, folder: Path) -> str:
    config = types.SimpleNamespace(kernel_fn=None, version=3)
    load = take(
        "unsloth-2",
        "studio/backend/core/inference/diffusion_attention.py",
        "_load_sage_hub_kernel",
        around={"_SAGE_HUB_LOCK": threading.Lock()},
        modules={
            "diffusers": {},
            "diffusers.models": {},
            "diffusers.models.attention_dispatch": {
                "_HUB_KERNELS_REGISTRY": {"sage_hub": config},
                "AttentionBackendName": str,
            },
        },
    )
    function, why = load()
    assert not why
    assert config.kernel_fn is function
    return "loaded into diffusers' registry"


def unsloth_zoo(take: Take, folder: Path) -> str:
    probed: list[Any] = []
    load = take(
        "unsloth_zoo",
        "unsloth_zoo/temporary_patches/moe_utils_sonic.py",
        "_probe_sonic_module_once",
        around={
            "_device_is_supported": lambda: (True, ""),
            "_apply_cutlass_dsl_shim": lambda: None,
            "_install_sonic_module_path": probed.append,
            "_probe_sonic": probed.append,
            "_record_device_capabilities": lambda: None,
            "_log": lambda *arguments: None,
            "_concat_layout_supported": lambda *arguments: True,
        },
    )
    load()
    assert len(probed) == 2
    assert load.namespace["_SONIC_REASON"] is None
    return "loaded"


def vllm_omni(take: Take, folder: Path) -> str:
    file = "vllm_omni/diffusion/attention/backends/flash_attn_hub.py"
    load = take("vllm_omni", file, "_get_hub_module", "_load_hub_module", around={"_hub_lock": threading.Lock()})
    # The second of the two versions that it tries is there.
    assert load("kernels-community/sonic-moe").moe is not None
    assert isinstance(_raised(RuntimeError, load, "acme/none").__cause__, FileNotFoundError)
    return "loaded in the second version that is tried; an error with its cause"


def vllm_omni_natten(take: Take, folder: Path) -> str:
    load = take("vllm_omni", "vllm_omni/diffusion/models/ltx2/vae/decoder.py", "_load_natten_token_permutation")
    assert len(load()) == 2
    return "two functions"


SITES: list[tuple[str, str, Callable[[Take, Path], str]]] = [
    ("axolotl", "_kernel_bindings", axolotl_mamba),
    ("axolotl", "_dg", axolotl_deep_gemm),
    ("axolotl", "_flash_attn_kernel_failure, _get_kernel_from_cache", axolotl_attention),
    ("bitsandbytes", "_get_kernel", bitsandbytes),
    ("ms-swift", "_resolve_kernel_variant_str", ms_swift_variant),
    ("ms-swift", "patch_kernels", ms_swift_load),
    ("sglang", "_load_fa3_kernels", sglang),
    ("trl", "tree_attention", trl),
    ("unsloth", "_load_sage_hub_kernel", unsloth),
    ("unsloth-zoo", "_probe_sonic_module_once", unsloth_zoo),
    ("vllm-omni", "_get_hub_module", vllm_omni),
    ("vllm-omni", "_load_natten_token_permutation", vllm_omni_natten),
]

# ---------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[None]:
    """A Hub with the kernels, and an empty cache, both in a folder."""
    from kernels.server import HubServer

    for repo_id, version, files in KERNELS:
        build = folder / "hub" / repo_id / f"v{version}" / "build" / "torch-cpu"
        name = repo_id.split("/")[1]
        metadata = {
            "id": f"_{name.replace('-', '_')}_cpu_0a1b2c3",
            "name": name,
            "version": version,
            "license": "Apache-2.0",
            "python-depends": [],
            "backend": {"type": "cpu"},
        }
        for path, code in {**files, "metadata.json": json.dumps(metadata)}.items():
            (build / path).parent.mkdir(parents=True, exist_ok=True)
            (build / path).write_text(code)
    with HubServer(folder / "hub", trusted={"kernels-community", "shi-labs"}) as server:
        os.environ |= {"KERNELS_HUB": server.url, "KERNELS_CACHE": str(folder / "cache")}
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheels", type=Path, default=ROOT / ".venv-wheels", help="where the wheels are kept")
    parser.add_argument("--no-page", action="store_true", help="print the results only")
    arguments = parser.parse_args()
    from dependents import download
    from page import write_section

    wheels = download(arguments.wheels)

    def take(
        package: str,
        file: str,
        *names: str,
        around: Mapping[str, Any] | None = None,
        modules: Mapping[str, Any] | None = None,
    ) -> Function:
        wheel = next(wheel for wheel in wheels if wheel.name.startswith(package))
        return Function(wheel, file, list(names), around or {}, modules or {})

    lines, failed = ["| package | function | here |", "|---|---|---|"], 0
    with tempfile.TemporaryDirectory() as name, serving(Path(name)):
        for package, function, act in SITES:
            try:
                outcome = act(take, Path(name))
            except Exception as error:
                failed += 1
                outcome = f"FAILED: {type(error).__name__}: {error}"
                logging.getLogger(__name__).exception(package)
            lines.append(f"| {package} | `{function.replace(', ', '`, `')}` | {outcome} |")
            print(lines[-1])
    if not failed and not arguments.no_page:
        write_section(PAGE, "call-sites", lambda before: "\n".join(lines))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
