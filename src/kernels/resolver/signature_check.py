"""Who signed a build; remembered, so that the same bytes under the same policy are verified once.

<cache>/.locks/kernels-signatures/<hash of metadata, bundle and rule>.json    who signed
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from kernels import settings
from kernels.errors import InvalidRepository, NotInCache, UntrustedSignature
from kernels.models.snapshot import BUILD_FOLDER, BUNDLE_FILE, Snapshot
from kernels.sources.base import Source
from kernels.support.record_file import StoredRecord, read_record, write_record
from kernels.trust.policy import Identity, Rule
from kernels.trust.sigstore import MAX_BUNDLE_BYTES, check_size, verify_bundle

__all__ = ["require_signature", "signer_of"]


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


def require_signature(source: Source, snapshot: Snapshot, variant: str, metadata: bytes, rule: Rule) -> Identity:
    """Who signed a build of a snapshot.

    Args:
        source: Where the snapshot comes from.
        snapshot: The snapshot.
        variant: The build.
        metadata: The content of its `metadata.json`.
        rule: Who may sign.

    Raises:
        UntrustedSignature: It has no signature, or not one that the rule accepts.
        KernelsError: It cannot be checked; as `verify_bundle` says.
    """
    file = snapshot.file(f"{BUILD_FOLDER}/{variant}/{BUNDLE_FILE}")
    if file is None:
        raise UntrustedSignature(f"it has no signature ({BUNDLE_FILE}), and {rule.where} requires one")
    check_size(file.size)
    try:
        bundle = source.read(snapshot, file, MAX_BUNDLE_BYTES)
    except (NotInCache, InvalidRepository) as error:
        raise UntrustedSignature(f"its {BUNDLE_FILE} cannot be read: {error}") from error
    # A source that does not connect, as a folder, is perhaps on a machine that cannot.
    return signer_of(metadata, bundle, rule, offline=not source.connects)


def _path(metadata: bytes, bundle: bytes, rule: Rule) -> Path:
    parts = (hashlib.sha256(metadata).hexdigest(), hashlib.sha256(bundle).hexdigest(), rule.key)
    key = hashlib.sha256(" ".join(parts).encode()).hexdigest()
    return settings.cache_dir() / ".locks" / "kernels-signatures" / f"{key}.json"
