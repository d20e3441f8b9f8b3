"""Which devices a declared backend's builds run on: the rules that a file can name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from kernels.backends.base import Device, listed
from kernels.backends.plugins.json_schema import ArchRule

__all__ = ["arch_number", "rule_allows", "rule_reads", "rule_reason"]

_ARCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MAJOR_MINOR = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


def rule_reason(rule: ArchRule, archs: Sequence[str] | None, device: Device | None) -> str | None:
    """Why a build for `archs` does not run on a device, or None when it does or nothing can be checked.

    Example:
        >>> rule_reason("prefix", ["a100", "a200"], Device("acme", 0, arch="a300x"))
        "a300x of device 0 does not begin with any of the build's a100, a200"
        >>> rule_reason("same-major-minor-not-newer", ["1.2"], Device("acme", 0, arch="1.4")) is None
        True
    """
    if rule not in _RULES or device is None:
        return None
    covers, said = _RULES[rule]
    known = [arch for arch in archs or () if rule_reads(rule, arch)]
    if not known or not rule_reads(rule, device.arch) or any(covers(arch, device.arch) for arch in known):
        return None
    name = f" ({device.name})" if device.name else ""
    return f"{device.arch} of device {device.index}{name} {said} the build's {listed(known)}"


def rule_reads(rule: ArchRule, arch: str) -> bool:
    """Whether an architecture is spelled so that a rule can compare it.

    Example:
        >>> rule_reads("exact", "a100x"), rule_reads("same-major-minor-not-newer", "a100x")
        (True, False)
    """
    spelling = _MAJOR_MINOR if rule == "same-major-minor-not-newer" else _ARCH
    return spelling.fullmatch(arch) is not None


def rule_allows(rule: ArchRule) -> str:
    """How architectures are spelled so that a rule can compare them, for a message.

    Example:
        >>> rule_allows("same-major-minor-not-newer")
        'major.minor, such as 1.2, with the arch_rule same-major-minor-not-newer'
    """
    if rule == "same-major-minor-not-newer":
        return f"major.minor, such as 1.2, with the arch_rule {rule}"
    return "letters, digits, dots, dashes and underscores"


def arch_number(arch: str) -> int | None:
    """An architecture as one number, for mapping properties: major * 10 + minor of "9.0", else its first number.

    Example:
        >>> arch_number("9.0"), arch_number("a100x"), arch_number("blackhole")
        (90, 100, None)
    """
    pair = _MAJOR_MINOR.fullmatch(arch)
    if pair is not None:
        return int(pair[1]) * 10 + int(pair[2])
    number = re.search(r"[0-9]{1,9}", arch)
    return None if number is None else int(number[0])


def _not_newer(built: str, device: str) -> bool:
    (major, minor), (device_major, device_minor) = (map(int, arch.split(".")) for arch in (built, device))
    return major == device_major and minor <= device_minor


#: Whether a listed architecture covers a device's, and what a reason says when none does.
_RULES: dict[ArchRule, tuple[Callable[[str, str], bool], str]] = {
    "exact": (lambda built, device: built == device, "is not among"),
    "prefix": (lambda built, device: device.startswith(built), "does not begin with any of"),
    "same-major-minor-not-newer": (_not_newer, "is not covered by"),
}
