"""What is checked of a mirror's document before it is used: each name, number, time, path, hash and text in it.

It comes from a place that others may write. A writer checks the same: no reader would accept what does not pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kernels.errors import InvalidRepository, KernelsError
from kernels.models.mirror import (
    MirrorBuild,
    MirrorCommit,
    MirrorFile,
    MirrorIndex,
    RepositoryIndex,
    archive_path,
    parse_time,
)
from kernels.models.requirement import check_repo_id, check_revision, check_version, is_commit
from kernels.models.snapshot import (
    BUILD_FOLDER,
    BUNDLE_FILE,
    MAX_FILE_BYTES,
    MAX_FILES,
    METADATA_FILE,
    RepoFile,
    Snapshot,
    check_path,
)
from kernels.support.formatting import as_clause, format_text, format_value

__all__ = ["check_mirror_index", "check_repository_index", "invalid_document"]

_SHA256 = r"[0-9a-f]{64}"
_CONTENT = r"sha256-[0-9a-f]{64}"
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"

#: The largest number of an index: every reader of JSON reads it exactly (RFC 8259, section 6).
_MAX_NUMBER = 2**53 - 1


def check_repository_index(index: RepositoryIndex, repo_id: str, commit: str | None, where: str) -> None:
    """Check the index of a repository, or of one commit of it.

    Args:
        index: The index.
        repo_id: The repository that was requested: an index of another one is refused.
        commit: The commit whose document was requested; None for the index of the repository. Either is refused in
            place of the other: both may be signed.
        where: The file, for messages.

    Raises:
        InvalidRepository: It is not a valid index of that repository, or that commit.
    """
    _check_repository(index, repo_id, where)
    _check_subject(index, commit, where)


def check_mirror_index(index: MirrorIndex, where: str) -> None:
    """Check the index of a mirror.

    Args:
        index: The index.
        where: The file, for messages.

    Raises:
        InvalidRepository: It is not valid.
    """
    _check_times(where, [index.time, *(each.time for each in index.repositories.values())])
    _check_numbers(where, [index.number, *(each.number for each in index.repositories.values())])
    known: dict[str, str] = {}
    try:
        for repo_id, repository in index.repositories.items():
            check_repo_id(repo_id)
            for version in repository.versions:
                check_version(version)
    except KernelsError as error:
        raise invalid_document(where, format_text(error)) from None
    for repo_id in index.repositories:
        # A Hub ignores case, and some file systems cannot hold both.
        other = known.setdefault(repo_id.lower(), repo_id)
        if other != repo_id:
            raise invalid_document(where, f"it lists {repo_id} and {other}, which differ only in case")


def _check_repository(index: RepositoryIndex, repo_id: str, where: str) -> None:
    if index.repo_id.lower() != repo_id.lower():
        raise invalid_document(where, f"it is the index of {format_value(index.repo_id)}, not of {repo_id}")
    try:
        check_repo_id(index.repo_id)
        for name in (*index.branches, *index.tags):
            check_revision(name)
        if index.moved_to is not None:
            check_repo_id(index.moved_to)
    except KernelsError as error:
        raise invalid_document(where, format_text(error)) from None
    for commit in (*index.branches.values(), *index.tags.values(), *index.commits, *index.older):
        if not is_commit(commit):
            raise invalid_document(where, f"{format_value(commit)} is not a commit")
    for name, commit in {**index.tags, **index.branches}.items():
        if commit not in index.commits:
            raise invalid_document(where, f"{format_value(name)} is at commit {commit}, which it does not list")
    _check_numbers(where, [index.number])
    _check_times(where, [index.time, index.origin.time, *(entry.taken for entry in index.commits.values())])
    for content, build in index.builds.items():
        _check_build(where, content, build)
    for commit, entry in index.commits.items():
        _check_commit(index, commit, entry, where)
    _check_paths(index, where)


def _check_commit(index: RepositoryIndex, commit: str, entry: MirrorCommit, where: str) -> None:
    for variant, content in entry.variants.items():
        if content not in index.builds:
            raise invalid_document(where, f"commit {commit} lists the build {format_value(variant)} without its files")
        if "/" in variant:
            raise invalid_document(where, f"{format_value(variant)} is not the name of a build")
    for file in entry.files:
        if file.path.partition("/")[0] == BUILD_FOLDER:
            raise invalid_document(where, f"commit {commit} lists {format_value(file.path)} outside its builds")
    _check_files(where, entry.files, entry.texts)
    if sum(len(index.builds[content].files) for content in entry.variants.values()) > MAX_FILES:
        raise invalid_document(where, f"commit {commit} has more than {MAX_FILES} files")


def _check_paths(index: RepositoryIndex, where: str) -> None:
    """Raise for a path that could leave its folder, in the snapshot of any commit.

    Each build is examined once, under the longest of its names: thousands of commits may name a build of thousands of
    files.
    """
    names: dict[str, str] = {}
    try:
        for commit, entry in index.commits.items():
            for variant, content in entry.variants.items():
                check_path(index.repo_id, RepoFile(f"{BUILD_FOLDER}/{variant}", 0, ""))
                names[content] = max(variant, names.get(content, ""), key=lambda name: len(name.encode()))
            Snapshot(index.repo_id, commit, tuple(file.listed() for file in entry.files))
        for content, build in index.builds.items():
            folder = f"{BUILD_FOLDER}/{names[content]}/" if content in names else ""
            Snapshot(index.repo_id, "", tuple(file.listed(folder) for file in build.files))
    except InvalidRepository as error:
        raise invalid_document(where, as_clause(format_text(error)).removesuffix(". Nothing was downloaded")) from None


def _check_subject(index: RepositoryIndex, commit: str | None, where: str) -> None:
    if index.commit != commit:
        found = "of the repository" if index.commit is None else f"of commit {format_value(index.commit)}"
        expected = "of the repository" if commit is None else f"of commit {commit}"
        raise invalid_document(where, f"it is the document {found}, not {expected}")
    if commit is not None and (list(index.commits) != [commit] or index.branches or index.tags or index.older):
        raise invalid_document(where, f"the document of commit {commit} has more than that commit, or not even that")


def _check_build(where: str, content: str, build: MirrorBuild) -> None:
    if re.fullmatch(_CONTENT, content) is None:
        raise invalid_document(where, f"{format_value(content)} is not the hash of a build")
    archive = build.archive
    if re.fullmatch(_SHA256, archive.sha256) is None or archive.name != archive_path(archive.sha256):
        raise invalid_document(where, f"{format_value(archive.name)} is not the name of an archive")
    if not 0 < archive.size <= MAX_FILE_BYTES:
        raise invalid_document(where, f"{format_value(archive.size)} is not the size of an archive")
    paths = [file.path for file in build.files]
    if paths != sorted(paths):
        raise invalid_document(where, "the files of a build are not sorted")
    texts = {METADATA_FILE: build.metadata, BUNDLE_FILE: build.signature}
    _check_files(where, build.files, {name: text for name, text in texts.items() if text is not None})


def _check_files(where: str, files: Sequence[MirrorFile], texts: Mapping[str, str]) -> None:
    """Raise for a file without a hash, and for a text that is not that of a file."""
    for file in files:
        if not file.listed().blob:  # its content could not be checked
            raise invalid_document(where, f"it lists {format_value(file.path)} without a hash")
        if file.path in texts and not file.listed().describes(texts[file.path].encode()):
            raise invalid_document(where, f"its text of {format_value(file.path)} is not the file that it lists")
    for path in texts.keys() - {file.path for file in files}:
        raise invalid_document(where, f"it has a text of {format_value(path)}, which is not a file that it lists")


def _check_numbers(where: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        if not 0 < number <= _MAX_NUMBER:
            raise invalid_document(where, f"{format_value(number)} is not the number of an index")


def _check_times(where: str, times: Sequence[str]) -> None:
    for time in times:
        if re.fullmatch(_TIME, time) is None:
            raise invalid_document(where, f"{format_value(time)} is not a time")
        try:
            parse_time(time)
        except ValueError:
            raise invalid_document(where, f"{format_value(time)} is not a time") from None


def invalid_document(where: str, why: str) -> InvalidRepository:
    """The error about a document.

    Args:
        where: The file.
        why: What is wrong with it.
    """
    return InvalidRepository(f"{where} is not a valid document of a mirror: {as_clause(why)}. Nothing was downloaded.")
