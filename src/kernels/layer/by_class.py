"""Names for layers that carry no mark: by class, for one model and one call."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any

from kernels.errors import RequestError
from kernels.support.formatting import did_you_mean, format_names, wrong_type

__all__ = ["names_by_class"]


def names_by_class(by_class: Any, classes: Collection[type]) -> dict[type, str]:
    """The layer name of each class of a model that `by_class` names.

    A key stands for one class, not for its subclasses: a subclass may compute something else.

    Args:
        by_class: Class → layer name. A class is given as itself, by its name, or by its dotted name.
        classes: The classes of the model's modules.

    Raises:
        TypeError: An argument or an entry is of the wrong type.
        RequestError: A key is the class of no module of the model, or the name of several; or a class has two names.

    Example:
        >>> from torch import nn
        >>> classes = nn.Sequential, nn.Linear, nn.SiLU
        >>> [(cls.__name__, name) for cls, name in names_by_class({"SiLU": "SiLU"}, classes).items()]
        [('SiLU', 'SiLU')]
        >>> names_by_class({"torch.nn.Silu": "SiLU"}, classes)
        Traceback (most recent call last):
        kernels.errors.RequestError: `by_class`: no layer of the model is a 'torch.nn.Silu'. Did you mean 'SiLU'?
    """
    if not isinstance(by_class, Mapping):
        raise wrong_type("by_class", "a dictionary class -> layer name", by_class)
    named: dict[type, str] = {}
    for key, layer_name in by_class.items():
        if not isinstance(key, (str, type)):
            raise wrong_type("by_class", "classes or their names as keys", key)
        where = f"by_class[{_shown(key)!r}]"
        if not isinstance(layer_name, str) or not layer_name:
            raise wrong_type(where, "the name of a layer in the mapping", layer_name)
        cls = _class_of(key, classes)
        if named.setdefault(cls, layer_name) != layer_name:
            raise RequestError(
                f"`by_class`: two keys name the class {_dotted(cls)}, with the layers {named[cls]!r} and "
                f"{layer_name!r}; expected one."
            )
    return named


def _class_of(key: str | type, classes: Collection[type]) -> type:
    """The class of a model that a key stands for."""
    if isinstance(key, type):
        found = [cls for cls in classes if cls is key]
    elif "." in key:
        # A class is often imported from elsewhere than where it is defined: torch.nn.LayerNorm.
        imported = _imported(key)
        found = [cls for cls in classes if cls is imported or _dotted(cls) == key]
    else:
        found = [cls for cls in classes if cls.__name__ == key]
    if not found:
        raise RequestError(f"`by_class`: {_absent(key, classes)}")
    if len(found) > 1:
        names = format_names(map(_dotted, found))
        raise RequestError(
            f"`by_class`: the model has {len(found)} classes {_shown(key)!r} ({names}). Give the class itself, or a "
            "dotted name that only one of them has."
        )
    return found[0]


def _absent(key: str | type, classes: Collection[type]) -> str:
    problem = f"no layer of the model is a {_shown(key)!r}."
    below = [cls for cls in classes if any(_is(base, key) for base in cls.__mro__[1:])]
    if below:
        names = format_names(map(_dotted, below))
        return f"{problem} It has subclasses of it, which need keys of their own: {names}."
    name = _shown(key).rpartition(".")[2]
    hint = did_you_mean(name, (cls.__name__ for cls in classes))
    return problem + (hint or f" Its classes are {format_names(sorted({cls.__name__ for cls in classes}))}.")


def _is(cls: type, key: str | type) -> bool:
    if isinstance(key, type):
        return cls is key
    return _dotted(cls) == key or (cls is _imported(key) if "." in key else cls.__name__ == key)


def _imported(name: str) -> object:
    """What a dotted name stands for, in the modules that are imported; nothing is imported for it."""
    module, _, attribute = name.rpartition(".")
    return vars(sys.modules[module]).get(attribute) if module in sys.modules else None


def _shown(key: str | type) -> str:
    return key if isinstance(key, str) else _dotted(key)


def _dotted(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
