"""Which builds need not be made again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from kernels.build.plan import Plan, source_hash
from kernels.build.provenance import provenance
from kernels.errors import KernelsError
from kernels.metadata import Metadata
from kernels.verify import verify_digest

__all__ = ["is_current", "leave_stamp"]


def is_current(plan: Plan, variant_dir: Path, work_dir: Path) -> bool:
    """Whether a variant is what building it again would give.

    Args:
        plan: The build.
        variant_dir: Its place.
        work_dir: Where stamps are kept: outside the variant, whose files are published.

    Returns:
        True when its stamp is that of these inputs and the files are still those that were built.
    """
    stamp = _stamp_file(plan, work_dir)
    metadata = variant_dir / "metadata.json"
    try:
        if stamp.read_text(encoding="utf-8") != _stamp(plan, metadata):
            return False
        digest = Metadata.read_from_file(metadata).digest
        if digest is not None:
            verify_digest(variant_dir, digest)
    except (OSError, KernelsError):
        return False
    return digest is not None


def leave_stamp(plan: Plan, variant_dir: Path, work_dir: Path) -> None:
    """Note what a finished variant was made from.

    Args:
        plan: The build.
        variant_dir: Its place.
        work_dir: Where stamps are kept.
    """
    _stamp_file(plan, work_dir).write_text(_stamp(plan, variant_dir / "metadata.json"), encoding="utf-8")


def _stamp_file(plan: Plan, work_dir: Path) -> Path:
    return work_dir / f"{plan.variant}.stamp"


def _stamp(plan: Plan, metadata: Path) -> str:
    inputs = [plan.id, source_hash(plan.source.folder), source_hash(Path(__file__).parent)]
    inputs.append(json.dumps(provenance(plan.source.folder), sort_keys=True))
    if plan.compilation is not None:
        inputs += plan.compilation.fingerprint()
    digest = hashlib.sha256("\0".join(inputs).encode())
    return f"{digest.hexdigest()} {hashlib.sha256(metadata.read_bytes()).hexdigest()}\n"
