"""How a message shows what a stranger gave: an error or a value whose own text may fail, or have no end."""

from __future__ import annotations

__all__ = ["said", "shown"]


def said(error: BaseException, limit: int = 500) -> str:
    """An error as a message quotes it: its type, and its own message where that can be had.

    Args:
        error: The error.
        limit: The most characters of it.

    Example:
        >>> said(OSError("no driver"))
        'OSError: no driver'
    """
    try:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as failure:  # noqa: BLE001 - `sys.exit` in a `__str__`, say
        text = f"{type(error).__name__}, whose message cannot be had ({type(failure).__name__})"
    return _cut(text, limit)


def shown(value: object, limit: int = 80) -> str:
    """A value as a message shows it.

    Args:
        value: The value.
        limit: The most characters of it.

    Example:
        >>> shown("acme"), shown("a" * 100)[-3:]
        ("'acme'", 'aa…')
    """
    try:
        text = repr(value)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as failure:  # noqa: BLE001 - `sys.exit` in a `__repr__`, say
        text = f"a {type(value).__name__}, whose text cannot be had ({type(failure).__name__})"
    return _cut(text, limit)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
