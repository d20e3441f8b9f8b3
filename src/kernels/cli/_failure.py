"""An error as a line on standard error."""

from __future__ import annotations

from kernels.errors import KernelsError
from kernels.support.text import clean

__all__ = ["describe", "report"]

#: Exceptions whose message is meant for whoever typed the command; of any other one the type is part of the story.
_SPEAK_FOR_THEMSELVES = (KernelsError, ValueError, OSError)


def describe(error: Exception) -> str:
    r"""An error in one line: a message of several lines is joined, one without a message gets the error's type.

    Example:
        >>> describe(ValueError("No build suits:\n  torch-cuda: for cuda\n  torch-cpu: for cpu"))
        'No build suits: torch-cuda: for cuda; torch-cpu: for cpu'
        >>> describe(ZeroDivisionError("division by zero"))
        'ZeroDivisionError: division by zero (--debug shows where)'
    """
    text = ""
    for line in filter(None, (line.strip().removeprefix("| ") for line in clean(str(error)).splitlines())):
        separator = "" if not text else " " if text.endswith((":", ".", ",", ";")) else "; "
        text += separator + line
    if isinstance(error, _SPEAK_FOR_THEMSELVES) and text:
        return text
    return f"{type(error).__name__}{': ' * bool(text)}{text} (--debug shows where)"


def report(error: Exception | str) -> None:
    """Print an error on standard error: one line, `Error: …`, red on a terminal."""
    from rich.text import Text

    from kernels.cli._output import console, visible

    text = visible(error if isinstance(error, str) else describe(error))
    console(stderr=True).print(Text.assemble(("Error:", "bold red"), " ", text), soft_wrap=True)
