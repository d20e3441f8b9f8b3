"""A registration run through every step between a vendor's code and a running kernel, and what is missing."""

from __future__ import annotations

from functools import partial

import msgspec

from kernels.backend_check.arrival import as_before, way_in
from kernels.backend_check.choosing import choosing, mappings
from kernels.backend_check.folder import OfferedConfigs, offered_configs, offered_operators, operators, tuning
from kernels.backend_check.machine import architectures, capability, probe, python_depends, torch
from kernels.backend_check.naming import added_to, build_names, members, names
from kernels.backend_check.offers import notes, own_stages, stages
from kernels.backend_check.subject import Step, Subject
from kernels.backends import lookup
from kernels.backends.registration import BackendEntry
from kernels.errors import KernelsError
from kernels.support.checks import STEP_SECONDS, CheckResult, StepResults, Verdict, failed, ok, run_step

__all__ = [
    "STEPS",
    "CheckResult",
    "Checkup",
    "OfferedConfigs",
    "Verdict",
    "added_to",
    "check_entry",
    "checkup",
    "offered_configs",
    "offered_operators",
    "own_stages",
]

#: The steps, in the order in which a kernel meets them. The probe comes first of those that look at what it found.
STEPS: tuple[tuple[str, Step], ...] = (
    ("members", members),
    ("names", names),
    ("probe", probe),
    ("build names", build_names),
    ("architectures", architectures),
    ("capability", capability),
    ("Torch", torch),
    ("choosing", choosing),
    ("mappings", mappings),
    ("Python packages", python_depends),
    ("stages", stages),
    ("operators", operators),
    ("tuning", tuning),
    ("notes", notes),
)


class Checkup(msgspec.Struct, frozen=True):
    """What a check found.

    Attributes:
        checked: What was asked for: a name or a path.
        origins: Where each backend that was checked came from, by its name.
        findings: What each step found, in order.
    """

    checked: str
    origins: dict[str, str]
    findings: tuple[CheckResult, ...]

    @property
    def failed(self) -> bool:
        """Whether anything is wrong, as against optional or not to be seen on this machine."""
        return any(finding.verdict == "failed" for finding in self.findings)


def checkup(what: str, seconds: float = STEP_SECONDS) -> Checkup:
    """Run a registration through every step. A file or folder is registered for that long, and no longer.

    Args:
        what: A registered backend's name, by any of its names; a JSON file that declares backends; a vendor's folder.
        seconds: How long a step may take.

    Raises:
        TypeError: `what` is not a string.
        RequestError: It is none of these.

    Example:
        >>> found = checkup("cpu")
        >>> found.failed, found.origins, found.findings[1].step
        (False, {'cpu': 'built in'}, 'members')
    """
    register = way_in(what)
    with as_before() as before:
        entries: list[BackendEntry] = []

        def registration() -> StepResults:
            try:
                arrived = list(register())
            except KernelsError as error:  # one line for each thing that is wrong
                yield from map(failed, str(error).splitlines())
                return
            if before.left:  # nobody waits for it any more
                before.take_back()
                return
            there = [entry.name for entry in lookup.entries()]
            entries.extend(entry for entry in arrived if entry.name in there)
            if len(entries) < len(arrived) or not arrived:
                yield failed("its backends are disabled by KERNELS_DISABLE_BACKENDS")
            if entries:
                yield ok(", ".join(f"{entry.name}, {entry.origin}" for entry in entries))

        findings = run_step("registration", registration, None, seconds)
        for entry in entries:
            findings += check_entry(entry, seconds)
    return Checkup(what, {entry.name: str(entry.origin) for entry in entries}, tuple(findings))


def check_entry(entry: BackendEntry, seconds: float = STEP_SECONDS) -> list[CheckResult]:
    """Run a registered backend through every step but its registration.

    Args:
        entry: The registration.
        seconds: How long a step may take.

    Example:
        >>> from kernels.backends import entry_of
        >>> {finding.verdict for finding in check_entry(entry_of("cpu")) if finding.step == "names"}
        {'ok'}
    """
    subject = Subject(entry, seconds)
    return [finding for name, step in STEPS for finding in run_step(name, partial(step, subject), entry.name, seconds)]
