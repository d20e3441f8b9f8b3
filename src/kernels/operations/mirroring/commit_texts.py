"""The texts of a commit beside its builds: its card, the images that the card shows, and where it redirects to."""

from __future__ import annotations

from kernels.catalog.card import MAX_IMAGE_BYTES, MAX_IMAGES_BYTES, named_images
from kernels.models.mirror import MirrorFile
from kernels.models.snapshot import STATUS_FILE, Snapshot
from kernels.sources.base import Source

__all__ = ["commit_texts"]

#: The largest text that is taken of a repository: its card, or its redirect.
_MAX_TEXT_BYTES = 256 * 1024

#: All texts of one commit, which every reader of the repository reads.
_MAX_TEXTS_BYTES = 384 * 1024

_CARD = "README.md"


def commit_texts(source: Source, snapshot: Snapshot) -> tuple[tuple[MirrorFile, ...], dict[str, str]]:
    """The files outside `build/` that a mirror takes of a commit, and the text of each.

    Args:
        source: Where the commit comes from.
        snapshot: The commit.

    Raises:
        KernelsError: A file cannot be read.
    """
    files: list[MirrorFile] = []
    texts: dict[str, str] = {}
    wished = [_CARD, STATUS_FILE]
    for path in wished:
        file = snapshot.file(path)
        taken = sum(each.size for each in files if each.path.endswith(".svg"))
        limit = min(MAX_IMAGE_BYTES, MAX_IMAGES_BYTES - taken) if path.endswith(".svg") else _MAX_TEXT_BYTES
        if file is None or not file.blob or file.size > limit:
            continue
        if sum(each.size for each in files) + file.size > _MAX_TEXTS_BYTES:
            continue
        try:
            texts[path] = source.read(snapshot, file, _MAX_TEXT_BYTES).decode()
        except UnicodeDecodeError:
            continue
        files.append(MirrorFile(path, file.size, file.oid, file.sha256))
        if path == _CARD:
            wished += named_images(texts[path])
    return tuple(files), texts
