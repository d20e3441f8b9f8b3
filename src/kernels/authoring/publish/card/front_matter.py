"""The front matter of a card: YAML between two lines `---`, which a Hub reads. It is kept, and completed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from kernels.errors import RequestError
from kernels.support.formatting import format_text, format_value

__all__ = ["complete_front_matter", "hub_license", "split_front_matter"]

#: The largest front matter, in characters.
_MAX_LENGTH = 64 * 1024

#: An SPDX identifier that a Hub's card can have, in lower case and without "-only" or "-or-later"
#: (https://huggingface.co/docs/hub/repositories-licenses); anything else is an "other" license with a name.
_SIMPLE_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")

_LIBRARY = "kernels"
_TAG = "kernels"


def complete_front_matter(page: str, license: str | None, where: str) -> str:
    r"""A card whose front matter has what a Hub needs: `library_name`, `license` and the tag `kernels`.

    What an author wrote stays; only a licence that a Hub would refuse is written as it expects it.

    Args:
        page: The card. Without a front matter it gets one.
        license: The licence of the builds, an SPDX expression.
        where: The file's name in error messages.

    Raises:
        RequestError: The front matter is not YAML that a Hub would read.

    Example:
        >>> print(complete_front_matter("# ReLU\n", "MIT", "README.md"))
        ---
        library_name: kernels
        license: mit
        tags:
        - kernels
        ---
        <BLANKLINE>
        # ReLU
        <BLANKLINE>
    """
    front, body = split_front_matter(page, where)
    if front is None:
        return f"---\nlibrary_name: {_LIBRARY}\n{_license_lines(license)}tags:\n- {_TAG}\n---\n\n{body}"
    entries = _entries(front, where)
    values = {key: value for key, (value, _, _) in entries.items()}
    edits: list[tuple[int, int, str]] = []
    added = "" if "library_name" in values else f"library_name: {_LIBRARY}\n"
    written = values.get("license")
    if written is None or "license" not in values:
        lines = _license_lines(license)
        if "license" not in values:
            added += lines
        elif lines:
            edits.append((*entries["license"][1:], lines))
    elif isinstance(written, str) and written != hub_license(written) and hub_license(written) is not None:
        edits.append((*entries["license"][1:], f"license: {hub_license(written)}\n"))
    elif isinstance(written, str) and hub_license(written) is None and "license_name" not in values:
        edits.append((*entries["license"][1:], _license_lines(written)))
    tags = values.get("tags")
    if "tags" not in values or tags is None:
        lines = f"tags:\n- {_TAG}\n"
        if "tags" in values:
            edits.append((*entries["tags"][1:], lines))
        else:
            added += lines
    else:
        names = [tags] if isinstance(tags, str) else tags
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise RequestError(
                f"{where}: `tags` in the front matter is {format_value(tags)}; expected a list of texts."
            )
        if _TAG not in names:
            block = "".join(f"- {json.dumps(name, ensure_ascii=False)}\n" for name in [*names, _TAG])
            edits.append((*entries["tags"][1:], f"tags:\n{block}"))
    if front.lstrip().startswith("{"):
        if edits or added:
            raise RequestError(f"{where}: the front matter is in braces; write a line for each key instead.")
        return page
    for start, end, lines in sorted(edits, reverse=True):
        front = front[:start] + lines + front[end:]
    if added:
        front = front.rstrip("\n") + "\n" * bool(front.strip()) + added
    return f"---\n{front}---\n{body}"


def split_front_matter(page: str, where: str = "README.md") -> tuple[str | None, str]:
    r"""The front matter of a page, without its lines `---`, and the rest; None if it has none.

    Raises:
        RequestError: The page begins with `---`, and no other such line follows.

    Example:
        >>> split_front_matter("---\nlicense: mit\n---\n# ReLU\n")
        ('license: mit\n', '# ReLU\n')
    """
    lines = page.split("\n")
    if lines[0].rstrip() != "---":
        return None, page
    for number, line in enumerate(lines[1:], 1):
        if line.rstrip() == "---":
            return "".join(f"{each}\n" for each in lines[1:number]), "\n".join(lines[number + 1 :])
    raise RequestError(f"{where}, line 1: the front matter begins with `---`, and no line `---` ends it.")


def hub_license(name: str) -> str | None:
    """A licence as a Hub's card can have it: a lower-case identifier. None if it needs `other` and a name.

    Example:
        >>> hub_license("Apache-2.0"), hub_license("GPL-3.0-only"), hub_license("MIT OR Apache-2.0")
        ('apache-2.0', 'gpl-3.0', None)
    """
    simple = name.lower().removesuffix("-only").removesuffix("-or-later")
    return simple if _SIMPLE_LICENSE.fullmatch(simple) and not simple.startswith("licenseref") else None


def _license_lines(name: str | None) -> str:
    if not name:
        return ""
    simple = hub_license(name)
    # A JSON string is a YAML string as well (YAML 1.2, 1.3).
    return f"license: other\nlicense_name: {json.dumps(name)}\n" if simple is None else f"license: {simple}\n"


def _entries(front: str, where: str) -> dict[str, tuple[Any, int, int]]:
    """The keys at the top: each with its value, and where its lines begin and end in the text."""
    import yaml

    if len(front) > _MAX_LENGTH:
        raise RequestError(f"{where}: the front matter has more than {_MAX_LENGTH} characters.")
    text = f"---\n{front}"  # so that lines are counted as in the file
    try:
        _check_aliases(yaml.parse(text, Loader=yaml.SafeLoader), where)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = format_text(": ".join(filter(None, (error.context, error.problem))))
        line = f", line {mark.line + 1}" if mark else ""
        raise RequestError(f"{where}{line}: the front matter is not YAML: {why}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RequestError(f"{where}: the front matter is not YAML: {format_text(error)}.") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise RequestError(f"{where}: the front matter is {format_value(values)}; expected keys and values.")
    found: dict[str, tuple[Any, int, int]] = {}
    nodes = root.value
    for index, (key, _) in enumerate(nodes):
        name = key.value
        if not isinstance(name, str) or name in found:
            raise RequestError(
                f"{where}, line {key.start_mark.line + 1}: the key {format_value(name)} stands twice, or is not a text."
            )
        start = key.start_mark.index - len("---\n")
        end = nodes[index + 1][0].start_mark.index - len("---\n") if index + 1 < len(nodes) else len(front)
        found[name] = (values.get(name), start, end)
    return found


def _check_aliases(events: Iterable[Any], where: str) -> None:
    """Refuse a document that repeats a part of it, which could make a small text large."""
    import yaml

    for event in events:
        if isinstance(event, yaml.AliasEvent):
            line = event.start_mark.line + 1
            raise RequestError(f"{where}, line {line}: an alias (`*name`) is not allowed in a front matter.")
