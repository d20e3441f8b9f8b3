"""Work in other threads that can be cancelled: Ctrl-C, or an error in one piece, does not wait for the others.

The threads are daemons: the end of the process does not wait for them. Workers ask here whether they are cancelled, and
wait here.
"""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, TypeVar

__all__ = [
    "Cancelled",
    "Task",
    "check_cancelled",
    "pause",
    "read_ahead",
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


class _Scope:
    """Whether the work of some threads is cancelled, and what is to be done at once when it is."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.guard = threading.Lock()
        self.actions: dict[object, Callable[[], object]] = {}

    def cancel(self) -> None:
        with self.guard:
            self.cancelled.set()
            actions = list(self.actions.values())
        for action in actions:
            with suppress(Exception):  # it hurries the end of work whose result nobody wants
                action()


_scope: ContextVar[_Scope | None] = ContextVar("kernels_cancellation", default=None)


class Task(Generic[_R]):
    """A function that runs in a thread of its own, with the context variables of who begins it.

    Args:
        work: The function.
        name: Part of the thread's name.

    Attributes:
        thread: The thread.

    Example:
        >>> Task(lambda: 6 * 7, name="example").result()
        42
    """

    def __init__(self, work: Callable[[], _R], *, name: str, scope: _Scope | None = None) -> None:
        self._scope = _Scope() if scope is None else scope
        self._ended = threading.Event()
        self._results: list[_R] = []
        self._error: BaseException = Cancelled()
        context = contextvars.copy_context()
        context.run(_scope.set, self._scope)
        self.thread = threading.Thread(target=context.run, args=(self._run, work), name=f"kernels-{name}", daemon=True)
        self.thread.start()

    def _run(self, work: Callable[[], _R]) -> None:
        try:
            self._results.append(work())
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            self._error = error
        except BaseException as error:  # noqa: BLE001 - such as `sys.exit`, which must not end the thread that waits
            self._error = RuntimeError(": ".join(filter(None, (type(error).__name__, str(error)))))
            self._error.__cause__ = error
        self._ended.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the work.

        Args:
            seconds: The most seconds. Default: no limit.

        Returns:
            Whether it has ended. What hangs in a driver or a file system cannot be ended, only left alone.

        Raises:
            Cancelled: The work of the caller is cancelled, and with it this.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        with when_cancelled(self.cancel):
            while not self._ended.is_set():
                left = _POLL_SECONDS if deadline is None else min(_POLL_SECONDS, deadline - time.monotonic())
                if left <= 0:
                    return False
                self._ended.wait(left)
        check_cancelled()
        return True

    def result(self, seconds: float | None = None) -> _R:
        """What the function returns, which is taken once.

        Args:
            seconds: The most seconds to wait. Default: no limit.

        Raises:
            TimeoutError: It has not returned in time.
            Cancelled: It was cancelled, or the work of the caller is.
            Exception: What the function raised; a `RuntimeError` for what is no `Exception`, such as `SystemExit`.
        """
        if not self.wait(seconds):
            raise TimeoutError(f"no answer within {seconds:g} seconds")
        if self._results:
            return self._results.pop()
        error, self._error = self._error, Cancelled()
        try:
            raise error
        finally:
            del error  # its traceback has this frame

    def cancel(self) -> None:
        """End the work where it looks whether it is cancelled, and a wait for its result at once."""
        self._scope.cancel()
        self._ended.set()


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
            theirs.

    Example:
        >>> side_by_side(len, ["a", "bc"], at_once=2, name="example")
        [1, 2]
    """
    listed = list(items)
    if len(listed) == 1 and _scope.get() is not None:
        # This is such a thread already: what cancels it cancels the item.
        result = work(listed[0])
        done()
        return [result]
    scope = _Scope()
    left = deque(enumerate(listed))
    outcomes: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
    found: dict[int, _R] = {}

    def run() -> None:
        while not scope.cancelled.is_set():
            try:
                index, item = left.popleft()
            except IndexError:
                return
            try:
                outcomes.put((index, work(item), None))
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                outcomes.put((index, None, error))

    def cancel() -> None:
        scope.cancel()
        outcomes.put((0, None, Cancelled()))

    with when_cancelled(cancel), _together(scope) as tasks:
        for number in range(min(at_once, len(listed))):
            tasks.append(Task(run, name=f"{name}_{number}", scope=scope))
        for _ in listed:
            index, result, error = _taken(outcomes)
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # its traceback has this frame
            found[index] = result
            done()
    return [found[index] for index in range(len(listed))]


@contextmanager
def results_ahead(work: Callable[[_T], _R], items: Iterable[_T], *, at_once: int, name: str) -> Iterator[Iterator[_R]]:
    """Run a function on items in parallel threads, some items ahead of who uses the results.

    Args:
        work: The function.
        items: The items.
        at_once: The most threads; also the most results that are kept, counting the one that is used.
        name: Part of the threads' names.

    Yields:
        The results, in the order of the items; an error is raised in the place of its item's result. When the block
        ends, work that still runs is cancelled as `side_by_side` does it.

    Example:
        >>> with results_ahead(len, ["a", "bc"], at_once=2, name="example") as lengths:
        ...     list(lengths)
        [1, 2]
    """
    with _together(scope := _Scope()) as tasks:

        def results() -> Iterator[_R]:
            for item in items:
                tasks.append(Task(partial(work, item), name=name, scope=scope))
                if len(tasks) == at_once:
                    yield tasks[0].result()
                    tasks.popleft()
            while tasks:
                yield tasks[0].result()
                tasks.popleft()

        yield results()


@contextmanager
def _together(scope: _Scope) -> Iterator[deque[Task[Any]]]:
    """Tasks of a scope, which the end of the block, or an error in it, cancels; it waits for them a moment."""
    tasks: deque[Task[Any]] = deque()
    try:
        yield tasks
    finally:
        scope.cancel()
        deadline = time.monotonic() + _GRACE_SECONDS
        for task in tasks:
            task.thread.join(max(0.0, deadline - time.monotonic()))  # another Ctrl-C ends this wait


@contextmanager
def read_ahead(
    pieces: Callable[[], Iterable[_T]], *, ahead: int, name: str, seconds: float | None = None
) -> Iterator[Iterator[_T]]:
    """Make pieces in another thread, some of them ahead of who uses them.

    Args:
        pieces: Makes them, in the other thread.
        ahead: The most pieces that wait to be used.
        name: Part of the thread's name.
        seconds: How long to wait for a piece. Making one may hang for ever: it is left alone. Default: no limit; the
            thread has ended when the block has.

    Yields:
        The pieces. An error of making them is raised there, and a `TimeoutError` where none comes in time.

    Example:
        >>> with read_ahead(lambda: "abc", ahead=2, name="example") as pieces:
        ...     "".join(pieces)
        'abc'
    """
    made: queue.SimpleQueue[tuple[_T] | None] = queue.SimpleQueue()
    room = threading.Semaphore(ahead)

    def make() -> None:
        try:
            for piece in pieces():
                room.acquire()
                check_cancelled()
                made.put((piece,))
        finally:
            made.put(None)

    def used() -> Iterator[_T]:
        while (piece := _taken(made, seconds)) is not None:
            room.release()
            yield piece[0]
        task.result()

    def end() -> None:
        task.cancel()
        room.release()
        made.put(None)

    task = Task(make, name=name)
    try:
        with when_cancelled(end):
            yield used()
    finally:
        end()
        while seconds is None and task.thread.is_alive():
            task.thread.join(_POLL_SECONDS)


def _taken(made: queue.SimpleQueue[_T], seconds: float | None = None) -> _T:
    deadline = time.monotonic() + (threading.TIMEOUT_MAX if seconds is None else seconds)
    while (left := deadline - time.monotonic()) > 0:
        with suppress(queue.Empty):
            return made.get(timeout=min(left, _POLL_SECONDS))
    raise TimeoutError(f"nothing came for {seconds:g} seconds")


def pause(seconds: float) -> None:
    """Wait, unless the work is cancelled meanwhile.

    Raises:
        Cancelled: It was.
    """
    scope = _scope.get()
    if scope is None:
        time.sleep(seconds)
    elif scope.cancelled.wait(seconds):
        raise Cancelled


def check_cancelled() -> None:
    """Raise `Cancelled` when the work was cancelled."""
    scope = _scope.get()
    if scope is not None and scope.cancelled.is_set():
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
    scope = _scope.get()
    if scope is None:
        yield
        return
    key = object()
    with scope.guard:
        late = scope.cancelled.is_set()
        scope.actions[key] = action
    try:
        if late:
            action()
        yield
    finally:
        with scope.guard:
            del scope.actions[key]
