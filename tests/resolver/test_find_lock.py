"""Whether a lock may apply is known before anything that reads locks is imported, and agrees with the active lock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernels.errors import KernelsError
from kernels.resolver.find_lock import AT_A_TERMINAL, may_be_locked
from kernels.resolver.locks import NO_LOCK, active_lock

EMPTY_LOCK = "[]"


@pytest.fixture(autouse=True)
def _no_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KERNELS_LOCKFILE", "KERNELS_LOCKED", "KERNELS_HUB"):
        monkeypatch.delenv(name, raising=False)
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    monkeypatch.chdir(nowhere)


def agrees(by: str) -> bool:
    """Whether a lock may apply to a caller; where none may, the active lock is no lock."""
    may = may_be_locked(by)
    try:
        assert may or active_lock(by) is NO_LOCK
    except KernelsError:
        pytest.fail("the active lock is an error, which was not foreseen")
    return may


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_file_in_no_project_has_none(tmp_path: Path) -> None:
    assert not agrees(str(put(tmp_path / "model.py")))
    assert not agrees("gone\0.py")
    assert not agrees(AT_A_TERMINAL)


def test_a_projects_lock_is_seen_also_when_it_appears(tmp_path: Path) -> None:
    put(tmp_path / "project" / "pyproject.toml")
    model = str(put(tmp_path / "project" / "src" / "model.py"))
    assert not agrees(model)
    lock = put(tmp_path / "project" / "kernels.lock", EMPTY_LOCK)
    assert may_be_locked(model)
    lock.unlink()
    lock.symlink_to("nowhere")
    assert may_be_locked(model), "a link to nothing is an error of the active lock, which says so"


def test_a_terminal_has_the_lock_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "project" / "kernels.lock", EMPTY_LOCK)
    monkeypatch.chdir(tmp_path / "project")
    assert may_be_locked(AT_A_TERMINAL)


@pytest.mark.parametrize(
    ("name", "value", "may"),
    [
        ("KERNELS_LOCKED", "1", True),
        ("KERNELS_LOCKED", "nonsense", True),
        ("KERNELS_LOCKED", "0", False),
        ("KERNELS_LOCKED", "", False),
        ("KERNELS_LOCKFILE", "kernels.lock", True),
        ("KERNELS_LOCKFILE", "~nobody-of-that-name/kernels.lock", True),
        ("KERNELS_LOCKFILE", "", False),
    ],
)
def test_a_setting_about_locks_is_left_to_the_active_lock(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, may: bool
) -> None:
    monkeypatch.setenv(name, value)
    assert agrees(AT_A_TERMINAL) is may


def test_the_question_imports_nothing_that_reads_locks() -> None:
    code = (
        "import sys\n"
        "from kernels.resolver.find_lock import may_be_locked\n"
        "may_be_locked()\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('kernels.', 'msgspec'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "kernels.resolver.find_lock" in loaded, done.stderr
    assert not loaded & {"msgspec", "kernels.models.lockfile", "kernels.resolver.locks"}
    assert len(loaded) <= 16
