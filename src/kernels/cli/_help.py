"""The text of `--help`: the same with every version of typer, folded on a terminal and without frames."""

from __future__ import annotations

import inspect
from typing import Any

from kernels.cli._output import styled
from kernels.cli._tables import Line, fold, lay_out_fields
from kernels.cli._values import Choice

__all__ = ["command_help", "group_help"]

_INDENT = "  "

#: A title, and the names and descriptions below it.
_Section = tuple[str, list[tuple[str, str]]]


def command_help(command: Any, context: Any) -> str:
    """The help of one command.

    Args:
        command: The command.
        context: Its context.
    """
    arguments = [each for each in command.get_params(context) if each.param_type_name == "argument"]
    words = [_usage(each) for each in arguments]
    sections = [("Arguments", list(map(_argument, arguments))), *_options(command, context)]
    return _page(command, context, " ".join(["[OPTIONS]", *words]), sections)


def group_help(group: Any, context: Any, summaries: list[tuple[str, str]]) -> str:
    """The help of the program.

    Args:
        group: The program's commands.
        context: Its context.
        summaries: The name of each command, and what it is for.
    """
    return _page(group, context, "[OPTIONS] COMMAND [ARGUMENTS]", [*_options(group, context), ("Commands", summaries)])


def _page(command: Any, context: Any, usage: str, sections: list[_Section]) -> str:
    def lines(width: int | None) -> list[Line]:
        page: list[Line] = [[("Usage: ", "bold"), (f"{context.command_path} {usage}", "")], []]
        for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
            page += [[(line, "")] for line in fold(" ".join(paragraph.split()), width)]
            page.append([])
        for title, entries in sections:
            if entries:
                left = None if width is None else width - len(_INDENT)
                page.append([(f"{title}:", "bold")])
                page += [[(_INDENT, ""), *line] for line in lay_out_fields(entries, left)]
                page.append([])
        return page[:-1]

    return styled(lines)


def _options(command: Any, context: Any) -> list[_Section]:
    """The options by the titles they are listed under."""
    found: dict[str, list[tuple[str, str]]] = {}
    for each in command.get_params(context):
        if each.param_type_name == "option" and not each.hidden:
            title = getattr(each, "rich_help_panel", None) or "Options"
            found.setdefault(title, []).append(_option(each))
    return list(found.items())


def _usage(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    return name if argument.required or name.startswith("[") else f"[{name}]"


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
    text = " ".join((parameter.help or "").split())
    return f"{text} Default: {default}." if shown and default != "" else text
