"""A `CARD.md`: a Jinja template, as published sources have it, filled in without running code of its author.

Jinja's sandbox gives it data alone, and it is filled in in a process with limits: no list of what templates may use
bounds what they cost.
Templates for other builders are read with the settings that these use: the line break after a block tag is dropped, and
a name that is not known is empty.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from kernels.authoring.publish.card.facts import CardFacts
from kernels.authoring.publish.card.front_matter import hub_license
from kernels.authoring.publish.card.python_api import Offer
from kernels.errors import MissingPythonDependency, RequestError
from kernels.support.formatting import did_you_mean, format_text
from kernels.support.limited_call import LimitExceeded, call_limited

__all__ = ["PLACEHOLDERS", "fill_template"]

#: The most characters of a filled template, and the time and memory that filling it may take: real ones take
#: milliseconds.
_MAX_CARD = 4 * 1024 * 1024
_SECONDS, _MEMORY = 10.0, 512 * 1024**2

#: What a template of values of the wrong kind, or one that is nested too deep, ends with.
_FAILURES = (TypeError, ValueError, LookupError, ArithmeticError, RecursionError, SyntaxError)

#: What a template prints; other values, such as a function, print nothing.
_PRINTED = (str, int, float, list, tuple, dict, type(None))


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
        RequestError: The template is not valid Jinja, takes too much time or memory, or makes too large a page.
        MissingPythonDependency: It has placeholders, and jinja2 is not installed.
    """
    if not any(sign in template for sign in ("{{", "{%", "{#")):
        return template, []
    if importlib.util.find_spec("jinja2") is None:
        raise MissingPythonDependency(
            f"{where} has placeholders, and jinja2, which fills them in, is not installed: pip install jinja2 (the "
            "extra `build`)."
        )
    try:
        page, unknown = call_limited(_fill, template, facts, where, seconds=_SECONDS, memory=_MEMORY)
    except LimitExceeded as error:
        raise RequestError(f"{where}: the template cannot be filled in: {error}.") from None
    notes = [
        f"{where}: the placeholder {name!r} is not known, and left empty.{did_you_mean(name, PLACEHOLDERS)}"
        for name in unknown
    ]
    return page, notes


def _fill(template: str, facts: CardFacts, where: str) -> tuple[str, list[str]]:
    """The page, and the placeholders that are not known."""
    import jinja2
    from jinja2 import meta
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Environment(ImmutableSandboxedEnvironment):
        """Of a value, a template sees data: no methods."""

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            return not callable(value) and super().is_safe_attribute(obj, attr, value)

        def wrap_str_format(self, value: Any) -> None:
            """Nothing: `str.format` is a method like others."""

        def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
            return self.undefined(obj=obj, name=attribute)  # as an attribute that does not exist

    environment = Environment(trim_blocks=True, keep_trailing_newline=True, autoescape=False, finalize=_printed)
    environment.globals.clear()
    try:
        values = _values(facts)
        unknown = sorted(meta.find_undeclared_variables(environment.parse(template)) - values.keys())
        parts, size = [], 0
        for part in environment.from_string(template).generate(values):
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
    return "".join(parts), unknown


def _printed(value: Any) -> Any:
    return value if isinstance(value, _PRINTED) else ""


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
