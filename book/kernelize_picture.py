"""The picture of `kernelize`: a model before and after."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from drawing import SMALL, Arrow, Box, Canvas, Gap, Part, Row, Stack, Words
from picture import Picture

__all__ = ["MODEL", "PICTURE"]


class Layer(NamedTuple):
    """A layer of the model in the picture: its name in the model, its class, and its name in the mapping."""

    name: str
    type: str
    mark: str = ""
    repository: str = ""


MODEL = (
    Layer("norm", "RMSNorm", "RMSNorm", "kernels-examples/rms-norm"),
    Layer("up", "nn.Linear"),
    Layer("act", "SiluAndMul", "SiluAndMul", "kernels-examples/silu-and-mul"),
    Layer("down", "nn.Linear"),
)


def _kernelize(narrow: bool) -> Part:
    before: list[Part] = [Words("Before", "soft", bold=True)]
    mapping: list[Part] = [Words("Mapping", "hub", bold=True)]
    after: list[Part] = [Words("After", "main", bold=True)]
    for layer in MODEL:
        head = Words(f"`{layer.name}` **{layer.type}**")
        mark = Words(f"marked `{layer.mark}`" if layer.mark else "no mark", "soft", SMALL)
        own = Words("its own forward", size=SMALL)
        before.append(Box([head, mark, own], name=f"before {layer.name}"))
        if layer.mark:
            kernel = Words(f"`{layer.repository}`", size=SMALL)
            on = Words(f"`{layer.mark}` on `cpu`", size=SMALL)
            mapping.append(Box([on, kernel, Words("version 1", size=SMALL)], "hub", f"mapped {layer.name}"))
            ran = [Words("runs the forward of", size=SMALL), Words(f"`{layer.repository}`", "main", SMALL)]
            after.append(Box([head, *ran], "main", f"after {layer.name}"))
        else:
            after.append(Box([head, own, Words("unchanged", "soft", SMALL)], name=f"after {layer.name}"))
    steps = Box(
        [
            Words("`kernelize(model, mapping)`", "main"),
            Words("1. finds the marked layers", size=SMALL),
            Words("2. downloads and checks all kernels", size=SMALL),
            Words("3. compares them with their layers", size=SMALL),
            Words("4. only then replaces the forwards", size=SMALL),
        ],
    )
    back = Words("`unkernelize(model)` restores every forward.")
    same = Words("The classes, the parameters and the `state_dict` never change.", "soft", SMALL)
    if narrow:
        columns = [Stack(before, gap=6), Arrow(), Stack(mapping, gap=6), Gap(8), steps, Arrow(), Stack(after, gap=6)]
        return Stack([*columns, Arrow(), Box([back, same])])
    columns = [Stack(before, gap=8), Stack([*mapping, steps], gap=8), Stack(after, gap=8)]
    return Stack([Row(columns, (156, 242, 242), gap=28), Gap(22), Box([back, same], name="back")])


def _kernelize_lines(canvas: Canvas, narrow: bool) -> None:
    if narrow:
        return
    places = canvas.places
    for layer in MODEL:
        if layer.mark:
            names = [f"{column} {layer.name}" for column in ("before", "mapped", "after")]
            for left, right in pairwise(places[name] for name in names):
                turn = (left.x + left.width + right.x) / 2
                canvas.path(
                    [
                        (left.x + left.width + 2, left.middle),
                        (turn, left.middle),
                        (turn, right.middle),
                        (right.x - 2, right.middle),
                    ]
                )
    back = places["back"]
    for column, down in (("after", True), ("before", False)):
        last = places[f"{column} {MODEL[-1].name}"]
        ends = [(last.x + 24, last.y + last.height + 2), (last.x + 24, back.y - 2)]
        canvas.path(ends if down else ends[::-1])


def _kernelize_says() -> str:
    marked = [layer for layer in MODEL if layer.mark]
    own = [layer.name for layer in MODEL if not layer.mark]
    return (
        f"A model of {len(MODEL)} layers, before and after kernelize. Before, each layer runs its own forward; "
        + " and ".join(f"{layer.name} is marked {layer.mark}" for layer in marked)
        + ". The mapping names a kernel for each mark and device: "
        + ", ".join(f"{layer.mark} on cpu is {layer.repository} version 1" for layer in marked)
        + ". kernelize finds the marked layers, downloads and checks all kernels, compares them with their "
        "layers, and only then replaces the forwards. After, "
        + " and ".join(f"{layer.name} runs the forward of {layer.repository}" for layer in marked)
        + f"; {' and '.join(own)} run their own. unkernelize restores every forward. The classes, the parameters and "
        "the state_dict never change."
    )


PICTURE = Picture("A model before and after kernelize", _kernelize_says(), _kernelize, _kernelize_lines)
