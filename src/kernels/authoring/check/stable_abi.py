"""The functions and data of Python that native code may use: the same build then loads in every Python version."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from kernels.backends import listed
from kernels.support.formatting import plural

__all__ = ["PYTHON", "beyond_stable_abi", "stable_abi"]

#: The Python whose stable ABI native files may use.
PYTHON = "3.9"


@lru_cache(maxsize=1)
def stable_abi() -> frozenset[str]:
    """The functions and data of CPython's stable ABI up to Python 3.9.

    Example:
        >>> "PyModule_Create2" in stable_abi(), "PyUnicode_AsUTF8" in stable_abi()
        (True, False)
    """
    text = (Path(__file__).parent / "stable_abi_3_9.txt").read_text(encoding="ascii")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def beyond_stable_abi(used: Iterable[str]) -> str | None:
    """What is wrong with the functions and data of Python that a file uses, as a clause; None if nothing is.

    Example:
        >>> beyond_stable_abi(["PyModule_Create2"]) is None
        True
    """
    beyond = sorted(set(used) - stable_abi())
    if not beyond:
        return None
    return (
        f"uses {plural(len(beyond), 'symbol')} beyond Python {PYTHON}'s stable ABI: {listed(beyond[:50])}; compile it "
        "with Py_LIMITED_API=0x03090000"
    )
