"""`kernels verify`: which builds on disk to verify, and the report on each.

`get_kernel` raises at the first problem; this reports every check of every build.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from kernels.errors import (
    HubUnavailable,
    KernelsError,
    NoSuitableBuild,
    NotInCache,
)
from kernels.models.lockfile import ContentHash, unpinned_build
from kernels.models.requirement import Requirement
from kernels.models.snapshot import Snapshot
from kernels.operations.open_sources import open_sources
from kernels.operations.verify_report import BuildReport, report_on_folder
from kernels.resolver.advice import no_suitable_build
from kernels.resolver.build_choice import choose_from_sources
from kernels.resolver.context import ResolveContext
from kernels.resolver.find import find
from kernels.resolver.locks import ActiveLock, active_lock
from kernels.resolver.target import Target
from kernels.sources.base import Source
from kernels.sources.folder import FolderSource, PathSource
from kernels.support.checks import CheckResult
from kernels.support.tasks import side_by_side
from kernels.trust.policy import Policy, Rule, policy_to_verify
from kernels.trust.publishers import TrustPolicy, is_refused

__all__ = ["verify_lock", "verify_path", "verify_repository"]

#: Builds that are fetched and verified at once; the files of each are hashed side by side as well.
_AT_ONCE = 4


@dataclass(frozen=True)
class _BuildToVerify:
    """A build to verify, and what it must be."""

    source: Source
    snapshot: Snapshot
    variant: str
    rules: tuple[Rule, ...]
    offline: bool
    version: int | None
    pinned: ContentHash | None = None
    not_pinned: str | None = None  # the error where the commit's other builds are pinned, and this one is not


def verify_repository(
    repo_id: str,
    *,
    version: int | None = None,
    revision: str | None = None,
    all_variants: bool = False,
    policy: Policy | None = None,
    offline: bool = False,
) -> list[BuildReport]:
    """Verify a repository's build for this machine, or all of its builds, on disk; what is missing is downloaded.

    The caller's lock chooses the commit, as for `get_kernel`, and says what its content must be. No code of the kernel
    runs, so its publisher need not be trusted.

    Args:
        repo_id: The repository, `org/name`. `LOCAL_KERNELS` is not read.
        version: A major version.
        revision: A branch, a tag or a commit; not together with `version`.
        all_variants: Whether every build is verified, not only the one that this machine would use.
        policy: Who may sign; the default is what `KERNELS_POLICY` names, else the policy of this package.
        offline: Use only the cache, and the keys that are on this machine.

    Raises:
        NoSuitableBuild: No build fits this machine, or the repository has none (a `FileNotFoundError`).
        LockError: The lock does not list the version or revision; or, under `KERNELS_LOCKED=1`, the repository.
        MissingPythonDependency: There is a signature, and sigstore is not installed (an `ImportError`).
        KernelsError: It is not available; as for `get_kernel`.
    """
    policy = policy_to_verify(policy)
    requirement = Requirement(repo_id, version=version, revision=revision)
    return _verify(_chosen(requirement, all_variants, policy, offline, active_lock()))


def verify_lock(
    path: Path, *, all_variants: bool = False, policy: Policy | None = None, offline: bool = False
) -> list[BuildReport]:
    """Verify the builds that a lockfile pins, at its commits, and with its content hashes where it has them.

    Args:
        path: The lockfile.
        all_variants: Whether every build is verified, not only those that this machine would use.
        policy: Who may sign; the default is what `KERNELS_POLICY` names, else the policy of this package.
        offline: Use only the cache, and the keys that are on this machine.

    Raises:
        LockError: It is not a lockfile (a `ValueError`).
        KernelsError: As for `verify_repository`.
    """
    policy = policy_to_verify(policy)
    lock = active_lock(file=path)
    builds: list[_BuildToVerify] = []
    pins = () if lock.lock is None else lock.lock.pins
    for pin in {(pin.requirement.repo_id, pin.commit): pin for pin in pins}.values():
        found = _chosen(Requirement(pin.requirement.repo_id, revision=pin.commit), all_variants, policy, offline, lock)
        builds += [replace(each, version=pin.requirement.named_version) for each in found]
    return _verify(builds)


def verify_path(path: Path, *, policy: Policy | None = None, offline: bool = False) -> list[BuildReport]:
    """Verify the builds in a folder: a repository's, or one variant.

    A folder names no repository, so every identity in the policy may have signed.

    Args:
        path: The folder.
        policy: Who may sign; the default is what `KERNELS_POLICY` names, else the policy of this package.
        offline: Use the keys that are on this machine.

    Raises:
        RepositoryNotFound: The path has no kernel (a `FileNotFoundError`).
        MissingPythonDependency: There is a signature, and sigstore is not installed (an `ImportError`).
    """
    policy = policy_to_verify(policy)
    source = PathSource(Path(os.path.abspath(path.expanduser())))
    snapshot = source.snapshot(source.requirement, "")
    rules = policy.all_rules()
    return _verify([_BuildToVerify(source, snapshot, name, rules, offline, None) for name in snapshot.builds])


def _chosen(
    requirement: Requirement,
    all_variants: bool,
    policy: Policy,
    offline: bool,
    lock: ActiveLock,
) -> list[_BuildToVerify]:
    context = ResolveContext(
        sources=open_sources(overrides=False, local_files_only=offline),
        target=Target.current(),
        trust=TrustPolicy(),
        signing=None,  # missing signatures are not refused: the report has them
        lock=lock,
    )
    choice = None if all_variants else choose_from_sources(context, requirement)
    found = find(context, requirement, lambda found: found, admit=False) if choice is None else choice.found
    snapshot = found.snapshot
    if not snapshot.builds:
        raise NoSuitableBuild(f"{snapshot.repo_id} has no builds at {snapshot.commit}.")
    names = list(snapshot.builds)
    if choice is not None:
        if choice.best is None:
            error = no_suitable_build(str(requirement), choice.resolution)
            raise error.reworded(f"{error}\nAll builds are verified with --all-variants.")
        names = [choice.best]
    hashes = None
    if found.lock is not None and lock.lock is not None:
        hashes = lock.lock.hashes.get((found.listed_as, snapshot.commit))
    rules = (policy.rule(snapshot.repo_id),)
    version = found.version
    offline = offline or not found.source.connects
    return [
        _BuildToVerify(found.source, snapshot, name, rules, offline, version, *_pin(name, hashes)) for name in names
    ]


def _pin(variant: str, hashes: Mapping[str, ContentHash] | None) -> tuple[ContentHash | None, str | None]:
    if hashes is None or variant in hashes:
        return (hashes or {}).get(variant), None
    return None, unpinned_build(variant)


def _verify(builds: Sequence[_BuildToVerify]) -> list[BuildReport]:
    for rule in dict.fromkeys(rule for each in builds for rule in each.rules):
        if rule.trusted_root is not None:  # a wrong path is an error even if no build is signed
            rule.root_content()
    found = side_by_side(_verify_build, builds, at_once=_AT_ONCE, name="verify")
    if builds and all(each.digest.verdict == "skipped" and not each.failed for each in found):
        raise NotInCache(f"None of the builds is in {builds[0].source.name}, and nothing may be downloaded.")
    return found


def _verify_build(build: _BuildToVerify) -> BuildReport:
    snapshot, name = build.snapshot, build.variant
    try:
        folder = build.source.fetch(snapshot, name)
    except NotInCache:
        reason = f"not in {build.source.name}, and nothing may be downloaded"
        report = _unread(name, CheckResult("digest", "skipped", reason), reason)
    except HubUnavailable:  # this says nothing about its content
        raise
    except (KernelsError, OSError) as error:
        if not isinstance(error, ValueError):
            raise
        report = _unread(name, CheckResult("digest", "failed", str(error)), "its files are not what was listed")
    else:
        report = report_on_folder(
            folder,
            build.rules,
            pinned=build.pinned,
            listed=snapshot.builds[name] if snapshot.listed else (),
            offline=build.offline,
            version=build.version,
            remedy=_remedy(build),
        )
    if build.not_pinned is not None:
        report = msgspec.structs.replace(report, pinned=CheckResult("pinned", "failed", build.not_pinned))
    if build.source.user_owned:
        return report
    untrusted = is_refused(snapshot, build.source.publishers)
    return msgspec.structs.replace(report, repo_id=snapshot.repo_id, commit=snapshot.commit, untrusted=untrusted)


def _unread(variant: str, digest: CheckResult, reason: str) -> BuildReport:
    """The report on a build whose files were not read."""
    pinned, signature = (CheckResult(step, "skipped", reason) for step in ("pinned", "signature"))
    return BuildReport(None, None, variant, digest, pinned, signature)


def _remedy(build: _BuildToVerify) -> str:
    """What to do with a build whose files are not those in its digest."""
    if build.source.user_owned:
        return "Build or download it again."
    if isinstance(build.source, FolderSource):
        return "Ask the publisher for a new build."
    return (
        f"Files that were changed here: `kernels cache verify --repo {build.snapshot.repo_id} --repair` downloads them "
        "again. If none were, ask the publisher for a new build."
    )
