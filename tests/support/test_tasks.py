"""Parallel work: results in order, the first error, and an end that nobody waits for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from kernels.support import tasks
from kernels.support.tasks import (
    Cancelled,
    Task,
    check_cancelled,
    pause,
    read_ahead,
    results_ahead,
    side_by_side,
    when_cancelled,
)


def test_results_have_the_order_of_the_items_and_done_runs_in_the_callers_thread() -> None:
    called: list[str] = []

    def work(item: int) -> int:
        time.sleep(0.02 * (3 - item))
        return item * 2

    def done() -> None:
        called.append(threading.current_thread().name)

    assert side_by_side(work, range(3), at_once=3, name="test", done=done) == [0, 2, 4]
    assert called == [threading.current_thread().name] * 3
    assert side_by_side(work, [], at_once=3, name="test") == []


def test_a_single_item_in_such_a_thread_needs_no_other_one() -> None:
    def names(item: int) -> list[str]:
        inner = side_by_side(lambda _: threading.current_thread().name, [item], at_once=8, name="inner")
        return [threading.current_thread().name, *inner]

    for outer, inner in side_by_side(names, range(2), at_once=2, name="outer"):
        assert outer == inner
        assert outer.startswith("kernels-outer")


def test_no_more_than_so_many_run_at_once() -> None:
    running, most, guard = 0, 0, threading.Lock()

    def work(item: int) -> None:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with guard:
            running -= 1

    side_by_side(work, range(8), at_once=2, name="test")
    assert most <= 2


@pytest.mark.parametrize("depth", [1, 2])
def test_an_error_ends_the_others_also_those_that_they_started(depth: int) -> None:
    started, ended, cut = threading.Event(), threading.Event(), threading.Event()

    def wait(item: int) -> None:
        with when_cancelled(cut.set):
            started.set()
            try:
                pause(600)
            finally:
                with pytest.raises(Cancelled):
                    check_cancelled()
                ended.set()

    def work(fails: bool) -> None:
        if fails:
            started.wait(60)
            raise KeyError("first")
        if depth == 1:
            wait(0)
        side_by_side(wait, [0], at_once=1, name="inner")

    with pytest.raises(KeyError, match="first"):
        side_by_side(work, [True, False], at_once=2, name="test")
    assert ended.wait(60)
    assert cut.is_set()
    check_cancelled()  # this thread's own work is not cancelled


def test_an_error_is_raised_after_the_others_have_put_their_files_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_GRACE_SECONDS", 60)
    started, left = threading.Event(), [True]

    def work(fails: bool) -> None:
        if fails:
            started.wait(60)
            raise KeyError("first")
        started.set()
        try:
            pause(600)
        finally:
            time.sleep(0.1)  # a process that ended now would leave the file
            left.clear()

    with pytest.raises(KeyError, match="first"):
        side_by_side(work, [True, False], at_once=2, name="test")
    assert not left


_BUSY = """
import os, signal, sys, threading, time
from kernels.support.tasks import side_by_side
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupt():
    time.sleep(0.3)
    for _ in range(int(sys.argv[1])):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
threading.Thread(target=interrupt, daemon=True).start()
begun = time.monotonic()
try:
    side_by_side(lambda item: time.sleep(600), range(4), at_once=4, name="test")
except KeyboardInterrupt:
    print(time.monotonic() - begun < 60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize("times", [1, 2])
def test_the_end_of_a_process_does_not_wait_for_work_that_does_not_listen(times: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BUSY, str(times)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n")
    assert "Exception in thread" not in done.stderr


@pytest.mark.parametrize("items", [1, 2, 7])
def test_finished_work_leaves_no_thread(items: int) -> None:
    assert side_by_side(lambda item: item, range(items), at_once=4, name="finished") == list(range(items))
    deadline = time.monotonic() + 60
    while any("finished" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_results_ahead_are_in_order_and_only_so_many_are_kept() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        time.sleep(0.01 * (item % 2))
        return item

    with results_ahead(work, range(10), at_once=3, name="test") as results:
        assert next(results) == 0
        time.sleep(0.1)
        assert len(begun) <= 3
        assert list(results) == list(range(1, 10))
    with results_ahead(work, [], at_once=3, name="test") as results:
        assert list(results) == []


@pytest.mark.parametrize("fault", ["in the work", "in the block", "left early", "from outside"])
def test_work_ahead_leaves_no_thread(fault: str) -> None:
    started = threading.Event()

    def work(item: int) -> int:
        if item == 1 and fault == "in the work":
            started.wait(60)
            raise KeyError(item)
        if item > 1:
            started.set()
            pause(600)
        return item

    def use(item: int) -> None:
        with results_ahead(work, range(10), at_once=4, name="fault") as results:
            assert next(results) == 0
            started.wait(60)
            if fault == "in the block":
                raise KeyError(item)
            if fault != "left early":
                list(results)

    def outer(item: int) -> None:
        if item == 1:
            started.wait(60)
            raise KeyError(item)
        use(item)

    if fault == "left early":
        use(0)
    else:
        with pytest.raises(KeyError):
            side_by_side(outer, [0, 1], at_once=2, name="outer") if fault == "from outside" else use(0)
    deadline = time.monotonic() + 60
    while any("fault" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("made", [0, 1, 2, 50])
def test_pieces_are_used_while_others_are_made(made: int) -> None:
    with read_ahead(lambda: range(made), ahead=3, name="test") as pieces:
        assert list(pieces) == list(range(made))


@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("fails", ["the use", "the making", "nothing"])
def test_an_error_on_one_side_ends_the_other(fails: str, ahead: int) -> None:
    made, used = [], []

    def make() -> Iterator[int]:
        for piece in range(1000):
            if piece == 500 and fails == "the making":
                raise KeyError("made")
            made.append(piece)
            yield piece

    def use() -> None:
        with read_ahead(make, ahead=ahead, name="reader") as pieces:
            for piece in pieces:
                used.append(piece)
                if piece == 10 and fails == "the use":
                    raise ValueError("used")
                if piece == 20 and fails == "nothing":
                    break

    if fails == "nothing":
        use()
    else:
        with pytest.raises(KeyError if fails == "the making" else ValueError):
            use()
    assert used == (made if fails == "the making" else list(range(len(used))))
    assert len(made) <= min(len(used) + ahead + 1, 500)
    assert not any("reader" in thread.name for thread in threading.enumerate())


def test_making_a_piece_that_hangs_is_left_alone() -> None:
    def make() -> Iterator[int]:
        yield 1
        time.sleep(600)

    with read_ahead(make, ahead=3, name="test", seconds=0.1) as pieces:
        assert next(pieces) == 1
        with pytest.raises(TimeoutError):
            next(pieces)


def test_pieces_that_hang_end_with_the_work_that_uses_them() -> None:
    hangs, ended = threading.Event(), threading.Event()

    def make() -> Iterator[int]:
        hangs.set()
        time.sleep(600)
        yield 1

    def work(fails: bool) -> None:
        if fails:
            hangs.wait(60)
            raise KeyError("first")
        try:
            with read_ahead(make, ahead=3, name="test", seconds=600) as pieces:
                next(pieces)
        except Cancelled:
            ended.set()
            raise

    with pytest.raises(KeyError):
        side_by_side(work, [True, False], at_once=2, name="test")
    assert ended.wait(60)


@pytest.mark.parametrize("error", [KeyError("x"), TimeoutError("of the work"), SystemExit(3)])
def test_the_error_of_a_task_is_raised_where_it_is_waited_for(error: BaseException) -> None:
    def fail() -> None:
        raise error

    expected = type(error) if isinstance(error, Exception) else RuntimeError
    with pytest.raises(expected, match=r"x|of the work|SystemExit: 3"):
        Task(fail, name="test").result()


def test_a_task_is_waited_for_so_long_and_ends_with_who_waits() -> None:
    hangs = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 seconds"):
        Task(hangs.wait, name="test").result(0.05)
    paused, ended = threading.Event(), threading.Event()

    def inner() -> None:
        paused.set()
        try:
            pause(600)
        finally:
            ended.set()

    def work(fails: bool) -> None:
        if fails:
            paused.wait(60)
            raise KeyError("first")
        Task(inner, name="inner").result()

    with pytest.raises(KeyError):
        side_by_side(work, [True, False], at_once=2, name="test")
    assert ended.wait(60)
    hangs.set()
