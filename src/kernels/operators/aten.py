"""Find the ATen operator of a name: `silu`, `add_Tensor`, `aten::add.Tensor`."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from kernels.errors import RequestError
from kernels.support.formatting import format_names, wrong_type

__all__ = ["Operator", "check_dispatch_key", "find_operator", "operator_names"]

_PREFIX = "aten::"


@dataclass(frozen=True, order=True)
class Operator:
    """One overload of an ATen operator.

    Attributes:
        base: The name that overloads share: `add`.
        overload: The overload's own name: `Tensor`; "" for the default one.

    Example:
        >>> str(Operator("add", "Tensor")), Operator("add", "Tensor").function_name
        ('aten::add.Tensor', 'add_Tensor')
    """

    base: str
    overload: str = ""

    @property
    def qualified(self) -> str:
        """The name that `torch.library` knows, without its namespace: `add.Tensor`."""
        return f"{self.base}.{self.overload}" if self.overload else self.base

    @property
    def function_name(self) -> str:
        """The name of a vendor's function for it: `add_Tensor`."""
        return f"{self.base}_{self.overload}" if self.overload else self.base

    def __str__(self) -> str:
        return _PREFIX + self.qualified

    def op(self) -> Any:
        """Torch's object for it, a `torch._ops.OpOverload`."""
        import torch

        return getattr(getattr(torch.ops.aten, self.base), self.overload or "default")

    def has_kernel(self, dispatch_key: str) -> bool:
        """Whether a kernel is registered for exactly that dispatch key."""
        import torch

        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(str(self), dispatch_key))


def operator_names() -> dict[str, list[str]]:
    """The names of all ATen operators that Torch knows, with the overloads of each."""
    import torch

    found: dict[str, list[str]] = {}
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if name.startswith(_PREFIX):
            base, _, overload = name.removeprefix(_PREFIX).partition(".")
            found.setdefault(base, []).append(overload)
    return found


def find_operator(text: str, names: dict[str, list[str]]) -> Operator:
    """The operator that a name means.

    Args:
        text: A function's name (`silu`, `silu_`, `add_Tensor`), or an operator's (`aten::silu`, `add.Tensor`). Without
            an overload, it is the default one.
        names: What `operator_names` gave.

    Raises:
        RequestError: No operator has this name; the message lists the overloads, or similar names.

    Example:
        >>> find_operator("add_Tensor", {"add": ["Scalar", "Tensor"]})
        Operator(base='add', overload='Tensor')
    """
    if not isinstance(text, str):
        raise wrong_type("operator", "a name such as 'aten::silu'", text)
    qualified = text.startswith(_PREFIX) or "." in text
    base, _, overload = text.removeprefix(_PREFIX).partition(".")
    if overload in names.get(base, ()):
        return Operator(base, overload)
    if not qualified:
        # The longest base first: `add__Tensor` is `add_.Tensor`.
        for at in [at for at, letter in enumerate(text) if letter == "_"][::-1]:
            if text[at + 1 :] in names.get(text[:at], ()):
                return Operator(text[:at], text[at + 1 :])
    if base in names:
        overloads = [Operator(base, each) for each in names[base]]
        said = [str(each) if qualified else each.function_name for each in overloads]
        kind = f"overload {overload!r}" if overload else "default overload"
        there = format_names(said, limit=12)
        raise RequestError(f"The operator is {text!r}, but aten::{base} has no {kind}; it has {there}.")
    raise RequestError(f"The operator is {text[:200]!r}, which is not in Torch's ATen{_near(text, names)}.")


def check_dispatch_key(dispatch_key: str, where: str) -> None:
    """Raise unless a dispatch key is one for a backend's kernels.

    Args:
        dispatch_key: The key, such as `CUDA` or `PrivateUse1`.
        where: The owner of the key, for the message.

    Raises:
        RequestError: It is not; the message lists those keys.
    """
    import torch

    keys = torch._C.DispatchKey.__members__
    # Each backend's key has its own key for autograd (c10/core/DispatchKey.h).
    known = [key for key in keys if f"Autograd{key}" in keys]
    if dispatch_key not in known:
        raise RequestError(f"`dispatch_key` of {where}: expected one of {', '.join(known)}, got {dispatch_key!r}.")


def _near(text: str, names: dict[str, list[str]]) -> str:
    if len(text) > 200:
        return ""
    operators = [Operator(base, overload) for base in names for overload in names[base]]
    spelled = {*names, *(each.function_name for each in operators)}
    near = difflib.get_close_matches(text.removeprefix(_PREFIX).replace(".", "_"), sorted(spelled), 3)
    return f"; similar names are {', '.join(near)}" if near else ""
