"""`kernels doctor`: what was found on this machine, what was not, and which problems there are."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kernels import backends, settings
from kernels._version import __version__
from kernels.cli._output import console, format_size, print_fields, print_json, print_table
from kernels.errors import RequestError
from kernels.resolver.target import Device, Target
from kernels.support.formatting import plural

__all__ = ["CacheReport", "DoctorReport", "HubReport", "doctor", "doctor_report"]

#: Packages whose versions are reported.
_PACKAGES = ("torch", "triton", "apache-tvm-ffi", "huggingface-hub", "hf-xet", "transformers", "diffusers", "sigstore")

_HUB_SECONDS = 5


class CacheReport(msgspec.Struct, frozen=True):
    """The cache: its path, its number of repositories, and their size on disk in bytes."""

    path: str
    repositories: int = 0
    bytes: int = 0
    note: str | None = None


class HubReport(msgspec.Struct, frozen=True):
    """The Hub, and whether it answers (None: no request was sent)."""

    endpoint: str
    answers: bool | None = None
    note: str | None = None


class DoctorReport(msgspec.Struct, frozen=True):
    """What `kernels doctor` reports.

    Attributes:
        version: The version of this package.
        location: The folder it was imported from.
        python: The interpreter.
        target: The machine.
        cache: The cache.
        hub: The Hub.
        variables: The environment variables that are set.
        joined: Backends that are not built in, each with its origin.
        packages: Versions of related packages.
        problems: One message for each problem.
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
    """Show what was found on this machine, what was not, and which problems there are."""
    report = doctor_report()
    if json:
        print_json(report)
    else:
        _print(report)


def doctor_report() -> DoctorReport:
    """Inspect this machine, the cache, the Hub and the installed packages. Problems are reported, not raised.

    Example:
        >>> doctor_report().version == __version__
        True
    """
    target, unusable = _target()
    packages = {name: version for name in _PACKAGES if (version := _installed_version(name)) is not None}
    return DoctorReport(
        version=__version__,
        location=str(Path(__file__).resolve().parents[1]),
        python=sys.executable,
        target=target,
        cache=_cache(),
        hub=_hub(),
        variables=settings.active_variables(),
        joined={
            entry.name: str(entry.origin) for entry in backends.entries() if entry.origin != backends.Origin("built-in")
        },
        packages=packages,
        problems=(
            *dict.fromkeys([*settings.invalid_settings(), *_invalid_policy()]),
            *unusable,
            *(problem.message for problem in backends.problems()),
            *_package_problems(),
        ),
    )


def _target() -> tuple[Target, list[str]]:
    try:
        return Target.current(), []
    except RequestError as error:  # KERNELS_BACKEND
        return Target.probe(), [str(error)]


def _installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cache() -> CacheReport:
    try:
        path = settings.cache_dir()
    except RequestError as error:
        return CacheReport("", note=str(error))
    try:
        repositories = [entry for entry in path.iterdir() if entry.name.startswith("kernels--") and entry.is_dir()]
    except FileNotFoundError:
        return CacheReport(str(path), note="does not exist yet")
    except OSError as error:
        return CacheReport(str(path), note=f"cannot be read: {error.strerror or error}")
    size = sum(_bytes_below(repository) for repository in repositories)
    writable = os.access(path, os.W_OK)
    return CacheReport(str(path), len(repositories), size, None if writable else "is not writable")


def _bytes_below(folder: Path) -> int:
    """Size of the files in a folder, without following symbolic links; hard links to one file are counted once."""
    sizes: dict[tuple[int, int], int] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                facts = os.lstat(os.path.join(parent, name))
            except OSError:
                continue  # removed meanwhile
            sizes[facts.st_dev, facts.st_ino] = facts.st_size
    return sum(sizes.values())


def _hub() -> HubReport:
    try:
        folder = settings.hub_folder()
        endpoint = settings.endpoint() if folder is None else str(folder)
        offline = folder is None and settings.offline()
    except RequestError as error:
        return HubReport(settings.active_variables().get("KERNELS_HUB", ""), False, str(error))
    if folder is not None:
        return HubReport(endpoint, note="a folder: no network requests")
    if offline:
        return HubReport(endpoint, note="offline (HF_HUB_OFFLINE): no request was sent")
    try:
        from huggingface_hub.utils import get_session

        response = get_session().get(f"{endpoint}/api/kernels", params={"limit": 1}, timeout=_HUB_SECONDS)
    except Exception as error:  # noqa: BLE001 - the types depend on the version of huggingface_hub
        return HubReport(endpoint, False, str(error) or type(error).__name__)
    if response.status_code >= 500:
        return HubReport(endpoint, False, f"answered with status {response.status_code}")
    return HubReport(endpoint, True)


def _invalid_policy() -> list[str]:
    """What is wrong with the active signing policy."""
    from kernels.trust import Policy

    try:
        Policy.active()
    except RequestError as error:
        return [str(error)]
    return []


def _package_problems() -> Iterator[str]:
    """Other packages with a module `kernels`; packages that require another version of this one, also in an extra."""
    from packaging.requirements import InvalidRequirement, Requirement

    providers, unmet, seen = set(), set(), set()
    for distribution in distributions():
        metadata = distribution.metadata
        name, normal = str(metadata["Name"] or ""), _normal(str(metadata["Name"] or ""))
        # Not `distribution.files`: it makes a path of every file of every package, which takes seconds.
        files = distribution.read_text("RECORD") or ""
        if normal == "kernels" or re.search(r"^kernels/__init__\.py,", files, re.MULTILINE):
            providers.add((name, distribution.version, str(distribution.locate_file(""))))
        if normal in seen:
            continue  # the first one on the path is imported
        seen.add(normal)
        for text in metadata.get_all("Requires-Dist") or ():
            if not text.lower().startswith("kernels"):
                continue
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if _normal(requirement.name) == "kernels" and not requirement.specifier.contains(__version__, True):
                installed = f"{name} {distribution.version}"
                unmet.add(f"{installed} requires kernels{requirement.specifier}, but {__version__} is installed.")
    if len(providers) > 1 or any(_normal(name) != "kernels" for name, _, _ in providers):
        listed = "; ".join(f"{name} {version} in {place}" for name, version, place in sorted(providers))
        yield f"Other packages provide the module `kernels`: {listed}. Uninstall all of them, then install one."
    yield from sorted(unmet)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _print(report: DoctorReport) -> None:
    target, cache, hub = report.target, report.cache, report.hub
    answers = {True: "answers", False: "does not answer", None: ""}[hub.answers]
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
            "backends": f"{', '.join(found)}; default: {target.default_backend}",
            "joined": [f"{name}: {origin}" for name, origin in report.joined.items()],
            "target": str(target),
            "notes": list(target.notes),
            "cache": [
                cache.path,
                f"{plural(cache.repositories, 'kernel')}, {format_size(cache.bytes)}" if cache.path else "",
                cache.note or "",
            ],
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
    return (
        f"{device.backend}:{device.index}",
        device.name,
        device.arch,
        "" if device.capability is None else str(device.capability),
        "" if device.memory is None else format_size(device.memory),
    )
