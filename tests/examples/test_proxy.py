"""The caching proxy of `examples/cluster/proxy`: this machine's nginx in front of a Hub that can be switched off."""

from __future__ import annotations

import datetime
import hashlib
import http.server
import os
import re
import shutil
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from nginx import Nginx, needs_nginx
from writable_hub import TOKEN, WritableHub

from kernels import get_kernel
from kernels.errors import RepositoryNotFound

PROXY = Path(__file__).parents[2] / "examples" / "cluster" / "proxy"
SLICE = 16 * 2**20

pytestmark = needs_nginx


class Proxy(Nginx):
    """The proxy in front of a Hub."""

    def __init__(self, folder: Path, upstream: str, **variables: str) -> None:
        self.cache, self.log = folder / "cache", folder / "access.log"
        defaults = {
            "PROXY_STATE": os.fspath(folder),
            "PROXY_UPSTREAM": upstream,
            "PROXY_LOG": os.fspath(self.log),
            "PROXY_BRANCHES": "day",
            "PROXY_RESOLVER": "127.0.0.1",
        }
        super().__init__(PROXY / "serve.sh", folder, "PROXY_LISTEN", {**defaults, **variables})

    def __enter__(self) -> Proxy:
        return self

    def ask(self, path: str, method: str = "GET", *, token: str | None = None, **headers: str) -> requests.Response:
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return requests.request(method, f"{self.url}{path}", headers=headers, timeout=30, allow_redirects=False)

    def stored(self) -> bytes:
        """Everything that it has on disk."""
        return b"".join(path.read_bytes() for path in sorted(self.cache.rglob("*")) if path.is_file())


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WritableHub]:
    """The Hub behind the proxy; each test has repositories of its own."""
    with WritableHub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture(scope="module")
def proxy(upstream: WritableHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with Proxy(tmp_path_factory.mktemp("p") / "s", upstream.url, PROXY_FILE_HOSTS="^http://127.0.0.1:[0-9]+") as each:
        yield each


@pytest.fixture(autouse=True)
def healthy(upstream: WritableHub) -> Iterator[None]:
    upstream.clear()
    yield
    upstream.heal()


@contextmanager
def off(hub: WritableHub) -> Iterator[None]:
    """The Hub is away."""
    hub.down()
    try:
        yield
    finally:
        hub.up()


def content(name: str, size: int) -> bytes:
    return hashlib.shake_128(name.encode()).digest(size)


def path_of(hub: WritableHub, repo_id: str, file: str, revision: str | None = None) -> str:
    return f"/kernels/{repo_id}/resolve/{revision or hub.commit(repo_id)}/build/torch-cpu/{file}"


def test_a_commit_s_files_are_asked_for_once_and_for_ever(upstream: WritableHub, proxy: Proxy) -> None:
    data = content("large", 2 * SLICE + 1000)
    files = {"large.so": data, "small.so": b"\0binary", "empty.py": b""}
    folder = upstream.make_repo("acme/once", variants={"torch-cpu": files}) / "build" / "torch-cpu"
    commit = upstream.commit("acme/once")
    expected = {path.name: path.read_bytes() for path in folder.iterdir()}
    for method in ("HEAD", "GET", "GET", "HEAD"):
        for name, body in expected.items():
            path = path_of(upstream, "acme/once", name)
            direct = requests.head(f"{upstream.url}{path}", allow_redirects=False, timeout=30)
            answer = proxy.ask(path, method, **{"Accept-Encoding": "gzip"})
            assert answer.status_code == 200
            assert answer.content == (body if method == "GET" else b"")
            assert answer.headers["Content-Length"] == str(len(body))
            assert answer.headers["X-Repo-Commit"] == commit
            for header in ("X-Linked-Size", "X-Linked-ETag"):
                assert answer.headers.get(header) == direct.headers.get(header)
            assert answer.headers["ETag"] == direct.headers.get("X-Linked-ETag", direct.headers["ETag"])
    upstream_asked = [path for method, path in upstream.requests if method == "GET"]
    # Binary files have a redirect, and large ones are requested in slices.
    assert len(upstream_asked) == (len(expected) - 2) + 2 + 3 * 2
    tree = f"/api/kernels/acme/once/tree/{commit}?recursive=true"
    listed = proxy.ask(tree).json()
    upstream.clear()
    with off(upstream):
        assert proxy.ask(tree, **{"Accept-Encoding": "identity"}).json() == listed
        path = path_of(upstream, "acme/once", "large.so")
        assert proxy.ask(path).content == data
        ranged = proxy.ask(path, Range=f"bytes={SLICE - 5}-{SLICE + 4}")
        assert (ranged.status_code, ranged.content) == (206, data[SLICE - 5 : SLICE + 5])
        assert ranged.headers["Content-Range"] == f"bytes {SLICE - 5}-{SLICE + 4}/{len(data)}"
        assert proxy.ask(path, Range=f"bytes={2 * SLICE}-").content == data[2 * SLICE :]
        same = proxy.ask(path, **{"If-None-Match": ranged.headers["ETag"]})
        assert same.status_code == 304
    assert upstream.requests == []


def test_many_clients_are_one_request(upstream: WritableHub, proxy: Proxy) -> None:
    upstream.make_repo("acme/many", variants={"torch-cpu": {"large.so": content("many", SLICE + 1000)}})
    upstream.delay("", 0.1)
    large = path_of(upstream, "acme/many", "large.so")
    paths = ["/api/kernels/acme/many/refs", "/api/organizations/acme/overview"]
    paths += [large, path_of(upstream, "acme/many", "layers.py")]
    for path in paths:
        with ThreadPoolExecutor(64) as pool:
            bodies = list(pool.map(lambda number, path=path: proxy.ask(path, Range="bytes=0-999").content, range(64)))
        assert len(bodies[0]) > 0
        assert set(bodies) == {bodies[0]}
    asked = [path for _, path in upstream.requests if not path.startswith("/lfs/")]
    assert asked == paths
    assert len(upstream.requests) == len(paths) + 1


def test_branches_are_at_most_a_minute_old(upstream: WritableHub, tmp_path: Path) -> None:
    # A second, here.
    with Proxy(tmp_path / "p", upstream.url, PROXY_BRANCHES="second") as proxy:
        refs = {
            name: f"/api/kernels/acme/{name}/refs" for name in ("moving", "429", "500", "502", "503", "504", "gone")
        }
        for name in refs:
            upstream.make_repo(f"acme/{name}")
        before = {name: proxy.ask(path).json() for name, path in refs.items()}
        upstream.make_repo("acme/moving", seed="changed")
        wait_until(lambda: proxy.ask(refs["moving"]).json() != before["moving"])
        before["moving"] = proxy.ask(refs["moving"]).json()
        assert before["moving"]["branches"][0]["targetCommit"] == upstream.commit("acme/moving")
        # While the Hub is away, the last answer, with each kind of failure.
        for name in refs:
            if name.isdecimal():
                upstream.fail(f"acme/{name}/refs", status=int(name))
        shutil.rmtree(upstream.root / "acme" / "gone")
        wait_until(lambda: proxy.ask(refs["gone"]).status_code == 404)
        time.sleep(1.1)
        for name in sorted(set(refs) - {"gone"}):
            answer = proxy.ask(refs[name])
            assert answer.json() == before[name]
            assert ("Warning" in answer.headers) == name.isdecimal()
        assert upstream.count("acme/429/refs") == 2
        with off(upstream):
            time.sleep(1.1)
            assert proxy.ask(refs["moving"]).json() == before["moving"]
            assert proxy.ask("/api/kernels/acme/unknown/refs").status_code == 502
            assert proxy.ask("/health").text == "ok\n"


def wait_until(done: Callable[[], bool], seconds: float = 20) -> float:
    begun = time.monotonic()
    while not done():
        assert time.monotonic() - begun < seconds
        time.sleep(0.05)
    return time.monotonic() - begun


def test_what_is_missing_is_asked_for_again_soon(upstream: WritableHub, proxy: Proxy) -> None:
    for _ in range(3):
        answer = proxy.ask("/api/kernels/acme/missing/refs")
        assert (answer.status_code, answer.headers["X-Error-Code"]) == (404, "RepoNotFound")
    assert upstream.count("missing") == 1


class Cdn(http.server.BaseHTTPRequestHandler):
    """The storage server of a public Hub: signed URLs, ranges, and no welcome for a token of the Hub."""

    protocol_version = "HTTP/1.1"
    server: CdnServer

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        body = self.server.files.get(self.path)
        if body is None or "Authorization" in self.headers:
            self.send_response(403 if body is None else 400)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start, end = 0, len(body) - 1
        ranged = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if ranged:
            start, end = int(ranged[1]), min(int(ranged[2]), end)
        self.send_response(206 if ranged else 200)
        if ranged:
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(body)}")
        self.send_header("Content-Length", str(end - start + 1))
        self.send_header("ETag", '"of-the-cdn"')
        self.send_header("Set-Cookie", "cdn=1")
        self.end_headers()
        self.wfile.write(body[start : end + 1])

    def log_message(self, *arguments: object) -> None:
        pass


class CdnServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Cdn)
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture(scope="module")
def cdn() -> Iterator[CdnServer]:
    with CdnServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def redirect(hub: WritableHub, path: str, data: bytes, location: str, status: int = 302) -> dict[str, str]:
    """Answer for a large file as the public Hub does: with a redirect that has its size, hash, and the way to Xet."""
    headers = {
        "Location": location,
        "X-Repo-Commit": "a" * 40,
        "X-Linked-Size": str(len(data)),
        "X-Linked-ETag": f'"{hashlib.sha256(data).hexdigest()}"',
        "X-Xet-Hash": "b" * 64,
        "Link": '<https://hub.example/api/models/x/xet-read-token/a>; rel="xet-auth"',
        "Set-Cookie": "session=1",
        "Cache-Control": "no-store",
        "Vary": "Origin, Accept",
    }
    hub.fail(re.escape(path), status=status, headers=headers, body=b"Found. Redirecting")
    return headers


def test_redirects_to_storage_are_followed_and_not_kept(upstream: WritableHub, proxy: Proxy, cdn: CdnServer) -> None:
    data = content("cdn", SLICE + 1000)
    for name, body in {"xet.so": data, "none.so": b"", "small.so": b"text"}.items():
        path = path_of(upstream, "acme/cdn", name, "a" * 40)
        signed = f"/{name}?Expires=1&Signature=secret-{name}"
        cdn.files = {signed: body}
        cdn.asked.clear()
        headers = redirect(upstream, path, body, f"{cdn.url}{signed}")
        for method, expected in (("HEAD", b""), ("GET", body), ("GET", body), ("HEAD", b"")):
            answer = proxy.ask(path, method, token="hf_of_the_client", Cookie="mine=1")
            assert (answer.status_code, answer.content) == (200, expected)
            assert int(answer.headers["Content-Length"]) == len(body)
            for header in ("X-Repo-Commit", "X-Linked-Size", "X-Linked-ETag"):
                assert answer.headers[header] == headers[header]
            assert answer.headers["ETag"] == headers["X-Linked-ETag"]
            assert not {"X-Xet-Hash", "Link", "Set-Cookie", "Location"} & set(answer.headers)
        assert len(cdn.asked) == (2 if name == "xet.so" else 1)
        assert not any({"Authorization", "Cookie"} & set(sent) for _, sent in cdn.asked)
        # The URL expires.
        cdn.files = {}
        assert proxy.ask(path).content == body
        upstream.heal()
    stored = proxy.stored()
    assert b"Signature" not in stored
    assert b"hf_of_the_client" not in stored
    assert b"Signature" not in proxy.log.read_bytes()


def test_small_files_are_redirected_within_the_hub(upstream: WritableHub, proxy: Proxy) -> None:
    # As the public Hub does for files that are in git.
    upstream.make_repo("acme/within", files={"README.md": "# A kernel"})
    commit = upstream.commit("acme/within")
    path = f"/kernels/acme/within/resolve/{commit}/old.md"
    headers = {"Location": f"/kernels/acme/within/resolve/{commit}/README.md?etag=%22x%22", "X-Repo-Commit": commit}
    upstream.fail(re.escape(path), status=307, headers=headers)
    for _ in range(2):
        answer = proxy.ask(path)
        assert (answer.status_code, answer.content, answer.headers["X-Repo-Commit"]) == (200, b"# A kernel", commit)
    assert len(upstream.requests) == 2


@pytest.mark.parametrize(
    "location", ["http://[::1]:1/x", "//127.0.0.1:1/x", "ftp://127.0.0.1/x", "x", "", "http://127.0.0.1:1@[::1]/"]
)
def test_redirects_lead_to_known_hosts_only(upstream: WritableHub, proxy: Proxy, location: str) -> None:
    path = path_of(upstream, "acme/away", f"{len(location)}.so", "c" * 40)
    redirect(upstream, path, b"x", location)
    assert proxy.ask(path).status_code == 502


def test_a_redirect_loop_ends(upstream: WritableHub, proxy: Proxy) -> None:
    path = path_of(upstream, "acme/loop", "x.so", "d" * 40)
    redirect(upstream, path, b"x", path)
    assert proxy.ask(path).status_code >= 500
    assert len(upstream.requests) < 20


def test_xet_is_not_offered(upstream: WritableHub, proxy: Proxy) -> None:
    upstream.make_repo("acme/xet", variants={"torch-cpu": {"x.so": b"\0"}})
    commit = upstream.commit("acme/xet")
    upstream.replace("acme/xet/tree/", lambda body: body.replace(b'"type":"file"', b'"xetHash":"abc","type":"file"'))
    for token in (None, TOKEN):
        listing = proxy.ask(f"/api/kernels/acme/xet/tree/{commit}?recursive=true", token=token)
        assert b"xetHash" not in listing.content
        assert [entry["path"] for entry in listing.json() if entry["path"].endswith("x.so")]
    assert proxy.ask(f"/api/kernels/acme/xet/xet-read-token/{commit}", token=TOKEN).status_code == 404
    assert upstream.count("xet-read-token") == 0


def test_the_next_page_is_the_proxy_s(upstream: WritableHub, proxy: Proxy, isolated_env: Path) -> None:
    from huggingface_hub import HfApi

    upstream.list_files("acme/pages", [f"build/torch-cpu/{number:04}.py" for number in range(1500)])
    commit = upstream.commit("acme/pages")
    first = proxy.ask(f"/api/kernels/acme/pages/tree/{commit}?recursive=true")
    assert first.links["next"]["url"].startswith(f"{proxy.url}/api/")
    listed = HfApi(endpoint=proxy.url).list_repo_tree("acme/pages", revision=commit, recursive=True, repo_type="kernel")
    assert len([entry for entry in listed if entry.path.endswith(".py")]) == 1500


def test_a_renamed_repository_is_a_redirect_to_the_proxy(upstream: WritableHub, proxy: Proxy) -> None:
    headers = {"Location": f"{upstream.url}/api/kernels/acme/new/refs"}
    upstream.fail("acme/old/refs", status=307, headers=headers)
    answer = proxy.ask("/api/kernels/acme/old/refs")
    assert (answer.status_code, answer.headers["Location"]) == (307, "/api/kernels/acme/new/refs")


def test_a_private_repository_is_for_its_token_only(upstream: WritableHub, proxy: Proxy) -> None:
    data = content("private", SLICE + 1000)
    upstream.make_repo("acme/private", variants={"torch-cpu": {"private.so": data, "note.py": b"# confidential"}})
    commit = upstream.commit("acme/private")
    (upstream.root / "acme/private/.private").touch()
    paths = ["/api/kernels/acme/private/refs", f"/api/kernels/acme/private/tree/{commit}?recursive=true"]
    paths += [path_of(upstream, "acme/private", name) for name in ("private.so", "note.py")]
    for path in paths:
        for token, status in ((None, 404), (TOKEN, 200), (None, 404), ("hf_another", 404), (TOKEN, 200)):
            assert proxy.ask(path, token=token).status_code == status, (
                path,
                token,
                [(r.path, r.status, r.headers) for r in upstream.requests],
            )
            assert proxy.ask(path, "HEAD", token=token).status_code == status
    large = proxy.ask(paths[2], token=TOKEN, Range=f"bytes={SLICE}-")
    assert (large.status_code, large.content) == (206, data[SLICE:])
    stored = proxy.stored() + proxy.log.read_bytes()
    for secret in (TOKEN.encode(), b"confidential", data[:64], data[-64:]):
        assert secret not in stored


def test_a_token_does_not_prevent_the_use_of_the_cache(upstream: WritableHub, proxy: Proxy) -> None:
    upstream.make_repo("acme/public")
    path = path_of(upstream, "acme/public", "layers.py")
    assert {proxy.ask(path, token=token).status_code for token in ("hf_one", "hf_two", None)} == {200}
    assert upstream.asked() == [f"GET {path}"]
    assert "authorization" not in upstream.requests[0].headers
    for token in ("hf_one", None):
        again = proxy.ask(path, token=token, **{"If-None-Match": proxy.ask(path, "HEAD").headers["ETag"]})
        assert again.status_code == 304
        missing = proxy.ask("/api/kernels/acme/nothing/refs", token=token)
        assert missing.headers["X-Error-Code"] == "RepoNotFound"


def test_only_reading_is_possible(upstream: WritableHub, proxy: Proxy, isolated_env: Path) -> None:
    from huggingface_hub import HfApi

    upstream.make_repo("acme/read")
    for method, path in (
        ("POST", "/api/repos/create"),
        ("POST", "/api/kernels/acme/read/commit/v1"),
        ("DELETE", "/api/repos/delete"),
        ("PUT", path_of(upstream, "acme/read", "layers.py")),
        ("GET", "/acme/read"),
    ):
        assert proxy.ask(path, method, token=TOKEN).status_code in (403, 404, 405)
    assert upstream.requests == []
    asked = HfApi(endpoint=proxy.url).get_paths_info(
        "acme/read", ["build/torch-cpu/layers.py"], revision=upstream.commit("acme/read"), repo_type="kernel"
    )
    assert [entry.path for entry in asked] == ["build/torch-cpu/layers.py"]


def test_get_kernel_behind_it(
    upstream: WritableHub,
    proxy: Proxy,
    isolated_env: Path,
    quick_retries: list[float],
    new_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    data = content("kernel", SLICE + 1000)
    upstream.make_repo("acme/kernel", variants={"torch-cpu": {"large.so": data}}, depends=[("acme/base", 1)])
    upstream.make_repo("acme/base")
    monkeypatch.setenv("KERNELS_HUB", proxy.url)
    for machine, away in (("first", False), ("second", False), ("third", True)):
        new_process()
        monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / machine))
        upstream.clear()
        with off(upstream) if away else nothing():
            module = get_kernel("acme/kernel", version=1)
            if away:
                with pytest.raises(Exception, match="acme/other"):
                    get_kernel("acme/other", version=1)
        assert Path(str(module.__file__)).with_name("large.so").read_bytes() == data
        if machine == "first":
            assert upstream.count("acme/kernel/refs") == 1
        else:
            assert upstream.requests == []
    with pytest.raises(RepositoryNotFound):
        get_kernel("acme/nowhere", version=1)


@contextmanager
def nothing() -> Iterator[None]:
    yield


def test_hf_download_behind_it(upstream: WritableHub, proxy: Proxy, isolated_env: Path, tmp_path: Path) -> None:
    data = content("hf", SLICE + 1000)
    upstream.make_repo("acme/hf", variants={"torch-cpu": {"large.so": data}})
    commit = upstream.commit("acme/hf")

    def download(machine: str, revision: str) -> Path:
        command = "import sys; from huggingface_hub.cli.hf import main; sys.exit(main())"
        options = ["--repo-type", "kernel", "--revision", revision]
        environment = {**os.environ, "HF_ENDPOINT": proxy.url, "HF_HOME": str(tmp_path / machine)}
        environment["HF_HUB_CACHE"] = str(tmp_path / machine / "hub")
        done = subprocess.run(
            [sys.executable, "-c", command, "download", "acme/hf", *options],
            env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return tmp_path / machine / "hub" / "kernels--acme--hf" / "snapshots" / commit / "build" / "torch-cpu"

    for machine, away in (("first", False), ("second", True)):
        upstream.clear()
        with off(upstream) if away else nothing():
            folder = download(machine, "v1")
        assert (folder / "large.so").read_bytes() == data
        assert len(list(folder.iterdir())) == 4
    assert upstream.requests == []


# HTTPS


def test_the_hub_is_asked_over_https_with_its_name_and_its_certificate_is_checked(
    upstream: WritableHub, cdn: CdnServer, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    upstream.make_repo("acme/tls")
    path = path_of(upstream, "acme/tls", "layers.py")
    far = path_of(upstream, "acme/tls", "far.so", "e" * 40)
    authority, own = certificates(tmp_path, "hub.example")
    other_authority, _ = certificates(tmp_path / "other", "hub.example")
    cdn.files = {"/far?Signature=x": b"from far"}
    with tls(upstream.host, own) as hub, tls(cdn.url.removeprefix("http://"), own) as storage, names() as resolver:
        redirect(upstream, far, b"from far", f"https://files.hub.example:{storage.port}/far?Signature=x")
        variables = {"PROXY_RESOLVER": resolver, "PROXY_FILE_HOSTS": r"^https://([a-z]+\.)+hub\.example:[0-9]+"}
        url = f"https://hub.example:{hub.port}"
        with Proxy(tmp_path / "p", url, PROXY_CA=str(authority), **variables) as proxy:
            assert proxy.ask(path).status_code == 200
            assert proxy.ask(far).content == b"from far"
        assert (set(hub.names), set(storage.names)) == ({"hub.example"}, {"files.hub.example"})
        upstream.clear()
        for number, (upstream_url, trusted) in enumerate(
            ((url, other_authority), (f"https://wrong.example:{hub.port}", authority))
        ):
            with Proxy(tmp_path / f"p{number}", upstream_url, PROXY_CA=str(trusted), **variables) as proxy:
                assert proxy.ask(path).status_code == 502
        assert upstream.requests == []


def certificates(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate authority, and a certificate with key of it for a name and what lies below."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(exist_ok=True)
    now = datetime.datetime.now(datetime.timezone.utc)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    titles = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, each)]) for each in ("authority", name)]

    def signed(subject: int, extension: x509.ExtensionType) -> bytes:
        builder = x509.CertificateBuilder(titles[0], titles[subject], keys[subject].public_key(), subject + 1)
        builder = builder.not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1)).add_extension(extension, critical=False)
        return builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    authority, own = folder / "authority.pem", folder / "own.pem"
    authority.write_bytes(signed(0, x509.BasicConstraints(ca=True, path_length=None)))
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name), x509.DNSName(f"*.{name}")])
    key = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    own.write_bytes(signed(1, alternatives) + key)
    return authority, own


@contextmanager
def tls(host: str, certificate: Path) -> Iterator[SimpleNamespace]:
    """HTTPS in front of an HTTP server; `names` are those that clients ask for (SNI)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    asked: list[str | None] = []
    context.sni_callback = lambda connection, name, context: asked.append(name)
    address = host.split(":")

    def pump(source: socket.socket, destination: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                destination.sendall(data)
        with suppress(OSError):
            destination.shutdown(socket.SHUT_RDWR)

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with (
                suppress(OSError),
                context.wrap_socket(self.request, server_side=True) as near,
                socket.create_connection((address[0], int(address[1]))) as far,
            ):
                threading.Thread(target=pump, args=(near, far), daemon=True).start()
                pump(far, near)

    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forward)) as server:
        yield SimpleNamespace(port=server.server_address[1], names=asked)


@contextmanager
def names() -> Iterator[str]:
    """A name server for which every name is this machine."""

    class Resolve(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            data, reply = self.request
            question = data[12 : data.index(0, 12) + 5]
            found = question[-4:-2] == b"\0\x01"  # an IPv4 address is asked for
            answer = b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x7f\0\0\x01" if found else b""
            header = data[:2] + b"\x81\x80\0\x01" + (b"\0\x01" if found else b"\0\0") + b"\0" * 4
            reply.sendto(header + question + answer, self.client_address)

    with serving(socketserver.ThreadingUDPServer(("127.0.0.1", 0), Resolve)) as server:
        yield f"127.0.0.1:{server.server_address[1]}"


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[socketserver.BaseServer]:
    server.daemon_threads = True  # type: ignore[attr-defined]
    with server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()
