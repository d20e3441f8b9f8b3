"""A document of a mirror: an index in the bytes in which it was written, with the signatures of these bytes."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from kernels.models.mirror import MirrorIndex, MirrorSignature, RepositoryIndex
from kernels.models.mirror_checks import check_mirror_index, check_repository_index, invalid_document
from kernels.models.mirror_form import MAX_DOCUMENT_BYTES
from kernels.support.documents import TooComplex, check_json
from kernels.support.formatting import format_text, format_value
from kernels.support.record_file import decode_json

__all__ = ["MIRROR_FORMAT", "MirrorDocument"]

#: The version of the format. A reader refuses another one: it could not check what it does not know.
MIRROR_FORMAT = 1

_MAX_SIGNATURES = 16

_T = TypeVar("_T", bound=msgspec.Struct)


class MirrorDocument(msgspec.Struct, frozen=True):
    """A document of a mirror: its content as it was written, and the signatures of exactly these bytes.

    The file is `{"mirror-format":1,"content":<content>,"signatures":[…]}`.

    Attributes:
        content: The JSON of an index.
        signatures: Who vouches for it.
    """

    content: bytes
    signatures: tuple[MirrorSignature, ...] = ()

    @classmethod
    def of(cls, index: RepositoryIndex | MirrorIndex) -> MirrorDocument:
        """The document of an index, without a signature. The same index always gives the same bytes."""
        return cls(msgspec.json.encode(index, order="sorted"))

    def to_bytes(self) -> bytes:
        """The file's content."""
        signatures = msgspec.json.encode(self.signatures)
        return b'{"mirror-format":%d,"content":%s,"signatures":%s}\n' % (MIRROR_FORMAT, self.content, signatures)

    @classmethod
    def parse(cls, data: bytes, where: str) -> MirrorDocument:
        """The document in a file.

        Args:
            data: The file's content.
            where: The file as messages call it: its URL, without a secret.

        Raises:
            InvalidRepository: It is not a mirror's document, or of another format.
        """
        if len(data) > MAX_DOCUMENT_BYTES:
            raise invalid_document(where, f"it has more than {MAX_DOCUMENT_BYTES} bytes")
        found = _decode(data, _Envelope, where)
        if found.mirror_format != MIRROR_FORMAT:
            raise invalid_document(
                where, f"expected the format {MIRROR_FORMAT}, got {format_value(found.mirror_format)}; update kernels"
            )
        if len(found.signatures) > _MAX_SIGNATURES:
            raise invalid_document(where, f"it has more than {_MAX_SIGNATURES} signatures")
        return cls(bytes(found.content), tuple(found.signatures))

    def repository(self, repo_id: str, where: str, commit: str | None = None) -> RepositoryIndex:
        """The index of a repository, or of one commit of it, in this document, checked.

        Args:
            repo_id: The repository that was requested: an index of another one is refused.
            where: The file, for messages.
            commit: The commit whose document was requested; None for the index of the repository. Either is refused
                in place of the other: both may be signed.

        Raises:
            InvalidRepository: It is not a valid index of that repository, or that commit.
        """
        index = _decode(self.content, RepositoryIndex, where)
        check_repository_index(index, repo_id, commit, where)
        return index

    def mirror(self, where: str) -> MirrorIndex:
        """The mirror's index in this document, checked.

        Args:
            where: The file, for messages.

        Raises:
            InvalidRepository: It is not a valid index.
        """
        index = _decode(self.content, MirrorIndex, where)
        check_mirror_index(index, where)
        return index


class _Envelope(msgspec.Struct, frozen=True, rename="kebab"):
    mirror_format: int
    content: msgspec.Raw
    signatures: list[MirrorSignature]


def _decode(data: bytes | msgspec.Raw, form: type[_T], where: str) -> _T:
    try:
        check_json(bytes(data))
        return decode_json(data, form)
    except (msgspec.DecodeError, UnicodeDecodeError, TooComplex) as error:
        raise invalid_document(where, format_text(error)) from None
