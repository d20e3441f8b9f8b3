"""A kernel with tests as authors write them, which import it by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.authoring.compile import build_kernel

__all__ = ["write_kernel"]

PACKAGE = {
    "__init__.py": """
import importlib

from . import layers
from ._ops import add_op_namespace_prefix, ops

COUNTED = []


def twice(x):
    COUNTED.append(1)
    return x + x


def __getattr__(name):
    if name == "late":
        return importlib.import_module(f"{__name__}.late")
    raise AttributeError(name)
""",
    "layers.py": "from torch import nn\n\n\nclass Twice(nn.Module):\n    def forward(self, x):\n        return x + x\n",
    "late.py": "from .nested.deep import DEEP\n",
    "nested/__init__.py": "",
    "nested/deep.py": "class Deep:\n    pass\n\n\nDEEP = Deep()\n",
}


@pytest.fixture
def write_kernel(tmp_path: Path, isolated_env: Path) -> Callable[..., Path]:
    """Write and build a noarch kernel: `tests` and `package` are files by path, `general` lines of `[general]`."""

    def write(
        tests: dict[str, str],
        *,
        name: str = "real-one",
        package: dict[str, str] | None = None,
        files: dict[str, str] | None = None,
        general: str = "",
        backends: str = '["cpu"]',
        build: bool = True,
    ) -> Path:
        folder = tmp_path / "sources"
        top = f"torch-ext/{name.replace('-', '_')}"
        contents = {f"{top}/{path}": text for path, text in (PACKAGE | (package or {})).items()}
        contents |= {f"tests/{path}": text for path, text in tests.items()} | (files or {})
        contents["build.toml"] = (
            f'[general]\nname = "{name}"\nversion = 1\nlicense = "MIT"\nbackends = {backends}\n{general}\n'
            f'[general.hub]\nrepo-id = "org/{name}"\n\n[torch-noarch]\n'
        )
        for path, text in contents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        if build:
            build_kernel(folder, folder)
        return folder

    return write
