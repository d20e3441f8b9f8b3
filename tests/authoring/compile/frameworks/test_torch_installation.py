"""A Torch in another environment is described by its files: no Python there needs this package."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.authoring.compile.frameworks.torch_installation import python_in, this_torch, torch_of
from kernels.errors import CompilerNotFound, RequestError
from kernels.support.version import MajorMinor


def test_another_environments_torch_is_that_of_its_files(older_torch: Callable[..., Path]) -> None:
    python = older_torch("2.9.1+cu128", cuda="12.8")
    found = torch_of(python)
    assert (found.version, found.cxx11_abi, found.hip, found.python) == ("2.9.1+cu128", True, False, python)
    assert dict(found.builds) == {"cuda": MajorMinor(12, 8), "cpu": None}
    assert found.folder.parent.parent.parent.parent == python.parent.parent
    assert (found.folder / "include").is_dir()


def test_this_torch_is_found_by_the_python_that_runs() -> None:
    here, asked = this_torch(), torch_of(Path(sys.executable))
    assert here is not None
    assert (here.version, here.folder, here.cxx11_abi, here.python_include) == (
        asked.version,
        asked.folder,
        asked.cxx11_abi,
        asked.python_include,
    )


def test_an_environment_is_named_by_its_folder_or_its_python(older_torch: Callable[..., Path]) -> None:
    python = older_torch("2.9.1")
    assert python_in(str(python.parent.parent)) == python_in(str(python)) == python


def test_what_is_no_python_is_refused(tmp_path: Path, older_torch: Callable[..., Path]) -> None:
    with pytest.raises(RequestError, match="a folder that has no Python environment"):
        python_in(str(tmp_path))
    with pytest.raises(RequestError, match=r"`python` is 'no-such-python'; expected a Python"):
        python_in("no-such-python")
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho hello\n")
    other.chmod(0o755)
    with pytest.raises(RequestError, match=r"other is not a Python: its answer is 'hello\\n'"):
        torch_of(other)
    other.write_text("#!/bin/sh\necho it is broken >&2\nexit 3\n")
    with pytest.raises(RequestError, match="ended with exit status 3: 'it is broken'"):
        torch_of(other)
    python = older_torch(None)
    with pytest.raises(CompilerNotFound, match="has no Torch"):
        torch_of(python)
    (next(python.parent.parent.glob("lib/python*/site-packages")) / "torch").mkdir()
    with pytest.raises(CompilerNotFound, match="do not say what this Torch was built for"):
        torch_of(python)


def test_what_an_environment_prints_at_its_start_is_not_an_answer(older_torch: Callable[..., Path]) -> None:
    python = older_torch("2.9.1")
    packages = next(python.parent.parent.glob("lib/python*/site-packages"))
    (packages / "sitecustomize.py").write_text("print('hello')\n")
    assert torch_of(python).version == "2.9.1"
