"""The signing policy of this process: most have none, and then nothing of it is imported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kernels import settings
from kernels.errors import RequestError

if TYPE_CHECKING:
    from kernels.trust.signing_policy import Policy

__all__ = ["active_policy"]


def active_policy() -> Policy | None:
    """The policy that `KERNELS_POLICY` names, or None.

    Raises:
        RequestError: It cannot be read, or is not a policy.
    """
    path = settings.policy_file()
    if path is None:
        return None
    from kernels.trust.signing_policy import read_once

    try:
        status = os.stat(path)
    except OSError as error:
        raise RequestError(f"The policy {path} (`KERNELS_POLICY`) cannot be read: {error.strerror}.") from None
    return read_once(path, status.st_mtime_ns, status.st_size, status.st_ino)
