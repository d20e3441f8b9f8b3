"""The public functions that change a model. A call imports `kernels.layer.whole_model`, which does their work.

This module and those of the marks are all that `import kernels.layer` imports at once.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, TypeVar, overload

from kernels.tracebacks import public

if TYPE_CHECKING:
    import torch
    from torch import nn

    from kernels.layer.mapping import (
        KernelMapping,
        SupportsItems,
        register_kernel_mapping,
        use_kernel_mapping,
    )
    from kernels.layer.mode import KernelizeFallback, Mode
    from kernels.layer.report import KernelizeReport

__all__ = ["kernelize", "register_kernel_mapping", "unkernelize", "use_kernel_mapping"]

_Model = TypeVar("_Model", bound="nn.Module")


@overload
def kernelize(
    model: _Model,
    mapping: KernelMapping | None = None,
    *,
    mode: Mode | None = None,
    device: str | torch.device | None = None,
    use_fallback: bool | KernelizeFallback = True,
    by_class: SupportsItems[str | type[nn.Module], str] | None = None,
    auto: bool = False,
    autotuned: bool | str | os.PathLike[str] = True,
    report: Literal[False] = False,
) -> _Model: ...


@overload
def kernelize(
    model: nn.Module,
    mapping: KernelMapping | None = None,
    *,
    mode: Mode | None = None,
    device: str | torch.device | None = None,
    use_fallback: bool | KernelizeFallback = True,
    by_class: SupportsItems[str | type[nn.Module], str] | None = None,
    auto: bool = False,
    autotuned: bool | str | os.PathLike[str] = True,
    report: Literal[True],
) -> KernelizeReport: ...


@overload
def kernelize(
    model: _Model,
    mapping: KernelMapping | None = None,
    *,
    mode: Mode | None = None,
    device: str | torch.device | None = None,
    use_fallback: bool | KernelizeFallback = True,
    by_class: SupportsItems[str | type[nn.Module], str] | None = None,
    auto: bool = False,
    autotuned: bool | str | os.PathLike[str] = True,
    report: bool,
) -> _Model | KernelizeReport: ...


@public
def kernelize(
    model: nn.Module,
    mapping: KernelMapping | None = None,
    *,
    mode: Mode | None = None,
    device: str | torch.device | None = None,
    use_fallback: bool | KernelizeFallback = True,
    by_class: SupportsItems[str | type[nn.Module], str] | None = None,
    auto: bool = False,
    autotuned: bool | str | os.PathLike[str] = True,
    report: bool = False,
) -> nn.Module | KernelizeReport:
    """Replace the forward of a model's layers by the kernels that are mapped to them.

    Every kernel that the model needs is found, fetched and checked, in parallel, before the first layer changes: an
    error leaves the model unchanged. A model that was kernelized before starts from its original forwards.

    Args:
        model: The model; its layers are changed in place.
        mapping: A mapping for this call alone, as in `register_kernel_mapping`; it comes before all others for the same
            device and range of capabilities. An entry of theirs with a narrower range is still used.
        mode: What the model will be used for. Default: training or inference, by `model.training`.
        device: The device type that the model will run on, with or without an index. Default: each layer's own device:
            that of its parameters, else of its nearest ancestor's.
        use_fallback: In which cases a layer may keep its own forward instead of an error. True is
            `KernelizeFallback.DEFAULT`, False `KernelizeFallback.NONE`.
        by_class: Layers without a mark: class → name in the mapping. A class is given as itself, by its name or by its
            dotted name, and stands for itself only, not for its subclasses. The next call does not remember it.
        auto: Prepare each layer for inference and for training, and let its own `training` decide at each call. `mode`
            may then only be `Mode.TORCH_COMPILE`.
        autotuned: Whether the decisions of `autotune` on this machine count: True those in the cache, a path those that
            a report saved there, False none. `KERNELS_AUTOTUNE=off` ignores all.
        report: Return a report instead of the model.

    Returns:
        The model itself, or with `report` the kernel of each layer.

    Raises:
        TypeError: An argument is of the wrong type, or a kernel's layer breaks the rules for layers.
        ValueError: An argument's value is wrong, `by_class` names a class that the model does not have, the mapping has
            no kernel for a layer that may not fall back, or a kernel's publisher is not trusted.
        FileNotFoundError: A kernel cannot be found, or no build of it suits this machine.
        ImportError: A kernel lacks a dependency, or cannot be imported.
        Exception: What a kernel's own code raises while it is imported, with a note that names the kernel.

    Example:
        >>> import torch
        >>> from kernels import Mode, use_kernel_forward_from_hub, use_kernel_mapping
        >>> @use_kernel_forward_from_hub("Twice")
        ... class Twice(torch.nn.Module):
        ...     def forward(self, x):
        ...         return 2 * x
        >>> class Shifted(torch.nn.Module):  # in place of a kernel's layer
        ...     def forward(self, x):
        ...         return x << 1
        >>> class Kernel:
        ...     def load(self):
        ...         return Shifted
        >>> with use_kernel_mapping({"Twice": {"cpu": Kernel()}}):
        ...     model = kernelize(torch.nn.Sequential(Twice()), device="cpu", mode=Mode.INFERENCE)
        >>> model(21)
        42
    """
    from kernels.layer.whole_model import kernelize_model

    return kernelize_model(
        model,
        mapping,
        mode=mode,
        device=device,
        use_fallback=use_fallback,
        by_class=by_class,
        auto=auto,
        autotuned=autotuned,
        report=report,
    )


@public
def unkernelize(model: _Model) -> _Model:
    """Give every layer of a model its original forward back: its class's, or one that was set on the instance before.

    Args:
        model: A model, kernelized or not.

    Returns:
        The model itself.

    Raises:
        TypeError: `model` is not an `nn.Module`.

    Example:
        >>> from torch import nn
        >>> unkernelize(nn.Linear(2, 2))
        Linear(in_features=2, out_features=2, bias=True)
    """
    from kernels.layer.whole_model import unkernelize_model

    unkernelize_model(model)
    return model


if not TYPE_CHECKING:

    def __getattr__(name):
        # The existing client has the two functions for mappings at this path too.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from kernels.layer import mapping

        return getattr(mapping, name)
