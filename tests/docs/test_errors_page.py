"""The page of errors has every error, with the built-ins it also is and the messages that users see."""

from __future__ import annotations

import builtins
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from doc_pages import ROOT, names, same_everywhere
from hub import TestHub
from mirror_tree import MirrorTree

import kernels.errors
from kernels import get_kernel, get_kernel_dep, get_local_kernel, get_locked_kernel, install_kernel
from kernels.errors import KernelsError

PAGE = ROOT / "docs" / "errors.md"
FOLDER = "/home/me/project"

LAYERS = """
from torch import nn

class Norm(nn.Module):
    def forward(self, x):
        return x

class KernelNorm(nn.Module):
    def forward(self, x, eps):
        return x
"""

SOURCES = {
    "build.toml": """
[general]
name = "relu"
version = 1
edition = 5
license = "MIT"
backends = ["cpu"]

[torch]

[kernel.relu]
backend = "cpu"
src = ["relu.cpp"]
""",
    "relu.cpp": "int relu() { return zero; }\n",
    "torch-ext/relu/__init__.py": "",
}


class Scene:
    """A machine where something is wrong, as a user has it: a Hub with a kernel, a project, a cache.

    Attributes:
        hub: The Hub; its publisher `acme` is trusted.
        project: The current folder.
        cache: The kernels' cache.
        patch: Changes that end with the test.
    """

    def __init__(self, hub: TestHub, project: Path, cache: Path, patch: pytest.MonkeyPatch) -> None:
        self.hub, self.project, self.cache, self.patch = hub, project, cache, patch

    def kernel(self, name: str = "acme/relu", **options: Any) -> None:
        self.hub.make_repo(name, **options)

    def get(self, name: str = "acme/relu", **options: Any) -> None:
        get_kernel(name, **{"version": 1, **options})

    def file(self, name: str, text: str) -> Path:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def setting(self, name: str, value: object) -> None:
        self.patch.setenv(name, str(value))

    def shown(self, error: BaseException) -> str:
        """An error's message, with the places of a user's machine."""
        text = str(error).replace(self.hub.url, "https://hub.example")
        for place, path in ((self.project, FOLDER), (self.cache, "/home/me/cache")):
            text = text.replace(str(place), path)
        return text


def request(scene: Scene) -> None:
    scene.get("relu")


def argument(scene: Scene) -> None:
    scene.get(revision="main")


def setting(scene: Scene) -> None:
    scene.setting("KERNELS_LOCKED", "ja")
    scene.get()


def revision(scene: Scene) -> None:
    scene.kernel(version=1)
    scene.kernel(version=2)
    scene.get(version=3)


def repository(scene: Scene) -> None:
    scene.get("acme/rleu")


def gated(scene: Scene) -> None:
    scene.kernel()
    scene.hub.gate("acme/relu")
    scene.get()


def branch(scene: Scene) -> None:
    scene.kernel()
    get_kernel("acme/relu", revision="mian")


def no_build(scene: Scene) -> None:
    scene.kernel(variants=["torch-cuda", "torch212-cxx11-cu130-x86_64-linux", "torch213-cxx11-cu128-x86_64-linux"])
    install_kernel("acme/relu", version=1, target="torch2.13-rocm7.1-x86_64-linux")


def specifier(scene: Scene) -> None:
    from kernels import LayerRepository

    LayerRepository("acme/relu", layer_name="ReLU", version=">=0.1,<0.2").load()


def no_backend(scene: Scene) -> None:
    scene.kernel()
    install_kernel("acme/relu", version=1, backend="cuda", target="torch2.13-cpu-x86_64-linux")


def arch(scene: Scene) -> None:
    scene.kernel(variants=["torch-cuda"], archs=["9.0", "10.0"])
    install_kernel("acme/relu", version=1, target="torch2.13-cu130-x86_64-linux+sm_75")


def client(scene: Scene) -> None:
    scene.kernel(metadata={"kernels-minver": "99.0.0"})
    scene.get()


def python_package(scene: Scene) -> None:
    scene.patch.setitem(sys.modules, "helion", None)
    scene.kernel(python_depends=["helion"])
    scene.get()


def refused_package(scene: Scene) -> None:
    scene.kernel(python_depends=["requests"])
    scene.get()


def publisher(scene: Scene) -> None:
    scene.kernel("someone/relu")
    scene.get("someone/relu")


def publisher_unknown(scene: Scene) -> None:
    scene.kernel()
    scene.hub.fail("api/organizations", status=500)
    scene.get()


def signature(scene: Scene) -> None:
    scene.kernel()
    scene.setting("KERNELS_POLICY", scene.file("policy.toml", "require-signature = true\n"))
    scene.get()


def digest(scene: Scene) -> None:
    scene.kernel(digest=True)
    (scene.hub.root / "acme/relu/v1/build/torch-cpu/layers.py").write_text("changed = True", encoding="utf-8")
    scene.get()


def archive(scene: Scene) -> None:
    tree = MirrorTree(scene.project / "carried")
    tree.add("acme/relu")
    [path] = (tree.root / "archives").rglob("*.zst")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    scene.setting("KERNELS_HUB", tree.root)
    scene.get()


def hub_away(scene: Scene) -> None:
    scene.hub.down()
    scene.setting("KERNELS_TRUSTED_PUBLISHERS", "acme")
    scene.get()


def too_many(scene: Scene) -> None:
    scene.kernel()
    scene.setting("KERNELS_TRUSTED_PUBLISHERS", "acme")
    scene.hub.fail("refs", status=429)
    scene.get()


def offline(scene: Scene) -> None:
    scene.setting("HF_HUB_OFFLINE", 1)
    scene.patch.delenv("KERNELS_HUB")
    scene.get()


def full(scene: Scene) -> None:
    scene.kernel()
    scene.cache.parent.mkdir(parents=True, exist_ok=True)
    scene.cache.write_text("no folder", encoding="utf-8")
    install_kernel("acme/relu", version=1)


def lock(scene: Scene, version: int = 1) -> None:
    pin = {"dependency": {"repo-id": "acme/relu", "version": version}, "lock": {"commit": "4c2b" * 10}}
    scene.file("kernels.lock", json.dumps([pin]))


def other_version(scene: Scene) -> None:
    lock(scene)
    scene.setting("KERNELS_LOCKFILE", scene.project / "kernels.lock")
    scene.get(version=2)


def merged_badly(scene: Scene) -> None:
    path = scene.file("kernels.lock", "[\n<<<<<<< HEAD\n")
    get_locked_kernel("acme/relu", lockfile=path)


def commit_gone(scene: Scene) -> None:
    scene.kernel()
    lock(scene)
    scene.setting("KERNELS_LOCKFILE", scene.project / "kernels.lock")
    scene.get()


def no_lock(scene: Scene) -> None:
    get_locked_kernel("acme/relu", lockfile=scene.project / "kernels.lock")


def not_locked(scene: Scene) -> None:
    lock(scene)
    scene.setting("KERNELS_LOCKFILE", scene.project / "kernels.lock")
    scene.setting("KERNELS_LOCKED", 1)
    scene.get("acme/gelu")


def bad_id(scene: Scene) -> None:
    scene.kernel(metadata={"id": "json"})
    scene.get()


def exits(scene: Scene) -> None:
    scene.kernel(variants={"torch-cpu": {"__init__.py": "import sys\nsys.exit(1)\n"}})
    scene.get()


def no_module(scene: Scene) -> None:
    scene.kernel()
    build = install_kernel("acme/relu", version=1)
    (scene.project / "relu").mkdir()
    scene.file("relu/metadata.json", (build / "metadata.json").read_text(encoding="utf-8"))
    get_local_kernel(scene.project / "relu")


def cycle(scene: Scene) -> None:
    scene.kernel(depends=[("acme/base", 1)])
    scene.kernel("acme/base", depends=[("acme/relu", 1)])
    scene.get()


def dependency(scene: Scene) -> None:
    get_kernel_dep("acme/base")


def redirects(scene: Scene) -> None:
    scene.kernel(redirect="acme/gelu")
    scene.kernel("acme/gelu", redirect="acme/relu")
    scene.get()


def variant(scene: Scene) -> None:
    from kernels.variants import parse_variant

    parse_variant("linux-cuda12")


def metadata(scene: Scene) -> None:
    from kernels import Metadata

    Metadata.read_from_file(scene.file("metadata.json", '{\n  "name": "relu",\n  "id": 7\n}\n'))


def no_metadata(scene: Scene) -> None:
    from kernels import Metadata

    Metadata.read_from_file(scene.project / "build/torch-cpu/metadata.json")


def mapping(scene: Scene) -> None:
    from kernels import LayerRepository

    scene.kernel()
    LayerRepository("acme/relu", layer_name="SiluMul", version=1).load()


def layer(scene: Scene) -> None:
    from kernels.layer.fits import check_layer

    classes: dict[str, Any] = {}
    exec(LAYERS, {"__name__": "layers"}, classes)
    check_layer(classes["KernelNorm"], classes["Norm"], "Layer 'Norm' of acme/relu version 1")


def cannot_compile(scene: Scene) -> None:
    from kernels.authoring.compile import build_kernel

    for name, text in SOURCES.items():
        scene.file(name, text)
    build_kernel(scene.project, scene.project / "build")


def no_compiler(scene: Scene) -> None:
    from kernels.authoring.compile.frameworks.header_dependencies import dependency_flags

    scene.patch.delenv("SYCL_TLA_SRC_DIR", raising=False)
    dependency_flags("attention", ["sycl_tla"])


#: What provokes the messages that the page shows for an error, in their order.
SCENES: Mapping[str, tuple[Callable[[Scene], None], ...]] = {
    "RequestError": (request, argument, setting),
    "RevisionNotFound": (revision, branch),
    "RepositoryNotFound": (repository, gated),
    "UnsupportedSpecifier": (specifier,),
    "BackendUnavailable": (no_backend,),
    "NoSuitableBuild": (no_build,),
    "UnsupportedArch": (arch,),
    "IncompatibleClient": (client,),
    "MissingPythonDependency": (python_package,),
    "UnsupportedPythonDependency": (refused_package,),
    "UntrustedPublisher": (publisher,),
    "PublisherUnknown": (publisher_unknown,),
    "UntrustedSignature": (signature,),
    "DigestMismatch": (digest,),
    "ArchiveDamaged": (archive,),
    "HubUnavailable": (hub_away, too_many),
    "NotInCache": (offline,),
    "StoreError": (full,),
    "LockError": (other_version, merged_badly),
    "LockFileNotFound": (no_lock,),
    "PinnedCommitGone": (commit_gone,),
    "NotLocked": (not_locked,),
    "KernelImportError": (bad_id, exits),
    "NoModule": (no_module,),
    "DependencyCycle": (cycle,),
    "DependencyOutsideLoad": (dependency,),
    "InvalidRepository": (redirects,),
    "InvalidVariant": (variant,),
    "InvalidMetadata": (metadata,),
    "MissingMetadata": (no_metadata,),
    "MappingError": (mapping,),
    "LayerError": (layer,),
    "BuildError": (cannot_compile,),
    "CompilerNotFound": (no_compiler,),
}


@pytest.fixture
def scene(hub: TestHub, isolated_env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return Scene(hub, project, isolated_env, monkeypatch)


def sections() -> dict[str, str]:
    """The sections of the page by the error that is their heading."""
    _, *found = re.split(r"^### (\w+)\n", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(found[::2], found[1::2], strict=True))


def messages(error: str) -> list[str]:
    return re.findall(r"^```text\n(.*?)^```$", sections()[error], flags=re.MULTILINE | re.DOTALL)


def comparable(message: str) -> str:
    """A message without line breaks, and without what differs from machine to machine."""
    for pattern, word in (
        (r"\(ConnectError: [^)]*\)", "(ConnectError)"),
        (r"archives/[0-9a-f]{2}/[0-9a-f]{64}", "<archive>"),
        (r"[0-9.]+ is installed", "<version> is installed"),
        (r"[a-z0-9_-]+\.log\n.*", "<log>"),  # what a compiler prints is its own
    ):
        message = re.sub(pattern, word, message, flags=re.DOTALL)
    return " ".join(same_everywhere(message).split())


def test_every_error_has_a_section_that_says_which_built_ins_it_also_is() -> None:
    def built_ins(error: type) -> set[str]:
        bases = [base for base in error.__mro__ if vars(builtins).get(base.__name__) is base]
        return {
            base.__name__ for base in bases if not any(other is not base and issubclass(other, base) for other in bases)
        }

    found = {name: set(names(text.strip().partition(". ")[0])) for name, text in sections().items()}
    assert found == {
        name: built_ins(getattr(kernels.errors, name)) for name in kernels.errors.__all__ if name != "KernelsError"
    }


def test_every_section_says_what_to_do_and_has_the_messages_of_its_scenes() -> None:
    found = sections()
    assert [name for name, text in found.items() if text.count("**What to do:**") != 1] == []
    assert {name: len(messages(name)) for name in found} == {name: len(scenes) for name, scenes in SCENES.items()}


@pytest.mark.parametrize(
    ("error", "number"),
    [
        pytest.param(name, number, marks=[pytest.mark.compiler] if name == "BuildError" else [])
        for name, scenes in SCENES.items()
        for number in range(len(scenes))
    ],
)
def test_a_message_is_the_one_on_the_page(error: str, number: int, scene: Scene) -> None:
    with pytest.raises(KernelsError) as raised:
        SCENES[error][number](scene)
    # What a Hub refuses has a class of its own with the same name.
    classes = (base.__name__ for base in type(raised.value).__mro__)
    assert next(name for name in classes if name in kernels.errors.__all__) == error
    assert comparable(scene.shown(raised.value)) == comparable(messages(error)[number])
