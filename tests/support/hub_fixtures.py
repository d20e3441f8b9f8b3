"""Fixtures around `TestHub`: an environment of its own for every test, and a Hub that stops with it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub import TestHub

__all__ = ["hub", "isolated_env", "quick_retries"]

# Everything of the caller's environment that could change what a test sees.
_FORGOTTEN_PREFIXES = ("HF_", "HUGGING_FACE_", "HUGGINGFACE_", "KERNELS_")
_FORGOTTEN = ("LOCAL_KERNELS", "DISABLE_KERNEL_MAPPING", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


@pytest.fixture
def isolated_env(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No token, no telemetry, caches below the test's own folder; returns the kernels' cache.

    It holds for this process and, through the environment, for those the test starts.
    """
    from huggingface_hub import constants

    for name in list(os.environ):
        if (name.startswith(_FORGOTTEN_PREFIXES) or name in _FORGOTTEN) and name != "KERNELS_BACKEND":
            monkeypatch.delenv(name)
    home, cache = tmp_path / "hf-home", tmp_path / "cache"
    environment = {
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "KERNELS_CACHE": str(cache),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # huggingface_hub has read the environment once already.
    for name, setting in {
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
        "HF_HUB_DISABLE_TELEMETRY": True,
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": True,
        "HF_HUB_OFFLINE": False,
    }.items():
        monkeypatch.setattr(constants, name, setting)
    return cache


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """huggingface_hub waits 5 ms at most between retries; returns the seconds it wanted to wait, as they come."""
    from huggingface_hub.utils import _http

    wanted: list[float] = []

    def sleep(seconds: float) -> None:
        wanted.append(seconds)
        time.sleep(min(seconds, 0.005))

    monkeypatch.setattr(_http, "time", SimpleNamespace(**{**vars(time), "sleep": sleep}))
    return wanted


@pytest.fixture
def hub(
    isolated_env: Path, quick_retries: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[TestHub]:
    """A Hub over `tmp_path/hub`, up, that `KERNELS_HUB` names; the publisher `acme` is trusted."""
    server = TestHub(tmp_path / "hub").up()
    monkeypatch.setenv("KERNELS_HUB", server.url)
    yield server
    # Stopping takes uvicorn 0.2 s; the next test need not wait for it (and the process does before it ends).
    threading.Thread(target=server.close).start()
