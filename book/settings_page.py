"""The variables on `docs/settings.md`, from the table that `kernels doctor` uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kernels.diagnosis.variable_table import GROUPS, Variable

__all__ = ["settings_reference"]

#: What is said of a group before its table: the page that explains it.
_ABOUT: Mapping[str, str] = {
    "Where kernels come from": "[Where kernels come from](where-from.md) explains addresses, tokens and requests.",
    "Cache": "[The cache](cache.md) says how to look into it and how to remove what is not used.",
    "Lockfiles": "[How to pin](lock.md), and [which lockfile is used](lockfile.md#which-lockfile-is-used).",
    "Trust and verification": "[Trust](trust.md), [verification and signatures](verify.md), [`KERNELS_VERIFY`]"
    "(caching.md#when-files-are-checked-again), [signed mirrors](mirrors.md#require-a-signature).",
    "Backends": "[Backends](backends.md), and those of [vendors](vendors.md).",
    "Behaviour": "[Kernels in a model](kernelize.md), [tracebacks](troubleshooting.md#tracebacks).",
    "Building and publishing": "For authors of kernels, and for who writes mirrors.",
    "huggingface_hub": "huggingface_hub reads these, and this package too. Its others apply as well.",
}


def settings_reference() -> str:
    """The tables of variables, one for each group."""
    return "\n".join(line for group, variables in GROUPS.items() for line in _section(group, variables))


def _section(group: str, variables: tuple[Variable, ...]) -> Iterator[str]:
    yield f"## {group}"
    yield ""
    yield _ABOUT[group]
    yield ""
    yield "| variable | meaning | default |"
    yield "|---|---|---|"
    yield from (f"| `{each.name}` | {each.meaning} | {each.default} |" for each in variables)
    yield ""
