"""What the data is like that the client gives."""

from __future__ import annotations

import json
from typing import Any

from setting import Setting, situation

_METADATA = {
    "id": "_relu_cpu_abc1234",
    "name": "re-lu",
    "version": 1,
    "license": "Apache-2.0",
    "upstream": "https://example.com/up",
    "source": "https://example.com/src",
    "python-depends": ["einops"],
    "kernel-depends": [{"repo-id": "acme/below", "version": 1}],
    "kernels-minver": "0.10.0",
    "backend": {"type": "cuda", "archs": ["8.0"]},
    "digest": {"algorithm": "sha256", "files": {"__init__.py": "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="}},
    "provenance": {
        "kernel-builder": {"version": "0.17.0", "commit": "a" * 40, "dirty": False},
        "kernel": {"commit": "b" * 40, "dirty": True},
    },
}


def _metadata(**changes: Any) -> Any:
    from kernels import Metadata

    return Metadata.from_bytes(json.dumps({**_METADATA, **changes}).encode())


@situation("Metadata: plain fields")
def _(setting: Setting) -> object:
    metadata = _metadata()
    return [metadata.id, metadata.version, metadata.license, metadata.upstream, metadata.source]


@situation("Metadata: name")
def _(setting: Setting) -> object:
    name = _metadata().name
    return [str(name), f"{name}", name.python_name, name == type(name)("re-lu")]


@situation("Metadata: python_depends is a list")
def _(setting: Setting) -> object:
    return [type(_metadata().python_depends).__name__, _metadata().python_depends]


@situation("Metadata: kernel_depends is a list")
def _(setting: Setting) -> object:
    depends = _metadata().kernel_depends
    return [type(depends).__name__, [each.repo_id for each in depends]]


@situation("Metadata: backend")
def _(setting: Setting) -> object:
    backend = _metadata().backend
    return [str(backend.backend_type), type(backend.archs).__name__, backend.archs]


@situation("Metadata: a backend without archs")
def _(setting: Setting) -> object:
    return _metadata(backend={"type": "cpu"}).backend.archs


@situation("Metadata: kernels_minver")
def _(setting: Setting) -> object:
    return str(_metadata().kernels_minver)


@situation("Metadata: digest")
def _(setting: Setting) -> object:
    digest = _metadata().digest
    return [type(digest.files).__name__, digest.files]


@situation("Metadata: provenance")
def _(setting: Setting) -> object:
    provenance = _metadata().provenance
    builder = provenance.kernel_builder
    kernel = provenance.kernel
    return [builder.version, builder.git.commit, builder.git.dirty, kernel.commit, kernel.dirty, provenance.dirty]


@situation("Metadata: what may be left out is None")
def _(setting: Setting) -> object:
    from kernels import Metadata

    kept = {key: _METADATA[key] for key in ("id", "name", "version", "license", "python-depends")}
    metadata = Metadata.from_bytes(json.dumps({**kept, "backend": {"type": "cpu"}}).encode())
    optional = [metadata.upstream, metadata.source, metadata.kernels_minver, metadata.digest, metadata.provenance]
    return [*optional, metadata.kernel_depends]


@situation("Metadata: read_from_file")
def _(setting: Setting) -> object:
    from kernels import Metadata

    return Metadata.read_from_file(setting.write("metadata.json", json.dumps(_METADATA))).id


@situation("Metadata: read_from_file, a path as text")
def _(setting: Setting) -> object:
    from kernels import Metadata

    return Metadata.read_from_file(str(setting.write("metadata.json", json.dumps(_METADATA)))).id


@situation("Metadata: read_from_file, no such file")
def _(setting: Setting) -> object:
    from kernels import Metadata

    return Metadata.read_from_file(setting.own / "none.json")


@situation("Metadata: read_from_file, not JSON")
def _(setting: Setting) -> object:
    from kernels import Metadata

    return Metadata.read_from_file(setting.write("metadata.json", "no JSON"))


@situation("Metadata: from_bytes, not JSON")
def _(setting: Setting) -> object:
    from kernels import Metadata

    return Metadata.from_bytes(b"no JSON")


@situation("Metadata: from_bytes, a name with capitals")
def _(setting: Setting) -> object:
    return _metadata(name="Relu")


@situation("Metadata: from_bytes, an unknown backend")
def _(setting: Setting) -> object:
    return _metadata(backend={"type": "abacus"}) is None


@situation("Metadata: from_bytes, a version that is not a number")
def _(setting: Setting) -> object:
    return _metadata(version="one")


@situation("RepoInfo: compared and printed")
def _(setting: Setting) -> object:
    from kernels import RepoInfo

    info = RepoInfo("acme/relu", "v1")
    return [info == RepoInfo(repo_id="acme/relu", revision="v1"), repr(info), len({info, RepoInfo("acme/relu", "v1")})]


@situation("LoadedKernel: made by position")
def _(setting: Setting) -> object:
    from kernels import LoadedKernel

    loaded = LoadedKernel("metadata", "module", None)
    return [loaded.metadata, loaded.module, loaded.repo_info]
