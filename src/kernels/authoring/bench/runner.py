"""Measuring a kernel: the steps, in a row.

A kernel is native code, which may crash or hang: another process does the work. What it has said stays known when it
ends early, and a new one goes on with the workloads that are left.
"""

from __future__ import annotations

import os
import platform
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import IO

import msgspec

from kernels.authoring.bench.messages import Ended, Job, Key, Listed, Message, Started, Stopped, decode
from kernels.authoring.bench.report import CRASHED, TIMED_OUT, Machine, Outcome, Report
from kernels.authoring.bench.subject import Subject, subject
from kernels.errors import KernelImportError, RequestError

__all__ = ["measure"]

#: Until the kernel is loaded and the scripts are read: downloads and compilers may be at work meanwhile.
LOADING_SECONDS = 900.0

#: Until a process that has said everything has ended as well.
_ENDING_SECONDS = 10.0

#: A message is a few hundred bytes; a longer line is none.
_MAX_LINE = 1 << 20

#: The other process finds modules where this one does. (`-m` would put the current folder before them.)
_START = "import sys; sys.path[:] = sys.argv[1:]; from kernels.authoring.bench.child import main; main()"


def measure(
    kernel: str | os.PathLike[str],
    *,
    version: int | None = None,
    revision: str | None = None,
    backend: str | None = None,
    device: int | str | None = None,
    trust_remote_code: bool | Sequence[str] = False,
    iterations: int = 100,
    warmup: int = 10,
    seconds: float = 300.0,
    progress: Callable[[str], object] = lambda text: None,
) -> Report:
    """Run the benchmarks of a kernel, in a process of its own.

    Args:
        kernel: A repository, `org/name`, or the path of a folder that holds `benchmarks` and builds.
        version: A major version.
        revision: A branch, a tag or a commit.
        backend: The backend to measure a build for; the default follows Torch's build.
        device: The device to measure on: an index, or Torch's name such as `cuda:1`; default the current one.
        trust_remote_code: As for `get_kernel`: benchmarks are code as well.
        iterations: Calls of each workload that are timed.
        warmup: Calls before them.
        seconds: A workload that takes longer than this, in all, is given up.
        progress: Takes a line when a workload begins.

    Returns:
        What was measured; a workload that fails, is wrong, hangs or crashes is one of the outcomes.

    Raises:
        RequestError: An argument is not what is allowed, there are no benchmarks, or the device is not there.
        KernelImportError: The kernel could not be loaded.
        KernelsError: As for `get_kernel`.

    Example:
        ```python
        report = measure("kernels-community/activation", version=1)
        for outcome in report.outcomes:
            print(outcome.name, outcome.verdict, outcome.times)
        ```
    """
    _check_count("iterations", iterations, 1)
    _check_count("warmup", warmup, 0)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= 86400:
        raise RequestError(f"`seconds` is {seconds!r}; allowed is a number above 0, and at most 86400 (a day).")
    options = {"version": version, "revision": revision, "backend": backend, "device": device}
    with subject(kernel, **options, trust_remote_code=trust_remote_code) as found:  # type: ignore[arg-type]
        trust = trust_remote_code if isinstance(trust_remote_code, bool) else list(trust_remote_code)
        job = Job(
            path=None if found.path is None else str(found.path),
            repo_id=found.planned.snapshot.repo_id,
            revision=found.planned.snapshot.commit or None,
            trust=trust,
            backend=found.planned.backend,
            choice=device,
            device=found.device,
            root=str(found.root),
            iterations=iterations,
            warmup=warmup,
        )
        course = _Course(job, seconds, progress)
        course.run()
        return _report(found, course)


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"`{name}` is {value!r}, a {type(value).__name__}; allowed is a number.")
    if not least <= value <= 1_000_000:
        raise RequestError(f"`{name}` is {value}; allowed is {least} to 1000000.")


def _report(found: Subject, course: _Course) -> Report:
    from kernels import __version__

    assert course.listed is not None
    planned = found.planned
    name = planned.device.name if planned.device is not None else ""
    machine = Machine(
        target=str(found.target),
        backend=planned.backend,
        device=found.device,
        device_name=name or _processor(),
        torch=course.listed.torch,
        threads=course.listed.threads,
        python=platform.python_version(),
        kernels=__version__,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    return Report(
        kernel=found.kernel,
        commit=None if found.path is not None else planned.snapshot.commit,
        variant=planned.variant,
        machine=machine,
        iterations=course.job.iterations,
        warmup=course.job.warmup,
        outcomes=(*course.listed.failed, *(course.outcomes[key] for key in course.listed.workloads)),
        notes=(*found.notes, *course.listed.notes),
    )


def _processor() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@dataclass
class _Course:
    """A measurement under way: the first list of workloads, and what is known of each."""

    job: Job
    seconds: float
    progress: Callable[[str], object]
    listed: Listed | None = None
    outcomes: dict[Key, Outcome] = field(default_factory=dict)

    def run(self) -> None:
        """Start processes until every workload has an outcome."""
        while True:
            known = len(self.outcomes)
            with _Process(msgspec.structs.replace(self.job, done=list(self.outcomes))) as process:
                problem = self._follow(process)
                left = self._left()
                if not left:
                    process.end()
            if not left:
                return
            if len(self.outcomes) == known:  # no further process would come further
                for key in left:
                    self._end(key, CRASHED, f"not run: {problem}")
                return

    def _left(self) -> list[Key]:
        assert self.listed is not None
        return [key for key in self.listed.workloads if key not in self.outcomes]

    def _follow(self, process: _Process) -> str:
        """Take a process's messages until it ends; returns how it ended, where it had not run everything."""
        running: Key | None = None
        limit = LOADING_SECONDS
        while True:
            message = process.next(limit)
            if isinstance(message, Stopped):
                raise self._refusal(message)
            if isinstance(message, Listed):
                self._list(message)
                limit = self.seconds
            elif isinstance(message, Started):
                running, limit = message.key, self.seconds
                self.progress(f"{message.key[1]}.{message.key[2]}")
            elif isinstance(message, Ended):
                if running is not None:
                    self.outcomes[running] = message.outcome
                running = None
            else:
                hung = message == _HUNG
                problem = f"it took longer than {limit:g} s" if hung else process.ending()
                if running is not None:
                    self._end(running, TIMED_OUT if hung else CRASHED, problem)
                elif self.listed is None:
                    raise KernelImportError(f"While the kernel and its benchmarks were loaded, {problem}.")
                return problem
            if self.listed is not None and not self._left():
                return ""

    def _list(self, message: Listed) -> None:
        if self.listed is not None:
            return
        self.listed = message
        if not message.workloads and not message.failed:
            raise RequestError(
                f"{self.job.path or self.job.repo_id} has nothing to measure: {'; '.join(message.notes)}."
            )

    def _refusal(self, message: Stopped) -> Exception:
        if message.device:
            return RequestError(f"Torch has no device {self.job.device!r} here: {message.reason}")
        return KernelImportError(message.reason)

    def _end(self, key: Key, verdict: str, reason: str) -> None:
        script, benchmark, workload = key
        self.outcomes[key] = Outcome(
            script=script, benchmark=benchmark, workload=workload, verdict=verdict, reason=reason
        )


#: Instead of a message: none came in time, or none will come.
_HUNG, _GONE = "hung", "gone"


class _Process:
    """The process that measures, ended with all it started when this is left."""

    def __init__(self, job: Job) -> None:
        paths = [os.path.abspath(path) for path in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=os.name == "posix",
        )
        self._messages: queue.Queue[Message | str] = queue.Queue()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(msgspec.json.encode(job))
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._process.wait()
        self._reader.join(_ENDING_SECONDS)

    def next(self, seconds: float) -> Message | str:
        """The next message, or what there is instead of one after some seconds."""
        try:
            return self._messages.get(timeout=seconds)
        except queue.Empty:
            return _HUNG

    def ending(self) -> str:
        """How a process ended that says nothing more."""
        try:
            status = self._process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            return "the process that runs it stopped answering"
        if status < 0:
            name = next((each.name for each in signal.Signals if each == -status), "")
            return f"the process that runs it was ended by signal {-status}{' ' * bool(name)}{name}"
        return f"the process that runs it ended with status {status}"

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(_MAX_LINE):
                try:
                    self._messages.put(decode(line))
                except ValueError:
                    break
        self._messages.put(_GONE)

    def end(self) -> None:
        """Give a process that has said everything the time to end in order: runtimes and profilers write files then."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING_SECONDS)

    def _kill(self) -> None:
        if self._process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            if os.name == "posix":
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
