"""Run a layer's own forward and each kernel on the arguments of one call: is it right, and how long does it take?

Everything runs on copies. A kernel is right if its results, and where gradients are needed its gradients, are as near
to those of the own forward in a wider type as the own forward's are, within a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from kernels.layer.observe import (
    LayerCall,
    OtherStructure,
    Pair,
    copied,
    largest_difference,
    largest_value,
    overwrite,
    pairs,
    preserved,
    tensors_of,
    wide,
)
from kernels.layer.timing import Seconds, is_accelerator, side_by_side
from kernels.support.distributed import gathered
from kernels.support.formatting import format_error

if TYPE_CHECKING:
    import torch
    from torch import nn

    Tensors = list[torch.Tensor]
else:
    Tensors = list

__all__ = ["DEFAULT_TOLERANCE", "Contender", "Measured", "is_near", "measure"]

#: How many times further than the own forward a kernel may be from the result in a wider type: one rounding more at a
#: few places and another order of sums are a factor of two to five; a wrong formula is one of hundreds.
DEFAULT_TOLERANCE = 8.0

#: The most bytes of a layer's parameters in a wider type.
_MOST_WIDE_BYTES = 2 * 2**30


class Contender(Struct, frozen=True, eq=False):
    """What a kernel did with the arguments of one call.

    Attributes:
        fault: Why it may not serve the layer; None if it is right, empty if it was not asked.
        backward_fault: Why it may not serve where a gradient is needed, if the call needs none; None if it may.
        difference: How far its results are from those of the own forward, by their largest value.
        whole: How long a call takes with the host's share; None if it was not measured.
        device: The device's share alone; None if it was not measured.
    """

    fault: str | None = None
    backward_fault: str | None = None
    difference: float | None = None
    whole: Seconds | None = None
    device: Seconds | None = None


class Measured(Struct, frozen=True, eq=False):
    """The own forward and each kernel on the arguments of one call.

    Attributes:
        own: The own forward.
        kernels: Each kernel, in the order that was asked for.
    """

    own: Contender
    kernels: tuple[Contender, ...]


class _Ran(NamedTuple):
    """What a forward gave for a copy of the arguments."""

    result: Any
    gradients: Tensors
    arguments: tuple[Any, Any]
    needs_gradient: bool


def measure(
    call: LayerCall, kernels: Sequence[Callable[..., Any] | None], tolerance: float, *, compiled: bool
) -> Measured:
    """Compare kernels with a layer's own forward on the arguments of a call, and time those that are right.

    Args:
        call: The call.
        kernels: The forwards of kernels, not bound; None for one that is not asked.
        tolerance: How many times further than the own forward a kernel may be from the result in a wider type.
        compiled: Whether the model is compiled: then each is compiled by itself before it is timed.
    """
    import torch

    # What a checkpoint around the layer counts is what its own forward keeps for the backward, not what is run here.
    with torch.autograd.graph.saved_tensors_hooks(_itself, _itself):
        return _measured(call, kernels, tolerance, compiled=compiled)


def _itself(tensor: Any) -> Any:
    return tensor


def _measured(
    call: LayerCall, kernels: Sequence[Callable[..., Any] | None], tolerance: float, *, compiled: bool
) -> Measured:
    import torch

    needs_gradient = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in (*call.module.parameters(), *tensors_of((call.args, call.kwargs)))
    )
    found = _compared(call, kernels, needs_gradient, tolerance)
    if not needs_gradient and any(each.fault is None for each in found):
        right = [kernel if each.fault is None else None for kernel, each in zip(kernels, found, strict=True)]
        with torch.inference_mode(False), torch.enable_grad():
            trained = _compared(_asking_for_gradients(call), right, True, tolerance)
        found = [replace(each, backward_fault=other.fault or None) for each, other in zip(found, trained, strict=True)]
    found = _agreed(found)
    return _timed(call, kernels, found, needs_gradient, compiled=compiled)


def _compared(
    call: LayerCall, kernels: Sequence[Callable[..., Any] | None], needs_gradient: bool, tolerance: float
) -> list[Contender]:
    """What kernels do with the arguments of a call, beside the own forward."""
    seeds: Tensors = []
    try:
        copied((call.args, call.kwargs))
        own = _run(call, call.own, needs_gradient, seeds)
    except Exception as error:  # noqa: BLE001 - arguments of any type
        cannot = f"its own forward cannot be run on copies of its arguments: {format_error(error)}"
        return [Contender(fault=cannot) for _ in kernels]
    exact = _exact(call, own, needs_gradient, seeds)
    return [
        Contender(fault="") if kernel is None else _contender(call, kernel, own, exact, seeds, tolerance)
        for kernel in kernels
    ]


def _asking_for_gradients(call: LayerCall) -> LayerCall:
    """A call that needs the gradients of all arguments: a call without gradients does not say of which."""
    import torch
    from torch.utils._pytree import tree_map_only

    args, kwargs = tree_map_only(
        torch.Tensor, lambda each: each.requires_grad_(each.is_floating_point()), copied((call.args, call.kwargs))
    )
    return call._replace(args=args, kwargs=kwargs)


def _agreed(found: Sequence[Contender]) -> list[Contender]:
    """What all ranks of a job found: a kernel that is wrong on one is wrong, and all time the same ones."""
    agreed = list(found)
    for faults in gathered([(each.fault, each.backward_fault) for each in found]):
        agreed = [
            replace(
                each,
                fault=fault if each.fault is None else each.fault,
                backward_fault=backward_fault if each.backward_fault is None else each.backward_fault,
            )
            for each, (fault, backward_fault) in zip(agreed, faults, strict=True)
        ]
    return agreed


def _contender(
    call: LayerCall, kernel: Callable[..., Any], own: _Ran, exact: Tensors | None, seeds: Tensors, tolerance: float
) -> Contender:
    """What a kernel does with the arguments of a call."""
    with _kept_parameters(call.module) as changed:
        fault, difference = _judge(call, MethodType(kernel, call.module), own, exact, seeds, tolerance)
        if changed():
            fault = "the kernel writes into the layer's parameters"
    return Contender(fault=fault, difference=difference)


def _run(call: LayerCall, forward: Callable[..., Any], needs_gradient: bool, seeds: Tensors) -> _Ran:
    """Run a forward on copies of the arguments, and its backward where gradients are needed.

    Args:
        call: The call.
        forward: A bound forward.
        needs_gradient: Whether the backward runs too.
        seeds: The gradients of the results; those of the first run are made here.

    Raises:
        _WritesGradient: The backward has changed the gradient that it was given.
    """
    import torch

    args, kwargs = copied((call.args, call.kwargs))
    with preserved(call.module):
        # What the arguments were computed by is not part of the copies, as that of a leaf.
        result = forward(*_linked(args), **_linked(kwargs))
    gradients: Tensors = []
    if needs_gradient:
        if not seeds:
            made = torch.Generator().manual_seed(0)
            outputs = [each for each in tensors_of(result) if each.requires_grad]
            seeds += [torch.randn(each.shape, generator=made).to(each) for each in outputs]
        wanted = [each for each in (*tensors_of((args, kwargs)), *call.module.parameters()) if each.requires_grad]
        gradients = _gradients(result, wanted, seeds)
    return _Ran(result, gradients, (args, kwargs), needs_gradient)


class _WritesGradient(Exception):
    pass


def _linked(value: Any) -> Any:
    """Arguments as results of an operation: Torch refuses to work in place on a leaf that requires a gradient."""
    import torch
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, lambda each: each.view_as(each) if each.requires_grad else each, value)


def _exact(call: LayerCall, own: _Ran, needs_gradient: bool, seeds: Tensors) -> Tensors | None:
    """The own forward's results, then its gradients, in a wider type; None where it cannot run in one."""
    import torch
    from torch.utils._pytree import tree_map_only

    def widened(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        wider = torch.float64 if tensor.element_size() >= 4 else torch.float32
        return tensor.detach().to(wider).requires_grad_(tensor.requires_grad)

    module = call.module
    # Hooks would run a second time, and may move what they are given.
    hooked = module._forward_hooks or module._forward_pre_hooks or "_hf_hook" in module.__dict__
    if hooked or sum(each.numel() for each in module.parameters()) * 8 > _MOST_WIDE_BYTES:
        return None
    values = {name: widened(each) for name, each in (*module.named_parameters(), *module.named_buffers())}
    try:
        args, kwargs = tree_map_only(torch.Tensor, widened, copied((call.args, call.kwargs)))
        with preserved(module), torch.autocast(_device_of(call).type, enabled=False):
            result = torch.func.functional_call(module, values, args, kwargs, strict=False)
        found = tensors_of(result)
        if needs_gradient:
            names = [name for name, each in module.named_parameters() if each.requires_grad]
            wanted = [each for each in tensors_of((args, kwargs)) if each.requires_grad]
            found += _gradients(result, [*wanted, *(values[name] for name in names)], seeds)
    except Exception:  # noqa: BLE001 - a layer may not run in another type, or not fit into memory
        return None
    expected = [*tensors_of(own.result), *own.gradients]
    return found if [each.shape for each in found] == [each.shape for each in expected] else None


def _gradients(result: Any, wanted: Tensors, seeds: Tensors) -> Tensors:
    """The gradients of a result, each tensor of it weighed by a seed.

    Raises:
        _WritesGradient: The backward has changed the gradient that it was given.
        OtherStructure: Another number of tensors has gradients.
    """
    import torch

    outputs = [each for each in tensors_of(result) if each.requires_grad]
    if len(outputs) != len(seeds):
        raise OtherStructure(f"{len(outputs)} of its results have a gradient in place of {len(seeds)}")
    given = [seed.to(output.dtype, copy=True) for seed, output in zip(seeds, outputs, strict=True)]
    before = [each.clone() for each in given]
    found = torch.autograd.grad(outputs, wanted, given, allow_unused=True) if outputs else [None] * len(wanted)
    if not all(map(torch.equal, given, before)):
        raise _WritesGradient
    return [torch.zeros_like(each) if one is None else one for one, each in zip(found, wanted, strict=True)]


def _judge(
    call: LayerCall,
    kernel: Callable[..., Any],
    own: _Ran,
    exact: Tensors | None,
    seeds: Tensors,
    tolerance: float,
) -> tuple[str | None, float | None]:
    """Why a kernel may not serve a layer, and how far its results are from the layer's own."""
    try:
        ran = _run(call, kernel, own.needs_gradient, seeds)
    except _WritesGradient:
        return "the kernel's backward writes into the gradient that it is given", None
    except OtherStructure as error:
        return str(error), None
    except Exception as error:  # noqa: BLE001 - the code of a kernel
        return f"the kernel fails: {format_error(error)}", None
    try:
        results = pairs(ran.result, own.result, own.arguments)
        left = pairs(tensors_of(ran.arguments), tensors_of(own.arguments))
        before = pairs(tensors_of(own.arguments), tensors_of((call.args, call.kwargs)))
    except OtherStructure as error:
        return str(error), None
    for now, was in zip(left, before, strict=True):
        if not _same(now.kernel, now.own) and _same(now.own, was.own):
            return "the kernel writes into its arguments", None
    gradients = [Pair(one, other) for one, other in zip(ran.gradients, own.gradients, strict=True)]
    for pair in results:
        if not _strided_alike(pair):
            return f"the kernel's result has the strides {pair.kernel.stride()} in place of {pair.own.stride()}", None
    largest = 0.0
    for place, pair in enumerate((*results, *gradients)):
        difference, size = largest_difference(pair), largest_value(pair.own)
        largest = max(largest, difference / size if size else difference)
        if not is_near(pair, exact[place] if exact else None, tolerance):
            what = "result" if place < len(results) else "gradient"
            return f"its {what} differs by {largest:.2g} of the largest value", largest
    return None, largest


def is_near(pair: Pair, exact: torch.Tensor | None, tolerance: float) -> bool:
    """Whether a kernel's tensor is about as near to the exact one as the layer's own is.

    What the type loses counts by size: the rounding of each value, and the largest loss of the own forward among values
    of the usual size and among the few that are much larger, as the outliers of a language model are.

    Args:
        pair: The kernel's tensor and the layer's own.
        exact: The layer's own in a wider type, if that could be run.
        tolerance: How many times as much the kernel may lose.
    """
    import torch

    if not (pair.own.is_floating_point() or pair.own.is_complex()):
        return largest_difference(pair) == 0
    if not pair.own.numel():
        return True
    kernel, own = wide(pair.kernel), wide(pair.own)
    # Where the own forward has no number, such as in rows that are masked, nothing is expected.
    known = own.isfinite()
    if not bool(kernel.isfinite()[known].all()):
        return False
    kernel, own = kernel[known], own[known]
    target = own if exact is None else wide(exact)[known].to(own.dtype)
    if not own.numel():
        return True
    size, lost, apart = target.abs(), (own - target).abs(), (kernel - target).abs()
    usual = size.median() if float(size.median()) else size.mean()
    rounding = torch.finfo(pair.own.dtype).eps
    for values in (size <= _OUTLIER * usual, size > _OUTLIER * usual):
        if bool(values.any()):
            floor = max(float(lost[values].max()), rounding * float(usual))
            if bool((apart[values] > tolerance * (floor + rounding * size[values])).any()):
                return False
    return True


#: From how many times the median on a value is an outlier.
_OUTLIER = 10


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and largest_difference(Pair(one, other)) == 0


def _strided_alike(pair: Pair) -> bool:
    """Whether a kernel's result can be viewed wherever the layer's own can: it is dense, or laid out as that is."""
    kernel, own = pair
    return kernel.layout != own.layout or kernel.is_contiguous() or kernel.stride() == own.stride() or not own.numel()


@contextmanager
def _kept_parameters(module: nn.Module) -> Iterator[Callable[[], bool]]:
    """Restore a module's parameters after a block; gives what tells whether they were changed."""
    import torch

    before = {parameter: parameter.detach().clone() for parameter in module.parameters()}

    def changed() -> bool:
        return any(not torch.equal(each.detach(), value) for each, value in before.items())

    try:
        yield changed
    finally:
        if changed():
            for parameter, value in before.items():
                overwrite(parameter, value)


def _timed(
    call: LayerCall,
    kernels: Sequence[Callable[..., Any] | None],
    judged: Sequence[Contender],
    needs_gradient: bool,
    *,
    compiled: bool,
) -> Measured:
    """Time the own forward and the kernels that are right."""
    import torch

    if all(each.fault is not None for each in judged):
        return Measured(Contender(), tuple(judged))
    args, kwargs = copied((call.args, call.kwargs))
    wanted = [each for each in (*tensors_of((args, kwargs)), *call.module.parameters()) if each.requires_grad]

    def timed(forward: Callable[..., Any]) -> Callable[[], Any]:
        run = torch.compile(forward, dynamic=False) if compiled else forward

        def once() -> Any:
            result = run(*_linked(args), **_linked(kwargs))
            if needs_gradient:
                outputs = [each for each in tensors_of(result) if each.requires_grad]
                torch.autograd.grad([each.sum() for each in outputs], wanted, allow_unused=True)

        return once

    device = _device_of(call)
    if compiled:
        torch.compiler.reset()  # from some number of sizes on, Dynamo compiles no more
    forwards = [None if kernel is None else timed(MethodType(kernel, call.module)) for kernel in kernels]
    every = list(judged)
    whole: list[Seconds] | None = None
    alone: list[Seconds] | None = None
    # The call around it runs eager, so that every layer is seen.
    stance = torch.compiler.set_stance("default") if compiled else nullcontext()
    with preserved(call.module), stance:
        for place, once in enumerate(forwards):
            if once is not None and every[place].fault is None:
                try:
                    once()
                except Exception as error:  # noqa: BLE001 - the code of a kernel, that it is compiled, a second call
                    every[place] = Contender(fault=f"the kernel fails: {format_error(error)}")
        every = _agreed(every)
        right = [place for place, each in enumerate(every) if each.fault is None]
        calls = [timed(call.own), *(once for place in right if (once := forwards[place]) is not None)]
        if not compiled or not is_accelerator(device):
            whole = side_by_side(calls, device, device_alone=False)
        if is_accelerator(device):
            alone = side_by_side(calls, device, device_alone=True)
    times = [
        Contender(whole=whole[each] if whole else None, device=alone[each] if alone else None)
        for each in range(len(calls))
    ]
    for place, time in zip(right, times[1:], strict=True):
        every[place] = replace(judged[place], whole=time.whole, device=time.device)
    return Measured(times[0], tuple(every))


def _device_of(call: LayerCall) -> torch.device:
    import torch

    for tensor in (*tensors_of((call.args, call.kwargs)), *call.module.parameters()):
        return tensor.device
    return torch.device("cpu")
