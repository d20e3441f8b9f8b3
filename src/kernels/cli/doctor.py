"""`kernels doctor`: what was found on this machine, what was not, and why."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kernels import __version__, backends, settings
from kernels.errors import RequestError
from kernels.resolver.target import Device, Target

__all__ = ["CacheReport", "DoctorReport", "HubReport", "doctor", "doctor_report"]

#: Packages whose version matters to someone who reads a report.
_PACKAGES = ("torch", "triton", "apache-tvm-ffi", "huggingface-hub", "hf-xet", "transformers", "diffusers", "sigstore")

_HUB_SECONDS = 5


class CacheReport(msgspec.Struct, frozen=True):
    """The folder of downloaded kernels, how many repositories lie there, and their bytes on disk."""

    path: str
    repositories: int = 0
    bytes: int = 0
    note: str | None = None


class HubReport(msgspec.Struct, frozen=True):
    """Where kernels come from, and whether it answers (None: nobody asked)."""

    endpoint: str
    answers: bool | None = None
    note: str | None = None


class DoctorReport(msgspec.Struct, frozen=True):
    """Everything `kernels doctor` tells.

    Attributes:
        version: This package's version.
        location: Folder it was imported from.
        python: The interpreter.
        target: The machine.
        cache: The cache.
        hub: The Hub.
        variables: Environment variables in force.
        joined: Backends that are not built in, each with how it came here.
        packages: Versions of packages that kernels work with.
        problems: What stands in the way, in sentences.
    """

    version: str
    location: str
    python: str
    target: Target
    cache: CacheReport
    hub: HubReport
    variables: dict[str, str]
    joined: dict[str, str]
    packages: dict[str, str]
    problems: tuple[str, ...]


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Show what was found on this machine, what was not and why, and what stands in the way."""
    report = doctor_report()
    if json:
        from kernels.cli._output import print_json

        print_json(report)
    else:
        _print(report)


def doctor_report() -> DoctorReport:
    """Look at this machine, the cache, the Hub and the installed packages; what is broken is part of the report.

    Example:
        >>> doctor_report().version == __version__
        True
    """
    target, unusable = _target()
    installed = [(name, version) for name in _PACKAGES if (version := _installed_version(name)) is not None]
    return DoctorReport(
        version=__version__,
        location=str(Path(__file__).resolve().parents[1]),
        python=sys.executable,
        target=target,
        cache=_cache(),
        hub=_hub(),
        variables=settings.variables_in_force(),
        joined={
            entry.name: str(entry.origin) for entry in backends.entries() if entry.origin != backends.Origin("built-in")
        },
        packages=dict(installed),
        problems=(
            *dict.fromkeys([*settings.invalid_settings(), *_invalid_policy()]),
            *unusable,
            *(problem.message for problem in backends.problems()),
            *_other_distributions(),
            *_unmet_requirements(),
        ),
    )


def _target() -> tuple[Target, list[str]]:
    try:
        return Target.current(), []
    except RequestError as error:  # KERNELS_BACKEND
        return Target.probe(), [str(error)]


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cache() -> CacheReport:
    try:
        path = settings.cache_dir()
    except RequestError as error:
        return CacheReport("", note=str(error))
    try:
        repositories = [entry for entry in path.iterdir() if entry.name.startswith("kernels--") and entry.is_dir()]
    except FileNotFoundError:
        return CacheReport(str(path), note="it does not exist yet")
    except OSError as error:
        return CacheReport(str(path), note=f"it cannot be read: {error.strerror or error}")
    size = sum(_bytes_below(repository) for repository in repositories)
    writable = os.access(path, os.W_OK)
    return CacheReport(str(path), len(repositories), size, None if writable else "it cannot be written to")


def _bytes_below(folder: Path) -> int:
    """Bytes of the files in a folder: links are not followed, and a file linked twice counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                facts = os.lstat(os.path.join(parent, name))
            except OSError:
                continue  # removed while we look
            sizes[facts.st_dev, facts.st_ino] = facts.st_size
    return sum(sizes.values())


def _hub() -> HubReport:
    try:
        folder = settings.hub_folder()
        endpoint = settings.endpoint() if folder is None else str(folder)
        offline = folder is None and settings.offline()
    except RequestError as error:
        return HubReport(settings.variables_in_force().get("KERNELS_HUB", ""), False, str(error))
    if folder is not None:
        return HubReport(endpoint, note="a folder: nothing is asked of a network")
    if offline:
        return HubReport(endpoint, note="offline (HF_HUB_OFFLINE): it was not asked")
    try:
        from huggingface_hub.utils import get_session

        response = get_session().get(f"{endpoint}/api/kernels", params={"limit": 1}, timeout=_HUB_SECONDS)
    except Exception as error:  # noqa: BLE001 - which library's errors these are depends on huggingface_hub's version
        return HubReport(endpoint, False, str(error) or type(error).__name__)
    if response.status_code >= 500:
        return HubReport(endpoint, False, f"it answered {response.status_code}")
    return HubReport(endpoint, True)


def _other_distributions() -> list[str]:
    """Installed packages that bring a module called `kernels` and are not this one."""
    found = set()
    for distribution in importlib.metadata.distributions():
        name = str(distribution.metadata["Name"] or "")
        provides = any(path.parts[:2] == ("kernels", "__init__.py") for path in distribution.files or ())
        if provides or _normal(name) == "kernels":
            found.add((name, distribution.version, str(distribution.locate_file(""))))
    if len(found) <= 1 and all(_normal(name) == "kernels" for name, _, _ in found):
        return []
    listed = "; ".join(f"{name} {version} in {place}" for name, version, place in sorted(found))
    return [f"Other packages provide the module `kernels`: {listed}. Uninstall all of them, then install one."]


def _invalid_policy() -> list[str]:
    """What is wrong with the policy on signatures in force."""
    from kernels.trust import Policy

    try:
        Policy.in_force()
    except RequestError as error:
        return [str(error)]
    return []


def _unmet_requirements() -> list[str]:
    """Installed packages that ask for another version of this one, also in an optional part."""
    from packaging.requirements import InvalidRequirement, Requirement

    problems, seen = [], set()
    for distribution in importlib.metadata.distributions():
        package = _normal(str(distribution.metadata["Name"] or ""))
        if package in seen:
            continue  # an earlier folder on the path has the one that is imported
        seen.add(package)
        for text in distribution.requires or ():
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if _normal(requirement.name) == "kernels" and not requirement.specifier.contains(__version__, True):
                name = f"{distribution.metadata['Name']} {distribution.version}"
                problems.append(f"{name} works with kernels{requirement.specifier}, this is {__version__}.")
    return sorted(set(problems))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _print(report: DoctorReport) -> None:
    from kernels.cli._output import console, format_size, print_fields, print_table

    target, cache, hub = report.target, report.cache, report.hub
    answers = {True: "answers", False: "does not answer", None: ""}[hub.answers]
    kernels = f"{cache.repositories} kernel{'s' * (cache.repositories != 1)}"
    found = [f"{name} {version}" if version else name for name, version in target.backends.items()]
    print_fields(
        {
            "kernels": f"{report.version} in {report.location}",
            "python": f"{target.python}{' (free-threaded)' if target.free_threaded else ''} at {report.python}",
            "system": " ".join(filter(None, (target.os, target.os_version, target.cpu))),
            "glibc": target.glibc or "",
            "torch": f"{target.torch} for {', '.join(target.torch_backends)}" if target.torch else "not installed",
            "c++ abi": {True: "cxx11", False: "cxx98", None: ""}[target.cxx11_abi],
            "tvm-ffi": target.tvm_ffi or "not installed",
            "backends": f"{', '.join(found)}; used when none is named: {target.default_backend}",
            "joined": [f"{name}: {origin}" for name, origin in report.joined.items()],
            "target": str(target),
            "notes": list(target.notes),
            "cache": [cache.path, f"{kernels}, {format_size(cache.bytes)}" if cache.path else "", cache.note or ""],
            "hub": " - ".join(filter(None, (hub.endpoint, answers, hub.note))),
            "packages": [f"{name} {version}" for name, version in report.packages.items()],
            "variables": [f"{name}={value}" for name, value in report.variables.items()] or "none are set",
            "problems": [line for problem in report.problems for line in problem.splitlines()] or "none",
        }
    )
    if target.devices:
        console().print()
        print_table(("device", "name", "architecture", ">capability", ">memory"), map(_row, target.devices))


def _row(device: Device) -> tuple[str, ...]:
    from kernels.cli._output import format_size

    return (
        f"{device.backend}:{device.index}",
        device.name,
        device.arch,
        "" if device.capability is None else str(device.capability),
        "" if device.memory is None else format_size(device.memory),
    )
