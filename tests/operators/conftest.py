"""Vendors for these tests: each a backend whose folder has some operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vendor_folders import FolderBackend, write_folder

from kernels.backends import register_backend, unregister_backend
from kernels.operators import active_ops


@pytest.fixture
def vendor(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Registers a backend whose folder has these operators, and gives its name; leaves none of them behind."""
    registered: list[str] = []

    def register(ops: str, name: str = "acme", **members: object) -> str:
        folder = write_folder(tmp_path / name, ops=ops)
        register_backend(FolderBackend(folder, name=name, device_type=name, **members))
        registered.append(name)
        return name

    yield register
    for name in registered:
        unregister_backend(name)
    assert active_ops() == []
