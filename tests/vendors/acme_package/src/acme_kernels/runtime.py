"""Acme's runtime library, asked through its C interface."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["devices", "journal", "load", "version"]


def load() -> ctypes.CDLL | None:
    """The library: where `ACME_RT` says, else where the loader finds it; None where it is not installed."""
    try:
        return ctypes.CDLL(os.environ.get("ACME_RT") or "libacmert.so")
    except OSError:
        return None


def version(library: ctypes.CDLL) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.acmert_version(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def devices(library: ctypes.CDLL) -> Iterator[tuple[str, str]]:
    """Each device's name and architecture."""
    name, arch = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    for index in range(library.acmert_device_count()):
        library.acmert_device_name(index, name, ctypes.c_size_t(len(name)))
        library.acmert_device_arch(index, arch, ctypes.c_size_t(len(arch)))
        yield name.value.decode(), arch.value.decode()


def journal(line: str) -> None:
    """Add a line to the file that `ACME_JOURNAL` names, if any."""
    if os.environ.get("ACME_JOURNAL"):
        with Path(os.environ["ACME_JOURNAL"]).open("a") as file:
            file.write(f"{os.getpid()} {line}\n")
