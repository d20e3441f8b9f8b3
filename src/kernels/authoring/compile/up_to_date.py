"""Which builds need not be made again."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

from kernels.authoring.compile.build_plan import BuildPlan
from kernels.authoring.compile.contents import read_contents
from kernels.errors import KernelsError
from kernels.models.metadata import MAX_METADATA_BYTES, Metadata
from kernels.support.files import read_bounded
from kernels.trust.digest import verify_digest

__all__ = ["WORK_FOLDER", "inputs_hash", "is_current", "leave_stamp", "made_from", "stamp_file"]

#: Where objects, logs and stamps are kept, beside `build/`.
WORK_FOLDER = ".kernels-build"


def stamp_file(work: Path, variant: str) -> Path:
    """Where a variant's stamp is kept: outside the variant, whose files are published."""
    return work / f"{variant}.stamp"


def inputs_hash(plan: BuildPlan) -> str:
    """SHA-256, in hexadecimal, of everything that a build's bytes depend on.

    Args:
        plan: The build.

    Returns:
        A hash over the sources and their state in git, this builder, and the compilers with their command lines.

    Raises:
        CompilerNotFound: A compiler does not run.
    """
    state = plan.state
    inputs = [plan.id, plan.variant, state.contents.id, _builder()]
    inputs.append(json.dumps([state.provenance, plan.archs], sort_keys=True))
    if plan.compilation is not None:
        inputs += plan.compilation.fingerprint()
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()


@cache
def _builder() -> str:
    return read_contents(Path(__file__).parent).id


def is_current(inputs: str, variant_dir: Path, stamp: Path) -> bool:
    """Whether a variant is what building it again would give.

    Args:
        inputs: The hash of the build's inputs.
        variant_dir: The variant.
        stamp: Its stamp.

    Returns:
        True when the stamp is that of these inputs and the files are still those that were built.
    """
    metadata = variant_dir / "metadata.json"
    try:
        if _read(stamp)[:2] != [inputs, _hash(metadata)]:
            return False
        digest = Metadata.read_from_file(metadata).digest
        if digest is not None:
            verify_digest(variant_dir, digest)
    except (OSError, ValueError, KernelsError):
        return False
    return digest is not None


def leave_stamp(inputs: str, code: str, variant_dir: Path, stamp: Path) -> None:
    """Note what a finished variant was made from.

    Args:
        inputs: The hash of the build's inputs.
        code: The hash of the sources that builds are made of (`SourceHashes.code`).
        variant_dir: The variant.
        stamp: Its stamp.
    """
    stamp.write_text(f"{inputs} {_hash(variant_dir / 'metadata.json')} {code}\n", encoding="utf-8")


def made_from(variant_dir: Path, stamp: Path) -> str | None:
    """The hash of the sources that a variant was made of.

    Args:
        variant_dir: The variant.
        stamp: Its stamp.

    Returns:
        The `code` that was noted; None where nothing was, or of another build than stands there.
    """
    try:
        _, metadata, code = _read(stamp)
        return code if metadata == _hash(variant_dir / "metadata.json") else None
    except (OSError, ValueError):  # not there, or by an older builder
        return None


def _read(stamp: Path) -> list[str]:
    return read_bounded(stamp, 4096).decode().split()


def _hash(metadata: Path) -> str:
    return hashlib.sha256(read_bounded(metadata, MAX_METADATA_BYTES)).hexdigest()
