"""How a message shows what a stranger gave: an error or a value whose own text may fail, or have no end."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean", "said", "shown"]


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


def did_you_mean(word: str, among: Iterable[str]) -> str:
    """A question to append to a message: the likeliest of some names for one that is mistyped, or nothing.

    Args:
        word: What was written.
        among: What could have been meant.

    Example:
        >>> did_you_mean("cdua", ["cuda", "cpu"]), did_you_mean("abacus", ["cuda", "cpu"])
        (" Did you mean 'cuda'?", '')
    """
    # A comparison takes the product of the lengths, and no name is long.
    near = difflib.get_close_matches(word[:100], list(among), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
