"""The catalogue that `kernels serve` shows to browsers."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Semaphore

import pytest
from hub import TestHub

from kernels.catalog import pages
from kernels.catalog.listing import LIST_FILE, KernelList
from kernels.catalog.pages import POLICY, assets
from kernels.server import HubServer
from kernels.server.kernel_pages import KernelPages

HTML = {"Accept": "text/html,application/xhtml+xml"}
SVG = "<svg xmlns='http://www.w3.org/2000/svg'/>"


def get(hub: TestHub | HubServer, path: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], str]:
    asked = urllib.request.Request(f"{hub.url}/{path}", headers=headers or {})
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read().decode()


@pytest.fixture
def served(hub: TestHub) -> TestHub:
    card = "A fast ReLU. <script>alert(1)</script>\n\n![Times](media/relu.svg)\n"
    hub.make_repo("acme/relu", variants=["torch-cpu"], files={"README.md": card, "media/relu.svg": SVG})
    hub.make_repo("acme/gelu", variants=["torch-cuda"])
    return hub


def test_a_browser_sees_the_list_at_the_root_and_a_program_does_not(served: TestHub) -> None:
    status, headers, body = get(served, "", HTML)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert 'href="catalog/acme/relu/index.html"' in body
    assert get(served, "")[0] == 404
    assert get(served, "index.html")[2] == body


def test_what_a_page_names_is_served_with_its_type_and_a_policy(served: TestHub) -> None:
    for path in ("", "index.html", LIST_FILE, "catalog/acme/relu/index.html", "catalog/acme/relu/", *assets()):
        status, headers, _ = get(served, path, HTML)
        assert status == 200, path
        assert headers["content-security-policy"] == f"{POLICY}; frame-ancestors 'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert path in assets() or "Authorization" in headers["vary"]
        kind = {"js": "text/javascript", "css": "text/css"}.get(path.rpartition(".")[2], "text/html")
        assert headers["content-type"].startswith(kind)


def test_the_page_of_a_kernel_shows_its_card_and_builds(served: TestHub) -> None:
    body = get(served, "catalog/acme/relu/index.html")[2]
    assert "A fast ReLU." in body
    assert "<script>" not in body
    assert '<img alt="Times" src="data:image/svg+xml;base64,' in body
    assert "torch-cpu" in body
    assert "Publisher trusted" in body
    assert "Download" not in body


def test_a_change_is_seen_at_the_next_request(served: TestHub) -> None:
    get(served, "catalog/acme/relu/index.html")
    card = served.root / "acme" / "relu" / "v1" / "README.md"
    card.write_text("A faster ReLU, which is new.\n")
    assert "A faster ReLU" in get(served, "catalog/acme/relu/index.html")[2]
    assert "A faster ReLU" in get(served, "", HTML)[2]
    served.make_repo("acme/silu", variants=["torch-cpu"])
    assert "acme/silu" in get(served, LIST_FILE)[2]


def test_private_repositories_need_the_token(served: TestHub) -> None:
    (served.root / "acme" / "relu" / ".private").touch()
    token = {"Authorization": "Bearer secret-token", **HTML}
    with HubServer(served.root, token="secret-token") as hub:
        for headers, status in ((HTML, 404), (token, 200), (HTML, 404)):
            assert get(hub, "catalog/acme/relu/index.html", headers)[0] == status
            assert ("acme/relu" in get(hub, "", headers)[2]) == (status == 200)
            assert ("acme/relu" in get(hub, LIST_FILE, headers)[2]) == (status == 200)


OTHER = [
    *("catalog/acme/absent/index.html", "catalog/../../x/index.html", "catalog/-/catalog.js"),
    *("catalog/-/..%2f..%2fpages.py", "catalog/acme/relu/README.md"),
]


@pytest.mark.parametrize("path", OTHER)
def test_other_pages_are_not_found(served: TestHub, path: str) -> None:
    assert get(served, path, HTML)[0] == 404


def test_without_jinja2_a_browser_reads_what_is_missing(served: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_environment", pages._environment.__wrapped__)  # it is cached
    monkeypatch.setitem(sys.modules, "jinja2", None)
    status, _, body = get(served, "", HTML)
    assert (status, "pip install" in body) == (501, True)
    assert get(served, "api/kernels/acme/relu/refs")[0] == 200


def test_many_requests_for_pages_leave_threads_for_the_hub(served: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go = Semaphore(0), Event()

    def slow(*arguments: object, **options: object) -> KernelList:
        began.release()
        assert go.wait(30)
        return KernelList("", ())

    monkeypatch.setattr(KernelPages, "entries", slow)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(get, served, "index.html") for _ in range(4)]
        for _ in waiting:
            assert began.acquire(timeout=30)
        try:
            status, headers, _ = get(served, "index.html")
            assert (status, headers["retry-after"]) == (503, "1")
            assert get(served, "api/kernels/acme/relu/refs")[0] == 200
        finally:
            go.set()
        assert [each.result()[0] for each in waiting] == [200] * 4
