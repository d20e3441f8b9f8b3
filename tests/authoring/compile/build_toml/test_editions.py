"""Sources of every edition are read into one model, and written back as the edition of today."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from logged import logged

from kernels.authoring.compile import read_source
from kernels.authoring.compile.build_toml.update import update_build_toml
from kernels.errors import BuildError, RequestError
from kernels.support.logs import forget_warnings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BUILT_IN = ("cann", "cpu", "cuda", "metal", "neuron", "rocm", "tpu", "xpu")

# Written here, each in the manner of a published source: its edition and framework, and what is special about it.
SOURCES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "many backends, one section each": (
        """
[general]
name = "add-one"
version = 1
license = "Apache-2.0"
backends = ["cpu", "cuda", "metal", "rocm", "xpu"]

[general.hub]
repo-id = "org/add-one"

[torch]
src = ["torch-ext/binding.cpp"]

[kernel.one_xpu]
backend = "xpu"
depends = ["torch"]
src = ["one.cpp"]

[kernel.one_metal]
backend = "metal"
depends = ["torch", "metal-cpp"]
src = ["one.h"]

[kernel.one_rocm]
backend = "rocm"
depends = ["torch"]
rocm-archs = ["gfx942"]
src = ["one.cu"]

[kernel.one]
backend = "cuda"
depends = ["torch"]
src = ["one.cu"]
""",
        4,
        {"framework": "torch", "repo_id": "org/add-one", "version": 1},
    ),
    "a stable ABI for all, CUTLASS and SYCL": (
        """
[general]
name = "add-one"
version = 3
license = "BSD-3-Clause"
backends = ["cuda", "xpu"]

[torch]
stable-abi = "2.10"
src = ["torch-ext/binding.cpp"]

[kernel.one_xpu]
backend = "xpu"
depends = ["torch", "sycl_tla"]
sycl-flags = ["-O3"]
src = ["one.cpp"]

[kernel.one]
backend = "cuda"
cuda-capabilities = ["8.0", "9.0", "10.0"]
depends = ["torch", "cutlass_3_6"]
src = ["one.cu"]
""",
        4,
        {"stable_abi": {"cuda": (2, 10), "xpu": (2, 10)}},
    ),
    "a stable ABI by backend": (
        """
[general]
name = "add-one"
version = 1
edition = 5
license = "Apache-2.0"
backends = ["cpu", "cuda"]

[torch]
src = ["torch-ext/binding.cpp"]

[torch.stable-abi]
cpu = "2.11"
cuda = "2.12"

# [kernel.one_metal]
# backend = "metal"

[kernel.one_cpu]
backend = "cpu"
depends = ["torch"]
src = ["one.cpp"]
""",
        5,
        {"stable_abi": {"cpu": (2, 11), "cuda": (2, 12)}},
    ),
    "noarch with an empty kernel section": (
        """
[general]
name = "add-one"
version = 1
license = "Apache-2.0"
backends = ["neuron"]

[general.neuron]
python-depends = ["nki"]

[torch-noarch]

[kernel]
""",
        4,
        {"framework": "torch-noarch", "python_depends": {"neuron": ("nki",)}},
    ),
    "noarch with data files": (
        """
[general]
name = "add-one"
version = 2
edition = 5
license = "Apache-2.0"
backends = ["cuda", "rocm", "xpu"]
python-depends = ["einops"]

[torch-noarch]
pyext = ["json", "py"]
""",
        5,
        {"pyext": ("json", "py")},
    ),
    "noarch with architectures, dashed": (
        """
[general]
name = "add-one"
version = 1
edition = 5
license = "mit"
backends = ["cuda"]

[torch-noarch]
# since Hopper
cuda-capabilities = ["9.0", "10.0"] # and newer
rocm_archs = ["gfx942"]
""",
        5,
        {"archs": {"cuda": ("9.0", "10.0")}},
    ),
    "noarch with architectures by backend": (
        """
[general]
name = "add-one"
version = 1
license = "Apache-2.0"
backends = ["cuda", "rocm"]

[general.cuda] # NVIDIA
capabilities = ["8.0", "9.0"]

[general.rocm]
archs = ["gfx942:xnack-"]

[torch-noarch]
""",
        4,
        {"archs": {"cuda": ("8.0", "9.0"), "rocm": ("gfx942",)}},
    ),
    "architectures of every section that has none": (
        """
[general]
name = "add-one"
version = 1
license = "Apache-2.0"
backends = ["cuda"]

[general.cuda]
minver = "12.6"
capabilities = ["8.0", "9.0a"]

[torch]
src = ["torch-ext/binding.cpp"]

[kernel.one]
backend = "cuda"
depends = ["torch"]
src = ["one.cu"]

[kernel.two]
backend = "cuda"
cuda-capabilities = ["10.0"]
depends = ["torch"]
src = ["one.cpp"]
""",
        4,
        {"backend_minver": {"cuda": (12, 6)}},
    ),
    "no framework means noarch": (
        """
[general]
name = "add-one"
backends = [
    "cuda",
    "rocm",
    "xpu",
]
version = 1

[general.hub]
repo-id = "org/add-one"

""",
        3,
        {"framework": "torch-noarch", "license": None, "backends": ("cuda", "rocm", "xpu")},
    ),
    "neither version nor license": (
        """
[general]
name = "add-one"
backends = ["cuda"]

[general.cuda]
minver = "12.8"
python-depends = ["nvidia-cutlass-dsl"]

[torch]
minver = "2.8"
maxver = "2.9"
src = ["torch-ext/binding.cpp"]

[kernel.one]
backend = "cuda"
depends = ["torch", "cutlass_4_0"]
cuda-minver = "12.8"
src = ["one.cu"]
""",
        3,
        {"version": 1, "minver": (2, 8), "maxver": (2, 9), "backend_minver": {"cuda": (12, 8)}},
    ),
    "a name with underscores": (
        """
[general]
name = "add_one"
version = 1
backends = ["metal"]

[torch]
src = ["torch-ext/binding.cpp"]

[kernel.add_one]
backend = "metal"
depends = ["torch"]
include = ["not/there/yet", "."]
src = ["one.h"]
""",
        3,
        {"name": "add-one"},
    ),
    "tvm-ffi": (
        """
[general]
name = "add-one"
version = 1
license = "Apache-2.0"
backends = ["cpu", "cuda"]

[tvm-ffi]
src = ["tvm-ffi-ext/binding.cpp"]

[kernel.one_cpu]
backend = "cpu"
depends = []
src = ["one.cpp", "one.h"]
""",
        4,
        {"framework": "tvm-ffi", "compiled": True},
    ),
    "not universal, backends by kernel": (
        """
[general]
name = "add-one"
universal = false

[torch]
src = ["torch-ext/binding.cpp"]
minver = "2.8"

[kernel.one]
backend = "rocm"
rocm-archs = ["gfx906"]
depends = ["torch"]
src = ["one.cu"]

[kernel.one_cpu]
backend = "cpu"
depends = ["torch"]
cxx-flags = ["-mavx2"]
src = ["one.cpp"]
""",
        2,
        {"framework": "torch", "backends": ("cpu", "rocm"), "version": 1},
    ),
    "backends by kernel, with bounds of the toolkit": (
        """
[general]
name = "add-one"
cuda-minver = "12.4"

[torch]
src = ["torch-ext/binding.cpp"]

[kernel.one]
backend = "cuda"
depends = ["torch"]
src = ["one.cu"]
""",
        2,
        {"backends": ("cuda",), "backend_minver": {"cuda": (12, 4)}},
    ),
    "universal": (
        """
[general]
name = "add-one"
universal = true

[torch]
pyext = ["py", "txt"]
""",
        2,
        {"framework": "torch-noarch", "backends": BUILT_IN, "pyext": ("py", "txt")},
    ),
    "universal among what is Torch's": (
        """
[general]
name = "add-one"

[torch]
universal = true
""",
        2,
        {"framework": "torch-noarch", "backends": BUILT_IN},
    ),
}

FILES = {
    **{f"{folder}/add_one/__init__.py": "" for folder in ("torch-ext", "tvm-ffi-ext")},
    **{f"{folder}/binding.cpp": "" for folder in ("torch-ext", "tvm-ffi-ext")},
    **dict.fromkeys(["one.cpp", "one.cu", "one.h"], ""),
}


@pytest.fixture
def write(write_source: Callable[..., Path]) -> Callable[[str], Path]:
    forget_warnings()
    return lambda toml: write_source("noarch", changes={**FILES, "build.toml": toml})


@pytest.mark.parametrize("manner", SOURCES)
def test_every_manner_of_writing_is_read(write: Callable[[str], Path], manner: str) -> None:
    toml, edition, says = SOURCES[manner]
    source = read_source(write(toml))
    assert source.edition == edition
    assert {name: getattr(source, name) for name in says} == says


def test_architectures_of_a_backend_are_those_of_its_sections(write: Callable[[str], Path]) -> None:
    one, two = read_source(write(SOURCES["architectures of every section that has none"][0])).kernels
    assert (one.archs, two.archs) == (("8.0", "9.0a"), ("10.0",))
    current = SOURCES["a stable ABI by backend"][0] + '[general.cuda]\ncapabilities = ["8.0"]\n'
    with pytest.raises(RequestError, match=r"`general\.cuda` has the unknown key `capabilities`; expected kernel-"):
        read_source(write(current))


@pytest.mark.parametrize("manner", SOURCES)
def test_only_older_editions_are_mentioned_and_once(write: Callable[[str], Path], manner: str) -> None:
    toml, edition, _ = SOURCES[manner]
    folder = write(toml)
    with logged() as caught:
        for _ in range(2):
            read_source(folder)
    said = [each.getMessage() for each in caught]
    assert len(said) == (edition != 5)
    assert all(f"has edition {edition} and was read as edition 5" in each and "--update" in each for each in said)


@pytest.mark.parametrize("manner", SOURCES)
def test_what_is_written_back_is_edition_5_and_says_the_same(write: Callable[[str], Path], manner: str) -> None:
    toml = SOURCES[manner][0]
    if "license" not in toml:
        toml = toml.replace("[general]", '[general]\nlicense = "mit" # ours')
    toml = "# the first line\n" + toml + "\n# the last line\n"
    folder = write(toml)
    before = read_source(folder)
    update_build_toml(folder)
    text = (folder / "build.toml").read_text()
    with logged() as records:
        after = read_source(folder)
    assert not records
    assert after.edition == 5
    for name in before.__dataclass_fields__.keys() - {"edition"}:
        assert getattr(after, name) == getattr(before, name), name
    comments = [line[line.index("#") :] for line in toml.splitlines() if "#" in line]
    assert [line[line.index("#") :] for line in text.splitlines() if "#" in line] == comments
    assert not update_build_toml(folder)
    assert (folder / "build.toml").read_text() == text

    # What the parsers of other builders take: these spellings, and `depends` in every kernel.
    data = tomllib.loads(text)
    assert all("-" not in key for key in data.get("torch-noarch", {}))
    for kernel in data.get("kernel", {}).values():
        assert "depends" in kernel
        assert all("_" not in key for key in kernel)


def test_new_keys_stand_beside_what_they_belong_to(write: Callable[[str], Path]) -> None:
    folder = write(
        """# ours
[general]
name = "add_one" # the name
license = "mit"
backends = ["cuda", "cpu"]

# where it goes
[general.hub]
repo-id = "org/add-one"

[torch] # compiled
src = [
  "torch-ext/binding.cpp", # the binding
]

# for all
[kernel.one] # the one
# which
backend = "cuda" # this
cuda_capabilities = ["9.0"] # Hopper
src = ["one.cu"]

[general.cuda] # late
minver = "12.8"
"""
    )
    assert update_build_toml(folder)
    assert (folder / "build.toml").read_text().partition("[torch]")[2] == (
        """ # compiled
src = [
  "torch-ext/binding.cpp", # the binding
]

# for all
[kernel.one] # the one
# which
backend = "cuda" # this
depends = ["torch"]
cuda-capabilities = ["9.0"] # Hopper
src = ["one.cu"]

[general.cuda] # late
minver = "12.8"
"""
    )
    assert 'name = "add-one" # the name\n' in (folder / "build.toml").read_text()


def test_a_section_of_one_line_is_written_back_too(write: Callable[[str], Path]) -> None:
    folder = write(
        'general = { name = "add-one", version = 1, license = "mit", backends = ["cuda"] }\r\n'
        'torch-noarch = { cuda-capabilities = ["9.0"], pyext = ["py"] }\r\n'
    )
    path = folder / "build.toml"
    path.chmod(0o640)
    assert update_build_toml(folder)
    assert path.stat().st_mode & 0o777 == 0o640
    assert read_source(folder).archs == {"cuda": ("9.0",)}
    assert 'torch-noarch = { cuda_capabilities = ["9.0"], pyext = ["py"] }' in path.read_text()
    assert path.read_bytes().count(b"\n") == path.read_bytes().count(b"\r\n")


def test_a_license_cannot_be_made_up(write: Callable[[str], Path]) -> None:
    folder = write('[general]\nname = "add-one"\nbackends = ["cpu"]\n')
    with pytest.raises(RequestError, match=r"build\.toml:1: `general\.license` is missing; set an SPDX"):
        update_build_toml(folder)
    assert "edition" not in (folder / "build.toml").read_text()


def test_a_wrong_file_is_not_rewritten(write: Callable[[str], Path], tmp_path: Path) -> None:
    folder = write('[general]\nname = "add-one"\nlicense = "mit"\nversion = -1\nbackends = ["cpu"]\n')
    with pytest.raises(RequestError, match=r"build\.toml:4: `general\.version` is -1"):
        update_build_toml(folder)
    with pytest.raises(RequestError, match=r"has no build\.toml"):
        update_build_toml(tmp_path)


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ('[general]\nname = "add-one"\nuniversal = false\n[torch]\n', r":1: `general\.backends` is missing"),
        ('[general]\nname = 1\nbackends = ["cpu"]\n', r":2: `general\.name` is 1"),
        ('[general]\nname = "add-one"\nbackends = ["cpu"]\ntorch = 1\n', r":4: `general` has the unknown key `torch`"),
        ('torch = 1\n[general]\nname = "add-one"\nbackends = ["cpu"]\n', r":1: `torch` is 1; expected a section"),
        ('[general]\nname = "add-one"\n[kernel]\na = 1\n[torch]\n', r":1: `general\.backends` is missing"),
        ('[general]\nname = "add-one"\ncompute-framework = "universal"\n', r":1: `general\.backends` is missing"),
        ('[general]\nname = "ab"\nbackends = ["cpu"]\n[torch-noarch]\n', r":1: `general\.license` is missing"),
        (
            '[general]\nname = "ab"\nlicense = "mit"\n[general.cuda]\nx = 1\n[torch]\n',
            r"`general\.backends` is missing",
        ),
    ],
)
def test_mistakes_in_older_files_have_their_line_too(write: Callable[[str], Path], toml: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        read_source(write(toml))


LANGUAGES = """
[general]
name = "add-one"
version = 1
edition = 6
license = "Apache-2.0"
backends = ["cpu", "cuda"]

[torch]
src = ["torch-ext/binding.cpp"]

[kernel.one]
language = "cpp-cuda"
depends = ["torch"]
cuda-capabilities = ["9.0"]
src = ["one.cu"]

[kernel.one_cpu]
language = "cpp-cpu"
src = ["one.cpp"]
"""


def test_edition_6_names_the_backend_in_the_language(write: Callable[[str], Path]) -> None:
    folder = write(LANGUAGES)
    with logged() as records:
        source = read_source(folder)
    assert not records
    assert (source.edition, source.archs) == (6, {})
    assert [(each.backend, each.src, each.archs) for each in source.kernels] == [
        ("cuda", ("one.cu",), ("9.0",)),
        ("cpu", ("one.cpp",), ()),
    ]
    assert not update_build_toml(folder)
    assert (folder / "build.toml").read_text() == LANGUAGES


@pytest.mark.parametrize(
    ("language", "says"),
    [
        ('language = "rust-cpu"', r":19: `kernel\.one_cpu\.language` is 'rust-cpu'; expected \"cpp-\" and a backend"),
        ("language = 1", r":19: `kernel\.one_cpu\.language` is 1; expected \"cpp-\""),
        ("", r":18: `kernel\.one_cpu\.language` is missing; expected \"cpp-\" and a backend"),
        ('language = "cpp-cpus"', r":18: `kernel\.one_cpu\.backend` is 'cpus'; expected one of cpu, cuda"),
        ('language = "cpp-cpu"\nbackend = "cuda"', r":19: `kernel\.one_cpu` has the unknown key `language`"),
    ],
)
def test_languages_that_are_not_compiled_are_refused(write: Callable[[str], Path], language: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        read_source(write(LANGUAGES.replace('language = "cpp-cpu"', language)))


def test_a_failed_write_leaves_the_file(write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write('[general]\nname = "add-one"\nlicense = "mit"\nbackends = ["cpu"]\n')
    before = (folder / "build.toml").read_text()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(BuildError, match=r"build\.toml could not be written: No space left on device"):
        update_build_toml(folder)
    assert (folder / "build.toml").read_text() == before
    assert not list(folder.glob("build.toml.*"))


def test_without_tomlkit_the_error_says_what_to_install(
    write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write('[general]\nname = "add-one"\nlicense = "mit"\nbackends = ["cpu"]\n')
    monkeypatch.setitem(sys.modules, "tomlkit", None)
    with pytest.raises(BuildError, match=r"pip install tomlkit"):
        update_build_toml(folder)
