"""The `kernels` command line: one module per command, imported when the command runs.

Each module of this package without a leading underscore is a command; its function of the same name is what runs.
`_groups.py` lists them.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from kernels import settings
from kernels._version import __version__
from kernels.cli._groups import GROUPS
from kernels.cli._help import command_help, group_help
from kernels.cli._installation import installation_lines
from kernels.cli._output import log_to_stderr, print_error, print_in_any_locale, reserve_stdout
from kernels.cli._values import Choice, actions_of, read_values
from kernels.support.installed import installed_from
from kernels.support.text import clean

__all__ = ["app", "main"]

_DEBUG = "--debug"

#: What no command takes: other users of the machine see its arguments.
_TOKEN = "--token"

#: How often each form of `--verbose` counts.
_VERBOSE = {"--verbose": 1, "-v": 1, "-vv": 2}

# Newer versions of typer contain click, older ones import it. So its types are `Any` below.
_UsageError: Any = typer.BadParameter.__base__


class _Command(TyperCommand):
    """A command that has standard output to itself, and whose errors are one line and an exit status."""

    #: What its first argument can say.
    actions: Sequence[Choice] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return list(super().parse_args(ctx, args))
        except _UsageError as error:
            error.ctx = error.ctx or ctx
            # Only an error for an unknown option has `possibilities`: the similar options, which typer prints.
            similar = getattr(error, "possibilities", True)
            hint = "" if similar is True else self._hint(error.option_name)
            if hint and (not similar or error.option_name == _TOKEN):
                error.possibilities = []
                error.message += hint
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(command_help(self, ctx))

    def _hint(self, option: str) -> str:
        """What to use in place of an unknown option."""
        if any(parameter.name == "arguments" for parameter in self.params):
            return f". Put arguments for pytest after --: kernels {self.name} … -- {option}"
        if option == _TOKEN:
            return ". Set KERNELS_HUB_TOKEN for the Hub in KERNELS_HUB, HF_TOKEN for other Hubs"
        return ""

    def invoke(self, ctx: Any) -> Any:
        options = ctx.find_root().params
        try:
            with settings.debugging(options["debug"]), log_to_stderr(options["verbose"]), reserve_stdout():
                return super().invoke(ctx)
        except (typer.Exit, typer.Abort, _UsageError, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            raise typer.Exit(_interrupted()) from None
        except Exception as error:
            if options["debug"]:
                raise
            print_error(error)
            raise typer.Exit(1) from None


def _safe_completion(complete: Callable[..., Any]) -> Callable[..., Any]:
    """Completion may run vendors' code: reserve standard output for it, and drop items with control characters."""

    def run(*args: Any) -> Any:
        with reserve_stdout():
            return [item for item in complete(*args) if clean(str(item.value)) == item.value]

    return run


class _Commands(TyperGroup):
    """The commands of this package."""

    #: As of a command; a group has none.
    actions: Sequence[Choice] = ()

    #: Whether the last command line had `--debug`.
    debug = False

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in GROUPS.values() for name in names]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        if cmd_name not in self.commands:
            name = cmd_name.replace("-", "_")
            function = getattr(importlib.import_module(f"{__name__}.{name}"), name)
            single = typer.Typer(add_completion=False)
            single.command(cmd_name, cls=_Command)(read_values(function))
            command: Any = typer.main.get_command(single)
            command.actions = actions_of(function)
            for parameter in command.params:
                parameter.shell_complete = _safe_completion(parameter.shell_complete)
            self.commands[cmd_name] = command
        return self.commands[cmd_name]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        summaries = {
            title: [(name, _first_sentence(self.get_command(ctx, name).help)) for name in names]
            for title, names in GROUPS.items()
        }
        formatter.write(group_help(self, ctx, summaries))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # These are accepted after the command too: users append them to the command that failed.
        end = args.index("--") if "--" in args else len(args)
        self.debug = ctx.params["debug"] = ctx.params["debug"] or _DEBUG in args[:end]
        ctx.params["verbose"] += sum(_VERBOSE.get(arg, 0) for arg in args[:end])
        args = [arg for arg in args[:end] if arg != _DEBUG and arg not in _VERBOSE] + args[end:]
        if self.get_command(ctx, args[0]) is None:
            for name in self.list_commands(ctx):
                self.get_command(ctx, name)  # for "did you mean"
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **options: Any) -> Any:
        standalone = options.pop("standalone_mode", True)
        options["standalone_mode"] = False
        if not standalone:
            return super().main(*args, **options)
        sys.exit(self._status(*args, **options))

    def _status(self, *args: Any, **options: Any) -> Any:
        """The exit status of a command line; what typer would print is printed."""
        try:
            return super().main(*args, **options)
        except _UsageError as error:
            message = error.format_message().rstrip(".")
            stop = "" if message.endswith(("?", "!")) else "."
            print_error(message if error.ctx is None else f"{message}{stop} See: {error.ctx.command_path} --help")
            return error.exit_code
        except typer.Abort as error:  # which also stands for Ctrl-C at a question, and before a command runs
            interrupted = isinstance(error.__cause__ or error.__context__, KeyboardInterrupt)
            return _interrupted() if interrupted else 1
        except KeyboardInterrupt:
            return _interrupted()
        except OSError as error:  # standard output cannot take the help
            if self.debug:  # the command's own error
                raise
            print_error(error)
            return 1


def _interrupted() -> int:
    typer.echo("Interrupted.", err=True)
    return 130


def _first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


app = typer.Typer(
    cls=_Commands, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"kernels {__version__}")
        folder = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
        for line in installation_lines(folder, installed_from("kernels", folder)):
            typer.echo(line)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version, and which package it is.",
        ),
    ] = False,
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show the traceback of errors.")] = False,
    verbose: Annotated[
        int,
        typer.Option("--verbose", "-v", count=True, metavar="", help="Show what is done; -vv also every request."),
    ] = 0,
) -> None:
    """Find, download, check and build compute kernels."""


def _format_warning(message: Warning | str, *_: Any, **__: Any) -> str:
    """Format a warning without its source line, which does not help at a terminal."""
    return f"Warning: {clean(str(message))}\n"


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback for `--debug`, with escapes for control characters."""
    sys.stderr.write(clean("".join(traceback.format_exception(kind, error, trace))))


def main() -> None:
    """Run the command line, and exit: 0 on success, 1 on an error, 2 on wrong arguments, 130 when interrupted."""
    warnings.formatwarning = _format_warning
    sys.excepthook = _print_traceback
    print_in_any_locale()
    app(prog_name="kernels")
