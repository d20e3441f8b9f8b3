"""The job for the measuring process, and its answers: JSON, one message a line."""

from __future__ import annotations

import msgspec

from kernels.authoring.bench.report import WorkloadOutcome
from kernels.support.record_file import decode_json

__all__ = ["Ended", "Job", "Key", "Message", "Started", "Stopped", "WorkloadsListed", "decode", "encode"]

#: A workload: script, class, name.
Key = tuple[str, str, str]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure: the kernel (`path`, or `repo_id` and `revision`) on a device (`choice` as for `get_kernel`).

    The scripts are in `benchmarks` below `root`, and run in it. Workloads in `done` are left out.
    """

    path: str | None
    repo_id: str = ""
    revision: str | None = None
    trust: bool | list[str] = False
    backend: str
    choice: int | str | None
    device: str
    root: str
    iterations: int
    warmup: int
    done: list[Key] = []


class WorkloadsListed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The kernel is loaded and the scripts are read: the workloads that run next, and the scripts that failed."""

    workloads: list[Key]
    failed: list[WorkloadOutcome]
    notes: list[str]
    torch: str
    threads: int


class Started(msgspec.Struct, frozen=True, tag=True):
    """A workload begins."""

    key: Key


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A workload has ended."""

    outcome: WorkloadOutcome


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """Nothing can be measured: the kernel does not load, or (`device`) Torch does not have the device."""

    reason: str
    device: bool = False


Message = WorkloadsListed | Started | Ended | Stopped


def encode(message: Message) -> bytes:
    """A message as a line.

    Example:
        >>> decode(encode(Started(("benchmark_relu.py", "Relu", "small")))).key[2]
        'small'
    """
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> Message:
    """The message in a line; raises `ValueError` if it is not one."""
    message: Message = decode_json(line, Message)  # type: ignore[arg-type]
    return message
