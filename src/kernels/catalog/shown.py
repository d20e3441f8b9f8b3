"""What a kernel's page shows, whatever it comes from: an index of a mirror, or a folder that is served."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kernels import backends
from kernels.catalog.signer import read_signer
from kernels.errors import InvalidVariant, KernelsError
from kernels.models.metadata import Metadata
from kernels.models.mirror import MirrorBuild, RepositoryIndex
from kernels.models.requested_names import branch_version
from kernels.resolver.variant import Variant, parse_variant

__all__ = [
    "CARD_FILE",
    "MAX_BUILDS",
    "MAX_VERSIONS",
    "ShownBuild",
    "ShownKernel",
    "ShownVersion",
    "in_order",
    "newest_first",
    "shown_kernel",
]

CARD_FILE = "README.md"

#: Builds of a version, and versions, that a page shows; it says how many more there are.
MAX_BUILDS = 500
MAX_VERSIONS = 8


@dataclass(frozen=True)
class ShownBuild:
    """A build.

    Attributes:
        name: The name of its folder.
        variant: What the name says; None where it is not a variant's name.
        size: Bytes of its files.
        files: How many files it has.
        archive: The path of its archive in the mirror, or "".
        archive_size: Bytes of the archive; None without one.
        metadata: Its metadata; None where it is missing or not valid.
        signed: Whether it has a signature, which nobody checked for the page.
        signer: Who signed, as the signature's certificate says; "" where that cannot be read.
    """

    name: str
    variant: Variant | None
    size: int
    files: int
    archive: str = ""
    archive_size: int | None = None
    metadata: Metadata | None = None
    signed: bool = False
    signer: str = ""

    @staticmethod
    def of(
        name: str, *, size: int, files: int, metadata: str | None, signature: str | None, archive: str = "",
        archive_size: int | None = None,
    ) -> ShownBuild:  # fmt: skip
        """A build from the texts of its files.

        Args:
            name, size, files, archive, archive_size: As above.
            metadata: The text of its `metadata.json`, or None.
            signature: The text of its `metadata.json.sigstore`, or None.
        """
        return ShownBuild(
            name,
            _variant(name),
            size,
            files,
            archive,
            archive_size,
            None if metadata is None else _metadata(metadata),
            signature is not None,
            "" if signature is None else read_signer(signature),
        )


@dataclass(frozen=True)
class ShownVersion:
    """A branch.

    Attributes:
        branch: Its name.
        commit: The commit at its head.
        date: When the commit was made, in ISO 8601; "" if that is not known.
        taken: When it was taken from its origin, or "".
        builds: Its builds, at most `MAX_BUILDS`.
        more: How many more there are.
        absent: The builds that its origin has and the mirror does not.
        card: The text of its README.md; None if there is none.
        images: SVG images by path in the repository.
    """

    branch: str
    commit: str
    date: str = ""
    taken: str = ""
    builds: tuple[ShownBuild, ...] = ()
    more: int = 0
    absent: tuple[str, ...] = ()
    card: str | None = None
    images: Mapping[str, str] = field(default_factory=dict)

    @property
    def number(self) -> int | None:
        """The version, if the branch is a version's."""
        return branch_version(self.branch)


@dataclass(frozen=True)
class ShownKernel:
    """A repository.

    Attributes:
        repo_id: Its name.
        versions: Its branches, the newest version first, at most `MAX_VERSIONS`.
        more: The names of the other branches.
        trusted: Whether its publisher is trusted at the origin; None if that is not known.
        origin: The URL of the Hub that it was taken from, or "".
        time: When it was last taken, or "".
        moved_to: The repository that replaces it, or None.
        tags: The commit of each tag.
        older: The other commits that the mirror has.
        number: The number of the mirror's index.
    """

    repo_id: str
    versions: tuple[ShownVersion, ...]
    more: tuple[str, ...] = ()
    trusted: bool | None = None
    origin: str = ""
    time: str = ""
    moved_to: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    older: tuple[str, ...] = ()
    number: int = 0

    @property
    def publisher(self) -> str:
        """The org of org/name."""
        return self.repo_id.partition("/")[0]

    @property
    def newest(self) -> ShownVersion | None:
        """The newest version; without versions the first branch."""
        return self.versions[0] if self.versions else None


def shown_kernel(index: RepositoryIndex) -> ShownKernel:
    """What the page of a mirror's repository shows.

    Args:
        index: The repository's index, with the commits of its branches.
    """
    names = newest_first(index.branches)
    return ShownKernel(
        repo_id=index.repo_id,
        versions=tuple(_version(index, name, index.branches[name]) for name in names[:MAX_VERSIONS]),
        more=tuple(names[MAX_VERSIONS:]),
        trusted=index.publisher.trusted,
        origin=index.origin.url,
        time=index.origin.time,
        moved_to=index.moved_to,
        tags=index.tags,
        older=index.older,
        number=index.number,
    )


def newest_first(branches: Iterable[str]) -> list[str]:
    """Names of branches in the order of a page: versions, the newest first, then `main`, then the others.

    Example:
        >>> newest_first(["main", "v2", "try", "v10"])
        ['v10', 'v2', 'main', 'try']
    """

    def rank(name: str) -> tuple[int, int, str]:
        version = branch_version(name)
        return (0, -version, "") if version is not None else (1 + (name != "main"), 0, name)

    return sorted(branches, key=rank)


def in_order(builds: Iterable[ShownBuild]) -> tuple[ShownBuild, ...]:
    """Builds in the order of a page: by backend, the newest versions first; those with another name last."""

    def rank(build: ShownBuild) -> tuple[int, str, tuple[int, ...], str]:
        variant = build.variant
        if variant is None:
            return 10**9, "", (), build.name
        backend = backends.known(variant.backend)
        order = 10**6 if backend is None else backend.order
        versions = [*(variant.accelerator_version or (0, 0)), *(variant.framework_version or (0, 0))]
        return order, variant.backend, (variant.noarch, *(-each for each in versions)), build.name

    return tuple(sorted(builds, key=rank))


def _version(index: RepositoryIndex, branch: str, commit: str) -> ShownVersion:
    entry = index.commits.get(commit)
    if entry is None:
        return ShownVersion(branch, commit)
    names = sorted(entry.variants)
    found = [_build(name, index.builds[entry.variants[name]]) for name in names[:MAX_BUILDS]]
    return ShownVersion(
        branch=branch,
        commit=commit,
        date=entry.date,
        taken=entry.taken,
        builds=in_order(found),
        more=len(names[MAX_BUILDS:]),
        absent=entry.absent,
        card=entry.texts.get(CARD_FILE),
        images={path: text for path, text in entry.texts.items() if path.endswith(".svg")},
    )


def _build(name: str, build: MirrorBuild) -> ShownBuild:
    return ShownBuild.of(
        name,
        size=build.size,
        files=len(build.files),
        metadata=build.metadata,
        signature=build.signature,
        archive=build.archive.name,
        archive_size=build.archive.size,
    )


def _variant(name: str) -> Variant | None:
    try:
        return parse_variant(name)
    except InvalidVariant:
        return None


def _metadata(text: str) -> Metadata | None:
    try:
        return Metadata.from_bytes(text.encode(), where="metadata.json")
    except (KernelsError, UnicodeEncodeError):
        return None
