"""What code for the existing client (0.17.2) catches in each situation catches the same error here.

One row a `raise` of that client that its callers can meet, with the exception that they catch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from torch import nn

from kernels import (
    CUDAProperties,
    Device,
    KernelizeFallback,
    LayerRepository,
    LocalLayerRepository,
    Metadata,
    Mode,
    get_kernel,
    get_kernel_dep,
    get_local_kernel,
    get_locked_kernel,
    kernelize,
    load_kernel,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
    use_kernelized_func,
)

Do = Callable[[TestHub, Path, pytest.MonkeyPatch], object]


@use_kernel_forward_from_hub("Marked")
class Marked(nn.Module):
    def forward(self, x: Any) -> Any:
        return x


def kernelized(layer: str, **options: Any) -> Do:
    """Kernelize with a kernel whose `layers.py` is this."""

    def do(hub: TestHub, folder: Path, _: pytest.MonkeyPatch) -> object:
        text = f"from torch import nn\n\n\n{layer}"
        build = hub.make_repo(variants={"torch-cpu": {"__init__.py": "from . import layers\n", "layers.py": text}})
        mapping = {"Marked": {"cpu": LocalLayerRepository(build, layer_name="Marked")}}
        with use_kernel_mapping(mapping, inherit_mapping=False):
            return kernelize(Marked(), **{"device": "cpu", "mode": Mode.INFERENCE, **options})

    return do


def unmapped(**options: Any) -> Do:
    return lambda hub, folder, patch: kernelize(Marked(), **{"device": "cpu", "mode": Mode.INFERENCE, **options})


def published(revision: dict[str, Any] | None = None, **repo: Any) -> Do:
    def do(hub: TestHub, _: Path, __: pytest.MonkeyPatch) -> object:
        hub.make_repo(**repo)
        return get_kernel("acme/relu", **(revision or {"version": 1}))

    return do


def local(metadata: dict[str, Any] | None, files: dict[str, str]) -> Do:
    def do(_: TestHub, folder: Path, __: pytest.MonkeyPatch) -> object:
        build = folder / "build" / "torch-cpu"
        build.mkdir(parents=True)
        if metadata is not None:
            whole = {"name": "relu", "id": "_relu_caught", "backend": {"type": "cpu"}, **metadata}
            (build / "metadata.json").write_text(json.dumps(whole))
        for name, text in files.items():
            (build / name).write_text(text)
        return get_local_kernel(folder)

    return do


def locked(text: str | None, get: Callable[..., object] = get_locked_kernel) -> Do:
    def do(_: TestHub, folder: Path, __: pytest.MonkeyPatch) -> object:
        if text is not None:
            (folder / "kernels.lock").write_text(text)
        return get("acme/relu", lockfile=folder / "kernels.lock")

    return do


def overridden(value: str) -> Do:
    def do(_: TestHub, __: Path, patch: pytest.MonkeyPatch) -> object:
        patch.setenv("LOCAL_KERNELS", value)
        return get_kernel("acme/relu", version=1)

    return do


def away(**options: Any) -> Do:
    def do(hub: TestHub, _: Path, __: pytest.MonkeyPatch) -> object:
        hub.down()
        return get_kernel("acme/relu", version=1, **options)

    return do


FORWARD = "class Marked(nn.Module):\n    def forward(self, x):\n        return x\n"
NOTHING = "def __init__(self):\n        super().__init__()\n    "

CASES: dict[str, tuple[type[Exception], Do]] = {
    "version and revision": (ValueError, published({"version": 1, "revision": "v1"})),
    "no such version": (ValueError, published({"version": 0})),
    "no such branch": (HfHubHTTPError, published({"revision": "nothing"})),
    "no such repository": (RepositoryNotFoundError, lambda h, f, p: get_kernel("acme/nothing", version=1)),
    "unknown backend": (ValueError, published({"version": 1, "backend": "xpu"})),
    "untrusted": (ValueError, lambda h, f, p: (h.make_repo("mallory/x"), get_kernel("mallory/x", version=1))),
    "trust cannot be asked": (ValueError, away()),
    "no connection": (HfHubHTTPError, away(trust_remote_code=True)),
    "no build suits": (FileNotFoundError, published(variants=["torch-cuda"])),
    "no build": (HfHubHTTPError, published(variants=[])),
    "newer client": (RuntimeError, published(metadata={"kernels-minver": "999.1.0"})),
    "unknown dependency": (ValueError, published(python_depends=["kepler-22b"])),
    "unknown dependency of a folder": (ValueError, local({"python-depends": ["kepler-22b"]}, {"__init__.py": ""})),
    "missing dependency": (ImportError, published(python_depends=["helion"])),
    "cyclic dependencies": (ValueError, published(depends=[("acme/relu", 1)])),
    "dependency outside a load": (RuntimeError, lambda h, f, p: get_kernel_dep("acme/relu")),
    "undeclared dependency": (
        RuntimeError,
        local({}, {"__init__.py": "from kernels import get_kernel_dep\nget_kernel_dep('acme/base')\n"}),
    ),
    "no local build": (FileNotFoundError, lambda h, f, p: get_local_kernel(f)),
    "no module": (FileNotFoundError, local({}, {})),
    "no metadata": (OSError, local(None, {"__init__.py": ""})),
    "a kernel's own error": (ZeroDivisionError, local({}, {"__init__.py": "1 / 0"})),
    "malformed override": (ValueError, overridden("acme/relu")),
    "override without a kernel": (FileNotFoundError, overridden("acme/relu=/non/existing")),
    "missing metadata file": (OSError, lambda h, f, p: Metadata.read_from_file(f / "metadata.json")),
    "malformed metadata": (ValueError, lambda h, f, p: Metadata.from_bytes(b"{")),
    "missing lockfile": (FileNotFoundError, locked(None)),
    "missing lockfile to load": (FileNotFoundError, locked(None, load_kernel)),
    "malformed lockfile": (ValueError, locked("{")),
    "not locked": (ValueError, locked("[]")),
    "not locked to load": (ValueError, locked("[]", load_kernel)),
    "no layer mapping": (ValueError, unmapped(use_fallback=False)),
    "unknown device": (ValueError, unmapped(device="abacus")),
    "fallback as a mode": (ValueError, unmapped(mode=Mode.FALLBACK)),
    "no mode": (ValueError, unmapped(mode=Mode.TORCH_COMPILE)),
    "exclusive modes": (ValueError, lambda h, f, p: Mode.INFERENCE | Mode.TRAINING),
    "fallback with a mode": (ValueError, lambda h, f, p: Mode.FALLBACK | Mode.TRAINING),
    "no layers": (ValueError, kernelized("")),
    "no layer": (ValueError, kernelized("class Other(nn.Module):\n    pass\n")),
    "no Torch layer": (TypeError, kernelized("class Marked:\n    def forward(self, x):\n        return x\n")),
    "a constructor": (TypeError, kernelized(FORWARD.replace("def forward", f"{NOTHING}def forward"))),
    "a member": (TypeError, kernelized(f"{FORWARD}\n    size = 1\n")),
    "another signature": (TypeError, kernelized(FORWARD.replace("x):", "x, y):"))),
    "another kind of argument": (TypeError, kernelized(FORWARD.replace("x):", "*, x):"))),
    "no compilation": (
        ValueError,
        kernelized(FORWARD, mode=Mode.INFERENCE | Mode.TORCH_COMPILE, use_fallback=KernelizeFallback.NONE),
    ),
    "mark of no class": (TypeError, lambda h, f, p: use_kernel_forward_from_hub("X")(5)),  # type: ignore[type-var]
    "function without a mark": (ValueError, lambda h, f, p: use_kernelized_func(len)(Marked)),
    "version and revision of a layer": (
        ValueError,
        lambda h, f, p: LayerRepository("acme/relu", layer_name="X", version=1, revision="v1"),
    ),
    "properties of another device": (
        ValueError,
        lambda h, f, p: Device(type="cpu", properties=CUDAProperties(min_capability=1, max_capability=2)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_same_except_catches_it(hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    error, do = CASES[case]
    (tmp_path / "project").mkdir()
    with pytest.raises(error):
        do(hub, tmp_path / "project", monkeypatch)
