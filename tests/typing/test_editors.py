"""An editor built on Jedi completes the public names, shows their signatures and goes to their definitions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import kernels

jedi = pytest.importorskip("jedi", reason="needs jedi, of the development requirements")

SOURCES = Path(kernels.__file__).parent


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the user's, which another process may be writing."""
    monkeypatch.setattr(jedi.settings, "cache_directory", str(tmp_path))


def script(code: str) -> Any:
    project = jedi.Project(SOURCES, sys_path=sys.path)
    return jedi.Script(code, project=project, environment=jedi.InterpreterEnvironment())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import kernels\nkernels.get_lo", ["get_loaded_kernels", "get_local_kernel", "get_locked_kernel"]),
        ("from kernels import use_kernel_m", ["use_kernel_mapping"]),
        ("from kernels import Mode\nMode.INF", ["INFERENCE"]),
        ("from kernels import Target\nTarget.current().default_", ["default_backend"]),
        ("from kernels import get_kernel\nget_kernel(trust_rem", ["trust_remote_code="]),
        ("from kernels import kernelize\nkernelize(0, report=True).to_l", ["to_list"]),
    ],
)
def test_names_members_and_arguments_are_completed(code: str, expected: list[str]) -> None:
    assert [found.name for found in script(code).complete()] == expected


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("get_kernel", "api.py"),
        ("kernelize", "layer/kernelize.py"),
        ("LayerRepository", "layer/repos.py"),
        ("Target", "resolver/target.py"),
        ("register_backend", "backends/registry.py"),
    ],
)
def test_go_to_definition_opens_the_module_that_defines_the_name(name: str, file: str) -> None:
    found = script(f"from kernels import {name}").goto(1, len("from kernels import ") + 1, follow_imports=True)
    assert {(each.name, each.module_path) for each in found} == {(name, SOURCES / file)}


def test_a_decorated_function_keeps_its_signature() -> None:
    code = "from kernels import use_kernel_forward_from_hub as use\n@use('f')\ndef f(x: int) -> str: ...\nf("
    assert [each.to_string() for each in script(code).get_signatures()] == ["f(x: int) -> str"]
