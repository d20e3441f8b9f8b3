"""The calls that `autotune` is given, run whole: results, gradients and time, and nothing of it stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kernels.errors import RequestError
from kernels.layer.mode import Mode
from kernels.layer.observe import (
    LayerCall,
    copied,
    eager,
    overwrite,
    preserved,
    reachable_tensors,
    tensors_of,
    watched,
    wide,
)
from kernels.layer.timing import taken
from kernels.support.formatting import wrong_type

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["ModelCall", "Outcome", "is_compiled", "same_outcome"]


class Outcome:
    """What a call gave: the tensors of its result, and the gradients of the model's parameters.

    Attributes:
        tensors: They, in the order of the result and then of the parameters; None where there is no gradient.
    """

    def __init__(self, tensors: list[torch.Tensor | None]) -> None:
        self.tensors = tensors


class ModelCall:
    """One of the calls that a model is tuned for.

    Args:
        model: The model.
        call: Positional arguments, arguments by name, or a function without arguments that calls the model.
        mode: What the model is used for. Arguments alone run forward; in training, also the backward of the loss.

    Raises:
        TypeError: It is none of these.
    """

    def __init__(self, model: nn.Module, call: Any, mode: Mode) -> None:
        self._model = model
        self._backward = Mode.TRAINING in mode
        self._compiles = Mode.TORCH_COMPILE in mode and not is_compiled(model)
        self._function: Callable[[], Any] | None = None
        self._given: tuple[tuple[Any, ...], dict[str, Any]] = (), {}
        if isinstance(call, Mapping):
            self._given = (), dict(call)
        elif isinstance(call, (tuple, list)):
            self._given = tuple(call), {}
        elif callable(call) and not hasattr(call, "shape"):
            self._function = call
        else:
            raise wrong_type("calls", "a tuple of arguments, a dictionary of them by name, or a function", call)

    def ready(self) -> Callable[[], Any]:
        """The call, with a copy of its arguments: a cache that is passed may grow."""
        if self._function is not None:
            return self._function
        import torch

        try:
            args, kwargs = copied(self._given)
        except Exception:  # noqa: BLE001 - an argument of any type
            args, kwargs = self._given

        def call() -> Any:
            if self._backward:
                result = self._model(*args, **kwargs)
                _loss(result).backward()
                return result
            with torch.no_grad():
                return self._model(*args, **kwargs)

        return call

    def outcome(self) -> Outcome:
        """Run it once, and keep what it gives."""
        import torch

        model = self._model
        with self._running() as gradients:
            result = self.ready()()
            if not gradients:
                gradients += [parameter.grad for parameter in model.parameters()]
            found = [each.detach().clone() for each in reachable_tensors(result)]
            with torch.no_grad():
                return Outcome([*found, *(None if each is None else each.clone() for each in gradients)])

    def seconds(self) -> float:
        """About how long it takes, after runs that compile, tune or capture."""
        for _ in range(2):
            self.ready()()
        return taken(self.ready()).whole

    def watch(self, modules: list[nn.Module], see: Callable[[LayerCall], Any]) -> None:
        """Run it once with the own forwards of layers, and see their calls."""
        with self.timed(), eager(), watched(modules, see):
            self.ready()()

    def blurred(self, modules: list[nn.Module]) -> Outcome:
        """What it gives if the result of each of some layers is rounded otherwise: what the type itself loses."""

        def see(call: LayerCall) -> Any:
            return _rounded_otherwise(call.own(*call.args, **call.kwargs))

        with watched(modules, see):
            return self.outcome()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """A block in which it is run to be measured."""
        with self._running():
            yield

    @contextmanager
    def _running(self) -> Iterator[list[torch.Tensor | None]]:
        """A block in which the model runs as it will be used, and of which nothing stays."""
        model = self._model
        with preserved(model), _kept_gradients(model), _undone_steps(model) as gradients:
            compiles = self._compiles and not is_compiled(model)  # a block may be in another
            if compiles:
                model.compile()
            try:
                yield gradients
            finally:
                if compiles:
                    del model._compiled_call_impl  # the class's says that it is not compiled


def is_compiled(model: nn.Module) -> bool:
    """Whether a model or a module in it is compiled."""
    return any(hasattr(each, "_orig_mod") or each._compiled_call_impl is not None for each in model.modules())


def same_outcome(one: Outcome, plain: Outcome, blurred: Outcome, tolerance: float) -> str | None:
    """How the outcome of a call differs from the plain one by more than the types lose; None if it does not.

    Args:
        one: With kernels.
        plain: With the layers' own forwards.
        blurred: With own forwards that are rounded otherwise.
        tolerance: How many times as far as the blurred one it may be.
    """
    if len(one.tensors) != len(plain.tensors):
        return "the call returns something else"
    for kernel, own, other in zip(one.tensors, plain.tensors, blurred.tensors, strict=True):
        if kernel is None or own is None or other is None:
            if (kernel is None) is not (own is None):
                return "other parameters have gradients"
            continue
        if kernel.shape != own.shape or kernel.dtype != own.dtype:
            if other.shape == own.shape:
                return "the call returns tensors of other shapes or types"
            continue
        if not (own.is_floating_point() or own.is_complex()):
            if bool((kernel != own).any()) and not bool((other != own).any()):
                return "the call returns other whole numbers"
            continue
        import torch

        exact, lost, apart = wide(own), wide(other) - wide(own), wide(kernel) - wide(own)
        known = exact.isfinite()
        size, loss, found = (float(torch.linalg.vector_norm(each[known])) for each in (exact, lost, apart))
        allowed = tolerance * max(loss, torch.finfo(own.dtype).eps * size)
        if not found <= allowed:
            return f"results or gradients of the call differ by {found / size if size else found:.2g}"
    return None


@contextmanager
def _kept_gradients(model: nn.Module) -> Iterator[None]:
    """Run a block without the gradients that a model has, and give them back."""
    before = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


@contextmanager
def _undone_steps(model: nn.Module) -> Iterator[list[torch.Tensor | None]]:
    """Undo the steps of optimizers in a block; gives a list that gets the gradients at the first one."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    gradients: list[torch.Tensor | None] = []
    undo: dict[int, Callable[[], None]] = {}

    def keep(optimizer: Any, args: Any, kwargs: Any) -> None:
        if id(optimizer) not in undo:
            undo[id(optimizer)] = _restoring(optimizer)
            if not gradients:
                gradients.extend(None if each.grad is None else each.grad.clone() for each in model.parameters())

    hook = register_optimizer_step_pre_hook(keep)
    try:
        yield gradients
    finally:
        hook.remove()
        for restore in undo.values():
            restore()


def _restoring(optimizer: Any) -> Callable[[], None]:
    """What gives an optimizer's parameters, its state and its options back."""
    import torch

    groups = [dict(group) for group in optimizer.param_groups]
    states = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    tensors = [each for group in groups for each in group["params"]]
    tensors += [each for state in states.values() for each in state.values() if isinstance(each, torch.Tensor)]
    # On the host: an optimizer's state may be twice the model.
    values = [(each, each.detach().to("cpu", copy=True)) for each in tensors]

    def restore() -> None:
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            group.update(before)
        optimizer.state.clear()
        optimizer.state.update(states)
        for tensor, value in values:
            overwrite(tensor, value)

    return restore


def _loss(result: Any) -> Any:
    """What the backward of a call in training begins with: its loss, else the sum of its results."""
    loss = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    if loss is not None:
        return loss
    outputs = [each for each in tensors_of(result) if each.requires_grad]
    if not outputs:
        raise RequestError(
            "A call in training returns nothing that has a gradient. Give a function that runs the training step."
        )
    return sum(each.float().mean() for each in outputs)


def _rounded_otherwise(result: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map_only

    made: dict[torch.device, torch.Generator] = {}

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        # Of its own, so that the model's random numbers are the same.
        generator = made.setdefault(tensor.device, torch.Generator(tensor.device).manual_seed(0))
        noise = torch.rand(tensor.shape, generator=generator, device=tensor.device) * 2 - 1
        return (wide(tensor, detach=False) * (1 + noise * torch.finfo(tensor.dtype).eps)).to(tensor.dtype)

    return tree_map_only(torch.Tensor, rounded, result)
