"""What a backend does with a build between its download and its use: prepare it once, then hooks around the import.

    <cache>-prepared/<backend>/<key>/        what `prepare` made of one build, for one kind of device
                              <key>.done     it is complete

Beside the cache and never inside it: the build stays what was downloaded and checked.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from kernels import settings
from kernels.backends import Backend, Device, Stage
from kernels.errors import KernelImportError, StoreError
from kernels.store import exclusively, lock_at, replace_file

__all__ = ["STAGES", "prepare_build", "prepared_dir", "stages_of"]

#: The stages, in their order, and the arguments of each.
STAGES = {
    "prepare": "variant_dir",
    "before_import": "variant_dir, metadata",
    "after_import": "module, variant_dir, metadata",
}

#: The architecture that a build is being prepared or imported for.
_arch: ContextVar[str] = ContextVar("kernels_prepared_for", default="")


def prepared_dir(backend: Backend, variant_dir: os.PathLike[str] | str, *, arch: str | None = None) -> Path:
    """The folder for what a backend's `prepare` makes of a build.

    It depends on the build's place and files, on the backend's `prepare_key`, and on the device's architecture; so a
    build that changed, or another compiler, has another folder.

    Args:
        backend: Whose stage; it needs a `name`, and may have a `prepare_key`.
        variant_dir: The build's folder.
        arch: The device's architecture; in a stage, that of the device it runs for.

    Returns:
        An absolute path. In `prepare` the folder is there and empty; elsewhere it may not be there.

    Example:
        >>> from kernels import get_backend
        >>> prepared_dir(get_backend("cpu"), "build/torch-cpu").parent.name
        'cpu'
    """
    folder = Path(os.path.realpath(variant_dir))
    key = hashlib.sha256()
    facts = [str(folder), str(getattr(backend, "prepare_key", "")), _arch.get() if arch is None else arch]
    for part in (*facts, *_identities(folder)):
        key.update(part.encode("utf-8", "surrogateescape") + b"\0")
    cache = settings.cache_dir()
    return cache.with_name(f"{cache.name}-prepared") / backend.name / key.hexdigest()[:32]


def _identities(folder: Path) -> Iterator[str]:
    """Each file's path, size and time: a file that was edited in place is another."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(parent, name)
            with suppress(OSError):
                facts = os.stat(path)
                yield f"{os.path.relpath(path, folder)} {facts.st_size} {facts.st_mtime_ns}"


def stages_of(backend: Backend | None, device: Device | None) -> Mapping[str, Stage]:
    """The stages of a backend for a device, by name, each ready to be called; `prepare` left out where it does nothing.

    Args:
        backend: The backend that a build was chosen for, or None for none.
        device: The device that it was chosen for, or None where none is visible.

    Raises:
        KernelImportError: The backend gives something else than stages.

    Example:
        >>> from kernels import get_backend
        >>> sorted(stages_of(get_backend("cpu"), None))
        ['after_import', 'before_import']
    """
    if backend is None:
        return {}
    try:
        given: Any = backend.stages(device)
    except Exception as error:
        raise KernelImportError(f"Backend {backend.name}: its `stages` raised {_said(error)}.") from error
    if not isinstance(given, Mapping):
        raise KernelImportError(f"Backend {backend.name}: its `stages` gave {_said(given)}; allowed is a dictionary.")
    for name, stage in given.items():
        if name not in STAGES or not callable(stage):
            raise KernelImportError(
                f"Backend {backend.name}: its `stages` has {name!r}: {_said(stage)}; allowed are functions called "
                f"{', '.join(STAGES)}."
            )
    arch = "" if device is None else device.arch
    return {name: _on(arch, stage) for name, stage in given.items() if not _idle(stage)}


def _idle(stage: Stage) -> bool:
    return getattr(stage, "__func__", None) is Backend.prepare


def _on(arch: str, stage: Stage) -> Stage:
    def run(*args: Any) -> None:
        with _for(arch):
            stage(*args)

    return run


@contextmanager
def _for(arch: str) -> Iterator[None]:
    token = _arch.set(arch)
    try:
        yield
    finally:
        _arch.reset(token)


def prepare_build(backend: Backend | None, variant_dir: Path, device: Device | None) -> None:
    """Run a backend's `prepare` for a build, unless that was done before, here or in another process.

    Args:
        backend: The backend that the build was chosen for, or None for none.
        variant_dir: The build's folder.
        device: The device that it was chosen for, or None where none is visible.

    Raises:
        KernelImportError: The stage failed; nothing of what it made is kept.
        StoreError: The folder beside the cache cannot be written.
    """
    stage = stages_of(backend, device).get("prepare")
    if backend is None or stage is None:
        return
    folder = prepared_dir(backend, variant_dir, arch="" if device is None else device.arch)
    done = folder.with_name(f"{folder.name}.done")
    if done.exists():
        return
    with exclusively(lock_at(folder.with_name(f"{folder.name}.lock"))):
        if done.exists():
            return
        try:
            # What a process left that was ended in the middle.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        except OSError as error:
            raise StoreError(
                f"Cannot write {folder}, where backend {backend.name} prepares builds: {error}."
            ) from error
        try:
            stage(variant_dir)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if not isinstance(error, Exception) and not isinstance(error, SystemExit):
                raise
            raise KernelImportError(
                f"Backend {backend.name} could not prepare the build in {variant_dir}: {_said(error)}"
            ) from error
        replace_file(done, b"")


def _said(value: object) -> str:
    text = f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else repr(value)
    return text if len(text) <= 500 else text[:499] + "…"
