"""`kernels benchmark`: how fast a kernel is on this machine, and whether its results are right."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels.cli._arguments import AsJson, BackendName, TrustRemoteCode, Version
from kernels.cli._output import console, print_json, print_line, print_progress, print_table
from kernels.errors import RequestError
from kernels.support.written_paths import stay_inside

if TYPE_CHECKING:
    from kernels.authoring.bench import Report, Times, WorkloadOutcome

__all__ = ["benchmark"]


def benchmark(
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL", help="Repository (org/name, org/name@v1, org/name@branch) or path of a folder."
        ),
    ],
    version: Version = None,
    revision: Annotated[
        str | None, typer.Option("--revision", "--branch", metavar="REV", help="Branch, tag or commit.")
    ] = None,
    backend: BackendName = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Device: an index, or a Torch name such as cuda:1. Default: the current device."
        ),
    ] = None,
    iterations: Annotated[int, typer.Option(metavar="N", help="Number of timed calls.")] = 100,
    warmup: Annotated[int, typer.Option(metavar="N", help="Number of calls before them.")] = 10,
    seconds: Annotated[float, typer.Option(metavar="S", help="Time limit of a workload, in seconds.")] = 300.0,
    trust_remote_code: TrustRemoteCode = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.svg", help="Draw the times (for light and dark pages); needs matplotlib."),
    ] = None,
    visual: Annotated[
        str | None,
        typer.Option(
            "--visual", metavar="BASE", help="Draw media/BASE_light.svg and media/BASE_dark.svg; needs matplotlib."
        ),
    ] = None,
    rasterized: Annotated[bool, typer.Option("--rasterized", help="With --visual: PNG files too.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE.json", help="Save the times as JSON in the existing client's form."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a kernel's benchmarks on this machine, and compare the results with references.

    Benchmarks and the kernel run in a child process, with your rights. Exits with status 1 if a result is wrong or a
    workload fails.

    Examples:
        $ kernels benchmark org/my-kernel --version 1
        $ kernels benchmark ./my-kernel --plot times.svg
    """
    from kernels.authoring.bench import measure
    from kernels.authoring.bench.payload import save
    from kernels.authoring.bench.plot import check_matplotlib, check_plot, draw, draw_pages

    if plot is not None:
        check_plot(plot)
    if visual is not None:
        check_matplotlib()
    elif rasterized:
        raise RequestError("--rasterized is for the images of --visual BASE; add it, or leave --rasterized out.")
    if output is not None and not output.absolute().parent.is_dir():
        raise RequestError(f"`--output` is {str(output)!r}; expected a file name in a folder that exists.")
    if output is not None:
        # A kernel's folder may be an untrusted checkout, whatever the current folder is.
        stay_inside(output, *([kernel] if Path(kernel).is_dir() else ()))
    kernel, version, revision = _named(kernel, version, revision)
    report = measure(
        kernel,
        version=version,
        revision=revision,
        backend=backend,
        device=int(device) if device is not None and device.isdecimal() else device,
        trust_remote_code=trust_remote_code,
        iterations=iterations,
        warmup=warmup,
        seconds=seconds,
        progress=lambda name: print_progress(f"Running {name}"),
    )
    if as_json:
        print_json(report)
    else:
        _show(report)
    if output is not None:
        save(report, output)
        console(stderr=True).print(f"Saved {output}", markup=False, soft_wrap=True)
    if plot is not None or visual is not None:
        timed = any(outcome.times is not None for outcome in report.outcomes)
        drawn: list[Path] = []
        if timed and plot is not None:
            draw(report, plot)
            drawn.append(plot)
        if timed and visual is not None:
            drawn += draw_pages(report, visual, rasterized=rasterized)
        for line in [f"Drew {each}" for each in drawn] or ["Nothing was drawn: no workload has times."]:
            console(stderr=True).print(line, markup=False, soft_wrap=True)
    if not report.ok:
        raise typer.Exit(1)


def _named(kernel: str, version: int | None, revision: str | None) -> tuple[str, int | None, str | None]:
    """The version or the revision that follows a repository's name, `org/name@v1`; a folder's name stays as it is."""
    repo_id, at, name = kernel.partition("@")
    if not at or kernel.startswith((".", "/", "~", os.sep)) or os.path.exists(kernel):
        return kernel, version, revision
    if version is not None or revision is not None:
        raise RequestError(f"{kernel} names a revision; leave --version, --revision and --branch out.")
    if name.isdecimal():
        raise RequestError(f"{kernel}: expected a version such as v{name}, or a branch.")
    number = name.removeprefix("v")
    return (repo_id, int(number), None) if number.isdecimal() and number != name else (repo_id, None, name)


def _show(report: Report) -> None:
    machine = report.machine
    commit = f" (commit {report.commit[:12]})" if report.commit else ""
    title = (
        f"{report.kernel}{commit}, build {report.variant}\n"
        f"{machine.device} ({machine.device_name}), {machine.target}, {machine.threads} threads; "
        f"{report.iterations} calls after {report.warmup}"
    )
    print_table(
        ("Benchmark", "Verdict", ">Median", ">Quartiles", ">Reference", ">Its quartiles", ">Speed", "What"),
        [_row(outcome) for outcome in report.outcomes],
        title=title,
    )
    for note in report.notes:
        print_line(f"Note: {note}{'' if note.endswith('?') else '.'}")
    bad = sum(outcome.verdict != "ok" for outcome in report.outcomes)
    if bad:
        print_line()
        print_line(f"{bad} of {len(report.outcomes)} not ok.")


def _row(outcome: WorkloadOutcome) -> tuple[str, ...]:
    speed = "" if outcome.speedup is None else f"{outcome.speedup:.2f}x"
    if outcome.reason:
        what = outcome.reason
    elif outcome.verified:
        largest = outcome.max_difference
        what = "matches the reference" + (f", largest difference {largest:.2g}" if largest else "")
    else:
        what = "not compared: no reference"
    noise = f"noisy: {outcome.noise}; " if outcome.noise else ""
    return (outcome.name, outcome.verdict, *_times(outcome.times), *_times(outcome.reference), speed, noise + what)


def _times(times: Times | None) -> tuple[str, str]:
    from kernels.authoring.bench.plot import format_seconds

    if times is None:
        return "", ""
    quartiles = f"{format_seconds(times.q1_seconds)} - {format_seconds(times.q3_seconds)}"
    return format_seconds(times.median_seconds), quartiles
