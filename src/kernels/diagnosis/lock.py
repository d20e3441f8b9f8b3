"""The lockfile that calls from here use: whether it can be read, and pins what the project depends on."""

from __future__ import annotations

from kernels import settings
from kernels.diagnosis.finding import Findings
from kernels.errors import LockError, RequestError
from kernels.models.project import PROJECT_FILE, dependencies, unpinned
from kernels.resolver.find_lock import AT_A_TERMINAL, lock_path, project_here
from kernels.resolver.locks import read_lock
from kernels.support.formatting import format_names, format_text

__all__ = ["check_lock"]

_WRITE = "Write it again: kernels lock"


def check_lock() -> Findings:
    """Whether the lockfile of the current folder, or of `KERNELS_LOCKFILE`, is whole and fits the project."""
    found = Findings("lock")
    named, path = None, None
    try:
        named = settings.lock_file()
        path = lock_path(AT_A_TERMINAL)
    except LockError as error:
        found.problem(str(error), "Give this user the right to read it, or name a lockfile with KERNELS_LOCKFILE.")
    except RequestError:
        pass  # reported with the variables
    lock = None
    if path is not None:
        try:
            lock = read_lock(path)
        except LockError as error:
            fix = f"{_WRITE} --upgrade." if named is None else "Correct KERNELS_LOCKFILE, or unset it."
            found.problem(str(error), fix)
    elif _locked_only() and not found.problems:
        found.problem(
            "KERNELS_LOCKED=1 allows locked kernels only, and there is no lockfile here.",
            "Write one in the project (kernels lock), or name it with KERNELS_LOCKFILE.",
        )
    project = project_here() / PROJECT_FILE
    if not project.exists():
        return found
    try:
        asked = dependencies(project)
    except RequestError as error:
        found.problem(str(error), f"Correct {format_text(project)}.")
        return found
    if asked and lock is None and path is None and not found.problems:
        found.note(f"{format_text(project)} has kernels, and no lockfile pins them.", "Pin them: kernels lock.")
    missing = unpinned(asked or (), lock) if lock is not None and named is None else []
    if missing:
        found.problem(f"{path} does not pin {format_names(missing, limit=5)} of {project}.", f"{_WRITE}.")
    return found


def _locked_only() -> bool:
    try:
        return settings.locked_only()
    except RequestError:  # reported with the variables
        return False
