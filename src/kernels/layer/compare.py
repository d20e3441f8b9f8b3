"""Compare the kernels of a model with the layers' own forwards, on the inputs of one call."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from numbers import Real
from types import MethodType
from typing import TYPE_CHECKING, Any

from kernels.layer.marked import find_marked
from kernels.layer.report import check_model, folded_path
from kernels.layer.swap import decision_of, kernel_slot
from kernels.support.formatting import error_on_one_line, format_names, format_value, wrong_type
from kernels.support.html_table import html_table
from kernels.support.text import one_line
from kernels.tracebacks import public

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["ComparedLayer", "LayerComparison", "compare_layers"]

_HEADINGS = ("module", "layer", "kernel", "calls", "largest difference", "largest value")


@dataclass(frozen=True)
class ComparedLayer:
    """A layer that runs through a kernel, and how far the kernel's results are from those of its own forward.

    Attributes:
        module: Its path in the model.
        layer: Its name in mappings.
        kernel: The kernel's repository or folder.
        calls: How often the model called it.
        difference: The largest difference of two values of the results; None where `fault` is set.
        largest: The largest absolute value of its own results.
        fault: Why the results could not be compared: an error of the kernel, another shape.
    """

    module: str
    layer: str
    kernel: str
    calls: int = 0
    difference: float | None = 0.0
    largest: float = 0.0
    fault: str | None = None

    @property
    def relative(self) -> float | None:
        """The largest difference by the largest value."""
        if self.difference is None:
            return None
        return self.difference / self.largest if self.largest else self.difference


@dataclass(frozen=True)
class LayerComparison:
    """Each layer that runs through a kernel, compared with its own forward; prints as a table.

    Attributes:
        rows: One a layer, in the order of the model's modules.
    """

    rows: tuple[ComparedLayer, ...]

    def __iter__(self) -> Iterator[ComparedLayer]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @public
    def agrees(self, tolerance: float) -> bool:
        """Whether the results of each layer that was called differ by no more than this part of its largest value.

        False where nothing was compared: no layer runs through a kernel, or none was called. The comparison says so
        when it is printed.

        Args:
            tolerance: Such as 1e-5 for float32 and 2e-2 for bfloat16.

        Raises:
            TypeError: `tolerance` is not a number.
        """
        given: Any = tolerance
        if isinstance(given, bool) or not isinstance(given, Real):
            raise wrong_type("tolerance", "a number such as 1e-5", given)
        called = [row.relative for row in self.rows if row.calls]
        return bool(called) and all(relative is not None and relative <= tolerance for relative in called)

    def _repr_html_(self) -> str:
        return html_table(_HEADINGS if self.rows else (), self._cells(), title=self._title)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # IPython's plain text

    def __str__(self) -> str:
        if not self.rows:
            return self._title
        lines = [_HEADINGS, *(tuple(map(one_line, cells)) for cells in self._cells())]
        whole = [cells for cells in lines if len(cells) == len(_HEADINGS)]
        widths = [max(len(cells[column]) for cells in whole) for column in range(len(_HEADINGS))]
        rows = ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)) for cells in lines]
        return "\n".join([self._title, *(row.rstrip() for row in rows)])

    @property
    def _title(self) -> str:
        if not self.rows:
            return "No layer was compared: none of this model runs through a kernel."
        if not any(row.calls for row in self.rows):
            return "No layer was compared: the model called none of those that run through a kernel"
        return "Results of kernels compared with those of the layers' own forwards"

    def _cells(self) -> list[tuple[str, ...]]:
        """The rows' cells; layers that differ in nothing but the numbers in their paths share a row."""
        groups: dict[tuple[str, ...], list[ComparedLayer]] = {}
        for row in self.rows:
            groups.setdefault((folded_path(row.module), row.layer, row.kernel, row.fault or ""), []).append(row)
        cells: list[tuple[str, ...]] = []
        for (path, layer, kernel, fault), rows in groups.items():
            module = f"{path} ({len(rows)})" if len(rows) > 1 else rows[0].module or "(the model)"
            calls = sum(row.calls for row in rows)
            if fault:
                cells.append((module, layer, kernel, str(calls), fault))
            elif not calls:
                cells.append((module, layer, kernel, "0", "not called with these inputs"))
            else:
                difference, largest = max(row.difference or 0.0 for row in rows), max(row.largest for row in rows)
                cells.append((module, layer, kernel, str(calls), f"{difference:.3g}", f"{largest:.3g}"))
        return cells


@public
def compare_layers(model: nn.Module, /, *inputs: Any, **named: Any) -> LayerComparison:
    """Run a kernelized model once, and compare each kernel with the layer's own forward on the same arguments.

    The model runs as with its own forwards: each layer passes on its own results, so that differences do not add up.
    Nothing remains: buffers and the state of random numbers are restored, and no gradients are computed. A layer that
    changes its arguments is compared by these too. What the model itself does to its inputs and to
    attributes that are no buffers, such as a cache, is not undone.

    Args:
        model: A kernelized model.
        inputs: The model's inputs.
        named: The model's inputs that have names.

    Returns:
        One row for each layer that runs through a kernel.

    Raises:
        TypeError: `model` is not an `nn.Module`.

    Example:
        >>> import torch
        >>> from kernels import Mode, kernelize
        >>> class Silu(torch.nn.Module):  # in place of a kernel's layer
        ...     def forward(self, input):
        ...         return input * torch.sigmoid(input)
        >>> class Kernel:
        ...     def load(self):
        ...         return Silu
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU())
        >>> model = kernelize(model, {"SiLU": {"cpu": Kernel()}}, by_class={"SiLU": "SiLU"}, mode=Mode.INFERENCE)
        >>> compare_layers(model, torch.rand(2, 4)).agrees(1e-5)
        True
    """
    import torch

    check_model(model)
    found: dict[int, _Compared] = {}
    for path, module, *_ in find_marked(model):
        decision = decision_of(module)
        slot = kernel_slot(module)
        if decision is not None and slot is not None and id(module) not in found:
            row = ComparedLayer(path, decision.layer, decision.kernel or "-")
            found[id(module)] = _Compared(module, slot, module.__dict__[slot], row)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if "torch._dynamo" in sys.modules:  # importing it takes long, and without it nothing is compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_same_random_numbers(model))
        stack.enter_context(_same_buffers(model))
        for compared in found.values():
            stack.callback(compared.module.__dict__.__setitem__, compared.slot, compared.kernel)
            compared.module.__dict__[compared.slot] = compared.call
        if found:
            model(*inputs, **named)
    return LayerComparison(tuple(compared.row() for compared in found.values()))


@dataclass
class _Compared:
    """A layer whose forward runs the kernel on copies of its arguments first, and then its own forward."""

    module: nn.Module
    slot: str
    kernel: Callable[..., Any]
    layer: ComparedLayer
    calls: int = 0
    differences: list[_Difference] = field(default_factory=list)

    def call(self, *arguments: Any, **named: Any) -> Any:
        own = MethodType(type(self.module).forward, self.module)
        self.calls += 1
        try:
            copied, copied_named = copy.deepcopy((arguments, named), _copies_of_computed((arguments, named)))
        except Exception as error:  # noqa: BLE001 - an argument of any type
            self.differences.append(_Difference(fault=f"its arguments cannot be copied: {error_on_one_line(error)}"))
            return own(*arguments, **named)
        try:
            with _same_random_numbers(self.module), _same_buffers(self.module):
                result = self.kernel(*copied, **copied_named)
            fault = None
        except Exception as error:  # noqa: BLE001 - the code of a kernel
            result, fault = None, f"the kernel failed: {error_on_one_line(error)}"
        expected = own(*arguments, **named)
        if fault is None:
            # An argument may be changed in place, by one of them or by both.
            self.differences.append(_compared((result, copied, copied_named), (expected, arguments, named)))
        else:
            self.differences.append(_Difference(fault=fault))
        return expected

    def row(self) -> ComparedLayer:
        faults = [each.fault for each in self.differences if each.fault is not None]
        return ComparedLayer(
            self.layer.module,
            self.layer.layer,
            self.layer.kernel,
            self.calls,
            None if faults else max((each.value for each in self.differences), default=0.0),
            max((each.largest for each in self.differences), default=0.0),
            faults[0] if faults else None,
        )


@dataclass(frozen=True)
class _Difference:
    value: float = 0.0
    largest: float = 0.0
    fault: str | None = None


def _compared(kernel: tuple[Any, Any, Any], own: tuple[Any, Any, Any]) -> _Difference:
    """Compare two calls, each its result with its arguments after it."""
    try:
        return _difference(kernel, own)
    except _OtherStructure as error:
        return _Difference(fault=str(error))
    except Exception as error:  # noqa: BLE001 - tensors of any kind, and objects of any type
        return _Difference(fault=f"its results cannot be compared: {error_on_one_line(error)}")


def _difference(kernel: tuple[Any, Any, Any], own: tuple[Any, Any, Any]) -> _Difference:
    """How far two calls are apart, and the largest value of the layer's own result."""
    results = list(_pairs(kernel[0], own[0], {id(each) for each in _parts(own[1:])}))
    value = 0.0
    for tensor, other in (*results, *_argument_pairs(kernel[1:], own[1:])):
        if tensor.shape != other.shape or tensor.dtype != other.dtype:
            return _Difference(fault=f"the kernel returns {_kind(tensor)} in place of {_kind(other)}")
        wide, wide_other = _wide(tensor), _wide(other)
        same = (wide == wide_other) | (wide.isnan() & wide_other.isnan())
        infinite = float("inf")
        apart = (wide - wide_other).abs().nan_to_num(nan=infinite, posinf=infinite).masked_fill(same, 0.0)
        value = max(value, float(apart.max()) if apart.numel() else 0.0)
    sizes = [_wide(other).abs().nan_to_num(0.0, 0.0, 0.0) for _, other in results]
    return _Difference(value, max((float(size.max()) for size in sizes if size.numel()), default=0.0))


class _OtherStructure(Exception):
    """Two results that are not made alike; the message says how."""


def _pairs(kernel: Any, own: Any, passed: Set[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The tensors and numbers of a kernel's result, each with the one in its place in the layer's own.

    An argument that the layer returns, such as a cache, may be of any type, and is not looked into.

    Raises:
        _OtherStructure: They are not made alike, or of something that is not known.
    """
    import torch

    both = kernel, own
    if all(isinstance(each, torch.Tensor) for each in both):
        yield kernel, own
    elif all(isinstance(each, Mapping) for each in both):
        if kernel.keys() != own.keys():
            raise _OtherStructure(f"the kernel returns the keys {_names(kernel)} in place of {_names(own)}")
        for key, each in own.items():
            yield from _pairs(kernel[key], each, passed)
    elif all(isinstance(each, (tuple, list)) for each in both):
        if len(kernel) != len(own):
            raise _OtherStructure(f"the kernel returns {len(kernel)} values in place of {len(own)}")
        for one, other in zip(kernel, own, strict=True):
            yield from _pairs(one, other, passed)
    elif all(is_dataclass(each) and not isinstance(each, type) for each in both):
        yield from _pairs(_fields(kernel), _fields(own), passed)
    elif all(isinstance(each, (int, float, complex)) for each in both):
        yield torch.tensor(kernel), torch.tensor(own)
    elif type(kernel) is not type(own):
        raise _OtherStructure(f"the kernel returns {_type(kernel)} in place of {_type(own)}")
    elif id(own) in passed:
        return
    elif not (own is None or isinstance(own, (str, bytes, torch.dtype, torch.device))):
        raise _OtherStructure(f"its results cannot be compared: they contain {_type(own)}")
    elif kernel != own:
        raise _OtherStructure(f"the kernel returns {format_value(kernel)} in place of {format_value(own)}")


def _argument_pairs(kernel: Any, own: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The tensors among the arguments; other objects may be anything, such as a cache."""
    tensors, others = list(_tensors(kernel)), list(_tensors(own))
    if len(tensors) != len(others):
        raise _OtherStructure(f"the kernel leaves {len(tensors)} tensors in its arguments in place of {len(others)}")
    return list(zip(tensors, others, strict=True))


def _copies_of_computed(arguments: Any) -> dict[int, Any]:
    """Copies of the tensors that `copy.deepcopy` refuses, since a graph for gradients has computed them."""
    return {id(each): each.detach().clone() for each in _tensors(arguments) if not each.is_leaf}


def _fields(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _names(result: Mapping[Any, Any]) -> str:
    return format_names(map(str, result)) or "none"


def _type(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    if tensor.is_quantized:
        tensor = tensor.dequantize()
    elif tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.detach().cpu().to(torch.complex128 if tensor.is_complex() else torch.float64)


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a value: itself, or those in tuples, lists and dictionaries."""
    import torch

    return (each for each in _parts(value) if isinstance(each, torch.Tensor))


def _parts(value: Any) -> Iterator[Any]:
    """A value itself, or what is in tuples, lists and dictionaries."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        yield value
        return
    for each in value:
        yield from _parts(each)


@contextmanager
def _same_buffers(module: nn.Module) -> Iterator[None]:
    """Give a module its buffers' values back, such as the running mean of a batch norm."""
    # A forward may change a buffer, or set another tensor in its place.
    tables = [(each._buffers, dict(each._buffers)) for each in module.modules() if each._buffers]
    values = [(buffer, buffer.clone()) for _, table in tables for buffer in table.values() if buffer is not None]
    try:
        yield
    finally:
        for buffers, before in tables:
            buffers.update(before)
        for buffer, value in values:
            buffer.copy_(value)


@contextmanager
def _same_random_numbers(module: nn.Module) -> Iterator[None]:
    """Restore the state of the random numbers, on the processor and on a module's devices."""
    import torch

    devices = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for kind in {device.type for device in devices}:
            if hasattr(getattr(torch, kind, None), "get_rng_state_all"):  # which those without a state for each lack
                indices = [device.index for device in devices if device.type == kind]
                stack.enter_context(torch.random.fork_rng(devices=indices, device_type=kind))
        yield
