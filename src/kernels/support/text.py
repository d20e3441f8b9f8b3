"""Text that is safe in a terminal, a log or an exception, also where a third party wrote it.

Text from a Hub, a repository or a cache may have characters that control a terminal, change the direction of writing,
are invisible, or begin a line that looks like one of this package; and it may quote a token. Three functions show it:

- `one_line(text)` for a name or a value inside a sentence,
- `indented(text)` for a text of several lines that a message quotes, such as a compiler's,
- `clean(text)` for a whole message, whose own lines stay. Errors, warnings and log records pass through it anyway.
"""

from __future__ import annotations

import re
import sys
from typing import Any

__all__ = ["CleanError", "clean", "indented", "is_safe", "one_line"]

# `str.isprintable` is false for Unicode's categories "other" and "separator": C0 and C1 controls, DEL, bidi controls,
# zero-width characters, tags, surrogates, private and unassigned ones, line separators. These are printable by that
# rule, but invisible: the rest of Default_Ignorable_Code_Point (Unicode, DerivedCoreProperties.txt), and the empty
# braille pattern.
_INVISIBLE = "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"


def is_safe(text: str) -> bool:
    r"""Whether `text` is one line without unsafe characters.

    Example:
        >>> is_safe("build/torch-cpu"), is_safe("build\u202e")
        (True, False)
    """
    return text.isprintable() and (text.isascii() or re.search(_INVISIBLE, text) is None)


def one_line(text: str) -> str:
    r"""`text` for a part of a line: with escapes for unsafe characters, lines and tabs, and without secrets.

    Example:
        >>> one_line("v1\nAll checks passed\x07")
        'v1\\nAll checks passed\\x07'
    """
    return _shown(text, kept="")


def clean(text: str) -> str:
    r"""`text` for a message: with escapes for unsafe characters, and without secrets; its lines and tabs stay.

    Example:
        >>> clean("https://user:password@hub.example\x1b[2J\n")
        'https://(hidden)@hub.example\\x1b[2J\n'
    """
    return _shown(text, kept="\n\t")


def indented(text: str) -> str:
    r"""A third-party text of several lines, set off from the lines of the message around it.

    Example:
        >>> indented("error: no such file\nAll checks passed")
        'error: no such file\n  | All checks passed'
    """
    return "\n  | ".join(clean(text).split("\n"))


def _shown(text: str, kept: str) -> str:
    from kernels.support.secrets import redacted  # where there is a message

    if not is_safe(text):
        # A text has few different characters.
        escapes = {ord(each): _escape(each) for each in set(text) - set(kept) if not is_safe(each)}
        text = text.translate(escapes)
    return redacted(text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


class CleanError(Exception):
    r"""Base of errors and warnings whose text is `clean`: `str`, `repr`, arguments and notes.

    Example:
        >>> CleanError("no branch \x1b[31m")
        CleanError('no branch \\x1b[31m')
    """

    def __init__(self, *args: object, **named: Any) -> None:
        super().__init__(*map(_cleaned, args), **{name: _cleaned(value) for name, value in named.items()})

    def __str__(self) -> str:
        return clean(super().__str__())

    def __repr__(self) -> str:
        return clean(super().__repr__())

    if sys.version_info >= (3, 11):

        def add_note(self, note: str) -> None:
            """Add a note, made clean."""
            super().add_note(clean(note))


def _cleaned(value: object) -> object:
    return clean(value) if type(value) is str else value
