"""A new kernel says what this machine cannot build of it, and where device code is still to be written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernels import load_backends
from kernels.authoring.compile import read_source
from kernels.authoring.compile.toolchains import toolchain_for
from kernels.authoring.scaffold import new_kernel
from kernels.authoring.scaffold.buildable import notes_on_building
from kernels.backends import find, unregister_backend


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        ("xpu", r"^This machine cannot build for xpu: Torch .* is not built for xpu\. .*icpx"),
        ("metal", r"^This machine cannot build for metal: Torch .* is not built for metal\. .*xcrun metal"),
    ],
)
def test_a_compiler_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, says: str
) -> None:
    if backend in _builds():
        pytest.skip(f"Torch is built for {backend}")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("kernels.authoring.compile.toolchains.icpx._installed", lambda wanted: [])
    folder = new_kernel("relu", tmp_path / "k", backends=[backend])
    (note,) = notes_on_building(folder)
    assert re.search(says, note)
    assert "\n" not in note


def test_a_backend_without_device_code_is_named(tmp_path: Path) -> None:
    notes = notes_on_building(new_kernel("relu", tmp_path / "k", backends=["cpu", "tpu"]))
    assert "There is no device code for tpu yet: its source uses Torch's own operators." in notes
    assert not any(note.startswith("There is no device code for cpu") for note in notes)


@pytest.mark.parametrize("backend", ["xpu", "metal"])
def test_each_source_has_a_compiler_of_the_device_language(tmp_path: Path, backend: str) -> None:
    source = read_source(new_kernel("relu", tmp_path / "k", backends=[backend]))
    (kernel,) = source.kernels
    language = find(backend).device_language
    toolchains = [toolchain_for(path, language) for path in kernel.src]
    assert {toolchain.language for toolchain in toolchains} == {language}
    embedding = [toolchain.embeds for toolchain in toolchains if toolchain.embeds is not None]
    text = "".join((source.folder / path).read_text() for path in kernel.src)
    assert ("EMBEDDED_METALLIB_HEADER" in text) == bool(embedding)


def test_a_vendors_backend_gets_the_device_code_of_its_language(tmp_path: Path) -> None:
    (tmp_path / "chip.json").write_text('{"chip": {"device_string": "chip", "device_language": "sycl"}}')
    load_backends(tmp_path / "chip.json")
    try:
        folder = new_kernel("relu", tmp_path / "k", backends=["chip"])
        (kernel,) = read_source(folder).kernels
        assert toolchain_for(kernel.src[0], find(kernel.backend).device_language).language == "sycl"
    finally:
        unregister_backend("chip")
    assert "sycl::nd_range" in (folder / "relu_chip/relu.cpp").read_text()


def _builds() -> list[str]:
    from kernels.backends.torch_build import torch_builds

    return list(torch_builds())
