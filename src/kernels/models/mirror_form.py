"""How a document of a mirror begins, and how large one may be: what a reader of a Hub's answers needs to know."""

from __future__ import annotations

__all__ = ["MAX_DOCUMENT_BYTES", "REPAIR_ADVICE", "is_mirror_document"]

#: The most bytes of a document: an index of 60 signed builds has less than one megabyte.
MAX_DOCUMENT_BYTES = 24 * 1024 * 1024

#: Ends messages about files that are not as a mirror's index lists them.
REPAIR_ADVICE = "`kernels mirror MIRROR --verify` finds damaged files, `--repair` replaces archives"


def is_mirror_document(data: bytes) -> bool:
    """Whether an answer to a Hub's request comes from a mirror.

    Example:
        >>> is_mirror_document(b'{"branches":[],"tags":[]}')
        False
    """
    return data.lstrip()[:40].startswith(b'{"mirror-format":')
