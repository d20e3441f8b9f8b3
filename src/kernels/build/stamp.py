"""Which builds need not be made again."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

from kernels.build.contents import read_contents
from kernels.build.plan import Plan
from kernels.errors import KernelsError
from kernels.metadata import Metadata
from kernels.verify import verify_digest

__all__ = ["inputs_hash", "is_current", "leave_stamp"]


def inputs_hash(plan: Plan) -> str:
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
        stamp: Where its stamp is kept: outside the variant, whose files are published.

    Returns:
        True when the stamp is that of these inputs and the files are still those that were built.
    """
    metadata = variant_dir / "metadata.json"
    try:
        if stamp.read_text(encoding="utf-8") != _stamp(inputs, metadata):
            return False
        digest = Metadata.read_from_file(metadata).digest
        if digest is not None:
            verify_digest(variant_dir, digest)
    except (OSError, KernelsError):
        return False
    return digest is not None


def leave_stamp(inputs: str, variant_dir: Path, stamp: Path) -> None:
    """Note what a finished variant was made from.

    Args:
        inputs: The hash of the build's inputs.
        variant_dir: The variant.
        stamp: Where its stamp is kept.
    """
    stamp.write_text(_stamp(inputs, variant_dir / "metadata.json"), encoding="utf-8")


def _stamp(inputs: str, metadata: Path) -> str:
    return f"{inputs} {hashlib.sha256(metadata.read_bytes()).hexdigest()}\n"
