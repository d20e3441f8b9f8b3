"""A mirror in an object store: S3, Google Cloud Storage, Azure, or another server with the interface of S3."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from kernels import settings
from kernels.errors import HubUnavailable, KernelsError, NotInCache, RequestError, StoreError
from kernels.mirror.stores.base import EntryNotFound, StoreChanged, StoredDocument, StoredEntry
from kernels.mirror.stores.cloud_errors import CloudProblem, cloud_errors, problem_of, reason_of
from kernels.mirror.stores.clouds import about_credentials, is_unsigned, what_is_set
from kernels.mirror.stores.content_types import content_type
from kernels.mirror.stores.paths import check_path
from kernels.mirror.stores.waiting import result_of, started
from kernels.models.mirror_form import REPAIR_ADVICE
from kernels.support.forks import ForkLock
from kernels.support.formatting import plural
from kernels.support.logs import logger, warn_once
from kernels.support.tasks import Cancelled, pause

__all__ = ["CloudStore"]

_log = logger(__name__)

#: The limits of retries, as of a Hub (`Patience` of `sources/http.py`).
_TRIES = 6
_CONNECTION_TRIES = 4
_BUDGET_SECONDS = 320.0
_WAIT = 0.5
_LONGEST_WAIT = 8.0

#: The slowest transfer, in bytes per second; a slower one times out.
_SLOWEST = 16 * 1024

_PIECE = 1 << 20

#: Bytes from which pieces are passed on: each costs some 100 µs.
_LEAST_PIECE = 256 * 1024

#: Larger content is sent in parts of so many bytes, of which some are sent side by side. S3 has 10,000 parts at most.
_PART = 8 * 1024 * 1024
_PARTS_AT_ONCE = 4
_MOST_PARTS = 10_000

_FOREVER, _ASK = "public, max-age=31536000, immutable", "no-cache"

#: Between the ETag and the generation of Google, which a conditional write needs.
_AND = " generation="

#: What to do where obstore fails inside: seen with tokens that no header can carry.
_PANIC_ADVICE = "Check the files and variables with its credentials: docs/mirrors.md lists them."

#: Held while a store is connected.
_connecting = ForkLock()

#: The entry that a store is asked to replace, which it does not have.
_PROBE = "conditions-probe"

#: In messages, in place of a path.
_LISTING = "its listing"

_T = TypeVar("_T")


class CloudStore:
    """A mirror in an object store.

    Args:
        url: Its address, as messages show it.
        connect: Makes obstore's store, at the first request. It is called with the number of retries of its own.

    Attributes:
        url: Its address.
        parallel: Whether an answer was the requested range: some servers with the interface of S3 send the whole entry.
    """

    def __init__(self, url: str, connect: Callable[[int], Any]) -> None:
        self.url = url
        self._connect = connect
        self.parallel = False
        self._reader: Any = None
        self._writer: Any = None
        self._checks_conditions: bool | None = None
        self._bare_etags = False

    def read(self, path: str, limit: int, *, etag: str = "") -> StoredDocument | None:
        """A small document; see `ReadStore.read`."""
        check_path(path, self.url)
        store = self._reading()
        known = etag.partition(_AND)[0]

        async def get() -> tuple[bytes, dict[str, Any]]:
            answer = await store.get_async(path, options={"if_none_match": known} if known else {})
            if answer.meta["size"] > limit:
                raise HubUnavailable(f"{self.url}/{path} has more than {limit} bytes.")
            return bytes(await answer.bytes_async()), answer.meta

        try:
            content, facts = self._tried(path, get)
        except _Refusal as error:
            if error.problem.status == 304:
                return None
            raise self._unread(path, error.problem) from None
        return StoredDocument(content, _etag(facts))

    @contextmanager
    def stream(self, path: str, size: int, start: int = 0, stop: int | None = None) -> Iterator[Iterator[bytes]]:
        """The bytes of an entry; see `ReadStore.stream`."""
        check_path(path, self.url)
        end = size if stop is None else min(stop, size)
        if end <= start:
            yield iter(())
            return
        try:
            try:
                answer, ranged = self._got(path, size, start, end), True
                self.parallel = self.parallel or end - start < size
            except _Refusal as error:
                if not error.problem.no_ranges:
                    raise
                answer, ranged = self._got(path, size, 0, size), False
                self.parallel = False
        except _Refusal as error:
            raise self._unread(path, error.problem) from None
        with closing(self._pieces(path, answer, end - start if ranged else size)) as pieces:
            yield pieces if ranged else _part(pieces, start, end - start)

    def _got(self, path: str, size: int, start: int, end: int) -> Any:
        """obstore's stream of a part of an entry."""
        store = self._reading()
        options = {} if (start, end) == (0, size) else {"range": (start, end)}

        async def get() -> Any:
            answer = await store.get_async(path, options=options)
            found = answer.meta["size"]
            if found != size or tuple(answer.range) != (start, end):
                raise HubUnavailable(f"{self.url}/{path} has {found} bytes, expected {size}: {REPAIR_ADVICE}.")
            return answer.stream(min_chunk_size=_LEAST_PIECE)

        return self._tried(path, get)

    def _pieces(self, path: str, answer: Any, left: int) -> Any:
        async def following() -> bytes | None:
            try:
                return bytes(await answer.__anext__())
            except StopAsyncIteration:
                return None

        deadline = time.monotonic() + _BUDGET_SECONDS + left / _SLOWEST
        ahead = started(following)
        try:
            while True:
                try:
                    piece = result_of(ahead, deadline - time.monotonic())
                except (KernelsError, Cancelled):
                    raise
                except cloud_errors() as error:
                    raise self._unread(path, problem_of(error)) from None
                if piece is None:
                    break
                left -= len(piece)
                if left < 0:
                    raise HubUnavailable(f"{self.url}/{path} has more bytes than were requested.")
                ahead = started(following)  # it arrives while the caller uses this one
                for begin in range(0, len(piece), _PIECE):
                    yield piece[begin : begin + _PIECE]
            if left:
                raise HubUnavailable(f"{self.url}/{path} was cut short: {plural(left, 'byte')} did not arrive.")
        finally:
            ahead.cancel()

    def write(
        self, path: str, content: bytes | Path, *, expect: str | Literal["new"] | None = None, immutable: bool = False
    ) -> str:
        """Put an entry at a path; see `WriteStore.write`."""
        check_path(path, self.url)
        etag = self._put(path, content, expect, immutable)
        if expect is not None and self._checks_conditions is None:
            self._checks_conditions = self._refuses_a_condition()
        return etag

    def _put(self, path: str, content: bytes | Path, expect: str | None, immutable: bool) -> str:
        if expect is None or expect == "new" or not expect.startswith('"'):
            return self._sent(path, content, expect, immutable)
        if not self._bare_etags:
            try:
                return self._sent(path, content, expect, immutable)
            except StoreChanged:
                # Ceph 16 compares the condition of a write with the ETag without its quotes, so none holds.
                if self._etag_of(path) != expect:
                    raise
        etag = self._sent(path, content, expect.replace('"', ""), immutable)
        self._bare_etags = True
        return etag

    def _etag_of(self, path: str) -> str:
        store = self._reading()

        async def head() -> str:
            return _etag(await store.head_async(path))

        try:
            return self._tried(path, head)
        except _Refusal:
            return ""

    def _sent(self, path: str, content: bytes | Path, expect: str | None, immutable: bool) -> str:
        store = self._writing()
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        named: dict[str, Any] = {
            "attributes": {"Content-Type": content_type(path), "Cache-Control": _FOREVER if immutable else _ASK}
        }
        if expect is None:
            named |= {"chunk_size": max(_PART, -(-size // _MOST_PARTS)), "max_concurrency": _PARTS_AT_ONCE}
        else:
            known, _, generation = expect.partition(_AND)
            version = {"e_tag": known, **({"version": generation} if generation else {})}
            named |= {"mode": "create" if expect == "new" else version, "use_multipart": False}

        async def put() -> Any:
            return await store.put_async(path, content, **named)

        try:
            return _etag(self._answer(put, _BUDGET_SECONDS + size / _SLOWEST))
        except _Refusal as error:
            if expect is not None and (error.problem.conflict or error.problem.missing):
                return self._conflict(path, content, error)
            raise self._unwritten(path, error.problem, conditional=expect is not None) from None

    def _conflict(self, path: str, content: bytes | Path, error: _Refusal) -> str:
        """What a conflict means: after a retry, the entry there may be the one of the first try."""
        if error.retried:
            own = content if isinstance(content, bytes) else content.read_bytes()
            try:
                there = self.read(path, len(own))
            except KernelsError:
                there = None
            if there is not None and there.content == own:
                return there.etag
        raise StoreChanged(f"{self.url}/{path} was changed by another process meanwhile.") from None

    def _refuses_a_condition(self) -> bool:
        """Whether the store refuses a write whose condition does not hold: some servers ignore it.

        It is asked with an entry of its own, which no store has, so that where it is written it undoes no change.
        """
        try:
            self._sent(_PROBE, b"", f'"{"0" * 32}"{_AND}1', False)
        except KernelsError:
            return True  # refused, or not known; the write before has succeeded
        with suppress(KernelsError):
            self.delete(_PROBE)
        warn_once(
            _log,
            f"{self.url} ignores the conditions of writes, so a writer may undo the change of another one. Let only "
            "one process write to it at a time.",
        )
        return False

    def size(self, path: str) -> int | None:
        """Bytes of an entry, or None; see `WriteStore.size`."""
        check_path(path, self.url)
        store = self._reading()

        async def head() -> int:
            return int((await store.head_async(path))["size"])

        try:
            return self._tried(path, head)
        except _Refusal as error:
            if error.problem.missing:
                return None
            raise self._unread(path, error.problem) from None

    def entries(self, prefix: str = "") -> Iterator[StoredEntry]:
        """The entries below a prefix; see `WriteStore.entries`."""
        if prefix:
            check_path(prefix, self.url)
        store = self._reading()

        async def listed() -> list[StoredEntry]:
            found = []
            async for page in store.list(prefix or None, chunk_size=1000):
                found += [
                    StoredEntry(each["path"], int(each["size"]), each["last_modified"].timestamp()) for each in page
                ]
            return sorted(found, key=lambda entry: entry.path)

        try:
            yield from self._tried(prefix or _LISTING, listed)
        except _Refusal as error:
            raise self._unread(_LISTING, error.problem) from None

    def delete(self, path: str) -> None:
        """Remove an entry; see `WriteStore.delete`."""
        check_path(path, self.url)
        store = self._writing()

        async def delete() -> None:
            await store.delete_async(path)

        try:
            self._answer(delete, _BUDGET_SECONDS)
        except _Refusal as error:
            if not error.problem.missing:
                raise self._unwritten(path, error.problem) from None

    def _reading(self) -> Any:
        """obstore's store for requests that are tried again here."""
        if settings.offline():
            raise NotInCache(f"{self.url} was not requested: HF_HUB_OFFLINE is set.")
        with _connecting:
            if self._reader is None:
                self._reader = self._connected(0)
            return self._reader

    def _writing(self) -> Any:
        """obstore's store for requests that it tries again itself: each part of an upload."""
        if settings.offline():
            raise NotInCache(f"{self.url} was not requested: HF_HUB_OFFLINE is set.")
        with _connecting:
            if self._writer is None:
                writer = self._connected(_TRIES - 1)
                if self.url.startswith("gs:") and is_unsigned(writer):  # obstore would ask the metadata service
                    why = about_credentials(self.url, writer)
                    raise StoreError(f"Cannot write {self.url}: Google takes only signed requests. {why}")
                self._writer = writer
            return self._writer

    def _connected(self, retries: int) -> Any:
        try:
            return self._connect(retries)
        except KernelsError:
            raise
        except cloud_errors() as error:
            raise RequestError(f"{self.url} cannot be used: {reason_of(error)}. {what_is_set(self.url)}") from None

    def _tried(self, path: str, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """The answer to a request, which is tried again where that may help."""
        deadline, wait = time.monotonic() + _BUDGET_SECONDS, _WAIT
        for attempt in range(1, _TRIES + 1):
            begun = time.monotonic()
            try:
                found = self._answer(work, deadline - begun)
            except _Refusal as error:
                problem = error.problem
                _log.debug("%s: %s %s in %.3f s", self.url, path, problem.text, time.monotonic() - begun)
                if not problem.retry or attempt == (_TRIES if problem.status else _CONNECTION_TRIES):
                    raise _Refusal(problem, attempt) from None
                # Random, so that many clients that were refused together do not retry together.
                seconds = wait * (1 + random.random() / 4)
                if time.monotonic() + seconds > deadline:
                    raise _Refusal(problem, attempt) from None
                wait = min(wait * 2, _LONGEST_WAIT)
                pause(seconds)
            else:
                _log.debug("%s: %s in %.3f s", self.url, path, time.monotonic() - begun)
                return found
        raise AssertionError("unreachable")

    def _answer(self, work: Callable[[], Coroutine[Any, Any, _T]], seconds: float) -> _T:
        try:
            return result_of(started(work), seconds)
        except (KernelsError, Cancelled):
            raise
        except cloud_errors() as error:
            # obstore says how often it has tried again.
            raise _Refusal(problem_of(error), retried=" retries, max_retries" in str(error)) from None
        except Exception as error:
            if type(error).__name__ != "RustPanic":  # a class without a module that could be imported
                raise
            raise _Refusal(CloudProblem("cannot be used: obstore failed", advice=_PANIC_ADVICE)) from None

    def _unread(self, path: str, problem: CloudProblem) -> KernelsError:
        if problem.missing:
            return EntryNotFound(f"{self.url} has no {path}.")
        return HubUnavailable(f"{self.url} {problem.text} for {path}.{self._advice(problem, read=path != _LISTING)}")

    def _unwritten(self, path: str, problem: CloudProblem, *, conditional: bool = False) -> KernelsError:
        if conditional and problem.unsupported:
            return StoreError(
                f"{self.url} {problem.text} for {path}: it does not support conditional writes (If-Match, "
                "If-None-Match), which keep writers from undoing each other's changes. Use another store, or write to "
                "a folder and copy it."
            )
        if problem.status and not problem.retry:
            return StoreError(f"Cannot write {self.url}/{path}: the store {problem.text}.{self._advice(problem)}")
        return HubUnavailable(f"{self.url} {problem.text} for {path}.{self._advice(problem)}")

    def _advice(self, problem: CloudProblem, *, read: bool = False) -> str:
        told = [problem.advice]
        if problem.refused or problem.status == 400:
            told.append(about_credentials(self.url, self._reader or self._writer))
        if problem.refused and not any(told):
            told.append("Check the credentials and their rights (docs/mirrors.md).")
        if problem.refused and not problem.advice and read:
            told.append("To a reader that may not list the bucket, a store answers so if an entry is missing, too.")
        return "".join(f" {each}" for each in told if each)


class _Refusal(Exception):
    def __init__(self, problem: CloudProblem, tries: int = 1, *, retried: bool = False) -> None:
        super().__init__(problem.text)
        self.problem = problem
        self.tries = tries
        self.retried = retried


def _etag(facts: Any) -> str:
    etag, version = facts["e_tag"] or "", facts["version"]
    # Google's generation is a number; the versions of S3 and Azure are not needed.
    return f"{etag}{_AND}{version}" if version and version.isdecimal() else etag


def _part(pieces: Iterator[bytes], skip: int, left: int) -> Iterator[bytes]:
    """A part of an entry that arrives whole."""
    for piece in pieces:
        wanted = piece[skip : skip + left]
        skip = max(skip - len(piece), 0)
        left -= len(wanted)
        if wanted:
            yield wanted
        if not left:
            return
