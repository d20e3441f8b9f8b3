"""Compare the kernels of a model with the layers' own forwards, on the inputs of one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from types import MethodType
from typing import TYPE_CHECKING, Any

from kernels.layer.decision import LayerDecision
from kernels.layer.forwards import wrapped_kernel
from kernels.layer.marked import find_marked
from kernels.layer.observe import (
    LayerCall,
    OtherStructure,
    copied,
    eager,
    largest_difference,
    largest_value,
    pairs,
    preserved,
    tensors_of,
    watched,
)
from kernels.layer.report import check_model, folded_path
from kernels.layer.swap import decision_of
from kernels.support.formatting import format_error, wrong_type
from kernels.support.html_table import html_table, text_table
from kernels.tracebacks import public

if TYPE_CHECKING:
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
        return text_table(_HEADINGS, self._cells(), title=self._title) if self.rows else self._title

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
        if decision is not None and decision.function is not None and id(module) not in found:
            kernel = MethodType(wrapped_kernel(_of_state(decision, module)), module)
            found[id(module)] = _Compared(path, decision, kernel)
    modules: list[Any] = [each.kernel.__self__ for each in found.values()]
    with torch.no_grad(), eager(), preserved(model), watched(modules, lambda call: found[id(call.module)].call(call)):
        if found:
            model(*inputs, **named)
    return LayerComparison(tuple(compared.row() for compared in found.values()))


def _of_state(decision: LayerDecision, module: nn.Module) -> Callable[..., Any]:
    """The forward that a layer's kernel runs now, of inference or of training."""
    each = decision.by_mode[-1 if module.training else 0]
    forward: Any = each.function or decision.function
    return forward  # type: ignore[no-any-return]


@dataclass
class _Compared:
    """A layer whose kernel runs on copies of the arguments first, and then its own forward."""

    path: str
    decision: LayerDecision
    kernel: MethodType
    calls: int = 0
    difference: float = 0.0
    largest: float = 0.0
    fault: str | None = None

    def call(self, call: LayerCall) -> Any:
        self.calls += 1
        fault: str | None = None
        try:
            args, kwargs = copied((call.args, call.kwargs))
        except Exception as error:  # noqa: BLE001 - an argument of any type
            fault = f"its arguments cannot be copied: {format_error(error)}"
        else:
            try:
                with preserved(call.module):
                    result = self.kernel(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the code of a kernel
                fault = f"the kernel failed: {format_error(error)}"
        expected = call.own(*call.args, **call.kwargs)
        if fault is None:
            try:
                self._compare((result, args, kwargs), (expected, call.args, call.kwargs))
            except OtherStructure as error:
                fault = str(error)
            except Exception as error:  # noqa: BLE001 - tensors of any kind, and objects of any type
                fault = f"its results cannot be compared: {format_error(error)}"
        self.fault = self.fault or fault
        return expected

    def _compare(self, kernel: tuple[Any, Any, Any], own: tuple[Any, Any, Any]) -> None:
        """Compare two calls, each its result with its arguments after it: an argument may be changed in place."""
        from torch.utils._pytree import tree_leaves

        results = pairs(kernel[0], own[0], tree_leaves(own[1:]))
        left, others = tensors_of(kernel[1:]), tensors_of(own[1:])
        if len(left) != len(others):
            raise OtherStructure(f"the kernel leaves {len(left)} tensors in its arguments in place of {len(others)}")
        changed = [pair for one, other in zip(left, others, strict=True) for pair in pairs(one, other)]
        self.difference = max([self.difference, *map(largest_difference, (*results, *changed))])
        self.largest = max([self.largest, *(largest_value(pair.own) for pair in results)])

    def row(self) -> ComparedLayer:
        decision, difference = self.decision, None if self.fault else self.difference
        return ComparedLayer(
            self.path, decision.layer, decision.kernel or "-", self.calls, difference, self.largest, self.fault
        )
