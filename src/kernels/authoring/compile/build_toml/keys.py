"""The sections and keys of `build.toml`, each declared once.

The reader reads them, and the page `docs/build-toml.md` and the schema for editors are written from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kernels.authoring.compile.build_toml.fields import (
    BackendField,
    BackendsField,
    ByBackend,
    IntegerField,
    Keys,
    NamedTablesField,
    TableField,
    TablesField,
    TextField,
    TextsField,
    VersionByBackendField,
    VersionField,
)
from kernels.authoring.compile.build_toml.model import PYEXT, Framework
from kernels.authoring.compile.frameworks.header_dependencies import allowed_depends
from kernels.backends.base import GENERAL_PYTHON_DEPENDS

__all__ = [
    "EDITION",
    "FRAMEWORKS",
    "BackendNeedsKeys",
    "FileKeys",
    "GeneralKeys",
    "HubKeys",
    "KernelDependsKeys",
    "KernelKeys",
    "TorchKeys",
    "TorchNoarchKeys",
    "TvmFfiKeys",
]

#: The current edition.
EDITION = 5

_PYEXT = TextsField(
    "pyext",
    "The suffixes of the Python package's files that go into the builds. Files with another suffix do not.",
    example=[*PYEXT, "json"],
    default=f"`{PYEXT[0]}`, `{PYEXT[1]}`",
)
_SRC = (
    "The files to compile, and the headers that they include, relative to the folder of `build.toml`. Every file is "
    "listed; patterns are not read. Headers are not compiled."
)
_INCLUDE = TextsField(
    "include",
    "Folders of headers for these files, relative to the folder of `build.toml`. That folder itself, and `csrc` if it "
    "exists, are always searched.",
    example=["include"],
    default="none",
)
_CXX_FLAGS = TextsField(
    "cxx-flags", "Flags for the C++ compiler, for the C++ files of this section only.", default="none"
)


class KernelDependsKeys(Keys):
    """A kernel that the builds need. It has a version or a revision, one of the two."""

    header = "general.kernel-depends"
    repo_id = TextField(
        "repo-id", "Its repository.", example="kernels-community/relu", expected="'org/name'", required=True
    )
    version = IntegerField("version", "Its major version.", example=1, expected="0 or a positive integer")
    revision = TextField("revision", "Its branch, tag or commit.")


# As code: a page would take `<major>` for a tag.
_DEPENDS = allowed_depends("`")

_PYTHON_DEPENDS = (
    "Python packages that the kernel imports. Users install them; loading the kernel without them is an error. "
)


class BackendNeedsKeys(Keys):
    """What the kernel needs for one backend, in addition to `[general]`. `<backend>` is a name such as `cuda`."""

    header = "general.<backend>"
    minver = VersionField(
        "minver",
        "The oldest version of the backend's toolkit that the kernel is built for. Only for backends whose builds are "
        "named after it.",
        example="12.6",
        default="every version",
    )
    maxver = VersionField("maxver", "The newest such version.", example="13.1", default="every version")
    python_depends = TextsField(
        "python-depends",
        _PYTHON_DEPENDS + "Also those that only this backend's kernels can have; the error for another lists them.",
        example=["nvidia-cutlass-dsl"],
        default="none",
    )
    kernel_depends = TablesField(
        "kernel-depends",
        "Other kernels that the builds for this backend need.",
        example=[{"repo-id": "kernels-community/activation", "version": 1}],
        default="none",
        keys=KernelDependsKeys,
    )


class HubKeys(Keys):
    """Where `kernels upload` publishes the builds."""

    header = "general.hub"
    repo_id = TextField("repo-id", "The repository.", example="my-org/my-relu", expected="'org/name'")
    branch = TextField(
        "branch",
        "A branch to publish to instead of the version's.",
        expected="a branch's name",
        default="`v<version>`",
    )


class GeneralKeys(Keys):
    """What the kernel is. Every file has this section."""

    header = "general"
    name = TextField(
        "name",
        "The kernel's name: lower-case letters, digits and dashes. Its Python package, in `torch-ext/` or "
        "`tvm-ffi-ext/`, has this name with underscores for dashes.",
        example="my-relu",
        expected="lower-case letters, digits and dashes, starting with a letter",
        required=True,
    )
    version = IntegerField(
        "version",
        "The major version, which users ask for. 0 is for versions without a promise; a change that breaks callers "
        "needs the next number. Optional before edition 4: 1.",
        example=1,
        expected="0 or a positive integer",
        required=True,
    )
    edition = IntegerField(
        "edition",
        f"The edition of this format: {EDITION}. Older editions do not have the key and are recognized by their "
        "content; `kernels build --update` rewrites such a file.",
        example=EDITION,
        expected=str(EDITION),
        default="the file's content decides",
    )
    license = TextField(
        "license",
        "The licence, an SPDX expression. Optional before edition 4.",
        example="Apache-2.0 AND MIT",
        expected='an SPDX identifier such as "apache-2.0"',
        required=True,
    )
    backends = BackendsField(
        "backends",
        "The backends that the kernel is built for; `kernels backends` lists them. Sections for other backends are "
        "skipped, with a warning.",
        example=["cpu", "cuda"],
        required=True,
    )
    upstream = TextField(
        "upstream",
        "The git URL of the project that the kernel comes from.",
        example="https://github.com/my-org/project.git",
        expected="a git URL",
    )
    source = TextField(
        "source",
        "The git URL of these sources.",
        example="https://github.com/my-org/kernels.git",
        expected="a git URL",
    )
    minver = TextField(
        "minver",
        "The oldest version of this client that may load the builds, X.Y.Z.",
        example="0.17.0",
        expected='a version such as "0.17.0"',
        default="every version",
    )
    python_depends = TextsField(
        "python-depends",
        f"{_PYTHON_DEPENDS}Possible for every backend: {', '.join(sorted(GENERAL_PYTHON_DEPENDS))}. One that only some "
        "backends can have is a dependency of those.",
        example=["einops"],
        default="none",
    )
    kernel_depends = TablesField(
        "kernel-depends",
        "Other kernels that the builds need: they are downloaded and loaded first, and the kernel gets them by "
        "`kernels.get_kernel_dep`.",
        example=[{"repo-id": "kernels-community/relu", "version": 1}],
        default="none",
        keys=KernelDependsKeys,
    )
    hub = TableField("hub", "Where the builds are published.", keys=HubKeys)
    backend = TableField("<backend>", "What the kernel needs for one backend.", keys=BackendNeedsKeys)


class TorchKeys(Keys):
    """The framework of sources that are compiled against Torch. Its files are compiled for every backend."""

    header = "torch"
    src = TextsField("src", _SRC, ["torch-ext/torch_binding.cpp", "torch-ext/torch_binding.h"], default="none")
    include = _INCLUDE
    cxx_flags = _CXX_FLAGS
    pyext = _PYEXT
    minver = VersionField("minver", "The oldest Torch that it is built for.", example="2.8", default="every version")
    maxver = VersionField("maxver", "The newest Torch that it is built for.", example="2.13", default="every version")
    stable_abi = VersionByBackendField(
        "stable-abi",
        "The version of Torch whose stable ABI the sources are compiled against: one build then fits that Torch and "
        "all newer ones. The sources include headers of `torch/csrc/stable` and `torch/headeronly` only, and "
        "`TORCH_TARGET_VERSION` is defined. A table, since edition 5, has a version for some of the backends.",
        example={"cuda": "2.10"},
        default="builds for the installed Torch only",
    )


class TorchNoarchKeys(Keys):
    """The framework of sources in Python, such as Triton: nothing is compiled, and one build fits every Torch.

    Editions before 4 have no framework section for such sources.
    """

    header = "torch-noarch"
    pyext = _PYEXT
    capabilities = ByBackend(
        "capabilities",
        TextsField,
        "The device architectures that the kernel runs on, as in `[kernel.<name>]`. Without the key it runs on all.",
        MappingProxyType({"cuda_capabilities": ["8.0", "9.0"]}),
    )
    archs = ByBackend("archs", TextsField, "The same by another name.", MappingProxyType({"rocm_archs": ["gfx942"]}))


class TvmFfiKeys(Keys):
    """The framework of sources that are compiled against tvm-ffi. Its files are compiled for every backend."""

    header = "tvm-ffi"
    src = TextsField("src", _SRC, ["tvm-ffi-ext/binding.cpp"], default="none")
    include = _INCLUDE
    cxx_flags = _CXX_FLAGS
    pyext = _PYEXT


class KernelKeys(Keys):
    """Files that are compiled for one backend with the same flags.

    A file can have any number of such sections: for several backends, or for one backend with other flags or
    architectures. `<name>` is free.
    """

    header = "kernel.<name>"
    backend = BackendField("backend", "The backend, one of `general.backends`.", example="cuda", required=True)
    depends = TextsField(
        "depends",
        f"What the files include: {_DEPENDS}. CUTLASS is searched in the folders of `CUTLASS_PATH`, then in the "
        "installed package `nvidia-cutlass`; SYCL-TLA in `SYCL_TLA_SRC_DIR`, metal-cpp in `METAL_CPP_PATH`.",
        example=["torch", "cutlass_4_0"],
        default="`torch`, or none with `[tvm-ffi]`",
    )
    src = TextsField(
        "src",
        _SRC + " A file of several sections of one backend is compiled once, with the flags and for the "
        "architectures of all.",
        example=["relu_cuda/relu.cu", "relu_cuda/relu.h"],
        required=True,
        expected="a list of files inside the folder",
    )
    include = _INCLUDE
    cxx_flags = TextsField("cxx-flags", _CXX_FLAGS.about, example=["-O3", "-fopenmp"], default="none")
    flags = ByBackend(
        "flags",
        TextsField,
        "Flags for the backend's own compiler. The name is the backend's, or that of its language.",
        MappingProxyType(
            {
                "cuda-flags": ["--use_fast_math"],
                "hip-flags": ["-ffast-math"],
                "sycl-flags": ["-DNDEBUG"],
                "metal-flags": ["-ffast-math"],
            }
        ),
    )
    capabilities = ByBackend(
        "capabilities",
        TextsField,
        "The device architectures to compile for. CUDA: compute capabilities; `9.0a` and `10.0f` are the variants for "
        "one architecture and for a family, `9.0+PTX` has PTX for newer devices too. Those that the compiler does not "
        "know are left out; if it knows none, that is an error. Without the key: all that it knows, and PTX of the "
        "newest.",
        MappingProxyType({"cuda-capabilities": ["8.0", "9.0a", "12.0+PTX"]}),
    )
    archs = ByBackend(
        "archs",
        TextsField,
        "The same by another name. ROCm: names of processors, also with features that the device must have: "
        "`gfx942:sramecc+:xnack-`. The metadata has the processors. Those that the installed ROCm does not know are "
        "left out, with a warning; if it knows none, that is an error. Without the key: `$PYTORCH_ROCM_ARCH`, else "
        "those that Torch's wheels are for.",
        MappingProxyType({"rocm-archs": ["gfx942:sramecc+:xnack-", "gfx1100"]}),
    )
    minver = ByBackend(
        "minver",
        VersionField,
        "The oldest toolkit that compiles this section. With an older one, the section is left out, with a warning.",
        MappingProxyType({"cuda-minver": "12.8"}),
    )


#: The framework sections; a file has exactly one.
FRAMEWORKS: Mapping[Framework, type[Keys]] = MappingProxyType(
    {"torch": TorchKeys, "torch-noarch": TorchNoarchKeys, "tvm-ffi": TvmFfiKeys}
)


class FileKeys(Keys):
    """A kernel's sources: what they are, and how they are built."""

    header = ""
    general = TableField("general", "What the kernel is.", required=True, keys=GeneralKeys)
    torch = TableField("torch", "Sources that are compiled against Torch.", keys=TorchKeys)
    torch_noarch = TableField("torch-noarch", "Sources in Python.", keys=TorchNoarchKeys)
    tvm_ffi = TableField("tvm-ffi", "Sources that are compiled against tvm-ffi.", keys=TvmFfiKeys)
    kernel = NamedTablesField("kernel", "What is compiled for each backend.", keys=KernelKeys)
