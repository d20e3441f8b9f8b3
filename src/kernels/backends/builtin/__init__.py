"""The accelerators that come with this package, one file a family. They register by the door that everyone uses."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.backends.deferred import DeferredBackend
from kernels.backends.label import Label, read_label

if TYPE_CHECKING:
    from kernels.backends.base import Backend
    from kernels.backends.builtin import cann, cpu, cuda, metal, neuron, rocm, tpu, xpu

    #: Their names, for editors to complete: each family's file says its own.
    BuiltInName = tpu.Name | neuron.Name | cuda.Name | rocm.Name | metal.Name | xpu.Name | cann.Name | cpu.Name
else:
    BuiltInName = str

__all__ = ["BuiltInName", "families", "is_built_in"]


def families() -> Iterator[DeferredBackend]:
    """Every built-in family: each file of this folder that has a label. None of them is imported."""
    for found in pkgutil.iter_modules(__path__):
        module = f"{__name__}.{found.name}"
        label = _label(module)
        if label is not None:
            yield DeferredBackend.in_module(module, label)


def is_built_in(backend: Backend) -> bool:
    """Whether a backend is one of these, and not a plugin's that overrides it."""
    return type(backend).__module__.rpartition(".")[0] == __name__


def _label(module: str) -> Label | None:
    try:
        return read_label(Path(__path__[0], f"{module.rpartition('.')[2]}.py"))
    except OSError:  # a distribution without source code
        given = getattr(importlib.import_module(module), "LABEL", None)
        return None if given is None else Label.from_literals(given)
