"""The built site in Chromium, opened from a disk: search, copying, both schemes, the width of a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chromium import NEEDS_CHROMIUM, browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser"]

pytestmark = NEEDS_CHROMIUM


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(20_000)
    page, wrong = context.new_page(), list[str]()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    # A page that is left does not wait for its icon.
    page.on("requestfailed", lambda request: "ERR_ABORTED" in str(request.failure) or wrong.append(request.url))
    page.on(
        "request", lambda request: None if request.url.startswith(("file:", "data:")) else wrong.append(request.url)
    )
    yield page
    context.close()
    assert wrong == []


def test_search_finds_pages_in_a_site_that_was_opened_from_a_disk(site: Path, tab: Page) -> None:
    tab.goto((site / "index.html").as_uri())
    tab.keyboard.press("/")
    tab.keyboard.type("lockfile")
    tab.wait_for_selector(".md-search-result__item a")
    found = [link.get_attribute("href") or "" for link in tab.locator(".md-search-result__link").all()]
    assert any("/lock.html" in link for link in found)


@pytest.mark.parametrize("name", ["kernelize", "LayerRepository", "NoSuitableBuild"])
def test_search_finds_a_name_of_the_python_api(name: str, site: Path, tab: Page) -> None:
    tab.goto((site / "index.html").as_uri())
    tab.keyboard.press("/")
    tab.keyboard.type(name)
    tab.wait_for_selector(".md-search-result__item a")
    found = [link.get_attribute("href") or "" for link in tab.locator(".md-search-result__link").all()]
    assert any(re.search(rf"/api/[a-z-]+\.html.*#kernels\.(?:errors\.)?{name}$", link) for link in found), found


@pytest.mark.parametrize(
    ("words", "expected"),
    {
        "sm_90": {"which-build.html", "variants.html"},
        "sm90": {"which-build.html"},
        "a build was rejected": {"which-build.html", "errors.html"},
        "No build fits": {"which-build.html", "errors.html"},
        "torch-cuda": {"variants.html"},
        "KERNELS_HUB": {"settings.html", "where-from.html"},
        "kernels.errors.NoSuitableBuild": {"errors.html"},
        "kernelize": {"kernelize.html"},
        "lockfile": {"lock.html", "lockfile.html"},
        "CUDA version mismatch": {"which-build.html"},
        "not trusted": {"trust.html"},
        "ssl certificate error": {"troubleshooting.html"},
        "how to publish": {"publish.html"},
        "add my chip": {"join-by-json.html"},
        "object store": {"mirrors.html"},
        "docker": {"offline.html"},
    }.items(),
)
def test_words_lead_to_the_pages_that_explain_them(words: str, expected: set[str], site: Path, tab: Page) -> None:
    tab.goto((site / "index.html").as_uri())
    tab.keyboard.press("/")
    tab.keyboard.type(words)
    # A list may show what was found for the first letters.
    links = f"""() => {{
        const found = [...document.querySelectorAll(".md-search-result__item > .md-search-result__link")];
        const pages = [...new Set(found.map(each => new URL(each.href).pathname.split("/").pop()))].slice(0, 3);
        return {sorted(expected)}.every(each => pages.includes(each));
    }}"""
    tab.wait_for_function(links)


@pytest.mark.parametrize(
    "page", ["index", "kernelize", "settings", "which-build", "notebooks/first-kernel", "api/get-kernels"]
)
def test_a_page_has_no_serious_fault_for_screen_readers_keyboards_and_weak_eyes(
    page: str, site: Path, browser: Browser
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = []
    # Tables scroll where the window is narrow.
    for scheme, width in (("light", 1300), ("dark", 600)):
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 844})
        tab = context.new_page()
        tab.goto((site / f"{page}.html").as_uri())
        tab.wait_for_function("""[...document.querySelectorAll(".md-typeset__scrollwrap")].every(
            each => each.scrollWidth <= each.clientWidth || each.tabIndex === 0)""")
        violations = axe.run(tab, options={"resultTypes": ["violations"]}).response["violations"]
        found += [
            (scheme, each["id"], node["target"], node["html"])
            for each in violations
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]
        context.close()
    assert found == []


def test_the_copy_button_takes_commands_without_prompts_and_output(site: Path, tab: Page) -> None:
    tab.goto((site / "five-minutes.html").as_uri())
    block = tab.locator(".highlight", has_text="kernels explain")
    block.hover()
    block.locator("button").first.click()
    tab.wait_for_function("navigator.clipboard.readText().then(text => text.includes('kernels'))")
    copied = tab.evaluate("navigator.clipboard.readText()").split()
    assert (copied[:3], copied[-1]) == (
        ["kernels", "explain", "kernels-examples/rms-norm"],
        "torch2.13-cu130-x86_64-linux+sm_90",
    )


def test_no_page_is_wider_than_a_phone(site: Path, tab: Page) -> None:
    tab.set_viewport_size({"width": 390, "height": 844})
    wide = []
    pages = [path for folder in (".", "api", "notebooks") for path in (site / folder).glob("*.html")]
    for path in sorted(path for path in pages if path.name != "404.html"):  # that one is for a server
        tab.goto(path.as_uri())
        width = int(tab.evaluate("document.documentElement.scrollWidth"))
        if width > 390:
            wide.append((path.name, width))
    assert wide == []


@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_systems_scheme_is_used_until_the_reader_chooses(site: Path, browser: Browser, system: Any) -> None:
    context = browser.new_context(color_scheme=system)
    page = context.new_page()

    def scheme() -> str:
        page.goto((site / "install.html").as_uri())
        red, green, blue = map(
            int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]
        )
        return "light" if red + green + blue > 380 else "dark"

    found = [scheme()]
    for _ in range(2):
        page.locator("label.md-header__button:not([hidden])[title]").first.click()
        found.append(scheme())  # on the next page too
    context.close()
    assert found == [system, "light", "dark"]


@pytest.mark.parametrize("width", [1300, 390])
def test_the_text_of_pictures_is_large_enough_and_inside_them(site: Path, tab: Page, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 844})
    wrong = []
    for page in ("design", "which-build", "trust", "caching", "kernelize", "benchmarks"):
        tab.goto((site / f"{page}.html").as_uri())
        found: dict[str, Any] = tab.evaluate(_PICTURES)
        assert found["shown"], page
        wrong += [f"{page}: {each}" for each in found["wrong"]]
    assert wrong == []


#: Which pictures are shown, and which of their texts are too small to read, or stand over the edge of their picture or
#: over another text.
_PICTURES = """() => {
    const shown = [], wrong = [];
    for (const picture of document.querySelectorAll("svg[role=img]")) {
        const frame = picture.getBoundingClientRect();
        if (!frame.width) continue;
        shown.push(picture.id);
        const scale = frame.width / picture.viewBox.baseVal.width, boxes = [];
        for (const text of picture.querySelectorAll("text")) {
            const box = text.getBoundingClientRect(), size = scale * parseFloat(getComputedStyle(text).fontSize);
            if (size < 11.9) wrong.push(`${picture.id}: ${text.textContent}: ${size}px`);
            if (box.left < frame.left || box.right > frame.right || box.bottom > frame.bottom)
                wrong.push(`${picture.id}: ${text.textContent} is not inside`);
            for (const [other, words] of boxes)
                if (Math.min(box.right, other.right) - Math.max(box.left, other.left) > 1 &&
                    Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top) > 3)
                    wrong.push(`${picture.id}: ${text.textContent} is over ${words}`);
            boxes.push([box, text.textContent]);
        }
    }
    return {shown, wrong};
}"""


def test_the_button_of_the_site_decides_whether_pictures_are_dark(site: Path, tab: Page) -> None:
    tab.emulate_media(color_scheme="light")
    tab.goto((site / "design.html").as_uri())
    colours = []
    for scheme in ("default", "slate"):
        tab.evaluate("scheme => document.body.setAttribute('data-md-color-scheme', scheme)", scheme)
        colours.append(tab.evaluate("getComputedStyle(document.querySelector('#picture-call .page')).fill"))
    assert colours == ["rgb(255, 255, 255)", "rgb(13, 17, 23)"]
