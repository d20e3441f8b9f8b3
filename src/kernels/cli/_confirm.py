"""The question before something is removed."""

from __future__ import annotations

import sys

import typer

from kernels.cli._output import print_line

__all__ = ["confirm_removal"]


def confirm_removal() -> None:
    """Ask whether to remove what was listed.

    Raises:
        typer.Exit: The answer is no, or nobody can answer; that is said.
    """
    interactive = sys.stdin is not None and sys.stdin.isatty()
    # The question goes to standard error: standard output is for the answer.
    if interactive and typer.confirm("Remove them?", err=True):
        return
    print_line("Nothing was removed.")
    if not interactive:
        print_line("Standard input is not a terminal. To remove without confirmation: --yes")
    raise typer.Exit(1)
