"""Requests that leave before the code that needs their answers is there.

What a call asks first is known from its arguments. It is sent at once, and the rest is imported while the answer is on
its way. A large file is requested while it is decided whether it is needed. `HttpClient` takes the answer over when it
is about to send the same request: whatever follows, such as a redirect or a retry, is as without. The body of an answer
is not read before that. An answer that nobody takes is closed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple
from weakref import WeakValueDictionary

from kernels.sources.send_request import Sending, new_session

__all__ = ["EarlyRequest", "EarlyRequests", "requests_in_flight", "take_in_flight"]

#: The headers that an answer depends on.
_DECISIVE = frozenset({"accept-encoding", "authorization", "if-modified-since", "if-none-match", "range"})

#: The longest time in seconds that the imports that follow leave the interpreter to the threads that send the requests.
_HEAD_START = 0.005

#: Seconds between looks at whether the work was cancelled.
_POLL_SECONDS = 0.2


class EarlyRequest(NamedTuple):
    """A request that will be needed.

    Attributes:
        url: Its URL.
        headers: All of its headers.
        timeout: Seconds of each read.
        needed: Whether the answer is not known by now. It is called when no other call asks the same any more.
    """

    url: str
    headers: Mapping[str, str]
    timeout: float
    needed: Callable[[], bool]


class _InFlight:
    """A request under way, which one sender takes over, or nobody does."""

    def __init__(self, request: EarlyRequest) -> None:
        self._request = request
        self._begun = threading.Event()
        self._sending: Sending | None = None

    def is_needed(self) -> bool:
        """Whether it is to be sent."""
        needed = False
        with suppress(Exception):  # another thread may be importing what tells it
            needed = self._request.needed()
        if not needed:
            self._begun.set()
        return needed

    def send(self, noted: bool = False) -> None:
        """Send it; with `noted`, `wait_written` waits for it."""
        try:
            with suppress(Exception):  # the ordinary request meets it as well, and says what is wrong
                self._sending = Sending(self._request.url, self._request.headers, self._request.timeout, noted=noted)
        finally:
            self._begun.set()

    def wait_written(self, seconds: float) -> None:
        """Wait so long until the request has left."""
        sending = self._sending
        if sending is not None:
            sending.wait_written(seconds)

    def asks(self, headers: Mapping[str, str]) -> bool:
        """Whether it is the request with these headers, as far as an answer depends on them."""
        return _compared(self._request.headers) == _compared(headers)

    def take(self) -> Sending | None:
        """The request; None if somebody has taken it, or it could not be sent."""
        while not self._begun.wait(_POLL_SECONDS):
            from kernels.support.concurrency import check_cancelled  # not before the request is sent

            check_cancelled()
        with _guard:
            sending, self._sending = self._sending, None
        return sending

    def give_up(self) -> None:
        """Close the answer of a request that nobody has taken, now or when it is there."""
        with _guard:
            sending, self._sending = self._sending, None
        self._begun.set()  # also if it was not sent
        if sending is not None:
            sending.give_up()


_guard = threading.Lock()
#: Those of calls that end in whatever way are not in it any more, also where Ctrl-C comes before they are taken out.
_in_flight: WeakValueDictionary[str, _InFlight] = WeakValueDictionary()


def _renew() -> None:
    # A fork has none of the threads, and a lock that one of them holds is never released in it.
    global _guard
    _guard = threading.Lock()
    _in_flight.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


@contextmanager
def requests_in_flight(requests: Iterable[EarlyRequest]) -> Iterator[None]:
    """Send requests side by side, for the code in the block; what another call has sent is not sent again.

    Args:
        requests: The requests. A call that sends none of them is as good: then they are sent when they are needed.
    """
    own = _registered(requests)
    try:
        needed = [each for each in own.values() if each.is_needed()]
        if "huggingface_hub.utils" not in sys.modules:
            _let_forks_wait()  # for its session, which takes longer to make than this
        _begin(needed)
        _let_forks_wait()
        yield
    finally:
        _end(own)


class EarlyRequests:
    """Requests that are sent at once, in their order, and can be taken over until `end`.

    Args:
        requests: The requests. What is under way already is not sent again.
    """

    def __init__(self, requests: Iterable[EarlyRequest]) -> None:
        self._own = _registered(requests)
        for each in self._own.values():
            each.send()

    def end(self) -> None:
        """Close the answers that nobody has taken, now or when they are there."""
        _end(self._own)


def _registered(requests: Iterable[EarlyRequest]) -> dict[str, _InFlight]:
    own: dict[str, _InFlight] = {}
    with _guard:
        for request in requests:
            if request.url not in _in_flight:
                own[request.url] = _in_flight[request.url] = _InFlight(request)
    return own


def _end(own: Mapping[str, _InFlight]) -> None:
    with _guard:
        for url, each in own.items():
            if _in_flight.get(url) is each:
                del _in_flight[url]
    for each in own.values():
        each.give_up()


def _begin(requests: list[_InFlight]) -> None:
    # Where huggingface_hub's session is not there it is made here, and nothing is imported meanwhile: two threads that
    # import leave the interpreter to each other every 5 ms, and the request, for which all wait, would leave later.
    for each in requests:
        each.send(noted=True)
    deadline = time.monotonic() + _HEAD_START
    for each in requests:
        each.wait_written(deadline - time.monotonic())


def _let_forks_wait() -> None:
    from kernels.support.forks import no_fork_during  # if possible not before the request

    no_fork_during(new_session)


def take_in_flight(url: str, headers: Mapping[str, str]) -> Sending | None:
    """The request that is under way for a URL with these headers, once; None if it has to be sent.

    Args:
        url: The URL.
        headers: All headers of the request. That of an early request may have another user agent.
    """
    early = _in_flight.get(url)
    return early.take() if early is not None and early.asks(headers) else None


def _compared(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items() if name.lower() in _DECISIVE}
