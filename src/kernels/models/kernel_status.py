"""`kernel-status.toml`: the repository that a repository has moved to."""

from __future__ import annotations

from kernels.errors import InvalidRepository, RequestError
from kernels.models.requirement import Requirement
from kernels.models.snapshot import STATUS_FILE
from kernels.support.documents import load_toml
from kernels.support.formatting import format_text, format_value

__all__ = ["MAX_STATUS_BYTES", "destination"]

#: The file has three short lines.
MAX_STATUS_BYTES = 4096


def destination(content: bytes, requirement: Requirement) -> Requirement:
    """The requirement for a moved repository.

    Args:
        content: The file's bytes.
        requirement: The requirement that led here. The new one has the same version or revision, unless the file
            names a revision.

    Raises:
        InvalidRepository: The file is too large, not TOML, not a redirect, or names no repository.

    Example:
        >>> moved = b'kind = "redirect"\\ndestination = "org/new"'
        >>> str(destination(moved, Requirement("org/old", version=2)))
        'org/new version 2'
    """
    where = f"{requirement.repo_id}: {STATUS_FILE}"
    if len(content) > MAX_STATUS_BYTES:
        raise InvalidRepository(f"{where} has {len(content)} bytes; more than {MAX_STATUS_BYTES} are not read.")
    try:
        status = load_toml(content.decode())
    except ValueError as error:
        raise InvalidRepository(f"{where} is not valid TOML: {format_text(error)}") from None
    if status.get("kind") != "redirect":
        raise InvalidRepository(f"{where} has the kind {format_value(status.get('kind'))}; expected 'redirect'.")
    named = {"version": requirement.version, "revision": requirement.revision}
    if "revision" in status:
        named = {"revision": status["revision"]}
    try:
        return Requirement(status.get("destination"), **named)  # type: ignore[arg-type]
    except (RequestError, TypeError) as error:
        raise InvalidRepository(f"{where} does not name a repository to go to: {error}") from None
