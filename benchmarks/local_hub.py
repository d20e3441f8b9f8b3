"""The Hub that both clients are measured against: repositories written to a folder, served with a delay and a log."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse

from kernels.server import HubServer

__all__ = ["SlowHub", "write_kernel"]

_INIT = "from . import layers\n\n\ndef answer():\n    return 42\n"
_LAYERS = """import torch


class Answer(torch.nn.Module):
    can_torch_compile = True

    def forward(self, x):
        return x + 42
"""


@dataclass
class _Request:
    path: str
    start: float  # monotonic seconds
    end: float = float("inf")


class SlowHub:
    """A Hub that waits before every answer and remembers what was asked.

    huggingface_hub's own request, the registry of agent harnesses that it fetches once a day for its user agent, is
    answered with an empty registry and not counted: it is not the client's doing, and both clients cause it.
    """

    _REGISTRY = "/api/agent-harnesses"

    def __init__(self, root: Path, latency: float) -> None:
        self.latency = latency  # seconds
        self.requests: list[_Request] = []
        self.server = HubServer(root, trusted={"bench"}, wrap=self._wrap)

    def __enter__(self) -> SlowHub:
        self.server.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.stop()

    def depth(self) -> int:
        """Round trips in a row: the longest chain of requests of which each began after the one before had ended."""
        length, end = 0, 0.0
        for request in sorted(self.requests, key=lambda request: request.end):
            if request.start >= end:
                length, end = length + 1, request.end
        return length

    def _wrap(self, app: Any) -> Any:
        async def slow(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            if scope["path"] == self._REGISTRY:
                await JSONResponse({"standardEnvVars": [], "harnesses": {}})(scope, receive, send)
                return
            request = _Request(scope["path"], time.monotonic())
            self.requests.append(request)

            async def noting(message: Any) -> None:
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    request.end = time.monotonic()  # before it is sent: the client's next request comes after
                await send(message)

            await asyncio.sleep(self.latency)
            await app(scope, receive, noting)

        return slow


def write_kernel(root: Path, repo_id: str, files: int) -> Path:
    """Write version 1 of a kernel, one noarch build of `files` files of a few hundred bytes, and return the build."""
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
        "__init__.py": _INIT,
        "layers.py": _LAYERS,
        **{f"part{index:02}.py": f"value = {index}\n" * 30 for index in range(files - 3)},
    }
    build = root / repo_id / "v1" / "build" / "torch-cpu"
    build.mkdir(parents=True)
    for file, text in contents.items():
        (build / file).write_text(text)
    return build
