"""A card becomes HTML in which nothing of its author's is markup."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from kernels.catalog.card import MAX_CARD_BYTES, MAX_IMAGE_BYTES, read_card

ORIGIN = "https://hub.example/acme/relu/blob/abc"

PLAIN = ("blockquote", "br", "code", "em", "h3", "h4", "h5", "h6", "hr", "li", "p", "picture", "s", "strong", "table",
         "tbody", "thead", "tr", "ul")  # fmt: skip

#: What a card may become, and the attributes that each element may have.
ALLOWED = {
    "a": {"href", "rel"},
    "div": {"class", "role", "aria-label", "tabindex"},
    "img": {"alt", "src"},
    "ol": {"start"},
    "pre": {"tabindex", "data-language"},
    "source": {"media", "srcset"},
    "span": {"class"},
    "td": {"class"},
    "th": {"class", "scope"},
    **{name: set() for name in PLAIN},
}


class Elements(HTMLParser):
    """The elements of a page, of which none may be open at the end."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("br", "hr", "img", "source"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


HOSTILE = [
    "<script>alert(1)</script>",
    "a <script>alert(1)</script> b",
    "<SCRIPT SRC=//evil.example/x.js>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<math><mi//xlink:href='javascript:alert(1)'>",
    "<a href='javascript:alert(1)' onclick=alert(1)>x</a>",
    "<style>*{background:url(//evil.example)}</style>",
    "<base href=//evil.example><form action=//evil.example><button>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<div><p><table><td>unclosed",
    "</main></body></html><h1>x",
    "<!-- --!><script>alert(1)</script> -->",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<?xml-stylesheet href='x'?>",
    '<div a="\'><img src=x onerror=alert(1)>">',
    "[x](javascript:alert(1))",
    "[x](java&#115;cript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](<java\tscript:alert(1)>)",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:x)",
    "[x](//evil.example)",
    "[x](\\\\evil.example)",
    "[x](https://user:word@evil.example/)",
    "[x](../../../etc/passwd)",
    "[x](/absolute)",
    "[x](file:///etc/passwd)",
    '[x](https://a.example "onmouseover=alert(1)")',
    '[x](https://a.example/"onmouseover="alert(1))',
    "<javascript:alert(1)>",
    "![x](https://evil.example/track.png)",
    "![x](javascript:alert(1))",
    "![x](data:image/svg+xml;base64,PHN2Zz4=)",
    '![" onerror="alert(1)](plot.svg)',
    "[a]: javascript:alert(1)\n\n[a]",
    '```"><script>alert(1)</script>\nx\n```',
    "```\n</code></pre><script>alert(1)</script>\n```",
    "    </code></pre><script>alert(1)</script>",
    "`</code><script>alert(1)</script>`",
    "| <script> | b |\n|-|-:|\n| </td><script>alert(1)</script> | `|` |",
    "<details open ontoggle=alert(1)>",
    "[x](https://a.example/`)<b>",
    "\x00<scr\x00ipt>alert(1)</scr\x00ipt>",
    "---\ntitle: <script>alert(1)</script>\n---\nText",
]


@pytest.mark.parametrize("card", HOSTILE)
def test_a_hostile_card_has_no_element_or_attribute_of_its_own(card: str) -> None:
    for text in (card, f"Before\n\n{card}\n\nAfter", f"> - {card}"):
        html = read_card(text, images={"plot.svg": "<svg onload='alert(1)'/>"}, origin=ORIGIN).html
        for tag, attributes in Elements(html).found:
            assert set(attributes) <= ALLOWED[tag]
            href = attributes.get("href") or "https://"
            assert href.startswith(("https://", "http://"))
            assert "@" not in href
            image = attributes.get("src") or attributes.get("srcset") or "data:image/svg+xml;base64,"
            assert image.startswith("data:image/svg+xml;base64,")


def test_the_text_of_a_hostile_card_stays_readable() -> None:
    assert read_card("a <b onclick=x>bold</b> word").html == "<p>a bold word</p>\n"
    assert read_card("<div align=center>\n<h1>Title</h1>\n</div>").html == "<p>Title</p>\n"
    assert read_card("1 < 2 & 3 > 2").html == "<p>1 &lt; 2 &amp; 3 &gt; 2</p>\n"


@pytest.mark.parametrize("unsafe", ["\u202e", "\u2066", "\u200b", "\x1b[31m", "\x07"])
def test_characters_that_change_what_is_seen_are_shown_as_escapes(unsafe: str) -> None:
    html = read_card(f"trusted{unsafe}detsurt").html
    assert not set(unsafe) & set("\u202e\u2066\u200b\x1b\x07") & set(html)
    assert "\\" in html


def test_emoji_and_wide_spaces_stay() -> None:
    assert read_card("⚠️ 5\u00a0ms").html == "<p>⚠ 5 ms</p>\n"


LINKS = [
    ("https://a.example/x?y=1&z", "https://a.example/x?y=1&amp;z"),
    ("LICENSE", f"{ORIGIN}/LICENSE"),
    ("./docs/a.md#part", f"{ORIGIN}/docs/a.md#part"),
]


@pytest.mark.parametrize(("written", "href"), LINKS)
def test_links_lead_to_the_web_or_to_the_origin(written: str, href: str) -> None:
    assert (
        f'<a href="{href}" rel="nofollow noopener noreferrer">x</a>' in read_card(f"[x]({written})", origin=ORIGIN).html
    )


def test_without_an_origin_relative_links_are_text() -> None:
    assert read_card("[x](LICENSE)").html == "<p><span>x</span></p>\n"


def test_an_svg_of_the_repository_is_an_image_inside_the_page() -> None:
    card = (
        '<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="media/d.svg">\n'
        '  <img alt="Times &amp; more" src="media/l.svg">\n</picture>'
    )
    html = read_card(card, images={"media/l.svg": "<svg/>", "media/d.svg": "<svg />"}).html
    light, dark = "data:image/svg+xml;base64,PHN2Zy8+", "data:image/svg+xml;base64,PHN2ZyAvPg=="
    assert html == (
        f'<p><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img alt="Times &amp; more" src="{light}"></picture></p>\n'
    )


def test_an_image_that_is_too_large_is_left_out() -> None:
    html = read_card("![plot](a.svg)", images={"a.svg": " " * (MAX_IMAGE_BYTES + 1)}).html
    assert html == '<p><span class="no-image">[image not shown: plot]</span></p>\n'


def test_headings_stand_below_those_of_the_page_and_leave_no_level_out() -> None:
    tags = [tag for tag, _ in Elements(read_card("## A\n\n##### B\n\n# C\n\n## D").html).found]
    assert tags == ["h3", "h4", "h3", "h4"]


def test_the_summary_is_the_first_paragraph_that_says_something() -> None:
    card = (
        "---\nlicense: mit\n---\n![badge](https://x.example)\n\n# relu\n\nThis is the repository card of x.\n\n"
        "A `fast`\n*ReLU*.\n"
    )
    assert read_card(card).summary == "A fast ReLU."
    assert read_card("<!-- kernels:begin usage -->\n\nWords of ours.\n").summary == ""


def test_functions_and_layers_are_those_of_the_generated_parts() -> None:
    card = """\
### `not_one`
<!-- kernels:begin functions -->
### `relu`
### `layers.gelu`
<!-- kernels:end functions -->
<!-- kernels:begin layers -->
| Layer | Forward |
|---|---|
| `ReLU` | x |
<!-- kernels:end layers -->
"""
    found = read_card(card)
    assert (found.functions, found.layers) == (("relu", "layers.gelu"), ("ReLU",))


#: What takes a parser that looks ahead from each of them minutes.
REPEATED = {
    "tags": "<a " * 10_000,
    "quotes in a tag": "<div>\n" + "<a x='" * 10_000,
    "scripts": "x " + "<script>" * 8_000,
    "comments": "<div>\n" + "<!--" * 15_000,
    "brackets": "[" * 20_000,
    "images": "![" * 8_000,
    "emphasis": "*a_ " * 8_000,
    "front matter": "---\n" * 8_000,
    "markers": "<!-- kernels:begin aa -->" * 4_000,
    "quotations": ">" * 100_000,
    "cells": "|a" * 200 + "\n" + "|-" * 200 + "\n" + "|x\n" * 4_000,
}


@pytest.mark.parametrize("card", REPEATED.values(), ids=REPEATED)
def test_no_card_becomes_large(card: str) -> None:
    assert len(read_card(card).html) < 4 * 1024 * 1024


def test_a_long_card_is_cut() -> None:
    found = read_card("word " * MAX_CARD_BYTES)
    assert found.cut
    assert len(found.html) <= MAX_CARD_BYTES + 100
