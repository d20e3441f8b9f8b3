"""What holds in the existing client holds here: the facts that `make compat` recorded, compared with this client.

`make compat` compares all situations. Here are those in which something is raised, logged or warned, and those about
data, which need no Hub.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

from kernels.cli import app

ROOT = Path(__file__).parents[2]
COMPAT = ROOT / "compat"

#: Kinds of situations that take seconds each.
SLOW = ("kernels ", "the User-Agent")
DATA = (
    "Metadata",
    "RepoInfo",
    "LoadedKernel",
    "Device",
    "CUDAProperties",
    "ROCMProperties",
    "Mode",
)


@pytest.fixture(scope="module")
def existing_client() -> ModuleType:
    """The script, which finds its neighbours beside it."""
    sys.path.insert(0, str(COMPAT))
    try:
        specification = importlib.util.spec_from_file_location("existing_client", COMPAT / "existing_client.py")
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(COMPAT))


@pytest.fixture(scope="module")
def facts(existing_client: ModuleType) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(existing_client.FACTS.read_text(encoding="utf-8"))
    return content


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each situation is a forked process")
def test_no_difference_is_without_a_reason(existing_client: ModuleType, facts: dict[str, Any]) -> None:
    chosen = [
        name
        for name, fact in facts["situations"].items()
        if not name.startswith(SLOW) and ("raises" in fact or fact["logs"] or fact["warnings"] or name.startswith(DATA))
    ]
    assert len(chosen) > 100
    own = existing_client.facts_of(sys.executable, source=ROOT / "src", only=chosen)
    assert own["situations"].keys() == set(chosen)
    reasons = existing_client.reasons()
    without = [
        difference
        for difference in existing_client.differences({**facts, "commands": {}}, own)
        if not any(existing_client.is_named(difference, pattern) for reason in reasons for pattern in reason["what"])
    ]
    assert without == []


def test_commands_have_the_options(facts: dict[str, Any]) -> None:
    group: Any = get_command(app)
    context = group.make_context("kernels", ["lock"], resilient_parsing=True)
    for name, options in facts["commands"].items():
        known = {option for parameter in group.get_command(context, name).params for option in parameter.opts}
        assert set(options) - known <= {"--help"}, name


def test_every_reason_stands_on_the_page(existing_client: ModuleType) -> None:
    page = existing_client.PAGE.read_text(encoding="utf-8")
    for reason in existing_client.reasons():
        assert reason["why"] in page, f"make compat: {reason['what']}"


def test_a_difference_is_found(existing_client: ModuleType) -> None:
    there = {
        "names": {"kernels": {"get": {"kind": "function", "parameters": [["name", "positional_or_keyword", None]]}}},
        "commands": {"lock": ["--all"]},
        "situations": {
            "raises": {"raises": ["OSError", "RepositoryNotFoundError"], "logs": [], "warnings": []},
            "returns": {"returns": [1], "logs": ["WARNING"], "warnings": []},
        },
    }
    here = {
        "names": {"kernels": {"get": {"kind": "function", "parameters": [["repo_id", "positional_or_keyword", None]]}}},
        "commands": {"lock": []},
        "situations": {
            "raises": {"raises": ["FileNotFoundError", "OSError"], "logs": [], "warnings": []},
            "returns": {"returns": [1], "logs": [], "warnings": ["UserWarning"]},
        },
    }
    assert [(each.what, each.there, each.here) for each in existing_client.differences(there, here)] == [
        ("kernels.get(name)", "taken", "not taken"),
        ("kernels.get(repo_id)", "not there", "required"),
        ("kernels lock --all", "an option", "missing"),
        ("raises", "raises OSError, RepositoryNotFoundError", "raises FileNotFoundError"),
        ("returns (logs)", "WARNING", "none"),
        ("returns (warnings)", "none", "UserWarning"),
    ]
    assert existing_client.differences(there, there) == []
