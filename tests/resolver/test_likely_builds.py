"""Builds that are requested ahead are let go, whenever the call ends."""

from __future__ import annotations

import threading
from typing import Any

from kernels.resolver import likely_builds
from kernels.resolver.likely_builds import LikelyBuilds


class Ahead:
    def __init__(self) -> None:
        self.dropped = threading.Event()

    def drop(self) -> None:
        self.dropped.set()


class Found:
    """A snapshot of a source whose first answer takes until it is let go on."""

    key = ("acme/relu", "1" * 40)

    def __init__(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(likely_builds, "metadata_bytes", lambda snapshot, variant: 1)
        self.source, self.snapshot = self, None
        self.begun, self.go_on, self.ahead = threading.Event(), threading.Event(), Ahead()

    def prefetch(self, snapshot: object, variant: str, read: object) -> Ahead:
        self.begun.set()
        assert self.go_on.wait(20)
        return self.ahead


def test_what_is_begun_while_the_call_ends_is_dropped(monkeypatch: Any) -> None:
    found: Any = Found(monkeypatch)
    with LikelyBuilds() as likely:
        expecting = threading.Thread(target=likely.expect, args=(found, "torch-cpu"), kwargs={"signed": False})
        expecting.start()
        assert found.begun.wait(20)
    found.go_on.set()
    expecting.join(20)
    assert found.ahead.dropped.is_set()
