"""`kernels benchmark`: the table, the JSON, the plot and the status."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import kernel_files

from kernels.authoring.bench import Times, WorkloadOutcome
from kernels.cli.benchmark import _named, _row
from kernels.errors import RequestError

pytest.importorskip("torch")

SCRIPT = """
import torch
from kernels.benchmark import Benchmark
print("hello from the script")

class Double(Benchmark):
    def setup(self):
        self.x = torch.ones(4)

    def benchmark_four(self):
        self.out = self.kernel.double(self.x)

    def verify_four(self):
        return 2 * self.x
"""

WRONG = SCRIPT.replace("2 * self.x", "3 * self.x") + "\n    def benchmark_alone(self): ...\n"


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], Path]:
    """A kernel's folder with one benchmark script."""

    def make(script: str) -> Path:
        files = {f"build/torch-cpu/{path}": data for path, data in kernel_files("acme/relu", "torch-cpu").items()}
        for path, data in {**files, "benchmarks/benchmark_double.py": script.encode()}.items():
            place = tmp_path / "relu" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        return tmp_path / "relu"

    return make


def test_a_table_says_how_fast_each_workload_is_and_whether_it_is_right(
    kernels: Callable[..., Any], folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    plot = tmp_path / "times.svg"
    drawings = ["--plot", plot, "--visual", "relu", "--rasterized", "--output", "times.json"]
    result = kernels("benchmark", folder(SCRIPT), "--iterations", 3, "--warmup", 0, "--device", 0, *drawings)
    assert result.exit_code == 0
    title, machine, empty, heading, row = result.stdout.splitlines()
    assert title == f"{tmp_path / 'relu'}, build torch-cpu"
    assert machine.startswith("cpu:0 (")
    assert machine.endswith("3 calls after 0")
    assert (empty, heading.split()[:3]) == ("", ["Benchmark", "Verdict", "Median"])
    assert row.split()[:2] == ["Double.four", "ok"]
    assert row.endswith("matches the reference")
    assert "Double.four" in plot.read_text(encoding="utf-8")
    assert f"Drew {plot}" in result.stderr.splitlines()

    assert sorted(path.name for path in (tmp_path / "media").iterdir()) == [
        "relu_dark.png", "relu_dark.svg", "relu_light.png", "relu_light.svg",
    ]  # fmt: skip
    light, dark = ((tmp_path / "media" / f"relu_{page}.svg").read_text(encoding="utf-8") for page in ("light", "dark"))
    assert "Double.four" in light
    assert "#0d1117" in dark
    assert "#0d1117" not in light
    assert (tmp_path / "media" / "relu_dark.png").read_bytes().startswith(b"\x89PNG")

    saved = json.loads((tmp_path / "times.json").read_text(encoding="utf-8"))
    assert list(saved) == [
        "results", "machineInfo", "kernelCommitSha", "benchmarkScriptPath", "benchmarkScriptSha",
    ]  # fmt: skip
    [workload] = saved["results"]
    assert (workload["workload"], workload["verified"]) == ("Double.four", True)
    times = workload["timingResults"]
    assert times["iterations"] == 3
    assert 0 < times["min_ms"] <= times["q1_ms"] <= times["q3_ms"] <= times["max_ms"]
    assert times["min_ms"] <= times["mean_ms"] <= times["max_ms"]
    assert (saved["machineInfo"]["gpu"], saved["machineInfo"]["backend"]) == ("N/A", "CPU")
    assert saved["benchmarkScriptSha"] == hashlib.sha256(SCRIPT.encode()).hexdigest()


def test_the_table_has_the_references_quartiles_and_says_where_times_are_wide_apart() -> None:
    times, reference = Times.of([1e-3]), Times.of([1e-3, 1e-3, 5e-3, 5e-3])
    outcome = WorkloadOutcome(
        script="benchmark_x.py",
        benchmark="X",
        workload="y",
        verified=True,
        times=times,
        reference=reference,
        speedup=3.0,
    )
    assert _row(outcome) == (
        "X.y", "ok", "1.00 ms", "1.00 ms - 1.00 ms", "3.00 ms", "1.00 ms - 5.00 ms", "3.00x",
        "noisy: quartiles 5.0x apart (reference); matches the reference",
    )  # fmt: skip


def test_the_table_and_notes_name_all_problems_and_the_status_is_1(
    kernels: Callable[..., Any], folder: Callable[[str], Path]
) -> None:
    path = folder(WRONG + "\n    def verify_fuor(self): ...\n")
    (path / "benchmarks" / "benchmark_none.py").write_text("")
    result = kernels("benchmark", path, "--iterations", 3, "--warmup", 0)
    assert result.exit_code == 1
    assert "Double.four   wrong" in result.stdout
    assert "self.out: Tensor-likes are not close! Mismatched elements: 4 / 4" in result.stdout
    assert "not compared: no reference" in result.stdout
    note = "Note: benchmark_double.py: Double.verify_fuor is never called: there is no benchmark_fuor."
    assert f"{note} Did you mean 'four'?\n" in result.stdout
    assert "Note: benchmark_none.py defines no subclass of kernels.benchmark.Benchmark" in result.stdout
    assert result.stdout.endswith("\n1 of 2 not ok.\n")


def test_the_json_of_a_repository_has_the_numbers_and_no_output_of_the_script(
    kernels_process: Callable[..., Any], folder: Callable[[str], Path], tmp_path: Path
) -> None:
    source = folder(WRONG)
    (tmp_path / "hub" / "acme" / "relu").mkdir(parents=True)
    source.rename(tmp_path / "hub" / "acme" / "relu" / "v1")
    arguments = ["acme/relu@v1", "--iterations", 3, "--warmup", 1, "--json"]
    environment = {"KERNELS_HUB": str(tmp_path / "hub"), "KERNELS_TRUSTED_PUBLISHERS": "acme"}
    result = kernels_process("benchmark", *arguments, **environment)
    assert result.returncode == 1
    assert "hello from the script" in result.stderr
    report = json.loads(result.stdout)
    assert {"target", "backend", "device", "device_name", "torch", "date"} <= set(report["machine"])
    assert (report["kernel"], report["variant"], report["iterations"], report["warmup"]) == (
        "acme/relu", "torch-cpu", 3, 1,
    )  # fmt: skip
    wrong, alone = report["outcomes"]
    assert (wrong["verdict"], wrong["verified"], wrong["max_difference"], wrong["times"]) == ("wrong", False, 1.0, None)
    assert alone["times"]["calls"] == 3
    assert alone["times"]["median_seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--plot", "times.png"], "`plot` is 'times.png'; expected a file name that ends in .svg"),
        (["--iterations", "0"], "`iterations` is 0"),
        (["--device", "cuda:7"], "cuda"),
        (["--version", "1"], "a folder; `version`"),
        (["--branch", "v1"], "a folder; `version`"),
        (["--rasterized"], "--rasterized is for the images of --visual BASE"),
        (["--output", "none/times.json"], "`--output` is 'none/times.json'; expected a file name in a folder"),
    ],
)
def test_wrong_arguments_are_one_line(
    kernels: Callable[..., Any], folder: Callable[[str], Path], arguments: list[str], said: str
) -> None:
    result = kernels("benchmark", folder(SCRIPT), *arguments)
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert said in line


@pytest.mark.parametrize(
    ("name", "options", "found"),
    [
        ("acme/relu", {}, ("acme/relu", None, None)),
        ("acme/relu@v12", {}, ("acme/relu", 12, None)),
        ("acme/relu@main", {}, ("acme/relu", None, "main")),
        ("acme/relu@vnext", {}, ("acme/relu", None, "vnext")),
        ("acme/relu", {"revision": "main"}, ("acme/relu", None, "main")),
        ("./relu@v1", {}, ("./relu@v1", None, None)),
    ],
)
def test_a_repositorys_name_may_end_in_a_version_or_a_branch(name: str, options: dict[str, Any], found: Any) -> None:
    assert _named(name, options.get("version"), options.get("revision")) == found


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [("acme/relu@1", None, "expected a version such as v1, or a branch"), ("acme/relu@v1", 1, "names a revision")],
)
def test_a_name_with_half_a_version_or_two_is_an_error(name: str, version: int | None, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        _named(name, version, None)
