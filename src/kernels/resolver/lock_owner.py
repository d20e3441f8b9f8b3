"""Whose a lockfile is: one that another user or another distribution put there is an error, and not used."""

from __future__ import annotations

import os
from pathlib import Path

from kernels.errors import LockError
from kernels.models.lockfile import hashes_path
from kernels.resolver.installed_locks import metadata_locks, owners, package_start, site_folder
from kernels.support.files import read_bounded

__all__ = ["check_owner"]

#: The largest lockfile, or file of hashes beside it, that is compared with another one.
_COMPARED_BYTES = 8 * 1024 * 1024


def check_owner(lock: str, file: str | None) -> None:
    """Raise an error where a lockfile was found that somebody else may have put there.

    Args:
        lock: The lockfile.
        file: The caller's file; None for a terminal, a notebook or a command.

    Raises:
        LockError: It is another user's, or another distribution's than the caller's file.
    """
    _check_user(lock, file)
    path = None if file is None else os.path.abspath(file)
    site = None if path is None else site_folder(path)
    if path is not None and site is not None:
        _check_distributions(lock, path, site)


def _check_user(lock: str, file: str | None) -> None:
    if not hasattr(os, "geteuid"):
        return
    # The code of the owner of the caller's file runs already.
    mine = {0, os.geteuid()}
    for examine in (os.lstat, os.stat):  # a link, and what it leads to
        try:
            uid = examine(lock).st_uid
            if uid in mine or (file is not None and uid == os.stat(file).st_uid):
                continue
        except OSError:  # reported where it is read
            continue
        raise LockError(
            f"{lock} belongs to another user (uid {uid}), who could choose the commits that you load. It was not used. "
            f"If you trust it, name it: KERNELS_LOCKFILE={lock}"
        )


def _check_distributions(lock: str, file: str, site: str) -> None:
    inside = os.path.relpath(lock, site)
    shipped = {*owners(site, inside)}
    top = os.path.dirname(inside).partition(os.sep)[0]
    if top.endswith(".dist-info"):
        own = owners(site, os.path.relpath(file, site))
        locks = [each for info in own for each in metadata_locks(info)]
        agreed = shipped <= {*own} and all(map(metadata_locks, own))
        agreed = agreed and (len(locks) == 1 or len(set(map(_content, locks))) == 1)
    else:  # in the package's folder; one that no distribution lists was put there by hand
        own = owners(site, os.path.join(top, str(package_start(os.path.join(site, top)))))
        locks = [lock]
        agreed = not shipped or shipped == {*own}
    if not agreed:
        infos = dict.fromkeys((*own, *sorted(shipped)))
        names = " and ".join(os.path.basename(info).rpartition(".")[0] for info in infos)
        raise LockError(
            f"{file}, or its lockfile, belongs to {names}, with different lockfiles: {', '.join(locks)}. Uninstall the "
            "distribution that is not needed, or name the lockfile to use with KERNELS_LOCKFILE."
        )


def _content(lock: str) -> tuple[bytes | None, bytes | None]:
    """The content of a lockfile and of the hashes beside it; one that cannot be read is equal to no other."""
    hashes = hashes_path(Path(lock))
    try:
        content = read_bounded(lock, _COMPARED_BYTES)
        return content, read_bounded(hashes, _COMPARED_BYTES) if os.path.lexists(hashes) else None
    except OSError:
        return os.fsencode(lock), None
