"""A path below the torch module: names and calls, and nothing else."""

from __future__ import annotations

import ast
import sys
from types import ModuleType
from typing import Any, NamedTuple

__all__ = ["Call", "Step", "follow_torch_path", "parse_torch_path"]


class Call(NamedTuple):
    """A step that calls what the steps before it led to, with literal arguments."""

    arguments: tuple[Any, ...]
    named: dict[str, Any]


#: An attribute's name, or a call.
Step = str | Call


def parse_torch_path(text: str) -> list[Step]:
    """The steps of a path such as `npu.get_device_properties(0).name`.

    Args:
        text: Names that do not begin with an underscore, joined with dots, and calls of literal arguments. The first
            is a name in the torch module, not `torch` itself.

    Raises:
        ValueError: It is anything else.

    Example:
        >>> parse_torch_path("npu.get_device_name(0)")
        ['npu', 'get_device_name', Call(arguments=(0,), named={})]
    """
    try:
        node: ast.AST = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError("it is no path of names and calls") from None
    steps: list[Step] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            steps.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Call):
            named = {each.arg or "**": _literal(each.value, text) for each in node.keywords}
            if "**" in named:
                raise ValueError("`**` is no literal argument")
            steps.append(Call(tuple(_literal(each, text) for each in node.args), named))
            node = node.func
        else:
            raise ValueError(f"{_said(node, text)} is neither a name nor a call")
    steps.append(node.id)
    for step in steps:
        if isinstance(step, str) and step.startswith("_"):
            raise ValueError(f"{step!r} is private")
    if steps[-1] == "torch":
        raise ValueError("the path begins below torch; leave `torch.` out")
    return steps[::-1]


def _literal(node: ast.expr, text: str) -> Any:
    if not isinstance(node, ast.Constant):
        raise ValueError(f"{_said(node, text)} is no literal argument")
    return node.value


def _said(node: ast.AST, text: str) -> str:
    # Not `ast.unparse`: that goes down as deep as the text does.
    part = ast.get_source_segment(text, node) if isinstance(node, ast.expr) else None
    return repr(text if part is None else part)[:80]


def follow_torch_path(steps: list[Step], torch: Any) -> Any:
    """What a path leads to.

    Args:
        steps: What `parse_torch_path` returned.
        torch: The imported module.

    Raises:
        ValueError: It leads to a module that is not Torch's (`torch.os` is Python's).
        Exception: A name is not there, or what is called raises.
    """
    value, place = torch, "torch"
    for step in steps:
        if isinstance(step, Call):
            value, place = value(*step.arguments, **step.named), f"{place}(…)"
        else:
            value, place = getattr(value, step), f"{place}.{step}"
        # A device's module may have another name (torch_npu.npu), and is in `sys.modules` under Torch's.
        if isinstance(value, ModuleType) and sys.modules.get(place) is not value:
            raise ValueError(f"{place} is the module {value.__name__}, which is not Torch's")
    return value
