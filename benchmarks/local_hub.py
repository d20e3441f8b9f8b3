"""The Hub that both clients are measured against: repositories written to a folder, served with a delay and a log."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from typing_extensions import Self

from kernels.server import HubServer

__all__ = ["SlowFiles", "SlowHub", "SlowServer", "write_builds", "write_kernel", "write_many_builds"]

_INIT = "from . import layers\n\n\ndef answer():\n    return 42\n"
_LAYERS = """import torch


class Answer(torch.nn.Module):
    can_torch_compile = True

    def forward(self, x):
        return x + 42
"""

#: Modules of a build beside the library, as kernels of attention or activations have them.
_PARTS = ("__init__", "_ops", "layers", "functional", "utils", "tuning", "fallback", "reference", "triton", "version")

#: Bytes of a Sigstore bundle before base64: 9 kB with it.
_SIGNATURE = 6900


@dataclass
class _Request:
    target: str  # path and query
    start: float  # monotonic seconds
    end: float = float("inf")
    status: int = 0
    sent: int = 0  # bytes of the body


class SlowServer:
    """A server that waits before every answer and remembers what was asked.

    huggingface_hub's own request, the registry of agent harnesses that it fetches once a day for its user agent, is
    answered with an empty registry and not counted: it is not the client's doing, and both clients cause it.

    Attributes:
        latency: Seconds before every answer.
        rate: Bytes per second of all answers together; infinite if nothing is set.
    """

    _REGISTRY = "/api/agent-harnesses"

    def __init__(self, root: Path, latency: float, application: Any = None) -> None:
        self.latency = latency
        self.rate = float("inf")
        self.requests: list[_Request] = []
        self._free = 0.0  # when the line is free again
        self._application = application
        self.server = HubServer(root, trusted={"bench"}, wrap=self._wrap)

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.stop()

    @property
    def url(self) -> str:
        """Its URL."""
        return self.server.url

    @property
    def sent(self) -> int:
        """Bytes of all answers' bodies."""
        return sum(request.sent for request in self.requests)

    def depth(self) -> int:
        """Round trips in a row: the longest chain of requests of which each began after the one before had ended."""
        length, end = 0, 0.0
        for request in sorted(self.requests, key=lambda request: request.end):
            if request.start >= end:
                length, end = length + 1, request.end
        return length

    def at_once(self) -> int:
        """The most requests that were under way at the same time."""
        starts = [(request.start, 1) for request in self.requests]
        ends = [(request.end, -1) for request in self.requests]
        under_way = itertools.accumulate(step for _, step in sorted(starts + ends))
        return max(under_way, default=0)

    def _wrap(self, app: Any) -> Any:
        app = self._application or app

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            if scope["path"] == self._REGISTRY:
                await JSONResponse({"standardEnvVars": [], "harnesses": {}})(scope, receive, send)
                return
            query = scope["query_string"].decode()
            target = scope.get("raw_path", scope["path"].encode()).decode() + (f"?{query}" if query else "")
            request = _Request(target, time.monotonic())
            self.requests.append(request)

            async def noting(message: Any) -> None:
                if message["type"] == "http.response.start":
                    request.status = message["status"]
                else:
                    size = len(message.get("body", b""))
                    request.sent += size
                    await self._transfer(size)
                    if not message.get("more_body", False):
                        request.end = time.monotonic()  # before it is sent: the client's next request comes after
                await send(message)

            await asyncio.sleep(self.latency)
            await app(scope, receive, noting)

        return slow

    async def _transfer(self, size: int) -> None:
        if self.rate == float("inf"):
            return
        # A timer that wakes late is made up for, up to 20 ms.
        self._free = max(self._free, time.monotonic() - 0.02) + size / self.rate
        await asyncio.sleep(max(0.0, self._free - time.monotonic()))


class SlowHub(SlowServer):
    """A Hub over a folder of repositories."""


class SlowFiles(SlowServer):
    """A plain web server over a folder, such as a mirror's."""

    def __init__(self, root: Path, latency: float) -> None:
        super().__init__(root, latency, Starlette(routes=[Mount("/", StaticFiles(directory=root))]))


def write_kernel(root: Path, repo_id: str, files: int, library: bytes = b"") -> Path:
    """Write version 1 of a kernel and return its build: two or more files of a few hundred bytes, and a library."""
    name = repo_id.split("/")[1]
    metadata = {
        "name": name,
        "id": f"_{name.replace('-', '_')}_cpu_0a1b2c3",
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cpu"},
    }
    contents: dict[str, str] = {
        "metadata.json": json.dumps(metadata),
        "__init__.py": _INIT if files > 2 else _INIT.removeprefix("from . import layers\n"),
        **({"layers.py": _LAYERS} if files > 2 else {}),
        **{f"part{index:02}.py": f"value = {index}\n" * 30 for index in range(files - 3)},
    }
    build = root / repo_id / "v1" / "build" / "torch-cpu"
    build.mkdir(parents=True)
    for file, text in contents.items():
        (build / file).write_text(text)
    if library:
        (build / f"_{name}.abi3.so").write_bytes(library)
    return build


def write_many_builds(root: Path, repo_id: str, count: int) -> None:
    """Write version 1 of a kernel with a build for the CPU, and with others, of two files each, for CUDA."""
    cpu = write_kernel(root, repo_id, 2)
    metadata = json.loads((cpu / "metadata.json").read_text())
    code = (cpu / "__init__.py").read_bytes()
    parts = itertools.product(range(29, -1, -1), range(129, 29, -1), ("x86_64", "aarch64"), ("linux", "windows"))
    for number, (torch, cuda, processor, system) in enumerate(itertools.islice(parts, count - 1)):
        build = cpu.with_name(f"torch2{torch}-cxx11-cu{cuda}-{processor}-{system}")
        build.mkdir()
        own = {"id": f"{metadata['id']}_{number}", "backend": {"type": "cuda", "archs": ["8.0", "9.0"]}}
        (build / "metadata.json").write_text(json.dumps(metadata | own))
        (build / "__init__.py").write_bytes(code)


def write_builds(root: Path, repo_id: str, count: int, *, signed: bool) -> None:
    """Write version 1 of a kernel with builds for CUDA as they are published: a digest of each file, and a signature.

    The signature has the size of a Sigstore bundle, and no other likeness with one.
    """
    name = repo_id.split("/")[1]
    names = [f"torch{torch}-cxx11-cu{cuda}-{cpu}-linux" for torch in range(29, 24, -1)
             for cuda in (126, 128) for cpu in ("x86_64", "aarch64")]  # fmt: skip
    for number, variant in enumerate(names[:count]):
        build = root / repo_id / "v1" / "build" / variant
        build.mkdir(parents=True)
        files = {f"{part}.py": f"# {variant}\nvalue = {index}\n" for index, part in enumerate(_PARTS)}
        files[f"_{name}.abi3.so"] = f"\0{variant}"
        for file, text in files.items():
            (build / file).write_text(text)
        metadata = {
            "name": name,
            "id": f"_{name}_cuda_{number:07x}",
            "version": 1,
            "license": "Apache-2.0",
            "python-depends": [],
            "backend": {"type": "cuda", "archs": ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"]},
            "digest": {"algorithm": "sha256", "files": {
                file: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for file, text in files.items()
            }},
        }  # fmt: skip
        (build / "metadata.json").write_text(json.dumps(metadata, indent=2))
        if signed:
            (build / "metadata.json.sigstore").write_text(base64.b64encode(os.urandom(_SIGNATURE)).decode())
