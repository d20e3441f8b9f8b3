"""What NVIDIA's libraries say, without initialising CUDA in this process.

The management library (NVML) knows driver and GPUs and may be asked at any time. What it cannot know - the order in
which CUDA numbers different GPUs, and the runtime's version - is asked of CUDA in a short-lived child process: a
process that initialised CUDA can no longer fork, and one that loaded a CUDA runtime may not load Torch's beside it.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernels.support.version import MajorMinor

__all__ = ["GPU", "DriverFacts", "look", "runtime_version", "visible"]

_CHILD_SECONDS = 20

#: The child finds modules where the parent does, and none in the folder that it happens to run in: `-m` looks there
#: first, and Python 3.10 has no `PYTHONSAFEPATH`.
_CHILD = f"import sys; sys.path[:] = sys.argv[2:]; import runpy; runpy.run_module({__name__!r}, run_name='__main__')"


class GPU(NamedTuple):
    """One NVIDIA GPU: name, UUID ("GPU-…"), compute capability, bytes of memory."""

    name: str
    uuid: str
    capability: tuple[int, int]
    memory: int | None = None


class DriverFacts(NamedTuple):
    """The newest CUDA version the driver runs, the visible GPUs in CUDA's order, and what did not answer.

    `hidden` is whether there are GPUs that `CUDA_VISIBLE_DEVICES` leaves out.
    """

    driver_version: MajorMinor | None = None
    gpus: tuple[GPU, ...] = ()
    notes: tuple[str, ...] = ()
    hidden: bool = False


def look() -> DriverFacts:
    """Ask NVML, and where it is missing CUDA's driver, for versions and visible GPUs; never raises."""
    notes: list[str] = []
    try:
        nvml = _Nvml()
    except _Unavailable as error:
        notes.append(str(error))
        return _without_nvml(notes)
    try:
        version = nvml.cuda_version()
        gpus = nvml.gpus()
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
        if len({(gpu.name, gpu.capability, gpu.memory) for gpu in gpus}) > 1 and not _pci_order():
            # CUDA numbers different GPUs fastest first, NVML by bus: only CUDA itself knows (CUDA_DEVICE_ORDER).
            listed = _ask_child("devices", notes)
            if listed is not None:
                return _facts(version, _gpus_of(listed), notes, len(gpus))
        if wanted is not None and wanted.lstrip().startswith("MIG-"):
            return _facts(version, nvml.slices(wanted, notes), notes, len(gpus))
        return _facts(version, visible(gpus, wanted), notes, len(gpus))
    except _Unavailable as error:
        notes.append(str(error))
        return _without_nvml(notes)
    finally:
        nvml.close()


def _facts(version: MajorMinor, gpus: Iterable[GPU], notes: list[str], there: int) -> DriverFacts:
    seen = tuple(gpus)
    return DriverFacts(version, seen, tuple(notes), hidden=len(seen) < there and "CUDA_VISIBLE_DEVICES" in os.environ)


def _pci_order() -> bool:
    return os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


def visible(gpus: Sequence[GPU], wanted: str | None) -> list[GPU]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves, in its order (CUDA C++ Programming Guide, "Environment Variables").

    Numbers or UUIDs, which may be shortened while they are unique; an entry that is no device ends the list, a
    device named twice empties it.

    Example:
        >>> cards = [GPU("A", "GPU-aa", (9, 0)), GPU("B", "GPU-bb", (8, 0))]
        >>> [gpu.name for gpu in visible(cards, "1,0")], [gpu.name for gpu in visible(cards, "GPU-b")]
        (['B', 'A'], ['B'])
    """
    if wanted is None:
        return list(gpus)
    chosen: list[GPU] = []
    for entry in wanted.split(","):
        entry = entry.strip()
        if entry.startswith("GPU-"):
            matches = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        else:
            # CUDA reads a number as strtoul does: what follows the digits is ignored.
            number = re.match(r"[0-9]+", entry)
            matches = [] if number is None else list(gpus[int(number[0]) : int(number[0]) + 1])
        if len(matches) != 1:
            break
        if matches[0] in chosen:
            return []
        chosen.append(matches[0])
    return chosen


class _Unavailable(Exception):
    """A library is missing or did not answer; the message is for a person."""


class _Nvml:
    """The few calls of NVML that are needed (nvml.h, "Device Queries")."""

    def __init__(self) -> None:
        self._library = _load(("nvml.dll",) if sys.platform == "win32" else ("libnvidia-ml.so.1",))
        if self._library is None:
            raise _Unavailable("no NVIDIA driver: its management library (NVML) is not installed")
        self._call("nvmlInit_v2")

    def _call(self, name: str, *arguments: Any) -> None:
        function: Callable[..., int] | None = getattr(self._library, name, None)
        if function is None:
            raise _Unavailable(f"NVIDIA's management library has no {name}; the driver is too old")
        code = function(*arguments)
        if code != 0:
            raise _Unavailable(f"NVIDIA's management library failed: {name} answered {code} ({self._meaning(code)})")

    def _meaning(self, code: int) -> str:
        try:
            explain = self._library.nvmlErrorString  # type: ignore[union-attr]
            explain.restype = ctypes.c_char_p
            text = explain(code)
            return text.decode(errors="replace") if text else "unknown"
        except (AttributeError, OSError):
            return "unknown"

    def close(self) -> None:
        try:
            self._call("nvmlShutdown")
        except _Unavailable:
            pass  # nothing more is asked of it

    def cuda_version(self) -> MajorMinor:
        number = ctypes.c_int(0)
        self._call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(number))
        return _decode_version(number.value)

    def gpus(self) -> list[GPU]:
        count = ctypes.c_uint(0)
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            found.append(self._describe(handle, self._memory(handle)))
        return found

    def slices(self, wanted: str, notes: list[str]) -> Iterable[GPU]:
        """The MIG slice that CUDA would use: the first named; it has the capability of the GPU it is cut from."""
        entry = wanted.split(",")[0].strip()
        part, parent = ctypes.c_void_p(), ctypes.c_void_p()
        try:
            self._call("nvmlDeviceGetHandleByUUID", entry.encode(), ctypes.byref(part))
            self._call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", part, ctypes.byref(parent))
            return [self._describe(parent, self._memory(part))]
        except _Unavailable as error:
            notes.append(f"CUDA_VISIBLE_DEVICES names {entry}: {error}")
            return []

    def _describe(self, handle: ctypes.c_void_p, memory: int | None) -> GPU:
        name, uuid = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
        major, minor = ctypes.c_int(0), ctypes.c_int(0)
        self._call("nvmlDeviceGetName", handle, name, ctypes.c_uint(len(name)))
        self._call("nvmlDeviceGetUUID", handle, uuid, ctypes.c_uint(len(uuid)))
        self._call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
        return GPU(
            name.value.decode(errors="replace"),
            uuid.value.decode(errors="replace"),
            (major.value, minor.value),
            memory,
        )

    def _memory(self, handle: ctypes.c_void_p) -> int | None:
        amounts = (ctypes.c_ulonglong * 3)()  # total, free, used
        try:
            self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(amounts))
        except _Unavailable:
            return None  # integrated GPUs share the host's memory and answer "not supported"
        return int(amounts[0])


def _load(names: Iterable[str]) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _decode_version(number: int) -> MajorMinor:
    return MajorMinor(number // 1000, number % 1000 // 10)  # 12080 is 12.8 (cudaDriverGetVersion)


def _driver() -> ctypes.CDLL | None:
    return _load(("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1",))


def _without_nvml(notes: list[str]) -> DriverFacts:
    """Some systems (Jetson, some containers) have the driver without its management library."""
    library = _driver()
    if library is None:
        return DriverFacts(notes=tuple(notes))
    number = ctypes.c_int(0)
    try:
        code = library.cuDriverGetVersion(ctypes.byref(number))  # one of the calls that need no cuInit
    except AttributeError:
        code = -1
    if code != 0 or number.value <= 0:
        notes.append(f"the CUDA driver does not tell its version (cuDriverGetVersion answered {code})")
        return DriverFacts(notes=tuple(notes))
    listed = _ask_child("devices", notes) or []
    return DriverFacts(_decode_version(number.value), _gpus_of(listed), tuple(notes))


def runtime_version() -> MajorMinor | None:
    """The version of the CUDA runtime (libcudart) that a program here would load, or None without one."""
    if not any(True for _ in _runtime_candidates()):
        return None
    answer = _ask_child("runtime", [])
    return MajorMinor(*answer) if isinstance(answer, list) and len(answer) == 2 else None


def _runtime_candidates() -> Iterable[str]:
    """Runtimes in the order a program finds them: the loader's cache and paths, the toolkit, packages of Python's."""
    pattern = "cudart64_*.dll" if sys.platform == "win32" else "libcudart.so.*"
    folders = [Path(part) for part in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if part]
    try:
        names = set(re.findall(rb"libcudart\.so\.[0-9]+", Path("/etc/ld.so.cache").read_bytes()))
        yield from sorted((name.decode() for name in names), key=_soname_version, reverse=True)
    except OSError:
        pass
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            folders += [Path(os.environ[variable], sub) for sub in ("lib64", "lib", "bin")]
    folders.append(Path("/usr/local/cuda/lib64"))
    for entry in sys.path:
        folders += [Path(entry, "nvidia", sub) for sub in ("cu13/lib", "cuda_runtime/lib", "cuda_runtime/bin")]
    for folder in folders:
        try:
            found = sorted(folder.glob(pattern), reverse=True)
        except OSError:  # it may not be read
            continue
        yield from map(str, found)


def _soname_version(name: str) -> int:
    return int(name.rpartition(".")[2])


def _gpus_of(listed: Any) -> tuple[GPU, ...]:
    return tuple(GPU(each["name"], each["uuid"], tuple(each["capability"]), each["memory"]) for each in listed)


def _ask_child(question: str, notes: list[str]) -> Any:
    """The answer of a child process that may initialise CUDA, or None with a note."""
    command = [sys.executable, "-c", _CHILD, question, *filter(None, sys.path)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_CHILD_SECONDS, check=True, stdin=subprocess.DEVNULL
        )
        answer = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        notes.append(f"CUDA did not report its {question}: {error}")
        return None
    if isinstance(answer, dict) and "error" in answer:
        notes.append(f"CUDA could not list its {question}: {answer['error']}")
        return None
    return answer


def _list_devices() -> Any:
    """Visible devices in CUDA's own order. Initialises CUDA: only for the child process."""
    cuda = _driver()
    if cuda is None:
        return {"error": "the driver's library cannot be loaded"}
    code = cuda.cuInit(0)
    if code != 0:
        return {"error": f"cuInit answered {code}"}
    count = ctypes.c_int(0)
    cuda.cuDeviceGetCount(ctypes.byref(count))
    listed = []
    for index in range(count.value):
        device, memory = ctypes.c_int(0), ctypes.c_size_t(0)
        name, uuid = ctypes.create_string_buffer(96), (ctypes.c_ubyte * 16)()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetName(name, len(name), device)
        cuda.cuDeviceGetUuid(uuid, device)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR are 75 and 76 (cuda.h).
        capability = []
        for attribute in (75, 76):
            value = ctypes.c_int(0)
            cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            capability.append(value.value)
        digits = bytes(uuid).hex()
        listed.append(
            {
                "name": name.value.decode(errors="replace"),
                "uuid": f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}",
                "capability": capability,
                "memory": memory.value,
            }
        )
    return listed


def _read_runtime() -> Any:
    """The first runtime that loads and tells its version. Loads it: only for the child process."""
    for name in _runtime_candidates():
        library, number = _load((name,)), ctypes.c_int(0)
        if library is not None and library.cudaRuntimeGetVersion(ctypes.byref(number)) == 0:
            return list(_decode_version(number.value))
    return {"error": "no libcudart loads"}


if __name__ == "__main__":
    json.dump({"devices": _list_devices, "runtime": _read_runtime}[sys.argv[1]](), sys.stdout)
