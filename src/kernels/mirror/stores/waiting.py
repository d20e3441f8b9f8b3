"""Run the requests of obstore so that Ctrl-C, a cancelled piece of work and a deadline end the wait for them.

obstore's own blocking calls end for none of these. Its asynchronous ones are run on one event loop in a thread, and the
caller waits for their results here.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NotDone
from contextlib import suppress
from typing import Any, TypeVar

from kernels.errors import HubUnavailable
from kernels.support.forks import ForkLock
from kernels.support.tasks import Cancelled, check_cancelled, when_cancelled

__all__ = ["TookTooLong", "result_of", "started"]

_T = TypeVar("_T")

#: On Windows, Ctrl-C does not end a wait without a limit.
_POLL_SECONDS = 0.5


class TookTooLong(Exception):
    """The deadline of a request has passed."""


class _Background:
    """The event loop of this process, in a thread that does not keep the process alive."""

    def __init__(self) -> None:
        self.guard = ForkLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    def loop(self) -> asyncio.AbstractEventLoop:
        # obstore's threads do not exist in a forked process, and its requests would wait for them for ever.
        if self._loop is not None and self._process != os.getpid():
            raise HubUnavailable(
                "This process was forked from one that has used an object store, and cannot use it. Start processes "
                'with the method "spawn" or "forkserver" of multiprocessing, or load the kernels before the fork.'
            )
        with self.guard:
            if self._loop is None:
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="kernels-stores", daemon=True).start()
            return self._loop


_background = _Background()


def started(work: Callable[[], Coroutine[Any, Any, _T]]) -> Future[_T]:
    """Begin a request.

    Args:
        work: Makes the coroutine, which runs on another thread.

    Raises:
        HubUnavailable: This process was forked from one that had sent requests.
    """
    loop = _background.loop()
    return asyncio.run_coroutine_threadsafe(work(), loop)


def result_of(future: Future[_T], seconds: float) -> _T:
    """The result of a request that `started` began.

    Args:
        future: The request; it is cancelled when this call ends without its result.
        seconds: How long to wait.

    Raises:
        TookTooLong: It did not end in time.
        Cancelled: The work was cancelled meanwhile.
        BaseException: The request's own error.
    """
    deadline = time.monotonic() + seconds
    try:
        with when_cancelled(future.cancel):
            while (left := deadline - time.monotonic()) > 0:
                with suppress(NotDone):
                    return future.result(min(left, _POLL_SECONDS))
                if future.done():  # its own error is a timeout
                    return future.result()
    except CancelledError:
        check_cancelled()
        raise Cancelled from None
    finally:
        future.cancel()
    raise TookTooLong
