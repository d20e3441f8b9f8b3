"""A document of a mirror: an index in the bytes in which it was written, with the signatures of these bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeVar

import msgspec

from kernels.errors import InvalidRepository
from kernels.models.mirror import (
    MirrorBuild,
    MirrorCommit,
    MirrorFile,
    MirrorIndex,
    MirrorSignature,
    RepositoryIndex,
    archive_path,
    format_time,
    parse_time,
)
from kernels.models.mirror_form import MAX_DOCUMENT_BYTES
from kernels.models.requirement import check_repo_id, check_revision
from kernels.models.snapshot import (
    BUILD_FOLDER,
    BUNDLE_FILE,
    MAX_FILES,
    METADATA_FILE,
    RepoFile,
    Snapshot,
    check_path,
)
from kernels.support.formatting import as_clause, format_text, format_value
from kernels.support.record_file import decode_json

__all__ = ["MIRROR_FORMAT", "MirrorDocument"]

#: The version of the format. A reader refuses another one: it could not check what it does not know.
MIRROR_FORMAT = 1

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
            raise _invalid(where, f"it has more than {MAX_DOCUMENT_BYTES} bytes")
        found = _decode(data, _Envelope, where)
        if found.mirror_format != MIRROR_FORMAT:
            expected = f"expected the format {MIRROR_FORMAT}, got {format_value(found.mirror_format)}; update kernels"
            raise _invalid(where, expected)
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
        try:
            _check_repository(index, repo_id)
            _check_subject(index, commit)
        except (ValueError, InvalidRepository) as error:
            raise _invalid(where, str(error)) from None
        return index

    def mirror(self, where: str) -> MirrorIndex:
        """The mirror's index in this document, checked.

        Args:
            where: The file, for messages.

        Raises:
            InvalidRepository: It is not a valid index.
        """
        index = _decode(self.content, MirrorIndex, where)
        try:
            _check_mirror(index)
        except ValueError as error:
            raise _invalid(where, str(error)) from None
        return index


class _Envelope(msgspec.Struct, frozen=True, rename="kebab"):
    mirror_format: int
    content: msgspec.Raw
    signatures: Annotated[list[MirrorSignature], msgspec.Meta(max_length=16)]


def _decode(data: bytes | msgspec.Raw, form: type[_T], where: str) -> _T:
    try:
        return decode_json(data, form)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid(where, str(error)) from None


def _invalid(where: str, why: str) -> InvalidRepository:
    why = as_clause(format_text(why))
    return InvalidRepository(f"{where} is not a valid document of a mirror: {why}. Nothing was downloaded.")


# What types cannot say. A document comes from a place that others may write. A writer checks the same: no reader would
# accept what does not pass. The message of each `ValueError` is a clause.


def _check_mirror(index: MirrorIndex) -> None:
    _check_times([index.time, *(each.time for each in index.repositories.values())])
    known: dict[str, str] = {}
    for repo_id in index.repositories:
        # A Hub ignores case, and some file systems cannot hold both.
        other = known.setdefault(check_repo_id(repo_id).lower(), repo_id)
        if other != repo_id:
            raise ValueError(f"it lists {repo_id} and {other}, which differ only in case")


def _check_repository(index: RepositoryIndex, repo_id: str) -> None:
    if index.repo_id.lower() != repo_id.lower():
        raise ValueError(f"it is the index of {format_value(index.repo_id)}, not of {repo_id}")
    check_repo_id(index.repo_id)
    if index.moved_to is not None:
        check_repo_id(index.moved_to)
    for name, commit in [*index.tags.items(), *index.branches.items()]:
        check_revision(name)
        if commit not in index.commits:
            raise ValueError(f"{format_value(name)} is at commit {commit}, which it does not list")
    _check_times([index.time, index.origin.time, *(entry.taken for entry in index.commits.values())])
    for build in index.builds.values():
        _check_build(build)
    for commit, entry in index.commits.items():
        _check_commit(index, commit, entry)
    _check_paths(index)


def _check_subject(index: RepositoryIndex, commit: str | None) -> None:
    if index.commit != commit:
        found = "of the repository" if index.commit is None else f"of commit {index.commit}"
        expected = "of the repository" if commit is None else f"of commit {commit}"
        raise ValueError(f"it is the document {found}, not {expected}")
    if commit is not None and (list(index.commits) != [commit] or index.branches or index.tags or index.older):
        raise ValueError(f"the document of commit {commit} has more than that commit, or not even that")


def _check_build(build: MirrorBuild) -> None:
    if build.archive.name != archive_path(build.archive.sha256):
        raise ValueError(f"{format_value(build.archive.name)} is not the name of an archive")
    paths = [file.path for file in build.files]
    if paths != sorted(paths):
        raise ValueError("the files of a build are not sorted")
    texts = {METADATA_FILE: build.metadata, BUNDLE_FILE: build.signature}
    _check_files(build.files, {name: text for name, text in texts.items() if text is not None})


def _check_commit(index: RepositoryIndex, commit: str, entry: MirrorCommit) -> None:
    for variant, content in entry.variants.items():
        if content not in index.builds:
            raise ValueError(f"commit {commit} lists the build {format_value(variant)} without its files")
        if "/" in variant:
            raise ValueError(f"{format_value(variant)} is not the name of a build")
    for file in entry.files:
        if file.path.partition("/")[0] == BUILD_FOLDER:
            raise ValueError(f"commit {commit} lists {format_value(file.path)} outside its builds")
    _check_files(entry.files, entry.texts)
    if sum(len(index.builds[content].files) for content in entry.variants.values()) > MAX_FILES:
        raise ValueError(f"commit {commit} has more than {MAX_FILES} files")


def _check_files(files: Sequence[MirrorFile], texts: Mapping[str, str]) -> None:
    """Raise for a file without a hash, and for a text that is not that of a file."""
    for file in files:
        if not file.listed().blob:  # its content could not be checked
            raise ValueError(f"it lists {format_value(file.path)} without a hash")
        if file.path in texts and not file.listed().describes(texts[file.path].encode()):
            raise ValueError(f"its text of {format_value(file.path)} is not the file that it lists")
    for path in texts.keys() - {file.path for file in files}:
        raise ValueError(f"it has a text of {format_value(path)}, which is not a file that it lists")


def _check_paths(index: RepositoryIndex) -> None:
    """Raise for a path that could leave its folder, in the snapshot of any commit.

    Each build is examined once, under the longest of its names: thousands of commits may name a build of thousands of
    files.
    """
    names: dict[str, str] = {}
    for commit, entry in index.commits.items():
        for variant, content in entry.variants.items():
            check_path(index.repo_id, RepoFile(f"{BUILD_FOLDER}/{variant}", 0, ""))
            names[content] = max(variant, names.get(content, ""), key=lambda name: len(name.encode()))
        Snapshot(index.repo_id, commit, tuple(file.listed() for file in entry.files))
    for content, build in index.builds.items():
        folder = f"{BUILD_FOLDER}/{names[content]}/" if content in names else ""
        Snapshot(index.repo_id, "", tuple(file.listed(folder) for file in build.files))


def _check_times(times: Sequence[str]) -> None:
    for time in times:
        try:
            valid = format_time(parse_time(time)) == time
        except ValueError:
            valid = False
        if not valid:
            raise ValueError(f"{format_value(time)} is not a time")
