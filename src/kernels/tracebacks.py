"""Short tracebacks: an error of this package leaves a public function as if it had been raised there.

`KERNELS_DEBUG=1` shows the frames of this package as well, and the errors that led to this one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

from kernels.errors import KernelsError

__all__ = ["public"]

_Call = TypeVar("_Call", bound=Callable[..., Any])
_PACKAGE = str(Path(__file__).parent)


def public(call: _Call) -> _Call:
    """Decorate a function that users call: a `KernelsError` leaves it without the frames of this package."""

    @functools.wraps(call)
    def public_function(*args: Any, **named: Any) -> Any:
        __tracebackhide__ = True  # to pytest
        handled = sys.exc_info()[1]
        try:
            return call(*args, **named)
        except KernelsError as error:
            from kernels import settings  # where there is an error

            if settings.debug():
                raise
            error.__cause__, error.__context__, error.__suppress_context__ = None, handled, False
            raise error.with_traceback(_others(error.__traceback__))  # noqa: B904 - it is the same error

    return cast(_Call, public_function)


def _others(trace: TracebackType | None) -> TracebackType | None:
    """The frames of a traceback that are not of this package: those of a kernel, or of a program's callback."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    if trace is not None:
        trace.tb_next = _others(trace.tb_next)
    return trace
