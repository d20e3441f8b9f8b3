"""Third-party errors, values and texts as a message quotes them: safe to print, bounded, even where `repr` fails."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from kernels.errors import KernelsError
from kernels.support.text import one_line

__all__ = [
    "as_clause",
    "did_you_mean",
    "format_error",
    "format_names",
    "format_text",
    "format_value",
    "nearest_name",
    "plural",
    "shell_word",
    "shortened",
    "wrong_type",
]

#: The most names that a mistyped one is compared with: a repository may have 10,000 builds.
_MAX_CANDIDATES = 1000


def format_error(error: BaseException, limit: int = 500) -> str:
    """An error's type, message and notes on one line; of this package's own errors without the type.

    Args:
        error: The error.
        limit: The most characters.

    Example:
        >>> format_error(OSError("no driver"))
        'OSError: no driver'
    """
    name = type(error).__name__
    prefix = "" if isinstance(error, KernelsError) else f"{name}: "
    said = _text_of(lambda each: f"{prefix}{each}".removesuffix(": "), error, f"{name}, whose message raised")
    notes = getattr(error, "__notes__", None)
    whole = [said[: 10 * limit], *(notes if isinstance(notes, list) else ())]
    return format_text(" ".join(" ".join(whole).split()), limit)


def format_value(value: object, limit: int = 80) -> str:
    """A value's `repr` on one line.

    Args:
        value: The value.
        limit: The most characters.

    Example:
        >>> format_value("acme"), format_value("a" * 100)[-3:]
        ("'acme'", 'aa…')
    """
    return shortened(one_line(_text_of(repr, value, f"a {type(value).__name__}, whose repr raised")), limit)


def format_text(text: object, limit: int = 300) -> str:
    r"""A text on one line, without quotation marks: a name, a parser's message.

    Args:
        text: The text, or an object with a `str`.
        limit: The most characters.

    Example:
        >>> format_text("v1\nAll checks passed")
        'v1\\nAll checks passed'
    """
    return shortened(one_line(str(text)), limit)


def as_clause(error: object) -> str:
    """A message as the end of another sentence, which has its own full stop.

    Example:
        >>> f"It is left out: {as_clause('expected 2, got 3.')}."
        'It is left out: expected 2, got 3.'
    """
    text = str(error)
    return text if text.endswith("..") else text.removesuffix(".")


def format_names(names: Iterable[object], separator: str = ", ", *, limit: int = 20) -> str:
    """The first names of a list, and how many more there are.

    Args:
        names: The names.
        separator: The text between two names.
        limit: The most names.

    Example:
        >>> format_names(["cuda", "cpu"]), format_names(range(100), " or ", limit=2)
        ('cuda, cpu', '0 or 1 and 98 more')
    """
    every = list(names)
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return separator.join(format_text(name, 100) for name in every[:limit]) + more


def shortened(text: str, limit: int) -> str:
    """A text with at most as many characters as the limit.

    Example:
        >>> shortened("a long message", 7), shortened("short", 7)
        ('a long…', 'short')
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"


def wrong_type(argument: str, expected: str, value: object) -> TypeError:
    """The error for an argument of the wrong type.

    Args:
        argument: The argument's name.
        expected: What it must be, with its article.
        value: The value that was given.

    Example:
        >>> str(wrong_type("version", "an int", "x"))
        "`version`: expected an int, got 'x' (str)."
    """
    return TypeError(f"`{argument}`: expected {expected}, got {format_value(value)} ({type(value).__name__}).")


def shell_word(value: object) -> str:
    """A value as one word of a command that a reader copies: names and paths may have characters of the shell.

    Example:
        >>> shell_word("org/relu"), shell_word("v1;ls")
        ('org/relu', "'v1;ls'")
    """
    import shlex  # where there is a message

    return shlex.quote(str(value))


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    Example:
        >>> plural(1, "line"), plural(2, "line")
        ('1 line', '2 lines')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def did_you_mean(word: object, candidates: Iterable[str], cutoff: float = 0.6) -> str:
    """A question to append to a message about a mistyped name; empty where no candidate is similar.

    Args:
        word: The mistyped name.
        candidates: The valid names.
        cutoff: How similar they must be, between 0 and 1.

    Example:
        >>> did_you_mean("cdua", ["cuda", "cpu"]), did_you_mean("abacus", ["cuda", "cpu"])
        (" Did you mean 'cuda'?", '')
    """
    near = nearest_name(word, candidates, cutoff)
    return "" if near is None else f" Did you mean {format_value(near)}?"


def nearest_name(word: object, candidates: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The name that a mistyped one probably means, or None where none is similar.

    Args:
        word: The mistyped name; a value that is not text is like no name.
        candidates: The valid names.
        cutoff: How similar they must be, between 0 and 1.

    Example:
        >>> nearest_name("cdua", ["cuda", "cpu"]), nearest_name("CUDA", ["cuda"]), nearest_name(None, ["cuda"])
        ('cuda', 'cuda', None)
    """
    if not isinstance(word, str):
        return None
    # Comparing takes time by the product of the lengths: long names come from hostile repositories only.
    short = [name for name in islice(candidates, _MAX_CANDIDATES) if isinstance(name, str) and len(name) <= 100]
    lower = {name.lower(): name for name in reversed(short)}  # upper and lower case are as easily confused
    near = difflib.get_close_matches(word[:100].lower(), list(lower), n=1, cutoff=cutoff)
    return lower[near[0]] if near else None


def _text_of(convert: Callable[[Any], str], value: object, raised: str) -> str:
    try:
        return convert(value)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as failure:  # noqa: BLE001 - third-party code, which may even call `sys.exit`
        return f"{raised} {type(failure).__name__}"
