"""A built kernel, checked before it is published or used: where its files lie, what they say, and what they do."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from kernels.authoring.check.description import digest, layout, metadata
from kernels.authoring.check.loading import load_findings
from kernels.authoring.check.native import is_native, native_files, require_elftools
from kernels.authoring.check.sources import forbidden_lines, namespaces, static_layers
from kernels.authoring.check.subject import Subject, find_variants
from kernels.authoring.compile.freshness import rebuild_advice, stale_builds
from kernels.authoring.compile.workspace import find_workspace
from kernels.errors import KernelsError
from kernels.models.snapshot import BUILD_FOLDER
from kernels.support.checks import CheckResult, StepResults, failed, ok, run_step, skipped

__all__ = ["STEPS", "VariantAudit", "audit", "audit_variant"]

#: How long a step may take: hashing the largest variant that is looked at takes a minute.
_SECONDS = 300.0

#: The step that compares variants with the sources beside them.
_SOURCES = "sources"

#: The steps that read files and run nothing, in their order; `metadata` comes before those that need what it says.
STEPS: tuple[tuple[str, Callable[[Subject], StepResults]], ...] = (
    ("layout", layout),
    ("metadata", metadata),
    ("digest", digest),
    ("namespaces", namespaces),
    ("source lines", forbidden_lines),
    ("layers", static_layers),
    ("native files", native_files),
)


class VariantAudit(msgspec.Struct, frozen=True):
    """What was found about one variant.

    Attributes:
        variant: The name of its folder.
        path: The folder.
        findings: What each step found, in order.
    """

    variant: str
    path: str
    findings: tuple[CheckResult, ...]

    @property
    def failed(self) -> bool:
        """Whether anything is wrong, as against optional or not to be seen on this machine."""
        return any(finding.verdict == "failed" for finding in self.findings)


def audit(path: os.PathLike[str] | str, *, dynamic: bool = True) -> list[VariantAudit]:
    """Check every variant in a folder.

    Args:
        path: A repository's folder, its `build` folder, or one variant.
        dynamic: Whether variants that fit this machine are also loaded, each in a process of its own. Their code then
            runs with the caller's rights.

    Returns:
        What was found, a variant each.

    Raises:
        RepositoryNotFound: There is no build at the path (a `FileNotFoundError`).
        MissingPythonDependency: There are native files, and pyelftools, which reads them, is not installed.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "torch-cpu"
        >>> folder.mkdir()
        >>> _ = (folder / "__init__.py").write_text("")
        >>> [found] = audit(folder, dynamic=False)
        >>> found.variant, found.failed, found.findings[0].what
        ('torch-cpu', True, 'there is no metadata.json')
    """
    if not isinstance(dynamic, bool):
        raise TypeError(f"`dynamic` is {dynamic!r}, a {type(dynamic).__name__}; allowed is True or False.")
    folders = find_variants(path)
    freshness = _Freshness()
    return [_with(audit_variant(folder, dynamic=dynamic), freshness.finding(folder)) for folder in folders]


def _with(found: VariantAudit, finding: CheckResult | None) -> VariantAudit:
    return found if finding is None else msgspec.structs.replace(found, findings=(*found.findings, finding))


class _Freshness:
    """Whether variants are those of the sources beside them; each folder of sources is read once."""

    def __init__(self) -> None:
        self._known: dict[Path, Mapping[str, str] | str | None] = {}

    def finding(self, folder: Path) -> CheckResult | None:
        """What there is to say of a variant: nothing where there are no sources."""
        home = folder.parent.parent
        if folder.parent.name != BUILD_FOLDER:
            return None
        if home not in self._known:
            self._known[home] = _stale(home)
        stale = self._known[home]
        if stale is None:
            return None
        if isinstance(stale, str):
            return CheckResult(_SOURCES, *failed(stale))
        reason = stale.get(folder.name)
        return CheckResult(_SOURCES, *(ok("built from them as they are") if reason is None else failed(reason)))


def _stale(home: Path) -> Mapping[str, str] | str | None:
    """Of the variants in a folder those that are not of its sources, or why that cannot be told; None without any."""
    try:
        project = find_workspace(home)
        if project is None or project.folder != home:
            return None
        advice = rebuild_advice(project)
        return {name: f"{reason}: {advice}" for name, reason in stale_builds(project).items()}
    except KernelsError as error:
        return str(error)


def audit_variant(
    folder: Path, *, dynamic: bool = True, root: Path | None = None, bytecode: bool = True
) -> VariantAudit:
    """Check one variant.

    Args:
        folder: Its folder.
        dynamic: Whether it is also loaded, where it fits this machine.
        root: The folder that links may lead into: a cache keeps files elsewhere. Default: the variant's own.
        bytecode: Whether bytecode is looked at; an upload leaves it out.

    Raises:
        MissingPythonDependency: There are native files, and pyelftools is not installed.
    """
    subject = Subject.of(folder, root)
    if not bytecode:
        subject.files = subject.files.without_bytecode()
    steps = STEPS if subject.files.safe else STEPS[:1]
    if subject.files.safe and any(is_native(subject, name) for name in subject.files.sizes):
        require_elftools()
    findings = [finding for name, step in steps for finding in run_step(name, partial(step, subject), None, _SECONDS)]
    if not subject.files.safe:
        findings += [CheckResult(name, *skipped("the files cannot be read safely")) for name, _ in STEPS[1:]]
    elif dynamic:
        findings += load_findings(subject)
    backend = None if subject.variant is None else subject.variant.backend
    return VariantAudit(
        folder.name,
        os.fspath(folder),
        tuple(CheckResult(each.step, each.verdict, each.what, backend) for each in findings),
    )
