"""On Windows the libraries of Torch, of the toolkit and of the kernel are found; a stand-in records what it is told."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

from kernels.loader.load import load_variant
from kernels.models.metadata import Metadata


class _Windows:
    """`os.add_dll_directory`, whose result is closed when the folder is no longer needed."""

    def __init__(self) -> None:
        self.added: list[str] = []
        self.present: list[str] = []

    def __call__(self, path: str) -> _Added:
        if "refused" in path:
            raise OSError("access is denied")
        self.added.append(path)
        self.present.append(path)
        return _Added(self, path)


class _Added:
    def __init__(self, windows: _Windows, path: str) -> None:
        self.windows, self.path = windows, path

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.windows.present.remove(self.path)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> _Windows:
    stand_in = _Windows()
    monkeypatch.setattr(os, "add_dll_directory", stand_in, raising=False)
    return stand_in


def _variant(folder: Path, backend: str, code: str) -> Metadata:
    (folder / "__init__.py").write_text(code)
    name = folder.parent.name.replace("[", "_").replace("]", "_").replace("-", "_")
    fields = {"name": "dll-test", "id": f"_dll_{backend}_{name}", "backend": {"type": backend}}
    return Metadata.from_bytes(json.dumps(fields).encode())


def test_the_folders_are_there_while_the_kernel_is_imported(
    windows: _Windows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit, build = tmp_path / "CUDA", tmp_path / "torch-cuda"
    (toolkit / "bin").mkdir(parents=True)
    build.mkdir()
    monkeypatch.setenv("CUDA_PATH", str(toolkit))
    metadata = _variant(build, "cuda", "import os\nduring = list(os.add_dll_directory.present)\n")
    module = load_variant(build, metadata)
    torch = importlib.util.find_spec("torch")
    torch_lib = [] if torch is None or torch.origin is None else [str(Path(torch.origin).parent / "lib")]
    assert module.during == [str(build), *torch_lib, str(toolkit / "bin")]
    assert windows.present == []


@pytest.mark.parametrize("backend", ["cpu", "unknown"])
def test_a_folder_that_cannot_be_added_and_a_kernel_that_fails_leave_nothing(
    windows: _Windows, tmp_path: Path, backend: str
) -> None:
    build = tmp_path / "refused"
    build.mkdir()
    with pytest.raises(ZeroDivisionError):
        load_variant(build, _variant(build, backend, "1 / 0\n"))
    assert windows.present == []
    assert str(build) not in windows.added
