"""The pages as bytes. Every text is escaped by the template's engine, and cleaned of characters that are not seen."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kernels._version import __version__
from kernels.catalog.card import CardText, read_card
from kernels.catalog.listing import LIST_FILE, KernelEntry, KernelList, kernel_entry
from kernels.catalog.matrix import build_matrix
from kernels.catalog.rules import backend_label, backend_rules, build_facts, common_targets
from kernels.catalog.shown import ShownKernel, ShownVersion
from kernels.errors import MissingPythonDependency
from kernels.support.text import one_line

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = [
    "INDEX_FILE",
    "POLICY",
    "assets",
    "check_catalog",
    "kernel_page",
    "list_page",
    "made",
    "page_path",
    "render_kernel",
]

INDEX_FILE = "index.html"

#: Kernels in the first page itself; a browser shows the others from the list. Also `PAGE` in catalog.js.
_FIRST = 50

#: What a page may do: show itself with its own script and style, and images that are inside it. `frame-ancestors` has
#: no effect in a page; a server may send it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types kernels-list"
)

_HERE = Path(__file__).parent
_UNITS = ("kB", "MB", "GB", "TB")


def page_path(repo_id: str) -> str:
    """The path of a kernel's page in a mirror.

    Example:
        >>> page_path("org/relu")
        'catalog/org/relu/index.html'
    """
    return f"catalog/{repo_id}/{INDEX_FILE}"


@cache
def made() -> str:
    """What pages are made with: this version, its templates and its code."""
    digest = hashlib.sha256(__version__.encode())
    for path in sorted(_HERE.rglob("*")):
        if path.suffix in (".py", ".html", ".css", ".js"):
            digest.update(path.relative_to(_HERE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:32]


@cache
def assets() -> dict[str, bytes]:
    """The style and the script by path: named by their content, so that older pages keep theirs."""
    found = {}
    for name in ("catalog.css", "catalog.js"):
        content = (_HERE / "static" / name).read_bytes()
        stem, _, kind = name.partition(".")
        found[f"catalog/-/{stem}.{hashlib.sha256(content).hexdigest()[:16]}.{kind}"] = content
    return found


def kernel_page(kernel: ShownKernel) -> tuple[bytes, KernelEntry]:
    """A kernel's page, and its entry in the list."""
    cards = {version.branch: _card(kernel, version) for version in kernel.versions}
    newest = kernel.newest
    card = None if newest is None else cards[newest.branch]
    return render_kernel(kernel, card), kernel_entry(kernel, card)


def render_kernel(kernel: ShownKernel, card: CardText | None) -> bytes:
    """A kernel's page.

    Args:
        kernel: What it shows.
        card: The card of its newest version, if it has one.
    """
    newest = kernel.newest
    builds = [build for version in kernel.versions for build in version.builds]
    return _render(
        "kernel.html",
        root="../../../",
        kernel=kernel,
        newest=newest,
        card=card,
        facts=_facts(kernel, newest),
        matrices={version.branch: build_matrix(version.builds) for version in kernel.versions},
        targets=common_targets(builds),
        rules=msgspec.json.encode(backend_rules()).decode(),
    )


def list_page(kernels: KernelList) -> bytes:
    """The first page: the kernels, and a search.

    Args:
        kernels: The list, sorted by name.
    """
    found = kernels.entries
    names = dict.fromkeys(sorted({name for entry in found for name in entry.backends}))
    return _render(
        "list.html",
        root="",
        entries=found[:_FIRST],
        count=len(found),
        publishers=len({entry.repo_id.partition("/")[0] for entry in found}),
        backends=[(name, backend_label(name)) for name in names],
        list_file=LIST_FILE,
    )


def check_catalog() -> None:
    """Raise a `MissingPythonDependency` if jinja2 is not installed."""
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise MissingPythonDependency(
            "Pages need the package jinja2, which is not installed: pip install jinja2 (the extra `mirror`)"
        ) from None


def _card(kernel: ShownKernel, version: ShownVersion) -> CardText | None:
    if version.card is None:
        return None
    web = kernel.origin.startswith(("https://", "http://"))
    origin = f"{kernel.origin.rstrip('/')}/{kernel.repo_id}/blob/{version.commit}" if web else ""
    return read_card(version.card, images=version.images, origin=origin)


def _facts(kernel: ShownKernel, newest: ShownVersion | None) -> dict[str, list[str]]:
    """What the builds of the newest version say of themselves, each fact once."""
    found: dict[str, dict[str, None]] = {}
    for build in () if newest is None else newest.builds:
        metadata = build.metadata
        if metadata is None:
            continue
        kernels = [f"{each.repo_id} {each.branch or ''}".strip() for each in metadata.kernel_depends]
        client = f"kernels {metadata.kernels_minver} or newer" if metadata.kernels_minver else None
        said: dict[str, Sequence[str | None]] = {
            "License": [metadata.license],
            "Other kernels": kernels,
            "Python packages": metadata.python_depends,
            "Source": [metadata.source],
            "Upstream": [metadata.upstream],
            "Client": [client],
        }
        for name, values in said.items():
            found.setdefault(name, {}).update({value: None for value in values if value})
    return {name: list(values)[:40] for name, values in found.items() if values}


def _render(template: str, **values: Any) -> bytes:
    style, script = assets()
    page = _environment().get_template(template)
    return page.render(policy=POLICY, style=style, script=script, **values).encode()


@cache
def _environment() -> Environment:
    check_catalog()
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_cleaned,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": format_bytes,
        "day": format_day,
        "facts": build_facts,
        "backend": backend_label,
        "python": repr,
        "trusted_html": _trusted_html,
        "web": _is_web,
        "short": _shortened,
    }
    return environment


def _cleaned(value: Any) -> Any:
    return one_line(value) if type(value) is str else value


def _trusted_html(card: CardText) -> Any:
    """The HTML that `read_card` wrote."""
    from markupsafe import Markup

    return Markup(card.html)


def _is_web(url: str) -> bool:
    """Whether a text of the metadata is a plain http(s) address that may be a link."""
    return url.startswith(("https://", "http://")) and url.isascii() and not set(url) & set(" @\"'<>\\\t\n\r")


def _shortened(values: Sequence[str], most: int = 200) -> list[str]:
    return [each if len(each) <= most else each[: most - 1] + "…" for each in values]


def format_bytes(size: int) -> str:
    """A size as a page shows it.

    Example:
        >>> [format_bytes(each) for each in (1, 999, 1234, 56_789_000)]
        ['1 B', '999 B', '1.2 kB', '56.8 MB']
    """
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in _UNITS:
        value /= 1000
        if value < 999.5 or unit == _UNITS[-1]:
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    raise AssertionError


def format_day(time: str) -> str:
    """The day of a time in ISO 8601; the text itself if it is none.

    Example:
        >>> format_day("2026-03-04T05:06:07Z"), format_day("2026-03-04T23:30:00-02:00"), format_day("x")
        ('2026-03-04', '2026-03-05', 'x')
    """
    try:
        found = datetime.fromisoformat(time.replace("Z", "+00:00"))
    except ValueError:
        return time[:40]
    try:
        return (found if found.tzinfo is None else found.astimezone(timezone.utc)).strftime("%Y-%m-%d")
    except OverflowError:
        return time[:40]
