"""A project's lock goes into its wheel: which files, under which names, and what is wrong with them.

Build backends import this room in every build where this package is installed: it loads nothing heavy, and a project
without the table is none of its business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernels.models.lockfile import HASHES_FILE, LOCK_FILE, Lock, hashes_path
from kernels.models.pyproject import PROJECT_FILE, TABLE, dependencies, unpinned
from kernels.support.files import read_bounded
from kernels.support.toml import MAX_TOML_BYTES

__all__ = ["Shipment", "shipment"]


@dataclass(frozen=True)
class Shipment:
    """What of a project goes into its installed metadata.

    Attributes:
        files: The files, by their name there.
        warnings: What whoever builds the project should know, a sentence each.
    """

    files: Mapping[str, Path] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def shipment(root: Path) -> Shipment:
    """What of a project goes into its installed metadata: its lock, and the hashes beside it.

    Args:
        root: The project's folder, or what an sdist of it was unpacked to.

    Raises:
        RequestError: The project's table of kernels is not what is allowed.
        LockError: Its lock, or the hashes beside it, cannot be read.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> _ = (root / "pyproject.toml").write_text('[tool.kernels.dependencies]\\n"org/relu" = 1\\n')
        >>> print(*shipment(root).warnings)
        The project asks for kernels ([tool.kernels.dependencies]) and has no kernels.lock: run `kernels lock`.
    """
    file = root / PROJECT_FILE
    # Every project that is built comes by here: most are not even parsed.
    asked = dependencies(file) if _mentions_kernels(file) else None
    if asked is None:
        return Shipment()
    lock_file = _lock_file(root)
    if lock_file is None:
        return Shipment(
            warnings=(f"The project asks for kernels ([{TABLE}]) and has no {LOCK_FILE}: run `kernels lock`.",)
        )
    lock = Lock.read(lock_file)
    warnings = [
        f"{LOCK_FILE} does not pin {each}, which the project asks for: run `kernels lock`."
        for each in unpinned(asked, lock)
    ]
    if lock.older:
        warnings.append(f"{LOCK_FILE} is of the older format, which not every client reads: run `kernels lock`.")
    beside = hashes_path(lock_file)
    return Shipment(
        {LOCK_FILE: lock_file, **({HASHES_FILE: beside} if beside.is_file() else {})},
        tuple(warnings),
    )


def _mentions_kernels(file: Path) -> bool:
    try:
        return b"kernels" in read_bounded(file, MAX_TOML_BYTES)
    except FileNotFoundError:
        return False
    except OSError:  # which reading it says
        return True


def _lock_file(root: Path) -> Path | None:
    if (root / LOCK_FILE).is_file():
        return root / LOCK_FILE
    # An sdist by setuptools lacks what no manifest names, but has the metadata of the build that made it.
    unpacked = (root / "PKG-INFO").is_file()
    found = [*root.glob(f"*.egg-info/{LOCK_FILE}"), *root.glob(f"*/*.egg-info/{LOCK_FILE}")] if unpacked else []
    return next(iter(sorted(found)), None)
