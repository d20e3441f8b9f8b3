"""Which build a kernel's own tests run on."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from kernels import backends
from kernels.errors import KernelsError, RequestError, UntrustedPublisher
from kernels.models.metadata import Metadata
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE
from kernels.operations.call import KernelRequest, context_for
from kernels.operations.explain import explain_folder
from kernels.resolver.build_choice import BuildChoice
from kernels.resolver.decision import VariantRejected
from kernels.resolver.plan import plan_tree
from kernels.resolver.variant import UNIVERSAL, Variant
from kernels.sources.folder import PathSource

__all__ = ["TestedBuild", "check_prerequisites", "choose_tested_build"]


@dataclass(frozen=True)
class TestedBuild:
    """The build that `import <name>` gives the tests.

    Attributes:
        folder: The build's folder; the kernel's, if no build fits.
        id: The build's `id`; "" if no build fits.
        local: What `get_kernel` loads in place of the kernel's repository: the kernel's folder, or one build.
        backend: The default backend of the run; None for the usual one.
        why_not: Why no build fits, or "".
        note: Why the build is not for the default backend, or "".
    """

    folder: Path
    id: str
    local: Path
    backend: str | None = None
    why_not: str = ""
    note: str = ""

    @property
    def variant(self) -> str:
        """The build's name."""
        return self.folder.name


def choose_tested_build(kernel: Path, *, backend: str | None = None, variant: str | None = None) -> TestedBuild:
    """The build of a kernel's folder to test.

    Args:
        kernel: The folder, with builds in `build/`.
        backend: The backend to test.
        variant: The name of the build to test; not together with `backend`.

    Raises:
        RequestError: There is no such build or backend, or it does not fit this machine. Without `backend` and
            `variant`, `TestedBuild.why_not` says that no build fits.
    """
    if backend is not None and variant is not None:
        raise RequestError(
            f"`variant` is {variant!r} and `backend` is {backend!r}; a variant is for one backend, so give one of them."
        )
    if variant is not None:
        return _of_variant(kernel, variant)
    if backend is not None:
        backend = backends.get(backend).name
    try:
        choice = explain_folder(kernel, backend=backend)
    except KernelsError as error:
        raise RequestError(f"The builds for {backend} cannot be tested here: {error}") from error
    if choice.best is None:
        reasons = _reasons(choice)
        why_not = f"none of the builds in {kernel / BUILD_FOLDER} fits this machine: {reasons}"
        if backend is None and (other := _for_another_backend(kernel, choice)) is not None:
            return replace(other, note=f"the tests ran on {other.variant}, for {other.backend}: {reasons}")
        if backend is not None:
            raise RequestError(f"`backend` is {backend!r}, but {why_not}.")
        return TestedBuild(kernel, "", kernel, why_not=why_not)
    folder = kernel / BUILD_FOLDER / choice.best
    return TestedBuild(folder, _id(folder), kernel, backend)


def _for_another_backend(kernel: Path, choice: BuildChoice) -> TestedBuild | None:
    """A build for a backend that is not the default here: of a kernel for CPUs alone, on a machine with a GPU."""
    variants = [each.variant for each in choice.resolution.decisions]
    for backend in dict.fromkeys(each.backend for each in variants if isinstance(each, Variant)):
        with suppress(KernelsError):
            best = explain_folder(kernel, backend=backend).best
            if best is not None:
                folder = kernel / BUILD_FOLDER / best
                return TestedBuild(folder, _id(folder), kernel, backend)
    return None


def _of_variant(kernel: Path, variant: str) -> TestedBuild:
    folder = kernel / BUILD_FOLDER / variant
    names = sorted(path.parent.name for path in kernel.glob(f"{BUILD_FOLDER}/*/{METADATA_FILE}"))
    if variant not in names:
        raise RequestError(f"`variant` is {variant!r}; the builds in {kernel / BUILD_FOLDER} are {', '.join(names)}.")
    parsed = explain_folder(folder).resolution.decisions[0].variant
    backend = parsed.backend if isinstance(parsed, Variant) and parsed.backend != UNIVERSAL else None
    try:
        choice = explain_folder(folder, backend=backend)
    except KernelsError as error:
        raise RequestError(f"`variant` is {variant!r}, which does not fit this machine: {error}") from error
    if choice.best is None:
        raise RequestError(
            f"`variant` is {variant!r}, which does not fit this machine: {_reasons(choice, names=False)}."
        )
    return TestedBuild(folder, _id(folder), folder, backend)


def _reasons(choice: BuildChoice, *, names: bool = True) -> str:
    rejected = [each for each in choice.resolution.decisions if isinstance(each, VariantRejected)]
    return "; ".join(f"{each.variant.name}: {each.reason}" if names else each.reason for each in rejected)


def _id(folder: Path) -> str:
    return Metadata.read_from_file(folder / METADATA_FILE).id


def check_prerequisites(build: TestedBuild) -> None:
    """Check that what a build depends on is installed or can be found, before the tests start.

    An untrusted publisher of a dependency is no error: tests can pass `trust_remote_code`.

    Args:
        build: The build.

    Raises:
        KernelsError: A Python package is not installed, or a kernel cannot be found.
    """
    if build.why_not:
        return
    source = PathSource(build.folder)
    requirement = source.requirement
    with suppress(UntrustedPublisher):
        plan_tree(context_for(KernelRequest(requirement.repo_id, backend=build.backend)), requirement, source)
