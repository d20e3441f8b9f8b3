"""Run a model with its layers' own forwards, and see the arguments of each call of a layer.

`compare_layers` and `autotune` stand on this: what they run beside the model's own work runs on copies, and leaves
buffers and the state of random numbers as they were.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from kernels.layer.swap import replaced_forward
from kernels.support.formatting import format_names

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = [
    "LayerCall",
    "OtherStructure",
    "Pair",
    "copied",
    "eager",
    "largest_difference",
    "largest_value",
    "overwrite",
    "pairs",
    "preserved",
    "reachable_tensors",
    "tensors_of",
    "watched",
    "wide",
]


class LayerCall(NamedTuple):
    """A call of a layer.

    Attributes:
        module: The layer.
        own: Its own forward, bound.
        args: The positional arguments.
        kwargs: Those with names.
    """

    module: nn.Module
    own: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def first_tensor(self) -> tuple[torch.Tensor, tuple[int, str]] | None:
        """The first tensor among the arguments, with the place and the name of its parameter."""
        import torch

        names = list(inspect.signature(self.own).parameters)
        for place, value in enumerate(self.args):
            if isinstance(value, torch.Tensor):
                return value, (place, names[place] if place < len(names) else "")
        for name, value in self.kwargs.items():
            if isinstance(value, torch.Tensor):
                return value, (names.index(name) if name in names else len(names), name)
        return None


@contextmanager
def watched(modules: Iterable[nn.Module], see: Callable[[LayerCall], Any]) -> Iterator[None]:
    """Give modules their own forwards in a block, and see each call; what `see` returns is the layer's result.

    Args:
        modules: Layers, kernelized or not.
        see: What is called in place of each one's forward.
    """
    with ExitStack() as stack:
        for module in modules:
            own = MethodType(type(module).forward, module)

            def forward(*args: Any, module: Any = module, own: Any = own, **kwargs: Any) -> Any:
                return see(LayerCall(module, own, args, kwargs))

            stack.enter_context(replaced_forward(module, forward))
        yield


@contextmanager
def eager() -> Iterator[None]:
    """Run what was compiled without its compiled code in a block."""
    import torch

    if "torch._dynamo" not in sys.modules:  # importing it takes long, and without it nothing is compiled
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def copied(value: Any) -> Any:
    """A copy of arguments; tensors are copies without a graph that require a gradient where the original does.

    Raises:
        Exception: What an argument's own code raises.
    """
    # Beforehand: `deepcopy` refuses a tensor with a graph, such as one in a cache.
    return copy.deepcopy(value, {id(each): _copied(each) for each in reachable_tensors(value)})


def reachable_tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in lists, tuples, dictionaries and the attributes of objects, such as a cache's."""
    found: dict[int, torch.Tensor] = {}
    _find_tensors(value, found, set())
    return list(found.values())


def _find_tensors(value: Any, found: dict[int, torch.Tensor], seen: set[int]) -> None:
    import torch

    if id(value) in seen or isinstance(value, (type, torch.nn.Module)):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        found[id(value)] = value
    elif isinstance(value, Mapping):
        for each in value.values():
            _find_tensors(each, found, seen)
    elif isinstance(value, (tuple, list, set, frozenset)):
        for each in value:
            _find_tensors(each, found, seen)
    elif hasattr(value, "__dict__"):
        _find_tensors(vars(value), found, seen)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of the original, which a kernel may be wrong for; `clone` makes a slice contiguous."""
    import torch

    plain = tensor.detach()
    if plain.layout is torch.strided and not plain.is_quantized and type(plain) is torch.Tensor:
        held = plain
        for dimension, stride in enumerate(plain.stride()):
            if stride == 0:  # expanded: the copy has one, too
                held = held.narrow(dimension, 0, min(1, plain.shape[dimension]))
        made = torch.empty_strided(held.shape, held.stride(), dtype=held.dtype, device=held.device)
        try:
            return made.copy_(held).expand(plain.shape).requires_grad_(tensor.requires_grad)
        except RuntimeError:  # its elements overlap in another way
            pass
    return plain.clone().requires_grad_(tensor.requires_grad)


@contextmanager
def preserved(module: nn.Module) -> Iterator[None]:
    """Restore a module's buffers and the state of the random numbers after a block."""

    import torch

    # A forward may change a buffer, or set another tensor in its place.
    tables = [(each._buffers, dict(each._buffers)) for each in module.modules() if each._buffers]
    buffers = [each for _, table in tables for each in table.values() if each is not None and not each.is_meta]
    values = [(each, each.clone()) for each in buffers]
    try:
        with _same_random_numbers(module):
            yield
    finally:
        for table, before in tables:
            table.update(before)
        for buffer, value in values:
            if not (buffer.layout is torch.strided and torch.equal(buffer, value)):
                overwrite(buffer, value)  # only then: a backward refuses what was written to since


def overwrite(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Give a tensor other values, also one that was made in inference mode."""
    import torch

    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        tensor.copy_(value)


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


class Pair(NamedTuple):
    """A tensor of a kernel's result, and that in its place in the layer's own."""

    kernel: torch.Tensor
    own: torch.Tensor


class OtherStructure(Exception):
    """Two results that are not made alike; the message says how."""


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in a nest of tuples, lists, dictionaries and what else Torch's pytree knows."""
    import torch
    from torch.utils._pytree import tree_leaves

    return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]


def pairs(kernel: Any, own: Any, passed: Iterable[Any] = ()) -> list[Pair]:
    """The tensors and numbers of a kernel's result, each with the one in its place in the layer's own.

    Args:
        kernel: The kernel's result.
        own: The layer's own.
        passed: The arguments of the layer; one that it returns, such as a cache, is not looked into.

    Raises:
        OtherStructure: They are not made alike, or of something that is not known.
    """
    import torch
    from torch.utils._pytree import tree_leaves_with_path

    parts, own_parts = dict(tree_leaves_with_path(kernel)), dict(tree_leaves_with_path(own))
    if parts.keys() != own_parts.keys():
        if isinstance(kernel, dict) and isinstance(own, dict) and kernel.keys() != own.keys():
            raise OtherStructure(f"the kernel returns the keys {_names(kernel)} in place of {_names(own)}")
        if isinstance(kernel, (tuple, list)) and isinstance(own, (tuple, list)) and len(kernel) != len(own):
            raise OtherStructure(f"the kernel returns {len(kernel)} values in place of {len(own)}")
        raise OtherStructure(f"the kernel returns {_type(kernel)} in place of {_type(own)}")
    known = {id(each) for each in passed}
    found = []
    for path, other in own_parts.items():
        part = parts[path]
        if isinstance(part, torch.Tensor) and isinstance(other, torch.Tensor):
            if part.shape != other.shape or part.dtype != other.dtype:
                raise OtherStructure(f"the kernel returns {_kind(part)} in place of {_kind(other)}")
            found.append(Pair(part, other))
        elif isinstance(part, (int, float, complex)) and isinstance(other, (int, float, complex)):
            found.append(Pair(torch.tensor(part), torch.tensor(other)))
        elif type(part) is not type(other):
            raise OtherStructure(f"the kernel returns {_type(part)} in place of {_type(other)}")
        elif id(other) in known:
            continue
        elif not (other is None or isinstance(other, (str, bytes, torch.dtype, torch.device))):
            raise OtherStructure(f"its results cannot be compared: they contain {_type(other)}")
        elif part != other:
            raise OtherStructure(f"the kernel returns {part!r} in place of {other!r}")
    return found


def largest_difference(pair: Pair) -> float:
    """The largest absolute difference of two tensors of one shape; infinite where only one is finite."""
    kernel, own = wide(pair.kernel), wide(pair.own)
    same = (kernel == own) | (kernel.isnan() & own.isnan())
    infinite = float("inf")
    apart = (kernel - own).abs().nan_to_num(nan=infinite, posinf=infinite).masked_fill(same, 0.0)
    return float(apart.max()) if apart.numel() else 0.0


def largest_value(tensor: torch.Tensor) -> float:
    """The largest absolute value of a tensor that is finite."""
    sizes = wide(tensor).abs().nan_to_num(0.0, 0.0, 0.0)
    return float(sizes.max()) if sizes.numel() else 0.0


def wide(tensor: torch.Tensor, *, detach: bool = True) -> torch.Tensor:
    """A tensor's values in a type that holds the difference of two of them."""
    import torch

    if tensor.is_quantized:
        tensor = tensor.dequantize()
    elif tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.detach() if detach else tensor
    if tensor.is_complex():
        return tensor.cpu().to(torch.complex128)
    if tensor.dtype.is_floating_point and tensor.element_size() < 4:
        return tensor.float()  # holds each of its values
    try:
        return tensor.double()
    except TypeError:  # not every device has float64
        return tensor.cpu().double()


def _names(result: dict[Any, Any]) -> str:
    return format_names(map(str, result)) or "none"


def _type(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
