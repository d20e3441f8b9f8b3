"""Measure a kernel, step by step.

A kernel is native code, which may crash or hang, so a separate process runs it. Outcomes that it has reported are kept
if it ends early, and a new process runs the remaining workloads.
"""

from __future__ import annotations

import hashlib
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

from kernels.authoring.bench.measured_kernel import MeasuredKernel, prepare_kernel
from kernels.authoring.bench.messages import Ended, Job, Key, Message, Started, Stopped, WorkloadsListed, decode
from kernels.authoring.bench.processor import processor_name
from kernels.authoring.bench.report import CRASHED, TIMED_OUT, Machine, Report, WorkloadOutcome
from kernels.authoring.bench.scripts import FOLDER, PATTERN
from kernels.errors import KernelImportError, RequestError

__all__ = ["measure"]

#: Until the kernel is loaded and the scripts are read: includes downloads and compilers.
LOADING_SECONDS = 900.0

#: How long a process that has reported everything may take to end.
_ENDING_SECONDS = 10.0

#: A message has a few hundred bytes; a longer line is not a message.
_MAX_LINE = 1 << 20

#: The other process finds modules where this one does. (`-m` would put the current folder before them.)
_START = "import sys; sys.path[:] = sys.argv[1:]; from kernels.authoring.bench.measure_process import main; main()"


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
    """Run the benchmarks of a kernel in a separate process.

    Args:
        kernel: A repository, `org/name`, or the path of a folder that holds `benchmarks` and builds.
        version: A major version.
        revision: A branch, a tag or a commit.
        backend: The backend to measure a build for; by default that of Torch's build.
        device: The device to measure on: an index, or Torch's name such as `cuda:1`; by default the current one.
        trust_remote_code: As for `get_kernel`; benchmarks are code too.
        iterations: Calls of each workload that are timed.
        warmup: Calls before them.
        seconds: Time limit of one workload.
        progress: Called with a workload's name when it begins.

    Returns:
        The measurement. A workload that fails, is wrong, hangs or crashes is one of the outcomes.

    Raises:
        RequestError: An argument is invalid, there are no benchmarks, or the device does not exist.
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
        raise RequestError(f"`seconds` is {seconds!r}; expected a number above 0, at most 86400 (a day).")
    options = {"version": version, "revision": revision, "backend": backend, "device": device}
    with prepare_kernel(kernel, **options, trust_remote_code=trust_remote_code) as found:  # type: ignore[arg-type]
        job = Job(
            path=None if found.path is None else str(found.path),
            repo_id=found.planned.snapshot.repo_id,
            revision=found.planned.snapshot.commit or None,
            trust=trust_remote_code if isinstance(trust_remote_code, bool) else list(trust_remote_code),
            backend=found.planned.backend,
            choice=device,
            device=found.device,
            root=str(found.root),
            iterations=iterations,
            warmup=warmup,
        )
        measurement = _Measurement(job, seconds, progress)
        measurement.run()
        return _report(found, measurement)


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"`{name}` is {value!r} ({type(value).__name__}); expected an int.")
    if not least <= value <= 1_000_000:
        raise RequestError(f"`{name}` is {value}; expected {least} to 1000000.")


def _report(found: MeasuredKernel, measurement: _Measurement) -> Report:
    from kernels._version import __version__

    listed = measurement.listed
    assert listed is not None
    planned = found.planned
    machine = Machine(
        target=str(found.target),
        backend=planned.backend,
        device=found.device,
        device_name=(planned.device.name if planned.device is not None else "") or processor_name(),
        torch=listed.torch,
        threads=listed.threads,
        python=platform.python_version(),
        kernels=__version__,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    return Report(
        kernel=found.kernel,
        commit=None if found.path is not None else planned.snapshot.commit,
        variant=planned.variant,
        machine=machine,
        iterations=measurement.job.iterations,
        warmup=measurement.job.warmup,
        outcomes=(*listed.failed, *(measurement.outcomes[key] for key in listed.workloads)),
        notes=(*found.notes, *listed.notes),
        id=planned.metadata.id,
        scripts_sha256=hashlib.sha256(
            b"".join(path.read_bytes() for path in sorted((found.root / FOLDER).glob(PATTERN)))
        ).hexdigest(),
    )


@dataclass
class _Measurement:
    """A measurement in progress: the workloads as the first process listed them, and the outcomes so far."""

    job: Job
    seconds: float
    progress: Callable[[str], object]
    listed: WorkloadsListed | None = None
    outcomes: dict[Key, WorkloadOutcome] = field(default_factory=dict)

    def run(self) -> None:
        """Start processes until every workload has an outcome."""
        while self.listed is None or self._left():
            known = len(self.outcomes)
            with _Worker(msgspec.structs.replace(self.job, done=list(self.outcomes))) as worker:
                problem = self._follow(worker)
                if not self._left():
                    worker.wait()
            if len(self.outcomes) == known:  # another process would not get further
                for key in self._left():
                    self.outcomes[key] = WorkloadOutcome.of(key, CRASHED, f"not run: {problem}")

    def _left(self) -> list[Key]:
        return [key for key in self.listed.workloads if key not in self.outcomes] if self.listed is not None else []

    def _follow(self, worker: _Worker) -> str:
        """Take a process's messages until every workload has an outcome, or it ends early; returns why it did."""
        running: Key | None = None
        limit = LOADING_SECONDS
        while self.listed is None or self._left():
            timed_out = False
            try:
                message = worker.messages.get(timeout=limit)
            except queue.Empty:
                message, timed_out = None, True
            if isinstance(message, Stopped):
                if message.device:
                    raise RequestError(f"Torch has no device {self.job.device!r} here: {message.reason}")
                raise KernelImportError(message.reason)
            if isinstance(message, WorkloadsListed):
                self.listed, limit = self.listed or message, self.seconds
                if not self.listed.workloads and not self.listed.failed:
                    kernel = self.job.path or self.job.repo_id
                    raise RequestError(f"{kernel} has nothing to measure: {'; '.join(message.notes)}.")
            elif isinstance(message, Started):
                running, limit = message.key, self.seconds
                self.progress(f"{message.key[1]}.{message.key[2]}")
            elif isinstance(message, Ended):
                if running is not None:
                    self.outcomes[running] = message.outcome
                running = None
            else:
                problem = f"it took longer than {limit:g} s" if timed_out else worker.ending()
                if running is not None:
                    verdict = TIMED_OUT if timed_out else CRASHED
                    self.outcomes[running] = WorkloadOutcome.of(running, verdict, problem)
                elif self.listed is None:
                    raise KernelImportError(f"While the kernel and its benchmarks were loaded, {problem}.")
                return problem
        return ""


class _Worker:
    """The measuring process; it and all that it started are killed when the `with` block ends."""

    def __init__(self, job: Job) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *(os.path.abspath(path) for path in sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=os.name == "posix",
        )
        #: The messages, and None after the last one.
        self.messages: queue.Queue[Message | None] = queue.Queue()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(msgspec.json.encode(job))
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        # What it has started can live on after a crash, and keep the pipe open.
        with suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        self._reader.join(_ENDING_SECONDS)

    def wait(self) -> None:
        """Let a process that has reported everything end in order: runtimes and profilers write files then."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING_SECONDS)

    def ending(self) -> str:
        """How the process ended."""
        try:
            status = self._process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            return "the process that runs it stopped answering"
        if status < 0:
            name = next((each.name for each in signal.Signals if each == -status), "")
            return f"the process that runs it was ended by signal {-status} {name}".rstrip()
        return f"the process that runs it ended with status {status}"

    def _read(self, stream: IO[bytes]) -> None:
        with stream, suppress(ValueError):
            while line := stream.readline(_MAX_LINE):
                self.messages.put(decode(line))
        self.messages.put(None)
