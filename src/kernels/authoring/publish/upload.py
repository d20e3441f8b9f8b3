"""From a folder of builds to a published kernel: `upload_kernel` reads as the steps in a row.

Needs nothing beyond this package; the folder's code is never imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from kernels.authoring.compile import build_variants
from kernels.authoring.compile.workspace import Workspace, find_workspace, read_sources
from kernels.authoring.publish.build_checks import check_builds
from kernels.authoring.publish.hub_client import Changes, Hub, Remote, open_hub, same_file
from kernels.authoring.publish.local_builds import BENCHMARK_FILES, BENCHMARKS, Build, Builds, read_builds
from kernels.authoring.publish.model_card import CARD_FILE, kernel_card
from kernels.errors import BuildError, InvalidVariant, RequestError
from kernels.models.requirement import check_repo_id, check_revision, is_commit
from kernels.models.snapshot import BUILD_FOLDER
from kernels.resolver.variant import Variant, parse_variant
from kernels.support.files import read_bounded

__all__ = ["Build", "Builds", "Upload", "kernel_card", "read_builds", "upload_kernel"]

#: The largest page that is read.
_MAX_PAGE_BYTES = 4 * 1024 * 1024

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
    remove_variants: bool = False,
    build: bool = False,
    check: bool = True,
    hub: str | None = None,
    token: str | None = None,
    report: Callable[[str], None] | None = None,
) -> Upload:
    """Publish a folder's builds on a Hub, in one commit.

    Everything is checked before anything is sent, by reading alone. Builds that the branch has and the folder has not
    are removed where others for their backend take their place, or `build.toml` no longer lists it; those of a
    framework that no `build.toml` here has sources for, as compiled ones beside noarch ones, stay. A repository or
    branch that does not exist is created, and has none of the builds until the commit. An upload that was interrupted
    is run again.

    Args:
        folder: The folder that holds `build/<variant>`; of a kernel with several source folders, theirs or one of them.
        repo_id: The repository, `org/name`. Default: `general.hub.repo-id` of the `build.toml` in the folder.
        branch: The branch. Default: `general.hub.branch` of that `build.toml`, else `v<version>` of the builds.
        private: Whether a repository that is created is private.
        create_pr: Open a pull request against the branch instead of changing it.
        keep_variants: Keep the branch's other builds, such as those made on another machine.
        remove_variants: Remove them all, of whichever framework. By default the upload is refused where there is one
            for a backend that `build.toml` lists, and none for it in the folder.
        build: Build what can be built here first.
        check: Whether builds are refused that are not those of the sources, or that `kernels check --static` fails.
        hub: The Hub's URL. Default: `KERNELS_HUB`, else `HF_ENDPOINT`.
        token: The token. Default: `KERNELS_HUB_TOKEN` for `KERNELS_HUB`, huggingface_hub's own for its own Hub.
        report: Called with a line for each step.

    Returns:
        What was done.

    Raises:
        RequestError: A wrong folder, name or branch; builds that must be built again or cannot be used; no token, or
            one that the Hub refuses; someone else's change.
        InvalidVariant, InvalidMetadata, InvalidRepository, DigestMismatch: A build that must not be published.
        MissingPythonDependency: There are native files to check, and pyelftools is not installed.
        BuildError: Something could not be built.
        HubUnavailable: The Hub did not answer, or the connection broke.
        RepositoryNotFound, RevisionNotFound: What a pull request is for does not exist.
    """
    say = report or (lambda line: None)
    if keep_variants and remove_variants:
        raise RequestError("Either --keep-variants or --remove-variants can be given, not both.")
    project = find_workspace(folder)
    if build:
        _build(folder, project)
    builds = read_builds(folder) if project is None else read_builds(project.folder, project.folders)
    repo_id, branch = _place(builds, project, repo_id, branch)
    target = open_hub(hub, token)
    if check:
        check_builds(builds, project)
    for note in _notes(builds, project):
        say(note)
    say(f"{repo_id}, branch {branch}, at {target.url}: {_count(len(builds.builds), 'build')}")
    head = _head(target, repo_id, branch, private=private, create_pr=create_pr)
    remote = target.remote(repo_id, branch, head)
    others = _others(builds, remote)
    kept = others if keep_variants else []
    if not keep_variants and not remove_variants:
        kept = _elsewhere(others, project)
        if kept:
            say(f"Kept: {', '.join(kept)}, as no build.toml here makes such builds; --remove-variants removes them")
        _refuse_loss(others, builds, project, f"{repo_id}, branch {branch},")
    changes = _changes(builds, remote, repo_id, branch, kept=kept, others=others)
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


def _build(folder: os.PathLike[str] | str, project: Workspace | None) -> None:
    if project is None:
        read_sources(folder)  # which says why
        return
    failed = [each for each in build_variants(project.folder, project.folder) if each.state == "failed"]
    if failed:
        reasons = "\n".join(f"{each.variant or each.backend}: {each.reason}\n{each.detail}".rstrip() for each in failed)
        raise BuildError(f"Nothing was published. {reasons}")


def _notes(builds: Builds, project: Workspace | None) -> Iterator[str]:
    """What to know before builds are published that may be."""
    dirty = [name for name, build in builds.builds.items() if (made := build.metadata.provenance) and made.dirty]
    if dirty:
        yield (
            f"Note: {', '.join(dirty)}: built from sources with changes that are not committed, so that nobody "
            "can tell what is in it; commit them, and build again"
        )
    if project is not None:
        built = {build.metadata.backend.type for build in builds.builds.values()}
        lacking = [name for name in project.backends if name not in built]
        if lacking:
            yield f"Note: no build here for {', '.join(lacking)}, which build.toml lists"


def _place(builds: Builds, project: Workspace | None, repo_id: str | None, branch: str | None) -> tuple[str, str]:
    """The repository and the branch, from the arguments, `build.toml` and the builds."""
    if project is not None:
        repo_id = project.repo_id if repo_id is None else repo_id
        branch = project.branch if branch is None else branch
    if repo_id is None:
        raise RequestError(
            f"There is no repository to publish to, and no build.toml in {builds.folder} names one: give --repo-id "
            'org/name, or write `repo-id = "org/name"` in its section [general.hub].'
        )
    check_repo_id(repo_id)
    version = builds.metadata.version
    if branch is None and version is None:
        raise RequestError("There is no branch to publish to, and the builds have no version: give one, --branch v1.")
    branch = f"v{version}" if branch is None else _branch(branch)
    if is_commit(branch) or "/" in branch:
        raise _no_branch(branch)
    match = _VERSION_BRANCH.fullmatch(branch)
    if match is not None and match[1] != str(version):
        raise RequestError(f"`branch` is {branch!r}, but the builds are of version {version}: allowed is v{version}.")
    return repo_id, branch


def _branch(branch: str) -> str:
    try:
        return check_revision(branch)
    except RequestError:
        raise _no_branch(branch) from None


def _no_branch(branch: str) -> RequestError:
    return RequestError(f"`branch` is {branch[:200]!r}; allowed is a branch's name, without slashes, and no commit.")


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
            f"A private repository is asked for, and {repo_id} exists at {hub.url} and is public: make it private "
            "there first."
        )
    if branch not in (branches or {}):
        hub.create_branch(repo_id, branch)
        branches = hub.branches(repo_id)
    head = (branches or {}).get(branch)
    if head is None:
        raise RequestError(f"{hub.url} does not show the branch {branch!r} of {repo_id} that was just created.")
    return head


def _others(builds: Builds, remote: Remote) -> list[str]:
    """The folders of builds on the branch that are not among those here."""
    there = {path.split("/")[1] for path in remote.files if path.startswith(f"{BUILD_FOLDER}/") and path.count("/") > 1}
    return sorted(there - builds.builds.keys())


def _elsewhere(others: Iterable[str], project: Workspace | None) -> list[str]:
    """Builds of a framework that there are no sources for here: those of another folder, which alone replaces them."""
    if project is None:
        return []
    here = {source.framework for source in project.sources}
    return [name for name in others if (variant := _parsed(name)) is not None and _kind(variant)[0] not in here]


def _refuse_loss(others: Iterable[str], builds: Builds, project: Workspace | None, where: str) -> None:
    """Refuse to remove what `build.toml` still lists and nothing here takes the place of: another machine made it."""
    if project is None:
        return
    listed = {(source.framework, backend) for source in project.sources for backend in source.backends}
    missing = listed - {_kind(build.variant) for build in builds.builds.values()}
    lost = [name for name in others if (variant := _parsed(name)) is not None and _kind(variant) in missing]
    if lost:
        raise RequestError(
            f"{where} has builds for backends that build.toml lists, and that there is no build for here: "
            f"{', '.join(lost)}. Give --keep-variants to keep them, or --remove-variants to remove them."
        )


def _kind(variant: Variant) -> tuple[str, str]:
    """The framework and the backend of a build, as `build.toml` names them."""
    return variant.kind.replace("torch-stable-abi", "torch"), variant.backend


def _changes(
    builds: Builds, remote: Remote, repo_id: str, branch: str, *, kept: Sequence[str], others: Sequence[str]
) -> Changes:
    """What must change for the branch to hold the builds."""
    wanted: dict[str, bytes | Path] = dict(builds.files)
    listed = [*builds.builds, *(name for name in kept if _parsed(name) is not None)]
    readme = None if builds.readme is None else _page(builds.readme)
    wanted[CARD_FILE] = kernel_card(repo_id, branch, builds.metadata, listed, readme).encode()
    replaced = tuple(f"{BUILD_FOLDER}/{name}/" for name in builds.builds)
    ours = [path for path in sorted(remote.files) if path.startswith(replaced) or _is_benchmark(path)]
    gone = [path for path in ours if path not in wanted]
    folders = [f"{BUILD_FOLDER}/{name}/" for name in others if name not in kept]
    return Changes(_changed(wanted, remote), [*folders, *gone])


def _page(file: Path) -> str:
    try:
        # Some editors begin a file with a byte order mark.
        return read_bounded(file, _MAX_PAGE_BYTES).decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise RequestError(f"{file} is the page that the Hub shows, and is not UTF-8; save it as such.") from None


def _changed(wanted: Mapping[str, bytes | Path], remote: Remote) -> dict[str, bytes | Path]:
    return {path: content for path, content in wanted.items() if not same_file(remote.files.get(path), content)}


def _is_benchmark(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder == BENCHMARKS and fnmatchcase(name, BENCHMARK_FILES)


def _parsed(name: str) -> Variant | None:
    try:
        return parse_variant(name)
    except InvalidVariant:
        return None


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
