"""Make a card: the author's text, with the generated parts between markers, where the next upload replaces them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kernels.authoring.publish.card.facts import CardFacts
from kernels.authoring.publish.card.front_matter import complete_front_matter, split_front_matter
from kernels.authoring.publish.card.markdown import cell, text
from kernels.authoring.publish.card.parts import PARTS, generate_parts
from kernels.authoring.publish.card.template import fill_template
from kernels.authoring.publish.card.unwritten import note_on_new_page
from kernels.authoring.publish.local_builds import CARD_FILE, TEMPLATE_FILE
from kernels.errors import RequestError
from kernels.support.files import FileTooLarge, read_bounded
from kernels.support.formatting import did_you_mean

__all__ = ["Card", "PublishedCards", "make_card"]

#: The largest page that is read.
_MAX_PAGE_BYTES = 4 * 1024 * 1024

_BEGIN, _END = "<!-- kernels:begin {} -->", "<!-- kernels:end {} -->"
_MARKER = re.compile(r"<!-- kernels:(begin|end|omit) ([a-z-]+) -->[ \t]*")
#: Last in a card: the hash of the author's text, by which the next upload sees whether it was edited on the Hub, and
#: whether that text was generated, too.
_TEXT = re.compile(r"<!-- kernels:text ([0-9a-f]{64})( generated)? -->")
#: A marker in a text of the kernel, which is none.
_INSIDE = "<!-- kernels:"

#: What an author's text has that says how to load the kernel, and the part that says it otherwise.
_LOADS, _USAGE = "get_kernel(", "usage"

CardOrigin = Literal["CARD.md", "README.md", "generated", "Hub"]


@dataclass(frozen=True)
class Card:
    """A kernel's card.

    Attributes:
        text: The page, Markdown with a front matter.
        origin: Where its text comes from: the folder's `CARD.md` or `README.md`, the page on the Hub, or nowhere.
        files: The images that it shows, by path in the repository.
        notes: What its author should know.
    """

    text: str
    origin: CardOrigin
    files: Mapping[str, Path] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PublishedCards:
    """The pages that are on the Hub: the one of the branch, and that of `main`, which the Hub shows; None if absent."""

    branch: str | None = None
    main: str | None = None


def make_card(
    facts: CardFacts,
    template: Path | None = None,
    readme: Path | None = None,
    published: PublishedCards | None = None,
    *,
    replace: bool = False,
) -> Card:
    """A kernel's card.

    The author's text is that of `CARD.md`, else of `README.md`, else of the page on the Hub. Generated parts stand
    between the markers `<!-- kernels:begin NAME -->` and `<!-- kernels:end NAME -->`; those that the text has no
    markers for are put at its end, except after `<!-- kernels:omit NAME -->`.

    Args:
        facts: What the generated parts say.
        template: The author's `CARD.md`, a template.
        readme: The author's `README.md`, used as it is.
        published: The pages on the Hub. One that was edited there since the last upload keeps its text.
        replace: Whether the author's files replace a page that was edited on the Hub.

    Raises:
        RequestError: A file is not UTF-8 or is too large, the template or its front matter is not valid, or a marker
            has no counterpart.
        MissingPythonDependency: A template needs jinja2, which is not installed.
    """
    notes: list[str] = []
    parts = generate_parts(facts)
    page, origin, where = _authors_page(facts, template, readme, notes)
    notes += filter(None, [note_on_new_page(page, where)])
    whole = _assemble(page, facts, parts, where)
    record = _digest(_author_text(whole))
    mark = f"<!-- kernels:text {record}{' generated' if origin == 'generated' else ''} -->"
    hub = None if published is None or replace else _to_keep(published, record, generated=origin == "generated")
    if hub is not None:
        where = f"{CARD_FILE} on the Hub"
        whole = _assemble(_author_text(hub), facts, parts, where, lenient=True)
        if origin == "generated":
            kept = _recorded(hub)
            mark = mark if kept is None else kept[0]  # the next upload with a text still sees whether it was edited
            notes.append(f"{where}: its text is kept, and the generated parts are put into it")
        else:
            notes.append(
                f"{where} was edited since the last upload: its text is kept, and that of {origin} is not used. Copy "
                f"the edit into {origin}, or give --replace-card"
            )
        origin = "Hub"
    files = {name: file for plot in facts.plots for name, file in plot.files}
    # Of the author's files, not of an edited page, so that the next upload sees the edit too.
    return Card(f"{whole}\n{mark}\n", origin, files, tuple(notes))


def _to_keep(published: PublishedCards, local: str, *, generated: bool) -> str | None:
    """The page on the Hub whose text stays: one edited there; or one that somebody wrote, if there is no other text."""
    for page in (published.main, published.branch):
        if page is None:
            continue
        record, found = _recorded(page), _digest(_author_text(page))
        if record is None:
            keep = generated
        elif found == record[1]:
            keep = generated and record[2] is None and found != local
        else:
            keep = found != local
        if keep:
            return page
    return None


def _assemble(page: str, facts: CardFacts, parts: Mapping[str, str], where: str, *, lenient: bool = False) -> str:
    page = complete_front_matter(page, facts.metadata.license, where)
    front, body = split_front_matter(page, where)
    return f"---\n{front}---\n\n{_place(body.strip(chr(10)), parts, where, lenient=lenient)}\n"


def _authors_page(
    facts: CardFacts, template: Path | None, readme: Path | None, notes: list[str]
) -> tuple[str, CardOrigin, str]:
    if template is not None:
        page, found = fill_template(_read(template), facts, TEMPLATE_FILE)
        notes += found
        return page, "CARD.md", TEMPLATE_FILE
    if readme is not None:
        return _read(readme), "README.md", CARD_FILE
    introduction = text(facts.api.doc.strip().partition("\n\n")[0])
    return f"# {cell(facts.metadata.name)}\n\n{introduction}\n", "generated", CARD_FILE


def _read(file: Path) -> str:
    try:
        # Some editors begin a file with a byte order mark.
        return read_bounded(file, _MAX_PAGE_BYTES).decode("utf-8-sig").replace("\r\n", "\n")
    except FileTooLarge:
        raise RequestError(f"{file} has more than {_MAX_PAGE_BYTES} bytes.") from None
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise RequestError(f"{file} is not UTF-8, which a Hub needs to show it.") from None


def _place(body: str, parts: Mapping[str, str], where: str, *, lenient: bool) -> str:
    """The text with the parts between their markers, and the others at its end."""
    try:
        pieces = list(_pieces(body, where))
    except RequestError:
        if not lenient:
            raise
        # On the Hub anybody may have deleted a marker: the text stays, the parts begin anew.
        body = "\n".join(line for line in body.split("\n") if not _MARKER.fullmatch(line))
        pieces = list(_pieces(body, where))
    placed = {name for kind, name, _ in pieces if kind != "text"}
    if _LOADS in "\n".join(content for _, _, content in pieces):
        placed.add(_USAGE)  # the author says how to load it
    blocks = []
    for kind, name, content in pieces:
        blocks.append(_block(name, parts.get(name, "")) if kind == "begin" else content.strip("\n"))
    blocks += [_block(name, part) for name, part in parts.items() if name not in placed]
    return "\n\n".join(filter(None, blocks))


def _block(name: str, part: str) -> str:
    inside = part.replace(_INSIDE, _INSIDE.replace(" ", ""))
    return "\n\n".join(filter(None, (_BEGIN.format(name), inside, _END.format(name))))


def _pieces(body: str, where: str) -> Iterator[tuple[str, str, str]]:
    """A body in pieces: the author's text (`text`), generated parts (`begin`), and those left out (`omit`)."""
    lines: list[str] = []
    inside, begun = "", 0
    for number, line in enumerate(body.split("\n"), 1):
        match = _MARKER.fullmatch(line)
        if match is None:
            lines += [] if inside else [line]
            continue
        kind, name = match[1], match[2]
        if name not in PARTS:
            raise RequestError(
                f"{where}: the marker {line.strip()!r} names no part of a card.{did_you_mean(name, PARTS)} "
                f"There are {', '.join(PARTS)}."
            )
        if (kind == "end") != bool(inside) or (inside and name != inside):
            raise RequestError(f"{where}: the marker {line.strip()!r} has no counterpart before it, or inside another.")
        if kind == "omit":
            lines.append(line)
            yield "omit", name, "\n".join(lines)
            lines = []
        elif kind == "begin":
            yield "text", "", "\n".join(lines)
            lines, inside, begun = [], name, number
        else:
            yield "begin", name, ""
            inside = ""
    if inside:
        raise RequestError(f"{where}: the marker {_BEGIN.format(inside)!r} ({begun}. line of the text) has no end.")
    yield "text", "", "\n".join(lines)


def _author_text(page: str) -> str:
    """A page without what was generated: its markers stay, the parts between them and the record do not."""
    page = _TEXT.sub("\n", page)
    kept: list[str] = []
    inside = ""
    for line in page.split("\n"):
        match = _MARKER.fullmatch(line)
        if match is not None and match[1] == "end" and match[2] == inside:
            inside = ""
        if not inside:
            kept.append(line.rstrip())
        if match is not None and match[1] == "begin":
            inside = match[2]
    if inside:
        return page  # its end was deleted: nothing is known to be generated
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip("\n") + "\n"


def _recorded(page: str) -> re.Match[str] | None:
    """The record at the end of a page."""
    records = list(_TEXT.finditer(page))
    return records[-1] if records else None


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
