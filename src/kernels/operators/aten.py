"""Find the ATen operator of a name: `silu`, `add_Tensor`, `add_scalar`, `aten::add.Tensor`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from kernels.errors import RequestError
from kernels.support.formatting import format_names, wrong_type

__all__ = ["Meaning", "Operator", "check_dispatch_key", "find_operator", "meanings", "operator_names"]

_PREFIX = "aten::"

#: Names that vendors give to functions for an operator of another name.
_SYNONYMS = {"true_divide": "div", "true_divide_": "div_", "group_mm": "_grouped_mm"}

#: Overloads that are meant where no overload is named, the first that there is.
_MAIN = ("", "Tensor", "Tensor_Tensor", "src")


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
        text: A function's name (`silu`, `silu_`, `add_Tensor`, `add_scalar`, `softmax`), or an operator's
            (`aten::silu`, `add.Tensor`). Without an overload, an operator's name means the default one.
        names: What `operator_names` gave.

    Raises:
        RequestError: No operator has this name; the message lists the overloads, or similar names.

    Example:
        >>> find_operator("add_Tensor", {"add": ["Scalar", "Tensor"]})
        Operator(base='add', overload='Tensor')
        >>> find_operator("add", {"add": ["Scalar", "Tensor"]})
        Operator(base='add', overload='Tensor')
    """
    if not isinstance(text, str):
        raise wrong_type("operator", "a name such as 'aten::silu'", text)
    qualified = text.startswith(_PREFIX) or "." in text
    base, _, overload = text.removeprefix(_PREFIX).partition(".")
    if overload in names.get(base, ()):
        return Operator(base, overload)
    if not qualified:
        clear = [each for each in meanings(text, names) if each.clear]
        spelled = [each for each in clear if each.exact and each.operator.overload]
        if clear:
            return (spelled or clear)[0].operator
    if base in names:
        overloads = [Operator(base, each) for each in names[base]]
        said = [str(each) if qualified else each.function_name for each in overloads]
        kind = f"overload {overload!r}" if overload else "default overload"
        there = format_names(said, limit=12)
        raise RequestError(f"The operator is {text!r}, but aten::{base} has no {kind}; it has {there}.")
    raise RequestError(f"The operator is {text[:200]!r}, which is not in Torch's ATen{_near(text, names)}.")


@dataclass(frozen=True)
class Meaning:
    """An operator that a function's name may mean.

    Attributes:
        operator: The operator.
        clear: Whether the name alone says so; if not, the function's parameters have to.
        exact: Whether the name is the operator's with its overload, as Torch spells both.
        beneath: Whether it is the operator that Torch computes the one of the name by: `_softmax` for `softmax`.
    """

    operator: Operator
    clear: bool = True
    exact: bool = False
    beneath: bool = False


def meanings(text: str, names: Mapping[str, Sequence[str]]) -> list[Meaning]:
    """Every operator that a function's name may mean, the likeliest first.

    The rules are those by which vendors' folders name functions (as in FlagGems): an overload follows the operator's
    name, in lower case (`add_scalar`, `pow_tensor_scalar`, `sum_dim`); the mark of an operator in place is last
    (`fill_scalar_`); without an overload the one for tensors is meant (`add`); and the name of an operator that Torch
    computes by another one may mean that one (`softmax`, `group_norm`, `layer_norm_backward`).

    Args:
        text: The function's name.
        names: What `operator_names` gave.

    Example:
        >>> [str(each.operator) for each in meanings("sum_dim", operator_names()) if each.clear]
        ['aten::sum.dim_IntList']
    """
    found: dict[Operator, Meaning] = {}
    for meaning in _meanings(text, names):
        found.setdefault(meaning.operator, meaning)
    return list(found.values())


def _meanings(text: str, names: Mapping[str, Sequence[str]]) -> Iterator[Meaning]:
    name = _SYNONYMS.get(text, text)
    if name in names:
        yield from _without_overload(name, names[name], exact=name == text)
    yield from _beneath(name, names)
    # The longest base first: `add__Tensor` is `add_.Tensor`.
    splits = [(text[:at], text[at + 1 :]) for at, letter in enumerate(text) if letter == "_"][::-1]
    splits = [(base, overload) for base, overload in splits if overload]
    for base, overload in splits:
        if overload in names.get(base, ()):
            yield Meaning(Operator(base, overload), exact=True)
    for base, overload in splits:
        if overload.endswith("_"):
            base, overload = f"{base}_", overload[:-1]
        meant = _SYNONYMS.get(base, base)
        if overload and meant in names:
            for each in _overloads(meant, overload, names[meant]):
                yield Meaning(Operator(meant, each), beneath=meant != base)
        for beneath in _beneath(base, names):  # `softmax_out`
            if overload in names[beneath.operator.base]:
                yield replace(beneath, operator=Operator(beneath.operator.base, overload))


def _without_overload(base: str, overloads: Sequence[str], *, exact: bool) -> Iterator[Meaning]:
    """The overloads of a name that says none: the main one first, the others for functions whose parameters say so."""
    main = _main(base, overloads)
    if main is not None:
        yield Meaning(Operator(base, main), exact=exact and not main)
    for each in overloads:
        if each != main and _is_plain(Operator(base, each)):
            yield Meaning(Operator(base, each), clear=False)


def _main(base: str, overloads: Sequence[str]) -> str | None:
    """The overload that is meant where none is named: a usual one, or the only one."""
    usual = next((each for each in _MAIN if each in overloads), None)
    if usual is not None:
        return usual
    plain = [each for each in overloads if _is_plain(Operator(base, each))]
    # Not `int` of `softmax`, which Torch computes by `_softmax`.
    only = len(plain) == 1 and not Operator(base, plain[0]).has_kernel("CompositeImplicitAutograd")
    return plain[0] if only else None


def _beneath(name: str, names: Mapping[str, Sequence[str]]) -> Iterator[Meaning]:
    """Operators by which Torch computes the one of a name, or which have the name without a prefix."""
    there = [Operator(name, each) for each in names.get(name, ()) if _is_plain(Operator(name, each))]
    composite = all(each.has_kernel("CompositeImplicitAutograd") for each in there)
    main = _main(name, names.get(name, ())) is not None
    forms = [f"native_{name}"]
    if not main:
        forms.append(f"_{name}")  # `softmax`
    if name not in names:
        forms += [f"_{name}_data", f"linalg_{name}"]  # `softmax_backward`, `vector_norm`
    for form in forms:
        if "" in names.get(form, ()):
            yield Meaning(Operator(form), clear=composite and not main, beneath=composite)


def _overloads(base: str, said: str, overloads: Sequence[str]) -> list[str]:
    """The overloads that the rest of a function's name means: `tensor_scalar`, `dim`, `mode`, `dim_out`."""
    same = [each for each in overloads if _spelled(each) == _spelled(said)]
    if same:
        return same
    words = said.split("_")
    if words == ["out"]:  # without an overload, that of the main one
        given = [_main(base, overloads) or ""]
        return [out for each in given for out in overloads if _is_out_of(Operator(base, out), Operator(base, each))]
    if words[-1] == "out" and len(words) > 1:
        given = _overloads(base, "_".join(words[:-1]), overloads)
        return [out for each in given for out in overloads if _is_out_of(Operator(base, out), Operator(base, each))]
    plain = [each for each in overloads if _is_plain(Operator(base, each))]
    if set(words) <= {"tensor", "scalar"}:  # the types of the first arguments
        return [each for each in plain if _types(Operator(base, each))[: len(words)] == tuple(words)]
    found = [each for each in plain if each.lower().startswith(f"{said}_") or each.lower().endswith(f"_{said}")]
    return sorted(found, key=lambda each: not each.startswith("Tensor"))


def _spelled(overload: str) -> str:
    return overload.replace("_", "").lower()


@cache
def _schema(operator: Operator) -> Any:
    """The operator's schema, or None where Torch has none for Python."""
    try:
        return operator.op()._schema
    except AttributeError:
        return None


def _is_plain(operator: Operator) -> bool:
    """Whether an overload is neither for results in `out=` nor for named dimensions."""
    schema = _schema(operator)
    return schema is not None and not any(
        "Dimname" in str(each.real_type) or (each.kwarg_only and each.is_out) for each in schema.arguments
    )


def _is_out_of(out: Operator, operator: Operator) -> bool:
    """Whether an overload is the one of another that puts the result in `out=`."""
    given, schema = _schema(out), _schema(operator)
    if given is None or schema is None or not any(each.is_out for each in given.arguments):
        return False
    kept = [(each.name, str(each.real_type)) for each in given.arguments if not each.is_out]
    return kept == [(each.name, str(each.real_type)) for each in schema.arguments]


def _types(operator: Operator) -> tuple[str, ...]:
    kinds = {"Tensor": "tensor", "number": "scalar", "Scalar": "scalar"}
    return tuple(kinds.get(str(each.real_type), "") for each in _schema(operator).arguments)


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
