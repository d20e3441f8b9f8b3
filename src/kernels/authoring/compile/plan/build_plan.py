"""Plan a source's builds before anything runs: the variants, their ids, and the compiler runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kernels.authoring.compile.build_toml.model import KernelSource
from kernels.authoring.compile.execution.compiler_steps import Compilation
from kernels.authoring.compile.frameworks.installed import default_backends, installed_framework
from kernels.authoring.compile.frameworks.torch_installation import TorchInstallation
from kernels.authoring.compile.metadata import provenance
from kernels.authoring.compile.plan.compilation import plan_compilation
from kernels.authoring.compile.plan.sections import declared_archs, plan_files, plan_sections
from kernels.authoring.compile.plan.variant_name import variant_name
from kernels.authoring.compile.sources.git_tree import git_tree
from kernels.authoring.compile.sources.python_files import check_python
from kernels.authoring.compile.sources.source_files import SourceHashes, hash_sources
from kernels.backends import Backend, find

__all__ = ["BuildPlan", "SourceState", "plan_build", "plan_builds", "source_state"]


@dataclass(frozen=True)
class SourceState:
    """The current state of a source folder, the same for all of its variants.

    Attributes:
        contents: The hashes of its files.
        unique: The end of its builds' ids, different for each state.
        provenance: The field of the metadata, or None if the folder is not in a git repository.
    """

    contents: SourceHashes
    unique: str
    provenance: Mapping[str, Any] | None


@dataclass(frozen=True)
class BuildPlan:
    """One variant to build.

    Attributes:
        source: The source.
        state: The state of the source.
        backend: The backend that is built for.
        variant: The name of the variant.
        id: The name of its module and of its operators' namespace.
        archs: The device architectures that it covers, or None if not declared.
        compilation: The compiler runs, or None when noarch.
        extension_file: The file name of the compiled extension; "" when noarch.
    """

    source: KernelSource
    state: SourceState
    backend: Backend
    variant: str
    id: str
    archs: tuple[str, ...] | None
    compilation: Compilation | None
    extension_file: str = ""


def source_state(source: KernelSource) -> SourceState:
    """Read the state of a source from its files and git.

    Returns:
        The state. Its `unique` is the first seven digits of the folder's tree in git. If the files differ from the last
        commit, it is seven digits of their own hash and `_dirty`, so that each change can be loaded beside the others;
        without git, it is seven digits of that hash.

    Raises:
        RequestError: The package has a file that cannot be published, or that Python cannot compile.
    """
    check_python(source)  # before hours of compiling, not after
    contents, git = hash_sources(source.folder), git_tree(source.folder)
    unique = contents.id[:7] if git is None else f"{contents.id[:7]}_dirty" if git.dirty else git.tree[:7]
    return SourceState(contents, unique, provenance(git))


def plan_builds(source: KernelSource, backends: Iterable[str] | None = None) -> list[BuildPlan]:
    """Plan the variants of a source, for these backends or by default for all that can be built here.

    Args:
        source: The source, as `read_source` reads it.
        backends: Names of backends; those that `build.toml` does not list are ignored.

    Returns:
        A plan for each variant, in the order of `build.toml`'s backends.

    Raises:
        RequestError: The package has a file that cannot be published, or that Python cannot compile.
        CompilerNotFound: Torch, tvm-ffi or a compiler is not installed, or not for that backend.
    """
    wanted = default_backends(source) if backends is None else tuple(backends)
    state = source_state(source)
    return [plan_build(source, state, name) for name in source.backends if name in wanted]


def plan_build(
    source: KernelSource,
    state: SourceState,
    backend: str,
    *,
    this_gpu: bool = False,
    torch: TorchInstallation | None = None,
) -> BuildPlan:
    """Plan one variant of a source.

    Args:
        source: The source.
        state: Its state.
        backend: One of its backends.
        this_gpu: Compile for the architectures of the visible devices only.
        torch: The Torch to compile against. Default: this Python's.

    Raises:
        RequestError: The backend is not registered, or the sources cover no visible device.
        CompilerNotFound: Torch, tvm-ffi, a compiler or another dependency is not installed, not for that backend, or
            not of an allowed version.
    """
    found = find(backend)
    id = f"_{source.name.python_name}_{backend}_{state.unique}"
    if not source.compiled:
        return BuildPlan(source, state, found, variant_name(source, found, None), id, source.archs.get(backend), None)
    framework = installed_framework(source, found, torch)
    sections = plan_sections(source, found, framework, this_gpu)
    files = plan_files(source, sections, framework)
    compilation = plan_compilation(source, state.contents, found, files, id, framework)
    every = declared_archs(sections)
    name = variant_name(source, found, framework)
    return BuildPlan(source, state, found, name, id, every or None, compilation, f"{id}{framework.suffix}")
