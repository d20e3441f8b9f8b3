"""What a machine answers to the questions of a declared backend: is it there, which version, which architectures.

Nothing here raises for what a machine lacks: a question without an answer is a `NoAnswer`, to be told in a note.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernels.backends.plugins.json_schema import Detect, Query
from kernels.backends.plugins.torch_expression import follow_torch_path, parse_torch_path
from kernels.support import command as commands
from kernels.support.command import CommandFailed, run_command
from kernels.support.version import MajorMinor

__all__ = ["BEFORE_TORCH", "LOOK_SECONDS", "MAX_DEVICES", "Clock", "NoAnswer", "absence", "ask_archs", "ask_version"]

#: How long all questions of one look may take together; less than a probe may (`guard.PROBE_SECONDS`).
LOOK_SECONDS = 8.0

#: How long a pattern may take. A sensible one takes microseconds.
PATTERN_SECONDS = 2.0

#: How the answer to a question ends that Torch could not be asked yet.
BEFORE_TORCH = "is not known before torch is imported"

#: More devices than a machine has.
MAX_DEVICES = 1024

#: More characters than a version or an architecture has.
_MAX_GROUP = 80


class NoAnswer(Exception):
    """A question that a machine did not answer; the message is a note for a person."""


class Clock:
    """The time that is left for the questions of one look.

    Example:
        >>> 0 < Clock().seconds(5.0) <= 5.0
        True
    """

    def __init__(self) -> None:
        self._end = time.monotonic() + LOOK_SECONDS

    def seconds(self, most: float) -> float:
        """How long the next question may take.

        Raises:
            NoAnswer: No time is left.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise NoAnswer(f"not asked, as the questions before it took {LOOK_SECONDS:g} seconds")
        return min(most, left)


def absence(detect: Detect | None, clock: Clock) -> str | None:
    """Why a backend is not there, or None when it is.

    Args:
        detect: What tells; None where the backend is always there.
        clock: The time that is left.

    Example:
        >>> absence(Detect(module="json"), Clock()), absence(Detect(module="torch_of_nobody"), Clock())
        (None, "no module 'torch_of_nobody' is installed")
    """
    if detect is None:
        return None
    if detect.module:
        return None if _installed(detect.module) else f"no module {detect.module!r} is installed"
    if detect.library:
        return None if _library(detect.library) else f"no library {detect.library!r} is found"
    try:
        _run(detect.command, clock)
    except NoAnswer as error:
        return str(error)
    return None


def ask_version(query: str | Query, clock: Clock) -> MajorMinor:
    """A backend's version.

    Args:
        query: The version itself, or where the answer comes from.
        clock: The time that is left.

    Raises:
        NoAnswer: There is no answer, or it is no version `major.minor`: one number alone is none.

    Example:
        >>> str(ask_version("1.2.RC1", Clock()))
        '1.2'
    """
    if isinstance(query, str):
        text = query
    elif query.torch:
        answer = _ask_torch(query.torch, clock)
        text = ".".join(map(str, answer[:2])) if isinstance(answer, (tuple, list)) else str(answer)
    else:
        matches = _matches(query, clock, 1)
        text = ".".join(matches[0])
    version = MajorMinor.parse(text.strip())
    if version is None:
        raise NoAnswer(f"{_source(query)} answered {_cut(text)}, which is no version major.minor")
    return version


def ask_archs(query: tuple[str, ...] | Query, clock: Clock) -> list[str]:
    """The architecture of each device, as it was answered.

    Args:
        query: The architectures themselves, or where the answer comes from.
        clock: The time that is left.

    Raises:
        NoAnswer: There is no answer, or it is no text and no list of texts.

    Example:
        >>> ask_archs(("a100x", "a100x"), Clock())
        ['a100x', 'a100x']
    """
    if isinstance(query, tuple):
        return list(query)
    if query.torch:
        answer = _ask_torch(query.torch, clock)
        archs = [answer] if isinstance(answer, str) else answer
        if not isinstance(archs, (tuple, list)) or not all(isinstance(arch, str) for arch in archs):
            raise NoAnswer(f"{_source(query)} answered {_cut(answer)}, which is neither text nor a list of texts")
    else:
        archs = [groups[0] for groups in _matches(query, clock, MAX_DEVICES + 1)]
    if len(archs) > MAX_DEVICES:
        raise NoAnswer(f"{_source(query)} answered more than {MAX_DEVICES} architectures")
    return [arch.strip() for arch in archs]


def _source(query: str | Query | tuple[str, ...]) -> str:
    if not isinstance(query, Query):
        return "the file"
    return f"torch.{query.torch}" if query.torch else _cut(" ".join(query.command))


def _cut(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - an object of the vendor's
        text = f"a {type(value).__name__}"
    return text if len(text) <= _MAX_GROUP else text[: _MAX_GROUP - 1] + "…"


# Commands and patterns


def _run(command: tuple[str, ...], clock: Clock) -> str:
    try:
        return run_command(command, seconds=clock.seconds(commands.SECONDS))
    except CommandFailed as error:
        raise NoAnswer(str(error)) from None


#: Looks for a pattern, in a process of its own; prints the groups of each match.
_SEARCH = f"""
import itertools, json, re, sys
pattern, text, most = json.load(sys.stdin)
found = itertools.islice(re.finditer(pattern, text, re.MULTILINE), most)
print(json.dumps([[group and group[:{_MAX_GROUP}] for group in match.groups()] for match in found]))
"""


def _matches(query: Query, clock: Clock, most: int) -> list[list[str]]:
    """The groups of each match of a pattern in a command's output, at least one match and at most `most`.

    A pattern such as `(a+)+$` takes longer than anyone waits on the wrong text, and nothing can stop Python's `re`
    from within its process: not even another thread runs meanwhile. So it has a process of its own, which ends in time.
    """
    output = _run(query.command, clock)
    given = json.dumps([query.pattern, output, most]).encode()
    # `-I -S`: nothing but the standard library, so that it starts in some 15 ms.
    search = [_python(), "-I", "-S", "-c", _SEARCH]
    try:
        seconds = clock.seconds(PATTERN_SECONDS)
        found: list[list[str | None]] = json.loads(run_command(search, seconds=seconds, max_output=2**20, given=given))
    except CommandFailed as error:
        if isinstance(error, commands.CommandTimeout):
            why = f"takes longer than {seconds:g} seconds on the output of {_source(query)}"
        else:
            why = f"cannot be looked for: {error}"
        raise NoAnswer(f"the pattern {_cut(query.pattern)} {why}") from None
    matches = [[group for group in groups if group is not None] for groups in found]
    if not matches or not all(matches):
        raise NoAnswer(f"{_source(query)} printed {_cut(output.strip())}, where {_cut(query.pattern)} finds nothing")
    return matches


def _python() -> str:
    # What an application that embeds Python tells of its interpreter (`multiprocessing.set_executable`).
    from multiprocessing.spawn import get_executable

    executable = os.fsdecode(get_executable() or "")
    if not executable or getattr(sys, "frozen", False):
        raise NoAnswer("patterns are looked for by another Python process, and there is no interpreter to start")
    return executable


# Torch


def _ask_torch(path: str, clock: Clock) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", False):
        raise NoAnswer(f"torch.{path} {BEFORE_TORCH}")
    steps = parse_torch_path(path)
    seconds = clock.seconds(commands.SECONDS)
    try:
        return _within(seconds, lambda: follow_torch_path(steps, torch))
    except TimeoutError:
        raise NoAnswer(f"torch.{path} did not answer within {seconds:g} seconds") from None
    except Exception as error:  # noqa: BLE001 - whatever a vendor's module raises
        raise NoAnswer(f"torch.{path} failed with {type(error).__name__}: {_cut(str(error))}") from None


def _within(seconds: float, ask: Callable[[], Any]) -> Any:
    """An answer that comes in time; one that hangs in a driver cannot be ended, only left alone."""
    answers: list[Any] = []
    errors: list[Exception] = []

    def call() -> None:
        try:
            answers.append(ask())
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            errors.append(error)
        except BaseException as error:  # noqa: BLE001 - `sys.exit` would only end this thread, in silence
            errors.append(RuntimeError(type(error).__name__))

    thread = threading.Thread(target=call, name="kernels-torch-answer", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError
    return answers[0]


# What is installed


def _installed(module: str) -> bool:
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


#: What a library's file is called on Linux, macOS and Windows.
_LIBRARY_FILE = re.compile(
    r"(?:lib)?(?P<stem>.+?)(?:\.so(?P<so>(?:\.[0-9]+)*)|(?P<dylib>(?:\.[0-9]+)*)\.dylib|\.dll)", re.IGNORECASE
)


def _library(name: str) -> bool:
    """Whether the loader would find a shared library; it is not loaded, as its code would run then."""
    if os.path.isabs(name):
        return Path(name).is_file()
    file = _LIBRARY_FILE.fullmatch(name)
    stem, version = (file["stem"], file["so"] or file["dylib"] or "") if file is not None else (name, "")
    more = re.escape(version) + r"(?:\.[0-9]+)*"
    files = re.compile(rf"(?:lib)?{re.escape(stem)}(?:\.so{more}|{more}\.dylib|\.dll)", re.IGNORECASE)
    for variable in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PATH" if sys.platform == "win32" else ""):
        for folder in filter(None, os.environ.get(variable, "").split(os.pathsep)):
            try:
                if any(files.fullmatch(each) for each in os.listdir(folder)):
                    return True
            except OSError:
                continue
    try:
        found = ctypes.util.find_library(stem)
    except (OSError, ValueError):
        return False
    return found is not None and (not version or files.fullmatch(os.path.basename(found)) is not None)
