"""What the layers' own rows do not say: names in a mapping without a layer, devices without a kernel."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from kernels.layer.mapping import MappingView
from kernels.support.formatting import format_value, nearest_name
from kernels.support.logs import logger
from kernels.support.warn import warn_once

if TYPE_CHECKING:
    from torch import nn

__all__ = ["mention_devices", "notes_of", "remember_notes", "unused_names"]

_log = logger(__name__)

#: The notes of each model's last `kernelize`; beside the model, since its copies and pickles are other models.
_notes: WeakKeyDictionary[nn.Module, tuple[str, ...]] = WeakKeyDictionary()

#: How similar a registered name must be to one of the model to be taken for a misspelling of it: of seven letters, two
#: may be swapped. A library registers many names that one model does not have.
_MISSPELT = 0.8
#: The most names that a warning mentions.
_SHOWN = 3
#: The most notes about names that are like none of the model.
_MOST_NOTES = 20
#: The most pairs of names that are compared, which is slow: a mapping and a model may have a thousand names each.
_MOST_COMPARED = 5_000


def unused_names(
    view: MappingView,
    marked: Collection[str],
    served: Collection[str],
    by_class: Mapping[type, str],
    classes: Iterable[type],
) -> list[str]:
    """A sentence for each name in a mapping that no layer of a model has, where that may be a mistake.

    Names that are given for this call or context are all meant for the model. Of those registered for the whole
    process, only the ones are mentioned that look like the name of a layer without a kernel. If no layer has any name
    of the mapping that was given for this call, the log says so in a warning. Of many names, those with a likely
    mistake are mentioned, and how many others there are.

    Args:
        view: The mapping.
        marked: The names of the model's layers that carry a mark.
        served: The names of those that run through a kernel.
        by_class: The names of layers without a mark.
        classes: The classes of the model's modules.
    """
    names = {*marked, *by_class.values()}
    given = {name for level in view.levels[: view.given] for name in level}
    registered = {name for level in view.levels[view.given :] for name in level} - given
    unused = sorted(given - names)
    likely = _Likely(marked, by_class)
    notes: dict[str, tuple[str, bool]] = {}
    if unused:
        unmarked = [cls for cls in classes if cls not in by_class and not hasattr(cls, "kernel_layer_name")]
        # A class of Torch computes what its own name says, so a similar name means something else.
        class_names = {cls.__name__: cls.__module__.startswith("torch.") for cls in unmarked}
        notes = {name: likely.note(name, class_names) for name in unused}
    notes |= {name: likely.note(name) for name in _misspelt(registered - names, names, names.difference(served))}
    # A name in `by_class` that is not in the mapping was mentioned where the layer's kernel was looked for.
    if view.call and view.levels[0] and names.isdisjoint(view.levels[0]) and view.names.issuperset(by_class.values()):
        _warn_of_all([notes[name][0] for name in unused if name in view.levels[0]])
    return _bounded(notes.values())


def _bounded(notes: Collection[tuple[str, bool]]) -> list[str]:
    """Every note with a likely mistake, and some of the others."""
    plain = sum(not hinted for _, hinted in notes)
    if plain <= _MOST_NOTES:
        return [note for note, _ in notes]
    shown = islice((note for note, hinted in notes if not hinted), _MOST_NOTES)
    kept = {*shown, *(note for note, hinted in notes if hinted)}
    more = f"The mapping has {plain - _MOST_NOTES:,} more names that no layer of this model has."
    return [*(note for note, _ in notes if note in kept), more]


def _warn_of_all(notes: list[str]) -> None:
    more = len(notes) - _SHOWN
    rest = f" {more} more of its names are no layer's." if more > 0 else ""
    warn_once(_log, f"The mapping given to `kernelize` does nothing. {' '.join(notes[:_SHOWN])}{rest}")


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


def _misspelt(registered: Collection[str], names: Collection[str], unserved: Collection[str]) -> list[str]:
    """The registered names that may be a misspelling of the name of a layer without a kernel."""
    if not unserved:
        return []
    spelled = {each.casefold(): each for each in names}
    wanted = {each.casefold() for each in unserved}
    found = []
    for name in sorted(registered)[: _MOST_COMPARED // len(wanted)]:
        folded = name.casefold()
        if difflib.get_close_matches(folded, wanted, n=1, cutoff=_MISSPELT):
            near = difflib.get_close_matches(folded, spelled, n=1, cutoff=_MISSPELT)
            if near and spelled[near[0]] in unserved:
                found.append(name)
    return found


class _Likely:
    """Which mistakes are likely in names that no layer has.

    Args:
        marked: The names of the model's layers that carry a mark.
        by_class: The names of layers without a mark. They are the user's own, so one may be wrong, and is never the
            correction.
    """

    def __init__(self, marked: Collection[str], by_class: Mapping[type, str]) -> None:
        self._misspelt = {layer: cls.__name__ for cls, layer in by_class.items() if layer not in marked}
        self._layers = [*marked, *self._misspelt]
        self._left = _MOST_COMPARED

    def note(self, name: str, classes: Mapping[str, bool] = MappingProxyType({})) -> tuple[str, bool]:
        """The sentence for one name, and whether it says what may be meant.

        Args:
            name: The name.
            classes: The names of the classes without a mark, and whether each is Torch's own.
        """
        note = f"The mapping has {name!r}, but no layer of this model has this name."
        if name in classes:
            return f"{note} The class {name!r} carries no mark: by_class={{{name!r}: {name!r}}} names its layers.", True
        self._left -= len(self._layers) + len(classes)
        if self._left < 0:
            return note, False
        layer = nearest_name(name, self._layers)
        if layer in self._misspelt:
            return f"{note} Did you mean by_class={{{self._misspelt[layer]!r}: {name!r}}}, not {layer!r}?", True
        if layer is not None:
            return f"{note} Did you mean {format_value(layer)}?", True
        likely = [each for each, torchs in classes.items() if not torchs or each.casefold() == name.casefold()]
        cls = nearest_name(name, likely)
        if cls is not None:
            hint = f"by_class={{{cls!r}: {name!r}}} names its layers, and compare_layers compares the results"
            return f"{note} If the class {cls!r} is meant, {hint}.", True
        return note, False
