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

    def fetch_speculatively(self, snapshot: object, variant: str, read: object) -> Ahead:
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


def test_threads_that_limit_the_wait_at_once_leave_no_timer(monkeypatch: Any) -> None:
    made: list[Any] = []

    class Timer(threading.Timer):
        def __init__(self, *args: Any) -> None:
            made.append(self)
            super().__init__(*args)
            meeting.wait(0.2)

    meeting = threading.Event()
    monkeypatch.setattr(likely_builds.threading, "Timer", Timer)
    with LikelyBuilds() as likely:
        threads = [threading.Thread(target=likely.limit_wait) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(20)
    assert len(made) == 1
    likely.limit_wait()
    for each in made:
        each.join(20)
    assert not any(each.is_alive() for each in made)
