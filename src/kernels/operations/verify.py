"""What lies on disk, verified: each build's digest, the content that a lock pins, and its signature.

Other than `get_kernel`, which refuses, this says of every build what holds and what does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from kernels.errors import (
    InvalidMetadata,
    KernelsError,
    NoSuitableBuild,
    NotInCache,
    StoreError,
    UntrustedSignature,
)
from kernels.models.lockfile import LOCK_FILE, ContentHash, Lock, unpinned_build
from kernels.models.metadata import MAX_METADATA_BYTES, Metadata
from kernels.models.requirement import Requirement
from kernels.models.snapshot import METADATA_FILE, Heads, Snapshot
from kernels.operations.open_sources import open_sources
from kernels.resolver.build_choice import choose_build
from kernels.resolver.build_metadata import check_signed_version
from kernels.resolver.content_hash import folder_hash, large_files
from kernels.resolver.context import ResolveContext
from kernels.resolver.finder import find_snapshot
from kernels.resolver.lock_scope import LockInForce, lock_in_force
from kernels.resolver.selection import no_suitable_build
from kernels.resolver.target import Target
from kernels.sources import FolderSource, PathSource, Source
from kernels.sources.manifest import Record, read_record_of, recorded_in
from kernels.support.checks import Verdict
from kernels.support.concurrency import side_by_side
from kernels.support.files import FileTooLarge, NotRegularFile, read_bounded
from kernels.support.formatting import plural
from kernels.trust import Identity, Policy, Rule
from kernels.trust.digest import verify_digest
from kernels.trust.publishers import TrustPolicy
from kernels.trust.sigstore import BUNDLE_FILE, MAX_BUNDLE_BYTES, too_large, verify_bundle

__all__ = ["BuildProof", "Proof", "verify_folder", "verify_lock", "verify_path", "verify_repository"]

#: Builds that are fetched and verified at once; the files of each are hashed side by side as well.
_AT_ONCE = 4


class Proof(msgspec.Struct, frozen=True):
    """One thing that was verified.

    Attributes:
        verdict: `ok`, `missing` where there is nothing to verify, `failed`, or `skipped` where something before failed.
        reason: Why.
    """

    verdict: Verdict
    reason: str


class BuildProof(msgspec.Struct, frozen=True):
    """What holds of one build on disk.

    Attributes:
        repo_id: Its repository; None for a folder.
        commit: The commit; None for a folder.
        variant: Its name.
        digest: Whether its files are those that its metadata's digest names.
        pinned: Whether its content is what a lock pins.
        signature: Whether its metadata is signed by somebody who may.
        signer: Who signed, where the signature is accepted.
    """

    repo_id: str | None
    commit: str | None
    variant: str
    digest: Proof
    pinned: Proof
    signature: Proof
    signer: Identity | None = None

    @property
    def proofs(self) -> tuple[Proof, Proof, Proof]:
        """What was verified, in the order of tables."""
        return self.digest, self.pinned, self.signature

    @property
    def failed(self) -> bool:
        """Whether anything is wrong."""
        return any(each.verdict == "failed" for each in self.proofs)

    @property
    def wrong(self) -> str:
        """Everything that is wrong, in one line."""
        reasons = [" ".join(each.reason.split()).rstrip(".") for each in self.proofs if each.verdict == "failed"]
        return "; ".join(dict.fromkeys(reasons))


_NOT_PINNED = Proof("missing", "no lock pins its content")


@dataclass(frozen=True)
class _Build:
    """A build to verify: where it is from, and what it is held against."""

    source: Source
    snapshot: Snapshot
    variant: str
    rules: tuple[Rule, ...]
    offline: bool
    version: int | None
    pinned: ContentHash | None = None
    stranger: str | None = None  # that the content of the commit's other builds is pinned, and not of this one


def verify_repository(
    repo_id: str,
    *,
    version: int | None = None,
    revision: str | None = None,
    all_variants: bool = False,
    policy: Policy | None = None,
    offline: bool = False,
) -> list[BuildProof]:
    """Verify a repository's build for this machine, or all of its builds, on disk; what is missing is downloaded.

    The caller's lock says which commit is meant, as it does for `get_kernel`, and what its content must be. No code of
    the kernel runs, so nobody is asked whether its publisher is trusted.

    Args:
        repo_id: The repository, `org/name`. `LOCAL_KERNELS` does not count here.
        version: A major version.
        revision: A branch, a tag or a commit; not together with `version`.
        all_variants: Whether every build is verified, not only the one that this machine would use.
        policy: Who may sign; the default is what `KERNELS_POLICY` names, else the policy of this package.
        offline: Take what is in the cache, and the keys that are on this machine.

    Raises:
        NoSuitableBuild: No build fits this machine, or there is none at all (a `FileNotFoundError`).
        LockError: The lock lists the repository, but not what is asked for; or, under `KERNELS_LOCKED=1`, not at all.
        MissingPythonDependency: There is a signature, and sigstore is not installed (an `ImportError`).
        KernelsError: It cannot be had; as for `get_kernel`.
    """
    policy = policy or _policy()
    requirement = Requirement(repo_id, version=version, revision=revision)
    return _verify(_chosen(requirement, all_variants, policy, offline, lock_in_force()))


def verify_lock(
    path: Path, *, all_variants: bool = False, policy: Policy | None = None, offline: bool = False
) -> list[BuildProof]:
    """Verify what a lock pins, at the commits it pins, and with its content hashes where it has them.

    Args:
        path: The lock file.
        all_variants: Whether every build is verified, not only those that this machine would use.
        policy: Who may sign; the default is what `KERNELS_POLICY` names, else the policy of this package.
        offline: Take what is in the cache, and the keys that are on this machine.

    Raises:
        LockError: It is no lock (a `ValueError`).
        KernelsError: As for `verify_repository`.
    """
    policy = policy or _policy()
    lock = lock_in_force(file=path)
    builds: list[_Build] = []
    pins = () if lock.lock is None else lock.lock.pins
    for pin in {(pin.requirement.repo_id, pin.commit): pin for pin in pins}.values():
        found = _chosen(Requirement(pin.requirement.repo_id, revision=pin.commit), all_variants, policy, offline, lock)
        builds += [replace(each, version=pin.requirement.named_version) for each in found]
    return _verify(builds)


def verify_path(path: Path, *, policy: Policy | None = None, offline: bool = False) -> list[BuildProof]:
    """Verify the builds in a folder: a repository's, or one variant.

    A folder is no repository's, so whoever a policy allows to sign for any may have signed. A folder that
    `kernels download --to` wrote, or a repository in it, says whose its builds are: all of them are verified, also
    against what the Hub listed, and what the lock beside them pins.

    Args:
        path: The folder.
        policy: Who may sign; the default is what `KERNELS_POLICY` names, else the policy of this package.
        offline: Take the keys that are on this machine.

    Raises:
        RepositoryNotFound: There is no kernel at the path (a `FileNotFoundError`).
        InvalidRepository, LockError: What stands beside carried builds cannot be read (a `ValueError`).
        MissingPythonDependency: There is a signature, and sigstore is not installed (an `ImportError`).
    """
    policy = policy or _policy()
    path = Path(os.path.abspath(path.expanduser()))
    carried = recorded_in(path)
    if carried is not None:
        return _verify(_carried(*carried, policy, offline))
    source = PathSource(path)
    snapshot = source.snapshot(source.requirement, "")
    rules = policy.anybody()
    return _verify([_Build(source, snapshot, name, rules, offline, None) for name in snapshot.builds])


def verify_folder(
    folder: Path,
    rules: Sequence[Rule],
    *,
    offline: bool = False,
    pinned: ContentHash | None = None,
    large: Iterable[str] | None = None,
    version: int | None = None,
    remedy: str = "Build or download it again.",
) -> BuildProof:
    """Verify one build's folder: the signature before the metadata is parsed, then the files.

    Args:
        folder: The build's folder.
        rules: Who may sign; of several, one has to accept the signature.
        offline: Take the keys that are on this machine.
        pinned: What its content must be.
        large: The files that the Hub keeps as large ones, where the source knows; older locks ask for it.
        version: The version that must be the one that was signed; None where no version is named.
        remedy: What to do where its files are not those of its digest.

    Raises:
        MissingPythonDependency: There is a signature, and sigstore is not installed (an `ImportError`).
        RequestError, HubUnavailable: The keys to verify with cannot be had.
    """
    required = any(rule.required for rule in rules)
    try:
        metadata = _read(folder / METADATA_FILE, MAX_METADATA_BYTES)
        bundle = _read(folder / BUNDLE_FILE, MAX_BUNDLE_BYTES)
        signature, signer = _signature(metadata, bundle, rules, offline)
        if signer is not None and metadata is not None:
            _check_signed_version(metadata, version)
    except (UntrustedSignature, InvalidMetadata, StoreError) as error:
        signature, signer = Proof("failed", str(error)), None
    if signature.verdict == "failed":
        # What nobody vouches for is not looked into.
        digest = Proof("skipped", "the metadata is not what was signed")
    else:
        digest = _digest(folder, metadata, remedy)
        if required and digest.verdict == "missing" and signature.verdict == "ok":
            digest = Proof("failed", f"{digest.reason}: the signature says nothing of the files")
    return BuildProof(None, None, folder.name, digest, _pinned(folder, pinned, large), signature, signer)


def _policy() -> Policy:
    return Policy.in_force() or Policy.community()


def _chosen(
    requirement: Requirement,
    all_variants: bool,
    policy: Policy,
    offline: bool,
    lock: LockInForce,
) -> list[_Build]:
    context = ResolveContext(
        sources=open_sources(overrides=False, local_files_only=offline),
        target=Target.current(),
        trust=TrustPolicy(),
        signing=None,  # a verdict is given on what would be refused as well
        lock=lock,
    )
    found = find_snapshot(context, requirement)
    snapshot = found.snapshot
    if not snapshot.builds:
        raise NoSuitableBuild(f"{snapshot.repo_id} has no builds at {snapshot.commit}.")
    names = list(snapshot.builds)
    if not all_variants:
        choice = choose_build(context, found, every=True)
        if choice.best is None:
            error = no_suitable_build(str(requirement), choice.resolution)
            raise type(error)(f"{error}\nAll builds are verified with --all-variants.")
        names = [choice.best]
    hashes = None
    if found.lock is not None and lock.lock is not None:
        hashes = lock.lock.hashes.get((found.listed_as, snapshot.commit))
    rules = (policy.rule(snapshot.repo_id),)
    version = found.version
    return [_Build(found.source, snapshot, name, rules, offline, version, *_pin(name, hashes)) for name in names]


def _carried(root: Path, repo_ids: Iterable[str], policy: Policy, offline: bool) -> list[_Build]:
    """Every build that the records in a folder list, whoever published it."""
    lock = Lock.read(root / LOCK_FILE) if (root / LOCK_FILE).exists() else Lock()
    source = FolderSource(root)
    builds: list[_Build] = []
    for repo_id in repo_ids:
        record = read_record_of(root / repo_id)
        if record is None:
            continue
        for commit, files in record.files.items():
            snapshot = Snapshot(repo_id, commit, files)
            hashes = lock.hashes.get((repo_id, commit))
            rules = (policy.rule(repo_id),)
            version = _version_at(record, commit)
            builds += [
                _Build(source, snapshot, name, rules, offline, version, *_pin(name, hashes)) for name in snapshot.builds
            ]
    if not builds:
        raise NoSuitableBuild(f"{root} has no builds of {', '.join(repo_ids)}.")
    return builds


def _version_at(record: Record, commit: str) -> int | None:
    """The version whose branch points to a commit; None where there is not exactly one."""
    heads = Heads({name: head for name, head in record.branches.items() if head == commit})
    return next(iter(heads.versions)) if len(heads.versions) == 1 else None


def _pin(variant: str, hashes: Mapping[str, ContentHash] | None) -> tuple[ContentHash | None, str | None]:
    if hashes is None or variant in hashes:
        return (hashes or {}).get(variant), None
    return None, unpinned_build(variant)


def _verify(builds: Sequence[_Build]) -> list[BuildProof]:
    for rule in dict.fromkeys(rule for each in builds for rule in each.rules):
        if rule.trusted_root is not None:  # a mistake in a name is said whether or not anything is signed
            rule.root_content()
    found = side_by_side(_verify_build, builds, at_once=_AT_ONCE, name="verify")
    if builds and all(each.digest.verdict == "skipped" and not each.failed for each in found):
        raise NotInCache(f"None of the builds is in {builds[0].source.name}, and nothing may be downloaded.")
    return found


def _verify_build(build: _Build) -> BuildProof:
    snapshot, name = build.snapshot, build.variant
    try:
        folder = build.source.fetch(snapshot, name)
        if isinstance(build.source, FolderSource):
            build.source.repair(snapshot, name)  # what a record lists is compared; nothing is fetched
    except NotInCache:
        absent = Proof("skipped", f"not in {build.source.name}, and nothing may be downloaded")
        proof = BuildProof(None, None, name, absent, absent, absent)
    except (KernelsError, OSError) as error:
        if not isinstance(error, ValueError):  # it could not be had, which says nothing of what it is
            raise
        damaged, unseen = Proof("failed", str(error)), Proof("skipped", "its files are not what was listed")
        proof = BuildProof(None, None, name, damaged, unseen, unseen)
    else:
        # A listing without hashes, as a folder's, does not say which files a Hub keeps as large ones.
        hashed = snapshot.listed and any(file.blob for file in snapshot.builds[name])
        large = large_files(snapshot, name) if hashed else None
        proof = verify_folder(
            folder,
            build.rules,
            offline=build.offline,
            pinned=build.pinned,
            large=large,
            version=build.version,
            remedy=_remedy(build),
        )
    if build.stranger is not None:
        proof = msgspec.structs.replace(proof, pinned=Proof("failed", build.stranger))
    if build.source.user_owned:
        return proof
    return msgspec.structs.replace(proof, repo_id=snapshot.repo_id, commit=snapshot.commit)


def _remedy(build: _Build) -> str:
    """What to do with a build whose digest is of other files."""
    if build.source.user_owned:
        return "Build or download it again."
    if isinstance(build.source, FolderSource):
        return "They are those that were carried: ask the publisher for a new build."
    return (
        f"What changed here is fetched again with `kernels cache verify --repo {build.snapshot.repo_id} --repair`; "
        "else ask the publisher for a new build."
    )


def _read(path: Path, limit: int) -> bytes | None:
    try:
        return read_bounded(path, limit)
    except FileNotFoundError:
        return None
    except NotRegularFile:
        raise StoreError(f"Cannot read {path}: it is not a file.") from None
    except FileTooLarge:
        if path.name == BUNDLE_FILE:
            raise UntrustedSignature(too_large(path.stat().st_size)) from None
        raise InvalidMetadata(f"{path.name} has more than {limit} bytes; metadata is never that large") from None
    except OSError as error:
        raise StoreError(f"Cannot read {path}: {error.strerror or error}.") from error


def _signature(
    metadata: bytes | None, bundle: bytes | None, rules: Sequence[Rule], offline: bool
) -> tuple[Proof, Identity | None]:
    required = [rule for rule in rules if rule.required]
    if bundle is None:
        if required:
            return Proof("failed", f"unsigned, and {required[0].where} requires a signature"), None
        return Proof("missing", f"unsigned: it has no {BUNDLE_FILE}"), None
    if metadata is None:
        return Proof("failed", f"it has a {BUNDLE_FILE} and no {METADATA_FILE}"), None
    refused: list[UntrustedSignature] = []
    for rule in rules:
        try:
            signer = verify_bundle(metadata, bundle, rule, offline=offline)
        except UntrustedSignature as error:
            refused.append(error)
        else:
            return Proof("ok", f"signed by {signer}"), signer
    return Proof("failed", "; ".join(dict.fromkeys(map(str, refused)))), None


def _check_signed_version(metadata: bytes, version: int | None) -> None:
    """Raise `UntrustedSignature` where what was signed is not the version that was named."""
    with suppress(InvalidMetadata):  # the digest, which is in it, says so
        check_signed_version(version, Metadata.from_bytes(metadata))


def _digest(folder: Path, metadata: bytes | None, remedy: str) -> Proof:
    if metadata is None:
        return Proof("missing", f"it has no {METADATA_FILE}")
    try:
        digest = Metadata.from_bytes(metadata).digest
        if digest is None:
            return Proof("missing", f"its {METADATA_FILE} has no digest")
        verify_digest(folder, digest, remedy)
    except (KernelsError, OSError) as error:
        return Proof("failed", str(error))
    return Proof("ok", f"{digest.algorithm} of {plural(len(digest.files), 'file')}")


def _pinned(folder: Path, pinned: ContentHash | None, large: Iterable[str] | None) -> Proof:
    if pinned is None:
        return _NOT_PINNED
    try:
        found = folder_hash(folder, pinned.kind, large=None if large is None else frozenset(large))
    except (KernelsError, OSError) as error:
        return Proof("failed", str(error))
    if found == pinned:
        return Proof("ok", f"{pinned.kind} as pinned")
    return Proof("failed", f"its content is {found.value}; {pinned.value} is pinned ({pinned.kind})")
