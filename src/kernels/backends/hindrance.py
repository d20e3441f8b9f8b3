"""Why this machine cannot use a backend, and what to do: one answer for the errors and for `kernels doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from kernels.backends.base import Backend, BackendProbe
from kernels.backends.label import Names
from kernels.support.version import MajorMinor

__all__ = ["Hindrance", "HindranceKind", "hindrances"]

HindranceKind = Literal["absent", "hidden", "driver", "torch", "failed"]
"""What is in the way of a backend: no device; a setting that hides the devices; a driver that is missing or too old for
Torch; a Torch that is not built for it; the backend's own code fails.
"""


class Hindrance(msgspec.Struct, frozen=True):
    """Why a backend cannot be used.

    Attributes:
        kind: What is in the way.
        reason: A sentence without its stop.
        fix: What to do, a sentence without its stop.
    """

    kind: HindranceKind
    reason: str
    fix: str


def hindrances(
    backend: Backend | Names,
    probe: BackendProbe,
    *,
    torch: str | None,
    builds: Mapping[str, MajorMinor | None],
    failure: str | None = None,
) -> tuple[Hindrance, ...]:
    """Why a machine cannot use a backend; empty where nothing is known to be in the way.

    Args:
        backend: The backend; its names are enough where Torch is not built for it.
        probe: What its probe found.
        torch: The version of the installed Torch, or None without one.
        builds: The backends that this Torch was built for, each with its version.
        failure: What went wrong when the backend was asked about this Torch, or None.

    Example:
        >>> from kernels import get_backend
        >>> for each in hindrances(get_backend("cuda"), BackendProbe(notes=("no driver",)), torch=None, builds={}):
        ...     print(f"{each.reason}: {each.fix}")
        no driver: install NVIDIA's driver, or use a machine with such a device
    """
    found: list[Hindrance] = []
    maker = backend.vendor or backend.name
    if not probe.found:
        reason = (
            "; ".join(note.removeprefix("not there: ") for note in probe.notes) or f"no device of {maker} was found"
        )
        if probe.failed:
            origin = "update or uninstall the package that brings it"
            found.append(Hindrance("failed", reason, f"{origin}, or disable it with KERNELS_DISABLE_BACKENDS"))
        elif probe.hardware:
            found.append(Hindrance("driver", reason, f"install {maker}'s driver"))
        else:
            found.append(Hindrance("absent", reason, f"install {maker}'s driver, or use a machine with such a device"))
    elif not probe.devices and probe.hidden:
        found.append(
            Hindrance(
                "hidden",
                f"{probe.hidden} hides every device",
                f"unset {probe.hidden.partition('=')[0]}, or name a device in it",
            )
        )
    if torch is None:
        return tuple(found)
    if backend.name not in builds:
        others = ", ".join(builds) or "nothing that is known here"
        found.append(
            Hindrance(
                "torch" if failure is None else "failed",
                failure or f"this Torch ({torch}) is built for {others}",
                f"install a Torch that is built for {backend.name}, or a package that adds its device to this one",
            )
        )
    elif not isinstance(backend, Names):
        reason = backend.driver_reason(builds[backend.name], probe.driver) or ""
        if reason:
            fix = f"update the driver, or install a Torch that is built for {backend.name} {probe.driver} or older"
            found.append(Hindrance("driver", reason, fix))
    return tuple(found)
