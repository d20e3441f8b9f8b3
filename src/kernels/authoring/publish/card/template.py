"""A `CARD.md`: a Jinja template, as published sources have it, filled in without running code of its author.

Templates for other builders are read with the settings that these use: the line break after a block tag is dropped, and
a name that is not known is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kernels.authoring.publish.card.facts import CardFacts
from kernels.authoring.publish.card.front_matter import hub_license
from kernels.authoring.publish.card.python_api import Offer
from kernels.errors import MissingPythonDependency, RequestError
from kernels.support.formatting import did_you_mean, format_text

__all__ = ["PLACEHOLDERS", "fill_template"]

#: The most characters of a filled template. Its time is the number of loops times the product of nested lists.
_MAX_CARD = 4 * 1024 * 1024
_MAX_LOOPS = 50
_MAX_NESTED = 2

#: What templates are made of here: they choose and print texts. Nothing that makes a text longer from a part of itself.
_NODES = frozenset({"Template", "Output", "TemplateData", "Name", "Const", "Getattr", "Getitem", "List", "Tuple"})
_NODES |= {"If", "For", "Test", "Not", "And", "Or", "Compare", "Operand", "CondExpr", "Neg", "Filter", "Keyword"}
_FILTERS = frozenset({"capitalize", "count", "d", "default", "first", "last", "length", "lower", "title", "trim"})
_FILTERS |= {"upper"}
_ORDERS = frozenset({"list", "reverse", "sort", "unique"})

#: What a template of values of the wrong kind, or one that is nested too deep, ends with.
_FAILURES = (TypeError, ValueError, LookupError, ArithmeticError, RecursionError, SyntaxError)


class _Name(str):
    """A function's name, with its signature and its docstring: `{{ functions[0].signature }}`."""

    signature: str
    doc: str

    @staticmethod
    def of(offer: Offer) -> _Name:
        name = _Name(offer.name)
        name.signature, name.doc = offer.signature, offer.doc
        return name


#: The names that a template can use, with what they stand for.
PLACEHOLDERS: Mapping[str, str] = {
    "repo_id": "the repository, `org/name`",
    "name": "the kernel's name",
    "version": "the major version",
    "branch": "the branch",
    "license": "the licence, in lower case as a Hub's front matter has it",
    "functions": "names of the functions; each has `.signature` and `.doc`",
    "layers": "names of the layers",
    "operators": "schemas of the registered operators",
    "has_benchmark": "whether there are benchmark scripts",
    "upstream": "URL of the project that the kernel comes from",
    "source": "URL of the kernel's sources",
    "commit": "the commit of its sources",
    "backends": "names of the backends",
    "variants": "names of the builds",
    "archs": "device architectures",
    "torch_versions": "Torch versions of compiled builds",
    "python_depends": "Python packages that it needs",
    "kernel_depends": "other kernels that it needs",
}


def fill_template(template: str, facts: CardFacts, where: str) -> tuple[str, list[str]]:
    """Fill in a card's template.

    Args:
        template: The text of the `CARD.md`.
        facts: What the card says.
        where: The file's name in messages.

    Returns:
        The page, and notes: a placeholder that is not known, and left empty.

    Raises:
        RequestError: The template is not valid Jinja, does more than choose and print texts, or is too large.
        MissingPythonDependency: It has placeholders, and jinja2 is not installed.
    """
    if not any(sign in template for sign in ("{{", "{%", "{#")):
        return template, []
    try:
        import jinja2
        from jinja2 import meta
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingPythonDependency(
            f"{where} has placeholders, and jinja2, which fills them in, is not installed: pip install jinja2 (the "
            "extra `build`)."
        ) from None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, keep_trailing_newline=True, autoescape=False)
    environment.globals.clear()
    environment.filters = {
        **{name: each for name, each in environment.filters.items() if name in _FILTERS | _ORDERS},
        "join": _join,
    }
    try:
        tree = environment.parse(template)
        _check(tree, where)
        values = _values(facts)
        unknown = sorted(meta.find_undeclared_variables(tree) - values.keys())
        parts, size = [], 0
        for part in environment.from_string(tree).generate(values):
            size += len(part)
            if size > _MAX_CARD:
                raise RequestError(f"{where}: filled in, the card has more than {_MAX_CARD} characters.")
            parts.append(part)
    except jinja2.TemplateSyntaxError as error:
        raise RequestError(
            f"{where}, line {error.lineno}: this is not a Jinja template: {format_text(error.message)}. Put text with "
            "double braces between {% raw %} and {% endraw %}."
        ) from None
    except (jinja2.TemplateError, *_FAILURES) as error:
        raise RequestError(f"{where}: the template cannot be filled in: {format_text(error)}.") from None
    notes = [
        f"{where}: the placeholder {name!r} is not known, and left empty.{did_you_mean(name, PLACEHOLDERS)}"
        for name in unknown
    ]
    return "".join(parts), notes


def _join(values: Any, separator: str = "") -> str:
    """Join texts, up to the most characters of a card."""
    texts = list(map(str, values))
    if sum(map(len, texts)) + len(separator) * len(texts) > _MAX_CARD:
        raise ValueError(f"`join` makes a text of more than {_MAX_CARD} characters")
    return separator.join(texts)


def _check(tree: Any, where: str) -> None:
    """Refuse what takes time or memory without bound, or does more than choose and print texts."""
    from jinja2 import nodes

    for node in _walk(tree):
        kind = type(node).__name__
        if kind not in _NODES:
            raise RequestError(
                f"{where}, line {node.lineno}: a card's template may print placeholders, and choose with `if` and "
                f"`for`; it may not use {kind.lower()}."
            )
    loops = list(tree.find_all(nodes.For))
    for loop in loops:
        nested = max((len(list(inner.find_all(nodes.For))) for inner in loop.find_all(nodes.For)), default=0)
        if loop.recursive or nested >= _MAX_NESTED - 1 or len(loops) > _MAX_LOOPS or not _is_list(loop.iter):
            raise RequestError(
                f"{where}, line {loop.lineno}: a loop is over a placeholder, and nested in one other at most; a "
                f"template has {_MAX_LOOPS} at most."
            )


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in node.iter_child_nodes():
        yield from _walk(child)


def _is_list(node: Any) -> bool:
    """Whether a loop is over a name, in its order or another."""
    from jinja2 import nodes

    while isinstance(node, nodes.Filter) and node.name in _ORDERS:
        node = node.node
    return isinstance(node, nodes.Name)


def _values(facts: CardFacts) -> dict[str, Any]:
    metadata = facts.metadata
    made = metadata.provenance
    license = metadata.license
    return {
        "repo_id": facts.repo_id,
        "name": str(metadata.name),
        "version": metadata.version,
        "branch": facts.branch,
        "license": None if not license else hub_license(license) or license.lower(),
        "functions": [_Name.of(each) for each in facts.api.functions if each.name.isidentifier()],
        "layers": [each.name for each in facts.api.layers],
        "operators": list(facts.operators),
        "has_benchmark": bool(facts.benchmarks),
        "upstream": metadata.upstream,
        "source": metadata.source,
        "commit": None if made is None or made.kernel is None else made.kernel.commit,
        "backends": facts.backends,
        "variants": list(facts.builds),
        "archs": [arch for archs in facts.archs.values() for arch in archs],
        "torch_versions": facts.torch_versions,
        "python_depends": list(metadata.python_depends),
        "kernel_depends": [depend.repo_id for depend in metadata.kernel_depends],
    }
