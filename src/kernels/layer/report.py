"""The kernel of each layer of a model, as a table and as data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kernels.layer.decision import LayerDecision, LayerState
from kernels.layer.device import of_tensor
from kernels.layer.mapping import NoKernel
from kernels.layer.marked import find_marked
from kernels.layer.mode import KernelizeFallback, Mode
from kernels.layer.notices import notes_of
from kernels.layer.swap import decision_of
from kernels.support.formatting import wrong_type
from kernels.support.html_table import html_table, text_table
from kernels.tracebacks import public

if TYPE_CHECKING:
    from torch import nn

__all__ = ["KernelizeReport", "KernelizeRow", "kernelize_report"]

_HEADINGS = ("module", "layer", "kernel", "commit", "variant", "mode")
_NO_MARKS = "No layer of this model is marked for kernels. `kernelize(model, by_class=…)` names classes without a mark."
_NOT_MEASURED = "Not measured: kernels.autotune(model, (inputs,)) keeps only the kernels that pay."
_INDEX = re.compile(r"(?<![^.])[0-9]+(?![^.])")
_SHORT_COMMIT = 7


@dataclass(frozen=True)
class KernelizeRow:
    """One layer of a model, and the kernel that serves it.

    Attributes:
        module: Its path in the model, as `named_modules` gives it.
        layer: Its name in mappings.
        kernel: The kernel's repository or folder, or None.
        commit: The commit the kernel was loaded at, or None.
        variant: The build, or None.
        mode: What the model was kernelized for, such as `"INFERENCE"`.
        registered: The mode that the kernel is registered for.
        reason: Why the layer keeps its own forward; None if a kernel serves it.
        changed: What has changed since, so that the layer should be kernelized again; None if nothing has.
        from_size: From which size of its input on the kernel serves it, as `autotune` measured; None for every size.
        measured: Whether `autotune` measured it.
    """

    module: str
    layer: str
    kernel: str | None = None
    commit: str | None = None
    variant: str | None = None
    mode: str | None = None
    registered: str | None = None
    reason: str | None = None
    changed: str | None = None
    from_size: str | None = None
    measured: bool = False

    @property
    def kernelized(self) -> bool:
        """Whether a kernel serves the layer."""
        return self.reason is None


@dataclass(frozen=True)
class KernelizeReport:
    """Every layer of a model that a kernel may serve; prints as a table in which equal layers share a line.

    Attributes:
        rows: One a layer, in the order of the model's modules.
        notes: What else to know, such as a name in the mapping that no layer has; a sentence each.

    Example:
        >>> print(KernelizeReport((KernelizeRow("layers.0.norm", "RMSNorm", reason="no kernel is mapped to it"),)))
        0 of 1 layer runs through a kernel
        module         layer    kernel
        layers.0.norm  RMSNorm  its own forward: no kernel is mapped to it
    """

    rows: tuple[KernelizeRow, ...]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[KernelizeRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def kernelized(self) -> tuple[KernelizeRow, ...]:
        """The rows of layers that a kernel serves."""
        return tuple(row for row in self.rows if row.kernelized)

    @property
    def changed(self) -> tuple[KernelizeRow, ...]:
        """The rows of layers for which something has changed: their model should be kernelized again."""
        return tuple(row for row in self.rows if row.changed is not None)

    @property
    def measured(self) -> bool:
        """False where kernels serve layers and `autotune` has measured none: the report then says how to."""
        return any(row.measured for row in self.rows) or not self.kernelized

    def to_list(self) -> list[dict[str, Any]]:
        """The rows as plain data, ready for JSON; `changed`, `from_size` and `measured` where they are not empty."""
        optional = "changed", "from_size", "measured"
        return [
            {name: value for name, value in asdict(row).items() if value or name not in optional} for row in self.rows
        ]

    def _repr_html_(self) -> str:
        return html_table(*self._table, title=self._title, notes=self._lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # IPython's plain text

    def __str__(self) -> str:
        return text_table(*self._table, title=self._title, notes=self._lines)

    @property
    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings and rows; layers that differ in nothing but the numbers in their paths share one."""
        reasons: dict[str, set[str | None]] = {}
        for row in self.rows:
            reasons.setdefault(row.module, set()).add(row.reason)
        groups: dict[tuple[str, tuple[str, ...]], dict[str, None]] = {}
        for row in self.rows:
            cells = _cells(row, one_mode=len(reasons[row.module]) > 1)
            groups.setdefault((folded_path(row.module), cells), {})[row.module] = None
        rows = [
            (f"{path} ({len(paths)})" if len(paths) > 1 else next(iter(paths)) or "(the model)", *cells)
            for (path, cells), paths in groups.items()
        ]
        return _HEADINGS[: max(map(len, rows), default=0)], rows

    @property
    def _lines(self) -> list[str]:
        """What stands below the table."""
        return [*([] if self.rows else [_NO_MARKS]), *self.notes, *([] if self.measured else [_NOT_MEASURED])]

    @property
    def _title(self) -> str:
        served, layers = ({row.module for row in rows} for rows in (self.kernelized, self.rows))
        run = "layer runs" if len(layers) == 1 else "layers run"
        title = f"{len(served)} of {len(layers)} {run} through a kernel"
        changed = len({row.module for row in self.changed})
        has = f"{changed} {'has' if changed == 1 else 'have'}"
        return f"{title}; {has} changed since: kernelize the model again" if changed else title


@public
def kernelize_report(model: nn.Module) -> KernelizeReport:
    """The kernel of each layer of a model now.

    Args:
        model: A model, kernelized or not.

    Returns:
        One row for each layer that a kernel may serve; two, one for each mode, where `kernelize` was asked for `auto`.

    Raises:
        TypeError: `model` is not an `nn.Module`.

    Example:
        >>> from torch import nn
        >>> len(kernelize_report(nn.Linear(2, 2)))
        0
    """
    check_model(model)
    rows = []
    for path, module, state, name in find_marked(model):
        decision = decision_of(module) or LayerDecision(name or "", reason="not kernelized")
        rows += [
            KernelizeRow(
                module=path,
                layer=each.layer,
                kernel=each.kernel,
                commit=each.commit,
                variant=each.variant,
                mode=None if each.mode is None else str(each.mode),
                registered=None if each.registered is None else str(each.registered),
                reason=each.reason,
                changed="; ".join(_changes(decision, each, state)) or None,
                from_size=each.from_size if each.function is not None else None,
                measured=decision.measured,
            )
            for each in decision.by_mode
        ]
    return KernelizeReport(tuple(rows), notes_of(model))


def _changes(decision: LayerDecision, mode: LayerDecision, now: LayerState) -> Iterator[str]:
    """What of a layer is not as it was when its kernel was chosen."""
    then, chosen, asked = decision.state, mode.chosen, mode.mode
    if then is None or chosen is None or asked is None:
        return
    if isinstance(chosen.choice, NoKernel) and chosen.choice.flag is KernelizeFallback.NO_LAYER:
        return  # no state of the layer has a kernel
    if not decision.each and now.training != then.training and (Mode.TRAINING in asked) != now.training:
        yield f"kernelized for {asked}, now in {'training' if now.training else 'evaluation'}"
    if now.device is not None and now.device != then.device:
        device = of_tensor(now.device)
        if device.type != chosen.device.type or device.arch() != chosen.device.arch():
            yield f"kernelized for {chosen.device}, now on {device}"
    if None not in (then.dtype, now.dtype) and now.dtype != then.dtype:
        before, after = (str(each.dtype).removeprefix("torch.") for each in (then, now))
        yield f"kernelized in {before}, now in {after}"


def check_model(model: object) -> None:
    """Raise a `TypeError` when `model` is not an `nn.Module`."""
    from torch import nn

    if not isinstance(model, nn.Module):
        raise wrong_type("model", "a torch.nn.Module", model)


def folded_path(path: str) -> str:
    """A module's path with a star for each number."""
    return _INDEX.sub("*", path)


def _cells(row: KernelizeRow, one_mode: bool) -> tuple[str, ...]:
    """What follows a row's path; `one_mode` where the layer keeps its own forward in one of two modes."""
    changed = [row.changed] if row.changed else []
    if row.reason is not None:
        reason = f"in {row.mode}, {row.reason}" if one_mode else row.reason
        kernel = f" ({row.kernel})" if row.kernel else ""
        return row.layer, "; ".join([f"its own forward: {reason}{kernel}", *changed])
    mode = row.mode or "-"
    if row.registered not in (None, row.mode):
        mode += " (any mode)" if row.registered == "FALLBACK" else f" (registered: {row.registered})"
    measured = [f"measured {row.from_size or ''}".strip()] if row.measured else []
    commit = row.commit[:_SHORT_COMMIT] if row.commit else "-"
    return row.layer, row.kernel or "-", commit, row.variant or "-", "; ".join([mode, *measured, *changed])
