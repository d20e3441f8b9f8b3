"""A Hub for tests: repositories are written with `make_repo`, served over real HTTP, and misbehave when told to.

`hub.fail(...)` and its siblings inject faults, `hub.requests` tells what was asked and when.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kernels import backends
from kernels.errors import InvalidVariant
from kernels.serve import Catalog, Commit, File, HubServer
from kernels.serve.snapshot import blob_oid, take_snapshot
from kernels.variant import UNIVERSAL, parse_variant

__all__ = ["Asked", "TestHub", "VirtualCatalog", "kernel_files", "make_repo", "variant_backend"]


# ---------------------------------------------------------------------------------------------------------------------
# Repositories
# ---------------------------------------------------------------------------------------------------------------------

_INIT = '''"""Kernel {repo_id}, build {variant}."""

repo_id = {repo_id!r}
version = {version!r}
variant = {variant!r}


def double(x):
    return x + x


def __getattr__(name):  # torch is imported only where a test uses the layers
    if name == "layers":
        import importlib

        return importlib.import_module(".layers", __name__)
    raise AttributeError(name)
'''

_LAYERS = '''"""Layers of {repo_id}."""

import torch
from torch import nn

version = {version!r}


class SiluAndMul(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        d = input.shape[-1] // 2
        return torch.nn.functional.silu(input[..., :d]) * input[..., d:]
'''


def variant_backend(variant: str) -> str:
    """The `backend.type` that goes with a variant's name; a build for every backend names the one that is always there.

    A name that is no variant's gets that of the variant that it begins like.
    """
    try:
        name = parse_variant(variant).backend
    except InvalidVariant:
        known = [each for part in variant.split("-")[1:] if (each := backends.parse_accelerator(part)) is not None]
        name = known[0][0].name if known else UNIVERSAL
    return backends.host().name if name == UNIVERSAL else name


def kernel_files(
    repo_id: str,
    variant: str,
    *,
    version: int | None = 1,
    files: Mapping[str, str | bytes] | None = None,
    metadata: Mapping[str, Any] | None = None,
    depends: Iterable[tuple[str, int | str]] = (),
    python_depends: Iterable[str] = (),
    archs: Iterable[str] | None = None,
    digest: bool = False,
    seed: str = "",
) -> dict[str, bytes]:
    """The files of one valid build, by path inside the variant.

    Args:
        repo_id: `org/name`.
        variant: The build's name.
        version: Major version, None for a build without one.
        files: Files beside (or in place of) the default `__init__.py` and `layers.py`; a `metadata.json` is written as
            it is.
        metadata: Top-level keys that replace the computed ones; a value of None removes the key.
        depends: Kernel dependencies, `(repo_id, version or revision)`.
        python_depends: Names of Python dependencies.
        archs: `backend.archs`.
        digest: Whether the metadata holds a SHA-256 digest of the files.
        seed: Anything that makes this build's content differ.
    """
    name = repo_id.split("/")[1].lower().replace("_", "-")
    values = {"repo_id": repo_id, "version": version, "variant": variant}
    content: dict[str, bytes] = {
        "__init__.py": (_INIT.format(**values) + (f"\n# {seed}\n" if seed else "")).encode(),
        "layers.py": _LAYERS.format(**values).encode(),
    }
    content.update({path: text.encode() if isinstance(text, str) else text for path, text in (files or {}).items()})
    backend = variant_backend(variant)
    unique = hashlib.sha1(f"{repo_id} {version} {seed}".encode(), usedforsecurity=False).hexdigest()[:7]
    fields: dict[str, Any] = {
        "id": f"_{name.replace('-', '_').replace('.', '_')}_{backend}_{unique}",
        "name": name.replace(".", "-"),
        "version": version,
        "license": "Apache-2.0",
        "python-depends": list(python_depends),
        "backend": {"type": backend} if archs is None else {"type": backend, "archs": list(archs)},
    }
    kernel_depends = [
        {"repo-id": repo, "version" if isinstance(which, int) else "revision": which} for repo, which in depends
    ]
    if kernel_depends:
        fields["kernel-depends"] = kernel_depends
    if digest:
        digests = {
            path: base64.b64encode(hashlib.sha256(data).digest()).decode()
            for path, data in sorted(content.items())
            if path not in ("metadata.json", "metadata.json.sigstore")
        }
        fields["digest"] = {"algorithm": "sha256", "files": digests}
    fields.update(metadata or {})
    fields = {key: value for key, value in fields.items() if value is not None}
    content.setdefault("metadata.json", json.dumps(fields, indent=2).encode())
    return content


def make_repo(
    root: Path,
    repo_id: str = "acme/relu",
    *,
    version: int | None = 1,
    revision: str | None = None,
    variants: Mapping[str, Mapping[str, str | bytes] | None] | Iterable[str] = ("torch-cpu",),
    files: Mapping[str, str | bytes] | None = None,
    status: Mapping[str, str] | str | None = None,
    redirect: str | None = None,
    **build: Any,
) -> Path:
    """Write one version or revision of a repository below a root and return its folder.

    Args:
        root: The folder of repositories.
        repo_id: `org/name`.
        version: Major version: the folder is `v<version>`, unless `revision` names it.
        revision: Branch; what the builds' metadata say of the version is still `version`.
        variants: Builds: their names, or by name the files to put beside or in place of the default ones.
        files: Files at the repository's root.
        status: `kernel-status.toml`: its text or its keys.
        redirect: Short for a status that redirects to this repository.
        build: What `kernel_files` takes: metadata, depends, python_depends, archs, digest, seed.
    """
    folder = root / repo_id / (revision if revision is not None else f"v{version}")
    folder.mkdir(parents=True, exist_ok=True)
    builds = variants if isinstance(variants, Mapping) else dict.fromkeys(variants)
    for variant, own in builds.items():
        for path, data in kernel_files(repo_id, variant, version=version, files=own, **build).items():
            _write(folder / "build" / variant / path, data)
    for path, text in (files or {}).items():
        _write(folder / path, text.encode() if isinstance(text, str) else text)
    if redirect is not None:
        status = {"kind": "redirect", "destination": redirect}
    if status is not None:
        text = status if isinstance(status, str) else "".join(f'{key} = "{value}"\n' for key, value in status.items())
        _write(folder / "kernel-status.toml", text.encode())
    return folder


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


class VirtualCatalog(Catalog):
    """A catalog with revisions that are lists of paths, for repositories too large, or too hostile, to lie on disk."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._virtual: dict[str, dict[str, Commit]] = {}
        self._contents = Path(self.root.parent / (self.root.name + ".contents"))

    def list_files(self, repo_id: str, files: Iterable[str] | Mapping[str, bytes], *, branch: str = "v1") -> Commit:
        """Add a branch that holds these paths (whatever they are), with these contents or none."""
        contents = files if isinstance(files, Mapping) else dict.fromkeys(files, b"")
        self._contents.mkdir(exist_ok=True)
        (self.root / repo_id.split("/")[0]).mkdir(parents=True, exist_ok=True)
        listed, stored = [], {}
        for path, data in contents.items():
            if data not in stored:
                oid = blob_oid(data)
                (self._contents / oid).write_bytes(data)
                stored[data] = oid
            listed.append(File(path, self._contents / stored[data], len(data), stored[data]))
        commit = take_snapshot(repo_id, listed, datetime(2026, 1, 1, tzinfo=timezone.utc))
        self._virtual.setdefault(repo_id, {})[branch] = commit
        return commit

    def branches(self, repo_id: str, *, kind: str = "kernel") -> dict[str, str]:
        virtual = {name: commit.id for name, commit in self._virtual.get(repo_id, {}).items()}
        if virtual and not (self.root / repo_id).is_dir():
            return virtual
        return super().branches(repo_id, kind=kind) | virtual

    def commit(self, repo_id: str, revision: str | None = None, *, kind: str = "kernel") -> Commit:
        virtual = self._virtual.get(repo_id, {})
        for name, commit in virtual.items():
            if revision in (name, commit.id, f"refs/heads/{name}"):
                return commit
        if virtual and revision is None:
            return virtual[max(virtual)]
        return super().commit(repo_id, revision, kind=kind)


# ---------------------------------------------------------------------------------------------------------------------
# The server
# ---------------------------------------------------------------------------------------------------------------------


# What huggingface_hub asks on its own account, once a process or once a day: not the client's doing.
_OWN = ("/api/agent-harnesses", "/api/telemetry")


@dataclass
class Asked:
    """A request as the server saw it; `start` and `end` are monotonic seconds, `status` 0 if none was sent."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    start: float
    end: float = float("inf")
    status: int = 0

    def __iter__(self) -> Any:  # so that `for method, path in hub.requests` reads well
        return iter((self.method, self.path))


@dataclass
class _Fault:
    pattern: re.Pattern[str]
    times: float
    act: Callable[[_Call], Any]
    method: str | None = None
    after: int = 0


@dataclass
class _Call:
    """One request under way: what a fault may change of it."""

    scope: Any
    receive: Any
    send: Any
    app: Any
    asked: Asked
    transport: Any
    released: Callable[[], bool]

    def abort(self) -> None:
        """Close the connection at once, whatever was or was not sent."""
        self.transport.abort()


class TestHub:
    """A `HubServer` over a folder, with a log of requests and faults to order.

    Args:
        root: The folder of repositories (need not exist).
        trusted: Publishers marked as trusted; a set that may be changed at any time.
        users: Publishers that are persons.
        models: Repositories of type `model`; a set that may be changed at any time.
        latency: Seconds added before every answer; may be changed at any time.
        bytecode: Whether bytecode files are served.
        port: Port; 0 takes a free one.
    """

    __test__ = False  # its name would make pytest collect it

    def __init__(
        self,
        root: Path,
        *,
        trusted: Iterable[str] = ("acme",),
        users: Iterable[str] = (),
        models: Iterable[str] = (),
        latency: float = 0.0,
        bytecode: bool = True,
        port: int = 0,
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.trusted, self.users, self.models = set(trusted), set(users), set(models)
        self.latency = latency
        self.catalog = VirtualCatalog(
            root, trusted=self.trusted, users=self.users, models=self.models, bytecode=bytecode
        )
        self.requests: list[Asked] = []
        self._faults: list[_Fault] = []
        self._release = threading.Event()
        self._server = HubServer(self.catalog, port=port, wrap=self._wrap)
        self._reserved: socket.socket | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The Hub's URL, the same while it is down."""
        return self._server.url

    @property
    def host(self) -> str:
        """`127.0.0.1:<port>`."""
        return self.url.removeprefix("http://")

    def up(self) -> TestHub:
        """Listen (again)."""
        self._release.clear()
        if self._reserved is not None:
            self._reserved.close()
        self._server.start()
        return self

    def down(self) -> None:
        """Refuse connections from now on."""
        self.close()
        # Bound and never listening: connecting is refused, and nobody else is given the port meanwhile.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", self._server.port))

    def close(self) -> None:
        """Stop for good."""
        self._release.set()
        self._server.stop()
        if self._reserved is not None:
            self._reserved.close()

    __enter__ = up

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- content ------------------------------------------------------------------------------------------------------

    def make_repo(self, repo_id: str = "acme/relu", **options: Any) -> Path:
        """`make_repo` in this Hub's folder."""
        return make_repo(self.root, repo_id, **options)

    def list_files(self, repo_id: str, files: Iterable[str] | Mapping[str, bytes], *, branch: str = "v1") -> Commit:
        """Serve a branch that exists only as a list of paths; see `VirtualCatalog`."""
        return self.catalog.list_files(repo_id, files, branch=branch)

    def commit(self, repo_id: str = "acme/relu", revision: str = "v1") -> str:
        """The commit at the head of a branch."""
        return self.catalog.commit(repo_id, revision, kind="model" if repo_id in self.models else "kernel").id

    # -- what was asked -----------------------------------------------------------------------------------------------

    def count(self, pattern: str = "", *, method: str | None = None) -> int:
        """How many requests had a path in which the pattern is found."""
        return sum(
            1 for asked in self.requests if re.search(pattern, asked.path) and method in (None, asked.method)
        )  # fmt: skip

    def clear(self) -> None:
        """Forget the requests so far."""
        self.requests.clear()

    def depth(self) -> int:
        """The longest chain of requests of which each began after the one before had ended.

        Meaningful with a `latency`: without one, requests sent side by side may not overlap here.
        """
        length, end = 0, 0.0
        for asked in sorted(self.requests, key=lambda asked: asked.end):
            if asked.start >= end:
                length, end = length + 1, asked.end
        return length

    def asked(self) -> list[str]:
        """Every request so far as `METHOD path?query`, in the order of arrival."""
        return [f"{asked.method} {asked.path}{'?' * bool(asked.query)}{asked.query}" for asked in self.requests]

    # -- faults -------------------------------------------------------------------------------------------------------

    def fail(
        self,
        pattern: str = "",
        *,
        times: float = float("inf"),
        status: int = 503,
        headers: Mapping[str, str] | None = None,
        body: bytes = b'{"error": "injected"}',
        method: str | None = None,
        after: int = 0,
    ) -> None:
        """Answer with an error status.

        Args:
            pattern: Searched for in the request's path; "" is every request.
            times: How often; for ever when not given.
            status: HTTP status.
            headers: Headers, such as `Retry-After`.
            body: Body.
            method: Only requests of this method.
            after: How many matching requests pass before.
        """

        async def act(call: _Call) -> None:
            raw = [(key.lower().encode(), value.encode()) for key, value in (headers or {}).items()]
            raw.append((b"content-length", str(len(body)).encode()))
            await call.send({"type": "http.response.start", "status": status, "headers": raw})
            await call.send({"type": "http.response.body", "body": b"" if call.asked.method == "HEAD" else body})

        self._add(pattern, times, act, method, after)

    def gate(self, repo_id: str) -> None:
        """Refuse the repository's files as the Hub does for one whose conditions were not accepted."""
        headers = {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to {repo_id} is restricted."}
        self.fail(f"/{re.escape(repo_id)}/resolve/", status=401, headers=headers)

    def truncate(self, pattern: str, *, keep: int = 1, times: float = float("inf"), after: int = 0) -> None:
        """Announce the whole body, send its first `keep` bytes, and close the connection."""

        async def act(call: _Call) -> None:
            start, body = await _answer(call)
            await call.send(start)
            if len(body) <= keep:
                await call.send({"type": "http.response.body", "body": body})
                return
            await call.send({"type": "http.response.body", "body": body[:keep], "more_body": True})
            await asyncio.sleep(0.01)
            call.abort()

        self._add(pattern, times, act, "GET", after)

    def shorten(self, pattern: str, *, keep: int = 1, times: float = float("inf"), after: int = 0) -> None:
        """Answer, flawlessly as far as HTTP goes, with only the first `keep` bytes."""
        self.replace(pattern, lambda body: body[:keep], times=times, after=after)

    def corrupt(self, pattern: str, *, times: float = float("inf"), after: int = 0) -> None:
        """Change the body's bytes, keeping their number."""
        self.replace(pattern, lambda body: bytes(byte ^ 0x20 for byte in body), times=times, after=after)

    def replace(
        self, pattern: str, change: Callable[[bytes], bytes], *, times: float = float("inf"), after: int = 0
    ) -> None:
        """Answer with a changed body and the right length of it."""

        async def act(call: _Call) -> None:
            start, body = await _answer(call)
            body = change(body)
            headers = [(key, value) for key, value in start["headers"] if key.lower() != b"content-length"]
            headers.append((b"content-length", str(len(body)).encode()))
            await call.send({**start, "headers": headers})
            await call.send({"type": "http.response.body", "body": body})

        self._add(pattern, times, act, "GET", after)

    def add_headers(
        self,
        pattern: str,
        headers: Mapping[str, str] | Callable[[Asked], Mapping[str, str]],
        *,
        times: float = float("inf"),
        after: int = 0,
    ) -> None:
        """Answer correctly, with these headers beside, or in place of, the right ones."""

        async def act(call: _Call) -> None:
            start, body = await _answer(call)
            added = headers(call.asked) if callable(headers) else headers
            raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in added.items()]
            kept = [pair for pair in start["headers"] if pair[0].lower() not in {name for name, _ in raw}]
            await call.send({**start, "headers": kept + raw})
            await call.send({"type": "http.response.body", "body": body})

        self._add(pattern, times, act, None, after)

    def send_raw(
        self, pattern: str, data: bytes | Callable[[Asked], bytes], *, times: float = float("inf"), after: int = 0
    ) -> None:
        """Write these bytes in the place of an answer, whether or not they are HTTP, and close the connection."""

        async def act(call: _Call) -> None:
            call.transport.write(data(call.asked) if callable(data) else data)
            call.transport.close()

        self._add(pattern, times, act, None, after)

    def drip(self, pattern: str, data: bytes, *, every: float) -> None:
        """Write these bytes again and again, until the client leaves or the Hub stops."""

        async def act(call: _Call) -> None:
            while not call.transport.is_closing() and not call.released():
                call.transport.write(data)
                await asyncio.sleep(every)
            call.abort()

        self._add(pattern, float("inf"), act, None, 0)

    def stream(self, pattern: str, chunk: bytes, *, times: float = float("inf"), most: int = 10**9) -> None:
        """Answer 200 with a chunk again and again, without an announced length, until the client leaves."""

        async def act(call: _Call) -> None:
            gone = asyncio.ensure_future(_disconnected(call))
            headers = [(b"content-type", b"application/octet-stream")]
            await call.send({"type": "http.response.start", "status": 200, "headers": headers})
            sent = 0
            while not gone.done() and not call.released() and sent < most:
                await call.send({"type": "http.response.body", "body": chunk, "more_body": True})
                sent += len(chunk)
                await asyncio.sleep(0)
            gone.cancel()
            call.abort()

        self._add(pattern, times, act, "GET", 0)

    def disconnect(
        self, pattern: str = "", *, times: float = float("inf"), method: str | None = None, after: int = 0
    ) -> None:
        """Close the connection without an answer."""

        async def act(call: _Call) -> None:
            call.abort()

        self._add(pattern, times, act, method, after)

    def hang(
        self, pattern: str = "", *, times: float = float("inf"), method: str | None = None, after: int = 0
    ) -> None:
        """Accept the request and never answer, until the client leaves or the Hub stops."""

        async def act(call: _Call) -> None:
            gone = asyncio.ensure_future(_disconnected(call))
            while not gone.done() and not call.released():
                await asyncio.wait([gone], timeout=0.02)
            gone.cancel()
            call.abort()

        self._add(pattern, times, act, method, after)

    def delay(
        self, pattern: str, seconds: float, *, times: float = float("inf"), method: str | None = None, after: int = 0
    ) -> None:
        """Answer correctly, but later."""

        async def act(call: _Call) -> None:
            await asyncio.sleep(seconds)
            await call.app(call.scope, call.receive, call.send)

        self._add(pattern, times, act, method, after)

    def together(self, pattern: str, count: int, *, method: str | None = "GET") -> None:
        """Answer correctly, but none before so many have asked for the same path."""

        async def act(call: _Call) -> None:
            asked = call.asked
            while self.count(f"^{re.escape(asked.path)}$", method=method) < count and not call.released():
                await asyncio.sleep(0.02)
            await call.app(call.scope, call.receive, call.send)

        self._add(pattern, float("inf"), act, method, 0)

    def heal(self) -> None:
        """Forget every fault."""
        self._faults.clear()

    def _add(self, pattern: str, times: float, act: Callable[[_Call], Any], method: str | None, after: int) -> None:
        self._faults.append(_Fault(re.compile(pattern), times, act, method, after))

    def _fault_for(self, asked: Asked) -> _Fault | None:
        for fault in list(self._faults):
            if fault.times <= 0 or fault.method not in (None, asked.method) or not fault.pattern.search(asked.path):
                continue
            if fault.after > 0:
                fault.after -= 1
                continue
            fault.times -= 1
            return fault
        return None

    def _wrap(self, app: Any) -> Any:
        async def wrapped(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            asked = Asked(
                scope["method"],
                scope["path"],
                scope["query_string"].decode("latin-1"),
                {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]},
                time.monotonic(),
            )
            if not asked.path.startswith(_OWN):
                self.requests.append(asked)

            async def noting(message: Any) -> None:
                if message["type"] == "http.response.start":
                    asked.status = message["status"]
                elif not message.get("more_body", False):
                    asked.end = time.monotonic()  # before it is sent: the client's next request must not precede it
                await send(message)

            if self.latency:
                await asyncio.sleep(self.latency)
            fault = self._fault_for(asked)
            try:
                if fault is None:
                    await app(scope, receive, noting)
                else:
                    transport = send.__self__.transport  # uvicorn's request cycle: ASGI itself knows no connection
                    await fault.act(_Call(scope, receive, noting, app, asked, transport, self._release.is_set))
            finally:
                asked.end = min(asked.end, time.monotonic())

        return wrapped


async def _answer(call: _Call) -> tuple[Any, bytes]:
    """The application's whole answer, kept back."""
    messages: list[Any] = []

    async def keep(message: Any) -> None:
        messages.append(message)

    await call.app(call.scope, call.receive, keep)
    return messages[0], b"".join(message.get("body", b"") for message in messages[1:])


async def _disconnected(call: _Call) -> None:
    while (await call.receive())["type"] != "http.disconnect":
        pass
