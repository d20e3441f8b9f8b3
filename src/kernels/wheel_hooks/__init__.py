"""Put a project's lockfile into its wheel: the files, their names, and warnings.

Build backends import this package in every build where it is installed: it imports nothing slow, and does nothing for a
project without the table `[tool.kernels.dependencies]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernels.models.lockfile import HASHES_FILE, LOCK_FILE, Lock, hashes_path
from kernels.models.project import PROJECT_FILE, TABLE, dependencies, unpinned
from kernels.support.files import read_bounded
from kernels.support.toml import MAX_TOML_BYTES

__all__ = ["WheelFiles", "wheel_files"]


@dataclass(frozen=True)
class WheelFiles:
    """The files that go into a project's installed metadata.

    Attributes:
        files: The files, by their name there.
        warnings: Warnings for the build, a sentence each.
    """

    files: Mapping[str, Path] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def wheel_files(root: Path) -> WheelFiles:
    """The files that go into a project's installed metadata: its lockfile, and the hashes beside it.

    Args:
        root: The project's folder, or an unpacked sdist.

    Raises:
        RequestError: The project's table of kernels is not valid.
        LockError: Its lockfile, or the hashes beside it, cannot be read.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> _ = (root / "pyproject.toml").write_text('[tool.kernels.dependencies]\\n"org/relu" = 1\\n')
        >>> print(*wheel_files(root).warnings)
        The project needs kernels ([tool.kernels.dependencies]) but has no kernels.lock: run `kernels lock`.
    """
    file = root / PROJECT_FILE
    # Called in every build: most projects are not even parsed.
    needed = dependencies(file) if _mentions_kernels(file) else None
    if needed is None:
        return WheelFiles()
    lock_file = _lock_file(root)
    if lock_file is None:
        return WheelFiles(
            warnings=(f"The project needs kernels ([{TABLE}]) but has no {LOCK_FILE}: run `kernels lock`.",)
        )
    lock = Lock.read(lock_file)
    warnings = [
        f"{LOCK_FILE} does not pin {each}, which the project needs: run `kernels lock`."
        for each in unpinned(needed, lock)
    ]
    if lock.older:
        warnings.append(f"{LOCK_FILE} has the older format, which not every client reads: run `kernels lock`.")
    beside = hashes_path(lock_file)
    return WheelFiles(
        {LOCK_FILE: lock_file, **({HASHES_FILE: beside} if beside.is_file() else {})},
        tuple(warnings),
    )


def _mentions_kernels(file: Path) -> bool:
    try:
        return b"kernels" in read_bounded(file, MAX_TOML_BYTES)
    except FileNotFoundError:
        return False
    except OSError:  # reported where the file is read
        return True


def _lock_file(root: Path) -> Path | None:
    if (root / LOCK_FILE).is_file():
        return root / LOCK_FILE
    # A setuptools sdist can lack the lockfile itself, but has the metadata of the build that made it.
    unpacked = (root / "PKG-INFO").is_file()
    found = [*root.glob(f"*.egg-info/{LOCK_FILE}"), *root.glob(f"*/*.egg-info/{LOCK_FILE}")] if unpacked else []
    return next(iter(sorted(found)), None)
