"""The pictures say what the software does, their text fits, and it is readable on light and on dark pages."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path
from xml.etree import ElementTree

import builds_picture
import cache_picture
import drawing
import inline_pictures
import kernelize_picture
import pictures
import pytest
import session
import session_picture
from doc_pages import PAGES, page_id, same_everywhere
from forked import Interpreter

from kernels import install_kernel

NAMESPACE = "{http://www.w3.org/2000/svg}"

_KERNELIZE = """
import json, os, sys
from torch import nn
from kernels import LayerRepository, kernelize, unkernelize, use_kernel_forward_from_hub

def made(layer):
    if not layer["mark"]:
        return nn.Linear(8, 8)
    # A kernel takes the parameters of the layer's own forward.
    forward = {
        "RMSNorm": lambda self, hidden_states: hidden_states,
        "SiluAndMul": lambda self, x: x,
    }[layer["mark"]]
    module = use_kernel_forward_from_hub(layer["mark"])(type(layer["type"], (nn.Module,), {"forward": forward}))()
    module.weight, module.variance_epsilon = None, 1e-6
    return module

model = nn.Module()
layers = json.loads(sys.argv[1])
for layer in layers:
    model.add_module(layer["name"], made(layer))
mapping = {
    layer["mark"]: {"cpu": LayerRepository(layer["repository"], layer_name=layer["mark"], version=1)}
    for layer in layers
    if layer["mark"]
}
before = [type(each).forward for each in model.children()]
state = list(model.state_dict())
report = kernelize(model.eval(), mapping, device="cpu", report=True)
print(json.dumps([[row.module, row.kernel] for row in report.rows if row.kernelized]))
assert list(model.state_dict()) == state
unkernelize(model)
assert [each.forward.__func__ for each in model.children()] == before
"""


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_picture_on_a_page_is_there_and_has_an_alternative_text(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = re.findall(r'<(?:img|source) [^>]*\b(?:src|srcset)="([^"]*)"', text)
    assert [each for each in files if not (page.parent / each).is_file()] == []
    alternatives = re.findall(r'<img [^>]*\balt="([^"]*)"', text) + re.findall(r"!\[([^\]]*)\]\(", text)
    assert [each for each in alternatives if len(each) < 30] == []


def test_every_picture_is_on_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = {Path(each).name for each in re.findall(r"images/[\w/-]+\.svg", text)}
    assert {path.name for path in pictures.files()} - shown == set()


def test_the_picture_of_kernelize_is_what_kernelize_does(
    reader: Path, interpreter: Interpreter, tmp_path: Path
) -> None:
    layers = json.dumps([layer._asdict() for layer in kernelize_picture.MODEL])
    done = interpreter.run(_KERNELIZE, tmp_path, layers, cwd=reader)
    assert done.returncode == 0, done.stderr
    shown = [[layer.name, layer.repository] for layer in kernelize_picture.MODEL if layer.mark]
    assert json.loads(done.stdout.splitlines()[-1]) == shown


def test_the_picture_of_the_cache_has_every_file_of_a_cache(reader: Path, isolated_env: Path) -> None:
    build = install_kernel("kernels-examples/rms-norm", version=1)
    cache = build.parents[4]
    shown = [
        (path if path.startswith(".locks") else f"kernels--*--*/{path}").replace("…", "*")
        for _, _, records in cache_picture.RECORDS.values()
        for path in (re.sub(r"<\w+>", "*", record.path) for record in records)
    ]
    found = [path.relative_to(cache).as_posix() for path in cache.rglob("*") if not path.is_dir()]
    assert len(found) > 5
    assert [path for path in found if not any(fnmatch(path, pattern) for pattern in shown)] == []


def test_each_machine_in_the_picture_chooses_another_build() -> None:
    chosen = [
        name
        for verdicts in builds_picture.decided().values()
        for name, verdict in verdicts.items()
        if verdict.verdict == "chosen"
    ]
    assert len(set(chosen)) == len(builds_picture.MACHINES)


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_every_box(scheme: int) -> None:
    """WCAG's contrast of 4.5 to 1, for the text and for the colour of a box's edge, which its heading has."""
    colour = {name: _luminance(pair[scheme]) for name, pair in drawing.COLOURS.items()}
    boxes = ["page", *drawing.KINDS]
    pairs = [(text, box) for box in boxes for text in ("ink", "soft")]
    pairs += [(f"{kind}-edge", box) for kind in drawing.KINDS if kind != "plain" for box in (kind, "page")]
    ratios = {
        pair: (max(colour[each] for each in pair) + 0.05) / (min(colour[each] for each in pair) + 0.05)
        for pair in pairs
    }
    assert {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("path", sorted(pictures.IMAGES.glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_one_file_that_loads_nothing_and_runs_nothing(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.tag == f"{NAMESPACE}svg"
    assert not [each for each in root.iter() if each.tag.removeprefix(NAMESPACE) in ("script", "image", "use")]
    assert [name for each in root.iter() for name in each.attrib if name.endswith(("href", "src"))] == []
    assert re.findall(r"@import|@font-face|url\(", text) == []


def test_a_word_that_is_too_wide_for_its_box_is_an_error() -> None:
    with pytest.raises(ValueError, match="is wider than"):
        drawing.wrap("Donaudampfschifffahrtsgesellschaft", 100)


def test_code_is_folded_after_a_slash() -> None:
    lines = drawing.wrap("`kernels--org--name/snapshots`", 160)
    assert ["".join(run.text for atom in line for run in atom) for line in lines] == [
        "kernels--org--name/",
        "snapshots",
    ]


def test_the_styles_of_a_picture_apply_to_it_alone_and_dark_where_the_site_is_dark() -> None:
    css = "text, .b { fill: red } @media (prefers-color-scheme: dark) { svg { --ink: white } } @keyframes k { to { } }"
    assert inline_pictures.scoped(css, "#p") == (
        '#p text, #p .b { fill: red }\n@media screen {\n[data-md-color-scheme="slate"] #p { --ink: white }\n}\n'
        "@keyframes k { to { } }"
    )


def test_the_recorded_session_is_what_the_commands_print_now(served: str) -> None:
    now = session.record(served, session.WIDTHS["wide"])
    recorded = session.read()["wide"]
    assert [screen.name for screen in recorded] == [screen.name for screen in now]
    for shown, printed in zip(recorded, now, strict=True):
        assert same_everywhere(session.comparable(shown)) == same_everywhere(session.comparable(printed)), (
            "run `make reference`"
        )


@pytest.mark.parametrize("path", session_picture.PATHS, ids=lambda path: path.name)
def test_the_picture_of_the_session_has_every_line_and_is_small(path: Path) -> None:
    text = session_picture.draw(path)
    assert len(text) < 60_000
    root = ElementTree.fromstring(text)
    shown = " ".join("".join(each.itertext()) for each in root.iter(f"{NAMESPACE}text")).split()
    screens = session.read()["narrow" if "narrow" in path.stem else "wide"]
    assert shown == [
        word for screen in screens for _, runs in screen.lines for run in runs for word in run.text.split()
    ]
    moves = "@keyframes" in text
    assert moves == ("still" not in path.stem)
    assert moves == ("prefers-reduced-motion" in text)
