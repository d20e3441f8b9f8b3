"""Parallel work that can be cancelled: Ctrl-C, or an error in one piece, does not wait for the others.

Workers ask here whether they are cancelled, and wait here.
"""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from enum import Enum
from typing import Any, Generic, TypeVar

__all__ = [
    "Begun",
    "Cancelled",
    "begin",
    "check_cancelled",
    "feed",
    "is_cancelled",
    "pause",
    "results_ahead",
    "side_by_side",
    "when_cancelled",
]

_T = TypeVar("_T")
_R = TypeVar("_R")

#: How long cancelled work is waited for: it closes its files and gives its locks back. The limit of Ctrl-C is a second.
_GRACE_SECONDS = 0.5

#: On Windows, Ctrl-C does not end a wait without a limit.
_POLL_SECONDS = 0.5


class Cancelled(Exception):
    """The caller has cancelled the work, and does not wait for its result."""


class _Cancellation:
    """Whether work is cancelled, and what is to be done at once when it is."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._guard = threading.Lock()
        self._actions: dict[object, Callable[[], object]] = {}

    @contextmanager
    def during(self, action: Callable[[], object]) -> Iterator[None]:
        """Call `action`, from another thread, if the work is cancelled meanwhile."""
        key = object()
        with self._guard:
            late = self._ended.is_set()
            self._actions[key] = action
        try:
            if late:
                action()
            yield
        finally:
            with self._guard:
                self._actions.pop(key, None)

    def cancel(self, *, hurry: bool = True) -> None:
        with self._guard:
            self._ended.set()
            actions = list(self._actions.values())
        for action in actions if hurry else ():
            with suppress(Exception):  # it hurries the end of work whose result nobody wants
                action()

    def is_set(self) -> bool:
        return self._ended.is_set()

    def wait(self, seconds: float) -> bool:
        return self._ended.wait(seconds)


_cancellation: ContextVar[_Cancellation | None] = ContextVar("kernels_cancellation", default=None)


def side_by_side(
    work: Callable[[_T], _R],
    items: Iterable[_T],
    *,
    at_once: int,
    name: str,
    done: Callable[[], None] = lambda: None,
) -> list[_R]:
    """Run a function on several items in parallel threads; in such a thread, a single item needs no other one.

    Args:
        work: The function.
        items: The items.
        at_once: The most threads.
        name: Part of the threads' names.
        done: Called in the caller's thread after each item.

    Returns:
        The results, in the order of the items.

    Raises:
        BaseException: The first error of any item, or Ctrl-C. The others end at their next pause or chunk of bytes, and
            are waited for, half a second at most: a process that ends with the error leaves no temporary file of
            theirs. Their threads do not keep the process alive.

    Example:
        >>> side_by_side(len, ["a", "bc"], at_once=2, name="example")
        [1, 2]
    """
    listed = list(items)
    if len(listed) == 1 and _cancellation.get() is not None:
        # This is such a thread already: what cancels it cancels the item.
        result = work(listed[0])
        done()
        return [result]
    with _at_work(work, listed, at_once, name) as crew:
        return crew.results(done)


@contextmanager
def results_ahead(work: Callable[[_T], _R], items: Iterable[_T], *, at_once: int, name: str) -> Iterator[Iterator[_R]]:
    """Run a function on items in parallel threads, some items ahead of who uses the results.

    Args:
        work: The function.
        items: The items.
        at_once: The most threads; also the most results that are kept, counting the one that is used.
        name: Part of the threads' names.

    Yields:
        The results, in the order of the items. The first error of any item is raised there. When the block ends, work
        that still runs is cancelled as `side_by_side` does it.

    Example:
        >>> with results_ahead(len, ["a", "bc"], at_once=2, name="example") as lengths:
        ...     list(lengths)
        [1, 2]
    """
    with _at_work(work, items, at_once, name, ahead=at_once) as crew:
        yield crew.in_order()
        crew.cancel()
        crew.join()


@contextmanager
def _at_work(
    work: Callable[[_T], _R], items: Iterable[_T], at_once: int, name: str, ahead: int | None = None
) -> Iterator[_Crew]:
    """Threads that work while the block runs; an error in the block cancels them."""
    outer = _cancellation.get()
    crew, size = _crew(work, items, ahead)
    try:
        crew.start(min(at_once, size), name)
        with nullcontext() if outer is None else outer.during(crew.cancel):
            yield crew
    except BaseException:
        crew.cancel()
        crew.join()  # another Ctrl-C ends this wait
        raise


def _crew(work: Callable[[_T], _R], items: Iterable[_T], ahead: int | None) -> tuple[_Crew, int]:
    """Threads that have not begun, and the number of items."""
    listed = list(items)
    own = _Cancellation()
    token = _cancellation.set(own)
    try:
        from kernels.support.warn import on_behalf_of_the_caller  # not for the first request of a call

        with on_behalf_of_the_caller():
            tasks = [(contextvars.copy_context(), item) for item in listed]
    finally:
        _cancellation.reset(token)
    # One more than items: a thread that finds none left needs a permit too, and passes it on.
    return _Crew(work, tasks, own, len(listed) + 1 if ahead is None else ahead), len(listed)


def begin(work: Callable[[_T], _R], items: Iterable[_T], *, at_once: int, name: str) -> Begun[_R]:
    """Begin to run a function on items in parallel threads, and return at once.

    The end of the block that calls this, or an error in it, does not end the threads: the caller cancels what it does
    not need.

    Args:
        work, items, at_once, name: As for `side_by_side`.

    Example:
        >>> sorted(begin(len, ["a", "bc"], at_once=2, name="example").as_they_come())
        [1, 2]
    """
    crew, size = _crew(work, items, None)
    try:
        crew.start(min(at_once, size), name)
    except BaseException:
        crew.cancel()
        raise
    return Begun(crew, size)


class Begun(Generic[_R]):
    """Work that was begun, whose results may be taken once."""

    def __init__(self, crew: _Crew, size: int) -> None:
        self._crew = crew
        self._size = size

    def as_they_come(self) -> Iterator[_R]:
        """The results, in the order in which the work on them ends.

        Raises:
            BaseException: The first error of any item.
            Cancelled: `cancel` was called, or the work of the caller is cancelled.
        """
        with when_cancelled(self._crew.cancel):
            for _ in range(self._size):
                yield self._crew.next_result()[1]

    def cancel(self) -> None:
        """End the threads where they look whether they are cancelled; waits for a network are not cut short."""
        self._crew.cancel(hurry=False)


class _Crew:
    """The threads of one call of `side_by_side`.

    They are daemons, unlike those of an executor: the end of the process does not wait for them.
    """

    def __init__(
        self,
        work: Callable[[Any], Any],
        tasks: list[tuple[contextvars.Context, Any]],
        cancelled: _Cancellation,
        ahead: int,
    ) -> None:
        self._work = work
        self._permits = threading.Semaphore(ahead)
        self._cancelled = cancelled
        self._number = len(tasks)
        self._tasks: queue.SimpleQueue[tuple[int, contextvars.Context, Any]] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        for index, (context, item) in enumerate(tasks):
            self._tasks.put((index, context, item))

    def start(self, threads: int, name: str) -> None:
        for number in range(threads):
            thread = threading.Thread(target=self._run, name=f"kernels-{name}_{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _run(self) -> None:
        while True:
            self._permits.acquire()
            if self._cancelled.is_set():
                return
            try:
                index, context, item = self._tasks.get_nowait()
            except queue.Empty:
                self._permits.release()
                return
            try:
                self._outcomes.put((index, context.run(self._work, item), None))
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                self._outcomes.put((index, None, error))

    def results(self, done: Callable[[], None]) -> list[Any]:
        """The results, in the order of the tasks."""
        found: list[Any] = [None] * self._number
        for _ in range(self._number):
            index, found[index] = self.next_result()
            done()
        return found

    def in_order(self) -> Iterator[Any]:
        """Each result when it is asked for; the work on another item begins when the next one is."""
        found: dict[int, Any] = {}
        for wanted in range(self._number):
            while wanted not in found:
                index, result = self.next_result()
                found[index] = result
            yield found.pop(wanted)
            self._permits.release()

    def next_result(self) -> tuple[int, Any]:
        """The next outcome: the number of its task, and the result."""
        while True:
            with suppress(queue.Empty):
                index, result, error = self._outcomes.get(timeout=_POLL_SECONDS)
                break
        if error is not None:
            try:
                raise error
            finally:
                del error
        return index, result

    def cancel(self, *, hurry: bool = True) -> None:
        """End the threads, and the wait for their results."""
        self._cancelled.cancel(hurry=hurry)
        self._outcomes.put((0, None, Cancelled()))
        self._permits.release(max(1, len(self._threads)))

    def join(self) -> None:
        """Wait a limited time for the threads to end."""
        deadline = time.monotonic() + _GRACE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def pause(seconds: float) -> None:
    """Wait, unless the work is cancelled meanwhile.

    Raises:
        Cancelled: It was.
    """
    cancellation = _cancellation.get()
    if cancellation is None:
        time.sleep(seconds)
    elif cancellation.wait(seconds):
        raise Cancelled


def is_cancelled() -> bool:
    """Whether the work was cancelled."""
    cancellation = _cancellation.get()
    return cancellation is not None and cancellation.is_set()


def check_cancelled() -> None:
    """Raise `Cancelled` when the work was cancelled."""
    if is_cancelled():
        raise Cancelled


@contextmanager
def when_cancelled(action: Callable[[], object]) -> Iterator[None]:
    """Call a function, from another thread, if the work is cancelled meanwhile: it ends a wait for a network.

    Args:
        action: The function. Its errors are ignored.

    Example:
        >>> with when_cancelled(lambda: print("cancelled")):
        ...     pass
    """
    cancellation = _cancellation.get()
    if cancellation is None:
        yield
        return
    with cancellation.during(action):
        yield


def feed(pieces: Iterable[_T], use: Callable[[Iterator[_T]], object], *, ahead: int, name: str) -> None:
    """Make pieces in this thread, and use them in another one at the same time.

    Args:
        pieces: The pieces. No more of them are made after an error of `use`.
        use: Called with all pieces, in a thread that has ended when this function does.
        ahead: The most pieces that wait to be used.
        name: The end of the thread's name.

    Raises:
        BaseException: The error of making the pieces, else that of `use`.

    Example:
        >>> feed("abc", lambda pieces: print(*pieces), ahead=2, name="example")
        a b c
    """
    waiting: queue.Queue[_T | _End] = queue.Queue(ahead)
    problem: list[BaseException] = []

    def given() -> Iterator[_T]:
        while not isinstance(piece := waiting.get(), _End):
            yield piece
        if piece is _End.BROKEN:
            raise Cancelled

    def work() -> None:
        rest = given()
        try:
            use(rest)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that made the pieces
            problem.append(error)
        with suppress(Cancelled):
            for _ in rest:  # the other thread may wait for a place
                pass

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), name=f"kernels-{name}", daemon=True)
    thread.start()
    end = _End.BROKEN
    try:
        for piece in pieces:
            waiting.put(piece)
            if problem:
                break
        end = _End.COMPLETE
    finally:
        waiting.put(end)
        thread.join()
    if problem:
        try:
            raise problem[0]
        finally:
            problem.clear()


class _End(Enum):
    """Why there are no more pieces."""

    COMPLETE = 0
    BROKEN = 1
