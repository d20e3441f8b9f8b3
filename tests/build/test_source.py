"""`build.toml` is read strictly: what is wrong is said before anything is built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.build import read_source
from kernels.errors import RequestError

GENERAL = '[general]\nname = "add-one"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n'


def test_a_noarch_source_says_what_each_backend_needs(write_source: Callable[..., Path]) -> None:
    source = read_source(write_source("noarch"))
    assert (source.name, source.version, source.license, source.compiled) == ("add-one", 3, "MIT", False)
    assert source.backends == ("cpu", "cuda", "cann")
    assert source.archs == {"cuda": ("8.0", "9.0+PTX")}
    assert source.python_depends == {
        "cpu": ("einops",),
        "cuda": ("einops", "nvidia-cutlass-dsl"),
        "cann": ("einops",),
    }
    assert source.kernel_depends["cuda"] == ({"repo-id": "org/other", "version": 1},)
    assert source.pyext == ("py", "pyi")


def test_both_spellings_of_the_architectures_are_read(write_source: Callable[..., Path]) -> None:
    toml = GENERAL.replace('"cpu"', '"cuda", "rocm"') + '[torch-noarch]\ncuda_capabilities = ["8.0"]\n'
    source = read_source(write_source("noarch", changes={"build.toml": toml + 'rocm-archs = ["gfx942"]\n'}))
    assert source.archs == {"cuda": ("8.0",), "rocm": ("gfx942",)}


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[general", "not a valid build.toml"),
        ("[torch-noarch]\n", "`general.edition` is None; allowed is 5"),
        (GENERAL.replace("edition = 5", "edition = 4") + "[torch-noarch]\n", "`general.edition` is 4"),
        (GENERAL.replace("version = 1\n", "") + "[torch-noarch]\n", "version"),
        (GENERAL.replace("version = 1", "version = -1") + "[torch-noarch]\n", "`version` is -1"),
        (GENERAL.replace("add-one", "Add_One") + "[torch-noarch]\n", "Add_One"),
        (GENERAL.replace('["cpu"]', "[]") + "[torch-noarch]\n", "`general.backends` is empty"),
        (GENERAL, "exactly one framework"),
        (GENERAL + "[torch]\n[torch-noarch]\n", "exactly one framework"),
        (GENERAL + "[tvm-ffi]\n", "tvm-ffi"),
        (GENERAL + "[torch]\nsrcs = []\n", "srcs"),
        (GENERAL + '[torch]\nsrc = ["missing.cpp"]\n', "'missing.cpp'"),
        (GENERAL + '[torch]\nsrc = ["../outside.cpp"]\n', "'../outside.cpp'"),
        (GENERAL + '[torch]\n[kernel.a]\nbackend = "cuda"\nsrc = []\n', "`kernel.a.backend` is 'cuda'; allowed.* cpu"),
        (GENERAL + '[torch]\n[kernel.a]\nbackend = "cpu"\nsrc = []\nflags = []\n', "unknown fields flags"),
        (
            GENERAL + '[torch]\n[kernel.a]\nbackend = "cpu"\nsrc = []\ndepends = ["metal-cpp"]\n',
            "metal-cpp; allowed is torch",
        ),
        (GENERAL + '[torch-noarch]\n[kernel.a]\nbackend = "cpu"\nsrc = []\n', r"beside `\[torch-noarch\]`"),
        (
            GENERAL + '[torch-noarch]\n[general.cpu]\nkernel-depends = [{ repo-id = "org/a" }]\n',
            "either a version or a revision",
        ),
    ],
)
def test_a_mistake_is_named(write_source: Callable[..., Path], toml: str, says: str) -> None:
    folder = write_source("noarch", changes={"build.toml": toml})
    (folder.parent / "outside.cpp").write_text("")
    with pytest.raises(RequestError, match=says):
        read_source(folder)


def test_a_folder_without_its_parts_is_no_source(write_source: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"allowed is a folder with build\.toml"):
        read_source(tmp_path)
    with pytest.raises(RequestError, match=r"add_one/__init__\.py is missing"):
        read_source(write_source("noarch", changes={"torch-ext/add_one/__init__.py": None}))
