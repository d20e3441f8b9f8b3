"""What is built and what is not: the variants of a kernel's sources, and their builds on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernels.authoring.compile.frameworks.torch_installation import TorchInstallation
from kernels.authoring.compile.freshness import inputs_hash, is_current, stale_builds, stamp_file, stamped_code
from kernels.authoring.compile.output_folders import output_folders
from kernels.authoring.compile.plan.build_plan import BuildPlan
from kernels.authoring.compile.plan.variant_plans import VariantPlan, plan_variants
from kernels.authoring.compile.sources.workspace import Workspace, read_sources
from kernels.errors import CompilerNotFound, InvalidMetadata
from kernels.models.metadata import Metadata
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE

__all__ = ["VariantState", "list_variants"]


@dataclass(frozen=True)
class VariantState:
    """A variant and its build.

    Attributes:
        backend: The backend.
        variant: The variant's name; None if Torch, tvm-ffi or a compiler is missing that decides it.
        state: `up to date`; `stale`: a build would replace it; `not built`.
        buildable: Whether this machine can build it.
        reason: Why this machine cannot, or why it is stale, in one line; else "".
        archs: The device architectures that it covers, or would cover; empty if not declared.
        path: Its folder, if it is built.
    """

    backend: str
    variant: str | None
    state: Literal["up to date", "stale", "not built"]
    buildable: bool
    reason: str
    archs: tuple[str, ...]
    path: Path | None = None


def list_variants(
    source_dir: os.PathLike[str] | str,
    out_dir: os.PathLike[str] | str,
    *,
    backends: Iterable[str] | None = None,
    variant: str | None = None,
    this_gpu: bool = False,
    torches: Sequence[TorchInstallation] = (),
) -> list[VariantState]:
    """The variants that sources make, and the builds that exist; nothing is compiled or written.

    Args:
        source_dir: The folder with `build.toml`, or the parent of one kernel's source folders.
        out_dir: The folder of `build/<variant>`.
        backends: Only for these backends.
        variant: Only this variant.
        this_gpu: As `build_variants` would build them with it.
        torches: The installations of Torch to build for. Default: this Python's.

    Returns:
        Those that the sources make, in the order of `build.toml`'s backends; then the other builds in `out_dir`.

    Raises:
        RequestError: As for `build_variants`.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "torch-ext" / "twice").mkdir(parents=True)
        >>> _ = (folder / "torch-ext" / "twice" / "__init__.py").write_text("def twice(x): return x + x")
        >>> general = 'name = "twice"\\nversion = 1\\nlicense = "MIT"\\nedition = 5\\nbackends = ["cpu"]'
        >>> _ = (folder / "build.toml").write_text(f"[general]\\n{general}\\n[torch-noarch]\\n")
        >>> [(each.variant, each.state, each.buildable) for each in list_variants(folder, folder)]
        [('torch-cpu', 'not built', True)]
    """
    sources = read_sources(source_dir)
    out, work = output_folders(sources, out_dir)
    workspace = Workspace(out, sources)
    builds = _builds(out)
    wanted = None if backends is None else tuple(backends)
    planned = plan_variants(sources, backends=wanted, this_gpu=this_gpu, torches=torches)
    found = [_planned(each, out, work) for each in planned]
    made = {each.variant for each in found}
    stale = stale_builds(workspace) if builds.keys() - made else {}
    for name, metadata in builds.items():
        if name not in made and (wanted is None or metadata.backend.type in wanted):
            found.append(_other(name, metadata, out, stale))
    if variant is not None:
        found = [each for each in found if each.variant == variant]
        if not found:
            plan_variants(sources, backends=wanted, variant=variant, this_gpu=this_gpu, torches=torches)  # raises
    return found


def _builds(out: Path) -> dict[str, Metadata]:
    builds = {}
    for path in sorted(out.glob(f"{BUILD_FOLDER}/*/{METADATA_FILE}")):
        try:
            builds[path.parent.name] = Metadata.read_from_file(path)
        except InvalidMetadata:
            continue
    return builds


def _planned(each: VariantPlan, out: Path, work: Path) -> VariantState:
    plan = each.plan
    if plan is None:
        return VariantState(each.backend, None, "not built", False, each.reason, _declared(each))
    archs, path = plan.archs or (), out / BUILD_FOLDER / plan.variant
    if not (path / METADATA_FILE).is_file():
        return VariantState(each.backend, plan.variant, "not built", True, "", archs)
    try:
        inputs = inputs_hash(plan)
    except CompilerNotFound as error:
        return VariantState(each.backend, plan.variant, "stale", False, " ".join(str(error).split()), archs, path)
    stamp = stamp_file(work, plan.variant)
    if is_current(inputs, path, stamp):
        return VariantState(each.backend, plan.variant, "up to date", True, "", archs, path)
    return VariantState(each.backend, plan.variant, "stale", True, _why_stale(plan, path, stamp), archs, path)


def _declared(each: VariantPlan) -> tuple[str, ...]:
    """The architectures in `build.toml` of a variant that cannot be planned."""
    if not each.source.compiled:
        return tuple(each.source.archs.get(each.backend, ()))
    sections = [section for section in each.source.kernels if section.backend == each.backend]
    return tuple(dict.fromkeys(arch for section in sections for arch in section.archs))


def _why_stale(plan: BuildPlan, path: Path, stamp: Path) -> str:
    try:
        if Metadata.read_from_file(path / METADATA_FILE).id != plan.id:
            if stamped_code(path, stamp) == plan.state.contents.code:
                return "only tests, benchmarks or texts have changed, and with them the id"
            return "the sources have changed"
    except InvalidMetadata:
        return "its metadata.json is not valid"
    return "the flags, a compiler, Torch or this builder has changed, or a file of the build"


def _other(name: str, metadata: Metadata, out: Path, stale: Mapping[str, str]) -> VariantState:
    reason = "made by another machine, or for a Torch that is not asked for"
    state: Literal["up to date", "stale"] = "stale" if name in stale else "up to date"
    archs, path = tuple(metadata.backend.archs or ()), out / BUILD_FOLDER / name
    return VariantState(metadata.backend.type, name, state, False, reason, archs, path)
