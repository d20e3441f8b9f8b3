"""Who signed a build; remembered, so that the same bytes under the same policy are verified once.

<cache>/.locks/kernels-signatures/<hash of metadata, bundle and rule>.json    who signed
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from kernels import settings
from kernels.errors import InvalidRepository, NotInCache, UntrustedSignature
from kernels.models.metadata import MAX_METADATA_BYTES
from kernels.models.snapshot import BUNDLE_FILE, RepoFile, Snapshot
from kernels.sources.base import Source
from kernels.support.record_file import StoredRecord, read_record, write_record
from kernels.support.tasks import Task
from kernels.trust.policy import Identity, Rule
from kernels.trust.sigstore import MAX_BUNDLE_BYTES, check_size, verify_bundle

__all__ = ["read_signed", "signer_of"]


class _Signed(StoredRecord):
    """Who signed; its name says what, and under which rule."""

    signer: Identity


def signer_of(metadata: bytes, bundle: bytes, rule: Rule, *, offline: bool) -> Identity:
    """Who signed, where that is whom a rule allows: from what was found before, else by verifying.

    Args:
        metadata: The content of `metadata.json`, which is not parsed here.
        bundle: The content of `metadata.json.sigstore`.
        rule: Who may sign, and which Sigstore is believed.
        offline: Whether the keys of the public Sigstore are taken from this machine alone.

    Raises:
        UntrustedSignature: The signature is not valid, or its signer is not allowed.
        KernelsError: It cannot be checked; as `verify_bundle` says.
    """
    path = _path(metadata, bundle, rule)
    known = read_record(path, _Signed)
    if known is not None and known.signer in rule.signers:
        return known.signer
    identity = verify_bundle(metadata, bundle, [rule], offline=offline)
    write_record(path, _Signed(identity))
    return identity


def read_signed(source: Source, snapshot: Snapshot, metadata: RepoFile, rule: Rule) -> bytes:
    """The content of a build's metadata, which somebody signed whom a rule allows.

    Args:
        source: Where the snapshot comes from.
        snapshot: The snapshot.
        metadata: The build's `metadata.json`.
        rule: Who may sign.

    Raises:
        NotInCache: The metadata is not here, and nothing may be downloaded.
        UntrustedSignature: It has no signature, or not one that the rule accepts.
        KernelsError: It cannot be checked; as `verify_bundle` says.
    """
    bundle = snapshot.file(f"{metadata.path.rpartition('/')[0]}/{BUNDLE_FILE}")
    if bundle is None:
        raise UntrustedSignature(f"it has no signature ({BUNDLE_FILE}), and {rule.where} requires one")
    check_size(bundle.size)

    def read_bundle() -> bytes:
        try:
            return source.read(snapshot, bundle, MAX_BUNDLE_BYTES)
        except (NotInCache, InvalidRepository) as error:
            raise UntrustedSignature(f"its {BUNDLE_FILE} cannot be read: {error}") from error

    beside = Task(read_bundle, name="signature")
    try:
        content = source.read(snapshot, metadata, MAX_METADATA_BYTES)
    except BaseException:
        beside.cancel()
        raise
    # A source that does not connect, as a folder, is perhaps on a machine that cannot.
    signer_of(content, beside.result(), rule, offline=not source.connects)
    return content


def _path(metadata: bytes, bundle: bytes, rule: Rule) -> Path:
    parts = (hashlib.sha256(metadata).hexdigest(), hashlib.sha256(bundle).hexdigest(), rule.key)
    key = hashlib.sha256(" ".join(parts).encode()).hexdigest()
    return settings.cache_dir() / ".locks" / "kernels-signatures" / f"{key}.json"
