"""The metadata of a snapshot's builds: limited in size, and a required signature is verified before parsing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.errors import InvalidMetadata, InvalidRepository, MissingMetadata, NotInCache, UntrustedSignature
from kernels.models.metadata import MAX_METADATA_BYTES, Metadata
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE, Snapshot
from kernels.sources.base import Source
from kernels.sources.hub_errors import of_hub
from kernels.support.tasks import side_by_side

if TYPE_CHECKING:
    from kernels.resolver.context import ResolveContext
    from kernels.resolver.found import FoundSnapshot
    from kernels.trust.policy import Rule

__all__ = [
    "MAX_READ_BYTES",
    "check_signed_version",
    "every_metadata_of",
    "metadata_bytes",
    "metadata_of",
    "read_metadata",
]

#: Bytes of metadata that are read of one snapshot; published builds have a few kilobytes each.
MAX_READ_BYTES = 64 * 2**20

#: The most builds for which `every_metadata_of` reads metadata; published snapshots have at most some 60.
MAX_BUILDS = 1024

#: Builds that are read at the same time.
_AT_ONCE = 8


def metadata_of(context: ResolveContext, found: FoundSnapshot, variant: str) -> Metadata:
    """The metadata of a build; where it must be signed, it is of the version that was asked for.

    Args:
        context: Who must have signed which builds.
        found: The snapshot.
        variant: The build.

    Raises:
        InvalidMetadata, MissingMetadata, NotInCache, UntrustedSignature: As for `read_metadata`.
    """
    rule = found.signing_rule(context)
    metadata = read_metadata(found.source, found.snapshot, variant, rule)
    if rule is not None:
        check_signed_version(found.version, metadata)
    return metadata


def read_metadata(source: Source, snapshot: Snapshot, variant: str, rule: Rule | None = None) -> Metadata:
    """The metadata of a build.

    Args:
        source: Where the snapshot comes from.
        snapshot: The snapshot.
        variant: The build.
        rule: Who must have signed the build, which is checked before the metadata is parsed; None for nobody.

    Raises:
        InvalidMetadata: It is too large, or not in the format.
        MissingMetadata: There is none.
        NotInCache: It is not here, and nothing may be downloaded: it is unknown whether it is valid.
        UntrustedSignature: A signature is required, and none is accepted by the rule.
    """
    path = f"{BUILD_FOLDER}/{variant}/{METADATA_FILE}"
    file = snapshot.file(path)
    if file is None:
        missing = MissingMetadata(f"it has no {METADATA_FILE}; builds made before that format have none")
        raise missing if source.user_owned else of_hub(missing)
    if file.size > MAX_METADATA_BYTES:
        raise InvalidMetadata(f"its {METADATA_FILE} has {file.size} bytes; metadata is never that large")
    if rule is None:
        content = source.read(snapshot, file, MAX_METADATA_BYTES)
    else:
        from kernels.resolver.signature_check import read_signed

        content = read_signed(source, snapshot, file, rule)
    metadata = Metadata.from_bytes(content, where=path)
    if rule is not None and metadata.digest is None:
        raise UntrustedSignature(
            f"its {METADATA_FILE} is signed, but has no digest, so the signature does not cover the build's files"
        )
    return metadata


def every_metadata_of(
    context: ResolveContext, found: FoundSnapshot
) -> dict[str, Metadata | InvalidMetadata | NotInCache]:
    """The metadata of every build of a snapshot, by name, or why it is not valid, or not here.

    Args:
        context: Who must have signed which builds.
        found: The snapshot.

    Raises:
        InvalidRepository: It has too many builds, or too much metadata.
        UntrustedSignature: A build must be signed, and is not, or is of another version.
    """
    names = list(found.snapshot.builds)
    if len(names) > MAX_BUILDS:
        raise InvalidRepository(f"{found.asked} has {len(names)} builds; more than {MAX_BUILDS} are not read.")
    size = sum(metadata_bytes(found.snapshot, name) for name in names)
    if size > MAX_READ_BYTES:
        raise InvalidRepository(
            f"{found.asked} has builds with {size} bytes of metadata; more than {MAX_READ_BYTES} are not read."
        )

    def read(name: str) -> Metadata | InvalidMetadata | NotInCache:
        try:
            return metadata_of(context, found, name)
        except (InvalidMetadata, NotInCache) as error:
            return error

    return dict(zip(names, side_by_side(read, names, at_once=_AT_ONCE, name="metadata"), strict=True))


def metadata_bytes(snapshot: Snapshot, variant: str) -> int:
    """Bytes of a build's metadata that would be read; 0 if it is missing or too large."""
    file = snapshot.file(f"{BUILD_FOLDER}/{variant}/{METADATA_FILE}")
    return 0 if file is None or file.size > MAX_METADATA_BYTES else max(1, file.size)


def check_signed_version(asked: int | None, metadata: Metadata) -> None:
    """Raise unless signed metadata is of the requested version: an old build with known faults could replace a new one.

    Args:
        asked: The requested version, if any.
        metadata: The signed metadata.

    Raises:
        UntrustedSignature: It is another version.

    Example:
        >>> text = b'{"name": "relu", "id": "_relu_cpu_1234567", "backend": {"type": "cpu"}}'
        >>> check_signed_version(2, Metadata.from_bytes(text))
        Traceback (most recent call last):
        kernels.errors.UntrustedSignature: the signed metadata has no version; expected version 2
    """
    if asked is not None and metadata.version != asked:
        signed = "has no version" if metadata.version is None else f"is version {metadata.version}"
        raise UntrustedSignature(f"the signed metadata {signed}; expected version {asked}")
