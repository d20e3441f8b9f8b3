"""Installed packages: versions, requirements that are not met, and others in the place of this one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from kernels._version import __version__
from kernels.diagnosis.finding import Findings
from kernels.errors import LockError
from kernels.models.lockfile import LOCK_FILE
from kernels.resolver.locks import read_lock
from kernels.support.formatting import format_error, format_names

__all__ = ["LOCATION", "check_packages", "package_versions"]

#: The folder that this package was imported from.
LOCATION = Path(__file__).resolve().parents[1]

#: Packages whose versions are reported.
_PACKAGES = ("torch", "triton", "apache-tvm-ffi", "huggingface-hub", "hf-xet", "transformers", "diffusers", "sigstore")

#: The extras whose requirements hold for every use of what they name.
_EXTRAS = ("", "torch")
_AGAIN = "Uninstall all of them, then install one"


def package_versions() -> dict[str, str]:
    """The versions of related packages that are installed."""
    return {name: found for name in _PACKAGES if (found := _installed_version(name)) is not None}


def _installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_packages() -> Findings:
    """Other packages with a module `kernels`, versions that do not fit, files of another client, broken lockfiles."""
    found = Findings("packages")
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
        if normal == "kernels":
            _check_own(distribution, files, found)
        _check_lock(distribution, name, found)
        for requirement in _requirements(distribution, "kernels"):
            if _normal(requirement.name) == "kernels" and not requirement.specifier.contains(__version__, True):
                installed = f"{name} {distribution.version}"
                unmet.add(f"{installed} requires kernels{requirement.specifier}, but {__version__} is installed.")
    if len(providers) > 1 or any(_normal(name) != "kernels" for name, _, _ in providers):
        listed = "; ".join(f"{name} {version} in {place}" for name, version, place in sorted(providers))
        found.problem(f"Other packages provide the module `kernels`: {listed}.", f"{_AGAIN}.")
    for message in sorted(unmet):
        found.problem(message, "Install a version of either that fits the other.")
    try:
        import huggingface_hub  # noqa: F401
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything
        found.problem(f"huggingface_hub cannot be imported: {format_error(error)}.", "Install it again.")
    return found


def _check_own(distribution: Distribution, record: str, found: Findings) -> None:
    """The requirements of this package, and whether all files of its folder are its own."""
    for requirement in _requirements(distribution):
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in _EXTRAS):
            continue
        installed = _installed_version(requirement.name)
        wanted = f"{requirement.name}{requirement.specifier}"
        if installed is None and (marker is None or "extra" not in str(marker)):
            found.problem(f"{requirement.name} is not installed, which kernels needs.", f"pip install '{wanted}'")
        elif installed is not None and not requirement.specifier.contains(installed, True):
            found.problem(
                f"{requirement.name} {installed} is installed, but kernels {distribution.version} needs {wanted}.",
                f"pip install '{wanted}'",
            )
    listed = set(re.findall(r"^(kernels/[^,\n]+\.(?:py|so|pyd|pyi))[\",]", record, re.MULTILINE))
    site = Path(str(distribution.locate_file("")))
    if "kernels/__init__.py" not in listed or (site / "kernels").resolve() != LOCATION:
        return  # the sources themselves
    there = {
        path.relative_to(site).as_posix()
        for pattern in ("*.py", "*.so", "*.pyd", "*.pyi")
        for path in (site / "kernels").rglob(pattern)
    }
    others = sorted(there - listed)
    if others:
        found.problem(
            f"{site / 'kernels'} has files of another package or version: {format_names(others, limit=5)}.",
            "pip uninstall kernels, remove that folder, then install kernels again.",
        )


def _check_lock(distribution: Distribution, name: str, found: Findings) -> None:
    """The lockfile that a distribution brings for its own calls."""
    folder = getattr(distribution, "_path", None)  # there is no public name for the folder of its metadata
    path = Path(folder) / LOCK_FILE if isinstance(folder, os.PathLike) else None
    if path is not None and path.exists():
        try:
            read_lock(path)
        except LockError as error:
            found.problem(f"{name} {distribution.version}: {error}", f"Install {name} again.")


def _requirements(distribution: Distribution, prefix: str = "") -> Iterator[Requirement]:
    for text in distribution.metadata.get_all("Requires-Dist") or ():
        if text.lower().startswith(prefix):
            try:
                yield Requirement(text)
            except InvalidRequirement:
                continue


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
