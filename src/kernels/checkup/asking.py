"""Questions that a check asks once: `torch_build` is asked by several steps, and one that hangs is waited for once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kernels.backends.base import Backend
from kernels.errors import KernelsError

__all__ = ["NoAnswer", "torch_asked_once", "without_memory"]


class NoAnswer(KernelsError):
    """A backend did not answer in time."""


class _Once:
    """A backend's `torch_build`, with its last answer.

    Attributes:
        own: The method itself.
        seconds: How long it may take.
        in_instance: Whether the backend has it as an attribute of the object, not of its class.
    """

    def __init__(self, own: Any, seconds: float, in_instance: bool) -> None:
        self.own = own
        self.seconds = seconds
        self.in_instance = in_instance
        self._asked_of: object = None
        self._answer: Any = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def __call__(self, torch: Any) -> Any:
        with self._lock:
            # A Torch that is imported says more than one that is only looked at. One that hangs, hangs with both.
            if self._asked_of is not torch and not isinstance(self._error, NoAnswer):
                self._ask(torch)
            if self._error is not None:
                raise self._error
            return self._answer

    def _ask(self, torch: Any) -> None:
        self._asked_of = torch
        self._error = NoAnswer(
            f"torch_build: no answer within {self.seconds:g} seconds; it must return Found(…) or None"
        )

        def ask() -> None:
            try:
                answers.append((self.own(torch), None))
            except BaseException as error:  # noqa: BLE001 - a stranger's code, which may even call `sys.exit`
                answers.append((None, error))

        answers: list[tuple[Any, BaseException | None]] = []
        thread = threading.Thread(target=ask, name="kernels-check-torch-build", daemon=True)
        thread.start()
        thread.join(self.seconds)
        if answers:
            self._answer, self._error = answers[0]


@contextmanager
def torch_asked_once(backend: Backend, seconds: float) -> Iterator[None]:
    """Meanwhile, have whoever asks a backend's `torch_build` get the answer that it gave first, or its error.

    Args:
        backend: The backend.
        seconds: How long it may take; after that, every question raises `NoAnswer` at once.

    Example:
        >>> class Acme(Backend):
        ...     def torch_build(self, torch):
        ...         print("asked")
        >>> acme = Acme()
        >>> with torch_asked_once(acme, 5.0):
        ...     [acme.torch_build(7), acme.torch_build(7)]
        asked
        [None, None]
    """
    in_instance = "torch_build" in getattr(backend, "__dict__", {})
    once = _Once(backend.torch_build, seconds, in_instance)
    with suppress(Exception):  # a stranger's class may let nobody set anything: then it is asked each time
        backend.torch_build = once  # type: ignore[method-assign]
    try:
        yield
    finally:
        if vars(backend).get("torch_build") is once:
            if in_instance:
                backend.torch_build = once.own  # type: ignore[method-assign]
            else:
                del backend.torch_build


def without_memory(backend: Backend) -> dict[str, Any]:
    """The attributes of a backend's object, without what a check has put there.

    Example:
        >>> acme = Backend()
        >>> with torch_asked_once(acme, 5.0):
        ...     without_memory(acme)
        {}
    """
    own = dict(vars(backend))
    memory = own.get("torch_build")
    if isinstance(memory, _Once) and not memory.in_instance:
        del own["torch_build"]
    return own
