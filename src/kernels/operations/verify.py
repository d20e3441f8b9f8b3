"""`kernels verify`: which builds on disk to verify, and the report on each.

`get_kernel` raises at the first problem; this reports every check of every build.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from kernels.errors import HubUnavailable, KernelsError, NoSuitableBuild, NotInCache
from kernels.models.lockfile import ContentHash, Pin, unpinned_build
from kernels.models.requirement import Requirement
from kernels.models.snapshot import Snapshot
from kernels.operations.open_sources import open_sources
from kernels.operations.verify_report import BuildReport, report_on_folder
from kernels.resolver.advice import no_suitable_build
from kernels.resolver.context import ResolveContext
from kernels.resolver.find import find
from kernels.resolver.locks import ActiveLock, active_lock
from kernels.resolver.target import Target
from kernels.resolver.usable_build import choose_from_sources
from kernels.sources.base import Source
from kernels.sources.folder import FolderSource, PathSource
from kernels.support.checks import CheckResult
from kernels.support.tasks import side_by_side
from kernels.trust.policy import Policy, Rule, policy_to_verify
from kernels.trust.publishers import TrustPolicy, is_refused

__all__ = ["verify_lock", "verify_path", "verify_repository"]

#: Builds that are fetched and verified at once; the files of each are hashed side by side as well.
_AT_ONCE = 4


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
    requirement = Requirement(repo_id, version=version, revision=revision)
    return _some_read(_verify(requirement, active_lock(), policy_to_verify(policy), all_variants, offline))


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
    signers, lock = policy_to_verify(policy), active_lock(file=path)
    pins = () if lock.lock is None else lock.lock.pins

    def verify(pin: Pin) -> list[BuildReport]:
        asked = Requirement(pin.requirement.repo_id, revision=pin.commit)
        return _verify(asked, lock, signers, all_variants, offline, version=pin.requirement.named_version)

    each_once = {(pin.requirement.repo_id, pin.commit): pin for pin in pins}
    reports = side_by_side(verify, each_once.values(), at_once=_AT_ONCE, name="verify")
    return _some_read([report for each in reports for report in each])


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
    rules = policy_to_verify(policy).all_rules()
    _check_roots(rules)
    source = PathSource(Path(os.path.abspath(path.expanduser())))
    snapshot = source.snapshot(source.requirement, "")
    return side_by_side(
        lambda name: _verify_build(source, snapshot, name, rules, offline=offline),
        snapshot.builds,
        at_once=_AT_ONCE,
        name="verify",
    )


def _verify(
    requirement: Requirement,
    lock: ActiveLock,
    policy: Policy,
    all_variants: bool,
    offline: bool,
    *,
    version: int | None = None,
) -> list[BuildReport]:
    """The reports on the builds of a repository, at the commit that a lock pins, if it does."""
    context = ResolveContext(
        sources=open_sources(overrides=False, local_files_only=offline),
        target=Target.current(),
        trust=TrustPolicy(),
        signing=None,  # missing signatures are not refused: the report has them
        lock=lock,
    )
    choice = None if all_variants else choose_from_sources(context, requirement)
    found = find(context, requirement, lambda found: found, admit=False) if choice is None else choice.found
    source, snapshot = found.source, found.snapshot
    names = list(snapshot.builds)
    if not names:
        raise NoSuitableBuild(f"{snapshot.repo_id} has no builds at {snapshot.commit}.")
    if choice is not None:
        if choice.best is None:
            error = no_suitable_build(str(requirement), choice.resolution)
            raise error.reworded(f"{error}\nAll builds are verified with --all-variants.")
        names = [choice.best]
    rules = [policy.rule(snapshot.repo_id)]
    _check_roots(rules)
    pinned = lock.lock.hashes.get((found.listed_as, snapshot.commit)) if found.lock and lock.lock is not None else None
    verify = partial(
        _verify_build,
        source,
        snapshot,
        rules=rules,
        pinned=pinned,
        offline=offline or not source.connects,
        version=found.version if version is None else version,
    )
    return side_by_side(verify, names, at_once=_AT_ONCE, name="verify")


def _check_roots(rules: Iterable[Rule]) -> None:
    """Raise for a trusted root that cannot be read, also if no build is signed."""
    for rule in rules:
        if rule.trusted_root is not None:
            rule.root_content()


def _some_read(reports: list[BuildReport]) -> list[BuildReport]:
    if reports and all(each.digest.verdict == "skipped" and not each.failed for each in reports):
        raise NotInCache(f"No build was verified: each is {reports[0].digest.what}.")
    return reports


def _verify_build(
    source: Source,
    snapshot: Snapshot,
    name: str,
    rules: Sequence[Rule],
    *,
    pinned: Mapping[str, ContentHash] | None = None,
    offline: bool,
    version: int | None = None,
) -> BuildReport:
    """The report on one build, downloaded where it is missing and that is allowed."""
    try:
        folder = source.fetch(snapshot, name)
    except NotInCache:
        reason = f"not in {source.name}, and nothing may be downloaded"
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
            rules,
            pinned=(pinned or {}).get(name),
            listed=snapshot.builds[name] if snapshot.listed else (),
            offline=offline,
            version=version,
            remedy=_remedy(source, snapshot.repo_id),
        )
    if pinned is not None and name not in pinned:
        report = replace(report, pinned=CheckResult("pinned", "failed", unpinned_build(name)))
    if source.user_owned:
        return report
    untrusted = is_refused(snapshot, source.publishers)
    return replace(report, repo_id=snapshot.repo_id, commit=snapshot.commit, untrusted=untrusted)


def _unread(variant: str, digest: CheckResult, reason: str) -> BuildReport:
    """The report on a build whose files were not read."""
    pinned, signature = (CheckResult(step, "skipped", reason) for step in ("pinned", "signature"))
    return BuildReport(None, None, variant, digest, pinned, signature)


def _remedy(source: Source, repo_id: str) -> str:
    """What to do with a build whose files are not those in its digest."""
    if source.user_owned:
        return "Build or download it again."
    if isinstance(source, FolderSource):
        return "Ask the publisher for a new build."
    return (
        f"Files that were changed here: `kernels cache verify --repo {repo_id} --repair` downloads them again. If none "
        "were, ask the publisher for a new build."
    )
