"""The text of `--help`: the same with every version of typer, folded on a terminal and without frames."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from kernels.cli._output import styled
from kernels.cli._tables import Line, fold, lay_out_fields
from kernels.cli._values import Choice

__all__ = ["Help", "command_help", "describe_command", "group_help"]

_INDENT = "  "

#: What stands before the command lines at the end of a docstring.
_EXAMPLES = "\n\nExamples:\n"


class Help(NamedTuple):
    """What `--help` and the documentation say about a command.

    Attributes:
        usage: The words after the command's name.
        paragraphs: What it does, in sentences; the first is its summary.
        actions: What its first argument can say, with the arguments that follow it, and what it means.
        arguments: Its arguments, and what they mean.
        options: Its options and what they mean, by the titles that they are listed under.
        examples: Command lines.
    """

    usage: str
    paragraphs: list[str]
    actions: list[tuple[str, str]]
    arguments: list[tuple[str, str]]
    options: dict[str, list[tuple[str, str]]]
    examples: list[str]


def describe_command(command: Any, context: Any) -> Help:
    """What is said about a command.

    Args:
        command: The command.
        context: Its context.
    """
    text, _, examples = inspect.cleandoc(command.help or "").partition(_EXAMPLES)
    arguments = [each for each in command.get_params(context) if each.param_type_name == "argument"]
    return Help(
        " ".join(["[OPTIONS]", *map(_usage, arguments)]),
        [" ".join(paragraph.split()) for paragraph in text.split("\n\n")],
        [_action(each, position == 0) for position, each in enumerate(command.actions)],
        [_argument(each) for each in arguments if each.help],
        _options(command, context),
        [line.strip().removeprefix("$ ") for line in examples.splitlines()],
    )


def command_help(command: Any, context: Any) -> str:
    """The help of one command.

    Args:
        command: The command.
        context: Its context.
    """
    found = describe_command(command, context)
    return _page(context, found, {"Actions": found.actions, "Arguments": found.arguments, **found.options})


def group_help(group: Any, context: Any, summaries: dict[str, list[tuple[str, str]]]) -> str:
    """The help of the program.

    Args:
        group: The program's commands.
        context: Its context.
        summaries: The name of each command, and what it is for, by the titles that they are listed under.
    """
    found = describe_command(group, context)._replace(usage="[OPTIONS] COMMAND [ARGUMENTS]")
    return _page(context, found, {**found.options, **summaries})


def _page(context: Any, found: Help, sections: dict[str, list[tuple[str, str]]]) -> str:
    def lines(width: int | None) -> list[Line]:
        page: list[Line] = [[("Usage: ", "bold"), (f"{context.command_path} {found.usage}", "")], []]
        for paragraph in found.paragraphs:
            page += [[(line, "")] for line in fold(paragraph, width)]
            page.append([])
        for title, entries in sections.items():
            if entries:
                left = None if width is None else width - len(_INDENT)
                page.append([(f"{title}:", "bold")])
                page += [[(_INDENT, ""), *line] for line in lay_out_fields(entries, left)]
                page.append([])
        if found.examples:
            page.append([("Examples:", "bold")])
            page += [[(f"{_INDENT}{line}", "")] for each in found.examples for line in _command_line(each, width)]
            page.append([])
        return page[:-1]

    return styled(lines)


def _command_line(text: str, width: int | None) -> list[str]:
    """A command line in lines that a shell reads as one."""
    first, *others = fold(text, None if width is None else width - len(f"{_INDENT}{_INDENT} \\"))
    lines = [first, *(f"{_INDENT}{line}" for line in others)]
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _options(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for each in command.get_params(context):
        if each.param_type_name == "option" and not each.hidden:
            title = getattr(each, "rich_help_panel", None) or "Options"
            found.setdefault(title, []).append(_option(each))
    return found


def _usage(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _action(action: Choice, is_default: bool) -> tuple[str, str]:
    return f"{action} {action.arguments}".rstrip(), action.meaning + " This is the default." * is_default


def _argument(argument: Any) -> tuple[str, str]:
    name = str(argument.metavar or argument.name.upper()).strip("[].")
    return name, _described(argument)


def _option(option: Any) -> tuple[str, str]:
    names = ", ".join(sorted(option.opts, key=len))
    value = "" if option.is_flag or option.count else f" {option.metavar or option.name.upper()}"
    return f"{names}{value}", _described(option)


def _described(parameter: Any) -> str:
    """The help of an argument or option, with its default where that is a name or a number."""
    default = None if getattr(parameter, "count", False) else parameter.default
    shown = isinstance(default, (int, float, str, Choice)) and not isinstance(default, bool) and parameter.show_default
    default = f"{default:g}" if isinstance(default, float) else default
    text = " ".join((parameter.help or "").split())
    return f"{text} Default: {default}." if shown and default != "" else text
