"""The scripts of CI and of contributors, in .ci/."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kernels

SCRIPTS = Path(__file__).parents[1] / ".ci"


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=120)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a branch that left main, and the scripts."""
    files = {
        "src/kernels/cache/prune.py": "",
        "src/kernels/cache/scrub.py": "",
        "tests/cache/test_prune.py": "",
        "tests/cache/test_scrub.py": "",
        "tests/integration/test_cleared.py": "from kernels.cache.prune import prune\n",
        "tests/integration/test_both.py": "from kernels.cache import inventory, prune\n",
        "tests/integration/test_hub.py": "from hub import TestHub\n",
        "tests/fixtures/hub.py": "",
        "tests/docs/test_examples.py": "",
        "tests/docs/test_links.py": "",
        "tests/docs/test_reference.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copytree(SCRIPTS, tmp_path / ".ci")
    git(tmp_path, "init", "-q", "-b", "main")
    commit(tmp_path)
    git(tmp_path, "switch", "-q", "-c", "change")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, env={**os.environ, "HOME": str(folder)})


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "-qm", "Change")


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (
            "src/kernels/cache/prune.py",
            ["cache/test_prune", "docs/test_reference", "integration/test_both", "integration/test_cleared"],
        ),
        ("src/kernels/cache/scrub.py", ["cache/test_scrub", "docs/test_reference"]),
        ("tests/cache/test_scrub.py", ["cache/test_scrub"]),
        ("tests/cache/conftest.py", ["cache/test_prune", "cache/test_scrub"]),
        ("tests/fixtures/hub.py", ["integration/test_hub"]),
        ("docs/lock.md", ["docs/test_examples", "docs/test_links", "docs/test_reference"]),
        ("book/commands_page.py", ["docs/test_examples", "docs/test_links", "docs/test_reference"]),
        ("LICENSE", []),
    ],
)
@pytest.mark.parametrize("committed", [True, False])
def test_what_changed_since_main_selects_tests(checkout: Path, changed: str, tests: list[str], committed: bool) -> None:
    (checkout / changed).parent.mkdir(exist_ok=True)
    (checkout / changed).write_text("# changed\n")
    if committed:
        commit(checkout)
    done = run(checkout / ".ci/changed-tests")
    assert done.stdout.split() == [f"tests/{name}.py" for name in tests], done.stderr


def test_the_notes_of_a_release_are_those_of_its_version(tmp_path: Path) -> None:
    shutil.copytree(SCRIPTS, tmp_path / ".ci")
    (tmp_path / "src/kernels").mkdir(parents=True)
    shutil.copy(Path(kernels.__file__).with_name("_version.py"), tmp_path / "src/kernels")
    version = kernels.__version__
    sections = (
        f"## [Unreleased]\n\n- later\n\n## [{version}] - 2026-11-21\n\n- one\n\n## [0.1.0] - 2026-01-01\n\n- old\n"
    )
    (tmp_path / "CHANGELOG.md").write_text(sections)
    script = tmp_path / ".ci/release-notes"
    assert run(script, version).stdout == "- one\n"
    assert run(script, "9.9.9").stderr == f"The tag says 9.9.9, the package {version}.\n"
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n")
    assert f"no section `## [{version}]" in run(script, version).stderr
