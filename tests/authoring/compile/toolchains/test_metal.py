"""Metal sources are compiled by Xcode's tools: shaders into a library, Objective-C++ into the extension."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.authoring.compile.toolchains import toolchain_for
from kernels.errors import CompilerNotFound

Program = Callable[[str, str], Path]

#: What `xcrun -sdk macosx metal --version` answers with Xcode 26.4.
_METAL = """cat << 'END'
Apple metal version 32023.864 (metalfe-32023.864)
Target: air64-apple-darwin25.4.0
Thread model: posix
InstalledDir: /Users/runner/Library/Developer/DVTDownloads/MetalToolchain/mounts/058e/Metal.xctoolchain/usr/metal/bin
END"""

#: What Xcode 26 answers before its Metal toolchain is downloaded.
_MISSING = """cat >&2 << 'END'
error: cannot execute tool 'metal' due to missing Metal Toolchain; use: xcodebuild -downloadComponent MetalToolchain
END
exit 1"""


@pytest.fixture
def xcrun(tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    monkeypatch.delenv("XCRUN", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    return lambda lines: program("path/xcrun", lines)


def test_shaders_and_objective_cxx_have_their_own_compilers(xcrun: Callable[[str], Path]) -> None:
    tool = str(xcrun(_METAL))
    shaders, sources = toolchain_for("relu.metal", "metal"), toolchain_for("relu.mm", "metal")
    assert shaders.command() == [tool, "-sdk", "macosx", "metal"]
    assert sources.command() == [tool, "-sdk", "macosx", "clang++"]
    assert shaders.embeds is not None
    assert shaders.embeds.linker() == [tool, "-sdk", "macosx", "metallib"]
    assert sources.embeds is None
    assert not toolchain_for("binding.cpp", "metal").device
    assert shaders.flags([], ["-ffast-math"]) == ["-std=metal4.0", "-O2", "-mmacosx-version-min=26.0", "-ffast-math"]
    # Published sources retain and release by themselves.
    assert "-fobjc-arc" not in sources.flags([], [])
    assert sources.flags([], [])[:3] == ["-x", "objective-c++", "-std=c++20"]
    in_c = toolchain_for("log.m", "metal")
    assert in_c.flags([], [])[:2] == ["-x", "objective-c"]
    assert not in_c.reads_cxx_flags


def test_an_extension_leaves_the_names_of_python_open(tmp_path: Path) -> None:
    frameworks = ["-framework", "Foundation", "-framework", "Metal"]
    for folder, kind in ((tmp_path, ["-bundle", "-undefined", "dynamic_lookup"]), (None, ["-dynamiclib"])):
        flags = toolchain_for("relu.mm", "metal").link_flags(folder)
        assert flags == [*kind, "-mmacosx-version-min=26.0", *frameworks]


def test_xcode_without_its_metal_toolchain_says_how_to_get_it(xcrun: Callable[[str], Path]) -> None:
    xcrun(_MISSING)
    with pytest.raises(CompilerNotFound, match="xcodebuild -downloadComponent MetalToolchain"):
        toolchain_for("relu.metal", "metal").command()


def test_other_systems_are_told_that_it_is_for_macos(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("relu.metal", "relu.mm"):
        with pytest.raises(CompilerNotFound, match=r"compiled on macOS, with `xcrun metal`\. Install there Xcode 26"):
            toolchain_for(name, "metal").command()
