"""Torch's facts are read from its files, and only where these may mislead is it imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernels import backends
from kernels.backends import Backend, BackendProbe, Found, torch_build
from kernels.resolver.target import Target

SCRIPT = """
import json, sys
from kernels.backends import torch_build
def facts():
    torch = torch_build.installed_torch()
    builds = {name: str(version) for name, version in torch_build.torch_builds().items()}
    return [str(torch.__version__), builds, torch_build.cxx11_abi()]
from_files, imported = facts(), "torch" in sys.modules
import torch
json.dump([imported, from_files, facts()], sys.stdout)
"""


def test_the_files_of_the_installed_torch_say_what_torch_itself_says() -> None:
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    imported, from_files, from_torch = json.loads(done.stdout)
    assert from_files == from_torch
    assert imported == (sys.platform == "darwin")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An installed Torch, as its files are laid out; version.py as in the 2.9.0+cu128 wheel."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "version.py").write_text(
        "from typing import Optional\n__all__ = ['__version__']\n__version__ = '2.9.0+cu128'\ndebug = False\n"
        "cuda: Optional[str] = '12.8'\ngit_version = '0fabc3b'\nhip: Optional[str] = None\nxpu: Optional[str] = None\n"
    )
    (tmp_path / "lib/libc10.so").write_bytes(
        b"\0_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE\0"
    )
    return tmp_path


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C++ ABI is read from an ELF library")
def test_version_backend_and_abi_stand_in_the_files(package: Path) -> None:
    described: Any = torch_build._describe(package)
    assert described.__version__ == "2.9.0+cu128"
    assert (described.version.cuda, described.version.hip, described.cxx11_abi) == ("12.8", None, True)


@pytest.mark.parametrize(
    ("symbols", "abi"),
    [
        (b"\0_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIc\0", True),
        (b"\0_ZN3c105ErrorC1ENS_14SourceLocationESs\0", False),
        (b"\0nothing of the kind\0", None),
        (b"", None),
    ],
)
def test_the_abi_is_that_of_the_strings_an_error_is_made_of(tmp_path: Path, symbols: bytes, abi: bool | None) -> None:
    (tmp_path / "libc10.so").write_bytes(symbols)
    assert torch_build._library_abi(tmp_path / "libc10.so") is abi


@pytest.mark.parametrize(
    "text", ["", "__version__ = version()", "cuda = None\nhip = None", "def (", "__version__ = '2'"]
)
def test_an_unfamiliar_version_file_is_not_guessed_at(package: Path, text: str) -> None:
    (package / "version.py").write_text(text)
    assert torch_build._describe(package) is None


def test_an_installation_without_its_files_is_not_guessed_at(tmp_path: Path) -> None:
    assert torch_build._describe(tmp_path) is None


def test_without_torch_there_is_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_build, "installed_torch", lambda: None)
    assert (torch_build.torch_builds(), torch_build.cxx11_abi()) == ({}, None)


def test_a_torch_that_extensions_add_to_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(torch_build, "_is_complete", lambda module: False)
    monkeypatch.setattr(torch_build, "_extensions_installed", lambda: True)
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)
    assert torch_build.installed_torch() is sys.modules["torch"]
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    assert isinstance(torch_build.installed_torch(), SimpleNamespace) or sys.platform == "darwin"


def test_an_installation_that_does_not_load_is_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise OSError('libtorch.so: wrong ELF class')")
    script = "from kernels.backends import torch_build; print(torch_build.installed_torch())"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {script}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "None"


class Curious(Backend):
    """A stranger's backend that looks at parts of Torch that only the module has."""

    name = noarch_name = token = device_type = mapping_device = "curious"
    dispatch_key = "PrivateUse1"
    order = 1

    def probe(self) -> BackendProbe:
        return BackendProbe(found=True)

    def torch_build(self, torch: Any) -> Found | None:
        return Found() if callable(torch.nn.functional.relu) else None


def test_a_backend_that_needs_all_of_torch_gets_it() -> None:
    pytest.importorskip("torch")
    backends.register_backend(Curious())
    try:
        assert "curious" in torch_build.torch_builds()
    finally:
        backends.unregister_backend("curious")


class Broken(Curious):
    name = noarch_name = token = device_type = mapping_device = "broken"

    def torch_build(self, torch: Any) -> Found | None:
        raise RuntimeError("not today")


def test_a_backend_that_fails_does_not_take_the_others_down() -> None:
    backends.register_backend(Broken())
    try:
        assert "broken" not in torch_build.torch_builds()
        assert "broken: its torch_build failed: RuntimeError: not today" in Target.probe().notes
    finally:
        backends.unregister_backend("broken")
