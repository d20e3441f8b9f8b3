"""A CARD.md is filled in as its builder would, and cannot do anything else."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from kernels.authoring.publish.card import template as card_template
from kernels.authoring.publish.card.facts import BuildFact, CardFacts
from kernels.authoring.publish.card.python_api import KernelApi, Offer
from kernels.authoring.publish.card.template import PLACEHOLDERS, fill_template
from kernels.errors import MissingPythonDependency, RequestError
from kernels.models.metadata import Metadata
from kernels.resolver.variant import parse_variant


def _facts(license: str = "Apache-2.0", *, functions: bool = True) -> CardFacts:
    data = f'{{"name": "relu", "id": "_r", "version": 3, "license": "{license}", "backend": {{"type": "cpu"}}}}'
    metadata = Metadata.from_bytes(data.encode())
    offers = (Offer("relu", "function", "relu(x)", "Doc."), Offer("gelu", "function", "gelu(x)")) if functions else ()
    builds = {"torch-cpu": BuildFact(parse_variant("torch-cpu"), metadata)}
    return CardFacts(
        "acme/relu", "v3", metadata, builds, KernelApi("", offers), benchmarks=("benchmarks/benchmark.py",)
    )


#: The forms that published templates have.
TEMPLATE = """---
library_name: kernels
{% if license %}license: {{ license }}
{% endif %}---

The card of {{ repo_id }}.
{% if functions %}

{{ functions[0] }} = get_kernel("{{ repo_id }}", version={{ version }}).{{ functions[0] }}
{% else %}

No example.
{% endif %}
{% for func in functions %}
- `{{ func }}`: {{ func.signature }}
{% endfor %}
{% if layers %}
layers
{% endif %}
{% if has_benchmark %}
benchmarks
{% endif %}
{% if upstream %}
from {{ upstream }}
{% endif %}
"""


def test_a_published_template_is_filled_in() -> None:
    page, notes = fill_template(TEMPLATE, _facts(), "CARD.md")
    assert (
        page
        == """---
library_name: kernels
license: apache-2.0
---

The card of acme/relu.

relu = get_kernel("acme/relu", version=3).relu
- `relu`: relu(x)
- `gelu`: gelu(x)
benchmarks
"""
    )
    assert notes == []
    assert "No example." in fill_template(TEMPLATE, _facts(functions=False), "CARD.md")[0]


def test_a_page_without_placeholders_is_used_as_it_is() -> None:
    page = "# $\\sum_{i}$ {x} } }}"
    assert fill_template(page, _facts(), "CARD.md") == (page, [])


def test_a_placeholder_that_is_not_known_is_empty_and_noted() -> None:
    page, [note, _] = fill_template("a{{ licence }}b{% if other %}c{% endif %}", _facts(), "CARD.md")
    assert page == "ab"
    assert note == "CARD.md: the placeholder 'licence' is not known, and left empty. Did you mean 'license'?"


def test_a_template_without_jinja_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert fill_template("plain", _facts(), "CARD.md")[0] == "plain"
    with pytest.raises(MissingPythonDependency, match="pip install jinja2"):
        fill_template("{{ name }}", _facts(), "CARD.md")


def test_every_placeholder_has_a_value() -> None:
    for name in PLACEHOLDERS:
        assert fill_template(f"{{{{ {name} }}}}", _facts(), "CARD.md")[1] == []


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("a\n{{ title = {x} }}", "line 2: this is not a Jinja template"),
        ("{% for x in functions %}", "line 1: this is not a Jinja template"),
        ("{{ functions[0].__class__.__mro__ }}", "cannot be filled in"),
        ("{{ functions.append(1) }}", "has no attribute 'append'"),
        ("{{ name.upper() }}", "has no attribute 'upper'"),
        ("{{ (name|attr('format'))(1) }}", "has no attribute 'format'"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{% import 'x' as y %}", "no loader"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "cannot be filled in"),
        ("{{ functions[7].signature.x }}", "cannot be filled in"),
        ("{% if name %}" * 150 + "{% endif %}" * 150, "cannot be filled in"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "cannot be filled in"),
    ],
)  # fmt: skip
def test_a_template_that_does_more_is_refused(template: str, said: str) -> None:
    with pytest.raises(RequestError, match=re.escape(said)):
        fill_template(template, _facts(), "CARD.md")


@pytest.mark.parametrize("template", ["{{ name.format }}", "{{ functions[0].upper }}", "{{ functions|reverse }}"])
def test_what_is_no_data_prints_nothing(template: str) -> None:
    assert fill_template(f"a{template}b", _facts(), "CARD.md") == ("ab", [])


def _long(parts: int) -> CardFacts:
    facts = _facts()
    offers = tuple(Offer(f"f{number}", "function", f"f{number}(x)", "D" * 8000) for number in range(parts))
    return dataclasses.replace(facts, api=KernelApi("", offers))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 10**10 }}",
        "{{ [0] * 10**10 }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ 'x' | center(9999999999) }}",
        "{% set a = 'x' * 10**6 %}{{ a | replace('x', a) | length }}",
    ],
)
def test_a_template_that_takes_much_memory_is_an_error(template: str) -> None:
    with pytest.raises(RequestError, match=r"CARD\.md: .*takes more than 512 MiB of memory"):
        fill_template(template, _long(100), "CARD.md")


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in functions %}{% for b in functions %}"
        + "{% if functions|join(functions[0].doc)|length == 1 %}{% endif %}" * 200
        + "{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ (9 ** (9 ** 9)) % 7 }}",
    ],
)
def test_a_template_that_takes_hours_is_an_error(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_template, "_SECONDS", 3.0)
    with pytest.raises(RequestError, match=r"CARD\.md: the template cannot be filled in: it takes more than 3 seconds"):
        fill_template(template, _long(500), "CARD.md")


def test_a_template_cannot_grow_without_bound() -> None:
    with pytest.raises(RequestError, match="more than 4194304 characters"):
        fill_template("{% for a in functions %}{% for b in functions %}" + "x" * 2**20 + "{% endfor %}{% endfor %}x"
                      "{% for a in functions %}" + "x" * 2**20 + "{% endfor %}", _facts(), "CARD.md")  # fmt: skip


def test_the_file_beside_build_toml_comes_before_a_readme(tmp_path: Path) -> None:
    from kernels.authoring.publish.card import make_card

    (tmp_path / "CARD.md").write_text(TEMPLATE)
    (tmp_path / "README.md").write_text("# Readme\n")
    card = make_card(_facts(), tmp_path / "CARD.md", tmp_path / "README.md")
    assert card.origin == "CARD.md"
    assert "The card of acme/relu." in card.text
    assert "# Readme" not in card.text
