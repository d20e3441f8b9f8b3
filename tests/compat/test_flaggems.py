"""The table of FlagGems' folders: functions are read and not run, and compared with FlagGems' own registrations."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest

COMPAT = Path(__file__).parents[2] / "compat"


@pytest.fixture(scope="module")
def flaggems() -> ModuleType:
    pytest.importorskip("torch")
    sys.path.insert(0, str(COMPAT))
    try:
        spec = importlib.util.spec_from_file_location("flaggems_of_compat", COMPAT / "flaggems.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(COMPAT))
    return module


def test_the_names_of_a_folder_are_counted(flaggems: ModuleType, tmp_path: Path) -> None:
    package = tmp_path / "flag_gems"
    ops = package / "runtime" / "backend" / "_acme" / "ops"
    ops.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import nothing_of_the_kind\n_FULL_CONFIG = (('add.Tensor', add), ('_softmax', softmax), ('gelu', silu))\n"
    )
    (ops / "__init__.py").write_text(
        "raise OSError\n__all__ = ['add', 'softmax', 'silu', 'silu', 'hadamard_transform', 'view', 'CONSTANT']\n"
    )
    (ops / "all.py").write_text(
        "import triton\n"
        "@triton.jit\ndef kernel(x, BLOCK: triton.constexpr): ...\n"
        "def add(A: object, B, *, alpha=triton.one) -> None: raise OSError\n"
        "def softmax(self, dim, half_to_float=False): return self\n"
        "def silu(x): return x\ndef view(x, size): return x\ndef hadamard_transform(x): return x\n"
    )
    missing: set[str] = set()
    otherwise: set[str] = set()
    unusable: set[str] = set()
    rows = list(flaggems.rows("1.0", package, missing, otherwise, unusable))
    assert rows == ["| 1.0 | `_acme` | 6 | 4 | 3 |", "| 1.0 | all | 6 | 4 (66.7%) | 3 |"]
    assert missing == {"hadamard_transform", "CONSTANT"}
    assert unusable == {"view"}
    assert otherwise == {"silu: silu"}


def test_a_stand_in_has_signature_and_source_of_its_function(flaggems: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def layer_norm(x, shape: int, *, eps=1e-5, kind=torch.float):\n    return x, 1\n")
    function = flaggems.functions(tmp_path)["layer_norm"]
    assert str(inspect.signature(function)).startswith("(x, shape, *, eps=1e-05, kind=")
    assert "return (x, 1)" in inspect.getsource(function)
