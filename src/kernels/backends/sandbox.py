"""Answers of backends, checked: a stranger's may raise, never come, or be nonsense.

Each of these functions asks one question and returns an answer of the right type. What went wrong is part of it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kernels.backends import lookup
from kernels.backends.base import Backend, BackendProbe, Device, Found
from kernels.support.formatting import format_error, format_text, format_value
from kernels.support.version import MajorMinor

__all__ = [
    "PROBE_SECONDS",
    "guarded_arch",
    "guarded_capability",
    "guarded_index",
    "guarded_probe",
    "guarded_reason",
    "guarded_text",
    "guarded_torch_build",
]

#: A driver that works answers in milliseconds; one that hangs must not take every other backend with it.
PROBE_SECONDS = 10.0

#: More devices, or longer notes, than any machine has.
_MAX_DEVICES, _MAX_NOTES, _MAX_TEXT = 4096, 32, 500

#: Questions that have not come back, by backend and method: it is not asked again before they do.
_waiting: dict[tuple[int, str], threading.Thread] = {}


def guarded_probe(backend: Backend, seconds: float = PROBE_SECONDS) -> BackendProbe:
    """What a look at the machine gave; a probe that fails, hangs or makes no sense found nothing, and a note says so.

    Args:
        backend: Whose probe.
        seconds: How long a probe that is not built in may take.
    """
    try:
        if _built_in(backend):
            return backend.probe()
        answers = _within(backend, "probe", backend.probe, seconds)
    except Exception as error:  # noqa: BLE001 - a broken driver is a fact, and so is a broken vendor's file
        return BackendProbe(notes=(f"could not be probed: {format_error(error)}",))
    if len(answers) == 0:
        return BackendProbe(notes=(f"could not be probed: no answer within {seconds:g} seconds",))
    wrong = _nonsense(backend, answers[0])
    if wrong is not None:
        return BackendProbe(notes=(f"could not be probed: its probe answered nonsense, {wrong}",))
    probe: BackendProbe = answers[0]
    version = None if probe.version is None else MajorMinor(*probe.version)
    notes = tuple(note[:_MAX_TEXT] for note in probe.notes[:_MAX_NOTES])
    return BackendProbe(probe.found, version, tuple(probe.devices), notes)


def guarded_torch_build(backend: Backend, torch: Any, seconds: float = PROBE_SECONDS) -> Found | None:
    """What `torch_build` says.

    Args:
        backend: Whose answer.
        torch: The module, or a stand-in for it.
        seconds: How long one that is not built in may take.

    Raises:
        TimeoutError: It has not come back, now or when it was asked before.
        ValueError: It answers neither `Found` nor None.
        Exception: Whatever the backend raises: it may want to see more of Torch than it was shown.
    """
    if _built_in(backend):
        return backend.torch_build(torch)
    answers = _within(backend, "torch_build", lambda: backend.torch_build(torch), seconds)
    if len(answers) == 0:
        raise TimeoutError(f"no answer within {seconds:g} seconds; allowed is Found(MajorMinor(1, 2)), Found() or None")
    found: Any = answers[0]
    if found is None:
        return None
    try:
        return Found(None if found.version is None else _version(found.version))
    except (AttributeError, TypeError, ValueError):
        raise ValueError(
            f"it answered {format_value(found)}; allowed is Found(MajorMinor(1, 2)), Found() or None"
        ) from None


def guarded_index(backend: Backend) -> int:
    """The current device's index; 0 where the answer is none."""
    try:
        index: Any = backend.current_device()
    except (Exception, SystemExit):
        if _built_in(backend):
            raise
        return 0
    return index if _whole(index) else 0


def guarded_capability(backend: Backend, device: Device) -> int | None:
    """A device's capability as one number; None where the answer is none."""
    try:
        capability: Any = backend.device_capability(device)
    except (Exception, SystemExit):
        if _built_in(backend):
            raise
        return None
    return capability if _whole(capability) else None


def guarded_reason(backend: Backend, ask: Callable[..., str | None], *args: Any) -> str | None:
    """Why a build does not fit, as a backend's method says; one that fails to judge a build does not accept it."""
    try:
        reason: Any = ask(*args)
    except (Exception, SystemExit) as error:
        if _built_in(backend):
            raise
        return f"backend {backend.name} could not judge it: {format_error(error)}"
    if reason is None or isinstance(reason, str):
        # It may quote the architectures that a repository declares.
        return reason if reason is None else format_text(reason, 1000)
    return f"backend {backend.name} could not judge it: it answered {format_value(reason)}"


def guarded_text(ask: Callable[..., str | None], default: str, *args: Any) -> str:
    """What a backend's method writes; `default` where it writes nothing."""
    try:
        text: Any = ask(*args)
    except (Exception, SystemExit):  # noqa: BLE001 - this is for messages, and a message must come
        return default
    return text if isinstance(text, str) and text else default


def guarded_arch(backend: Backend, text: str) -> str:
    """An architecture of a build's list as the backend reads it; "" where it knows none of that name.

    Args:
        backend: Whose architecture.
        text: As lists have it: it may also say how far it reaches, `+PTX` or the suffix for a family.
    """
    plain = text.removesuffix("+PTX")
    plain = plain[:-1] if re.fullmatch(r"[0-9]+\.[0-9]f", plain) else plain
    return guarded_text(backend.parse_arch, "", plain)


def _built_in(backend: Backend) -> bool:
    return any(entry.backend is backend and entry.origin.kind == "built-in" for entry in lookup.entries())


def _within(backend: Backend, what: str, ask: Callable[[], Any], seconds: float) -> Sequence[Any]:
    """What a backend answers, in a list; an empty one when the answer has not come."""
    key = (id(backend), what)
    earlier = _waiting.get(key)
    if earlier is not None and earlier.is_alive():
        return []
    answers: list[Any] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            answers.append(ask())
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            errors.append(error)
        except BaseException as error:  # noqa: BLE001 - `sys.exit` would only end this thread, in silence
            errors.append(RuntimeError(format_error(error)).with_traceback(error.__traceback__))

    # A daemon: one that never comes back must not keep the process from ending.
    thread = threading.Thread(target=run, name=f"kernels-{what}-{backend.name}", daemon=True)
    _waiting[key] = thread
    thread.start()
    thread.join(seconds)
    if not thread.is_alive():
        _waiting.pop(key, None)
    if errors:
        raise errors[0]
    return answers


def _nonsense(backend: Backend, probe: Any) -> str | None:
    """What is wrong with a probe's answer, if anything."""
    if not isinstance(probe, BackendProbe):
        return f"{format_value(probe)}, which is no BackendProbe"
    found: Any = probe.found
    if not isinstance(found, bool):
        return f"`found` is {format_value(found)}"
    try:
        if probe.version is not None:
            _version(probe.version)
    except (TypeError, ValueError):
        return f"`version` is {format_value(probe.version)}"
    if not isinstance(probe.notes, (tuple, list)) or not all(isinstance(note, str) for note in probe.notes):
        return f"`notes` is {format_value(probe.notes)}"
    if not isinstance(probe.devices, (tuple, list)) or len(probe.devices) > _MAX_DEVICES:
        return f"`devices` is {format_value(probe.devices)}"
    seen = set()
    devices: Any = probe.devices
    for device in devices:
        if not isinstance(device, Device) or device.backend != backend.name:
            return f"a device is {format_value(device)}, which is none of {backend.name}"
        if not _whole(device.index) or device.index in seen:
            return f"a device's index is {format_value(device.index)}"
        seen.add(device.index)
        if not all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in (device.name, device.arch)):
            name, arch = format_value(device.name), format_value(device.arch)
            return f"device {device.index} is called {name}, of architecture {arch}"
        if not all(number is None or _whole(number) for number in (device.capability, device.memory)):
            return f"device {device.index} has capability {device.capability!r} and memory {device.memory!r}"
    return None


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _version(value: Any) -> MajorMinor:
    version = MajorMinor(*value)
    if not all(_whole(number) for number in version):
        raise ValueError("a version has two whole numbers")
    return version
