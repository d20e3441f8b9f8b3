"""Small variants to check."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from example_kernels import example_hub
from forked_loads import loading_forks, torch_process

from kernels.trust.content import BuildContent

__all__ = ["compile_native", "example_hub", "loading_forks", "torch_process", "write_variant"]

ID = "_add_one_cpu_1a2b3c4"

PYTHON = {
    "__init__.py": "from . import layers\nfrom ._ops import ops\n",
    "_ops.py": f"""
import torch

library = torch.library.Library({ID!r}, "DEF")
library.define("add_one(Tensor x) -> Tensor")
library.impl("add_one", lambda x: x + 1, "CompositeExplicitAutograd")
ops = torch.ops.{ID}


def add_op_namespace_prefix(name):
    return f"{ID}::{{name}}"
""",
    "layers.py": """
from torch import nn

from ._ops import ops


class AddOne(nn.Module):
    has_backward: bool = False

    def forward(self, x):
        return ops.add_one(x)
""",
}


@pytest.fixture
def write_variant(tmp_path: Path) -> Callable[..., Path]:
    """Write a variant: files are added or, as None, left out; `metadata` changes fields, None takes one away."""

    def write(
        files: Mapping[str, str | bytes | None] | None = None,
        *,
        name: str = "torch-cpu",
        metadata: Mapping[str, Any] | None = None,
        digest: bool = True,
    ) -> Path:
        folder = tmp_path / "kernel" / "build" / name
        for path, content in {**PYTHON, **(files or {})}.items():
            if content is not None:
                file = folder / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content.encode() if isinstance(content, str) else content)
        fields: dict[str, Any] = {
            "name": "add-one",
            "id": ID,
            "version": 1,
            "license": "MIT",
            "python-depends": [],
            "backend": {"type": "cpu"},
        }
        if digest:
            found = BuildContent(folder).digest("sha256")
            fields["digest"] = {"algorithm": found.algorithm, "files": found.files}
        fields |= metadata or {}
        text = json.dumps({key: value for key, value in fields.items() if value is not None})
        (folder / "metadata.json").write_text(text)
        return folder

    return write


@pytest.fixture(scope="session")
def compile_native(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bytes]:
    """Compile C into a shared library, and give its bytes."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")

    def build(source: str, *flags: str) -> bytes:
        folder = tmp_path_factory.mktemp("native")
        (folder / "native.c").write_text(source)
        command = [compiler, "-shared", "-fPIC", "-o", "native.so", "native.c", *flags]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        return (folder / "native.so").read_bytes()

    return build
