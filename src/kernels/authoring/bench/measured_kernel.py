"""The kernel to measure: its build, and its benchmark scripts on disk."""

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
from kernels.authoring.compile.sources.workspace import Workspace, find_workspace
from kernels.errors import InvalidRepository, RequestError, UntrustedSignature
from kernels.models.snapshot import RepoFile, is_bytecode
from kernels.operations.call import KernelRequest, context_for
from kernels.operations.explain import is_path
from kernels.resolver.plan import Planned, plan_tree
from kernels.resolver.target import Target
from kernels.sources.folder import PathSource
from kernels.support.files import read_bounded
from kernels.trust.policy import Policy
from kernels.trust.publishers import Admission, TrustPolicy, admission, ask_trust, unverified

__all__ = ["MeasuredKernel", "prepare_kernel"]

#: Bounds on a repository's folder of benchmarks; published ones have some files of a few kilobytes.
MAX_FILES = 1000
MAX_FILE_BYTES = 16 * 2**20
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class MeasuredKernel:
    """A kernel to measure."""

    kernel: str  # its name in the report
    path: Path | None  # its folder, or None for a repository
    planned: Planned
    root: Path  # the folder that holds `benchmarks`
    device: str  # Torch's name
    target: Target
    notes: tuple[str, ...] = ()


@contextmanager
def prepare_kernel(
    kernel: str | os.PathLike[str],
    *,
    version: int | None,
    revision: str | None,
    backend: str | None,
    device: int | str | None,
    trust_remote_code: bool | Sequence[str],
) -> Iterator[MeasuredKernel]:
    """Find a kernel's build and its benchmarks. A repository's scripts are on disk until the `with` block ends.

    Raises:
        RequestError: There are no benchmarks, or `version` or `revision` was given for a folder.
        UntrustedPublisher: The publisher is not trusted.
        UntrustedSignature: The repository must be signed, and signatures do not cover benchmarks.
        KernelsError: As for `get_kernel`.
    """
    request = KernelRequest(
        os.fspath(kernel), version, revision, backend, trust_remote_code=trust_remote_code, device=device
    )
    path: Path | None = None
    workspace = source = None
    if is_path(kernel):
        if version is not None or revision is not None:
            raise RequestError(
                f"`kernel` is {os.fspath(kernel)!r}, a folder; `version` and `revision` are for repositories only."
            )
        path = Path(os.path.expanduser(kernel)).absolute()
        workspace = _workspace(path)
        source = PathSource(path if workspace is None else workspace.folder)
        request = request.with_changes(repo_id=source.requirement.repo_id)
    context = context_for(request)
    planned = plan_tree(context, request.requirement, source).root
    if source is None and isinstance(planned.source, PathSource):  # LOCAL_KERNELS names a folder for it
        path = planned.source.path
    named = _torch_device(planned, device)
    if path is not None:
        home, folders = path, [path]
        notes: tuple[str, ...] = ()
        if workspace is not None:
            home, folders = workspace.folder, [path, *workspace.folders]
            if reason := stale_builds(workspace).get(planned.variant):
                notes = (f"{planned.variant}: {reason}; {rebuild_advice(workspace)}",)
        with _gathered(path, folders) as root:
            yield MeasuredKernel(str(path), home, planned, root, named, context.target, notes)
        return
    _check_fetchable(planned, context.trust)
    _check_unsigned(planned, context.signing)
    files = _scripts(planned)
    with TemporaryDirectory(prefix="kernels-benchmark-") as folder:
        for file in files:
            _write(Path(folder) / file.path, planned.source.read(planned.snapshot, file, MAX_FILE_BYTES))
        yield MeasuredKernel(planned.snapshot.repo_id, None, planned, Path(folder), named, context.target)


def _workspace(path: Path) -> Workspace | None:
    """The workspace of a folder; None without one. An invalid one does not matter for the builds."""
    try:
        return find_workspace(path)
    except RequestError:
        return None


@contextmanager
def _gathered(path: Path, folders: Iterable[Path]) -> Iterator[Path]:
    """A folder with the scripts of a path; without any there, with those of all source folders of its kernel."""
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
                        f"{file} differs from the file of that name in another source folder; rename one of them."
                    )
                _write(place, content)
        yield Path(together)


def _write(place: Path, content: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def _content(file: Path) -> bytes:
    try:
        return read_bounded(file, MAX_FILE_BYTES)
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror or error}.") from None


def _check_fetchable(planned: Planned, policy: TrustPolicy) -> None:
    """Raise if the publisher is not trusted now. A build on disk was admitted earlier; the scripts were not."""
    source, repo_id = planned.source, planned.snapshot.repo_id
    publishers = source.publishers
    if source.offline:
        return
    trust = ask_trust(repo_id, publishers, policy)
    if admission(repo_id, trust, publishers, policy, planned.snapshot) is not Admission.GRANTED:
        raise unverified(repo_id, publishers)


def _check_unsigned(planned: Planned, signing: Policy | None) -> None:
    """Raise if the repository must be signed: a signature covers a build, not the scripts beside it."""
    if planned.signed and signing is not None:
        repo_id = planned.snapshot.repo_id
        raise UntrustedSignature(
            f"{repo_id} must be signed, as {signing.where} says, and no signature covers its benchmarks, so "
            "they are not run. Download and review them, then run them from a folder: kernels benchmark ./folder"
        )


def _torch_device(planned: Planned, device: int | str | None) -> str:
    """Torch's name, with an index only if one was given."""
    kind = backends.get(planned.backend).device_type
    if isinstance(device, str):
        _, _, device = device.partition(":")
    return kind if device in (None, "") else f"{kind}:{device}"


def _scripts(planned: Planned) -> list[RepoFile]:
    snapshot = planned.snapshot
    files = [file for file in snapshot.files if file.path.startswith(f"{FOLDER}/") and not is_bytecode(file.path)]
    if not any(Path(file.path).match(f"{FOLDER}/{PATTERN}") for file in files):
        raise _no_benchmarks(str(planned.found.requirement), [file.path.removeprefix(f"{FOLDER}/") for file in files])
    size = sum(file.size for file in files)
    if len(files) > MAX_FILES or size > MAX_BYTES:
        raise InvalidRepository(
            f"{snapshot.repo_id} has {len(files)} files of {size} bytes in {FOLDER!r}; at most {MAX_FILES} files and "
            f"{MAX_BYTES} bytes are downloaded."
        )
    return files


def _no_benchmarks(kernel: str, there: list[str]) -> RequestError:
    found = f"the folder has {', '.join(there[:10])}" if there else "the folder is missing or empty"
    return RequestError(
        f"{kernel} has no benchmarks: no file matches {FOLDER}/{PATTERN}; {found}. A benchmark is a subclass of "
        "kernels.benchmark.Benchmark in such a file."
    )
