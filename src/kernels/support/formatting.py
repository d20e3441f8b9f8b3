"""How a message shows what third parties gave: an error, a value or a text that may fail, steer, or have no end."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

from kernels.support.text import indented, one_line

__all__ = ["did_you_mean", "listed", "plain", "said", "shown"]


#: Names that a mistyped one is compared with; each takes some 20 µs.
_MAX_CANDIDATES = 1000


def said(error: BaseException, limit: int = 500, *, lines: bool = True) -> str:
    """An error as a message quotes it: its type, and its own message where that can be had.

    The first line of that stands in the message's own; those after it are set off, so that none of them can be taken
    for one of the message.

    Args:
        error: The error.
        limit: The most characters of it.
        lines: Whether its lines stay lines.

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
    return indented(_cut(text, limit)) if lines else plain(" ".join(text[: 10 * limit].split()), limit)


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
    return _cut(one_line(text), limit)


def plain(text: object, limit: int = 300) -> str:
    r"""A text as a message shows it without quotation marks, on one line: a name, a parser's words.

    Args:
        text: The text, or what has one.
        limit: The most characters of it.

    Example:
        >>> plain("v1\nAll checks passed")
        'v1\\nAll checks passed'
    """
    return _cut(one_line(str(text)), limit)


def listed(names: Iterable[object], between: str = ", ", *, most: int = 20) -> str:
    """Names that a repository gave, as a message lists them: the first, and how many more there are.

    Args:
        names: The names.
        between: What stands between two of them.
        most: How many of them are shown.

    Example:
        >>> listed(["cuda", "cpu"]), listed(range(100), " or ", most=2)
        ('cuda, cpu', '0 or 1 and 98 more')
    """
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return between.join(plain(name, 100) for name in every[:most]) + more


def did_you_mean(word: str, among: Iterable[str]) -> str:
    """A question to append to a message: the likeliest of some names for one that is mistyped, or nothing.

    Args:
        word: What was written.
        among: What could have been meant.

    Example:
        >>> did_you_mean("cdua", ["cuda", "cpu"]), did_you_mean("abacus", ["cuda", "cpu"])
        (" Did you mean 'cuda'?", '')
    """
    # A comparison takes the product of the lengths, and no name is long; a list that is, is a repository's.
    candidates = [name for name in islice(among, _MAX_CANDIDATES) if len(name) <= 100]
    near = difflib.get_close_matches(word[:100], candidates, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
