"""The measuring process: it loads the kernel, runs the workloads one after the other, and reports each."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from kernels.authoring.bench.messages import Ended, Job, Message, Started, Stopped, WorkloadsListed, encode
from kernels.authoring.bench.scripts import FOLDER, read_scripts
from kernels.authoring.bench.workload import run_workload, synchronizer
from kernels.support.formatting import format_error
from kernels.support.record_file import decode_json

__all__ = ["main", "work"]

#: The most characters of an error: a compiler's has many lines.
_MAX_REASON = 10_000


def main() -> None:
    """Do the job on standard input. Answers go to standard output; everything else that is printed to standard error.

    The redirection is below `sys.stdout`, so that it covers C libraries too.
    """
    own = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    sys.dont_write_bytecode = True  # a kernel's folder stays as it is
    logging.getLogger("kernels").setLevel(logging.ERROR)  # the parent process has logged the warnings
    job = decode_json(sys.stdin.buffer.read(), Job)
    sys.argv = [sys.argv[0]]
    work(job, lambda message: own.write(encode(message)))


def work(job: Job, send: Callable[[Message], object]) -> None:
    """Do a job, and send a message for each step."""
    import torch

    try:
        synchronizer(job.device)
        torch.empty(1, device=job.device)
    except Exception as error:  # noqa: BLE001 - each vendor's Torch raises its own errors here
        send(Stopped(f"{type(error).__name__}: {error}", device=True))
        return
    try:
        kernel = _load(job)
    except Exception as error:  # noqa: BLE001 - also what the kernel's own code raises
        send(Stopped(format_error(error, _MAX_REASON)))
        return
    # After the load: paths in the environment are relative to where the command was called.
    os.chdir(job.root)
    scripts = read_scripts(Path(job.root) / FOLDER)
    due = [workload for workload in scripts.workloads if workload.key not in job.done]
    send(
        WorkloadsListed(
            workloads=[workload.key for workload in due],
            failed=list(scripts.failed),
            notes=list(scripts.notes),
            torch=str(torch.__version__),
            threads=torch.get_num_threads(),
        )
    )
    for workload in due:
        send(Started(workload.key))
        outcome = run_workload(workload, kernel, job.device, iterations=job.iterations, warmup=job.warmup)
        send(Ended(outcome))


def _load(job: Job) -> ModuleType:
    from kernels import api

    if job.path is not None:
        return api.get_local_kernel(job.path, backend=job.backend, trust_remote_code=job.trust, device=job.choice)
    return api.get_kernel(
        job.repo_id, revision=job.revision, backend=job.backend, trust_remote_code=job.trust, device=job.choice
    )
