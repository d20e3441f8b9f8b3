"""What a card says of a kernel: collected from its builds, its sources, and what `kernels benchmark` left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernels.authoring.compile.sources.workspace import Workspace
from kernels.authoring.publish.card.benchmarks import BenchmarkResult, Plot, read_plots, read_results
from kernels.authoring.publish.card.operators import operator_schemas
from kernels.authoring.publish.card.python_api import KernelApi, read_api
from kernels.authoring.publish.local_builds import LocalBuilds
from kernels.models.metadata import Metadata
from kernels.models.snapshot import BUILD_FOLDER
from kernels.resolver.variant import UNIVERSAL, Variant

__all__ = ["BuildFact", "CardFacts", "read_facts"]


@dataclass(frozen=True)
class BuildFact:
    """A build on the branch: its variant, and its metadata if that is known."""

    variant: Variant
    metadata: Metadata | None = None

    @property
    def backend(self) -> str:
        """The backend, as the metadata names it."""
        return self.metadata.backend.type if self.metadata is not None else self.variant.backend


@dataclass(frozen=True)
class CardFacts:
    """What a card says.

    Attributes:
        repo_id: The repository, `org/name`.
        branch: The branch that the card is for.
        metadata: The metadata of one of the builds: name, version and licence are those of all.
        builds: All builds that the branch will have, by name.
        api: What the kernel's package offers.
        operators: The schemas of the operators that its C++ sources register.
        benchmarks: The names of its benchmark scripts.
        results: Benchmark results.
        plots: Plots of benchmark results.
    """

    repo_id: str
    branch: str
    metadata: Metadata
    builds: Mapping[str, BuildFact]
    api: KernelApi = field(default_factory=KernelApi)
    operators: tuple[str, ...] = ()
    benchmarks: tuple[str, ...] = ()
    results: tuple[BenchmarkResult, ...] = ()
    plots: tuple[Plot, ...] = ()

    @property
    def revision(self) -> str:
        """The argument of `get_kernel` that asks for the branch: `version=1` or `revision="next"`."""
        version = self.metadata.version
        return f"version={version}" if self.versioned else f"revision={json.dumps(self.branch)}"

    @property
    def versioned(self) -> bool:
        """Whether the branch is that of a version."""
        return self.metadata.version is not None and self.branch == f"v{self.metadata.version}"

    @property
    def backends(self) -> list[str]:
        """The backends of all builds, sorted."""
        return sorted({build.backend for build in self.builds.values() if build.backend != UNIVERSAL})

    @property
    def torch_versions(self) -> list[str]:
        """The Torch versions that compiled builds are for, as `2.13`; `2.9 or newer` for the stable ABI."""
        found = {}
        for build in self.builds.values():
            version = build.variant.framework_version
            if version is not None and build.variant.kind != "tvm-ffi":
                newer = " or newer" * (build.variant.kind == "torch-stable-abi")
                found[tuple(version)] = f"{version}{newer}"
        return [found[key] for key in sorted(found)]

    @property
    def archs(self) -> dict[str, list[str]]:
        """The device architectures that builds list, by backend."""
        found: dict[str, dict[str, None]] = {}
        for build in self.builds.values():
            if build.metadata is not None:
                for arch in build.metadata.backend.archs or ():
                    found.setdefault(build.backend, {})[arch] = None
        return {backend: list(archs) for backend, archs in sorted(found.items())}


def read_facts(
    builds: LocalBuilds,
    workspace: Workspace | None,
    repo_id: str,
    branch: str,
    others: Mapping[str, BuildFact] | None = None,
) -> CardFacts:
    """What a card says of a folder's builds.

    Args:
        builds: The builds.
        workspace: Their sources, if present.
        repo_id: The repository, `org/name`.
        branch: The branch.
        others: The branch's other builds, which stay there.
    """
    here = {name: BuildFact(build.variant, build.metadata) for name, build in builds.builds.items()}
    folders = (builds.folder,) if workspace is None else workspace.folders
    schemas = dict.fromkeys(
        schema for source in (() if workspace is None else workspace.sources) for schema in operator_schemas(source)
    )
    return CardFacts(
        repo_id=repo_id,
        branch=branch,
        metadata=builds.metadata,
        builds=dict(sorted(({**(others or {}), **here}).items())),
        api=_api(builds),
        operators=tuple(schemas),
        benchmarks=tuple(sorted(builds.benchmarks)),
        results=tuple(read_results(folders)),
        plots=tuple(read_plots(folders)),
    )


def _api(builds: LocalBuilds) -> KernelApi:
    """What the builds offer: names of the first that offers any, and those that only others have."""
    packages: dict[frozenset[tuple[str, str]], str] = {}  # the same sources in many builds are read once
    for name, build in builds.builds.items():
        prefix = f"{BUILD_FOLDER}/{name}/"
        sources = {path.removeprefix(prefix): file for path, file in build.files.items() if path.endswith(".py")}
        packages.setdefault(frozenset((path, file.sha256) for path, file in sources.items()), name)
    apis = [read_api(builds.folder / BUILD_FOLDER / name) for name in packages.values()]
    functions = {offer.name: offer for api in reversed(apis) for offer in reversed(api.functions)}
    layers = {layer.name: layer for api in reversed(apis) for layer in reversed(api.layers)}
    # In the order in which the first build that has a name lists it.
    names = dict.fromkeys(offer.name for api in apis for offer in api.functions)
    layer_names = dict.fromkeys(layer.name for api in apis for layer in api.layers)
    return KernelApi(
        next((api.doc for api in apis if api.doc), ""),
        tuple(functions[name] for name in names),
        tuple(layers[name] for name in layer_names),
    )
