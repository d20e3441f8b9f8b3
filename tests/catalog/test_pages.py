"""Pages of kernels and the list, made from the documents of a mirror."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import msgspec
import pytest
from mirror_tree import MirrorTree

from kernels.catalog.listing import KernelList
from kernels.catalog.pages import POLICY, assets, kernel_page, list_page
from kernels.catalog.shown import MAX_BUILDS, ShownBuild, ShownKernel, ShownVersion, shown_kernel
from kernels.models.mirror import MirrorArchive, MirrorPublisher, RepositoryIndex

VARIANTS = ("torch29-cxx11-cu128-x86_64-linux", "torch-cuda", "torch-cpu")


@pytest.fixture
def tree(tmp_path: Path) -> MirrorTree:
    return MirrorTree(tmp_path / "mirror")


def page_of(index: RepositoryIndex) -> str:
    return kernel_page(shown_kernel(index))[0].decode()


def words(html: str) -> str:
    """The text of a page, as it is read."""
    return " ".join(unescape(re.sub(r"<[^>]*>", "", re.sub(r"<head>.*?</head>", "", html, flags=re.DOTALL))).split())


def test_a_page_says_what_the_index_says(tree: MirrorTree) -> None:
    tree.add("acme/relu", version=1, variants=VARIANTS[:1])
    tree.add("acme/relu", version=2, variants=VARIANTS, files={"README.md": b"A fast ReLU.\n"}, absent=["torch-npu"])
    index = tree.indexes["acme/relu"]
    build = index.build(index.branches["v2"], "torch-cpu")
    assert build is not None
    html = page_of(index)
    text = words(html)
    assert "acme/relu A fast ReLU. Publisher trusted at its origin" in text
    assert 'get_kernel("acme/relu", version=2)' in text
    assert "At the origin, and not here: torch-npu" in text
    assert f"Commit {index.branches['v2']} of 2026-01-01, taken on 2026-01-02 from https://hub.example" in text
    assert f'href="../../../{build.archive.name}"' in html
    assert all(variant in text for variant in VARIANTS)
    assert "not signed" in text


def test_a_page_may_do_nothing_but_show_itself(tree: MirrorTree) -> None:
    tree.add()
    html = page_of(tree.indexes["acme/relu"])
    assert f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">' in unescape(html)
    assert "default-src 'none'" in POLICY
    assert not re.search(r"unsafe|https?:|\*", POLICY)
    assert not re.search(r"<script(?! src=)|<style|\son\w+=|\sstyle=|javascript:", html)
    own = re.findall(r'(?:src|rel="stylesheet" href)="([^"]+)"', html)
    assert own == [f"../../../{path}" for path in assets()]


@pytest.mark.parametrize(
    "branch",
    [
        "main", 'v1"+str(__import__("os").system("id"))+"', "v1'+str(print(1))+'", "v1\"'+print(1)+'\"", "it's", "${x}",
        "v1\u034f\u180b", "<b>&amp;", "\U0001f4a9",
    ],
)  # fmt: skip
def test_the_code_to_copy_asks_for_the_branch_and_does_nothing_else(branch: str) -> None:
    kernel = ShownKernel("acme/relu", (ShownVersion(branch, "0" * 40),))
    (code,) = re.findall(r"<pre[^>]* data-copy><code>(.*?)</code>", kernel_page(kernel)[0].decode(), re.DOTALL)
    imported, called = ast.parse(unescape(code)).body
    assert ast.unparse(imported) == "from kernels import get_kernel"
    assert isinstance(called, ast.Assign)
    assert isinstance(called.value, ast.Call)
    assert ast.unparse(called.value.func) == "get_kernel"
    values = [*called.value.args, *(each.value for each in called.value.keywords)]
    assert [ast.literal_eval(each) for each in values] == ["acme/relu", branch]


UGLY = '"><script>alert(1)</script>\u202e\x1b[31m{{ 7*7 }}{% x %}'


def test_every_text_of_a_repository_is_escaped() -> None:
    build = ShownBuild.of("torch-cpu" + UGLY, size=1, files=1, metadata=None, signature=None)
    real = ShownBuild.of("torch-cpu", size=1, files=1, metadata=None, signature=UGLY, archive=UGLY, archive_size=1)
    versions = (ShownVersion(UGLY, UGLY, UGLY, UGLY, (build, real), 3, (UGLY,), UGLY, {UGLY: UGLY}),)
    kernel = ShownKernel("acme/relu", versions, (UGLY,), True, UGLY, UGLY, None, {UGLY: UGLY}, (UGLY,))
    page, entry = kernel_page(kernel)
    html = (
        page.decode()
        + list_page(KernelList("x", (msgspec.structs.replace(entry, summary=UGLY, license=UGLY),))).decode()
    )
    assert "<script>" not in html
    assert "49" not in html
    assert not set("\u202e\x1b") & set(html)
    assert "&lt;script&gt;" in html


def test_links_of_the_metadata_lead_to_the_web_only() -> None:
    text = '{"name":"relu","id":"_relu","backend":{"type":"cpu"},"source":%s,"upstream":"https://a.example/x"}'
    for source in (
        '"javascript:alert(1)"',
        '"data:text/html,x"',
        '"https://a.example/ onclick=x"',
        '"https://u:p@a.example"',
    ):
        build = ShownBuild.of("torch-cpu", size=1, files=1, metadata=text % source, signature=None)
        html = kernel_page(ShownKernel("acme/relu", (ShownVersion("v1", "0" * 40, builds=(build,)),)))[0].decode()
        outside = re.findall(r'href="(?!\.\./|#)([^"]*)"', html)
        assert outside == ["https://a.example/x"]


def test_a_page_of_too_many_builds_says_how_many_are_left_out(tree: MirrorTree) -> None:
    tree.add(variants=["torch-cpu"])
    index = tree.indexes["acme/relu"]
    commit = index.branches["v1"]
    [content] = index.commits[commit].variants.values()
    many = {f"torch2{number % 10}-cxx11-cu{100 + number // 10}-x86_64-linux": content for number in range(10_000)}
    grown = msgspec.structs.replace(index.commits[commit], variants=many)
    html = page_of(msgspec.structs.replace(index, commits={commit: grown}))
    assert len(html) < 2_000_000
    assert html.count("<tr id=") == MAX_BUILDS
    assert f"{10_000 - MAX_BUILDS:,} more builds not shown." in words(html)
    assert "10,000 builds" in words(html)


def test_a_kernel_without_anything_has_a_page() -> None:
    html = kernel_page(ShownKernel("acme/relu", ()))[0].decode()
    assert "It has no version here." in words(html)
    assert "The publisher wrote no card." in words(html)


@pytest.mark.parametrize(("trusted", "said"), [(False, "Publisher not trusted"), (None, "Publisher's trust not known")])
def test_a_page_says_whether_the_publisher_is_trusted(tree: MirrorTree, trusted: bool | None, said: str) -> None:
    tree.add(trusted=trusted)
    assert said in words(page_of(tree.indexes["acme/relu"]))


def test_a_moved_kernel_leads_to_its_new_page(tree: MirrorTree) -> None:
    tree.add()
    tree.move("acme/relu", "acme/relu2")
    assert 'href="../../../catalog/acme/relu2/index.html"' in page_of(tree.indexes["acme/relu"])


def test_the_same_documents_give_the_same_pages_in_another_process(tree: MirrorTree) -> None:
    tree.add(variants=VARIANTS)
    index = tree.indexes["acme/relu"]
    program = (
        "import sys, msgspec; from kernels.catalog.pages import kernel_page; from kernels.catalog.shown import *;"
        "from kernels.models.mirror import RepositoryIndex as R;"
        "sys.stdout.buffer.write(kernel_page(shown_kernel(msgspec.json.decode(sys.stdin.buffer.read(), type=R)))[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=msgspec.json.encode(index), capture_output=True, check=True
    )
    assert done.stdout == kernel_page(shown_kernel(index))[0]


def test_the_list_finds_what_the_card_and_the_builds_say(tree: MirrorTree) -> None:
    card = b"A ReLU.\n\n<!-- kernels:begin functions -->\n### `relu`\n<!-- kernels:end functions -->\n"
    tree.add(variants=VARIANTS, files={"README.md": card}, trusted=None)
    entry = kernel_page(shown_kernel(tree.indexes["acme/relu"]))[1]
    assert (entry.repo_id, entry.number, entry.trusted) == ("acme/relu", 1, None)
    assert (entry.summary, entry.backends, entry.versions) == ("A ReLU.", ("cuda", "cpu"), ("v1",))
    assert (entry.names, entry.license, entry.date) == (("relu",), "Apache-2.0", "2026-01-01")


def test_a_list_is_read_again_as_it_was_written(tree: MirrorTree) -> None:
    tree.add()
    entry = kernel_page(shown_kernel(tree.indexes["acme/relu"]))[1]
    before = KernelList("made", (entry,))
    assert KernelList.parse(before.to_bytes()) == before


NOT_LISTS = [b"", b"kernelsCatalog()\n", b"kernelsCatalog(1)\n", b'kernelsCatalog({"made":"x","entries":[["../x"]]})\n']


@pytest.mark.parametrize("data", NOT_LISTS)
def test_what_is_no_list_is_made_again(data: bytes) -> None:
    assert KernelList.parse(data) is None


def test_the_first_page_holds_few_of_many_kernels(tree: MirrorTree) -> None:
    tree.add()
    entry = kernel_page(shown_kernel(tree.indexes["acme/relu"]))[1]
    entries = tuple(msgspec.structs.replace(entry, repo_id=f"org-{number:05}/kernel") for number in range(10_000))
    html = list_page(KernelList("made", entries))
    assert len(html) < 60_000
    assert "10,000 kernels from 10,000 publishers" in words(html.decode())


def test_an_untrusted_archive_name_is_no_address_elsewhere() -> None:
    archive = MirrorArchive("javascript:alert(1)", 1, "0" * 64)
    build = ShownBuild.of(
        "torch-cpu", size=1, files=1, metadata=None, signature=None, archive=archive.name, archive_size=1
    )
    html = kernel_page(ShownKernel("acme/relu", (ShownVersion("v1", "0" * 40, builds=(build,)),)))[0].decode()
    assert 'href="../../../javascript:alert(1)"' in html


def test_a_publisher_that_is_not_known_is_not_called_trusted(tree: MirrorTree) -> None:
    tree.add()
    index = msgspec.structs.replace(tree.indexes["acme/relu"], publisher=MirrorPublisher("acme", None))
    assert "Publisher trusted" not in words(page_of(index))
