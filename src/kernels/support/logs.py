"""Log records that are safe to print: this package's own, and those of a library that quotes what it received.

A warning is logged once.
"""

from __future__ import annotations

import logging

from kernels.support.text import clean

__all__ = ["forget_warnings", "logger", "make_safe", "warn_once"]


class _Clean(logging.Filter):
    """Cleans the text of each record and of its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = clean(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = clean(record.exc_text)
        return True


_CLEAN = _Clean()


def logger(name: str) -> logging.Logger:
    """The logger of a module of this package.

    Args:
        name: The module's name.

    Example:
        >>> logger("kernels.example").name
        'kernels.example'
    """
    found = logging.getLogger(name)
    found.addFilter(_CLEAN)
    return found


def make_safe(library: str) -> None:
    """Clean what a library's own handlers write to standard error.

    Args:
        library: The name of the library's logger.

    Example:
        >>> make_safe("huggingface_hub")
    """
    for handler in logging.getLogger(library).handlers:
        handler.addFilter(_CLEAN)


_given: dict[str, object] = {}


def warn_once(log: logging.Logger, message: str) -> None:
    """Log a warning, once in this process: a loop, or a model with many layers, does not repeat it.

    Args:
        log: The logger.
        message: The text.

    Example:
        >>> for _ in range(3):
        ...     warn_once(logger("kernels.example"), "logged once")
    """
    message = clean(message)
    this = object()
    if _given.setdefault(message, this) is this:  # atomic: of two threads, one logs it
        log.warning("%s", message, stacklevel=2)


def forget_warnings() -> None:
    """Forget the warnings that were logged, so that they are logged again."""
    _given.clear()
