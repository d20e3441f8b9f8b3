"""What is wrong with this machine, its settings, the cache, the Hub and the installed packages: `kernels doctor`.

Every check runs in a thread and has a time limit. What a check raises is a problem of its own.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from kernels._version import __version__
from kernels.diagnosis.autotune import check_autotune
from kernels.diagnosis.cache import CacheReport, check_cache
from kernels.diagnosis.finding import CheckName, Finding, Findings
from kernels.diagnosis.hardware import (
    check_backends,
    check_queries,
    check_system,
    check_torch,
    joined_backends,
    probed_target,
)
from kernels.diagnosis.hub import HUB_SECONDS, HubReport, check_hubs, no_answer_in_time
from kernels.diagnosis.in_time import ask_all
from kernels.diagnosis.lock import check_lock
from kernels.diagnosis.packages import LOCATION, check_packages, package_versions
from kernels.diagnosis.toolkits import ToolkitReport, check_toolkits
from kernels.diagnosis.variables import check_variables, shown_variables
from kernels.resolver.target import Target
from kernels.support.formatting import format_error
from kernels.support.installed import installed_from

__all__ = ["CacheReport", "CheckName", "Diagnosis", "Finding", "HubReport", "ToolkitReport", "diagnose"]

#: Seconds for the checks of this machine: a backend's probe may take ten.
_MACHINE_SECONDS = 25.0
#: Seconds for each other check.
_SECONDS = 10.0


class Diagnosis(msgspec.Struct, frozen=True):
    """What `kernels doctor` reports.

    Attributes:
        version: The version of this package.
        location: The folder it was imported from.
        origin: The URL or folder that it was installed from, as the installer recorded it; None if it recorded none.
        python: The interpreter.
        target: The machine; None if it could not be examined.
        cache: The cache.
        hub: The Hub, or what else kernels come from: the first address in `KERNELS_HUB`.
        following: The other addresses in `KERNELS_HUB`.
        variables: The environment variables that are set.
        joined: Backends that are not built in, each with its origins.
        toolkits: The toolkits that kernels would be built with.
        packages: Versions of related packages.
        problems: What is wrong.
        notes: What is not wrong, but good to know.
    """

    version: str
    location: str
    origin: str | None
    python: str
    target: Target | None
    cache: CacheReport
    hub: HubReport
    following: tuple[HubReport, ...]
    variables: dict[str, str]
    joined: dict[str, str]
    toolkits: tuple[ToolkitReport, ...]
    packages: dict[str, str]
    problems: tuple[Finding, ...]
    notes: tuple[Finding, ...]


def diagnose() -> Diagnosis:
    """Examine this machine, the cache, the Hub and the installed packages. Problems are reported, not raised.

    Example:
        >>> diagnose().version == __version__
        True
    """
    answers = ask_all(
        {
            "variables": (_SECONDS, check_variables),
            "torch": (_MACHINE_SECONDS, _machine),
            "toolkits": (_SECONDS, check_toolkits),
            "packages": (_SECONDS, lambda: (package_versions(), check_packages())),
            "cache": (_SECONDS, check_cache),
            "hub": (HUB_SECONDS, check_hubs),
            "lock": (_SECONDS, check_lock),
            "autotune": (_MACHINE_SECONDS, check_autotune),
        }
    )
    if isinstance(answers["hub"], TimeoutError):
        answers["hub"] = no_answer_in_time()
    found: list[Findings] = []

    def part(name: CheckName, default: Any) -> Any:
        answer = answers[name]
        if not isinstance(answer, BaseException):
            return answer
        failed = Findings(name)
        if isinstance(answer, ModuleNotFoundError) and str(answer.name).startswith("huggingface_hub"):
            return (*default, failed)  # a problem of the packages
        if isinstance(answer, TimeoutError):
            failed.problem(
                f"The check of {name} did not end: {format_error(answer).removeprefix('TimeoutError: ')}.",
                "Correct or uninstall what hangs there; a vendor's folder or package can be taken out.",
            )
        else:
            failed.problem(
                f"The check of {name} failed: {format_error(answer)}.",
                "Correct what it names; if nothing is wrong with that, report it with this output.",
            )
        return (*default, failed)

    variables = answers["variables"]
    found += [variables] if isinstance(variables, Findings) else part("variables", ())
    target, joined, *machine = part("torch", (None, {}))
    toolkits, *compilers = part("toolkits", ((),))
    packages, *installed = part("packages", ({},))
    cache, *stored = part("cache", (CacheReport(""),))
    hubs, *asked = part("hub", ((HubReport(""),),))
    found += [*machine, *compilers, *installed, *stored, *asked]
    for name in ("lock", "autotune"):
        answer = answers[name]
        found += [answer] if isinstance(answer, Findings) else part(name, ())
    return Diagnosis(
        version=__version__,
        location=str(LOCATION),
        origin=installed_from("kernels", str(LOCATION)),
        python=sys.executable,
        target=target,
        cache=cache,
        hub=hubs[0],
        following=hubs[1:],
        variables=shown_variables(),
        joined=joined,
        toolkits=toolkits,
        packages=packages,
        problems=_once(each for one in found for each in one.problems),
        notes=_once(each for one in found for each in one.notes),
    )


def _machine() -> tuple[object, ...]:
    target, preferred = probed_target()
    checks = (check_torch(target), check_backends(), check_queries(target), check_system(target))
    return target, joined_backends(), preferred, *checks


def _once(findings: Any) -> tuple[Finding, ...]:
    return tuple(dict.fromkeys(findings))
