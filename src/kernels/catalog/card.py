"""A kernel's README.md as HTML that no author wrote: Markdown alone, of whose raw HTML only the text is kept.

Links lead to http(s) addresses, or to the file at the repository's origin. Images are SVG files of the repository,
inside the page: a browser runs nothing in them and loads nothing for them, and no address serves them as a page.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, MutableMapping, Sequence
from html import escape, unescape
from itertools import pairwise
from typing import Any
from urllib.parse import quote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from kernels.support.text import clean

__all__ = [
    "MAX_CARD_BYTES",
    "MAX_IMAGES_BYTES",
    "MAX_IMAGE_BYTES",
    "CardText",
    "named_images",
    "offered_names",
    "read_card",
]

#: The largest card that is shown, the largest image, and all images together; a longer card is cut, other images are
#: left out.
MAX_CARD_BYTES = 128 * 1024
MAX_IMAGE_BYTES = 128 * 1024
MAX_IMAGES_BYTES = 256 * 1024
_MAX_NAMED = 16
_SVG = re.compile(r"(?<![\w./:-])(?:\./)?([A-Za-z0-9_-][A-Za-z0-9_./-]{0,200}\.svg)(?![\w./-])", re.ASCII)

#: Characters that end a link's scheme early or are read as another one (WHATWG URL, "URL parsing").
_UNSAFE_LINK = re.compile(r"[\x00-\x20\x7f\\]")
_RELATIVE = re.compile(r"(?:\./)?[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.-]+)*(?:#[A-Za-z0-9_-]*)?")
_LANGUAGE = re.compile(r"[a-z0-9+-]{1,20}")
_FRONT = re.compile(r"---[ \t]*\n.*?^---[ \t]*$\n?", re.DOTALL | re.MULTILINE)

#: The selectors of emoji and their joiner, which say how the character before is drawn.
_EMOJI = re.compile("[\ufe0e\ufe0f\u200d]")
_SPACES = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")

#: What `kernels upload` puts between in a card, and what names stand in: headings of functions, rows of layers.
_MARKER = re.compile(r"<!-- kernels:(begin|end) ([a-z-]{1,20}) -->")
_GENERATED = "<!-- kernels:begin "
_FUNCTION = re.compile(r"^### `([A-Za-z_][\w.]{0,99})`[ \t]*$", re.MULTILINE | re.ASCII)
_LAYER = re.compile(r"^\| `([A-Za-z_]\w{0,99})` ", re.MULTILINE | re.ASCII)
_MAX_NAMES = 200

#: How the card begins that another tool writes for every kernel.
_SAYS_NOTHING = "This is the repository card of "

#: Elements whose content is no text.
_NO_TEXT = frozenset(
    {"script", "style", "template", "title", "textarea", "iframe", "noscript", "object", "svg", "math"}
)

#: A tag as a card would have it; what is longer is text.
_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9-]{0,20})((?:\s[^<>]{0,1000})?)/?>")
_ATTRIBUTE = re.compile(r"""([A-Za-z-]{1,30})=("[^"]*"|'[^']*'|[^\s"'>]+)""")

_TOP_LEVEL, _LAST_LEVEL = 3, 6


def named_images(text: str) -> list[str]:
    """The SVG files of the repository that a card may show, by path, in its order.

    Args:
        text: The content of README.md.

    Example:
        >>> named_images("![Times](media/relu.svg) ![x](../y.svg)")
        ['media/relu.svg']
    """
    found = dict.fromkeys(match[1] for match in _SVG.finditer(text[:MAX_CARD_BYTES]))
    return [path for path in found if ".." not in path][:_MAX_NAMED]


class CardText:
    """A card.

    Attributes:
        html: Its text as HTML; "" if there is none.
        summary: Its first paragraph as plain text.
        functions: The functions that its generated part lists.
        layers: The layers that its generated part lists.
        cut: Whether the end was left out.
    """

    def __init__(self, html: str, summary: str, functions: Sequence[str], layers: Sequence[str], *, cut: bool) -> None:
        self.html = html
        self.summary = summary
        self.functions = tuple(functions)
        self.layers = tuple(layers)
        self.cut = cut


def read_card(text: str, *, images: Mapping[str, str] | None = None, origin: str = "") -> CardText:
    """A card's text as safe HTML.

    Args:
        text: The content of README.md.
        images: SVG images by path in the repository.
        origin: The URL below which the repository's files are shown, for relative links; "" makes them plain text.

    Example:
        >>> read_card("Hello <script>alert(1)</script> [you](javascript:x)").html
        '<p>Hello  <span>you</span></p>\\n'
    """
    encoded = text.encode("utf-8", "replace")
    whole = encoded[:MAX_CARD_BYTES].decode("utf-8", "ignore").removeprefix("\ufeff").replace("\r\n", "\n")
    front = _FRONT.match(whole)
    body = clean(_SPACES.sub(" ", _EMOJI.sub("", whole if front is None else whole[front.end() :])))
    functions, layers = offered_names(body)
    parser = MarkdownIt("commonmark", renderer_cls=_Renderer).enable(["table", "strikethrough"])
    parser.validateLink = lambda url: True  # type: ignore[method-assign] # the renderer decides, and keeps the text
    environment: MutableMapping[str, Any] = {"images": images or {}, "origin": origin}
    tokens = parser.parse(body, environment)
    html = parser.renderer.render(tokens, parser.options, environment)
    return CardText(
        html,
        _summary(parser.parse(body.partition(_GENERATED)[0])),
        functions,
        layers,
        cut=len(encoded) > MAX_CARD_BYTES,
    )


def offered_names(text: str) -> tuple[list[str], list[str]]:
    """The functions and the layers that the generated parts of a card list.

    Example:
        >>> offered_names("<!-- kernels:begin functions -->\\n### `relu`\\n<!-- kernels:end functions -->")
        (['relu'], [])
    """
    parts: dict[str, str] = {}
    begun: re.Match[str] | None = None
    for match in _MARKER.finditer(text):
        if match[1] == "end" and begun is not None and begun[2] == match[2]:
            parts[match[2]] = text[begun.end() : match.start()]
        begun = match if match[1] == "begin" else None
    functions = _FUNCTION.findall(parts.get("functions", ""))
    layers = _LAYER.findall(parts.get("layers", ""))
    return list(dict.fromkeys(functions))[:_MAX_NAMES], list(dict.fromkeys(layers))[:_MAX_NAMES]


def _summary(tokens: Sequence[Token]) -> str:
    """The first paragraph that has text."""
    for before, token in pairwise(tokens):
        if before.type == "paragraph_open" and token.type == "inline":
            pieces = (each for each in token.children or () if each.type in ("text", "code_inline", "softbreak"))
            words = " ".join("".join(" " if each.type == "softbreak" else each.content for each in pieces).split())
            if len(words) > 3 and not words.startswith(_SAYS_NOTHING):
                return words if len(words) <= 180 else words[:179].rstrip() + "…"
    return ""


class _Renderer(RendererHTML):
    """Writes every tag itself. Nothing of the author's is markup."""

    def __init__(self, parser: Any = None) -> None:
        super().__init__(parser)
        self._levels: list[int] = []
        self._links: list[str] = []
        self._hidden = ""
        self._images_bytes = 0
        self._paragraph: Sequence[Token] = ()
        self._ends: dict[str, int] = {}

    def text(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        return "" if self._hidden else escape(tokens[index].content)

    def heading_open(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        # Below the page's own headings, and without a gap: a card may begin at any level.
        level = int(tokens[index].tag[1:])
        while self._levels and self._levels[-1] >= level:
            self._levels.pop()
        self._levels.append(level)
        return f"<h{self._level()}>"

    def heading_close(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        return f"</h{self._level()}>\n"

    def _level(self) -> int:
        return min(_TOP_LEVEL - 1 + len(self._levels), _LAST_LEVEL)

    def link_open(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        target = _target(str(tokens[index].attrs.get("href", "")), env["origin"])
        self._links.append("span" if target is None else "a")
        if target is None:
            return "<span>"
        return f'<a href="{escape(target)}" rel="nofollow noopener noreferrer">'

    def link_close(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        return f"</{self._links.pop()}>"

    def image(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        token = tokens[index]
        return self._image(token.content, str(token.attrs.get("src", "")), "", env)

    def _image(self, alt: str, source: str, dark: str, env: Any) -> str:
        light_image, dark_image = self._data(source, env), self._data(dark, env) if dark else ""
        if not light_image:
            # An image from elsewhere would tell that site who reads this page.
            return f'<span class="no-image">[image not shown{": " * bool(alt)}{escape(alt)}]</span>'
        picture = f'<img alt="{escape(alt)}" src="{light_image}">'
        if not dark_image:
            return picture
        source_dark = f'<source media="(prefers-color-scheme: dark)" srcset="{dark_image}">'
        return f"<picture>{source_dark}{picture}</picture>"

    def _data(self, source: str, env: Any) -> str:
        text = env["images"].get(source.removeprefix("./"))
        data = b"" if text is None else text.encode("utf-8", "replace")
        if not data or len(data) > MAX_IMAGE_BYTES or self._images_bytes + len(data) > MAX_IMAGES_BYTES:
            return ""
        self._images_bytes += len(data)
        return f"data:image/svg+xml;base64,{base64.b64encode(data).decode()}"

    def fence(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        language = tokens[index].info.strip().split(" ")[0].lower()
        name = f' data-language="{language}"' if _LANGUAGE.fullmatch(language) else ""
        return f'<pre tabindex="0"{name}><code>{escape(tokens[index].content)}</code></pre>\n'

    def code_block(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        return f'<pre tabindex="0"><code>{escape(tokens[index].content)}</code></pre>\n'

    def code_inline(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        return "" if self._hidden else f"<code>{escape(tokens[index].content)}</code>"

    def table_open(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        return '<div class="scroll" role="region" aria-label="Table" tabindex="0"><table>\n'

    def table_close(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        return "</table></div>\n"

    def th_open(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        if not tokens[index + 1].content.strip():  # an empty heading is read aloud as one
            return "<td>"
        return f'<th scope="col"{_aligned(tokens[index])}>'

    def th_close(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        return "</th>\n" if tokens[index - 1].content.strip() else "</td>\n"

    def td_open(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        return f"<td{_aligned(tokens[index])}>"

    def ordered_list_open(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        start = tokens[index].attrs.get("start")
        return f'<ol start="{start}">\n' if isinstance(start, int) else "<ol>\n"

    def html_block(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        found = _Text(tokens[index].content)
        pieces = [self._image(alt, source, dark, env) for alt, source, dark in found.images]
        words = " ".join(found.text.split())
        inside = "".join([escape(words), *pieces])
        return f"<p>{inside}</p>\n" if inside else ""

    def html_inline(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        tag = tokens[index].content
        match = re.match(r"<(/?)([A-Za-z][A-Za-z0-9-]*)", tag)
        name = match[2].lower() if match is not None else ""
        if match is not None and match[1] and name == self._hidden:
            self._hidden = ""
        elif match is not None and not match[1] and name in _NO_TEXT and not self._hidden:
            # Hidden up to its end tag, if there is one in this paragraph.
            self._hidden = name if self._last_end(tokens, name) > index else ""
        if name == "br":
            return "<br>"
        if name == "img":
            return "".join(self._image(alt, source, dark, env) for alt, source, dark in _Text(tag).images)
        return ""

    def _last_end(self, tokens: Sequence[Token], name: str) -> int:
        if self._paragraph is not tokens:
            self._paragraph = tokens
            ends = ((_TAG.match(each.content), number) for number, each in enumerate(tokens))
            self._ends = {match[2].lower(): number for match, number in ends if match is not None and match[1]}
        return self._ends.get(name, -1)


def _target(url: str, origin: str) -> str | None:
    """Where a link of a card leads: an http(s) address, or None."""
    if _UNSAFE_LINK.search(url) or len(url) > 2000:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme.lower() in ("http", "https") and parts.netloc:
        return None if "@" in parts.netloc else url
    if origin and _RELATIVE.fullmatch(url) and ".." not in url:
        return f"{origin}/{quote(url.removeprefix('./'), safe='/#')}"
    return None


def _aligned(token: Token) -> str:
    style = str(token.attrs.get("style", ""))
    return ' class="number"' if style == "text-align:right" else ""


class _Text:
    """The text and the images of a piece of HTML, in one pass: its parser must not be slow for what is not HTML."""

    def __init__(self, html: str) -> None:
        self.images: list[tuple[str, str, str]] = []
        pieces: list[str] = []
        hidden, dark, position = "", "", 0
        html = _without_comments(html)
        for match in _TAG.finditer(html):
            pieces.append("" if hidden else html[position : match.start()])
            pieces.append(" ")
            position = match.end()
            name = match[2].lower()
            if match[1]:
                hidden = "" if name == hidden else hidden
                continue
            if name in _NO_TEXT:
                hidden = hidden or name
            if name not in ("img", "source"):
                continue
            values = {each[1].lower(): unescape(each[2].strip("\"'")) for each in _ATTRIBUTE.finditer(match[3])}
            if name == "img":
                self.images.append((values.get("alt", ""), values.get("src", ""), dark))
                dark = ""
            elif "dark" in values.get("media", ""):
                dark = values.get("srcset", "")
        pieces.append("" if hidden else html[position:])
        self.text = unescape("".join(pieces))


def _without_comments(html: str) -> str:
    pieces, position = [], 0
    while (start := html.find("<!--", position)) >= 0:
        pieces.append(html[position:start])
        end = html.find("-->", start + 4)
        position = len(html) if end < 0 else end + 3
    return "".join([*pieces, html[position:]])
