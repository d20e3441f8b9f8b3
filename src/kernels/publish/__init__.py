"""From a folder of builds to a published kernel: `upload_kernel` reads as the steps in a row.

Needs nothing beyond this package; the folder's code is never imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from kernels.errors import InvalidVariant, RequestError
from kernels.publish.builds import BENCHMARK_FILES, BENCHMARKS, Build, Builds, read_builds
from kernels.publish.card import CARD_FILE, kernel_card
from kernels.publish.hub import Changes, Hub, Remote, open_hub, same_file
from kernels.release import BUILD_FOLDER
from kernels.requirement import check_repo_id, check_revision, is_commit
from kernels.variant import parse_variant

__all__ = ["Build", "Builds", "Upload", "kernel_card", "read_builds", "upload_kernel"]

_VERSION_BRANCH = re.compile(r"v([0-9]+)")


@dataclass(frozen=True)
class Upload:
    """What an upload did.

    Attributes:
        repo_id: The repository.
        branch: Its branch.
        commit: The commit that holds the builds: a new one, or the one that held them already.
        variants: The builds that were uploaded.
        sent: Paths of the files that are new or have changed.
        deleted: Paths that went; a folder's ends in `/`.
        pull_request: URL of the pull request, if one was opened.
    """

    repo_id: str
    branch: str
    commit: str
    variants: tuple[str, ...]
    sent: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    pull_request: str | None = None

    @property
    def changed(self) -> bool:
        """Whether a commit was made; False when the Hub had everything already."""
        return bool(self.sent or self.deleted)


def upload_kernel(
    folder: os.PathLike[str] | str,
    repo_id: str | None = None,
    *,
    branch: str | None = None,
    private: bool = False,
    create_pr: bool = False,
    keep_variants: bool = False,
    hub: str | None = None,
    token: str | None = None,
    report: Callable[[str], None] | None = None,
) -> Upload:
    """Publish a folder's builds on a Hub, in one commit.

    Everything is checked before anything is sent. Builds that the branch has and the folder has not are removed. A
    repository or branch that does not exist is created, and has none of the builds until the commit. An upload that
    was interrupted is run again.

    Args:
        folder: The folder that holds `build/<variant>`.
        repo_id: The repository, `org/name`. Default: `general.hub.repo-id` of the `build.toml` in the folder.
        branch: The branch. Default: `general.hub.branch` of that `build.toml`, else `v<version>` of the builds.
        private: Whether a repository that is created is private.
        create_pr: Open a pull request against the branch instead of changing it.
        keep_variants: Keep the branch's other builds, such as those made on another machine.
        hub: The Hub's URL. Default: `KERNELS_HUB`, else `HF_ENDPOINT`.
        token: The token. Default: `KERNELS_HUB_TOKEN` for `KERNELS_HUB`, huggingface_hub's own for its own Hub.
        report: Called with a line for each step.

    Returns:
        What was done.

    Raises:
        RequestError: A wrong folder, name or branch; no token, or one that the Hub refuses; someone else's change.
        InvalidVariant, InvalidMetadata, InvalidRepository, DigestMismatch: A build that must not be published.
        HubUnavailable: The Hub did not answer, or the connection broke.
        RepositoryNotFound, RevisionNotFound: What a pull request is for does not exist.
    """
    say = report or (lambda line: None)
    builds = read_builds(folder)
    repo_id, branch = _place(builds, repo_id, branch)
    target = open_hub(hub, token)
    say(f"{repo_id}, branch {branch}, at {target.url}: {_count(len(builds.builds), 'build')}")
    head = _head(target, repo_id, branch, private=private, create_pr=create_pr)
    remote = target.remote(repo_id, branch, head)
    changes = _changes(builds, remote, repo_id, branch, keep_variants=keep_variants)
    variants = tuple(builds.builds)
    if not changes.files and not changes.deleted:
        return Upload(repo_id, branch, head, variants)
    say(f"Sending {_count(len(changes.files), 'file')}, deleting {_count(len(changes.deleted), 'path')}")
    for path in changes.deleted:
        say(f"  deleted: {path}")
    message = f"Builds of {builds.metadata.name}: {', '.join(variants)}"
    commit, pull_request = target.commit(
        repo_id, branch, changes, message=message[:200], parent=head, create_pr=create_pr
    )
    return Upload(repo_id, branch, commit, variants, tuple(changes.files), tuple(changes.deleted), pull_request)


def _place(builds: Builds, repo_id: str | None, branch: str | None) -> tuple[str, str]:
    """The repository and the branch, from the arguments, `build.toml` and the builds."""
    if (repo_id is None or branch is None) and (builds.folder / "build.toml").is_file():
        from kernels.build import read_source

        source = read_source(builds.folder)
        repo_id = source.repo_id if repo_id is None else repo_id
        branch = source.branch if branch is None else branch
    if repo_id is None:
        raise RequestError(
            f"`repo_id` is missing, and no build.toml in {builds.folder} says it: give --repo-id org/name, or write "
            '`repo-id = "org/name"` in its section [general.hub].'
        )
    check_repo_id(repo_id)
    version = builds.metadata.version
    if branch is None and version is None:
        raise RequestError("`branch` is missing, and the builds have no version: give a branch, such as v1.")
    branch = f"v{version}" if branch is None else check_revision(branch)
    if is_commit(branch) or "/" in branch:
        raise RequestError(f"`branch` is {branch!r}; allowed is a branch's name, without slashes, and no commit.")
    match = _VERSION_BRANCH.fullmatch(branch)
    if match is not None and match[1] != str(version):
        raise RequestError(f"`branch` is {branch!r}, but the builds are of version {version}: allowed is v{version}.")
    return repo_id, branch


def _head(hub: Hub, repo_id: str, branch: str, *, private: bool, create_pr: bool) -> str:
    """The commit at the head of the branch, which is made where there is none."""
    branches = hub.branches(repo_id)
    if create_pr and branch not in (branches or {}):
        missing = f"no branch {branch!r}" if branches is not None else "no such repository"
        raise RequestError(
            f"There is {missing} at {hub.url} for {repo_id}: a pull request needs what it is for. Publish without one "
            "first, or ask the repository's owner for the branch."
        )
    if branches is None:
        hub.create_repository(repo_id, private=private)
    elif private and not hub.private(repo_id):
        raise RequestError(
            f"`private` is True, but {repo_id} exists at {hub.url} and is public: make it private there first."
        )
    if branch not in (branches or {}):
        hub.create_branch(repo_id, branch)
        branches = hub.branches(repo_id)
    head = (branches or {}).get(branch)
    if head is None:
        raise RequestError(f"{hub.url} does not show the branch {branch!r} of {repo_id} that was just created.")
    return head


def _changes(builds: Builds, remote: Remote, repo_id: str, branch: str, *, keep_variants: bool) -> Changes:
    """What must change for the branch to hold the builds."""
    there = {path.split("/")[1] for path in remote.files if path.startswith(f"{BUILD_FOLDER}/") and path.count("/") > 1}
    others = sorted(there - builds.builds.keys())
    wanted: dict[str, bytes | Path] = dict(builds.files)
    listed = [*builds.builds, *(filter(_is_variant, others) if keep_variants else ())]
    readme = None if builds.readme is None else _page(builds.readme)
    wanted[CARD_FILE] = kernel_card(repo_id, branch, builds.metadata, listed, readme).encode()
    replaced = tuple(f"{BUILD_FOLDER}/{name}/" for name in builds.builds)
    ours = [path for path in sorted(remote.files) if path.startswith(replaced) or _is_benchmark(path)]
    gone = [path for path in ours if path not in wanted]
    folders = [] if keep_variants else [f"{BUILD_FOLDER}/{name}/" for name in others]
    return Changes(_changed(wanted, remote), [*folders, *gone])


def _page(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError:
        raise RequestError(f"{file} is the page that the Hub shows, and is not UTF-8; save it as such.") from None


def _changed(wanted: Mapping[str, bytes | Path], remote: Remote) -> dict[str, bytes | Path]:
    return {path: content for path, content in wanted.items() if not same_file(remote.files.get(path), content)}


def _is_benchmark(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder == BENCHMARKS and fnmatchcase(name, BENCHMARK_FILES)


def _is_variant(name: str) -> bool:
    try:
        parse_variant(name)
    except InvalidVariant:
        return False
    return True


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
