"""The parts of a card that are generated, as Markdown: each has a name, by which an author can place or omit it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from kernels import backends
from kernels.authoring.bench.report import NOISY
from kernels.authoring.publish.card.benchmarks import BenchmarkResult
from kernels.authoring.publish.card.facts import BuildFact, CardFacts
from kernels.authoring.publish.card.markdown import cell, code, fenced, link, table, text
from kernels.authoring.publish.card.python_api import LayerOffer, Offer
from kernels.models.requirement import Requirement
from kernels.support.formatting import shell_word

__all__ = ["PARTS", "generate_parts"]

#: Functions and layers that are shown whole, before the rest is a list of names.
_MAX_SHOWN = 60

#: Torch's name of the processor, which a model is not moved to for its kernels.
_HOST = "cpu"


def generate_parts(facts: CardFacts) -> dict[str, str]:
    """The generated parts of a card, in the order in which they stand; empty ones are left out.

    Args:
        facts: What the card says.
    """
    parts = {name: make(facts).strip() for name, make in PARTS.items()}
    return {name: part for name, part in parts.items() if part}


def _usage(facts: CardFacts) -> str:
    lines = ["from kernels import get_kernel", "", f'kernel = get_kernel("{facts.repo_id}", {facts.revision})']
    offered = next((each for each in facts.api.functions if each.kind == "function"), None)
    if offered is not None:
        lines.append(f"kernel.{offered.name}(...)")
    whole = f"""## Usage

{fenced(chr(10).join(lines), "python")}

`get_kernel` chooses the best build for the machine; `kernels explain {facts.repo_id}{_asked(facts)}` shows which one
and why.
"""
    if facts.api.layers:
        whole += f"\nIn a model whose layers are marked for it:\n\n{fenced(_mapping(facts), 'python')}\n"
    if facts.versioned:
        locked = f'[tool.kernels.dependencies]\n"{facts.repo_id}" = {facts.metadata.version}'
        whole += (
            "\nTo pin the commit for a project, add it to `pyproject.toml`, and run `kernels lock`:\n\n"
            f"{fenced(locked, 'toml')}\n"
        )
    return whole


def _mapping(facts: CardFacts) -> str:
    known = [backend for name in facts.backends if (backend := backends.known(name)) is not None]
    # Accelerators first: they are what kernels are for.
    types = sorted({backend.device_type for backend in known}, key=lambda name: (name == _HOST, name))
    device = types[0] if types else _HOST
    lines = ["from kernels import LayerRepository, Mode, kernelize, use_kernel_mapping", "", "mapping = {"]
    for layer in facts.api.layers[:3]:
        where = f'"{facts.repo_id}", layer_name="{layer.name}", {facts.revision}'
        lines.append(f'    "{layer.name}": {{"{device}": LayerRepository({where})}},')
    lines += ["}", "with use_kernel_mapping(mapping):"]
    lines.append(f'    model = kernelize(model, mode=Mode.INFERENCE, device="{device}")')
    return "\n".join(lines)


def _functions(facts: CardFacts) -> str:
    offers = facts.api.functions
    if not offers and not facts.operators:
        return ""
    shown = [_function(each) for each in offers[:_MAX_SHOWN]]
    if len(offers) > _MAX_SHOWN:
        shown.append("Also: " + ", ".join(code(each.name) for each in offers[_MAX_SHOWN:]))
    if facts.operators:
        shown.append("### Operators\n\nRegistered with Torch, in the namespace of the build:")
        shown.append(fenced("\n".join(facts.operators)))
    return "## Functions\n\n" + "\n\n".join(shown)


def _function(offer: Offer) -> str:
    blocks = [f"### {code(offer.name)}"]
    if offer.signature:
        prefix = "class " if offer.kind == "class" else ""
        blocks.append(fenced(f"{prefix}{offer.signature}", "python"))
    return "\n\n".join([*blocks, *_doc(offer.doc)])


def _doc(doc: str) -> list[str]:
    """A docstring: its first paragraph as text, the rest as it is written."""
    first, _, rest = doc.strip().partition("\n\n")
    return [text(first)] * bool(first) + [fenced(rest.strip("\n"), "text")] * bool(rest.strip())


def _layers(facts: CardFacts) -> str:
    layers = facts.api.layers
    if not layers:
        return ""
    rows = [
        (code(layer.name), code(_one_line(layer.forward)) if layer.forward else "", _yes(layer.has_backward),
         _yes(layer.can_torch_compile), cell(_summary(layer)))
        for layer in layers
    ]  # fmt: skip
    columns = ("Layer", "Forward", "Backward pass", "torch.compile", "Description")
    return "## Layers\n\n" + table(columns, rows)


def _one_line(signature: str) -> str:
    return " ".join(signature.split()).replace("( ", "(").replace(", )", ")")


def _summary(layer: LayerOffer) -> str:
    return " ".join(layer.doc.strip().partition("\n\n")[0].split())


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _builds(facts: CardFacts) -> str:
    rows = [(code(name), *_build_cells(build)) for name, build in facts.builds.items()]
    facts_of = {
        "Backends": ", ".join(map(cell, facts.backends)),
        "Torch": ", ".join(facts.torch_versions),
        "Architectures": "; ".join(
            f"{cell(backend)}: {', '.join(map(cell, archs))}" for backend, archs in facts.archs.items()
        ),
    }
    lines = [f"- {name}: {value}" for name, value in facts_of.items() if value]
    columns = ("Variant", "Backend", "Framework", "System", "Architectures")
    return "## Builds\n\n" + "\n".join(lines) + "\n" * 2 * bool(lines) + table(columns, rows)


def _build_cells(build: BuildFact) -> tuple[str, str, str, str]:
    variant = build.variant
    backend = build.backend if variant.accelerator_version is None else f"{build.backend} {variant.accelerator_version}"
    framework = "any Torch"
    if variant.framework_version is not None:
        name = {"torch": "Torch", "torch-stable-abi": "Torch (stable ABI)", "tvm-ffi": "tvm-ffi"}[variant.kind]
        newer = " or newer" * (variant.kind == "torch-stable-abi")
        framework = f"{name} {variant.framework_version}{newer}"
    system = "any" if variant.os is None else f"{variant.os} {variant.cpu}"
    archs = () if build.metadata is None else build.metadata.backend.archs or ()
    return cell(backend), cell(framework), cell(system), ", ".join(map(cell, archs))


def _benchmarks(facts: CardFacts) -> str:
    if not facts.benchmarks and not facts.results and not facts.plots:
        return ""
    blocks = ["## Benchmarks"]
    for result in facts.results:
        blocks.append(_result(result, facts))
    for plot in facts.plots:
        # Sites choose between the two by what the reader's system prefers.
        blocks.append(
            f'<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="{plot.dark}">\n'
            f'  <img alt="Benchmark times: {plot.name}" src="{plot.light}">\n</picture>'
        )
    if facts.benchmarks:
        command = f"kernels benchmark {facts.repo_id}{_asked(facts)}"
        blocks.append(f"To measure it on your machine:\n\n{fenced(command, 'console')}")
    return "\n\n".join(blocks)


def _asked(facts: CardFacts) -> str:
    """The option of a command that names what was published."""
    return f" --version {facts.metadata.version}" if facts.versioned else f" --revision {shell_word(facts.branch)}"


def _result(result: BenchmarkResult, facts: CardFacts) -> str:
    compared = any(timing.reference for timing in result.timings)
    typical = ">Median" if result.has_medians else ">Mean"
    columns = ["Benchmark", typical, ">Quartiles", *([">Reference", ">Speed"] if compared else []), "Result"]
    rows = []
    for timing in result.timings:
        row = [code(timing.workload), f"{timing.typical:.4g} ms", f"{timing.q1:.4g} - {timing.q3:.4g} ms"]
        if compared and timing.reference:
            speed = f"{timing.reference / timing.typical:.2f}x" if timing.typical > 0 else ""
            row += [f"{timing.reference:.4g} ms", speed]
        elif compared:
            row += ["", ""]
        noise = f"noisy: quartiles {timing.spread:.1f}x apart; " if timing.spread > NOISY else ""
        said = {True: "matches the reference", False: "wrong", None: "not compared"}[timing.verified]
        rows.append([*row, f"{noise}{said}"])
    where = ", ".join(filter(None, (result.device, result.backend and f"backend {result.backend.lower()}")))
    torch = f", Torch {result.torch}" if result.torch else ""
    commits = {build.metadata.id.rpartition("_")[2] for build in facts.builds.values() if build.metadata is not None}
    other = f"; measured on another build, {result.commit}" if result.commit and result.commit not in commits else ""
    return f"{cell(where)}{cell(torch)}{cell(other)}:\n\n{table(columns, rows)}"


def _provenance(facts: CardFacts) -> str:
    rows: dict[str, list[str]] = {}

    def say(name: str, value: str) -> None:
        if value and value not in rows.setdefault(name, []):
            rows[name].append(value)

    say("License", cell(facts.metadata.license or ""))
    for build in facts.builds.values():
        metadata = build.metadata
        if metadata is None:
            continue
        say("Source", link(metadata.source or ""))
        say("Upstream", link(metadata.upstream or ""))
        made = metadata.provenance
        if made is not None and made.kernel is not None:
            dirty = " with uncommitted changes" * made.kernel.dirty
            say("Commit", f"{code(made.kernel.commit)}{dirty}")
        if made is not None and (made.builder_version or made.builder is not None):
            commit = "" if made.builder is None else f" ({code(made.builder.commit)}{' dirty' * made.builder.dirty})"
            say("Builder", f"{cell(made.builder_version or 'kernel-builder')}{commit}")
        for package in metadata.python_depends:
            say("Python packages", code(package))
        for depend in metadata.kernel_depends:
            say("Other kernels", _depend(depend))
        say("Client", f"kernels {metadata.kernels_minver} or newer" if metadata.kernels_minver else "")
    found = [(name, ", ".join(values)) for name, values in rows.items() if values]
    return "## License and provenance\n\n" + table(("", ""), found) if found else ""


def _depend(depend: Requirement) -> str:
    where = f"version {depend.version}" if depend.version is not None else json.dumps(depend.revision)
    return f"{code(depend.repo_id)} ({cell(where)})"


#: The parts, by name, in their order.
PARTS: Mapping[str, Callable[[CardFacts], str]] = {
    "usage": _usage,
    "functions": _functions,
    "layers": _layers,
    "benchmarks": _benchmarks,
    "builds": _builds,
    "provenance": _provenance,
}
