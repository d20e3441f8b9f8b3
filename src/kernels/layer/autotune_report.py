"""What `autotune` measured and chose, as a table, a file and a picture."""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from kernels.errors import MissingPythonDependency
from kernels.support.html_table import html_table, text_table
from kernels.tracebacks import public

if TYPE_CHECKING:
    from kernels.layer.tuned import TunedLayer

    Layers = tuple[TunedLayer, ...]
else:  # `help` evaluates the types of a struct's fields
    Layers = tuple

__all__ = ["AutotuneReport", "TunedCall", "TunedRow"]

_HEADINGS = ("module", "layer", "inputs", "kernel", "own", "kernel's", "gain", "")
_CALL_HEADINGS = ("call", "before", "after", "gain")


class TunedRow(Struct, frozen=True, kw_only=True):
    """One kind of layer with one kernel, for inputs of one size.

    Attributes:
        module: The path of the layer; with a star for each number, and how many there are, where several are alike.
        layer: Its name in mappings.
        inputs: The type and the shape of its first tensor, such as `bf16[4, 512, 2048]`.
        kernel: The kernel's repository or folder.
        own_seconds: How long a call of its own forward takes; None if it was not measured.
        kernel_seconds: How long a call of the kernel takes; None if it was not measured.
        difference: The largest difference of the results, by the largest value; None if they were not compared.
        chosen: Whether the kernel serves the layer for inputs of this size.
        reason: Why it does not, or not where a gradient is needed; None if it always does.
    """

    module: str
    layer: str
    inputs: str
    kernel: str
    own_seconds: float | None = None
    kernel_seconds: float | None = None
    difference: float | None = None
    chosen: bool = False
    reason: str | None = None

    @property
    def gain(self) -> float | None:
        """How many times as fast the kernel is; None if it was not measured."""
        if self.own_seconds is None or not self.kernel_seconds:
            return None
        return self.own_seconds / self.kernel_seconds


class TunedCall(Struct, frozen=True):
    """One call of the model.

    Attributes:
        before: How long it takes with the layers' own forwards, in seconds.
        after: How long it takes with what was chosen, in seconds.
        noise: How far measurements of it are apart, in seconds.
    """

    before: float
    after: float
    noise: float = 0.0

    @property
    def gain(self) -> float:
        """How many times as fast the call is."""
        return self.before / self.after


class AutotuneReport(Struct, frozen=True):
    """What `autotune` measured, what it chose, and why; prints as a table.

    Attributes:
        rows: What was measured of the layers.
        calls: The calls, in the order in which they were given.
        layers: The decisions, as they are kept.

    Example:
        >>> row = TunedRow(
        ...     module="norm", layer="RMSNorm", inputs="bf16[1, 64]", kernel="org/norm", own_seconds=3e-5,
        ...     kernel_seconds=2e-5, chosen=True,
        ... )
        >>> print(AutotuneReport((row,), (TunedCall(0.0021, 0.0020),)))
        1 of 1 measured uses of a kernel pays
        module  layer    inputs       kernel    own    kernel's  gain
        norm    RMSNorm  bf16[1, 64]  org/norm  30 µs  20 µs     1.50  chosen
        call  before  after  gain
        1     2.1 ms  2 ms   1.05
    """

    rows: tuple[TunedRow, ...]
    calls: tuple[TunedCall, ...]
    layers: Layers = ()

    def __iter__(self) -> Iterator[TunedRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @public
    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the decisions to a file, for `kernelize(model, autotuned=path)` on machines with the same device.

        Args:
            path: The file, such as `kernels.autotune.json` beside `kernels.lock`. An existing one is replaced.

        Raises:
            OSError: It cannot be written.
        """
        from kernels.layer.tuned import save_tuned

        save_tuned(Path(path), self.layers)

    @public
    def plot(self) -> Any:
        """The gain of each kernel by the size of the input, as a matplotlib figure.

        Raises:
            ImportError: matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise MissingPythonDependency(
                "`plot` needs matplotlib, which is not installed: pip install matplotlib"
            ) from None

        class Picture(Figure):
            """A figure that a notebook shows without `%matplotlib inline`."""

            def _repr_png_(self) -> bytes:
                content = BytesIO()
                self.savefig(content, format="png", facecolor="white")
                return content.getvalue()

        shown = [row for row in self.rows if row.gain is not None]
        names = [f"{row.layer} {row.inputs}\n{row.kernel}" for row in shown]
        names += [f"call {number}, whole" for number in range(1, len(self.calls) + 1)]
        gains = [row.gain or 0.0 for row in shown] + [call.gain for call in self.calls]
        colors = ["#2a7f4f" if row.chosen else "#9a9a9a" for row in shown] + ["#2a5f9e"] * len(self.calls)
        figure = Picture(figsize=(8, 1.2 + 0.45 * len(names)), layout="constrained")
        axes = figure.subplots()
        bars = axes.barh(range(len(names)), gains, color=colors, tick_label=names)
        axes.bar_label(bars, fmt="%.2f", padding=3)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.margins(x=0.1)
        axes.invert_yaxis()
        axes.set_xlabel("times as fast (green: chosen, grey: not, blue: whole calls)")
        return figure

    def _repr_html_(self) -> str:
        notes = [
            "; ".join(f"call {cells[0]}: {cells[1]} before, {cells[2]} after, {cells[3]}" for cells in self._calls())
        ]
        return html_table(_HEADINGS, self._cells(), title=self._title, notes=notes if self.calls else ())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # IPython's plain text

    def __str__(self) -> str:
        if not self.rows:
            return self._title
        return f"{text_table(_HEADINGS, self._cells(), title=self._title)}\n{text_table(_CALL_HEADINGS, self._calls())}"

    @property
    def _title(self) -> str:
        if not self.rows:
            return "No kernel is mapped to a layer of this model: nothing was measured."
        measured = [row for row in self.rows if row.kernel_seconds is not None]
        chosen = sum(row.chosen for row in self.rows)
        verb = "pays" if len(measured) == 1 else "pay"
        return f"{chosen} of {len(measured)} measured uses of a kernel {verb}"

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (
                row.module,
                row.layer,
                row.inputs,
                row.kernel,
                _time(row.own_seconds),
                _time(row.kernel_seconds),
                "-" if row.gain is None else f"{row.gain:.2f}",
                "; ".join(filter(None, ("chosen" if row.chosen else "", row.reason))),
            )
            for row in self.rows
        ]

    def _calls(self) -> list[tuple[str, ...]]:
        return [
            (str(number), _time(call.before), _time(call.after), f"{call.gain:.2f}")
            for number, call in enumerate(self.calls, 1)
        ]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
