"""The kernel of each layer of a model, as a table and as data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from kernels.layer.changes import ChangesSince
from kernels.layer.decision import LayerDecision
from kernels.layer.marked import find_marked
from kernels.layer.notices import notes_of
from kernels.layer.swap import decision_of
from kernels.support.formatting import wrong_type
from kernels.support.html_table import html_table
from kernels.support.text import one_line
from kernels.tracebacks import public

if TYPE_CHECKING:
    from torch import nn

__all__ = ["KernelizeReport", "KernelizeRow", "kernelize_report"]

_HEADINGS = ("module", "layer", "kernel", "commit", "variant", "mode")
_NO_MARKS = "No layer of this model is marked for kernels. `kernelize(model, by_class=…)` names classes without a mark."
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
        measured: False where kernels serve layers and none of them was measured by `autotune`.

    Example:
        >>> print(KernelizeReport((KernelizeRow("layers.0.norm", "RMSNorm", reason="no kernel is mapped to it"),)))
        0 of 1 layer runs through a kernel
        module         layer    kernel
        layers.0.norm  RMSNorm  its own forward: no kernel is mapped to it
    """

    rows: tuple[KernelizeRow, ...]
    notes: tuple[str, ...] = ()
    measured: bool = True

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

    def to_list(self) -> list[dict[str, str | None]]:
        """The rows as plain data: strings and None, ready for JSON; without `changed` and `from_size` that are None."""
        rows = [asdict(row) for row in self.rows]
        return [
            {name: value for name, value in row.items() if value or name not in ("changed", "from_size")}
            for row in rows
        ]

    def _repr_html_(self) -> str:
        title, lines = self._title, self.notes if self.rows else (_NO_MARKS, *self.notes)
        return html_table(
            _HEADINGS if self.rows else (), (_cells(*each) for each in _folded(self.rows)), title=title, notes=lines
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # IPython's plain text

    def __str__(self) -> str:
        table = _table([_HEADINGS, *(_cells(*each) for each in _folded(self.rows))]) if self.rows else [_NO_MARKS]
        return "\n".join([self._title, *table, *map(one_line, self.notes)])

    @property
    def _title(self) -> str:
        served, layers = ({row.module for row in rows} for rows in (self.kernelized, self.rows))
        run = "layer runs" if len(layers) == 1 else "layers run"
        title = f"{len(served)} of {len(layers)} {run} through a kernel"
        changed = len({row.module for row in self.changed})
        if not changed:
            return title
        return f"{title}; {changed} {'has' if changed == 1 else 'have'} changed since: kernelize the model again"


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
    known = []
    changes = ChangesSince()
    for path, module, state, name in find_marked(model):
        decision = decision_of(module) or LayerDecision(name or "", reason="not kernelized")
        known.append(decision.measured)
        for each in decision.by_mode:
            rows.append(
                KernelizeRow(
                    module=path,
                    layer=each.layer,
                    kernel=each.kernel,
                    commit=each.commit,
                    variant=each.variant,
                    mode=None if each.mode is None else str(each.mode),
                    registered=None if each.registered is None else str(each.registered),
                    reason=each.reason,
                    changed=changes.of(state, decision, each) or None,
                    from_size=each.from_size if each.function is not None else None,
                )
            )
    measured = any(known) or not any(row.kernelized for row in rows)
    return KernelizeReport(tuple(rows), notes_of(model), measured)


def check_model(model: object) -> None:
    """Raise a `TypeError` when `model` is not an `nn.Module`."""
    from torch import nn

    if not isinstance(model, nn.Module):
        raise wrong_type("model", "a torch.nn.Module", model)


def folded_path(path: str) -> str:
    """A module's path with a star for each number."""
    return _INDEX.sub("*", path)


def _folded(rows: tuple[KernelizeRow, ...]) -> list[tuple[str, KernelizeRow]]:
    """Rows that differ in nothing but the numbers in their paths share a line: `layers.*.norm (32)`."""
    each = Counter(row.module for row in rows)
    kept = Counter((row.module, row.reason) for row in rows)
    groups: dict[tuple[str, KernelizeRow], list[KernelizeRow]] = {}
    for row in rows:
        shown = row
        if row.reason is not None and each[row.module] > 1:  # asked for two modes
            both = kept[row.module, row.reason] > 1
            shown = replace(row, mode=None, reason=row.reason if both else f"in {row.mode}, {row.reason}")
        groups.setdefault((folded_path(row.module), replace(shown, module="")), []).append(row)
    folded = []
    for (pattern, shown), group in groups.items():
        modules = {row.module for row in group}
        path = f"{pattern} ({len(modules)})" if len(modules) > 1 else group[0].module or "(the model)"
        folded.append((path, shown))
    return folded


def _cells(path: str, row: KernelizeRow) -> tuple[str, ...]:
    if row.reason is not None:
        kernel = f" ({row.kernel})" if row.kernel else ""
        changed = f"; {row.changed}" if row.changed else ""
        return (path, row.layer, f"its own forward: {row.reason}{kernel}{changed}")
    mode = row.mode or "-"
    if row.registered not in (None, row.mode):
        mode += " (any mode)" if row.registered == "FALLBACK" else f" (registered: {row.registered})"
    for more in (row.from_size, row.changed):
        if more:
            mode += f"; {more}"
    commit = row.commit[:_SHORT_COMMIT] if row.commit else "-"
    return (path, row.layer, row.kernel or "-", commit, row.variant or "-", mode)


def _table(lines: list[tuple[str, ...]]) -> list[str]:
    lines = [tuple(map(one_line, line)) for line in lines]
    # A reason spans the kernel's columns, so it does not widen them.
    full = [line for line in lines[1:] if len(line) == len(_HEADINGS)]
    headings = lines[0] if full else lines[0][:3]
    widths = [max(len(line[column]) for line in (headings, *full)) for column in range(len(headings))]
    for column in (0, 1):
        widths[column] = max(len(line[column]) for line in lines)
    printed = [headings, *lines[1:]]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip() for line in printed
    ]
