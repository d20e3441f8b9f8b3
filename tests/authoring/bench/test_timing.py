"""Times of calls, by a clock that only the calls move."""

from __future__ import annotations

import gc

from kernels.authoring.bench.timing import time_calls


class Device:
    """Work that takes `seconds` of a clock of its own, some of it only when somebody waits for it."""

    def __init__(self, *, call: float, wait: float) -> None:
        self.now = 0.0
        self.call_seconds, self.wait_seconds = call, wait
        self.log: list[str] = []

    def clock(self) -> float:
        return self.now

    def call(self) -> None:
        assert not gc.isenabled()
        self.log.append("call")
        self.now += self.call_seconds

    def wait(self) -> None:
        self.log.append("wait")
        self.now += self.wait_seconds


def test_a_calls_time_includes_the_wait_for_the_device_and_each_call_is_waited_for() -> None:
    device = Device(call=1.0, wait=4.0)
    times = time_calls(device.call, device.wait, iterations=3, warmup=2, clock=device.clock)
    assert (times.median_seconds, times.calls) == (5.0, 3)
    assert device.log == ["call", "wait"] * 5
    assert gc.isenabled()


def test_what_takes_long_is_called_less_often_but_once_at_least() -> None:
    slow = Device(call=8.0, wait=0.0)
    assert time_calls(slow.call, slow.wait, iterations=100, warmup=100, max_seconds=5.0, clock=slow.clock).calls == 1
    assert len(slow.log) == 4
    quick = Device(call=1.0, wait=0.0)
    assert time_calls(quick.call, quick.wait, iterations=9, warmup=0, max_seconds=4.0, clock=quick.clock).calls == 4


def test_collection_that_was_off_stays_off() -> None:
    device = Device(call=1.0, wait=0.0)
    gc.disable()
    try:
        time_calls(device.call, device.wait, iterations=1, warmup=0, clock=device.clock)
        assert not gc.isenabled()
    finally:
        gc.enable()
