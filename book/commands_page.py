"""The page of commands, docs/commands.md, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from kernels.cli import app
from kernels.cli._groups import GROUPS
from kernels.cli._help import Help, describe_command
from kernels.diagnosis.variable_table import GROUPS as VARIABLES

__all__ = ["GUIDES", "JSON_KEYS", "text"]

#: The pages that explain a command.
GUIDES: dict[str, tuple[tuple[str, str], ...]] = {
    "backends": (("backends", "backends.md"), ("check a registration", "vendors.md#list-and-check")),
    "benchmark": (("measure a kernel", "measure-a-kernel.md"),),
    "build": (("build a kernel", "build-a-kernel.md"),),
    "cache": (("the cache", "cache.md"),),
    "card": (("the card", "card.md"),),
    "check": (("check a kernel", "check-a-kernel.md"),),
    "doctor": (("what doctor checks", "troubleshooting.md#what-doctor-checks"),),
    "download": (("machines without a network", "offline.md"), ("a closed cluster", "closed-cluster.md")),
    "explain": (("which build is used, and why", "which-build.md"),),
    "info": (("what a repository has", "get-a-kernel.md#what-a-repository-has"),),
    "init": (
        ("publish a kernel", "publish.md"),
        ("make it your own operator", "your-operator.md"),
        ("the folder", "build-a-kernel.md#the-folder"),
        ("port a kernel", "porting.md"),
    ),
    "lock": (("lockfiles", "lock.md"),),
    "mirror": (("mirrors", "mirrors.md"),),
    "serve": (("serve kernels to your team", "serve.md"),),
    "skills": (("coding agents", "build-a-kernel.md#coding-agents"),),
    "test": (("test a kernel", "test-a-kernel.md"),),
    "upload": (
        ("publish a kernel", "publish.md"),
        ("what an upload does", "uploads.md"),
        ("release a kernel", "release.md"),
    ),
    "verify": (("verification and signatures", "verify.md"),),
    "verify-signature": (("verification and signatures", "verify.md#with-the-arguments-of-the-existing-client"),),
    "versions": (("what a repository has", "get-a-kernel.md#what-a-repository-has"),),
    "wheel": (("as wheels", "release.md#as-wheels"),),
}

#: What `--json` prints: `name[…]` is a list of objects with these keys, `[…]` alone is the whole answer. A test runs
#: the commands, and compares.
JSON_KEYS: dict[str, dict[str, str]] = {
    "backends": {
        "list": "backends[name noarch_name token device_type mapping_device dispatch_key versioned checks_archs "
        "experimental vendor origin found version devices] problems[origin message names]",
        "show": "name noarch_name token device_type mapping_device dispatch_key versioned checks_archs experimental "
        "vendor origin found version devices order overrides python_depends stages folder operators tune_configs "
        "guidance_block kernel_guidance cuda_hacks_to_strip",
        "check": "checked origins failed findings[step verdict what backend]",
    },
    "benchmark": {
        "": "kernel commit variant machine iterations warmup id scripts_sha256 notes "
        "outcomes[script benchmark workload verdict reason verified max_difference times reference speedup]"
    },
    "build": {
        "": "variants[backend variant state reason detail path]",
        "--list": "variants[backend variant state buildable reason archs path]",
        "--dry-run": "variants[backend variant reason folder environment commands]",
    },
    "cache": {
        "list": "cache size leftovers temporary left_alone "
        "commits[repo_id commit branches refs hubs builds size frees downloaded used] "
        "autotune[file facts kernels serves out]",
        "size": "cache size leftovers temporary left_alone "
        "commits[repo_id commit branches refs hubs builds size frees downloaded used] "
        "autotune[file facts kernels serves out]",
        "prune": "cache kept[repo_id commit why] leftovers frees removed skipped freed "
        "remove[repo_id commit branches refs hubs builds size frees downloaded used]",
        "autotune": "decisions[file facts kernels serves out] removed",
        "verify": "cache commits[repo_id commit files listed ok changed unlisted digest repaired]",
    },
    "card": {"": "text origin files notes"},
    "check": {
        "": "checked failed variants[variant path failed findings]",
        "--diff": "checked written changed[path diff] left[path line reason]",
    },
    "doctor": {
        "": "version location origin python target cache hub following variables joined packages "
        "toolkits[backend name version folder compiler found_by torch] problems[check message fix] "
        "notes[check message fix]"
    },
    "download": {"": "builds[repo_id commit variant size targets path new] failures[kernel target error]"},
    "explain": {
        "": "repo_id revision commit lock from passed_over[from reason] target backend backend_origins[kind place] "
        "device chosen unmet variants[variant verdict reason size]"
    },
    "info": {
        "": "repo_id revision name version kernels_minver license upstream source python_depends backends commit lock "
        "from kernel_depends torch_versions archs size fits builds[variant fits reason archs size]"
    },
    "lock": {"": "lockfile changed written changes[kind what before after] kernels[repo_id version revision commit]"},
    "mirror": {
        "": "mirror origin dry_run sent documents pages commits[repo_id commit names builds changed absent] "
        "left_out[kernel reason] failures[kernel target error]",
        "--verify": "mirror failed time signed_by repositories commits archives size signatures unchecked unnamed "
        "problems[path problem]",
        "--prune": "mirror repositories branches remove kept documents archives recent frees removed freed problems",
    },
    "skills": {"list": "[name description files]", "add": "[path written]"},
    "upload": {
        "": "repository branch commit url pull_request changed dry_run bytes kept other_files card skipped notes "
        "variants[name state bytes added changed unchanged deleted]"
    },
    "verify": {"": "verified failed builds[repo_id commit variant failed untrusted digest pinned signature signer]"},
    "versions": {"": "[version branch commit date builds fits moved_to problem looked_at locked source]"},
    "wheel": {"": "wheels[variant path name version tag requires]"},
}

_INTRODUCTION = """\
<!-- Written by `make reference` from the commands themselves, and from book/commands_page.py. -->

# Commands

For everyone at a terminal who looks for a command, an option or an exit status. `kernels COMMAND --help` prints the
same. The guides show the commands at work.
"""

_FOR_ALL = """\
## What holds for all commands

| exit status | meaning |
|---|---|
| 0 | success, also if the answer is that no build fits |
| 1 | an error, with one line on standard error: `Error: …`; a check that failed; `cache prune` without a \
confirmation; a build that `download` or `mirror` could not take |
| 2 | wrong arguments: an unknown command or option, a missing argument, a value of another type |
| 130 | interrupted |

**Code of kernels** runs only in `check` without `--static`, `test` and `benchmark`. These, `lock`, `download` and
`mirror` check whether the [publisher is trusted](trust.md). Code of installed or registered [backends](vendors.md) runs
in all commands.

**Tables** are coloured on a terminal (not with `NO_COLOR` or `TERM=dumb`) and fit its width: text is folded at spaces,
and columns for which there is no space become lines above or below their row. Names, commits and paths are never
broken, so that they can be copied. Other output has one line for each row, without colours, so that it can be searched.

**JSON** is in UTF-8, whatever the locale is.

**Progress**: while something downloads, a terminal or a notebook shows one bar in bytes for all kernels together,
unless it takes less than half a second or `HF_HUB_DISABLE_PROGRESS_BARS=1` is set. Other output gets no bar.

**Ctrl-C** ends a command within a second. What has arrived of large files stays in the cache, and the next call
requests the rest only. The same holds for `get_kernel` and `kernelize`, which raise `KeyboardInterrupt`.
"""


def text() -> str:
    """The page, as Markdown."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("kernels", ["--help"], resilient_parsing=True)
    found = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        with typer.Context(command, parent=context, info_name=name) as own:
            found[name] = describe_command(command, own)
    lines = [_INTRODUCTION, *_contents(found), _FOR_ALL, *_options_of_all(describe_command(group, context))]
    for names in GROUPS.values():
        for name in names:
            lines += _command(name, found[name])
    return "\n".join(lines).rstrip() + "\n"


def _contents(found: dict[str, Help]) -> Iterator[str]:
    for title, names in GROUPS.items():
        yield f"**{title}**\n"
        yield from _table(
            ("command", "purpose"),
            ((f"[`{name}`](#kernels-{name})", _marked(found[name].paragraphs[0])) for name in names),
        )


def _options_of_all(program: Help) -> Iterator[str]:
    yield "These options belong to every command, and stand before or after its name:\n"
    yield from _table(("option", "meaning"), (_row(*entry) for entry in program.options["Options"]))


def _command(name: str, found: Help) -> Iterator[str]:
    yield f"## `kernels {name}`\n"
    yield from (f"{_marked(paragraph)}\n" for paragraph in found.paragraphs)
    yield f"```text\nkernels {name} {found.usage}\n```\n"
    yield f"Guide: {', '.join(f'[{title}]({page})' for title, page in GUIDES[name])}.\n"
    if found.examples:
        yield "\n".join(["```console", *(f"$ {line}" for line in found.examples), "```\n"])
    arguments = [] if found.actions else found.arguments
    options = {title: _without_help(entries) for title, entries in found.options.items()}
    if arguments:
        yield from _table(("argument", "meaning"), (_row(*entry) for entry in arguments))
    own = {f"Options of {usage.split()[0]}" for usage, _ in found.actions}
    for title, entries in options.items():
        if entries and title not in own:
            yield from [f"**{title}**\n"] * (len(options) > 1 + len(own))
            yield from _table(("option", "meaning"), (_row(*entry) for entry in entries))
    yield from _json(name, "")
    for usage, meaning in found.actions:
        action = usage.split()[0]
        yield f"### `kernels {name} {action}`\n"
        yield f"{_marked(meaning)}\n"
        yield f"```text\nkernels {name} {usage} [OPTIONS]\n```\n"
        entries = options.get(f"Options of {action}", [])
        if entries:
            yield from _table(("option", "meaning"), (_row(*entry) for entry in entries))
        yield from _json(name, action)
    if not found.actions:
        for how in JSON_KEYS.get(name, {}):
            if how:
                yield from _json(name, how)


def _json(name: str, how: str) -> Iterator[str]:
    """What `--json` prints for a command, one of its actions, or an option."""
    keys = JSON_KEYS.get(name, {}).get(how)
    if keys is None:
        return
    words = ["kernels", name, *(["…", how] if how.startswith("-") else [how] if how else []), "--json"]
    subject = f"`{' '.join(words)}`"
    if keys.startswith("["):
        yield f"{subject} prints a list of objects {_each(keys)}.\n"
        return
    named = [
        f"`{key}`{f' (each {_each(each)})' if each else ''}" for key, each in re.findall(r"(\w+)(\[[^]]*\])?", keys)
    ]
    yield f"{subject} has {' and '.join(filter(None, (', '.join(named[:-1]), named[-1])))}.\n"


def _each(keys: str) -> str:
    *first, last = (f"`{key}`" for key in keys.strip("[]").split())
    return f"with {', '.join(first)} and {last}"


def _without_help(entries: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [entry for entry in entries if not entry[0].endswith("--help")]


def _row(name: str, meaning: str) -> tuple[str, str]:
    return ", ".join(f"`{part}`" for part in name.split(", ")).replace("|", "\\|"), _marked(meaning)


def _table(heading: tuple[str, str], rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    yield f"| {heading[0]} | {heading[1]} |\n|---|---|"
    yield from (f"| {left} | {right} |" for left, right in rows)
    yield ""


#: What a text for the terminal shows as it is: options, variables, paths with a place to fill in, files.
_CODE = re.compile(
    r"""
    `[^`]*`                                     # marked already
    | (?<![\w-])--?[a-z][\w-]*                  # an option
    | \b[A-Z]+(?:_[A-Z]+)+(?:=\w+)?             # a variable
    | [\w/.@]*<[^>]+>[^\s,.;:)]*                # v<version>
    | \b(?:\w+/)?[\w.-]+\.(?:toml|lock|json|md|svg|html)\b  # a file
    | \b\w+://\S*[^\s,.;:)]                     # an address
    | \borg/\w+(?:@\w+)?                       # a repository
    | \b(?:\w+/)+build\b                       # a folder
    | \btorch[\w.]*-[\w+-]+                    # a target or variant
    """,
    re.VERBOSE,
)


#: Where the page of settings has each variable.
_SETTINGS = {
    variable.name: f"settings.md#{group.lower().replace(' ', '-')}"
    for group, variables in VARIABLES.items()
    for variable in variables
}


def _marked(text: str) -> str:
    """The text of a help as Markdown."""

    def marked(match: re.Match[str]) -> str:
        word = match[0].strip("`")
        place = _SETTINGS.get(word.partition("=")[0])
        return f"[`{word}`]({place})" if place else f"`{word}`"

    return _CODE.sub(marked, text).replace("|", "\\|")
