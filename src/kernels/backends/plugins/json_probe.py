"""What a declared backend asks of a machine: whether it is there, its version, the architectures of its devices.

A query without an answer is not an error: the probe says so, in a note and in what is unanswered.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kernels.backends.base import Unanswered
from kernels.backends.plugins.arch_rules import rule_reads
from kernels.backends.plugins.json_schema import Declaration, Detect, Query
from kernels.backends.plugins.torch_expression import follow_torch_path, parse_torch_path
from kernels.support import command as commands
from kernels.support.command import CommandFailed, run_command
from kernels.support.tasks import Task
from kernels.support.version import MajorMinor

__all__ = ["LOOK_SECONDS", "MAX_DEVICES", "DeclaredFacts", "DeclaredQueries"]

#: How long all queries of one probe may take together: less than `kernels.backends.probing.PROBE_SECONDS`.
LOOK_SECONDS = 8.0

#: How long a pattern may take. A sensible one takes microseconds.
PATTERN_SECONDS = 2.0

#: More devices than a machine has.
MAX_DEVICES = 1024

#: More characters than a version or an architecture has.
_MAX_GROUP = 80

#: How much of a command's output a note shows.
_MAX_LINES, _MAX_SHOWN = 10, 800


class NoAnswer(Exception):
    """A query that the machine did not answer; the message is a note for a person.

    Args:
        reason: The message.
        timed_out: Whether the time was over.
        of_torch: Whether Torch was asked.
    """

    def __init__(self, reason: str, *, timed_out: bool = False, of_torch: bool = False) -> None:
        super().__init__(reason)
        self.timed_out, self.of_torch = timed_out, of_torch


class TorchNotImported(NoAnswer):
    """Only Torch knows the answer, and it is not imported."""


class DeclaredFacts(NamedTuple):
    """What a machine has of a declared backend.

    Attributes:
        absent: Why the backend is not there, or None where it is.
        version: Its version, or None.
        archs: The architecture of each device, "" where it makes no sense; None where they are not known.
        notes: The queries without an answer, and why.
        needs_torch: Whether Torch, once imported, can answer more.
        unanswered: The same as `notes`, without those that Torch can answer later, or that say that it is absent.
    """

    absent: str | None = None
    version: MajorMinor | None = None
    archs: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    needs_torch: bool = False
    unanswered: tuple[Unanswered, ...] = ()

    def without(self, query: str, error: NoAnswer) -> DeclaredFacts:
        """The same with a query that got no answer."""
        failed = Unanswered(query, str(error), error.timed_out, error.of_torch)
        facts = self._replace(notes=(*self.notes, str(failed)))
        if isinstance(error, TorchNotImported):
            return facts._replace(needs_torch=True)
        return facts._replace(unanswered=(*self.unanswered, failed))


class DeclaredQueries:
    """The queries of a declaration, with the last answers: `get_kernel` needs the version at every call.

    Example:
        >>> queries = DeclaredQueries(Declaration(version="1.2", archs=("a100x",)))
        >>> queries.cached().version, queries.ask(str, "names").archs
        (MajorMinor(major=1, minor=2), ('a100x',))
    """

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self._cached: DeclaredFacts | None = None
        self._used = False

    def cached(self) -> DeclaredFacts:
        """Whether the backend was found, and its version; queried once."""
        return self._facts(_Clock())

    def ask(self, read: Callable[[str], str | None], expected: str) -> DeclaredFacts:
        """What the machine answers now.

        Args:
            read: Turns an architecture into the form of builds' lists; None where it cannot be read.
            expected: Which architectures can be read, for a person.
        """
        clock = _Clock()
        # Answers that no probe has used yet are as good as new: a command that hangs is waited for once.
        if self._used:
            self._cached = None
        facts = self._facts(clock)
        self._used = True
        query = self._declaration.archs
        if facts.absent is not None or query is None:
            return facts
        try:
            answers = _ask_archs(query, clock)
        except NoAnswer as error:
            return facts.without("architectures", error)
        # A device whose architecture makes no sense stays: those after it have the numbers that Torch gives them.
        archs = [(arch, read(arch)) for arch in answers]
        unread = [arch for arch, known in archs if known is None]
        facts = facts._replace(archs=tuple(known or "" for _, known in archs))
        if not unread:
            return facts
        hint = _hint(self._declaration, unread[0])
        return facts.without("architectures", NoAnswer(f"expected {expected}, got {_cut(unread[0])}{hint}"))

    def _facts(self, clock: _Clock) -> DeclaredFacts:
        facts = self._cached
        if facts is None:
            facts = self._ask(clock)
            if not facts.needs_torch:
                self._cached, self._used = facts, False
        return facts

    def _ask(self, clock: _Clock) -> DeclaredFacts:
        try:
            absent = _absence(self._declaration.detect, clock)
        except NoAnswer as error:  # it says neither that it is there nor that it is not
            return DeclaredFacts(str(error)).without("detect", error)
        if absent is not None:
            return DeclaredFacts(absent, notes=(f"not there: {absent}",))
        if self._declaration.version is None:
            return DeclaredFacts()
        try:
            return DeclaredFacts(version=_ask_version(self._declaration.version, clock))
        except NoAnswer as error:
            return DeclaredFacts().without("version", error)


def _hint(declaration: Declaration, arch: str) -> str:
    """What to change, so that an architecture can be read: the rule where it is spelled as architectures are."""
    if declaration.arch_rule is not None and rule_reads("exact", arch) and not rule_reads(declaration.arch_rule, arch):
        return ": choose another arch_rule, or a pattern that finds such a version"
    query = declaration.archs
    return ": narrow the pattern to that part" if isinstance(query, Query) and query.pattern else ""


class _Clock:
    """The time that is left for the queries of one probe."""

    def __init__(self) -> None:
        self._end = time.monotonic() + LOOK_SECONDS

    def seconds(self, most: float) -> float:
        """How long the next query may take; `NoAnswer` where no time is left."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise NoAnswer(f"not asked, as the queries before it took {LOOK_SECONDS:g} seconds")
        return min(most, left)


def _absence(detect: Detect | None, clock: _Clock) -> str | None:
    """Why a backend is not there, or None when it is; `NoAnswer` where its command hangs."""
    if detect is None:
        return None
    if detect.module:
        return None if _installed(detect.module) else f"no module {detect.module!r} is installed"
    if detect.library:
        return None if _library(detect.library) else f"no library {detect.library!r} is found"
    try:
        _run(detect.command, clock)
    except NoAnswer as error:
        if error.timed_out:
            raise
        return str(error)
    return None


def _ask_version(query: str | Query, clock: _Clock) -> MajorMinor:
    if isinstance(query, str):
        text = query
    elif query.torch:
        answer = _ask_torch(query.torch, clock)
        text = ".".join(map(str, answer[:2])) if isinstance(answer, (tuple, list)) else str(answer)
    else:
        text = ".".join(_matches(query, clock, 1)[0])
    version = MajorMinor.parse(text.strip())
    if version is None:
        raise NoAnswer(f"{_source(query)}: expected a version major.minor, got {_cut(text)}")
    return version


def _ask_archs(query: tuple[str, ...] | Query, clock: _Clock) -> list[str]:
    if isinstance(query, tuple):
        return list(query)
    if query.torch:
        answer = _ask_torch(query.torch, clock)
        archs = [answer] if isinstance(answer, str) else answer
        if not isinstance(archs, (tuple, list)) or not all(isinstance(arch, str) for arch in archs):
            raise NoAnswer(f"{_source(query)}: expected a str or a list of them, got {_cut(answer)}")
    else:
        archs = [groups[0] for groups in _matches(query, clock, MAX_DEVICES + 1)]
    if len(archs) > MAX_DEVICES:
        raise NoAnswer(f"{_source(query)} answered more than {MAX_DEVICES} architectures")
    return [arch.strip() for arch in archs]


def _source(query: str | Query) -> str:
    if not isinstance(query, Query):
        return "the file"
    return f"torch.{query.torch}" if query.torch else _cut(" ".join(query.command))


def _cut(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - an object of the vendor's
        text = f"a {type(value).__name__}"
    return text if len(text) <= _MAX_GROUP else text[: _MAX_GROUP - 1] + "…"


def _shown(output: str) -> str:
    """The beginning of what a command printed, on one line: enough to see which part a pattern must match."""
    lines = output.strip().splitlines()
    text = "\n".join(line.rstrip() for line in lines[:_MAX_LINES])
    said = repr(text[:_MAX_SHOWN])
    return said if len(text) <= _MAX_SHOWN and len(lines) <= _MAX_LINES else f"{said}…"


# Commands and patterns


def _run(command: tuple[str, ...], clock: _Clock) -> str:
    try:
        return run_command(command, seconds=clock.seconds(commands.SECONDS))
    except CommandFailed as error:
        raise NoAnswer(str(error), timed_out=isinstance(error, commands.CommandTimeout)) from None


#: Looks for a pattern in a process of its own, and prints the groups of each match.
_SEARCH = f"""
import itertools, json, re, sys
pattern, text, most = json.load(sys.stdin)
found = itertools.islice(re.finditer(pattern, text, re.MULTILINE), most)
print(json.dumps([[group and group[:{_MAX_GROUP}] for group in match.groups()] for match in found]))
"""


def _matches(query: Query, clock: _Clock, most: int) -> list[list[str]]:
    """The groups of each match of a pattern in a command's output, at least one match and at most `most`.

    A pattern such as `(a+)+$` may take hours on the wrong text, and Python's `re` lets no other thread run meanwhile:
    so it runs in another process, which can be ended.
    """
    output = _run(query.command, clock)
    given = json.dumps([query.pattern, output, most]).encode()
    # `-I -S`: nothing but the standard library, so that it starts in some 15 ms.
    search = [_python(), "-I", "-S", "-c", _SEARCH]
    try:
        seconds = clock.seconds(PATTERN_SECONDS)
        found: list[list[str | None]] = json.loads(run_command(search, seconds=seconds, max_output=2**20, given=given))
    except CommandFailed as error:
        slow = isinstance(error, commands.CommandTimeout)
        if slow:
            why = f"takes longer than {commands.rounded(seconds)} seconds on the output of {_source(query)}"
        else:
            why = f"cannot be looked for: {error}"
        raise NoAnswer(f"the pattern {_cut(query.pattern)} {why}", timed_out=slow) from None
    matches = [[group for group in groups if group is not None] for groups in found]
    if not matches or not all(matches):
        raise NoAnswer(f"{_source(query)} printed {_shown(output)}, where {_cut(query.pattern)} finds nothing")
    return matches


def _python() -> str:
    # What an application that embeds Python tells of its interpreter (`multiprocessing.set_executable`).
    from multiprocessing.spawn import get_executable

    executable = os.fsdecode(get_executable() or "")
    if not executable or getattr(sys, "frozen", False):
        raise NoAnswer("patterns are looked for by another Python process, and there is no interpreter to start")
    return executable


# Torch


def _ask_torch(path: str, clock: _Clock) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", False):
        raise TorchNotImported(f"torch.{path} is not known before torch is imported")
    steps = parse_torch_path(path)
    seconds = clock.seconds(commands.SECONDS)
    try:
        return Task(lambda: follow_torch_path(steps, torch), name="backend").result(seconds)
    except TimeoutError:
        why = f"torch.{path} did not answer within {commands.rounded(seconds)} seconds"
        raise NoAnswer(why, timed_out=True, of_torch=True) from None
    except Exception as error:  # noqa: BLE001 - whatever a vendor's module raises
        why = f"torch.{path} failed with {type(error).__name__}: {_cut(str(error))}"
        raise NoAnswer(why, of_torch=True) from None


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
