"""Text that is safe in a terminal, a log or an exception: the one definition of an unsafe character.

Text from a Hub, a repository or a cache may have characters that control a terminal, change the direction of writing,
are invisible, or begin a line that looks like one of this package. Every message passes through `clean`; a value that
a message quotes passes through `one_line`.
"""

from __future__ import annotations

import re
import sys
from typing import Any

__all__ = ["SafeText", "clean", "escaped", "indented", "is_safe", "one_line"]

# `str.isprintable` is false for Unicode's categories "other" and "separator": C0 and C1 controls, DEL, bidi controls,
# zero-width characters, tags, surrogates, private and unassigned ones, line separators. These are printable by that
# rule, but invisible: the rest of Default_Ignorable_Code_Point (Unicode, DerivedCoreProperties.txt), and the empty
# braille pattern.
_INVISIBLE = "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"

#: The most characters whose escapes are cached: no text that is not hostile has as many.
_REMEMBERED = 8192


class _Shown(dict[int, str]):
    """For `str.translate`: each character or its escape."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        self._kept = {ord(character): character for character in kept}
        self.update(self._kept)

    def __missing__(self, code: int) -> str:
        character = chr(code)
        unsafe = not character.isprintable() or re.match(_INVISIBLE, character) is not None
        shown = character.encode("unicode_escape").decode() if unsafe else character
        if len(self) >= _REMEMBERED:
            self.clear()
            self.update(self._kept)
        self[code] = shown
        return shown


_LINES = _Shown("\n\t")
_LINE = _Shown("")


def is_safe(text: str) -> bool:
    r"""Whether `text` is one line without unsafe characters.

    Example:
        >>> is_safe("build/torch-cpu"), is_safe("build\u202e")
        (True, False)
    """
    return text.isprintable() and (text.isascii() or re.search(_INVISIBLE, text) is None)


def escaped(text: str) -> str:
    r"""`text` with a visible escape for each unsafe character; lines and tabs stay.

    Example:
        >>> escaped("torch-cpu\x1b[2J\u202e")
        'torch-cpu\\x1b[2J\\u202e'
    """
    return text if is_safe(text) else text.translate(_LINES)


def clean(text: str) -> str:
    r"""`text` for a message: with escapes for unsafe characters, and without secrets.

    Example:
        >>> clean("https://user:password@hub.example\x07")
        'https://(hidden)@hub.example\\x07'
    """
    from kernels.support.secrets import redacted  # where there is a message

    return redacted(escaped(text))


def one_line(text: str) -> str:
    r"""`text` for a part of a line: `clean`, with escapes for lines and tabs as well.

    Example:
        >>> one_line("v1\nAll checks passed")
        'v1\\nAll checks passed'
    """
    from kernels.support.secrets import redacted  # where there is a message

    return redacted(text if is_safe(text) else text.translate(_LINE))


def indented(text: str) -> str:
    r"""A third-party text of several lines, set off from the lines of the message around it.

    Example:
        >>> indented("error: no such file\nAll checks passed")
        'error: no such file\n  | All checks passed'
    """
    return "\n  | ".join(clean(text).split("\n"))


class SafeText(Exception):
    r"""Base of errors and warnings whose text is `clean`: `str`, `repr`, arguments and notes.

    The library's exception that is being handled is cleaned as well: it is shown as the cause, and may quote a Hub's
    answer.

    Example:
        >>> SafeText("no branch \x1b[31m")
        SafeText('no branch \\x1b[31m')
    """

    def __init__(self, *args: object, **named: Any) -> None:
        super().__init__(*map(_cleaned, args), **{name: _cleaned(value) for name, value in named.items()})
        handled = sys.exc_info()[1]
        if handled is not None:
            _clean_library_errors(handled)

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


#: Packages whose exceptions quote what was received or sent. A program's or kernel's exceptions are not changed.
_LIBRARIES = frozenset(
    {
        *("h11", "h2", "hpack", "httpcore", "httpcore2", "httpx", "httpx2", "requests", "urllib3"),
        *("hf_xet", "huggingface_hub", "kernels", "msgspec", "sigstore", "tomli", "tomllib", "yaml"),
    }
)

#: The most exceptions of a chain of causes.
_LONGEST_CHAIN = 32


def _raised_by(error: BaseException) -> str:
    """The package of an exception's class; of a built-in class, the package that raised it."""
    module: Any = type(error).__module__
    trace = error.__traceback__
    if module == "builtins" and trace is not None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        module = trace.tb_frame.f_globals.get("__name__")
    return module.partition(".")[0] if isinstance(module, str) else ""


def _clean_library_errors(error: BaseException | None) -> None:
    """Clean the text of a library's exception, in place, and of its causes."""
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            return
        if not isinstance(error, SafeText) and _raised_by(error) in _LIBRARIES:
            args = tuple(map(_cleaned, error.args))
            if args != error.args:
                error.args = args
            notes = getattr(error, "__notes__", None)
            if isinstance(notes, list):
                notes[:] = map(_cleaned, notes)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
