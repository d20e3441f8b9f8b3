"""Kernels in folders, and a mapping that no test leaves behind."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernels.layer import register_kernel_mapping

WriteKernel = Callable[..., Path]


@pytest.fixture(autouse=True)
def _no_mapping() -> Iterator[None]:
    """Start and end with nothing registered."""
    register_kernel_mapping({}, inherit_mapping=False)
    yield
    register_kernel_mapping({}, inherit_mapping=False)


@pytest.fixture
def write_kernel(tmp_path: Path) -> WriteKernel:
    """Write a kernel of plain Python into a folder: `write_kernel(name, init=..., layers=...)`."""

    def write(name: str, init: str = "from . import layers", layers: str | None = None) -> Path:
        repository = tmp_path / name
        variant = repository / "build" / "torch-cpu"
        variant.mkdir(parents=True)
        metadata = {
            "name": name,
            # Unique in the process, as the tests of one worker share it.
            "id": f"_{name}_cpu_{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:7]}",
            "version": 1,
            "license": "Apache-2.0",
            "python-depends": [],
            "backend": {"type": "cpu"},
        }
        (variant / "metadata.json").write_text(json.dumps(metadata))
        (variant / "__init__.py").write_text(textwrap.dedent(init))
        if layers is not None:
            (variant / "layers.py").write_text("import torch\nfrom torch import nn\n" + textwrap.dedent(layers))
        return repository

    return write
