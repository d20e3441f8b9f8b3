"""A card has its author's text, what the builds say, and nothing that a text of the kernel could turn into markup."""

from __future__ import annotations

import ast
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from kernels.authoring.publish.card import Card, CardFacts, PublishedCards, make_card
from kernels.authoring.publish.card.benchmarks import read_plots, read_results
from kernels.authoring.publish.card.facts import BuildFact
from kernels.authoring.publish.card.markdown import code, fenced, text
from kernels.authoring.publish.card.parts import PARTS
from kernels.authoring.publish.card.python_api import KernelApi, LayerOffer, Offer
from kernels.authoring.publish.preview import note_on_page
from kernels.errors import RequestError
from kernels.models.metadata import Metadata
from kernels.resolver.variant import parse_variant

COMMIT = "1234567" + "0" * 33


def _metadata(backend: str, archs: list[str] | None, **fields: Any) -> Metadata:
    data = {"name": "relu", "id": f"_relu_{backend}_1234567", "version": 1, "license": "MIT", **fields}
    return Metadata.from_bytes(json.dumps({**data, "backend": {"type": backend, "archs": archs}}).encode())


def _facts(
    *variants: str, api: KernelApi | None = None, branch: str = "v1", archs: list[str] | None = None, **fields: Any
) -> CardFacts:
    parsed = {name: parse_variant(name) for name in variants or ("torch-cpu",)}
    builds = {name: BuildFact(each, _metadata(each.backend, archs, **fields)) for name, each in parsed.items()}
    metadata = next(build.metadata for build in builds.values() if build.metadata is not None)
    offers = (Offer("relu", "function", "relu(x: Tensor) -> Tensor", "Clamp at zero.\n\nArgs:\n    x: Any shape."),)
    return CardFacts("acme/relu", branch, metadata, builds, api or KernelApi("A ReLU.", offers))


def _front(card: Card) -> dict[str, Any]:
    front = yaml.safe_load(card.text.split("\n---\n")[0].removeprefix("---\n"))
    assert isinstance(front, dict)
    return front


def _file(folder: Path, content: str, name: str = "CARD.md") -> Path:
    (folder / name).write_text(content)
    return folder / name


# ---------------------------------------------------------------------------------------------------------------------
# What it says
# ---------------------------------------------------------------------------------------------------------------------


def test_a_card_says_what_the_builds_are_and_how_to_load_them() -> None:
    facts = _facts(
        "torch-cuda",
        "torch213-cxx11-cu130-x86_64-linux",
        "torch-stable-abi29-cpu-aarch64-linux",
        archs=["8.0", "9.0a"],
        upstream="https://example.com/up",
        source="https://example.com/src",
        **{
            "python-depends": ["einops"],
            "kernel-depends": [{"repo-id": "acme/other", "version": 2}],
            "provenance": {
                "kernel-builder": {"version": "0.18.2", "commit": COMMIT},
                "kernel": {"commit": COMMIT, "dirty": True},
            },
        },
    )
    layers = (LayerOffer("ReLU", "forward(x)", "A layer | with a bar.", False, True),)
    api = KernelApi("A ReLU.", facts.api.functions, layers)
    card = make_card(CardFacts(facts.repo_id, "v1", facts.metadata, facts.builds, api, ("relu(Tensor x) -> Tensor",)))
    assert card.origin == "generated"
    for said in (
        "# relu\n\nA ReLU.\n",
        'get_kernel("acme/relu", version=1)',
        'LayerRepository("acme/relu", layer_name="ReLU", version=1)',
        '"acme/relu" = 1',
        "### `relu`\n\n```python\nrelu(x: Tensor) -> Tensor\n```\n\nClamp at zero.\n\n```text\nArgs:\n    x: Any",
        "relu(Tensor x) -> Tensor",
        "| `ReLU` | `forward(x)` | no | yes | A layer \\| with a bar. |",
        "- Backends: cpu, cuda",
        "- Torch: 2.9 or newer, 2.13",
        "| `torch213-cxx11-cu130-x86_64-linux` | cuda 13.0 | Torch 2.13 | linux x86_64 | 8.0, 9.0a |",
        "| Source | <https://example.com/src> |",
        "| Upstream | <https://example.com/up> |",
        f"| Commit | `{COMMIT}` with uncommitted changes |",
        f"| Builder | 0.18.2 (`{COMMIT}`) |",
        "| Python packages | `einops` |",
        "| Other kernels | `acme/other` (version 2) |",
        "| License | MIT |",
    ):
        assert said in card.text
    assert _front(card) == {"library_name": "kernels", "license": "mit", "tags": ["kernels"]}


def test_the_code_of_a_card_is_valid_python_whatever_the_branch_is() -> None:
    branch = 'x"+print()+"'
    card = make_card(_facts(branch=branch)).text
    [line] = [line for line in card.splitlines() if line.startswith("kernel = ")]
    [keyword] = ast.parse(line).body[0].value.keywords  # type: ignore[attr-defined]
    assert ast.literal_eval(keyword.value) == branch
    assert "kernels lock" not in card


def test_the_commands_of_a_card_are_words_of_a_shell_whatever_the_branch_is() -> None:
    branch = "next;touch$IFS'x'&&$(id)"
    card = make_card(replace(_facts(branch=branch), benchmarks=("benchmark.py",))).text
    for command in (
        re.search(r"`(kernels explain .*?)`", card),
        re.search(r"^kernels benchmark .*$", card, re.MULTILINE),
    ):
        assert command is not None
        assert shlex.split(command[0].strip("`"))[2:] == ["acme/relu", "--revision", branch]


@pytest.mark.parametrize(
    ("license", "lines"),
    [
        ("MIT", ["license: mit"]),
        ("GPL-3.0-only", ["license: gpl-3.0"]),
        ("MIT OR Apache-2.0", ["license: other", 'license_name: "MIT OR Apache-2.0"']),
        ("a: b\n---", ["license: other", 'license_name: "a: b\\n---"']),
    ],
)
def test_a_card_says_the_licence_so_that_a_hub_can_read_it(license: str, lines: list[str]) -> None:
    card = make_card(_facts(license=license))
    front = card.text.split("\n---\n")[0].splitlines()
    assert [line for line in front if line.startswith("license")] == lines
    assert set(_front(card)) <= {"library_name", "license", "license_name", "tags"}


_HOSTILE = (
    "| <img src=x onerror=y> `` ``` ```` [a](javascript:b) <!-- kernels:end functions --> $x$ # h\n```\n</details>\n---"
)


def test_texts_of_a_kernel_are_shown_as_text() -> None:
    offers = (Offer("f", "function", "f(x='```')", f"{_HOSTILE}\n\n{_HOSTILE}"),)
    layers = (LayerOffer("L", "forward(x='|')", _HOSTILE),)
    facts = _facts(api=KernelApi(_HOSTILE, offers, layers), upstream=_HOSTILE, license=_HOSTILE)
    card = make_card(facts).text
    body = card.split("\n---\n", 1)[1]
    shown = _outside_code(body)
    assert not re.search(r"(?<!\\)<(?!!--|https?:|picture|source|img alt|/picture)", shown)
    assert not re.search(r"(?<!\\)\[", shown)
    assert shown.count("<!-- kernels:end functions -->") == 1
    [row] = [line for line in body.splitlines() if line.startswith("| `L`")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 6
    # What was published is read again, and nothing of it is taken for the author's text.
    assert make_card(facts, published=PublishedCards(card)).text == card


def _outside_code(body: str) -> str:
    """What is not in a fence or in backticks, as CommonMark delimits them."""
    kept, fence = [], ""
    for line in body.splitlines():
        ticks = re.match(r"`{3,}", line)
        if fence:
            fence = "" if ticks and ticks[0] == line.rstrip() and len(ticks[0]) >= len(fence) else fence
        elif ticks:
            fence = ticks[0]
        else:
            kept.append(re.sub(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)", "", line))
    assert not fence
    return "\n".join(kept)


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("# a", "\\# a"),
        ("- a\n1. b\n> c", "\\- a\n1\\. b\n\\> c"),
        ("a `b_c` d_e", "a `b_c` d_e"),
        ("_a_ b__c (_d) x86_64", "\\_a\\_ b\\_\\_c (\\_d) x86_64"),
        ("a ``b`` `c", "a `b` \\`c"),
        ("a\tb\x07\u202e", "a   b  "),
    ],
)
def test_text_is_escaped(content: str, shown: str) -> None:
    assert text(content).rstrip() == shown.rstrip()


def test_code_ends_where_it_is_meant_to() -> None:
    assert code("a`b``c") == "```a`b``c```"
    assert code("`a`") == "`` `a` ``"
    assert fenced("````\nx").splitlines() == ["`````", "````", "x", "`````"]


# ---------------------------------------------------------------------------------------------------------------------
# Benchmarks
# ---------------------------------------------------------------------------------------------------------------------


def _result(folder: Path, name: str = "h100.json", gpu: str = "NVIDIA H100", mean: float = 1.0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    times = {"mean_ms": mean, "q1_ms": 0.9, "q3_ms": 1.1, "std_ms": 0.1, "iterations": 100}
    data = {
        "results": [{"workload": "Relu.small", "timingResults": times, "verified": True}],
        "machineInfo": {"gpu": gpu, "backend": "CUDA", "pytorchVersion": "2.13.0", "os": "Linux", "cpu": "x"},
        "kernelCommitSha": "7654321",
    }
    (folder / name).write_text(json.dumps(data))


def test_results_and_plots_are_shown_and_sent(tmp_path: Path) -> None:
    import os

    _result(tmp_path / "benchmarks")
    _result(tmp_path, "newer.json", mean=0.5)
    os.utime(tmp_path / "newer.json", (4e9, 4e9))
    _result(tmp_path / "benchmarks" / "results", gpu="N/A")
    (tmp_path / "package.json").write_text('{"name": "no result"}')
    (tmp_path / "broken.json").write_text("[" * 100)
    media = tmp_path / "media"
    media.mkdir()
    for name in ("h100_light.svg", "h100_dark.svg", "alone_light.svg", 'a"b_light.svg', 'a"b_dark.svg'):
        (media / name).write_text("<svg/>")
    (media / "linked_light.svg").symlink_to("/etc/hostname")
    (media / "linked_dark.svg").symlink_to("/etc/hostname")
    facts = _facts()
    results, plots = tuple(read_results([tmp_path])), tuple(read_plots([tmp_path]))
    card = make_card(CardFacts("acme/relu", "v1", facts.metadata, facts.builds, results=results, plots=plots))
    assert "NVIDIA H100, backend cuda, Torch 2.13.0; measured on another build, 7654321:" in card.text
    assert "| `Relu.small` | 0.5 ms | 0.9 - 1.1 ms | matches the reference |" in card.text
    assert card.text.count("| Benchmark |") == 2  # a machine has one table: that of its newest file
    assert '<source media="(prefers-color-scheme: dark)" srcset="media/h100_dark.svg">' in card.text
    assert sorted(card.files) == ["media/h100_dark.svg", "media/h100_light.svg"]


def test_what_benchmark_saves_is_what_a_card_reads(tmp_path: Path) -> None:
    from kernels.authoring.bench.payload import save
    from kernels.authoring.bench.report import Machine, Report, Times, WorkloadOutcome

    machine = Machine(
        target="x", backend="cpu", device="cpu", device_name="EPYC", torch="2.13", threads=1, python="3", kernels="1",
        date="2026",
    )  # fmt: skip
    # One call was interrupted: the mean is 16 ms.
    times, slower = Times.of([0.001, 0.002, 0.002, 0.06]), Times.of([0.004])
    outcome = WorkloadOutcome(
        script="b.py", benchmark="Relu", workload="big", verified=True, times=times, reference=slower, speedup=2.0
    )
    report = Report(kernel="k", commit=None, variant="v", machine=machine, iterations=1, warmup=0, outcomes=(outcome,))
    save(report, tmp_path / "result.json")
    [saved] = read_results([tmp_path])
    (tmp_path / "result.json").write_bytes(msgspec.json.encode(report))
    [printed] = read_results([tmp_path])
    expected = [("Relu.big", 2.0, 4.0, True)]
    for result in (saved, printed):
        assert [(each.workload, each.typical, each.reference, each.verified) for each in result.timings] == expected
    facts = _facts()
    card = make_card(CardFacts("acme/relu", "v1", facts.metadata, facts.builds, results=(printed,))).text
    assert "| Benchmark | Median | Quartiles | Reference | Speed | Result |" in card
    noisy = "noisy: quartiles 9.4x apart; matches the reference"
    assert f"| `Relu.big` | 2 ms | 1.75 - 16.5 ms | 4 ms | 2.00x | {noisy} |" in card


def test_what_init_wrote_for_the_author_is_noted_until_it_is_replaced(tmp_path: Path) -> None:
    from kernels.authoring.scaffold import adopt_kernel, new_kernel

    source = tmp_path / "scale.cpp"
    source.write_text("torch::Tensor scale(torch::Tensor x, double by) { return x * by; }")
    made = [new_kernel("a-relu", tmp_path / str(noarch), noarch=noarch) for noarch in (False, True)]
    made.append(adopt_kernel([source], folder=tmp_path / "adopted").folder)
    for folder in made:
        readme = folder / "README.md"
        [note] = make_card(_facts(), None, readme).notes
        assert note.startswith("README.md still says '")
        assert note_on_page(folder) == note
        readme.write_text("# relu\n\nA fast ReLU.\n")
        assert (make_card(_facts(), None, readme).notes, note_on_page(folder)) == ((), None)


def test_commands_on_a_card_name_the_version() -> None:
    assert "`kernels explain acme/relu --version 1` shows which one" in make_card(_facts()).text


# ---------------------------------------------------------------------------------------------------------------------
# The author's text
# ---------------------------------------------------------------------------------------------------------------------


def test_an_author_places_and_omits_generated_parts(tmp_path: Path) -> None:
    page = """# Mine

<!-- kernels:begin functions -->
old
<!-- kernels:end functions -->

Between.

<!-- kernels:omit benchmarks -->
<!-- kernels:omit usage -->
"""
    card = make_card(_facts(), readme=_file(tmp_path, page, "README.md")).text
    assert "old" not in card
    assert "get_kernel" not in card
    places = [card.index(each) for each in ("# Mine", "## Functions", "Between.", "## Builds")]
    assert places == sorted(places)
    assert card.count("kernels:begin") == 3  # functions, builds, provenance


def test_an_author_who_says_how_to_load_the_kernel_is_not_repeated(tmp_path: Path) -> None:
    page = 'kernel = get_kernel("acme/relu", version=1)\n'
    assert "## Usage" not in make_card(_facts(), readme=_file(tmp_path, page, "README.md")).text
    page += "<!-- kernels:begin usage -->\n<!-- kernels:end usage -->\n"
    assert "## Usage" in make_card(_facts(), readme=_file(tmp_path, page, "README.md")).text


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("<!-- kernels:begin function -->", "names no part of a card. Did you mean 'functions'"),
        ("<!-- kernels:begin builds -->", "has no end"),
        ("<!-- kernels:end builds -->", "no counterpart"),
        ("<!-- kernels:begin builds -->\n<!-- kernels:begin usage -->", "no counterpart"),
        ("---\nlicense: mit\n", "line 1: the front matter begins with `---`, and no line `---` ends it"),
        ("---\nlicense: [\n---\n", "line 3: the front matter is not YAML"),
        ("---\nlicense: mit\nlicense: mit\n---\n", "line 3: the key 'license' stands twice"),
        ("---\n- a\n---\n", "expected keys and values"),
        ("---\ntags: {a: b}\n---\n", "`tags` in the front matter"),
        ("---\na: !!python/object:os.system x\n---\n", "line 2: the front matter is not YAML"),
        ("---\na: &a [x]\ntags: [*a, *a]\n---\n", "line 3: an alias"),
        ("---\na: " + "[" * 10_000 + "]" * 10_000 + "\n---\n", "recursion"),
        ("---\na: " + "x" * 100_000 + "\n---\n", "more than 65536 characters"),
        ("---\n{license: mit}\n---\n", "in braces"),
    ],
)
def test_a_broken_page_is_refused_with_its_line(tmp_path: Path, page: str, said: str) -> None:
    with pytest.raises(RequestError, match=re.escape(said)):
        make_card(_facts(), readme=_file(tmp_path, page, "README.md"))


_MIT = {"license": "mit", "library_name": "kernels"}


@pytest.mark.parametrize(
    ("front", "expected"),
    [
        ("", {"tags": ["kernels"], **_MIT}),
        ("license: Apache-2.0", {"license": "apache-2.0", "library_name": "kernels", "tags": ["kernels"]}),
        ("tags:\n  - triton\nlicense: mit", {"tags": ["triton", "kernels"], **_MIT}),
        ("tags: [triton, kernels]", {"tags": ["triton", "kernels"], **_MIT}),
        ("tags:\nlicense:", {"tags": ["kernels"], **_MIT}),
        ("license: My Own", {"tags": ["kernels"], **_MIT, "license": "other", "license_name": "My Own"}),
        ("x: 2024-01-01 # kept\nlibrary_name: other", {"tags": ["kernels"], **_MIT, "library_name": "other"}),
    ],
)
def test_a_front_matter_is_kept_and_completed(tmp_path: Path, front: str, expected: dict[str, Any]) -> None:
    card = make_card(_facts(), readme=_file(tmp_path, f"---\n{front}\n---\n# ReLU\n", "README.md"))
    found = _front(card)
    found.pop("x", None)
    assert found == expected
    assert ("# kept" in card.text) == ("# kept" in front)
    again = make_card(_facts(), readme=_file(tmp_path, card.text, "README.md"))
    assert _front(again) == _front(card)


def test_text_that_was_edited_on_the_hub_stays_until_it_is_replaced(tmp_path: Path) -> None:
    readme = _file(tmp_path, "# Mine\n", "README.md")
    first = make_card(_facts(), readme=readme).text
    edited = first.replace("# Mine", "# Mine\n\nEdited on the Hub.").replace(
        "tags:\n- kernels", "tags:\n- kernels\n- hub"
    )
    readme.write_text("# Mine, changed\n")
    unedited = make_card(_facts(), readme=readme, published=PublishedCards(first, first))
    assert unedited.text.count("# Mine, changed") == 1
    kept = make_card(_facts("torch-cuda"), readme=readme, published=PublishedCards(first, edited))
    assert kept.origin == "Hub"
    assert "Edited on the Hub." in kept.text
    assert "- hub" in kept.text
    assert "`torch-cuda`" in kept.text
    assert "`torch-cpu`" not in kept.text
    assert "--replace-card" in kept.notes[0]
    # The next upload still knows that it was edited.
    later = make_card(_facts(), readme=readme, published=PublishedCards(kept.text, kept.text))
    assert later.origin == "Hub"
    replaced = make_card(_facts(), readme=readme, published=PublishedCards(kept.text, kept.text), replace=True)
    assert "Edited on the Hub." not in replaced.text
    # With the edit in the author's file, there is nothing to keep.
    readme.write_text(kept.text)
    assert make_card(_facts(), readme=readme, published=PublishedCards(kept.text)).origin == "README.md"


@pytest.mark.parametrize(
    "theirs",
    ["# Theirs\n", "---\nlicense: mit\n---\n# Theirs\n", "# Theirs\n<!-- kernels:begin usage -->\n"],
    ids=["plain", "with a front matter", "with a lost marker"],
)
def test_a_page_of_another_program_is_kept_where_the_folder_has_none(theirs: str) -> None:
    card = make_card(_facts(), published=PublishedCards(theirs))
    assert "# Theirs" in card.text
    assert "# relu" not in card.text
    assert card.text.count("<!-- kernels:begin usage -->") == 1
    again = make_card(_facts(), published=PublishedCards(card.text, card.text))
    assert again.text == card.text


def test_every_part_can_be_named() -> None:
    assert list(PARTS) == ["usage", "functions", "layers", "benchmarks", "builds", "provenance"]
