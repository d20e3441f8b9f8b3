"""Measuring in a process of its own: what is found, and what is known when that process ends early."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub

from kernels.authoring.bench import measure, measured_kernel, runner
from kernels.errors import (
    BackendUnavailable,
    InvalidRepository,
    KernelImportError,
    RepositoryNotFound,
    RequestError,
    UntrustedPublisher,
)

pytest.importorskip("torch")

GOOD = """
import torch
from kernels.benchmark import Benchmark

class Double(Benchmark):
    def setup(self):
        self.x = torch.ones(4, device=self.device)

    def benchmark_four(self):
        self.out = self.kernel.double(self.x)

    def verify_four(self):
        return 2 * self.x
"""


def test_a_folder_is_measured_and_left_as_it_was(make_kernel: Callable[..., Path]) -> None:
    folder = make_kernel(benchmark_double=GOOD + "\nimport os\nassert os.path.isdir('benchmarks')\nprint('hello')\n")
    before = sorted(folder.rglob("*"))
    begun: list[str] = []
    report = measure(folder, iterations=3, warmup=1, progress=begun.append)
    [outcome] = report.outcomes
    assert (outcome.name, outcome.verdict, outcome.verified, outcome.reason) == ("Double.four", "ok", True, "")
    assert outcome.times is not None
    assert outcome.times.calls == 3
    assert (report.kernel, report.commit, report.variant) == (str(folder), None, "torch-cpu")
    assert (report.machine.backend, report.machine.device, report.iterations) == ("cpu", "cpu", 3)
    assert report.machine.device_name
    assert report.machine.threads >= 1
    assert begun == ["Double.four"]
    assert sorted(folder.rglob("*")) == before


def test_a_crash_or_a_hang_is_one_workloads_outcome_and_the_others_are_run(make_kernel: Callable[..., Path]) -> None:
    folder = make_kernel(
        benchmark_a="""
            import os, time
            from kernels.benchmark import Benchmark

            class Bad(Benchmark):
                def benchmark_before(self): ...
                def benchmark_killed(self): os.kill(os.getpid(), 9)
                def benchmark_hangs(self): time.sleep(1000)
                def benchmark_after(self): ...
        """
    )
    report = measure(folder, iterations=1, warmup=0, seconds=2)
    assert [(outcome.workload, outcome.verdict) for outcome in report.outcomes] == [
        ("before", "ok"), ("killed", "crashed"), ("hangs", "timed out"), ("after", "ok"),
    ]  # fmt: skip
    reasons = [outcome.reason for outcome in report.outcomes]
    assert reasons[1].endswith("was ended by signal 9 SIGKILL")
    assert reasons[2] == "it took longer than 2 s"


def test_workloads_are_not_run_forever_where_no_process_gets_to_them(make_kernel: Callable[..., Path]) -> None:
    """The scripts can be read only once, so the process after the crash ends before it has begun."""
    folder = make_kernel(
        benchmark_a="""
            import os
            from kernels.benchmark import Benchmark
            if os.path.exists("read"):
                os._exit(4)
            open("read", "w").close()

            class Bad(Benchmark):
                def benchmark_killed(self): os._exit(3)
                def benchmark_after(self): ...
        """
    )
    [killed, after] = measure(folder, iterations=1, warmup=0).outcomes
    assert killed.reason.endswith("ended with status 3")
    assert (after.verdict, after.reason) == ("crashed", "not run: the process that runs it ended with status 4")


@pytest.mark.usefixtures("in_process")
def test_a_kernel_of_a_hub_is_measured_at_one_commit_with_the_scripts_of_that_commit(hub: TestHub) -> None:
    hub.trusted = {"acme"}
    hub.make_repo(files={"benchmarks/benchmark_double.py": GOOD, "benchmarks/shared.txt": "x", "README.md": "y"})
    report = measure("acme/relu", version=1, iterations=1, warmup=0)
    assert [outcome.verdict for outcome in report.outcomes] == ["ok"]
    assert (report.kernel, report.commit, report.variant) == ("acme/relu", hub.commit(), "torch-cpu")
    assert hub.count("README") == 0


@pytest.mark.usefixtures("in_process")
def test_scripts_of_a_publisher_who_is_not_trusted_are_not_fetched(hub: TestHub) -> None:
    hub.make_repo("stranger/relu", files={"benchmarks/benchmark_double.py": GOOD})
    with pytest.raises(UntrustedPublisher, match="stranger/relu is refused"):
        measure("stranger/relu", version=1)
    assert hub.count("benchmark_double") == 0
    report = measure("stranger/relu", version=1, trust_remote_code=["stranger/relu"], iterations=1, warmup=0)
    assert report.ok


def test_what_is_on_disk_is_no_leave_to_fetch_scripts_nobody_vouches_for(
    hub: TestHub, new_process: Callable[[], None]
) -> None:
    from kernels import install_kernel

    hub.make_repo("stranger/relu", files={"benchmarks/benchmark_double.py": GOOD})
    install_kernel("stranger/relu", version=1, trust_remote_code=True)
    new_process()
    hub.fail("/api/organizations/")
    with pytest.raises(UntrustedPublisher, match="could not be asked"):
        measure("stranger/relu", version=1)
    assert hub.count("benchmark_double") == 0


@pytest.mark.usefixtures("in_process")
def test_a_local_kernel_stands_in_for_a_repository(
    make_kernel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, isolated_env: Path
) -> None:
    folder = make_kernel(benchmark_double=GOOD)
    monkeypatch.setenv("LOCAL_KERNELS", f"acme/relu={folder}")
    report = measure("acme/relu", version=1, iterations=1, warmup=0)
    assert (report.kernel, report.ok) == (str(folder), True)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("scripts", "said"),
    [
        ({}, r"has no benchmarks: no file matches benchmarks/benchmark\*\.py; the folder is missing"),
        ({"bench": ""}, r"; the folder has bench\.py"),
        ({"benchmark_a": "x = 1"}, r"nothing to measure: benchmark_a\.py defines no subclass of kernels\.benchmark"),
    ],
)
def test_a_folder_without_benchmarks_says_what_was_looked_for(
    make_kernel: Callable[..., Path], scripts: dict[str, str], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        measure(make_kernel(**scripts))


def test_a_repository_without_benchmarks_or_with_too_much_of_them_is_refused(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/bare")
    with pytest.raises(RequestError, match="acme/bare version 1 has no benchmarks"):
        measure("acme/bare", version=1)
    hub.make_repo("acme/large", files={"benchmarks/benchmark_a.py": GOOD})
    monkeypatch.setattr(measured_kernel, "MAX_BYTES", 10)
    with pytest.raises(InvalidRepository, match="acme/large has 1 files"):
        measure("acme/large", version=1)


@pytest.mark.usefixtures("in_process")
def test_a_kernel_that_does_not_load_is_an_error(make_kernel: Callable[..., Path]) -> None:
    broken = make_kernel("broken", benchmark_a=GOOD)
    (broken / "build" / "torch-cpu" / "__init__.py").write_text("import no_such_package")
    with pytest.raises(KernelImportError, match="no_such_package"):
        measure(broken)


def test_a_script_that_crashes_is_an_error(make_kernel: Callable[..., Path]) -> None:
    with pytest.raises(KernelImportError, match="were loaded, the process that runs it ended with status 5"):
        measure(make_kernel("leaves", benchmark_a="import os; os._exit(5)"))


@pytest.mark.usefixtures("in_process")
def test_a_script_that_fails_is_an_outcome(make_kernel: Callable[..., Path]) -> None:
    report = measure(make_kernel(benchmark_a="1 / 0", benchmark_b=GOOD), iterations=1, warmup=0)
    assert [(outcome.name, outcome.verdict) for outcome in report.outcomes] == [
        ("benchmark_a.py", "failed"), ("Double.four", "ok"),
    ]  # fmt: skip
    assert not report.ok


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"iterations": 0}, RequestError, "`iterations` is 0; expected 1 to"),
        ({"warmup": -1}, RequestError, "`warmup` is -1; expected 0 to"),
        ({"warmup": 1.5}, TypeError, "`warmup` is 1.5 (float)"),
        ({"seconds": 0}, RequestError, "`seconds` is 0; expected a number above 0"),
        ({"version": 1}, RequestError, "a folder; `version` and `revision` are for"),
        ({"backend": "cuda"}, BackendUnavailable, "cuda"),
        ({"device": "cuda:0"}, RequestError, "cuda"),
        ({"device": "nonsense!"}, RequestError, "`device`: expected an index or a name"),
        ({"trust_remote_code": 3}, TypeError, "got 3"),
    ],
)
def test_arguments_that_cannot_be_are_refused_before_anything_runs(
    make_kernel: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    error: type[Exception],
    said: str,
) -> None:
    monkeypatch.setattr(runner, "_Worker", None)
    with pytest.raises(error) as caught:
        measure(make_kernel(benchmark_a=GOOD), **options)
    assert said in str(caught.value)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(RepositoryNotFound, match="does not exist"):
        measure(tmp_path / "nowhere")


@pytest.mark.usefixtures("in_process")
def test_a_device_that_torch_lacks_is_said_by_the_process_that_needs_it(
    make_kernel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_kernel, "_torch_device", lambda planned, device: "xpu:3")
    with pytest.raises(RequestError, match="Torch has no device 'xpu:3' here"):
        measure(make_kernel(benchmark_a=GOOD))


@pytest.mark.skipif(os.name != "posix", reason="process groups")
def test_what_a_workload_started_ends_with_it(
    make_kernel: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_ENDING_SECONDS", 0.5)  # what hangs does not end in order
    note = tmp_path / "pid"
    folder = make_kernel(
        benchmark_a=f"""
            import subprocess, sys, time
            from kernels.benchmark import Benchmark

            class Hangs(Benchmark):
                def benchmark_x(self):
                    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
                    open({str(note)!r}, "w").write(str(child.pid))
                    time.sleep(1000)
        """
    )
    [outcome] = measure(folder, seconds=3).outcomes
    assert outcome.verdict == "timed out"
    listing = subprocess.run(["ps", "-o", "stat=", "-p", note.read_text()], capture_output=True, text=True)
    assert listing.stdout.strip()[:1] in ("", "Z")


def test_a_process_that_talks_nonsense_counts_as_crashed(
    make_kernel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_START", "print('hello')")
    with pytest.raises(KernelImportError, match="the process that runs it ended with status 0"):
        measure(make_kernel(benchmark_a=GOOD))
    monkeypatch.setattr(runner, "_ENDING_SECONDS", 0.1)
    monkeypatch.setattr(runner, "_START", "import time; print('hello', flush=True); time.sleep(1000)")
    with pytest.raises(KernelImportError, match="stopped answering"):
        measure(make_kernel(benchmark_a=GOOD))


def test_modules_are_found_where_they_are_here_and_not_in_the_current_folder(
    make_kernel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "torch.py").write_text("raise AssertionError('the wrong one')")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "only_there.py").write_text("")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "there")])
    assert measure(make_kernel(benchmark_a="import only_there\n" + GOOD), iterations=1, warmup=0).ok


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="it looks for a process in /proc")
def test_what_a_crashed_process_has_started_is_ended(make_kernel: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_kernel(
        benchmark_a=f"""
            import os, pathlib, subprocess, sys
            from kernels.benchmark import Benchmark

            class Bad(Benchmark):
                def benchmark_killed(self):
                    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
                    pathlib.Path({str(tmp_path / "child")!r}).write_text(str(child.pid))
                    os.kill(os.getpid(), 9)
        """
    )
    [outcome] = measure(folder, iterations=1, warmup=0).outcomes
    assert outcome.verdict == "crashed"
    # A process that was killed may be left as a zombie, until the system's first process takes it.
    status = Path("/proc", (tmp_path / "child").read_text(), "stat")
    for _ in range(100):
        if not status.exists() or status.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("it still runs")
