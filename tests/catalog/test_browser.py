"""The pages in a real browser: the distribution's Chromium, without a network beyond this machine."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from chromium import NEEDS_CHROMIUM, browser
from hub import make_repo
from mirror_tree import MirrorTree, StaticServer

from kernels.catalog import write_catalog
from kernels.catalog.pages import page_path
from kernels.catalog.rules import backend_rules, build_facts
from kernels.catalog.shown import ShownBuild
from kernels.errors import InvalidMetadata, KernelsError
from kernels.mirror.stores.folder import FolderStore
from kernels.models.metadata import Metadata
from kernels.models.mirror import MIRROR_FILE, MirroredRepository, MirrorIndex, MirrorPublisher
from kernels.resolver.choice import resolve
from kernels.resolver.target import Target
from kernels.server import HubServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

__all__ = ["browser"]

pytestmark = NEEDS_CHROMIUM

KERNEL = page_path("acme/relu")
VARIANTS = [
    *(f"torch2{minor}-cxx11-cu{cuda}-{cpu}-linux" for minor in (9, 10) for cuda in (126, 128, 130)
      for cpu in ("x86_64", "aarch64")),
    "torch-stable-abi29-cu128-x86_64-linux",
    "torch210-cxx11-rocm70-x86_64-linux",
    "torch210-metal-aarch64-darwin",
    "torch-universal",
]  # fmt: skip
CARD = """\
---
license: mit
---
# ReLU

A fast ReLU. <script>alert(1)</script> <img src=x onerror=alert(1)> [bad](javascript:alert(1))

![Times](media/relu.svg) ![elsewhere](https://evil.example/x.png)

<!-- kernels:begin functions -->

### `swoosh_forward`

<!-- kernels:end functions -->

| A | |
|---|--:|
| `x_very_long_name_x_very_long_name_x_very_long_name_x_very_long_name` | 1 |
"""
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="900" height="40" onload="alert(1)"><script>alert(1)</script></svg>'
)
COUNT = 70


@dataclass
class Visit:
    """A tab, and what went wrong in it."""

    page: Page
    url: str
    wrong: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.url}/{path}")
        return self.page

    def width(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = MirrorTree(tmp_path_factory.mktemp("catalog") / "mirror")
    files = {"README.md": CARD.encode(), "media/relu.svg": SVG.encode()}
    tree.add("acme/relu", version=1, variants=["torch-cpu"])
    tree.add("acme/relu", version=2, variants=VARIANTS, files=files, archs=["8.0", "9.0"], absent=["torch-npu"])
    tree.add("acme/" + "long-name-" * 9 + "x", variants=["torch-cpu"])
    base = tree.indexes["acme/relu"]
    for number in range(COUNT):
        repo_id = f"org-{number % 7}/kernel-{number:03}"
        publisher = MirrorPublisher(repo_id.partition("/")[0], None)
        tree.indexes[repo_id] = msgspec.structs.replace(base, repo_id=repo_id, publisher=publisher)
    listed = {name: MirroredRepository(index.number, index.time) for name, index in tree.indexes.items()}
    mirror = MirrorIndex(number=1, time=base.time, writer="tests", repositories=listed)
    write_catalog(FolderStore(tree.root), mirror, tree.indexes.__getitem__)
    return tree.root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[StaticServer]:
    assert (root / MIRROR_FILE).is_file()
    with StaticServer(root) as found:
        yield found


def visit(browser: Browser, url: str, **options: Any) -> tuple[BrowserContext, Visit]:
    context = browser.new_context(viewport={"width": 1180, "height": 900}, **options)
    context.set_default_timeout(10_000)
    # Before the page's own script, and past its policy: what it would block is an event.
    context.add_init_script(
        "addEventListener('securitypolicyviolation', e => console.error('policy', e.violatedDirective, e.blockedURI))"
    )
    found = Visit(context.new_page(), url)
    found.page.on("console", lambda message: found.wrong.append(message.text) if message.type == "error" else None)
    found.page.on("pageerror", lambda error: found.wrong.append(str(error)))
    found.page.on("dialog", lambda dialog: (found.wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
    outside = lambda request: None if request.url.startswith((url, "data:")) else found.wrong.append(request.url)  # noqa: E731
    found.page.on("request", outside)
    return context, found


@pytest.fixture
def tab(browser: Browser, server: StaticServer) -> Iterator[Visit]:
    context, found = visit(browser, server.url)
    yield found
    context.close()
    assert found.wrong == []


def names(page: Page) -> list[str]:
    return [each.inner_text() for each in page.locator("#list > li > a").all()]


def test_the_search_finds_names_functions_layers_and_backends(tab: Visit) -> None:
    page = tab.open("index.html")
    assert page.locator("#list > li").count() == 50
    assert page.inner_text("#found") == f"The first 50 of {COUNT + 2}"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("KERNEL-043")
    page.locator("#found", has_text="1 kernel").wait_for()
    assert names(page) == ["org-1/kernel-043"]
    page.fill("#search", "swoosh_forward acme")
    page.locator("#list > li", has_text="acme/relu").wait_for()
    page.locator("#found", has_text="1 kernel").wait_for()
    assert names(page) == ["acme/relu"]
    page.fill("#search", "rocm relu")
    page.locator("#list > li", has_text="acme/relu").wait_for()
    page.fill("#search", "nothing-like-this")
    page.locator("#found", has_text="Nothing found.").wait_for()
    assert page.locator("#list > li").count() == 0
    page.fill("#search", "")
    page.select_option("#backend", "cpu")
    page.locator("#list > li", has_text="long-name").wait_for()
    assert len(names(page)) == 1


def test_more_kernels_are_shown_with_the_keyboard(tab: Visit) -> None:
    page = tab.open("index.html")
    page.focus("#more")
    page.keyboard.press("Enter")
    page.locator("#list > li").nth(COUNT + 1).wait_for()
    assert page.locator("#more").is_hidden()
    focused = page.evaluate("[...document.querySelectorAll('#list > li > a')].indexOf(document.activeElement)")
    assert focused == 50


def test_a_target_highlights_the_builds_that_fit(tab: Visit) -> None:
    page = tab.open(KERNEL)
    page.fill("#target", "torch2.10-cu129-x86_64-linux+sm_90")
    verdict = "5 of 16 builds of v2 fit; torch-stable-abi29-cu128-x86_64-linux would be loaded."
    expected = resolve(VARIANTS, Target.parse("torch2.10-cu129-x86_64-linux+sm_90"), check_arch=False)
    assert page.inner_text("#verdict") == verdict.replace("5", str(len(expected.accepted)), 1)
    assert page.locator("details[data-branch=v2] .chip.fits").count() == len(expected.accepted)
    assert page.locator("details[data-branch=v2] .chip.best").count() == 1
    assert "Would be loaded" in page.inner_text("tr.best")
    page.fill("#target", "a toaster")
    assert "Not a target" in page.inner_text("#target-problem")
    assert page.locator(".chip.fits").count() == 0
    page.fill("#target", "torch2.10-cu129-x86_64-linux+gfx942")
    assert "gfx942 is no architecture of cuda" in page.inner_text("#target-problem")


def test_each_offered_target_is_one_and_is_remembered(tab: Visit) -> None:
    page = tab.open(KERNEL)
    offered = [each.get_attribute("value") or "" for each in page.locator("#target-choice option").all()]
    for text in filter(lambda each: each not in ("", "other"), offered):
        page.select_option("#target-choice", text)
        assert page.inner_text("#target-problem") == ""
        found = resolve(VARIANTS, Target.parse(text), check_arch=False)
        assert page.locator("details[data-branch=v2] tr.fits").count() == len(found.accepted)
    chosen = page.input_value("#target")
    page.reload()
    assert page.input_value("#target") == page.input_value("#target-choice") == chosen


ARCHS: list[list[str] | None] = [None, ["8.0"], ["9.0a"], ["7.5+PTX"], ["8.6", "10.0f"], ["gfx942"], ["nonsense"]]
NAMES = [
    *("torch29-cxx11-cu126-x86_64-linux", "torch29-cxx98-cu126-x86_64-linux", "torch29-cu128-x86_64-windows"),
    *("torch29-cxx11-cu128-aarch64-linux", "torch210-cxx11-cu130-x86_64-linux", "torch210-cxx11-cu118-x86_64-linux"),
    *("torch-stable-abi29-cu128-x86_64-linux", "torch-stable-abi210-cu128-x86_64-linux"),
    *("torch-stable-abi29-cpu-x86_64-linux",),
    *("torch29-cxx11-rocm63-x86_64-linux", "torch29-cxx11-xpu20253-x86_64-linux", "torch29-cxx11-cann81-aarch64-linux"),
    *("torch29-metal-aarch64-darwin", "torch29-cpu-aarch64-darwin", "torch29-cxx11-cpu-x86_64-linux"),
    *("tvm-ffi01-cu128-x86_64-linux", "torch-cuda", "torch-rocm", "torch-npu", "torch-cpu", "torch-universal"),
    *("torch-metal",),
]  # fmt: skip
TARGETS = [
    *("torch2.9-cu126-x86_64-linux+sm_80", "torch2.9-cu128-x86_64-linux+sm_90"),
    *("torch2.9-cu129-aarch64-linux+2xsm_100",),
    *("torch2.10.1-cu130-x86_64-linux+8x9.0", "torch2.10-cu132-amd64-linux+sm_75", "torch2.9-cu118-x86_64-linux"),
    *("torch2.6-cxx98-cu126-x86_64-linux", "torch2.6-cu126-x86_64-linux", "torch2.9-cxx98-cu126-x86_64-linux+sm_86"),
    *("torch2.9-cu128-x64-win+sm_89", "cu128-x86_64-linux", "tvm-ffi0.1.5-cu130-x86_64-linux+sm_90", "cu-x86_64-linux"),
    *("torch2.9-py3.13t-cu128-x86_64-linux+sm_90", "torch2.9-py3.15t-cu128-x86_64-linux+sm_90"),
    *("torch2.9-rocm6.3-x86_64-linux+gfx942", "torch2.9-rocm63-x86_64-linux+gfx90a:xnack-"),
    *("torch2.9-rocm7.10-x86_64-linux",),
    *("torch2.9-xpu20253-x86_64-linux", "torch2.9-cann81-aarch64-linux", "torch2.9-cpu-x86_64-linux"),
    *("torch2.9-metal-arm64-macos26.1", "torch2.9-metal-aarch64-darwin15.5", "torch2.9-cpu-aarch64-darwin26"),
]  # fmt: skip
NO_TARGETS = [
    "",
    "x",
    "torch2.9",
    "torch2.9-cu128-x86_64-beos",
    "torch2.9-acme1-x86_64-linux",
    "cu128-x86_64-linux+",
    "torch2.9-cu128-x86_64-linux+x",
]
DECIDE = """([rules, builds, texts]) => texts.map(text => {
  const {parseTarget, judge, best} = kernelsRules;
  let target;
  try { target = parseTarget(text, rules); } catch { return null; }
  const fitting = builds.filter(build => judge(build, target, rules) === null);
  const chosen = best(fitting);
  return [fitting.map(build => build.name).sort(), chosen && chosen.name];
})"""


def builds(archs: list[str] | None) -> list[ShownBuild]:
    found = []
    for name in NAMES:
        kind = ShownBuild.of(name, size=1, files=1, metadata=None, signature=None).variant
        assert kind is not None
        backend = kind.backend if kind.backend != "universal" else "cuda"
        info = {"name": "relu", "id": "_relu", "backend": {"type": backend, "archs": archs}}
        text = msgspec.json.encode(info).decode()
        found.append(ShownBuild.of(name, size=1, files=1, metadata=text, signature=None))
    # One whose metadata is missing, and one that contradicts its name.
    found[0] = ShownBuild.of(NAMES[0], size=1, files=1, metadata=None, signature=None)
    wrong = '{"name":"relu","id":"_relu","backend":{"type":"rocm"}}'
    found[4] = ShownBuild.of(NAMES[4], size=1, files=1, metadata=wrong, signature=None)
    return found


def test_the_page_decides_as_the_resolver_does(tab: Visit) -> None:
    page = tab.open(KERNEL)
    rules = backend_rules()
    for archs in ARCHS:
        offered = builds(archs)
        facts = [msgspec.json.decode(build_facts(each)) for each in offered]
        metadata: dict[str, Metadata | KernelsError] = {
            each.name: each.metadata or InvalidMetadata("it is missing") for each in offered
        }
        found = page.evaluate(DECIDE, [rules, facts, TARGETS])
        for text, decided in zip(TARGETS, found, strict=True):
            expected = resolve(NAMES, Target.parse(text), metadata=metadata)
            best = None if expected.best is None else expected.best.name
            assert decided == [sorted(each.name for each in expected.accepted), best], (archs, text)
    for text in NO_TARGETS:
        with pytest.raises(KernelsError):
            Target.parse(text)
    assert page.evaluate(DECIDE, [rules, [], NO_TARGETS]) == [None] * len(NO_TARGETS)


def test_a_chip_leads_to_its_row_in_a_closed_version(tab: Visit) -> None:
    page = tab.open(KERNEL)
    page.locator("details[data-branch=v1] summary").focus()
    page.keyboard.press("Enter")
    chip = page.locator("details[data-branch=v1] .chip")
    chip.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector(':target th').innerText") == "torch-cpu"
    tab.open(f"{KERNEL}?again#b1-0")
    assert page.locator("details[data-branch=v1]").get_attribute("open") is not None


def test_the_keyboard_reaches_the_content_first(tab: Visit) -> None:
    page = tab.open(KERNEL)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_images_of_a_card_run_nothing(tab: Visit) -> None:
    page = tab.open(KERNEL)
    assert page.locator(".card img").count() == 1
    assert page.evaluate("document.querySelector('.card img').naturalWidth") == 900
    assert page.locator(".card script").count() == 0


def test_the_page_says_how_to_load_from_this_mirror(tab: Visit, server: StaticServer) -> None:
    page = tab.open(KERNEL)
    assert f"export KERNELS_HUB={server.url}" in page.inner_text("#load ~ div:last-of-type, section:has(#load)")


@pytest.mark.parametrize("path", ["index.html", KERNEL])
def test_nothing_is_wider_than_a_phone(browser: Browser, server: StaticServer, path: str) -> None:
    context, phone = visit(browser, server.url, device_scale_factor=2)
    phone.page.set_viewport_size({"width": 360, "height": 700})
    page = phone.open(path)
    if path == KERNEL:
        page.fill("#target", "torch2.10-cu129-x86_64-linux+sm_90")
    assert phone.width() == 360
    context.close()
    assert phone.wrong == []


def test_on_a_phone_buttons_cover_no_code(browser: Browser, server: StaticServer) -> None:
    context, phone = visit(browser, server.url, device_scale_factor=2)
    phone.page.set_viewport_size({"width": 360, "height": 700})
    page = phone.open(KERNEL)
    pairs = page.evaluate(
        """() => [...document.querySelectorAll(".copy")].map((each) => [each.querySelector("pre"),
            each.querySelector(".button")].map((one) => one.getBoundingClientRect().toJSON()))"""
    )
    assert pairs
    for code, button in pairs:
        assert button["top"] >= code["bottom"] or button["bottom"] <= code["top"]
        assert button["left"] >= 0
        assert button["right"] <= 360
    context.close()


@pytest.mark.parametrize("path", ["index.html", KERNEL])
def test_axe_finds_nothing(browser: Browser, server: StaticServer, path: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    # axe is put into the page, which the policy would forbid.
    context, found = visit(browser, server.url, reduced_motion="reduce", bypass_csp=True)
    page = found.open(path)
    if path == KERNEL:
        page.fill("#target", "torch2.10-cu129-x86_64-linux+sm_90")
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    backgrounds = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        backgrounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        # What the scheme changes is the colours.
        rules = {} if scheme == "light" else {"runOnly": ["color-contrast"]}
        results = axe.Axe().run(page, options=rules).response
        assert [(each["id"], each["nodes"][0]["html"]) for each in results["violations"]] == []
    assert backgrounds == ["rgb(251, 251, 250)", "rgb(18, 21, 20)"]
    context.close()


def test_pages_work_when_they_are_opened_as_files(browser: Browser, root: Path) -> None:
    context, found = visit(browser, root.as_uri())
    page = found.open("index.html")
    page.fill("#search", "kernel-043")
    page.locator("#found", has_text="1 kernel").wait_for()
    page.locator("#list a").click()
    page.locator("h1", has_text="kernel-043").wait_for()
    page.select_option("#target-choice", index=1)
    assert "would be loaded" in page.inner_text("#verdict")
    context.close()
    assert found.wrong == []


def test_without_scripts_the_pages_can_be_read(browser: Browser, server: StaticServer) -> None:
    context, found = visit(browser, server.url, java_script_enabled=False)
    page = found.open("index.html")
    assert page.locator("#list > li").count() == 50
    page.locator("#list a").nth(1).click()
    assert page.locator("#target-form").is_hidden()
    assert page.locator(".chip").first.is_visible()
    context.close()


def test_the_address_of_a_link_is_one_word_of_the_command_to_copy(browser: Browser, root: Path) -> None:
    # Python's own web server finds the page at this address, too.
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=root))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    context, found = visit(browser, f"http://127.0.0.1:{server.server_port}")
    chosen = "$(touch$IFS'x');x%2f.."
    command = found.open(f"{chosen}/{KERNEL}").inner_text("#from-here-code")
    context.close()
    server.shutdown()
    server.server_close()
    done = subprocess.run(["sh", "-c", f'{command}\nprintf %s "$KERNELS_HUB"'], stdout=subprocess.PIPE, text=True)
    assert done.stdout == f"{found.url}/{chosen}"
    assert found.wrong == []


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    files = {"README.md": "A fast ReLU.\n"}
    make_repo(tmp_path / "hub", "acme/relu", revision="main", variants=["torch-cpu"], files=files)
    with HubServer(tmp_path / "hub", token="hf_secret") as found:
        yield found


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_pages_of_a_hub_work_with_their_buttons(browser: Browser, hub: HubServer, host: str) -> None:
    context, found = visit(browser, f"http://{host}:{hub.port}", permissions=["clipboard-read", "clipboard-write"])
    page = found.open("")
    page.fill("#search", "relu")
    page.locator("#found", has_text="1 kernel").wait_for()
    page.locator("#list a").click()
    page.select_option("#target-choice", index=1)
    page.locator("#verdict", has_text="would be loaded").wait_for()
    for button, copied in zip(
        page.locator(".copy button").all(),
        (
            "from kernels import get_kernel\n\nkernel = get_kernel(\"acme/relu\", revision='main')",
            "export KERNELS_HUB=",
        ),
        strict=True,
    ):
        button.click()
        button.filter(has_text="Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()").startswith(copied)
    context.close()
    assert found.wrong == []


def test_another_website_cannot_read_the_list_of_a_hub(browser: Browser, hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "index.html").write_text(
        "<script>seen = []; kernelsCatalog = (found) => seen.push(found)</script>"
        f"<script src='{hub.url}/catalog/-/list.js'></script>"
        f"<script src='{hub.url}/kernels/acme/relu/resolve/main/README.md'></script>"
    )
    with StaticServer(tmp_path / "evil") as website:
        context, found = visit(browser, website.url)
        page = found.open("index.html")
        assert page.evaluate("seen") == []
        context.close()
    assert len([each for each in found.wrong if "ERR_BLOCKED" in each]) >= 1
