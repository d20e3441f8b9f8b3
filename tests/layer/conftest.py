"""Kernels in folders, and a mapping that no test leaves behind."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from layer_models import scale

from kernels.layer import register_kernel_mapping, unkernelize

WriteKernel = Callable[..., Path]


@pytest.fixture(autouse=True)
def _original_function() -> Iterator[None]:
    """The function of the shared model is one object: no test leaves it kernelized."""
    yield
    unkernelize(scale)


@pytest.fixture(autouse=True)
def _no_mapping() -> Iterator[None]:
    """Start and end with nothing registered."""
    register_kernel_mapping({}, inherit_mapping=False)
    yield
    register_kernel_mapping({}, inherit_mapping=False)


@pytest.fixture
def write_kernel(tmp_path: Path) -> WriteKernel:
    """Write a kernel of plain Python into a folder: `write_kernel(name, init=..., layers=...)`."""

    def write(
        name: str,
        init: str = "from . import layers",
        layers: str | None = None,
        *,
        repository: Path | None = None,
        variant: str = "torch-cpu",
    ) -> Path:
        repository = repository or tmp_path / name
        folder = repository / "build" / variant
        folder.mkdir(parents=True)
        # Unique in the process, as the tests of one worker share it.
        unique = hashlib.sha256(str(folder).encode()).hexdigest()[:7]
        metadata = {
            "name": name,
            "id": f"_{name.replace('-', '_')}_cpu_{unique}",
            "version": 1,
            "license": "Apache-2.0",
            "python-depends": [],
            "backend": {"type": "cpu"},
        }
        (folder / "metadata.json").write_text(json.dumps(metadata))
        (folder / "__init__.py").write_text(textwrap.dedent(init))
        if layers is not None:
            (folder / "layers.py").write_text("import torch\nfrom torch import nn\n" + textwrap.dedent(layers))
        return repository

    return write


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test uses or keeps another one's decisions of autotune."""
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def hub_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of repositories in place of a Hub: `<org>/<name>/v<N>`."""
    root = tmp_path / "hub"
    root.mkdir()
    monkeypatch.setenv("KERNELS_HUB", str(root))
    monkeypatch.setenv("KERNELS_TRUSTED_PUBLISHERS", "org")
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "cache"))
    return root
