"""A reader of the documentation: a Hub with the example kernels, and a folder to work in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_pages import ROOT
from example_kernels import example_builder
from forked import Interpreter, started

from kernels.server import HubServer


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example kernels, as far as no compiler is needed."""
    folder = tmp_path_factory.mktemp("docs") / "examples"
    example_builder().build_examples(folder, noarch_only=True)
    return folder


@pytest.fixture(scope="session")
def served(examples: Path) -> Iterator[str]:
    """The URL of a Hub with the example kernels, as the documentation has its readers start one."""
    with HubServer(examples, trusted=[example_builder().PUBLISHER]) as hub:
        yield hub.url


@pytest.fixture
def reader(served: str, isolated_env: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A reader's environment: the example Hub, an empty cache, and an empty folder to work in."""
    monkeypatch.setenv("KERNELS_HUB", served)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    with started("import torch") as interpreter:
        yield interpreter


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "HOME": str(folder.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr  # not `--quiet`: with it, MkDocs does not count warnings
    return folder
