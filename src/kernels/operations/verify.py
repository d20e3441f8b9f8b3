"""`kernels verify`: which builds on disk to verify, and the report on each.

`get_kernel` raises at the first problem; this reports every check of every build.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from kernels.errors import HubUnavailable, NoSuitableBuild, NotInCache
from kernels.models.lockfile import ContentHash, Pin, unpinned_build
from kernels.models.snapshot import Snapshot
from kernels.operations.call import KernelRequest, context_for
from kernels.operations.verify_report import BuildReport, report_on_folder
from kernels.resolver.advice import no_suitable_build
from kernels.resolver.find import find
from kernels.resolver.locks import active_lock
from kernels.resolver.usable_build import choose_from_sources
from kernels.sources.base import Source
from kernels.sources.cached import CachedSource
from kernels.sources.folder import PathSource
from kernels.support.checks import CheckResult
from kernels.support.tasks import side_by_side
from kernels.trust.policy import Policy, Rule, policy_to_verify
from kernels.trust.publishers import is_refused

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
    request = KernelRequest(
        repo_id, version, revision, local_files_only=offline, local_kernels=False, lock=active_lock()
    )
    return _some_read(_verify(request, policy_to_verify(policy), all_variants))


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
        asked = pin.asked
        request = KernelRequest(
            asked.repo_id, asked.version, asked.revision, local_files_only=offline, local_kernels=False, lock=lock
        )
        return _verify(request, signers, all_variants)

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
    source = PathSource(Path(os.path.abspath(path.expanduser())))
    snapshot = source.snapshot(source.requirement, "")
    return _reports(source, snapshot, snapshot.builds, policy_to_verify(policy).all_rules(), offline=offline)


def _verify(request: KernelRequest, policy: Policy, all_variants: bool) -> list[BuildReport]:
    """The reports on the builds of a repository, at the commit that the request's lock pins, if it does."""
    requirement = request.requirement
    context = replace(context_for(request), signing=None)  # missing signatures are not refused: the report has them
    choice = None if all_variants else choose_from_sources(context, requirement)
    found = find(context, requirement, lambda found: found, admit=False) if choice is None else choice.found
    source, snapshot = found.source, found.snapshot
    if not snapshot.builds:
        raise NoSuitableBuild(f"{snapshot.repo_id} has no builds at {snapshot.commit}.")
    if choice is not None and choice.best is None:
        error = no_suitable_build(str(requirement), choice.resolution)
        raise error.reworded(f"{error}\nAll builds are verified with --all-variants.")
    return _reports(
        source,
        snapshot,
        snapshot.builds if choice is None or choice.best is None else [choice.best],
        [policy.rule(snapshot.repo_id)],
        offline=request.local_files_only or not source.connects,
        pinned=None if found.lock is None else context.lock.hashes(found.listed_as, snapshot.commit),
        version=found.version,
    )


def _some_read(reports: list[BuildReport]) -> list[BuildReport]:
    if reports and all(each.digest.verdict == "skipped" and not each.failed for each in reports):
        raise NotInCache(f"No build was verified: each is {reports[0].digest.what}.")
    return reports


def _reports(
    source: Source,
    snapshot: Snapshot,
    names: Iterable[str],
    rules: Sequence[Rule],
    *,
    offline: bool,
    pinned: Mapping[str, ContentHash] | None = None,
    version: int | None = None,
) -> list[BuildReport]:
    """The reports on builds, each downloaded where it is missing and that is allowed."""
    for rule in rules:
        if rule.trusted_root is not None:
            rule.root_content()  # one that cannot be read is an error, also if no build is signed

    def report(name: str) -> BuildReport:
        try:
            folder = source.fetch(snapshot, name)
        except NotInCache:
            reason = f"not in {source.name}, and nothing may be downloaded"
            found = _unread(name, CheckResult("digest", "skipped", reason), reason)
        except HubUnavailable:  # this says nothing about its content
            raise
        except ValueError as error:
            found = _unread(name, CheckResult("digest", "failed", str(error)), "its files are not what was listed")
        else:
            found = report_on_folder(
                folder,
                rules,
                pinned=None if pinned is None else pinned.get(name),
                listed=snapshot.builds[name] if snapshot.listed else (),
                offline=offline,
                version=version,
                remedy=_remedy(source, snapshot.repo_id),
            )
        if pinned is not None and name not in pinned:
            found = replace(found, pinned=CheckResult("pinned", "failed", unpinned_build(name)))
        if source.user_owned:
            return found
        untrusted = is_refused(snapshot, source.publishers)
        return replace(found, repo_id=snapshot.repo_id, commit=snapshot.commit, untrusted=untrusted)

    return side_by_side(report, names, at_once=_AT_ONCE, name="verify")


def _unread(variant: str, digest: CheckResult, reason: str) -> BuildReport:
    """The report on a build whose files were not read."""
    return BuildReport(
        variant, digest, CheckResult("pinned", "skipped", reason), CheckResult("signature", "skipped", reason)
    )


def _remedy(source: Source, repo_id: str) -> str:
    """What to do with a build whose files are not those in its digest."""
    if not isinstance(source, CachedSource):
        return "Build or download it again, or ask the publisher for a new build."
    return (
        f"Files that were changed here: `kernels cache verify --repo {repo_id} --repair` downloads them again. If none "
        "were, ask the publisher for a new build."
    )
