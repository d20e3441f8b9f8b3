"""A backend's probe, limited in time: one that raises or hangs found nothing, and a note says why."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kernels.backends.base import Backend, BackendProbe
from kernels.backends.builtin import is_built_in
from kernels.support.formatting import format_error, format_value
from kernels.support.logs import logger, warn_once
from kernels.support.record_file import convert_json
from kernels.support.tasks import Task

__all__ = ["PROBE_SECONDS", "checked_probe", "probe_backend", "probe_backend_once"]

_log = logger(__name__)

#: A working driver answers in milliseconds; one that hangs must not stop the other backends.
PROBE_SECONDS = 10.0

#: The last probe of each backend, by its name: one that hangs is not started again.
_probes: dict[str, tuple[Backend, Task[Any]]] = {}

#: The probes with queries that failed, by the backend's name: what failed or hung is not asked again.
_failing: dict[str, tuple[Backend, BackendProbe]] = {}


def probe_backend(backend: Backend) -> BackendProbe:
    """What a backend's probe returns; where it fails, a probe that found nothing, with the reason in `notes`.

    Example:
        >>> from kernels import get_backend
        >>> probe = probe_backend(get_backend("cpu"))
        >>> probe.found, probe.notes
        (True, ())
    """
    try:
        return checked_probe(backend)
    except Exception as error:  # noqa: BLE001 - a driver or plugin that fails is reported and passed over
        return BackendProbe(notes=(f"could not be probed: {format_error(error)}",), failed=True)


def probe_backend_once(backend: Backend) -> BackendProbe:
    """As `probe_backend`, for a machine that is looked at again because Torch was imported.

    A probe with queries that failed is not repeated: one that hangs is waited for once in a process, with a warning.

    Example:
        >>> from kernels import get_backend
        >>> probe_backend_once(get_backend("cpu")).found
        True
    """
    before = _failing.get(backend.name)
    if before is not None and before[0] is backend:
        return before[1]
    probe = probe_backend(backend)
    if probe.unanswered and not probe.needs_torch:
        _failing[backend.name] = backend, probe
    for each in probe.unanswered:
        if each.timed_out:
            warn_once(
                _log,
                f"Backend {backend.name!r}: {each}. Every new process waits for it, also with kernels of other "
                f"backends. KERNELS_DISABLE_BACKENDS={backend.name} leaves the backend out.",
            )
    return probe


def checked_probe(backend: Backend, seconds: float = PROBE_SECONDS) -> BackendProbe:
    """What a backend's probe returns, with every value of the right type.

    Args:
        backend: The backend.
        seconds: The longest time for a probe that is not built in; the built-in ones have limits of their own.

    Raises:
        TimeoutError: It has not returned in time.
        Exception: What the probe raises, or what is wrong with the values that it returns.
    """
    if is_built_in(backend):
        return backend.probe()
    earlier = _probes.get(backend.name)
    if earlier is not None and earlier[0] is backend and earlier[1].thread.is_alive():
        raise TimeoutError("the previous probe has not returned")
    task: Task[object] = Task(backend.probe, name="backend")
    _probes[backend.name] = backend, task
    probe = task.result(seconds)
    if not isinstance(probe, BackendProbe):
        raise TypeError(f"expected a BackendProbe, got {format_value(probe)}")
    probe = convert_json(asdict(probe), BackendProbe)
    for device in probe.devices:
        if device.backend != backend.name:
            raise ValueError(f"expected devices of {backend.name}, got {format_value(device)}")
    return probe
