"""A machine as a notebook shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.support.html_table import html_table

if TYPE_CHECKING:
    from kernels.resolver.target import Target

__all__ = ["target_table"]


def target_table(target: Target) -> str:
    """A target as an HTML table: a row for each fact that is known."""
    system = " ".join(filter(None, (target.os, target.os_version, target.cpu)))
    found = [f"{name} {version or ''}".strip() for name, version in target.backends.items()]
    devices = [
        (f"device {each.index}", " ".join(filter(None, (each.backend, each.arch, each.name))))
        for each in target.devices
    ]
    rows = [
        ("system", system),
        ("Python", target.python and f"{target.python}{' free-threaded' if target.free_threaded else ''}"),
        ("C library", target.glibc and f"glibc {target.glibc}"),
        ("Torch", target.torch and f"{target.torch} for {', '.join(target.torch_backends)}"),
        ("tvm-ffi", target.tvm_ffi),
        ("backends", f"{', '.join(found)}; default: {target.default_backend}"),
        *devices,
        *(("note", note) for note in target.notes),
    ]
    return html_table(("machine", str(target)), [row for row in rows if row[1]])
