"""Download a repository's variants, and check them."""

from __future__ import annotations

from pathlib import Path

from kernels.authoring.check.audit import VariantAudit, audit_variant
from kernels.errors import InvalidMetadata, NoSuitableBuild, UntrustedSignature
from kernels.models.metadata import Digest
from kernels.models.snapshot import Snapshot
from kernels.operations.call import KernelRequest, context_for
from kernels.operations.install_check import ExpectedContent, check_build
from kernels.resolver.context import ResolveContext
from kernels.resolver.find import find
from kernels.resolver.found import FoundSnapshot
from kernels.resolver.metadata_of import metadata_of
from kernels.resolver.plan import plan_tree
from kernels.resolver.usable_build import choose_from_sources
from kernels.trust.publishers import Admission, unverified

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
        repo_id: The repository, `org/name`. `LOCAL_KERNELS` is ignored.
        version: A major version.
        revision: A branch, a tag or a commit; not together with `version`.
        all_variants: Whether to check every build, not only the one that this machine would use.
        dynamic: Whether to also load the builds that fit, each in a separate process.
        trust_remote_code: Whether they may be loaded if the publisher is not trusted.

    Returns:
        The findings, one audit for each variant.

    Raises:
        UntrustedPublisher: A build would be loaded, and the publisher is not trusted (a `ValueError`).
        UntrustedSignature: A build would be loaded that must be signed and is not (a `ValueError`).
        DigestMismatch: A build would be loaded whose content differs from the signed or locked one.
        NoSuitableBuild: No build fits this machine, or there are no builds (a `FileNotFoundError`).
        KernelsError: As for `get_kernel`.
    """
    request = KernelRequest(repo_id, version, revision, trust_remote_code=trust_remote_code, local_kernels=False)
    context, requirement = context_for(request, prerequisites=False), request.requirement
    if dynamic:
        variant: str | None = None
        try:
            planned = plan_tree(context, requirement).root  # refuses what must not run here
            found, variant = planned.found, planned.variant
        except NoSuitableBuild:
            if not all_variants:
                raise
            found = find(context, requirement, lambda found: found)
        names = _names(found.snapshot, None if all_variants else variant)
        folders = [_folder_to_load(context, found, name) for name in names]
        root = found.source.link_boundary(found.snapshot)
        return [audit_variant(folder, root=root) for folder in folders]
    choice = choose_from_sources(context, requirement)
    if not all_variants and choice.best is None:
        raise NoSuitableBuild(
            f"{requirement} has no build that fits this machine; `kernels explain` says why for each. "
            "Check all of them with all_variants=True (--all-variants)."
        )
    source, snapshot = choice.source, choice.snapshot
    root = source.link_boundary(snapshot)
    names = _names(snapshot, None if all_variants else choice.best)
    return [audit_variant(source.fetch(snapshot, name), dynamic=False, root=root) for name in names]


def _names(snapshot: Snapshot, variant: str | None) -> list[str]:
    names = list(snapshot.builds) if variant is None else [variant]
    if not names:
        raise NoSuitableBuild(f"{snapshot.repo_id} has no builds at {snapshot.commit}.")
    return names


def _folder_to_load(context: ResolveContext, found: FoundSnapshot, variant: str) -> Path:
    """A build on disk, after the checks that must pass before its code may run: who signed it, and what a lock pins."""
    source, snapshot = found.source, found.snapshot
    allowed = (Admission.GRANTED, Admission.ON_DISK) if source.on_disk(snapshot, variant) else (Admission.GRANTED,)
    if found.admission not in allowed:
        raise unverified(snapshot.repo_id, source.publishers)
    rule = found.signing_rule(context)
    digest: Digest | None = None
    if rule is not None:
        try:
            digest = metadata_of(context, found, variant).digest
        except (InvalidMetadata, UntrustedSignature) as error:
            raise UntrustedSignature(
                f"{snapshot.repo_id}, build {variant}: {error}. It may not be loaded; check it with --static."
            ) from error
    pinned = found.pinned_content(context, variant)
    folder = source.fetch(snapshot, variant)
    # The check of the digest reports a mismatch that neither a signature nor a lock forbids.
    expected = ExpectedContent(digest, pinned, found.lock or "", signed=rule is not None)
    check_build(source, snapshot, variant, folder, expected)
    return folder
