"""The variants of a repository, fetched and checked."""

from __future__ import annotations

from kernels.audit import VariantAudit, audit_variant
from kernels.errors import NoSuitableBuild
from kernels.locks import lock_in_force
from kernels.plan import Planner
from kernels.release import Release
from kernels.requirement import Requirement
from kernels.sources import Source, open_sources
from kernels.target import Target
from kernels.trust import TrustPolicy

__all__ = ["audit_repository"]


def audit_repository(
    repo_id: str,
    *,
    version: int | None = None,
    revision: str | None = None,
    all_variants: bool = False,
    dynamic: bool = True,
    trust_remote_code: bool = False,
) -> list[VariantAudit]:
    """Download a repository's build for this machine, or all of its builds, and check them.

    Args:
        repo_id: The repository, `org/name`. `LOCAL_KERNELS` does not count here.
        version: A major version.
        revision: A branch, a tag or a commit; not together with `version`.
        all_variants: Whether every build is checked, not only the one that this machine would use.
        dynamic: Whether builds that fit are also loaded, each in a process of its own.
        trust_remote_code: Whether they may be loaded where the publisher is not a trusted one.

    Returns:
        What was found, a variant each.

    Raises:
        UntrustedPublisher: A build would be loaded, and the publisher is not trusted (a `ValueError`).
        NoSuitableBuild: No build fits this machine, or there is none at all (a `FileNotFoundError`).
        KernelsError: As for `get_kernel`.
    """
    planner = Planner(
        open_sources(overrides=False),
        Target.current(),
        TrustPolicy.of(trust_remote_code),
        prerequisites=False,
        lock=lock_in_force(),
    )
    requirement = Requirement(repo_id, version=version, revision=revision)
    if dynamic:
        try:
            planned = planner.plan(requirement)  # refuses what must not run here
        except NoSuitableBuild:
            if not all_variants:
                raise
        else:
            return _audit(planned.source, planned.release, None if all_variants else planned.variant, dynamic)
    choice = planner.choose(requirement, every=True)
    if not all_variants and choice.best is None:
        raise NoSuitableBuild(
            f"{requirement} has no build that fits this machine; `kernels explain` says why for each. "
            "All of them are checked with all_variants=True (--all-variants)."
        )
    return _audit(choice.source, choice.release, None if all_variants else choice.best, dynamic)


def _audit(source: Source, release: Release, variant: str | None, dynamic: bool) -> list[VariantAudit]:
    names = release.builds if variant is None else [variant]
    if not names:
        raise NoSuitableBuild(f"{release.repo_id} has no builds at {release.commit}.")
    root = source.boundary(release)
    return [audit_variant(source.fetch(release, name), dynamic=dynamic, root=root) for name in names]
