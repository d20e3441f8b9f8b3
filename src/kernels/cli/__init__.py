"""The `kernels` command: one file a command, imported when it is asked for.

A module of this package without a leading underscore is a command: its name is the command's, and its function of the
same name takes the arguments. Nothing else lists them.
"""

from __future__ import annotations

import importlib
import io
import pkgutil
import sys
import traceback
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import kernels
from kernels.cli._failure import report
from kernels.support.text import clean

__all__ = ["app", "main"]

_DEBUG = "--debug"

# Newer typers bring click along themselves, older ones stand on the package: its names have no fixed place, and
# `Any` below stands for its types.
_UsageError: Any = typer.BadParameter.__base__


class _Command(TyperCommand):
    """A command that has standard output to itself, and whose errors are one line and an exit status."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return list(super().parse_args(ctx, args))
        except _UsageError as error:
            # An option that there is not; where it is like another one, that one is meant.
            if getattr(error, "possibilities", True) in (None, []):
                error.message += self._instead(error.option_name)
            raise

    def _instead(self, option: str) -> str:
        """What to do where an option is given that this command has not, a sentence."""
        if any("[--" in str(parameter.metavar or "") for parameter in self.params):
            return f". Arguments to be passed on come after --: kernels {self.name} … -- {option}"
        if option == "--token":
            return ". A token is read from KERNELS_HUB_TOKEN for the Hub that KERNELS_HUB names, else from HF_TOKEN"
        return ""

    def invoke(self, ctx: Any) -> Any:
        from kernels.cli._output import answering

        try:
            with answering():
                return super().invoke(ctx)
        except (typer.Exit, typer.Abort, _UsageError, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            typer.echo("Interrupted.", err=True)
            raise typer.Exit(130) from None
        except Exception as error:
            if ctx.find_root().params["debug"]:
                raise
            report(error)
            raise typer.Exit(1) from None


def _alone(complete: Callable[..., Any]) -> Callable[..., Any]:
    """What a shell is offered may come from vendors' code as well, and goes the same way as an answer."""

    def run(*args: Any) -> Any:
        from kernels.cli._output import answering

        with answering():
            return [item for item in complete(*args) if clean(str(item.value)) == item.value]

    return run


class _Commands(TyperGroup):
    """The commands that lie in this package."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name.replace("_", "-") for _, name, _ in pkgutil.iter_modules(__path__) if not name.startswith("_")]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        if cmd_name not in self.commands:
            name = cmd_name.replace("-", "_")
            function = getattr(importlib.import_module(f"{__name__}.{name}"), name)
            single = typer.Typer(add_completion=False)
            single.command(cmd_name, cls=_Command)(function)
            command: Any = typer.main.get_command(single)
            for parameter in command.params:
                parameter.shell_complete = _alone(parameter.shell_complete)
            self.commands[cmd_name] = command
        return self.commands[cmd_name]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # `--debug` is what someone adds to the end of a command that failed.
        end = args.index("--") if "--" in args else len(args)
        if _DEBUG in args[:end]:
            args = [arg for arg in args[:end] if arg != _DEBUG] + args[end:]
            ctx.params["debug"] = True
        if self.get_command(ctx, args[0]) is None:
            for name in self.list_commands(ctx):
                self.get_command(ctx, name)  # what "did you mean" chooses from
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **options: Any) -> Any:
        standalone = options.pop("standalone_mode", True)
        options["standalone_mode"] = False
        if not standalone:
            return super().main(*args, **options)
        try:
            status = super().main(*args, **options)
        except _UsageError as error:
            message = error.format_message().rstrip(".")
            stop = "" if message.endswith(("?", "!")) else "."
            report(message if error.ctx is None else f"{message}{stop} See: {error.ctx.command_path} --help")
            status = error.exit_code
        except typer.Abort:
            status = 1
        sys.exit(status)


app = typer.Typer(cls=_Commands, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"kernels {kernels.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version, and end.")
    ] = False,
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show the traceback of an error.")] = False,
) -> None:
    """Find, fetch, check and load the compute kernel that fits this machine."""


def _warning(message: Warning | str, *_: Any, **__: Any) -> str:
    """A warning without its place in the source, which says nothing to someone at a terminal."""
    return f"Warning: {clean(str(message))}\n"


def _traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A traceback, which `--debug` asks for, with what a kernel's own code says in it made safe to print."""
    sys.stderr.write(clean("".join(traceback.format_exception(kind, error, trace))))


def main() -> None:
    """Run the command line: what the `kernels` script calls.

    Exits with 0, with 1 after an error, 2 after wrong arguments, 130 when interrupted.
    """
    warnings.formatwarning = _warning
    sys.excepthook = _traceback
    for stream in (sys.stdout, sys.stderr):
        # A name that the locale's encoding lacks is shown with a question mark, rather than not at all.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app(prog_name="kernels")
