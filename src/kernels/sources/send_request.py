"""Send one request over huggingface_hub's session, and wait a limited time for the headers of the answer."""

from __future__ import annotations

import atexit
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any

from kernels.errors import HubUnavailable

__all__ = ["Sending", "connection_errors", "cut", "new_session", "requested_wait", "send"]

#: Seconds that all headers of an answer may take, beyond the timeout of one read.
_HEADER_SECONDS = 20.0

#: Seconds between looks at whether the work was cancelled.
_POLL_SECONDS = 0.2

#: Seconds that a thread waits for another request.
_IDLE_SECONDS = 5.0

#: The most seconds that the end of the interpreter waits for the threads without a request.
_END_SECONDS = 0.2

#: The longest header that is read as a time to wait.
_MAX_WAIT_HEADER = 256


def send(url: str, headers: Mapping[str, str], timeout: float) -> Any:
    """A response with its headers read and its body unread.

    The library's timeout is per read: a server that sends a byte now and then, or one interim answer (1xx) after
    another, would never time out, and nothing wakes a thread that reads headers. So another thread sends the request,
    and is left to itself at a timeout. Threads are used again: starting one for each request takes processor time.

    Raises:
        TimeoutError: The headers take 20 s more than the timeout of a read.
    """
    return Sending(url, headers, timeout).response()


class Sending:
    """A request that another thread sends from now on.

    Args:
        url: The URL.
        headers: Its headers.
        timeout: Seconds of each read; the headers may take 20 s more in all.
        noted: Whether it is noted when the request has left, for `wait_written`.

    Raises:
        HubUnavailable: huggingface_hub's session cannot be made.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float, *, noted: bool = False) -> None:
        session = new_session()
        self._guard = threading.Lock()
        self._given_up = False
        self._outcome: Any = None
        self._done = threading.Lock()  # held until there is an outcome
        self._done.acquire()
        self._seconds = timeout + _HEADER_SECONDS
        self._deadline = time.monotonic() + self._seconds
        self._written = threading.Event() if noted else None

        def ask(session: Any) -> Any:
            request = session.build_request("GET", url, headers=headers, timeout=timeout)
            if noted:
                request.extensions["trace"] = self._trace
            return session.send(request, stream=True, follow_redirects=False)

        def work() -> Callable[[], None]:
            try:
                try:
                    outcome = ask(session)
                except RuntimeError as error:
                    # Another thread closed the session, which is everybody's, before anything was sent.
                    if "closed" not in str(error):
                        raise
                    outcome = ask(new_session())
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                outcome = error
            return partial(self._end, outcome)

        _current_senders().run(work)

    def _trace(self, event: str, _: Any) -> None:
        # The HTTP library tells this function of each step (https://www.python-httpx.org/advanced/extensions/#trace).
        if self._written is not None and event.endswith(".send_request_body.complete"):
            self._written.set()

    def _end(self, outcome: Any) -> None:
        if self._written is not None:
            self._written.set()
        with self._guard:
            self._outcome, late = outcome, self._given_up
        self._done.release()
        if late:
            _close(outcome)

    def wait_written(self, seconds: float) -> bool:
        """Wait so long until a request that is `noted` has left, or failed; whether it has."""
        return self._written is not None and self._written.wait(seconds)

    def wait(self, seconds: float) -> bool:
        """Wait so long for the headers of the response, or an error; whether either is there."""
        done = self._done.acquire(timeout=seconds)
        if done:
            self._done.release()
        return done

    def response(self) -> Any:
        """The response, with an unread body; it is waited for once.

        Raises:
            TimeoutError: The headers take longer than they may. Also any error of the session.
        """
        try:
            while not self._done.acquire(timeout=_POLL_SECONDS):
                from kernels.support.concurrency import check_cancelled  # not for the first request of a call

                check_cancelled()
                if time.monotonic() > self._deadline:
                    raise TimeoutError(f"no whole answer within {self._seconds:.0f} s")
        except BaseException:
            self.give_up()
            raise
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, BaseException):
            try:
                raise outcome
            finally:
                del outcome
        return outcome

    def give_up(self) -> None:
        """Close the response, now or when it is there."""
        with self._guard:
            self._given_up = True
            outcome, self._outcome = self._outcome, None
        _close(outcome)


def _close(outcome: Any) -> None:
    if outcome is not None and not isinstance(outcome, BaseException):
        with suppress(Exception):  # nobody wants the answer, and the thread has others to send
            outcome.close()


#: Sends a request, and returns what tells of its result.
_Work = Callable[[], Callable[[], None]]


class _Senders:
    """Threads that send requests, one each at a time; one that waits for another request ends after some seconds.

    They are daemons: the end of the process does not wait for a request. Those that wait for one are ended, as an
    interpreter within a process aborts the process if a thread of it is left.
    """

    def __init__(self) -> None:
        self.kind_of_lock = threading.Lock
        self._guard = threading.Lock()
        self._idle = 0
        self._waiting: set[threading.Thread] = set()
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()

    def run(self, work: _Work) -> None:
        """Run a function that raises nothing in a thread that is idle, else in a new one.

        What it returns is called when the thread counts as idle: who is told of the result finds a thread there.
        """
        with self._guard:
            idle = self._idle > 0
            self._idle -= idle
        if idle:
            self._work.put(work)
        else:
            threading.Thread(target=self._run, args=(work,), name="kernels-request", daemon=True).start()

    def end(self) -> None:
        """End the threads that wait for a request."""
        with self._guard:
            idle, self._idle = self._idle, 0
            waiting = list(self._waiting)
        for _ in range(idle):
            self._work.put(None)
        deadline = time.monotonic() + _END_SECONDS
        for thread in waiting:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, work: _Work | None) -> None:
        own = threading.current_thread()
        while work is not None:
            tell = work()
            with self._guard:
                self._idle += 1
                self._waiting.add(own)
            tell()
            del work, tell  # with them the answer
            work = self._next()
            with self._guard:
                self._waiting.discard(own)

    def _next(self) -> _Work | None:
        while True:
            try:
                return self._work.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._guard:
                    if self._idle:  # else a request is on its way to this thread
                        self._idle -= 1
                        return None


_senders = _Senders()


def _renew() -> None:
    # A fork has none of these threads.
    global _senders
    _senders = _Senders()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)

atexit.register(lambda: _senders.end())


def _current_senders() -> _Senders:
    # A program may have replaced threads by greenlets since (gevent): one that waits in an older queue stops all of
    # them.
    if _senders.kind_of_lock is not threading.Lock:
        _renew()
    return _senders


def cut(response: Any) -> None:
    """End the reading of an answer that another thread waits for: closing the connection would not wake it.

    Args:
        response: The answer, of huggingface_hub's session.
    """
    if response.is_closed:  # another request may have its connection by now
        return
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if connection is not None:
        # Not the method of a TLS connection, which also takes away what the other thread is using.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def requested_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that the Hub asks to wait: `RateLimit` if nothing remains, else `Retry-After` in seconds or as a date."""
    from huggingface_hub.utils import parse_ratelimit_headers

    names = ("RateLimit", "RateLimit-Policy", "Retry-After")
    short = {name: text for name in names if len(text := headers.get(name) or "") <= _MAX_WAIT_HEADER}
    try:
        limit = parse_ratelimit_headers(short)
        if limit is not None and limit.remaining == 0:
            return float(limit.reset_in_seconds)
    except (ValueError, OverflowError):  # a number that no clock has
        pass
    text = short.get("Retry-After", "")
    try:
        return max(0.0, float(text))
    except ValueError:
        from email.utils import parsedate_to_datetime

        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
        except (TypeError, ValueError, LookupError, OverflowError, OSError):
            return None


@cache
def connection_errors() -> tuple[type[BaseException], ...]:
    """The errors that the session raises without an answer, with either HTTP library."""
    import inspect

    from huggingface_hub.utils import http_backoff

    retried: Any = inspect.signature(http_backoff).parameters["retry_on_exceptions"].default
    # The root of the library's request errors: it also covers a bad redirect or an undecodable body.
    roots = [cls for error in retried for cls in error.__mro__ if cls.__name__ == "HTTPError"][:1]
    # The errors of an invalid URL, stream or cookie are not below it.
    library = sys.modules.get(roots[0].__module__.partition(".")[0]) if roots else None
    others = (getattr(library, name, None) for name in ("InvalidURL", "StreamError", "CookieConflict"))
    return (*retried, *roots, *(each for each in others if isinstance(each, type)), OSError, UnicodeError)


def new_session() -> Any:
    """huggingface_hub's session; it is made if there is none, and others wait meanwhile."""
    from huggingface_hub.utils import get_session

    failures: tuple[type[BaseException], ...] = (ValueError, ImportError, *connection_errors())
    try:
        return get_session()
    except failures as error:
        # The URL of a proxy may contain a password, and the library quotes it.
        raise HubUnavailable(
            f"No connection can be made from here ({type(error).__name__}). Check the variables HTTP_PROXY, "
            "HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE."
        ) from None
