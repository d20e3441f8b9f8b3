"""Backends as a JSON file declares them, and what they ask: commands that print, and a module that stands for Torch."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec

from kernels.backends.join.declared import Declaration, DeclaredBackend, declare

__all__ = ["FIVE", "QUERY", "fake_torch", "new", "say"]

#: KernelAgent's fields of a platform.
FIVE = {
    "name": "acme",
    "device_string": "acme",
    "guidance_block": "Tiles.",
    "kernel_guidance": "Use them.",
    "cuda_hacks_to_strip": ["torch.cuda.is_available = lambda: True"],
}

#: A command that no machine has.
QUERY = {"command": ["acme-smi", "--query"], "pattern": "v([0-9.]+)"}


def say(text: str, status: int = 0) -> list[str]:
    """A command that prints a text."""
    return [sys.executable, "-c", "import sys; print(sys.argv[1]); sys.exit(int(sys.argv[2]))", text, str(status)]


def new(name: str = "acme", **fields: Any) -> DeclaredBackend:
    """A backend that only its declared fields describe."""
    fields.setdefault("device_string", name)
    backend = declare(name, msgspec.convert(fields, Declaration), None)
    assert isinstance(backend, DeclaredBackend)
    return backend


def fake_torch(**members: Any) -> ModuleType:
    """A module that stands for a Torch built for the processor, with further members."""
    torch = ModuleType("torch")
    torch.__spec__ = SimpleNamespace()  # type: ignore[assignment]
    torch.version = SimpleNamespace(cuda=None, hip=None, xpu=None)  # type: ignore[attr-defined]
    torch.backends = SimpleNamespace()  # type: ignore[attr-defined]
    for name, value in members.items():
        setattr(torch, name, value)
    return torch
