"""Send a release's files to a Hub: each once, several at a time, again after a failure, and quick to interrupt.

Large files are sent before the commit that names them, which moves the branch once: readers see the old release or the
new one. A Hub keeps what was sent, so an upload that was broken off sends only the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from kernels.authoring.publish.hub_client import PublishClient
from kernels.authoring.publish.local_builds import LocalFile
from kernels.errors import HubUnavailable, RequestError
from kernels.sources.response import requested_wait
from kernels.support.formatting import format_names
from kernels.support.hashing import on_every_core
from kernels.support.tasks import pause, side_by_side

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd

__all__ = ["PAUSES", "send_files", "try_again", "wait_after"]

_T = TypeVar("_T")

#: Seconds before each further attempt, after those that huggingface_hub makes by itself within half a minute.
PAUSES = (5.0, 15.0, 45.0, 90.0)
#: The longest wait that a Hub may ask for, in seconds.
_LONGEST_PAUSE = 600.0

#: Files of this many bytes are sent one by one, each in a thread that Ctrl-C does not wait for, and so are binary ones,
#: which a Hub probably keeps apart from the commit too. Texts are asked about together, with fewer requests.
_LARGE = 5_000_000
_AT_ONCE = 4
#: With Xet, large files go in groups: it works in parallel itself, and sends parts that several files share once.
_XET_GROUP = 16

#: The steps in which progress is said, as a part of all bytes; nothing is said below the first size.
_STEP = 0.1
_SAID_FROM = 100_000_000


@dataclass
class _Progress:
    """How much was sent; said after each tenth."""

    say: Callable[[str], None]
    files: int
    size: int
    sent: int = 0
    sent_size: int = 0
    next: float = _STEP

    def __post_init__(self) -> None:
        self._lock = Lock()

    def add(self, operations: Sequence[CommitOperationAdd]) -> None:
        with self._lock:
            self.sent += len(operations)
            self.sent_size += sum(operation.upload_info.size for operation in operations)
            if self.size >= _SAID_FROM and self.sent_size >= self.next * self.size:
                self.next = self.sent_size / self.size + _STEP
                self.say(f"Sent {self}")

    def __str__(self) -> str:
        return f"{self.sent} of {self.files} files, {self.sent_size / 1e6:.0f} of {self.size / 1e6:.0f} MB"


def send_files(
    client: PublishClient,
    repo_id: str,
    branch: str,
    files: Mapping[str, bytes | LocalFile],
    *,
    create_pr: bool,
    say: Callable[[str], None],
) -> list[CommitOperationAdd]:
    """Send the files of a commit, within `client.writing`.

    Args:
        client: The Hub.
        repo_id: The repository.
        branch: The branch.
        files: The files by path in the repository. None is read into memory as a whole, if it is large.
        create_pr: Whether the commit will be a pull request.
        say: Called with a line for each tenth that was sent, and for each failure that is tried again.

    Returns:
        What the commit is made of.

    Raises:
        RequestError: The Hub refuses a file, or a file changed since it was hashed.
        HubUnavailable: The Hub did not answer, several times in a row.
        KeyboardInterrupt: After a line that says what was sent.
    """
    operations = on_every_core(lambda item: _operation(*item), list(files.items()), lambda item: _size(item[1]))
    progress = _Progress(say, len(operations), sum(operation.upload_info.size for operation in operations))

    def send(group: Sequence[CommitOperationAdd]) -> None:
        try_again(lambda: client.send(repo_id, branch, group, create_pr=create_pr), say)
        progress.add(group)

    large = [operation for operation in operations if _is_large(operation)]
    small = [operation for operation in operations if not _is_large(operation)]
    size, at_once = (_XET_GROUP, 1) if _uses_xet() else (1, _AT_ONCE)
    # Files with the same content are sent once: the Hub has it when the others are announced.
    first = {operation.upload_info.sha256: operation for operation in reversed(large)} if size == 1 else {}
    once = [operation for operation in large if first.get(operation.upload_info.sha256, operation) is operation]
    others = [operation for operation in large if first.get(operation.upload_info.sha256, operation) is not operation]
    groups = [small] * bool(small) + [once[start : start + size] for start in range(0, len(once), size)]
    try:
        side_by_side(send, groups, at_once=at_once, name="send")
        side_by_side(send, [others] * bool(others), at_once=1, name="send")
    except KeyboardInterrupt:
        say(f"Interrupted: sent {progress}. Nothing was published. Run the same command again to send the rest.")
        raise
    changed = [path for path, each in files.items() if isinstance(each, LocalFile) and each.changed]
    if changed:
        raise RequestError(
            f"Nothing was published: {format_names(changed, limit=3)} changed while the files were sent. Run this "
            "again when the build is finished."
        )
    return operations


def try_again(work: Callable[[], _T], say: Callable[[str], None]) -> _T:
    """Call a function again, after a pause, while the Hub does not answer.

    Raises:
        HubUnavailable: Also the last attempt failed.
    """
    for seconds in PAUSES:
        try:
            return work()
        except HubUnavailable as error:
            wait_after(error, seconds, say)
    return work()


def wait_after(error: BaseException, seconds: float, say: Callable[[str], None]) -> None:
    """Wait before another attempt: some seconds, or as long as the Hub asked in the answer behind an error."""
    wait = min(max(seconds, _asked_wait(error)), _LONGEST_PAUSE)
    say(f"{str(error).partition('. ')[0]}; trying again in {wait:.0f} s")
    pause(wait)


def _operation(path: str, content: bytes | LocalFile) -> CommitOperationAdd:
    from huggingface_hub import CommitOperationAdd

    operation = CommitOperationAdd(path, content if isinstance(content, bytes) else content.path)
    # Version 1 hashes at once; version 2 when it needs the hash, which is known here.
    if isinstance(content, LocalFile) and not getattr(operation.upload_info, "is_hashed", True):
        operation.upload_info.sha256 = bytes.fromhex(content.sha256)
    return operation


def _size(content: bytes | LocalFile) -> int:
    return len(content) if isinstance(content, bytes) else content.size


def _is_large(operation: CommitOperationAdd) -> bool:
    return operation.upload_info.size >= _LARGE or b"\0" in operation.upload_info.sample


def _uses_xet() -> bool:
    from huggingface_hub import constants

    # `PublishClient.writing` turns it off for a Hub without it.
    return not constants.HF_HUB_DISABLE_XET and find_spec("hf_xet") is not None


def _asked_wait(error: BaseException) -> float:
    """Seconds that the Hub asked to wait, in the answer that an error was raised for."""
    cause: BaseException | None = error
    while cause is not None:
        headers = getattr(getattr(cause, "response", None), "headers", None)
        if headers is not None:
            return requested_wait(headers) or 0.0
        cause = cause.__cause__
    return 0.0
