"""`build.toml` is read strictly: what is wrong is said, with its line, before anything is built."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from logged import logged, warned

from kernels.authoring.compile import read_source
from kernels.authoring.compile.build_toml.update import update_build_toml
from kernels.authoring.compile.metadata import build_metadata
from kernels.authoring.compile.sources.workspace import find_workspace, read_sources
from kernels.backends import Backend, BackendProbe, register_backend, unregister_backend
from kernels.errors import RequestError

GENERAL = '[general]\nname = "add-one"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n'
NOARCH = GENERAL + "[torch-noarch]\n"
CPU = GENERAL + '[torch]\n[kernel.a]\nbackend = "cpu"\nsrc = []\n'
CUDA_NOARCH = NOARCH.replace('"cpu"', '"cuda"')


def test_a_noarch_source_says_what_each_backend_needs(write_source: Callable[..., Path]) -> None:
    source = read_source(write_source("noarch"))
    assert (source.name, source.version, source.license, source.compiled) == ("add-one", 3, "MIT", False)
    assert (source.framework, source.edition, source.binding, source.kernels) == ("torch-noarch", 5, None, ())
    assert source.backends == ("cpu", "cuda", "cann")
    assert source.archs == {"cuda": ("8.0", "9.0+PTX")}
    assert source.python_depends == {
        "cpu": ("einops",),
        "cuda": ("einops", "nvidia-cutlass-dsl"),
        "cann": ("einops",),
    }
    assert source.kernel_depends["cuda"] == ({"repo-id": "org/other", "version": 1},)
    assert source.pyext == ("py", "pyi")


def test_a_licence_that_is_no_spdx_expression_is_mentioned(write_source: Callable[..., Path]) -> None:
    folder = write_source("noarch", changes={"build.toml": NOARCH.replace('"MIT"', '"Apache"')})
    with warned(r"build\.toml: `license` is 'Apache', which is no SPDX expression"):
        read_source(folder)


def test_a_compiled_source_says_what_is_compiled_and_how(write_source: Callable[..., Path]) -> None:
    toml = """
[general]
name = "add-one"
version = 0
edition = 5
license = "MIT"
backends = ["cpu", "cuda", "rocm", "xpu"]
upstream = "https://example.org/a.git"
source = "https://example.org/b.git"
minver = "0.17.0"

[general.hub]
repo-id = "org/add-one"
branch = "try-out"

[general.cuda]
minver = "12.6"
maxver = "13.0"

[torch]
src = ["torch-ext/binding.cpp"]
include = ["headers"]
pyext = ["py", "json"]
minver = "2.8"
maxver = "2.10"
cxx-flags = ["-O3"]

[torch.stable-abi]
cpu = "2.9"
cuda = "2.10"
xpu = "2.11"

[kernel.add_one]
backend = "cpu"
depends = ["torch"]
src = ["add_one.cpp"]

[kernel.add_one_cuda]
backend = "cuda"
depends = ["torch", "cutlass_3_9"]
cuda-capabilities = ["8.0", "9.0a"]
cuda_flags = ["-lineinfo"]
cuda-minver = "12.8"
src = ["add_one.cpp"]

[kernel.add_one_rocm]
backend = "rocm"
depends = []
rocm-archs = ["gfx942"]
hip-flags = ["-ffast-math"]
src = ["add_one.cpp"]

[kernel.add_one_xpu]
backend = "xpu"
depends = ["sycl_tla"]
sycl-flags = ["-fsycl"]
src = ["add_one.cpp"]
"""
    source = read_source(write_source("compiled", changes={"build.toml": toml}))
    assert (source.framework, source.compiled, source.archs) == ("torch", True, {})
    assert (source.repo_id, source.branch, source.kernels_minver) == ("org/add-one", "try-out", "0.17.0")
    assert (source.minver, source.maxver, source.pyext) == ((2, 8), (2, 10), ("py", "json"))
    assert (source.backend_minver, source.backend_maxver) == ({"cuda": (12, 6)}, {"cuda": (13, 0)})
    assert source.stable_abi == {"cpu": (2, 9), "cuda": (2, 10), "xpu": (2, 11)}
    assert source.binding is not None
    assert (source.binding.src, source.binding.include) == (("torch-ext/binding.cpp",), ("headers",))
    assert source.binding.cxx_flags == ("-O3",)
    cpu, cuda, rocm, xpu = source.kernels
    assert (cpu.depends, cpu.archs, cpu.device_flags) == (("torch",), (), ())
    assert (cuda.depends, cuda.archs, cuda.device_flags) == (("torch", "cutlass_3_9"), ("8.0", "9.0a"), ("-lineinfo",))
    assert cuda.minver == (12, 8)
    assert (rocm.archs, rocm.device_flags) == (("gfx942",), ("-ffast-math",))
    assert (xpu.depends, xpu.device_flags) == (("sycl_tla",), ("-fsycl",))


def test_one_stable_abi_is_that_of_every_backend(write_source: Callable[..., Path]) -> None:
    toml = GENERAL.replace('"cpu"', '"cpu", "cuda"') + '[torch]\nstable-abi = "2.10"\n'
    source = read_source(write_source("noarch", changes={"build.toml": toml}))
    assert source.stable_abi == {"cpu": (2, 10), "cuda": (2, 10)}


def test_tvm_ffi_sources_have_a_folder_of_their_own(write_source: Callable[..., Path]) -> None:
    toml = (
        GENERAL + '[tvm-ffi]\nsrc = ["tvm-ffi-ext/binding.cpp"]\n[kernel.a]\nbackend = "cpu"\ndepends = []\nsrc = []\n'
    )
    changes = {"build.toml": toml, "tvm-ffi-ext/add_one/__init__.py": "", "tvm-ffi-ext/binding.cpp": ""}
    source = read_source(write_source("noarch", changes=changes))
    assert (source.framework, source.compiled) == ("tvm-ffi", True)
    assert source.package_dir == source.folder / "tvm-ffi-ext" / "add_one"


def test_both_spellings_of_the_architectures_are_read(write_source: Callable[..., Path]) -> None:
    toml = GENERAL.replace('"cpu"', '"cuda", "rocm"') + '[torch-noarch]\ncuda_capabilities = ["8.0"]\n'
    source = read_source(write_source("noarch", changes={"build.toml": toml + 'rocm-archs = ["gfx942"]\n'}))
    assert source.archs == {"cuda": ("8.0",), "rocm": ("gfx942",)}


def test_a_dependency_that_one_backend_allows_is_that_backends(write_source: Callable[..., Path]) -> None:
    toml = NOARCH.replace('"cpu"]', '"cpu", "cuda"]\npython-depends = ["nvidia-cutlass-dsl", "einops"]')
    source = read_source(write_source("noarch", changes={"build.toml": toml}))
    assert source.python_depends == {"cpu": ("einops",), "cuda": ("nvidia-cutlass-dsl", "einops")}


def test_a_section_of_a_backend_that_is_not_listed_is_read_and_mentioned_once(
    write_source: Callable[..., Path],
) -> None:
    other = '[kernel.b]\nbackend = "rocm"\nrocm-archs = ["gfx942"]\nsrc = ["missing.cu"]\n'
    folder = write_source("noarch", changes={"build.toml": CPU + other, "missing.cu": ""})
    with logged() as caught:
        source = read_source(folder)
    assert [kernel.backend for kernel in source.kernels] == ["cpu", "rocm"]
    [said] = [each.getMessage() for each in caught]
    assert said.endswith("`kernel.b` is not built: `general.backends` does not list rocm.")
    (folder / "missing.cu").unlink()
    with pytest.raises(RequestError, match=r"build\.toml:14: `kernel\.b\.src` has 'missing\.cu', which does not exist"):
        read_source(folder)


def test_a_byte_order_mark_is_no_part_of_the_file(write_source: Callable[..., Path]) -> None:
    folder = write_source("noarch")
    path = folder / "build.toml"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_source(folder).name == "add-one"


class Acme(Backend):
    """A third-party accelerator."""

    name = noarch_name = token = mapping_device = "acme"
    device_type = "acme"

    def probe(self) -> BackendProbe:
        return BackendProbe()


@pytest.fixture
def acme() -> Iterator[None]:
    register_backend(Acme())
    yield
    unregister_backend("acme")


@pytest.mark.usefixtures("acme")
def test_a_third_party_backend_is_named_like_any_other(write_source: Callable[..., Path]) -> None:
    toml = (
        NOARCH.replace('"cpu"', '"acme", "cpu"') + 'acme-archs = ["a1"]\n[general.acme]\npython-depends = ["einops"]\n'
    )
    source = read_source(write_source("noarch", changes={"build.toml": toml}))
    assert source.archs == {"acme": ("a1",)}
    assert source.python_depends == {"acme": ("einops",), "cpu": ()}
    assert build_metadata(source, "_id", "acme").backend.archs == ["a1"]


@pytest.mark.parametrize(
    ("toml", "line", "says"),
    [
        ("[general", 1, "not valid TOML: Expected ']'"),
        ('[general]\nname = "a"\nname = "b"\n', 3, "not valid TOML: Cannot overwrite"),
        ("a = " + "9" * 5000, 1, "not valid TOML: Exceeds the limit (4300 digits)"),
        ("", 1, "`general` is missing; expected a section"),
        ("general = 1", 1, "`general` is 1; expected a section"),
        (NOARCH + "[torch-noarch.cuda]\n", 8, "`torch-noarch` has the unknown key `cuda`; expected cpu-archs, "),
        *(
            (NOARCH.replace("edition = 5", f"edition = {said}"), 4, f"`general.edition` is {shown}; expected 5")
            for said, shown in [
                *((str(edition), str(edition)) for edition in (-1, 0, 1, 2, 3, 5.0)),
                ('"5"', "'5'"),
                ("true", "True"),
                ("[5]", "[5]"),
            ]
        ),
        (NOARCH.replace("edition = 5", "edition = 4"), 4, "`general.edition` is 4; expected 5 or 6; files of older"),
        (
            NOARCH.replace("edition = 5", "edition = 7"),
            4,
            "`general.edition` is 7; expected 5 or 6; a newer edition needs",
        ),
        (NOARCH.replace("version = 1\n", ""), 1, "`general.version` is missing; expected 0 or a positive integer"),
        (NOARCH.replace("version = 1", "version = -1"), 3, "`general.version` is -1; expected 0 or a positive"),
        (NOARCH.replace("version = 1", 'version = "1"'), 3, "`general.version` is '1'; expected 0 or a positive"),
        (
            NOARCH.replace("version = 1", "version = 0x" + "f" * 9999),
            3,
            "whose repr raised ValueError; expected 0 or",
        ),
        (NOARCH.replace('license = "MIT"\n', ""), 1, "`general.license` is missing; expected an SPDX identifier"),
        (NOARCH.replace('name = "add-one"\n', ""), 1, "`general.name` is missing; expected lower-case letters"),
        (NOARCH.replace("add-one", "a" * 5000), 2, "`general.name` has 5000 characters; expected 200 at most"),
        (NOARCH.replace("add-one", "Add_One"), 2, "`general.name` is 'Add_One'; expected lower-case letters"),
        (NOARCH.replace("add-one", "add-two"), 2, "torch-ext/add_two/__init__.py is missing (torch-ext has add_one)"),
        (NOARCH.replace('["cpu"]', "[]"), 6, "`general.backends` is []; expected a list of backends: cann, cpu"),
        (NOARCH.replace('backends = ["cpu"]\n', ""), 1, "`general.backends` is missing; expected a list of backends"),
        (NOARCH.replace('"cpu"', '"cpu",\n  1'), 6, "`general.backends[1]` is 1; expected a string"),
        (NOARCH.replace('"cpu"', '"cpu",\n  "cpuu"'), 6, "`general.backends[1]` is 'cpuu'; expected one of cann, "),
        (NOARCH.replace('"cpu"', '"npu"'), 6, "`general.backends[0]` is 'npu'; expected 'cann', the canonical name"),
        (
            NOARCH + "[general.hub]\nrepo = 1\n",
            9,
            "`general.hub` has the unknown key `repo`; expected branch, repo-id",
        ),
        (
            NOARCH + '[general.hub]\nrepo-id = "relu"\n',
            9,
            "`general.hub.repo-id`: `repo_id` is 'relu'; expected 'org/n",
        ),
        (NOARCH + '[general.hub]\nbranch = ".."\n', 9, "`general.hub.branch`: `revision` is '..'; expected a branch"),
        (NOARCH + '[general.cuda]\nminver = "12"\n', 9, "`general.cuda.minver` is '12'; expected a version such as"),
        (NOARCH + "[general.cuda]\nminver = 12.8\n", 9, "`general.cuda.minver` is 12.8; expected a version such as"),
        (
            NOARCH + '[general.cpu]\nminver = "1.0"\n',
            9,
            "`general.cpu` has the unknown key `minver`; expected kernel",
        ),
        (NOARCH + "[general.acme]\n", 8, "`general` has the unknown key `acme`; expected backends, "),
        (NOARCH.replace("[torch", 'python-depends = ["numpy"]\n[torch'), 7, "is 'numpy'; expected one of einops"),
        (
            NOARCH + '[general.cpu]\npython-depends = ["nki"]\n',
            9,
            "`general.cpu.python-depends[0]` is 'nki'; expected",
        ),
        (
            NOARCH + '[general.cpu]\npython-depends = "nki"\n',
            9,
            "python-depends` is 'nki'; expected a list of strings",
        ),
        (GENERAL + "minver = 5\n[torch-noarch]\n", 7, '`general.minver` is 5; expected a version such as "0.17.0"'),
        (
            GENERAL + 'minver = "1"\n[torch-noarch]\n',
            1,
            "the metadata for cpu would be rejected: metadata.json: `kernels-",
        ),
        (GENERAL, 1, "build.toml has no framework section; expected exactly one of `[torch]`, `[torch-noa"),
        (GENERAL + "[torch]\n[torch-noarch]\n", 8, "build.toml has `[torch]` and `[torch-noarch]`; expected exactly"),
        (
            NOARCH + "[extra]\n",
            8,
            "build.toml has the unknown key `extra`; expected general, kernel, torch, torch-noa",
        ),
        (
            GENERAL + "[torch]\nsrcs = []\n",
            8,
            "`torch` has the unknown key `srcs`; expected cxx-flags, include, maxver",
        ),
        (GENERAL + '[torch]\nsrc = ["missing.cpp"]\n', 8, "`torch.src` has 'missing.cpp', which does not exist"),
        (
            GENERAL + '[torch]\nsrc = [\n  "../outside.cpp",\n]\n',
            8,
            "has '../outside.cpp', which leads out of the folder",
        ),
        (GENERAL + '[torch]\nsrc = ["link/outside.cpp"]\n', 8, "has 'link/outside.cpp', which leads out of the folder"),
        (
            GENERAL + '[torch]\nsrc = ["/etc/passwd"]\n',
            8,
            "`torch.src` has '/etc/passwd', which leads out of the folder",
        ),
        (GENERAL + '[torch]\nsrc = ["a\\u0000b"]\n', 8, "which leads out of the folder; expected files inside"),
        (GENERAL + f'[torch]\nsrc = ["{"x" * 5000}"]\n', 8, "which does not exist; expected files inside"),
        (GENERAL + '[torch]\nsrc = ["in/../hidden.cpp"]\n', 8, "which leads out of the folder; expected files"),
        (
            GENERAL + '[torch]\nsrc = [".swp.cpp"]\n',
            8,
            "which is hidden, or is in build/, the folder of the builds; expected",
        ),
        (
            GENERAL + '[torch]\nsrc = ["./build/a.cpp"]\n',
            8,
            "which is hidden, or is in build/, the folder of the builds;",
        ),
        (GENERAL + '[torch]\nsrc = ["a\\n.cpp"]\n', 8, "which has a name that not every system allows; expected"),
        (GENERAL + '[torch]\ninclude = [".", ".."]\n', 8, "`torch.include` has '..', which leads out of the folder"),
        (GENERAL + "[torch]\nstable-abi = 2\n", 8, "`torch.stable-abi` is 2; expected a version such as"),
        (
            GENERAL + '[torch.stable-abi]\ncpuu = "2.9"\n',
            8,
            "`torch.stable-abi` has the unknown key `cpuu`; expected",
        ),
        (GENERAL + "[torch]\n[kernel.a]\nsrc = []\n", 8, "`kernel.a.backend` is missing; expected one of cpu"),
        (
            GENERAL + '[torch]\n[kernel.a]\nbackend = "cpu"\n',
            8,
            "`kernel.a.src` is missing; expected a list of files",
        ),
        (CPU.replace('= "cpu"', '= "cudda"'), 9, "`kernel.a.backend` is 'cudda'; expected one of cpu, which are"),
        (CPU.replace('= "cpu"', '= "cpuu"'), 9, "which are `general.backends`. Did you mean 'cpu'?"),
        (NOARCH.replace("name =", "nmae ="), 2, "a letter. Did you mean it by `nmae`?"),
        (NOARCH.replace("backends =", "backend ="), 6, "xpu. Did you mean it by `backend`?"),
        (NOARCH.replace("general", "genral"), 1, "`backends`. Did you mean it by `genral`?"),
        (NOARCH.replace("torch-noarch", "torch-noarhc"), 7, "`torch-noarhc`; expected general, kernel, torch"),
        (GENERAL + "[trch]\n", 7, "unknown key `trch`; expected general, kernel, torch, torch-noarch, tvm-ffi. Did"),
        (CPU.replace("src", "sources"), 10, "`kernel.a` has the unknown key `sources`; expected backend,"),
        (NOARCH.replace('"cpu"', '"cdua"'), 6, "in KERNELS_BACKENDS_JSON. Did you mean 'cuda'?"),
        (CPU.replace('= "cpu"', '= "npu"'), 9, "`kernel.a.backend` is 'npu'; expected one of cpu, which are"),
        (CPU + "flags = []\n", 11, "`kernel.a` has the unknown key `flags`; expected backend, cpu-archs"),
        (CPU + 'cuda-capabilities = ["8.0"]\n', 11, "`kernel.a` has the unknown key `cuda-capabilities`; expected"),
        (
            CPU + "cpu-flags = []\ncpu_flags = []\n",
            12,
            "`kernel.a` has both `cpu-flags` and `cpu_flags`; expected one",
        ),
        (
            CPU + "cpu-capabilities = []\ncpu-archs = []\n",
            12,
            "`kernel.a` has both `cpu-capabilities` and `cpu-archs`; expected one of them.",
        ),
        (
            CPU + 'depends = ["torch", "cutlas_3_9"]\n',
            11,
            "`kernel.a.depends[1]` is 'cutlas_3_9'; expected torch, cut",
        ),
        (
            CUDA_NOARCH + 'cuda-capabilities = [\n  "8.0",\n  "90",\n]\n',
            8,
            "cuda-capabilities[1]` is '90', an unknown architecture of cuda; did you mean '9.0'?",
        ),
        (
            CUDA_NOARCH + 'cuda_capabilities = ["9"]\n',
            8,
            "`torch-noarch.cuda_capabilities[0]` is '9', an unknown arch",
        ),
        (CUDA_NOARCH + 'cuda-capabilities = ["sm_90"]\n', 8, "architecture of cuda; did you mean '9.0'?"),
        (CUDA_NOARCH + 'cuda-capabilities = ["gfx942"]\n', 8, "is 'gfx942', an unknown architecture of cuda."),
        (
            CPU.replace('"cpu"', '"cuda"') + 'cuda-capabilities = ["9.0", "80"]\n',
            11,
            "`kernel.a.cuda-capabilities[1]` is '80', an unknown architecture of cuda; did you mean '8.0'?",
        ),
        (
            CPU.replace('"cpu"', '"rocm"') + 'rocm-archs = ["942"]\n',
            11,
            "`kernel.a.rocm-archs[0]` is '942', an unknown architecture of rocm.",
        ),
        (CPU.replace("src = []", 'src = [""]'), 10, "`kernel.a.src[0]` is ''; expected a string"),
        (
            NOARCH + '[kernel.a]\nbackend = "cpu"\nsrc = []\n',
            8,
            "`[torch-noarch]` cannot have `[kernel]` sections; use `[torch]` or",
        ),
        (
            NOARCH + '[general.cpu]\nkernel-depends = [\n{ repo-id = "org/a" },\n]\n',
            9,
            "either a version or a revision",
        ),
        (
            NOARCH + '[general.cpu]\nkernel-depends = [{ repo-id = "a", version = 1 }]\n',
            9,
            "`repo_id` is 'a'; expected",
        ),
        (NOARCH + '[general.cpu]\nkernel-depends = "org/a"\n', 9, "is 'org/a'; expected a list of tables"),
        (
            NOARCH + '[general.cpu]\nkernel-depends = ["org/a"]\n',
            9,
            "kernel-depends[0]` is 'org/a'; expected a section",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(write_source: Callable[..., Path], toml: str, line: int, says: str) -> None:
    folder = write_source("noarch", changes={"build.toml": toml})
    (folder.parent / "outside.cpp").write_text("")
    (folder / "link").symlink_to(folder.parent)
    # To the compiler this is `hidden.cpp`, whatever the link leads to.
    (folder / "in").symlink_to("torch-ext/add_one")
    (folder / "hidden.cpp").symlink_to("../outside.cpp")
    for name in ("torch-ext/hidden.cpp", ".swp.cpp", "build/a.cpp", "a\n.cpp"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
    with pytest.raises(RequestError) as caught:
        read_source(folder)
    place, _, message = str(caught.value).partition(": ")
    assert says in message
    assert re.sub(r".*/", "", place) == f"build.toml:{line}"


@pytest.mark.parametrize("part", ["torch-ext", "torch-ext/add_one"])
def test_a_package_that_lies_elsewhere_is_refused(write_source: Callable[..., Path], part: str) -> None:
    folder = write_source("noarch")
    (folder / part).rename(folder.parent / "elsewhere")
    (folder / part).symlink_to(folder.parent / "elsewhere")
    with pytest.raises(RequestError, match=r"build\.toml:3: .*is a link out of the folder"):
        read_source(folder)


def test_a_folder_without_its_parts_is_no_source(write_source: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"has no build\.toml, so it is not a kernel.s source folder"):
        read_source(tmp_path)
    with pytest.raises(RequestError, match=r"add_one/__init__\.py is missing \(torch-ext has no package\)"):
        read_source(write_source("noarch", changes={"torch-ext/add_one/__init__.py": None}))


@pytest.mark.parametrize("read", [read_source, read_sources, find_workspace, update_build_toml])
@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("x" * 5000, r"^`source_dir` is 'x{80}'… with 5000 characters, a longer path than the file system has\.$"),
        ("a/" * 3000, r"^`source_dir` is '(a/){40}'… with 6000 characters, a longer path"),
        ("a\0b", r"^`source_dir` is 'a\\x00b', which has a null byte; expected a folder\.$"),
    ],
    ids=["name", "path", "null"],
)
def test_a_path_that_no_folder_has_is_told_in_short(read: Callable[[str], object], folder: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        read(folder)


@pytest.mark.parametrize("read", [read_source, update_build_toml])
def test_a_build_toml_that_is_no_file_is_named(
    read: Callable[[Path], object], write_source: Callable[..., Path]
) -> None:
    folder = write_source("noarch", changes={"build.toml": None, "build.toml/inside": ""})
    with pytest.raises(RequestError, match=r"build\.toml cannot be read: it is a folder\.$"):
        read(folder)
    folder = write_source("noarch", "other")
    (folder / "build.toml").write_bytes(NOARCH.encode().replace(b"MIT", b"M\xcfT"))
    with pytest.raises(RequestError, match=r"build\.toml:5: not valid TOML: a byte that is not UTF-8\.$"):
        read(folder)
