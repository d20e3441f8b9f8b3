"""Files of a release into the cache, side by side.

Small files are asked for directly: their size and hash are in the listing, so nothing needs to be asked about them
first. Large ones and those kept in Xet go through huggingface_hub, which splits and deduplicates them, and goes on
after a broken connection. What a process that was killed left of one is gone on with here: huggingface_hub's newer
releases give each process a file of its own.
"""

from __future__ import annotations

import inspect
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kernels import settings
from kernels.errors import HubUnavailable
from kernels.records import cannot_write
from kernels.side_by_side import pause, side_by_side
from kernels.sources.http import NOT_NOW, HubClient, HubMoved, HubRefused, Patience, connection_errors
from kernels.sources.progress import silent_bar, watcher
from kernels.work_lock import without_flock

if TYPE_CHECKING:
    from kernels.release import Release, RepoFile
    from kernels.store import RepoStore

__all__ = ["download", "resolve_path"]

#: Up to this size a file is asked for directly: huggingface_hub itself counts larger ones as large (10 MB).
DIRECT_BYTES = 10_000_000

#: Requests under way at once; huggingface_hub's own snapshot download uses 8, and these are smaller.
WORKERS = 16

#: Tries for a large file.
LARGE_TRIES = 4


def download(client: HubClient, store: RepoStore, release: Release, files: list[RepoFile]) -> None:
    """Bring files of a release into its snapshot, each checked against its listed size and hash.

    Raises:
        HubUnavailable: A file could not be had, or was wrong each time it was sent.
        StoreError: The cache cannot be written.
    """
    if not files:
        return
    bar = _progress(release, len(files))
    try:
        side_by_side(
            lambda file: _one(client, store, release, file),
            files,
            at_once=WORKERS,
            name="download",
            done=lambda: bar.update(1),
        )
    finally:
        bar.close()


def resolve_path(release: Release, file: RepoFile) -> str:
    """The path on a Hub under which a file of a release can be had."""
    prefix = "" if release.repo_type == "model" else f"/{release.repo_type}s"
    return f"{prefix}/{release.repo_id}/resolve/{release.commit}/{quote(file.path)}"


def _one(client: HubClient, store: RepoStore, release: Release, file: RepoFile) -> None:
    if file.xet or file.size > DIRECT_BYTES:
        if not _go_on(client, store, release, file):
            _through_huggingface_hub(client, store, release, file)
        return
    try:
        content = client.content(resolve_path(release, file), file, Patience())
    except (HubRefused, HubMoved) as error:
        raise HubUnavailable(f"{release.repo_id}: {file.path} is listed but cannot be had: {error}") from error
    store.place(release.commit, file, content)
    _tell(1, file.size)


def _go_on(client: HubClient, store: RepoStore, release: Release, file: RepoFile) -> bool:
    """Fetch the rest of a file of which a killed process left a part; False where that is not possible."""
    begun = None if file.xet else store.begun(file)
    if begun is None:
        return False
    # A copy: its writer may live where a file system's locks do not hold, and a part of what it writes is one as well.
    own = begun.with_name(f"{file.blob}.{secrets.token_hex(4)}.incomplete")
    try:
        shutil.copyfile(begun, own)
        with own.open("r+b") as into:
            client.rest(resolve_path(release, file), file, into, Patience())
        whole = store.take(release.commit, file, own)
    except (HubRefused, HubMoved, HubUnavailable, OSError):
        return False  # huggingface_hub begins anew, and says what is wrong
    finally:
        with suppress(OSError):
            own.unlink()
    if whole:
        _tell(1, file.size)
    return whole


def _through_huggingface_hub(client: HubClient, store: RepoStore, release: Release, file: RepoFile) -> None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    from kernels import __version__

    bar: dict[str, Any] = {}
    if watcher() is not None and "tqdm_class" in inspect.signature(hf_hub_download).parameters:
        bar["tqdm_class"] = silent_bar(lambda size: _tell(0, size))

    def bring(cache: Path) -> Path:
        return Path(
            hf_hub_download(
                release.repo_id,
                file.path,
                repo_type=release.repo_type,
                revision=release.commit,
                cache_dir=cache,
                endpoint=client.endpoint,
                token=client.token,
                library_name="kernels",
                library_version=__version__,
                **bar,
            )
        )

    problem = ""
    for attempt in range(LARGE_TRIES):
        if attempt:
            pause(Patience().wait * 2**attempt)
        try:
            _where_there_are_locks(store, release, file, bring)
        except (HfHubHTTPError, EntryNotFoundError) as error:
            status = _status(error)
            if status not in NOT_NOW:
                raise HubUnavailable(f"{release.repo_id}: {file.path} is listed but cannot be had: {error}") from error
            problem = f"{client.endpoint} answered {status}"
            continue
        except tuple(kind for kind in connection_errors() if kind is not OSError) as error:
            problem = f"{type(error).__name__}: {error}"
            continue
        except FileNotFoundError as error:
            # Where there are neither links nor locks, another process has moved the same file into its place.
            problem = f"{type(error).__name__}: {error}"
            continue
        except OSError as error:
            raise cannot_write(error, store.snapshot(release.commit) / file.path) from error
        if not store.altered(release.commit, [file]):
            _tell(1, 0 if bar else file.size)
            return
        store.discard(release.commit, file)
        problem = f"it is not the file that {client.endpoint} lists"
    raise HubUnavailable(f"{release.repo_id}: {file.path} could not be had in {LARGE_TRIES} tries; {problem}")


def _status(error: BaseException | None) -> int | None:
    """What a Hub answered to huggingface_hub, which may say only that it found nothing in the cache instead."""
    while error is not None:
        response = getattr(error, "response", None)
        if response is not None:
            return int(response.status_code)
        error = error.__cause__
    return None


def _where_there_are_locks(store: RepoStore, release: Release, file: RepoFile, bring: Callable[[Path], Path]) -> None:
    try:
        bring(store.cache)
    except OSError as error:
        if not without_flock(error):
            raise
        # huggingface_hub takes locks of its own, and gives up where a file system has none.
        with TemporaryDirectory(prefix="kernels-") as aside:
            store.bring(release.commit, file, bring(Path(aside)))


def _tell(files: int, size: int) -> None:
    arrived = watcher()
    if arrived is not None:
        arrived(files, size)


def _progress(release: Release, total: int) -> Any:
    from huggingface_hub import utils

    bar: Any = utils.tqdm
    # `disable=None` shows nothing where standard error is not a terminal.
    hidden = True if watcher() is not None else settings.progress_disabled() or None
    return bar(total=total, desc=f"Fetching {release.repo_id}", unit="file", disable=hidden)
