"""The recorded terminal session: what three commands print, typed in a loop, as SVG.

`python book/session.py` runs the commands against a Hub in this process, in a terminal of a known width, and writes
what they print to `book/session.json`; a test compares that with what they print now. `session_picture.py` draws it.
Commits, sizes and versions are those of the last recording: a new one is kept only if something else has changed.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text

__all__ = ["RECORDING", "WIDTHS", "Run", "Screen", "comparable", "read", "record"]

ROOT = Path(__file__).parents[1]
RECORDING = Path(__file__).with_suffix(".json")

#: The columns of the terminal, on a page and on a phone.
WIDTHS = {"wide": 88, "narrow": 45}

#: The variable is misspelled, so that `kernels doctor` finds something.
_ENVIRONMENT = {"KERNELS_REFESH": "60"}

#: Who is at the terminal.
_HOME = "/home/ada"

_EXPLAIN = (
    "kernels explain kernels-examples/rms-norm \\",
    "  --version 1 \\",
    "  --target torch2.13-cu130-x86_64-linux+sm_90",
)
_STATEMENTS = ("print(kernelize(model, mapping, report=True))", "model = unkernelize(model)")
_DOCTOR = "kernels doctor"

_MODEL = """
import torch
from torch import nn
from kernels import LayerRepository, Mode, kernelize, unkernelize, use_kernel_forward_from_hub

@use_kernel_forward_from_hub("RMSNorm")
class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = 1e-6

    def forward(self, hidden_states):
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * hidden_states * torch.rsqrt(variance + self.variance_epsilon)

@use_kernel_forward_from_hub("SiluAndMul")
class SiluAndMul(nn.Module):
    def forward(self, x):
        gate, up = x.chunk(2, dim=-1)
        return nn.functional.silu(gate) * up

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.act, self.down = RMSNorm(64), nn.Linear(64, 128), SiluAndMul(), nn.Linear(64, 64)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))

model = nn.Sequential(*(Block() for _ in range(16))).eval()
rms_norm = LayerRepository("kernels-examples/rms-norm", layer_name="RMSNorm", version=1)
silu_and_mul = LayerRepository("kernels-examples/silu-and-mul", layer_name="SiluAndMul", version=1)
mapping = {
    "RMSNorm": {"cpu": {Mode.INFERENCE: rms_norm}},
    "SiluAndMul": {"cpu": {Mode.INFERENCE: silu_and_mul}},
}
"""

#: Runs statements as an interactive session does, after a mark for each.
_INTERACTIVE = """
import sys
exec(sys.argv[1])
for statement in sys.argv[2:]:
    print("\\x1e", end="", flush=True)
    exec(compile(statement, "<stdin>", "single"))
"""


class Run(NamedTuple):
    """Text of one look: "", or of `bold`, `dim`, `green`, `red`, `yellow`, `prompt`, with a space between them."""

    text: str
    look: str = ""


#: A line that was typed after a prompt of some characters, or after none (-1), or (0) one that was printed.
Line = tuple[int, list[Run]]


class Screen(NamedTuple):
    """What a terminal shows at one time: a name, and lines."""

    name: str
    lines: list[Line]


def record(hub: str, columns: int) -> list[Screen]:
    """Run the commands in a terminal of some columns.

    Args:
        hub: The URL of a Hub with the example kernels, whose publisher it trusts.
        columns: The width.
    """
    with tempfile.TemporaryDirectory() as home:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KERNELS_", "HF_", "XDG_")) and name not in ("NO_COLOR", "COLUMNS", "LINES")
        }
        environment |= {"HOME": home, "KERNELS_HUB": hub, "TERM": "xterm-256color", "PYTHONWARNINGS": "ignore"}

        def run(*arguments: str, **more: str) -> str:
            text = _in_terminal([sys.executable, *arguments], {**environment, **more}, columns)
            for real, shown in _shown_places(home, hub).items():
                text = text.replace(real, shown)
            return text

        explained = run("-m", "kernels", *" ".join(_EXPLAIN).replace("\\", "").split()[1:])
        swapped = run("-c", _INTERACTIVE, _MODEL, *_STATEMENTS).split("\x1e")[1:]
        examined = run("-m", "kernels", *_DOCTOR.split()[1:], **_ENVIRONMENT)
    return [
        Screen(
            "kernels explain",
            [_typed("$ ", _EXPLAIN[0], columns)[0]]
            + [line for text in _EXPLAIN[1:] for line in _typed("", text, columns)]
            + _printed(explained, columns),
        ),
        Screen(
            "kernelize",
            _typed("$ ", "python -i model.py", columns)
            + [
                line
                for statement, text in zip(_STATEMENTS, swapped, strict=True)
                for line in [*_typed(">>> ", statement, columns), *_printed(text, columns)]
            ],
        ),
        Screen(
            "kernels doctor",
            [line for name, value in _ENVIRONMENT.items() for line in _typed("$ ", f"export {name}={value}", columns)]
            + _typed("$ ", _DOCTOR, columns)
            + _printed(examined, columns),
        ),
    ]


def _in_terminal(command: list[str], environment: dict[str, str], columns: int) -> str:
    """What a command prints on a terminal; what it prints on standard error is left out."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE, env=environment, cwd=ROOT
    ) as process:
        os.close(theirs)
        printed = bytearray()
        while True:
            try:
                block = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not block:
                break
            printed += block
        os.close(ours)
        assert process.stderr is not None
        problems = process.stderr.read().decode()
    if not printed:
        raise RuntimeError(f"{command[1:4]} printed nothing: {problems}")
    return printed.decode().replace("\r\n", "\n")


def _shown_places(home: str, hub: str) -> dict[str, str]:
    """What is shown in the place of this machine's own folders and ports."""
    import kernels

    package = str(Path(kernels.__file__).parent)
    source = str(Path(kernels.__file__).parents[2])
    places = {home: _HOME, hub: "http://127.0.0.1:8910", sys.prefix: f"{_HOME}/kernels/.venv"}
    return places | {package: f"{_HOME}/kernels/src/kernels", source: f"{_HOME}/kernels"}


def _typed(prompt: str, text: str, columns: int) -> list[Line]:
    """A line that was typed; the terminal breaks it where it ends."""
    whole = prompt + text
    lines: list[Line] = []
    for begin in range(0, len(whole), columns):
        part = whole[begin : begin + columns]
        if begin or not prompt:
            lines.append((-1, [Run(part, "typed")]))
        else:
            lines.append((len(prompt), [Run(prompt, "prompt"), Run(part[len(prompt) :], "typed")]))
    return lines


def _printed(text: str, columns: int) -> list[Line]:
    """What was printed, as lines of the terminal."""
    lines: list[Line] = []
    for each in Text.from_ansi(text.rstrip("\n")).split("\n", allow_blank=True):
        runs: list[Run] = []
        for segment in each.render(_console()):
            if segment.text.strip("\n"):
                runs.append(Run(segment.text.strip("\n"), _look(segment.style)))
        lines += [(0, part) for part in _broken(runs, columns)]
    return lines if text.strip() else []


def _console() -> Any:
    from rich.console import Console

    return Console(width=1000, color_system="standard", force_terminal=True)


def _look(style: Any) -> str:
    looks = [name for name in ("bold", "dim") if getattr(style, name, None)]
    if style is not None and style.color is not None:
        looks.append({1: "red", 2: "green", 3: "yellow"}[style.color.number])
    return " ".join(looks)


def _broken(runs: list[Run], columns: int) -> list[list[Run]]:
    """A line broken at the last column, as a terminal does."""
    lines: list[list[Run]] = [[]]
    room = columns
    for text, look in runs:
        while text:
            if not room:
                lines.append([])
                room = columns
            lines[-1].append(Run(text[:room], look))
            text, room = text[room:], room - len(text[:room])
    return lines


def read() -> dict[str, list[Screen]]:
    """The recording, by the name of the width."""
    recorded = json.loads(RECORDING.read_text(encoding="utf-8"))
    return {
        width: [
            Screen(screen["name"], [(prompt, [Run(*run) for run in runs]) for prompt, runs in screen["lines"]])
            for screen in screens
        ]
        for width, screens in recorded.items()
    }


def comparable(screen: Screen) -> str:
    """The text of a screen, of `kernels doctor` without what differs from machine to machine."""
    lines = ["".join(run.text for run in runs) for _, runs in screen.lines]
    if screen.name != "kernels doctor":
        return "\n".join(lines)
    own = ("$", "kernels", "python", "system", "backends", "target", "cache", "hub", "variables", "problems")
    kept = [line.split()[0] for line in lines if line[:1].strip() and line.startswith(own)]
    found = re.findall(r"variables: KERNELS_REFESH.*|> Did you mean .*", "\n".join(lines))
    return "\n".join([*kept, *found])


def main() -> None:
    """Record the session."""
    sys.path.insert(0, str(ROOT / "tests" / "fixtures"))
    from doc_pages import same_everywhere
    from example_kernels import example_builder

    from kernels.server import HubServer

    builder = example_builder()
    with tempfile.TemporaryDirectory() as folder:
        builder.build_examples(Path(folder), noarch_only=True)
        with HubServer(Path(folder), trusted=[builder.PUBLISHER]) as hub:
            recorded = {name: record(hub.url, columns) for name, columns in WIDTHS.items()}

    def said(screens: dict[str, list[Screen]]) -> list[str]:
        return [same_everywhere(comparable(each)) for name in WIDTHS for each in screens[name]]

    if "--anew" not in sys.argv[1:] and RECORDING.is_file() and said(read()) == said(recorded):
        return
    plain = {name: [screen._asdict() for screen in screens] for name, screens in recorded.items()}
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    RECORDING.write_text(re.sub(r"(?<=\]\]\]),(?=\[)", ",\n", text) + "\n", encoding="utf-8")
    print(f"written: {RECORDING.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
