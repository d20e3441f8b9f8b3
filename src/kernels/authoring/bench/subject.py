"""What is measured: a kernel's build, and the benchmark scripts that go with it, on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kernels import backends
from kernels.authoring.bench.scripts import FOLDER, PATTERN
from kernels.authoring.compile.freshness import rebuild_advice, stale_builds
from kernels.authoring.compile.workspace import Workspace, find_workspace
from kernels.errors import InvalidRepository, RequestError, UntrustedSignature
from kernels.models.requirement import Requirement
from kernels.models.snapshot import RepoFile, is_bytecode
from kernels.operations.info import is_path
from kernels.resolver.lock_scope import lock_in_force
from kernels.resolver.planner import Planned, Planner
from kernels.resolver.target import Target
from kernels.sources import PathSource, open_sources
from kernels.support.files import read_bounded
from kernels.trust.publishers import Admission, TrustPolicy, admission, ask_trust, unverified

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
        notes: What to know of the build.
        device: Torch's name of the device.
        target: The machine.
    """

    kernel: str
    path: Path | None
    planned: Planned
    root: Path
    device: str
    target: Target
    notes: tuple[str, ...] = ()


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
        UntrustedSignature: What is of the repository must be signed, which scripts are not.
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
    project = None if path is None else _project(path)
    if path is None:
        requirement = Requirement(os.fspath(kernel), version=version, revision=revision)
        planned = planner.plan(requirement)
        if isinstance(planned.source, PathSource):  # LOCAL_KERNELS names a folder for it
            path = planned.source.path
    else:
        source = PathSource(path if project is None else project.folder)
        planned = planner.plan_at(source, source.requirement)
    named = _torch_device(planned, device)
    if path is not None:
        home = path if project is None else project.folder
        with _gathered(path, [path] if project is None else [path, *project.folders]) as root:
            yield Subject(str(path), home, planned, root, named, target, _notes(project, planned.variant))
        return
    _check_fetchable(planned, policy)
    _check_unsigned(planned, planner)
    files = _scripts(planned)
    with TemporaryDirectory(prefix="kernels-benchmark-") as folder:
        for file in files:
            place = Path(folder) / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(planned.source.read(planned.snapshot, file, MAX_FILE_BYTES))
        yield Subject(planned.snapshot.repo_id, None, planned, Path(folder), named, target)


def _project(path: Path) -> Workspace | None:
    """The kernel whose sources lie there; what they are is of no account to builds that are there as well."""
    try:
        return find_workspace(path)
    except RequestError:
        return None


def _notes(project: Workspace | None, variant: str) -> tuple[str, ...]:
    if project is None:
        return ()
    reason = stale_builds(project).get(variant)
    return () if reason is None else (f"{variant}: {reason}; {rebuild_advice(project)}",)


@contextmanager
def _gathered(path: Path, folders: Iterable[Path]) -> Iterator[Path]:
    """A folder with the scripts of a path, or else with those of all folders of its kernel."""
    found = [folder for folder in dict.fromkeys(folders) if any((folder / FOLDER).glob(PATTERN))]
    if not found:
        raise _no_benchmarks(str(path), sorted(each.name for each in (path / FOLDER).glob("*")))
    if len(found) == 1 or path in found:
        yield found[0]
        return
    with TemporaryDirectory(prefix="kernels-benchmark-") as together:
        for folder in found:
            for file in sorted((folder / FOLDER).rglob("*")):
                place = Path(together) / file.relative_to(folder)
                if not file.is_file() or is_bytecode(file.name):
                    continue
                content = _content(file)
                if place.is_file() and place.read_bytes() != content:
                    raise RequestError(
                        f"{file} is another than that of the source folder beside it; give one a new name."
                    )
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
        yield Path(together)


def _content(file: Path) -> bytes:
    try:
        return read_bounded(file, MAX_FILE_BYTES)
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror or error}.") from None


def _check_fetchable(planned: Planned, policy: TrustPolicy) -> None:
    """Raise unless scripts may be fetched: a build on disk may have been admitted, what is fetched now was not."""
    source, repo_id = planned.source, planned.snapshot.repo_id
    publishers = source.publishers
    if source.offline:
        return
    if admission(repo_id, ask_trust(repo_id, publishers, policy), publishers, policy) is not Admission.GRANTED:
        raise unverified(repo_id, publishers)


def _check_unsigned(planned: Planned, planner: Planner) -> None:
    """Raise where nothing of a repository may run that nobody signed: scripts lie beside the builds."""
    if planned.signed and planner.signed is not None:
        repo_id = planned.snapshot.repo_id
        raise UntrustedSignature(
            f"{repo_id} must be signed, as {planner.signed.where} says, and no signature covers its benchmarks: they "
            "are not run. Look through them, and name the folder they are in: kernels benchmark ./folder"
        )


def _torch_device(planned: Planned, device: int | str | None) -> str:
    """Torch's name: with an index only where one was asked for, else the current device's."""
    kind = backends.get(planned.backend).device_type
    if isinstance(device, str):
        _, _, device = device.partition(":")
    return kind if device in (None, "") else f"{kind}:{device}"


def _scripts(planned: Planned) -> list[RepoFile]:
    snapshot = planned.snapshot
    files = [file for file in snapshot.files if file.path.startswith(f"{FOLDER}/") and not is_bytecode(file.path)]
    if not any(Path(file.path).match(f"{FOLDER}/{PATTERN}") for file in files):
        raise _no_benchmarks(str(planned.requirement), [file.path.removeprefix(f"{FOLDER}/") for file in files])
    size = sum(file.size for file in files)
    if len(files) > MAX_FILES or size > MAX_BYTES:
        raise InvalidRepository(
            f"{snapshot.repo_id} has {len(files)} files of {size} bytes in {FOLDER!r}; at most {MAX_FILES} files of "
            f"{MAX_BYTES} bytes are fetched."
        )
    return files


def _no_benchmarks(kernel: str, there: list[str]) -> RequestError:
    found = f"it has {', '.join(there[:10])}" if there else "there is no such folder, or nothing in it"
    return RequestError(
        f"{kernel} has no benchmarks: {FOLDER}/{PATTERN} was looked for, and {found}. A benchmark is a subclass of "
        "kernels.benchmark.Benchmark in such a file."
    )
