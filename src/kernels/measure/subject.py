"""What is measured: a kernel's build, and the benchmark scripts that go with it, on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kernels import backends
from kernels.errors import InvalidRepository, RequestError
from kernels.locks import lock_in_force
from kernels.measure.scripts import FOLDER, PATTERN
from kernels.offer import is_path
from kernels.plan import Planned, Planner
from kernels.release import RepoFile, is_bytecode
from kernels.requirement import Requirement
from kernels.sources import PathSource, open_sources
from kernels.target import Target
from kernels.trust import Standing, TrustPolicy, unverified

__all__ = ["Subject", "subject"]

#: What a repository's folder of benchmarks may hold; published ones have some files of a few kilobytes.
MAX_FILES = 1000
MAX_FILE_BYTES = 16 * 2**20
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Subject:
    """A kernel that is to be measured.

    Attributes:
        kernel: What to call it.
        path: Its folder, or None for a repository.
        planned: The build that was chosen.
        root: The folder that holds the scripts' folder.
        device: Torch's name of the device.
        target: The machine.
    """

    kernel: str
    path: Path | None
    planned: Planned
    root: Path
    device: str
    target: Target


@contextmanager
def subject(
    kernel: str | os.PathLike[str],
    *,
    version: int | None,
    revision: str | None,
    backend: str | None,
    device: int | str | None,
    trust_remote_code: bool | Sequence[str],
) -> Iterator[Subject]:
    """Find a kernel's build and its benchmarks; of a repository, the scripts are on disk for as long as this lasts.

    Raises:
        RequestError: There are no benchmarks, or `version` was given for a folder.
        UntrustedPublisher: The publisher is not trusted.
        KernelsError: As for `get_kernel`.
    """
    policy = TrustPolicy.of(trust_remote_code)
    target = Target.current()
    planner = Planner(open_sources(), target, policy, backend, True, device, lock=lock_in_force())
    if is_path(kernel):
        if version is not None or revision is not None:
            raise RequestError(
                f"`kernel` is {os.fspath(kernel)!r}, a folder, which has one state; `version` and `revision` are for "
                "repositories."
            )
        path: Path | None = Path(os.path.expanduser(kernel)).absolute()
    else:
        path = None
    if path is None:
        requirement = Requirement(os.fspath(kernel), version=version, revision=revision)
        planned = planner.plan(requirement)
        if isinstance(planned.source, PathSource):  # LOCAL_KERNELS names a folder for it
            path = planned.source.path
    else:
        source = PathSource(path)
        planned = planner.plan_at(source, source.requirement)
    named = _torch_device(planned, device)
    if path is not None:
        if not any((path / FOLDER).glob(PATTERN)):
            raise _no_benchmarks(str(path), sorted(each.name for each in (path / FOLDER).glob("*")))
        yield Subject(str(path), path, planned, path, named, target)
        return
    _check_fetchable(planned, policy)
    files = _scripts(planned)
    with TemporaryDirectory(prefix="kernels-benchmark-") as folder:
        for file in files:
            place = Path(folder) / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(planned.source.read(planned.release, file, MAX_FILE_BYTES))
        yield Subject(planned.release.repo_id, None, planned, Path(folder), named, target)


def _check_fetchable(planned: Planned, policy: TrustPolicy) -> None:
    """Raise unless scripts may be fetched: a build on disk counts as checked, what is fetched now does not."""
    source, repo_id = planned.source, planned.release.repo_id
    standing = getattr(source, "standing", None)
    if standing is None or getattr(source, "offline", False) or policy.allows(repo_id):
        return
    if standing(repo_id) is not Standing.TRUSTED:
        raise unverified(repo_id, source.name)


def _torch_device(planned: Planned, device: int | str | None) -> str:
    """Torch's name: with an index only where one was asked for, else the current device's."""
    kind = backends.get(planned.backend).device_type
    if isinstance(device, str):
        _, _, device = device.partition(":")
    return kind if device in (None, "") else f"{kind}:{device}"


def _scripts(planned: Planned) -> list[RepoFile]:
    release = planned.release
    files = [file for file in release.files if file.path.startswith(f"{FOLDER}/") and not is_bytecode(file.path)]
    if not any(Path(file.path).match(f"{FOLDER}/{PATTERN}") for file in files):
        raise _no_benchmarks(str(planned.requirement), [file.path.removeprefix(f"{FOLDER}/") for file in files])
    size = sum(file.size for file in files)
    if len(files) > MAX_FILES or size > MAX_BYTES:
        raise InvalidRepository(
            f"{release.repo_id} has {len(files)} files of {size} bytes in {FOLDER!r}; at most {MAX_FILES} files of "
            f"{MAX_BYTES} bytes are fetched."
        )
    return files


def _no_benchmarks(kernel: str, there: list[str]) -> RequestError:
    found = f"it has {', '.join(there[:10])}" if there else "there is no such folder, or nothing in it"
    return RequestError(
        f"{kernel} has no benchmarks: {FOLDER}/{PATTERN} was looked for, and {found}. A benchmark is a subclass of "
        "kernels.benchmark.Benchmark in such a file."
    )
