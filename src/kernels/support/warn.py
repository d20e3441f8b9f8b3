"""Warnings in the log: each message is logged once."""

from __future__ import annotations

import logging

from kernels.support.text import clean

__all__ = ["forget", "warn_once"]

_given: dict[str, object] = {}


def warn_once(log: logging.Logger, message: str) -> None:
    """Log a warning, once in this process: a loop, or a model with many layers, does not repeat it.

    Args:
        log: The logger.
        message: The text.

    Example:
        >>> from kernels.support.logs import logger
        >>> for _ in range(3):
        ...     warn_once(logger("kernels.example"), "logged once")
    """
    message = clean(message)
    this = object()
    if _given.setdefault(message, this) is this:  # atomic: of two threads, one logs it
        log.warning("%s", message, stacklevel=2)


def forget() -> None:
    """Forget the warnings that were logged, so that they are logged again."""
    _given.clear()
