"""What the layers' own rows do not say: names in a mapping without a layer, devices without a kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from kernels.layer.mapping import MappingView
from kernels.support.formatting import did_you_mean
from kernels.support.logs import logger, warn_once

if TYPE_CHECKING:
    from torch import nn

__all__ = ["mention_devices", "notes_of", "remember_notes", "unused_names"]

_log = logger(__name__)

#: The notes of each model's last `kernelize`; beside the model, since its copies and pickles are other models.
_notes: WeakKeyDictionary[nn.Module, tuple[str, ...]] = WeakKeyDictionary()

#: The most names that notes, and a warning, mention.
_MOST_NOTES, _MOST_WARNED = 20, 3


def unused_names(
    view: MappingView, marked: Collection[str], by_class: Mapping[type, str], classes: Iterable[type]
) -> list[str]:
    """A sentence for each name in the mapping of this call or context that no layer of a model has.

    If no layer has any name of the mapping that was given for this call, the log says so in a warning.

    Args:
        view: The mapping.
        marked: The names of the model's layers that carry a mark.
        by_class: The names of layers without a mark.
        classes: The classes of the model's modules.
    """
    names = {*marked, *by_class.values()}
    unused = sorted({name for level in view.levels[: view.given] for name in level} - names)
    unmarked = {cls.__name__ for cls in classes if cls not in by_class and not hasattr(cls, "kernel_layer_name")}
    notes = {}
    for name in unused[:_MOST_NOTES]:
        hint = did_you_mean(name, marked)
        if name in unmarked:
            hint = f" The class {name!r} carries no mark: by_class={{{name!r}: {name!r}}} names its layers."
        notes[name] = f"The mapping has {name!r}, but no layer of this model has this name.{hint}"
    given = view.levels[0] if view.call else {}
    # A name in `by_class` that is not in the mapping was mentioned where the layer's kernel was looked for.
    if given and names.isdisjoint(given) and view.names.issuperset(by_class.values()):
        shown = [note for name, note in notes.items() if name in given][:_MOST_WARNED]
        warn_once(_log, " ".join(["The mapping given to `kernelize` does nothing.", *shown]))
    more = [f"The mapping has {len(unused) - _MOST_NOTES:,} more names that no layer of this model has."]
    return [*notes.values(), *(more if len(unused) > _MOST_NOTES else ())]


def remember_notes(model: nn.Module, notes: Iterable[str]) -> None:
    """Log notes about a model, and keep them for its report; none forgets earlier ones."""
    kept = _notes[model] = tuple(notes)
    for note in kept:
        _log.info("%s", note)


def notes_of(model: nn.Module) -> tuple[str, ...]:
    """The notes of a model's last `kernelize`."""
    return _notes.get(model, ())


def mention_devices(view: MappingView, unserved: Iterable[tuple[str, str]], served: Collection[str]) -> None:
    """Say once for each device type on which no layer of a model gets a kernel, although some are mapped elsewhere.

    Args:
        view: The mapping.
        unserved: The layers without a kernel for their device: the device type and the layer's name.
        served: The device types on which a layer gets a kernel.
    """
    names: dict[str, set[str]] = {}
    for device_type, name in unserved:
        if device_type not in served:
            names.setdefault(device_type, set()).add(name)
    for device_type, layers in names.items():
        others = sorted({other for name in layers for other in view.kernels_for(name) or ()})
        warn_once(
            _log,
            f"No kernel is mapped for device type {device_type!r}: the model keeps its own forwards. For its layers, "
            f"kernels are mapped for {', '.join(others)}.",
        )
