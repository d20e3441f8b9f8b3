"""A backend's stages: `prepare` a build once after its download, then hooks before and after its import.

    <cache>-prepared/<backend>/<key>/        the files that `prepare` made of one build, for one kind of device
                              <key>.done     a record that the folder is complete
    ~/.cache/kernels-prepared/<backend>/…    the same, if the first is another user's or cannot be written

They are beside the cache, never inside it: the build stays as it was downloaded and checked. What another user has
prepared is not used, since it is code.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from kernels import settings
from kernels.backends import Backend, Device, Stage
from kernels.errors import KernelImportError, RequestError, StoreError
from kernels.support.formatting import format_error, format_value
from kernels.support.json_store import StoredRecord, is_ours, read_record, write_record
from kernels.support.process_lock import exclusively, lock_at
from kernels.support.real_folders import LinkedFolder, check_folders, is_real_folder, make_folders

__all__ = ["STAGES", "prepare_build", "prepared_dir", "stages_of"]

#: The stages in their order, with their arguments.
STAGES = {
    "prepare": "variant_dir",
    "before_import": "variant_dir, metadata",
    "after_import": "module, variant_dir, metadata",
}

_IDLE = (Backend.prepare, Backend.before_import, Backend.after_import)

#: The architecture that a build is being prepared or imported for.
_arch: ContextVar[str | None] = ContextVar("kernels_prepared_for", default=None)

#: The stages that run in this process: backend, the build's real path, architecture. Threads of a stage use it, as they
#: do not inherit its context.
_running: list[tuple[str, str, str]] = []


def prepared_dir(backend: Backend, variant_dir: os.PathLike[str] | str, *, arch: str | None = None) -> Path:
    """The folder for the files that a backend's `prepare` makes of a build.

    It depends on the build's path and files, on the backend's `prepare_key`, and on the device's architecture. It is
    beside the cache, or in `~/.cache/kernels-prepared` if the first is another user's or cannot be written.

    Args:
        backend: The backend; it needs a `name`, and may have a `prepare_key`.
        variant_dir: The build's folder.
        arch: The device's architecture. Default: in a stage and its threads, the architecture of the device that the
            stage runs for; elsewhere none, so pass it to a process that a stage starts.

    Returns:
        An absolute path. In `prepare` the folder exists and is empty; elsewhere it may not exist.

    Raises:
        RequestError: The cache is the root of the file system; or a thread calls it while stages of this build run for
            devices of several architectures.
        KernelImportError: The backend's `prepare_key` fails.

    Example:
        >>> from kernels import get_backend
        >>> prepared_dir(get_backend("cpu"), "build/torch-cpu").parent.name
        'cpu'
    """
    folder = Path(os.path.realpath(variant_dir))
    if arch is None:
        arch = _arch_of_stage(backend, folder)
    key = hashlib.sha256()
    for part in (str(folder), _key(backend), arch, *_identities(folder)):
        key.update(part.encode("utf-8", "surrogateescape") + b"\0")
    shared = _beside(settings.cache_dir()) / backend.name / key.hexdigest()[:32]
    return shared if _is_usable(shared) else _in_home(shared)


def _is_usable(folder: Path) -> bool:
    """Whether a folder is ours, is root's and complete, or can be created."""
    try:
        check_folders(folder.parent)  # a link would lead to files elsewhere
    except LinkedFolder:
        return False
    except OSError:  # writing will raise the error
        pass
    if not hasattr(os, "geteuid"):
        return True
    try:
        facts = os.lstat(folder)
    except OSError:
        there = next((parent for parent in folder.parents if parent.exists()), folder)
        return not there.is_dir() or os.access(there, os.W_OK | os.X_OK)
    return facts.st_uid == os.geteuid() or _complete(folder)


def _in_home(shared: Path) -> Path:
    try:
        return Path.home() / ".cache" / "kernels-prepared" / shared.parent.name / shared.name
    except RuntimeError:  # this user has no home
        return shared


def _arch_of_stage(backend: Backend, folder: Path) -> str:
    """The architecture of the stage that runs in this thread, or for this build in another one; "" if none runs."""
    inherited = _arch.get()
    if inherited is not None:
        return inherited
    archs = {arch for name, path, arch in tuple(_running) if (name, path) == (backend.name, str(folder))}
    if len(archs) > 1:
        raise RequestError(
            f"`arch` is None, but stages of backend {backend.name} run with {folder} for devices of several "
            f"architectures: {', '.join(map(repr, sorted(archs)))}. Pass one of them."
        )
    return archs.pop() if archs else ""


def _key(backend: Backend) -> str:
    try:
        return str(getattr(backend, "prepare_key", ""))
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # a vendor's property may raise anything
        raise KernelImportError(f"Backend {backend.name}: its `prepare_key` raised {format_error(error)}.") from error


def _beside(cache: Path) -> Path:
    if ".." in cache.parts:  # beside `folder/..` would be inside `folder`
        cache = Path(os.path.realpath(cache))
    if not cache.name:
        raise RequestError(
            f"The cache is {cache}, and backends prepare builds in a folder beside it. Name another folder with "
            "KERNELS_CACHE."
        )
    return cache.with_name(f"{cache.name}-prepared")


def _identities(folder: Path) -> Iterator[str]:
    """Each file's path, size and modification time."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(parent, name)
            with suppress(OSError):
                facts = os.stat(path)
                yield f"{os.path.relpath(path, folder)} {facts.st_size} {facts.st_mtime_ns}"


def stages_of(backend: Backend | None, device: Device | None) -> Mapping[str, Stage]:
    """The stages of a backend for a device, by name, without those that do nothing.

    Args:
        backend: The backend of the chosen build, or None.
        device: The device that it was chosen for, or None if none is visible.

    Raises:
        KernelImportError: The backend's `stages` fails, or is not valid.

    Example:
        >>> from kernels import get_backend
        >>> stages_of(get_backend("cpu"), None)
        {}
    """
    if backend is None:
        return {}
    try:
        given: Any = backend.stages(device)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # a vendor's code may raise anything
        raise KernelImportError(f"Backend {backend.name}: its `stages` raised {format_error(error)}.") from error
    if not isinstance(given, Mapping):
        raise KernelImportError(
            f"Backend {backend.name}: expected `stages` to return a dictionary, got {format_value(given)}."
        )
    for name, stage in given.items():
        if name not in STAGES or not callable(stage):
            raise KernelImportError(
                f"Backend {backend.name}: expected `stages` to hold functions called {', '.join(STAGES)}, got "
                f"{format_value(name)}: {format_value(stage)}."
            )
    arch = "" if device is None else device.arch
    return {
        name: _in_context(backend.name, arch, name, stage)
        for name, stage in given.items()
        # Those of the base class do nothing.
        if getattr(stage, "__func__", None) not in _IDLE
    }


def _in_context(backend: str, arch: str, name: str, stage: Stage) -> Stage:
    position = STAGES[name].split(", ").index("variant_dir")

    def run(*args: Any) -> None:
        with _running_stage(backend, os.path.realpath(args[position]), arch):
            stage(*args)

    return run


@contextmanager
def _running_stage(backend: str, folder: str, arch: str) -> Iterator[None]:
    token = _arch.set(arch)
    _running.append((backend, folder, arch))
    try:
        yield
    finally:
        _running.remove((backend, folder, arch))
        _arch.reset(token)


def prepare_build(backend: Backend | None, variant_dir: Path, device: Device | None) -> None:
    """Run a backend's `prepare` for a build, once for all processes.

    Args:
        backend: The backend of the chosen build, or None.
        variant_dir: The build's folder.
        device: The device that it was chosen for, or None if none is visible.

    Raises:
        KernelImportError: The stage failed, removed its folder, or changed the build; its files are removed.
        RequestError: The cache is the root of the file system.
        StoreError: The folder beside the cache cannot be written.
    """
    stage = stages_of(backend, device).get("prepare")
    if backend is None or stage is None:
        return
    folder = prepared_dir(backend, variant_dir, arch="" if device is None else device.arch)
    done = _done(folder)
    if _complete(folder):
        return
    with exclusively(lock_at(folder.with_name(f"{folder.name}.lock"))):
        if _complete(folder):
            return
        try:
            check_folders(folder.parent)
            done.unlink(missing_ok=True)  # first: an interrupted process must not leave a complete folder
            _remove(folder)  # of an interrupted process
            make_folders(folder.parent)
            folder.mkdir(mode=0o755)  # whatever the umask: other users must not write into it
        except OSError as error:
            raise _unwritable(folder, backend, error) from error
        try:
            _run(stage, variant_dir, folder)
        except BaseException as error:
            with suppress(OSError):
                _remove(folder)
            if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
                raise
            raise KernelImportError(
                f"Backend {backend.name} could not prepare the build in {variant_dir}: {_why(error)}"
            ) from error
        try:
            _remove_write_access(folder)
            facts = os.lstat(folder)
        except OSError as error:
            raise _unwritable(folder, backend, error) from error
        write_record(done, _Prepared(facts.st_ino))
        if not done.is_file():
            raise _unwritable(folder, backend, OSError(f"{done.name} was not written"))


class _Prepared(StoredRecord):
    """A record that a folder is complete, by its inode: another one may be renamed into its place."""

    inode: int


def _done(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.done")


def _complete(folder: Path) -> bool:
    # The folder may be removed without its record.
    try:
        facts = os.lstat(folder)
    except OSError:
        return False
    if not stat.S_ISDIR(facts.st_mode) or not is_ours(facts):
        return False
    record = read_record(_done(folder), _Prepared)
    return record is not None and record.inode == facts.st_ino


def _remove_write_access(folder: Path) -> None:
    """Remove other users' right to write in a folder, which a umask may have given them."""
    for parent, _, names in os.walk(folder):
        for path in (parent, *(os.path.join(parent, name) for name in names)):
            facts = os.lstat(path)
            if not stat.S_ISLNK(facts.st_mode) and facts.st_mode & 0o022:
                os.chmod(path, stat.S_IMODE(facts.st_mode) & ~0o022)


def _run(stage: Stage, variant_dir: Path, folder: Path) -> None:
    build = Path(os.path.realpath(variant_dir))
    before = list(_identities(build))
    stage(variant_dir)
    if not is_real_folder(folder):
        raise KernelImportError(f"it left no folder at {folder}; expected its files in the folder that was there")
    if list(_identities(build)) != before:
        raise KernelImportError(f"the build's own files changed meanwhile; its files belong in {folder}")


def _remove(path: Path) -> None:
    """Remove a folder, or the file or link that a stage left in its place."""
    if is_real_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _unwritable(folder: Path, backend: Backend, error: OSError) -> StoreError:
    return StoreError(f"Cannot write {folder}, where backend {backend.name} prepares builds: {error}.")


def _why(error: BaseException) -> str:
    return str(error) if type(error) is KernelImportError else format_error(error)
