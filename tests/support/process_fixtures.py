"""Fixtures that let one test process stand for several: what a process remembers is forgotten on demand."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from kernels import notices
from kernels.sources import body, http, memory, sending
from kernels.support import secrets

__all__ = ["brief_waits", "new_process", "no_secrets", "on_the_processor"]


def _forget() -> None:
    notices.forget()
    memory.forget()


@pytest.fixture(autouse=True)
def new_process() -> Callable[[], None]:
    """Forget what a process remembers of Hubs and warnings; every test starts so, and may call it again."""
    _forget()
    return _forget


@pytest.fixture(autouse=True)
def on_the_processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that need no GPU choose builds for the processor, also with a Torch that was built for one."""
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setenv("KERNELS_BACKEND", "cpu")
    else:
        monkeypatch.delenv("KERNELS_BACKEND", raising=False)


@pytest.fixture(autouse=True)
def no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test registers as a secret is not hidden in the messages of another."""
    monkeypatch.setattr(secrets, "_registered", frozenset())
    monkeypatch.setattr(secrets, "_forms", ())


@pytest.fixture(autouse=True)
def brief_waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits between retries take no time; returns the seconds that would have been waited, as they come."""
    waited: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: time.monotonic() + now[0]})
    monkeypatch.setattr(http, "time", clock)
    monkeypatch.setattr(http, "pause", sleep)
    monkeypatch.setattr(body, "time", clock)
    monkeypatch.setattr(sending, "time", clock)
    return waited
