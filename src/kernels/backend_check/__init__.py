"""Check a backend's registration, step by step from a vendor's code to a running kernel."""

from __future__ import annotations

from functools import partial

import msgspec

from kernels.backend_check.checked_backend import CheckedBackend, Step
from kernels.backend_check.choosing import choosing, mappings
from kernels.backend_check.folder import OfferedConfigs, offered_configs, offered_operators, operators, tuning
from kernels.backend_check.machine import architectures, capability, probe, python_depends, torch
from kernels.backend_check.naming import build_names, members, names
from kernels.backend_check.offers import notes, own_stages, stages
from kernels.backend_check.temporary_registration import TemporaryRegistrations, registration_of
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
    "check_entry",
    "checkup",
    "offered_configs",
    "offered_operators",
    "own_stages",
]

#: The steps, in the order in which a kernel meets them.
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
    """The results of a check.

    Attributes:
        checked: The name or path that was given.
        origins: The origin of each checked backend, by its name.
        findings: The results of each step, in order.
    """

    checked: str
    origins: dict[str, str]
    findings: tuple[CheckResult, ...]

    @property
    def failed(self) -> bool:
        """Whether anything is wrong, and not only optional or not visible on this machine."""
        return any(finding.verdict == "failed" for finding in self.findings)


def checkup(what: str, seconds: float = STEP_SECONDS) -> Checkup:
    """Run a registration through every step. A file or folder is registered only for the check.

    Args:
        what: Any name of a registered backend, a JSON file that declares backends, or a vendor folder.
        seconds: How long a step may take.

    Raises:
        TypeError: `what` is not a string.
        RequestError: No backend, file or folder has that name.

    Example:
        >>> found = checkup("cpu")
        >>> found.failed, found.origins, found.findings[1].step
        (False, {'cpu': 'built in'}, 'members')
    """
    register = registration_of(what)
    with TemporaryRegistrations() as before:
        entries: list[BackendEntry] = []

        def registration() -> StepResults:
            try:
                arrived = list(register())
            except KernelsError as error:  # one line for each thing that is wrong
                yield from map(failed, str(error).splitlines())
                return
            if before.left:  # too late: the step has ended
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
    checked = CheckedBackend(entry, seconds)
    return [finding for name, step in STEPS for finding in run_step(name, partial(step, checked), entry.name, seconds)]
