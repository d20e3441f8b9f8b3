"""The first part of docs/benchmarks.md: the table of targets, and the figures behind it, from samples alone."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from side_by_side import Client, Results, commit_of, cores, cpu_name, medians, version_of

__all__ = [
    "CASES",
    "COUNTS",
    "DIGEST_BYTES",
    "DIGEST_FILES",
    "LATENCIES",
    "LATENCY",
    "OTHER_ROUNDS",
    "PROCESSES",
    "REPOSITORIES",
    "Case",
    "Row",
    "report",
    "rows",
    "table",
    "timed",
]


@dataclass(frozen=True)
class Case:
    """A call whose time is measured.

    Attributes:
        name: As the page calls it.
        repo_id: The kernel.
        files: Of its build.
        trips: Round trips that the call cannot do without.
        warm: Whether the build is in the cache.
    """

    name: str
    repo_id: str
    files: int
    trips: int
    warm: bool = False


CASES = (
    Case("cold, 3 files", "bench/small", 3, 3),
    Case("cold, 63 files", "bench/large", 63, 3),
    Case("warm", "bench/small", 3, 1, warm=True),
)
SMALL, LARGE, WARM = CASES
LATENCIES = (0.01, 0.05, 0.2)  # seconds
LATENCY = LATENCIES[1]  # of the targets
OTHER_ROUNDS = 3  # at the other latencies, at most
REPOSITORIES = 8  # that one model needs
PROCESSES = 8
COUNTS = (1_000, 10_000, 100_000)  # modules
DIGEST_FILES, DIGEST_BYTES = 8, 64 * 2**20

#: Processor time of a cold call for 63 files before requests left first: milliseconds, on 2 cores of an AMD EPYC,
#: 2026-11-22. `--before` measures an older checkout in the same run instead.
BEFORE_MS = 321.0
AS_BEFORE = (
    f"Before requests left first, a cold call for 63 files took {BEFORE_MS:.0f} ms of processor time (2 cores of an "
    "AMD EPYC, 2026-11-22)."
)

#: What a call may take beyond the wire, in seconds, and which part of the existing client's time; row 5 of the targets.
BEYOND_WIRE = {SMALL.name: 0.050, WARM.name: 0.025}
PART_WITH_SESSION = {LARGE.name: 1 / 3}
PART_WITHOUT_SESSION = {SMALL.name: 1 / 2, LARGE.name: 1 / 3, WARM.name: 1 / 2}

_PARTS = {1 / 2: "half", 1 / 3: "a third"}


def timed(case: Case, session: bool, latency: float) -> str:
    """The name of a measurement of row 5."""
    return f"{case.name}, {'session' if session else 'no session'}, {latency * 1e3:.0f} ms"


def at_targets(case: Case, session: bool = True) -> str:
    """The name of the measurement that a target is about."""
    return timed(case, session, LATENCY)


def ideal(case: Case, latency: float = LATENCY) -> float:
    """Seconds of the round trips alone."""
    return case.trips * latency


def limit(results: Results, case: Case, session: bool) -> tuple[float | None, str]:
    """Seconds that row 5 allows, None if the existing client was not measured, and the rule."""
    if session and case.name in BEYOND_WIRE:
        more = BEYOND_WIRE[case.name]
        trips = f"{case.trips} round trip{'s' if case.trips > 1 else ''}"
        return ideal(case) + more, f"{trips} and {more * 1e3:.0f} ms"
    part = (PART_WITH_SESSION if session else PART_WITHOUT_SESSION)[case.name]
    existing = results.median(at_targets(case, session), "existing", "seconds")
    return None if existing is None else part * existing, f"{_PARTS[part]} of the existing client's"


# The table of targets


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure of both clients, and what it must be."""

    number: str
    what: str
    measurement: str
    figure: str
    format: str
    target: str
    met: Callable[[float, float | None], bool]  # ours, existing
    scale: float = 1.0


def at_most(limit: float) -> Callable[[float, float | None], bool]:
    return lambda ours, existing: ours <= limit


def part_of_existing(limit: float) -> Callable[[float, float | None], bool]:
    return lambda ours, existing: existing is not None and ours <= limit * existing


def rows(results: Results) -> list[Row]:
    """All lines, in the order of the targets; those of 13 and 14 stand in the mirror's part."""

    def light() -> bool:
        return not results.last("import", "ours", "heavy")

    def linear() -> bool:
        few, many = (results.median("modules", "ours", str(count)) for count in (COUNTS[1], COUNTS[2]))
        return few is not None and many is not None and many <= 12 and many <= 1.5 * few

    def within_noise(ours: float, existing: float | None) -> bool:
        noise = results.median("call", "ours", "noise") or 0.0
        # A nanosecond is less than one instruction of the interpreter.
        return ours <= max(noise, 0.01 * (results.median("call", "ours", "plain") or 0.0), 1.0)

    small, large, warm = map(at_targets, CASES)
    one_process = results.median(large, "ours", "requests") or 0.0
    modules = [
        Row("8", f"`kernelize` per module once loaded, {count:,} modules", "modules", str(count), "{:.1f} µs",
            "12 µs or less" + (", linear" if count == COUNTS[2] else ""),
            (lambda ours, existing: linear()) if count == COUNTS[2] else at_most(12))
        for count in COUNTS[1:]
    ]  # fmt: skip
    before = results.median(large, "before", "processor")
    before_ms = BEFORE_MS if before is None else before * 1e3
    return [
        Row("1", "`import kernels`", "import", "ms", "{:.0f} ms", "25 ms or less; no torch, no huggingface_hub",
            lambda ours, existing: ours <= 25 and light()),
        Row("2", "requests, cold, 3 files", small, "requests", "{:.0f}", "6 or fewer", at_most(6)),
        Row("2", "of them one after the other", small, "depth", "{:.0f}", "4 or fewer", at_most(4)),
        Row("3", "requests, cold, 63 files", large, "requests", "{:.0f}", "66 or fewer", at_most(66)),
        Row("4", "requests, warm, new process, `version=1`", warm, "requests", "{:.0f}", "1", at_most(1)),
        Row("4", "the same, pinned to a commit", "warm pinned", "requests", "{:.0f}", "0", at_most(0)),
        Row("4", "the same, locked", "warm locked", "requests", "{:.0f}", "0", at_most(0)),
        Row("4", "the same, `HF_HUB_OFFLINE=1`", "warm offline", "requests", "{:.0f}", "0", at_most(0)),
        Row("4", "the same, within `KERNELS_REFRESH`", "warm refresh", "requests", "{:.0f}", "0", at_most(0)),
        *[_time_row(results, case, session) for session in (True, False) for case in CASES],
        Row("5", "processor time, cold, 63 files", large, "processor", "{:.0f} ms",
            f"{before_ms / 2:.0f} ms, half of {before_ms:.0f} ms, as before", at_most(before_ms / 2 / 1e3), 1e3),
        Row("6", f"requests, {PROCESSES} processes at once, cold, 63 files", "together", "requests", "{:.0f}",
            f"those of one process plus {PROCESSES} ({one_process + PROCESSES:.0f}) or fewer",
            at_most(one_process + PROCESSES)),
        Row("7", f"`kernelize` of a model that needs {REPOSITORIES} repositories, cold", "kernelize cold", "seconds",
            "{:.2f} s", "a third or less", part_of_existing(1 / 3)),
        *modules,
        Row("9", "entering `use_kernel_mapping` over 500 layers", "mapping", "ms", "{:.4f} ms", "0.1 ms or less",
            at_most(0.1)),
        Row("10", "a kernelized layer's call over its plain call", "call", "ns", "{:.0f} ns", "0 (within the noise)",
            within_noise),
        Row("10", "graphs under `torch.compile(fullgraph=True)`, three calls", "compile", "graphs", "{:.0f}", "1",
            at_most(1)),
        Row("11", "checking a SHA-256 digest", "digest", "gb_s", "{:.2f} GB/s", "3 GB/s or more on two cores",
            lambda ours, existing: ours >= 3),
        Row("12", "resident memory after `import kernels`", "import", "mb", "{:.1f} MB", "16 MB or less", at_most(16)),
        Row("15", "before the first request leaves, warm, session made", "first byte", "ms", "{:.1f} ms",
            "10 ms or less", at_most(10)),
        Row("15", "modules imported by then", "first byte", "modules", "{:.0f}", "25 or fewer", at_most(25)),
        Row("16", "choosing among 10,000 builds", "builds", "choosing", "{:.0f} ms", "100 ms or less", at_most(100)),
        Row("16", "memory of it", "builds", "mb", "{:.1f} MB", "30 MB or less", at_most(30)),
    ]  # fmt: skip


def _time_row(results: Results, case: Case, session: bool) -> Row:
    most, rule = limit(results, case, session)
    target = rule if most is None else f"{rule}: {most:.3f} s"
    what = f"time, {case.name}, session {'made before' if session else 'not there'}"
    met = (lambda ours, existing: False) if most is None else at_most(most)
    return Row("5", what, at_targets(case, session), "seconds", "{:.3f} s", target, met)


def table(results: Results) -> list[str]:
    """The lines of the table of targets."""
    lines = ["| # | what | existing | ours | ratio | the wire | target | met |", "|---|---|---|---|---|---|---|---|"]
    wires = {at_targets(case, session): at_targets(case) for case in CASES for session in (True, False)}
    for row in rows(results):
        values = {name: results.median(row.measurement, name, row.figure) for name in ("existing", "ours")}
        values["wire"] = results.median(wires.get(row.measurement, ""), "wire", row.figure)
        cells = {}
        for name, value in values.items():
            failed = "failed" if (row.measurement, name) in results.failures else "–"
            cells[name] = failed if value is None else row.format.format(value * row.scale)
        ours, existing = values["ours"], values["existing"]
        ratio = f"{ours / existing:.2f}" if ours is not None and existing is not None and existing > 0 else "–"
        met = "not measured" if ours is None else "yes" if row.met(ours, existing) else "**no**"
        lines.append(
            f"| {row.number} | {row.what} | {cells['existing']} | {cells['ours']} | {ratio} | {cells['wire']} "
            f"| {row.target} | {met} |"
        )
    place = next(place for place, line in enumerate(lines) if line.startswith("| 15 |"))
    mirror = "| 13, 14 | from a mirror | | | | | the requests and times of a mirror | [its own table](#from-a-mirror) |"
    return [*lines[:place], mirror, *lines[place:]]


# The figures behind it


def seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f} s"


def milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} ms"


def times_table(results: Results) -> list[str]:
    """Row 5 at all latencies."""
    lines = [
        "| | session | latency | existing | ours | ours / existing | the wire | round trips alone | ours beyond them |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        for session in (True, False):
            for latency in LATENCIES:
                name = timed(case, session, latency)
                existing, ours = (results.median(name, each, "seconds") for each in ("existing", "ours"))
                wire = results.median(timed(case, True, latency), "wire", "seconds")
                alone = ideal(case, latency)
                ratio = f"{ours / existing:.2f}" if ours is not None and existing else "–"
                beyond = None if ours is None else (ours - alone) * 1e3
                lines.append(
                    f"| {case.name} | {'made before' if session else 'not there'} | {latency * 1e3:.0f} ms "
                    f"| {seconds(existing)} | {seconds(ours)} | {ratio} | {seconds(wire)} "
                    f"| {case.trips} × {latency * 1e3:.0f} ms = {alone:.2f} s | {milliseconds(beyond)} |"
                )
    return lines


def processor_table(results: Results) -> list[str]:
    """Processor time of the calls, session made before."""
    names = ["existing", "before", "ours", "wire"]
    if not any((at_targets(case), "before") in results.samples for case in CASES):
        names.remove("before")
    titles = {"before": "ours, before", "wire": "the wire"}
    headings = ["", *(titles.get(name, name) for name in names)]
    if "before" in names:
        headings += ["ours / before", "the same, beyond the wire's"]
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for case in CASES:
        cells = []
        used: dict[str, float | None] = {}
        for name in names:
            spent, took = (results.median(at_targets(case), name, figure) for figure in ("processor", "seconds"))
            used[name] = spent
            cells.append("–" if spent is None or took is None else f"{spent * 1e3:.0f} ms of {took * 1e3:.0f} ms")
        if "before" in names:
            cells += _of_before(used["ours"], used["before"], used["wire"])
        lines.append(f"| {case.name} | {' | '.join(cells)} |")
    return lines


def _of_before(ours: float | None, before: float | None, wire: float | None) -> list[str]:
    """Which part of the time before is left, and of what the client adds to the wire's."""
    if ours is None or before is None or wire is None or before <= wire:
        return ["–", "–"]
    return [f"{ours / before:.2f}", f"{(ours - wire) / (before - wire):.2f}"]


def missed_table(results: Results) -> list[str]:
    """For each time of row 5 that misses its target: the parts that no client does without, and what is left."""
    hub_import, hub_session = (results.median("hub parts", "ours", figure) for figure in ("import", "session"))
    columns: list[list[str]] = []
    for session in (True, False):
        for case in CASES:
            ours = results.median(at_targets(case, session), "ours", "seconds")
            most, _ = limit(results, case, session)
            if ours is None or most is None or ours <= most:
                continue
            wire = results.median(at_targets(case), "wire", "seconds")
            parts = [None if session else hub_import, None if session else hub_session, wire and wire * 1e3]
            needed = sum(part for part in parts if part is not None)
            left = most * 1e3 - needed
            spent, of_wire = (results.median(at_targets(case, session), each, "processor") for each in ("ours", "wire"))
            of_wire = results.median(at_targets(case), "wire", "processor") if of_wire is None else of_wire
            imports = results.median(f"imports {'warm' if case.warm else 'cold'}", "ours", "imports_ms")
            columns.append(
                [
                    f"{case.name}, session {'made before' if session else 'not there'}",
                    milliseconds(most * 1e3),
                    milliseconds(ours * 1e3),
                    *map(milliseconds, parts),
                    "**none**" if left <= 0 else milliseconds(left),
                    milliseconds(ours * 1e3 - needed),
                    milliseconds(imports),
                    milliseconds(spent and spent * 1e3),
                    milliseconds(of_wire and of_wire * 1e3),
                ]
            )
    if not columns:
        return ["All elapsed times of row 5 are met."]
    names = (
        "missed", "target", "took", "import of huggingface_hub", "its session, a TLS context", "the wire",
        "what these leave of the target", "what this client takes beside them", "this client's imports",
        "this client's processor time", "the wire's processor time",
    )  # fmt: skip
    first, *lines = [f"| {' | '.join(row)} |" for row in zip(names, *columns, strict=True)]
    return [first, "|---|" + "--:|" * len(columns), *lines]


def notes(results: Results) -> list[str]:
    """What the tables do not say."""

    def figure(measurement: str, client: str, what: str, form: str, scale: float = 1.0) -> str:
        value = results.median(measurement, client, what)
        return "not measured" if value is None else form.format(value * scale)

    def both(measurement: str, what: str, form: str) -> str:
        return f"{figure(measurement, 'existing', what, form)} and {figure(measurement, 'ours', what, form)}"

    calls = "; ".join(f"{case.name} {both(at_targets(case), 'call', '{:.2f} s')}" for case in CASES)
    imports = "; ".join(
        f"{name} {figure(f'imports {name}', 'ours', 'imports', '{:.0f}')} modules, of which "
        f"{figure(f'imports {name}', 'ours', 'own_imports', '{:.0f}')} are of `kernels`, in "
        f"{figure(f'imports {name}', 'ours', 'imports_ms', '{:.0f} ms')}"
        for name in ("warm", "cold")
    )
    return [
        "Times run from before `import kernels` to the usable result, Torch imported before and its objects hidden "
        "from the garbage collector, whose run over them would fall into either client's time. The session is "
        "huggingface_hub's: made before, as in every program that uses transformers, or not there, as in a program "
        "that begins with a kernel.",
        f"The calls alone, after `import kernels`, session made before, existing and ours: {calls}; "
        f"{REPOSITORIES} repositories {both('kernelize cold', 'call', '{:.2f} s')}.",
        f"A call imports, session made before: {imports} (`python -X importtime`, which makes each import slower). "
        "Most of them while a request is under way: see row 15.",
        "huggingface_hub itself asks once a day for `/api/agent-harnesses`, which it puts into the user agent; that "
        "request is not counted for either client.",
        f"Row 6 took {both('together', 'seconds', '{:.1f} s')} until the last process was done, the session not there.",
        f"Row 8, {COUNTS[0]:,} modules: {both('modules', str(COUNTS[0]), '{:.1f} µs')}. A model of 100,000 "
        f"layers of 1,000 kinds: {figure('kinds', 'ours', 'us', '{:.1f} µs')}.",
        "Row 10 takes the fastest of 100 series of 2,000 calls. A plain call takes "
        f"{figure('call', 'ours', 'plain', '{:.0f} ns')}; two plain layers differ by "
        f"{figure('call', 'ours', 'noise', '{:.0f} ns')}. That is the noise; 1% of a plain call counts as noise too.",
        f"Row 11 checks {DIGEST_FILES} files of {DIGEST_BYTES // 2**20} MiB from the page cache, on "
        f"{cores()} cores. One file is hashed by one core: a file of "
        f"{DIGEST_FILES * DIGEST_BYTES // 2**20} MiB at {figure('digest one', 'ours', 'file', '{:.2f} GB/s')}, where "
        f"bytes in memory go at {figure('digest one', 'ours', 'memory', '{:.2f} GB/s')}.",
        "Making a `LayerRepository`, for which this client finds the lock of the module that makes it, takes "
        f"{figure('construct', 'existing', 'us', '{:.1f} µs')} (existing) and "
        f"{figure('construct', 'ours', 'us', '{:.1f} µs')} (ours).",
        f"Row 12 is the whole process: bare Python has {figure('import', 'ours', 'bare_mb', '{:.1f} MB')} of it.",
        "Row 15 ends where the first socket connects. The modules are those of all packages, beside what Torch and "
        "huggingface_hub's session had imported.",
        "Row 16 chooses for an H100 by name and metadata, of builds of two files each; to read the listing takes "
        f"{figure('builds', 'ours', 'listing', '{:.0f} ms')} more, and the memory is the peak that Python allocates "
        "for both.",
    ]


def report(results: Results, clients: Mapping[str, Client], load: str, rounds: int) -> str:
    """The whole part, as Markdown.

    Args:
        results: The samples.
        clients: By name: ours, and existing and before if they were measured.
        load: What the machine did before the start.
        rounds: Runs of each measurement.
    """
    existing, ours, before = clients.get("existing"), clients["ours"], clients.get("before")
    torch = results.last(at_targets(SMALL), "ours", "torch")
    missed = missed_table(results)
    now = datetime.datetime.now(datetime.timezone.utc)
    return "\n".join(
        [
            "# Benchmarks",
            "",
            "For readers who want figures, and how they were measured. Written by `make bench`; "
            "[CONTRIBUTING](../CONTRIBUTING.md#benchmarks) says how to run a part. First the targets, then the times "
            "at several latencies, what they are made of, [the costs as they grow](#costs-as-they-grow), and [a "
            "mirror's](#from-a-mirror).",
            "",
            f"- date: {now:%Y-%m-%d %H:%M} UTC",
            f"- machine: {cpu_name()}, {cores()} cores, {platform.platform()}; {load}",
            f"- Python {platform.python_version()}, Torch {torch}, huggingface_hub "
            f"{version_of(existing, 'huggingface_hub')} (existing) and {version_of(ours, 'huggingface_hub')} (ours)",
            f"- existing: kernels {version_of(existing, 'kernels')}; ours: kernels {version_of(ours, 'kernels')}",
            *([] if before is None else [f"- ours, before: {commit_of(before)}"]),
            "- the wire: the requests that the call needs, sent by a bare script over huggingface_hub's session, over "
            "as many connections as this client uses, in as few round trips as they can have; nothing is imported, "
            "checked or written",
            f"- method: {medians(rounds)} ({min(rounds, OTHER_ROUNDS)} at other latencies than "
            f"{LATENCY * 1e3:.0f} ms), each a process of its own, existing, ours and the wire in turn; one "
            f"local Hub that waits before every answer, {LATENCY * 1e3:.0f} ms where nothing else is said. Several "
            "processes are made ready together (Torch is imported), and measure one after the other.",
            "",
            *table(results),
            "",
            "## Times at several latencies",
            "",
            *times_table(results),
            "",
            "What a call takes beyond its round trips is imports, requests and answers made and read, files checked "
            "and written, the module loaded. The wire itself takes more than its round trips: huggingface_hub's "
            "session needs processor time for each request, and 63 files go over 32 connections in two round trips.",
            "",
            "## Processor time",
            "",
            "In the program and in the system, all threads, session made before, of the time that passes:",
            "",
            *processor_table(results),
            *([] if before is not None else ["", AS_BEFORE]),
            "",
            "## Where a time misses its target",
            "",
            *missed,
            *(
                [
                    "",
                    "Where nothing is left for a client, no client that uses huggingface_hub's session can meet the "
                    "target. Where something is left, it must hold the client's imports as far as they do not run "
                    "while a request is under way, and its processor time beyond the wire's.",
                ]
                if len(missed) > 1
                else []
            ),
            "",
            "## Notes",
            "",
            *[f"- {note}" for note in notes(results)],
            *results.failed(),
            "",
        ]
    )
