"""The card of a published kernel: its `README.md`, generated or written by the author."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from kernels.models.metadata import Metadata
from kernels.resolver.variant import parse_variant

__all__ = ["CARD_FILE", "kernel_card"]

CARD_FILE = "README.md"

#: An SPDX identifier that a Hub's card can have, in lower case and without "-only" or "-or-later"
#: (https://huggingface.co/docs/hub/repositories-licenses); anything else is an "other" license with a name.
_SIMPLE_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")


def kernel_card(
    repo_id: str, branch: str, metadata: Metadata, variants: Iterable[str], readme: str | None = None
) -> str:
    """A kernel's card: Markdown with a front matter.

    Args:
        repo_id: The repository, `org/name`.
        branch: The branch that the card is for.
        metadata: The metadata of the builds.
        variants: The names of the branch's builds.
        readme: The author's page: used as the card, with a front matter added if it has none.

    Example:
        >>> data = b'{"name": "relu", "id": "_r", "version": 1, "license": "MIT", "backend": {"type": "cpu"}}'
        >>> print(kernel_card("acme/relu", "v1", Metadata.from_bytes(data), ["torch-cpu"]).split("---")[1].strip())
        library_name: kernels
        license: mit
        tags:
        - kernels
    """
    if readme is not None:
        return readme if readme.startswith("---") else f"{_front_matter(metadata)}\n{readme}"
    names = sorted(variants)
    backends = {name: parse_variant(name).backend for name in names}
    version = None if metadata.version is None else f"version={metadata.version}"
    asked = version if version is not None and branch == f"v{metadata.version}" else f"revision={json.dumps(branch)}"
    facts = {
        "Version": None if metadata.version is None else str(metadata.version),
        "License": metadata.license,
        "Backends": ", ".join(sorted(set(backends.values()))),
        "Upstream": metadata.upstream,
        "Source": metadata.source,
        "Python packages": ", ".join(metadata.python_depends),
        "Other kernels": ", ".join(map(str, metadata.kernel_depends)),
    }
    rows = "\n".join(f"| {_cell(key)} | {_cell(value)} |" for key, value in facts.items() if value)
    builds = "\n".join(f"| `{name}` | {_cell(backends[name])} |" for name in names)
    return f"""{_front_matter(metadata)}
# {_cell(metadata.name)}

| | |
|---|---|
{rows}

## Usage

```python
from kernels import get_kernel

kernel = get_kernel("{repo_id}", {asked})
```

`get_kernel` chooses the best build for the machine; `kernels explain {repo_id}` shows which one and why.

## Builds

| Variant | Backend |
|---|---|
{builds}
"""


def _front_matter(metadata: Metadata) -> str:
    return f"""---
library_name: kernels
{_license(metadata.license)}tags:
- kernels
---
"""


def _license(name: str | None) -> str:
    if not name:
        return ""
    simple = name.lower().removesuffix("-only").removesuffix("-or-later")
    if _SIMPLE_LICENSE.fullmatch(simple) and not simple.startswith("licenseref"):
        return f"license: {simple}\n"
    # A JSON string is a YAML string as well (YAML 1.2, 1.3).
    return f"license: other\nlicense_name: {json.dumps(name)}\n"


def _cell(text: str) -> str:
    """A text for a cell of a table: on one line, with its markup escaped."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return re.sub(r"([\\|<>`*_\[\]])", r"\\\1", plain)
