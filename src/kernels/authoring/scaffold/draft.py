"""The options of a new kernel, checked before anything is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.authoring.own_tests.by_name import hides_the_standard_library
from kernels.backends import Backend, all_backends, find
from kernels.errors import InvalidMetadata, RequestError
from kernels.models.metadata import KernelName, Metadata
from kernels.models.requirement import check_repo_id

__all__ = ["LOCAL_PUBLISHER", "TEMPLATES", "Draft", "draft_kernel"]

#: The templates of a new kernel's files: `<path>.in`, with placeholders `@NAME@`.
TEMPLATES = Path(__file__).parent / "templates"

#: The publisher of kernels without a repository, as for `get_local_kernel`.
LOCAL_PUBLISHER = "local"

# The characters of SPDX expressions (SPDX specification, annex D): `Apache-2.0 WITH LLVM-exception OR MIT`.
_LICENSE = re.compile(r"[A-Za-z0-9(][A-Za-z0-9.+:() -]{0,198}")


@dataclass(frozen=True)
class Draft:
    """A new kernel.

    Attributes:
        name: Its name.
        backends: The backends it is for, in the order of `build.toml`.
        noarch: Whether it is Python only; else it is compiled.
        license: SPDX expression.
        repo_id: The repository it will be published to, or None if not known yet.
    """

    name: KernelName
    backends: tuple[Backend, ...]
    noarch: bool
    license: str
    repo_id: str | None

    @property
    def test_repo_id(self) -> str:
        """The repository that the kernel's own tests load."""
        return self.repo_id or f"{LOCAL_PUBLISHER}/{self.name}"


def draft_kernel(
    name: str,
    *,
    backends: Iterable[str] | None = None,
    noarch: bool = False,
    license: str = "Apache-2.0",
    repo_id: str | None = None,
) -> Draft:
    """Check the options of a new kernel.

    Args:
        name: The kernel's name.
        backends: Names or aliases of backends. Default: cpu and cuda.
        noarch: Python only, with Triton; nothing is compiled.
        license: SPDX expression.
        repo_id: `org/name`, where the kernel will be published.

    Returns:
        The options with their defaults; nothing is written.

    Raises:
        TypeError: An argument is of another type.
        RequestError: The name, license or repository is not valid, or a backend is not known.

    Example:
        >>> draft = draft_kernel("rms-norm", backends=["cpu", "npu"])
        >>> [backend.name for backend in draft.backends], draft.test_repo_id
        (['cpu', 'cann'], 'local/rms-norm')
    """
    return Draft(
        name=_name(name),
        backends=_by_default() if backends is None else _backends(backends),
        noarch=noarch,
        license=_license(license),
        repo_id=None if repo_id is None else check_repo_id(repo_id),
    )


def _name(name: Any) -> KernelName:
    _check_text("name", name)
    try:
        # The Hub and readers of the metadata must accept it.
        check_repo_id(f"{LOCAL_PUBLISHER}/{name}")
        fields = {"name": name, "id": "_", "backend": {"type": "any"}}
        checked = Metadata.from_bytes(json.dumps(fields).encode()).name
    except (RequestError, InvalidMetadata):
        raise RequestError(
            f"`name` is {name[:200]!r}; expected 2 to 96 lower-case letters, digits and single dashes, "
            "starting with a letter, not ending with a dash, such as 'rms-norm'."
        ) from None
    problem = hides_the_standard_library(checked.python_name)
    if problem is not None:
        raise RequestError(f"`name` is {name!r}, and {problem}.")
    return checked


def _by_default() -> tuple[Backend, ...]:
    """The backends of a new kernel for which none are named: a file beside their templates says so."""
    known = sorted(all_backends(), key=lambda backend: backend.name)
    return tuple(backend for backend in known if (TEMPLATES / "device" / backend.name / "by-default").is_file())


def _backends(names: Iterable[str]) -> tuple[Backend, ...]:
    if isinstance(names, (str, bytes)):
        raise TypeError(f"`backends`: expected a list of names, got {names!r} ({type(names).__name__}).")
    found = {backend.name: backend for backend in map(find, names)}
    if not found:
        known = ", ".join(backend.name for backend in all_backends())
        raise RequestError(f"`backends` is empty; expected at least one of {known}.")
    return tuple(found.values())


def _license(license: Any) -> str:
    _check_text("license", license)
    if _LICENSE.fullmatch(license) is None:
        raise RequestError(
            f"`license` is {license[:200]!r}; expected an SPDX expression such as 'MIT' or 'Apache-2.0 OR MIT'."
        )
    return str(license)


def _check_text(argument: str, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"`{argument}`: expected a string, got {value!r} ({type(value).__name__}).")
