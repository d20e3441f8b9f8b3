"""Check a built kernel before it is published or used: its files, its metadata, and what it does when loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from pathlib import Path

import msgspec

from kernels.authoring.check.checked_variant import CheckedVariant, find_variants
from kernels.authoring.check.description import digest, layout, metadata
from kernels.authoring.check.loading import load_findings
from kernels.authoring.check.native import is_native, native_files, require_reader
from kernels.authoring.check.source_steps import layers, source_lines, source_namespaces
from kernels.authoring.compile.freshness import rebuild_advice, stale_builds
from kernels.authoring.compile.sources.workspace import find_workspace
from kernels.errors import KernelsError
from kernels.models.snapshot import BUILD_FOLDER
from kernels.support.checks import CheckResult, StepResults, failed, ok, run_step, skipped

__all__ = ["STEPS", "VariantAudit", "audit", "audit_variant"]

#: Time limit of a step: hashing the largest variant that is read takes a minute.
_SECONDS = 300.0

#: The steps that only read files, in order; `metadata` comes before the steps that use it.
STEPS: tuple[tuple[str, Callable[[CheckedVariant], StepResults]], ...] = (
    ("layout", layout),
    ("metadata", metadata),
    ("digest", digest),
    ("namespaces", source_namespaces),
    ("source lines", source_lines),
    ("layers", layers),
    ("native files", native_files),
)


class VariantAudit(msgspec.Struct, frozen=True):
    """The findings about one variant, in the order of the steps."""

    variant: str  # the name of its folder
    path: str
    findings: tuple[CheckResult, ...]

    @property
    def failed(self) -> bool:
        """Whether anything is wrong; what is optional or cannot be checked on this machine does not count."""
        return any(finding.verdict == "failed" for finding in self.findings)

    def strict(self) -> VariantAudit:
        """The same audit with hints, and what is missing, as failures."""
        findings = (
            msgspec.structs.replace(each, verdict="failed") if each.verdict in ("hint", "missing") else each
            for each in self.findings
        )
        return msgspec.structs.replace(self, findings=tuple(findings))


def audit(path: os.PathLike[str] | str, *, dynamic: bool = True) -> list[VariantAudit]:
    """Check every variant in a folder.

    Args:
        path: A repository's folder, its `build` folder, or one variant.
        dynamic: Whether to also load the variants that fit this machine, each in a separate process. Their code then
            runs with the caller's rights.

    Returns:
        The findings, one audit for each variant.

    Raises:
        RepositoryNotFound: There is no build at the path (a `FileNotFoundError`).
        MissingPythonDependency: There are native files, and what reads them is not installed.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "torch-cpu"
        >>> folder.mkdir()
        >>> _ = (folder / "__init__.py").write_text("")
        >>> [found] = audit(folder, dynamic=False)
        >>> found.variant, found.failed, found.findings[0].what
        ('torch-cpu', True, 'metadata.json is missing')
    """
    if not isinstance(dynamic, bool):
        raise TypeError(f"`dynamic` is {dynamic!r} ({type(dynamic).__name__}); expected a bool.")
    stale = cache(_stale_builds)  # each folder of sources is read once
    audits = []
    for folder in find_variants(path):
        found = audit_variant(folder, dynamic=dynamic)
        if folder.parent.name == BUILD_FOLDER and (builds := stale(folder.parent.parent)) is not None:
            reason = builds if isinstance(builds, str) else builds.get(folder.name)
            finding = CheckResult("sources", *(ok("the build is up to date") if reason is None else failed(reason)))
            found = msgspec.structs.replace(found, findings=(*found.findings, finding))
        audits.append(found)
    return audits


def _stale_builds(folder: Path) -> Mapping[str, str] | str | None:
    """The out-of-date builds of a folder with the reasons; an error that hides them; None without sources."""
    try:
        workspace = find_workspace(folder)
        if workspace is None or workspace.folder != folder:
            return None
        advice = rebuild_advice(workspace)
        return {name: f"{reason}: {advice}" for name, reason in stale_builds(workspace).items()}
    except KernelsError as error:
        return str(error)


def audit_variant(
    folder: Path,
    *,
    dynamic: bool = True,
    root: Path | None = None,
    bytecode: bool = True,
    without: Collection[str] = (),
) -> VariantAudit:
    """Check one variant.

    Args:
        folder: Its folder.
        dynamic: Whether to also load it, if it fits this machine.
        root: The folder that links may lead into, as a cache keeps files elsewhere. Default: the variant's own.
        bytecode: Whether to check bytecode; an upload leaves it out.
        without: Names of steps to leave out, as the caller did their work.

    Raises:
        MissingPythonDependency: There are native files, and what reads them is not installed.
    """
    checked = CheckedVariant.of(folder, root, bytecode=bytecode)
    steps = [step for step in STEPS if step[0] not in without] if checked.files.safe else STEPS[:1]
    if checked.files.safe and any(is_native(checked, name) for name in checked.files.sizes):
        require_reader(checked)
    findings = [finding for name, step in steps for finding in run_step(name, partial(step, checked), None, _SECONDS)]
    if not checked.files.safe:
        findings += [CheckResult(name, *skipped("the files cannot be read safely")) for name, _ in STEPS[1:]]
    elif dynamic:
        findings += load_findings(checked)
    backend = None if checked.variant is None else checked.variant.backend
    findings = [msgspec.structs.replace(finding, backend=backend) for finding in findings]
    return VariantAudit(folder.name, os.fspath(folder), tuple(findings))
