"""What of one client's facts does not hold for another client.

A difference is a line `what: how`, as code for the existing client meets it: a name that is missing, a call that is not
taken, an exception that its `except` does not catch, another value, a warning that is not logged. What the other client
has beside that is no difference.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """One thing that is not as in the existing client.

    Attributes:
        what: A name with its module, a situation, or a command.
        there: How it is in the existing client.
        here: How it is in this one.
    """

    what: str
    there: str
    here: str


def differences(there: Facts, here: Facts) -> list[Difference]:
    """What holds in one client and not in the other.

    Args:
        there: The facts of the existing client.
        here: Those of this one.
    """
    return [
        *_names(there["names"], here["names"]),
        *_commands(there["commands"], here["commands"]),
        *_situations(there["situations"], here["situations"]),
    ]


def is_named(difference: Difference, pattern: str) -> bool:
    """Whether a pattern (`*` stands for any text) names what differs."""
    return fnmatch.fnmatchcase(difference.what, pattern)


def _names(there: Facts, here: Facts) -> Iterator[Difference]:
    for module, names in there.items():
        if module not in here:
            yield Difference(module, "a module", "missing")
            continue
        # A name of the package stands in `kernels.layer` too: the first is enough.
        for name, fact in names.items():
            what = f"{module}.{name}"
            if name not in here[module]:
                yield Difference(what, fact["kind"], "missing")
            elif module == "kernels" or fact != there["kernels"].get(name):
                yield from _name(what, fact, here[module][name])


def _name(what: str, there: Facts, here: Facts) -> Iterator[Difference]:
    callables = {"function", "class"}
    if there["kind"] != here["kind"] and not {there["kind"], here["kind"]} <= callables:
        yield Difference(what, there["kind"], here["kind"])
        return
    if there.get("type") != here.get("type"):
        yield Difference(what, there["type"], here.get("type", "of no type"))
    yield from _parameters(what, there.get("parameters"), here.get("parameters"))
    fields = there.get("fields", [])
    if here.get("fields", [])[: len(fields)] != fields:
        yield Difference(f"{what} (fields)", ", ".join(fields), ", ".join(here.get("fields", [])))
    for value in there.get("values", []):
        if value not in here.get("values", []):
            yield Difference(f"{what}.{value}", "a value", "missing")
    for operator in there.get("operators", []):
        if operator not in here["operators"]:
            yield Difference(f"{what}.{operator}", "defined", "missing")
    for name, member in there.get("members", {}).items():
        own = here["members"].get(name)
        if own is None:
            yield Difference(f"{what}.{name}", member["kind"], "missing")
        elif "method" in (member["kind"], own["kind"]) and member["kind"] != own["kind"]:
            yield Difference(f"{what}.{name}", member["kind"], own["kind"])
        else:
            yield from _parameters(f"{what}.{name}", member.get("parameters"), own.get("parameters"))


_POSITIONAL = ("positional_only", "positional_or_keyword")
_VARIADIC = ("var_positional", "var_keyword")


def _parameters(what: str, there: Any, here: Any) -> Iterator[Difference]:
    """Calls that one takes and the other does not."""
    if there is None or here is None:
        return
    named = {name: (kind, default) for name, kind, default in here}
    kinds = {kind for _, kind, _ in here}
    positions = [name for name, kind, _ in here if kind in _POSITIONAL]
    for position, (name, kind, default) in enumerate(there):
        label = f"{what}({name})"
        if kind in _VARIADIC:
            if kind not in kinds:
                yield Difference(label, "any number", "not taken")
        elif name not in named:
            yield Difference(label, "taken", "not taken")
        else:
            own_kind, own_default = named[name]
            if kind in _POSITIONAL and positions[position : position + 1] != [name]:
                yield Difference(label, f"position {position + 1}", "another position, or by name only")
            if kind != "positional_only" and own_kind == "positional_only":
                yield Difference(label, "by name", "by position only")
            if default is not None and own_default != default:
                yield Difference(label, f"default {default}", f"default {own_default}")
    taken = {name for name, *_ in there}
    for name, kind, default in here:
        if name not in taken and default is None and kind not in _VARIADIC:
            yield Difference(f"{what}({name})", "not there", "required")


def _commands(there: Facts, here: Facts) -> Iterator[Difference]:
    for command, options in there.items():
        what = f"kernels {command}"
        if command not in here:
            yield Difference(what, "a command", "missing")
            continue
        for option in options:
            if option not in here[command]:
                yield Difference(f"{what} {option}", "an option", "missing")


def _situations(there: Facts, here: Facts) -> Iterator[Difference]:
    for what, fact in there.items():
        if what not in here:  # not every comparison runs all of them
            continue
        own = here[what]
        if "raises" in fact:
            # What catches it there has to catch it here.
            missing = [name for name in fact["raises"] if name not in own.get("raises", [])]
            if "raises" not in own:
                yield Difference(what, _exceptions(fact["raises"]), f"returns {own['returns']}")
            elif missing:
                yield Difference(what, _exceptions(fact["raises"]), _exceptions(own["raises"]))
        elif "raises" in own:
            yield Difference(what, f"returns {fact['returns']}", _exceptions(own["raises"]))
        elif fact["returns"] != own["returns"]:
            yield Difference(what, f"returns {fact['returns']}", f"returns {own['returns']}")
        for kind in ("logs", "warnings"):
            if fact[kind] != own[kind]:
                yield Difference(f"{what} ({kind})", ", ".join(fact[kind]) or "none", ", ".join(own[kind]) or "none")


def _exceptions(names: list[str]) -> str:
    """The exceptions' names without those that another of them implies."""
    import builtins

    known = {name: getattr(builtins, name) for name in names if hasattr(builtins, name)}
    implied = {
        name
        for name, each in known.items()
        if any(other is not each and issubclass(other, each) for other in known.values())
    }
    return "raises " + ", ".join(name for name in names if name not in implied)
