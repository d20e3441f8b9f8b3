"""Which lock counts is found from who calls, and from nothing above their project; and what is asked of a lock."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZipFile

import pytest

from kernels.errors import LockError, NotLocked
from kernels.models.lockfile import Lock, Pin
from kernels.models.requirement import Requirement
from kernels.resolver import find_lock
from kernels.resolver.find_lock import AT_A_TERMINAL, lock_path, may_be_locked
from kernels.resolver.locks import NO_LOCK, ActiveLock, active_lock, read_lock, required_lock, same_lock

RELU, GELU = Requirement("acme/relu", version=1), Requirement("acme/gelu", version=1)

#: A module that says who calls, and which lock counts.
MODULE = """
from kernels.resolver.find_lock import caller, lock_path
from kernels.resolver.locks import active_lock

def who():
    return caller()

def path():
    return lock_path(caller())

def pinned():
    lock = active_lock().lock
    return None if lock is None else lock.pins[0].commit[:1]
"""


@pytest.fixture(autouse=True)
def _neither_a_setting_nor_a_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KERNELS_LOCKFILE", "KERNELS_LOCKED", "KERNELS_HUB"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "nowhere"
    folder.mkdir()
    monkeypatch.chdir(folder)


def write_lock(folder: Path, digit: str = "1", requirement: Requirement = RELU) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "kernels.lock"
    path.write_bytes(Lock((Pin(requirement, digit * 40),)).to_bytes())
    return path


def project(folder: Path, lock: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text("[project]\n")
    if lock:
        write_lock(folder)
    return folder


def module_at(path: Path, name: str = "someone", source: str = MODULE) -> ModuleType:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Where a lock is

SITE = "lib/site-packages"
INFO = f"{SITE}/dist-1.0.dist-info"
PROJECT = {"project/pyproject.toml": "", "project/kernels.lock": ""}


def lists(*files: str) -> str:
    """The RECORD of a distribution with these files."""
    return "".join(f"{file},sha256=x,1\n" for file in files)


def make(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("caller", "files", "lock"),
    [
        ("project/main.py", PROJECT, "project/kernels.lock"),
        ("project/src/package/deep/module.py", PROJECT, "project/kernels.lock"),
        # One beside the file counts before the project's, and nothing above the project counts.
        ("project/scripts/run.py", {**PROJECT, "project/scripts/kernels.lock": ""}, "project/scripts/kernels.lock"),
        ("script/run.py", {"script/kernels.lock": ""}, "script/kernels.lock"),
        ("project/main.py", {"project/pyproject.toml": "", "kernels.lock": ""}, None),
        ("loose/deep/main.py", {"loose/kernels.lock": ""}, None),
        # Metadata beside the code of a project is a copy of a build.
        (
            "project/someone/__init__.py",
            {
                **PROJECT,
                "project/someone-1.0.dist-info/RECORD": lists("someone/__init__.py"),
                "project/someone-1.0.dist-info/kernels.lock": "",
                "project/someone.egg-info/kernels.lock": "",
            },
            "project/kernels.lock",
        ),
        # Installed: the metadata of the distribution that lists the file.
        (
            f"{SITE}/someone/__init__.py",
            {f"{INFO}/RECORD": lists("someone/__init__.py"), f"{INFO}/kernels.lock": ""},
            f"{INFO}/kernels.lock",
        ),
        (
            "dist-packages/some,one.py",
            {"dist-packages/a.dist-info/RECORD": '"some,one.py",,\n', "dist-packages/a.dist-info/kernels.lock": ""},
            "dist-packages/a.dist-info/kernels.lock",
        ),
        (
            f"{SITE}/someone/__init__.py",
            {f"{INFO}/RECORD": lists("someone/__init__.py"), f"{INFO}/extra_metadata/kernels.lock": ""},
            f"{INFO}/extra_metadata/kernels.lock",
        ),
        # Neither another distribution's, nor that of a project around it.
        (
            f"project/{SITE}/plain/__init__.py",
            {
                **PROJECT,
                f"project/{INFO}/RECORD": lists("other/__init__.py"),
                f"project/{INFO}/kernels.lock": "",
                f"project/{SITE}/kernels.lock": "",
            },
            None,
        ),
        # A package has its own, which its distribution may list; a namespace package has none.
        (
            f"{SITE}/someone/deep/module.py",
            {f"{SITE}/someone/__init__.py": "", f"{SITE}/someone/kernels.lock": ""},
            f"{SITE}/someone/kernels.lock",
        ),
        (
            f"{SITE}/someone/__init__.py",
            {
                f"{SITE}/someone/__init__.py": "",
                f"{SITE}/someone/kernels.lock": "",
                f"{INFO}/RECORD": lists("someone/__init__.py", "someone/kernels.lock"),
            },
            f"{SITE}/someone/kernels.lock",
        ),
        (
            f"{SITE}/space/one/__init__.py",
            {
                f"{SITE}/space/one/__init__.py": "",
                f"{SITE}/space/kernels.lock": "",
                f"{INFO}/RECORD": lists("space/one/__init__.py", "space/kernels.lock"),
            },
            None,
        ),
        # Of several distributions in one package, the one that lists the file.
        (
            f"{SITE}/shared/other.py",
            {
                f"{SITE}/a.dist-info/RECORD": lists("shared/__init__.py"),
                f"{SITE}/a.dist-info/kernels.lock": "",
                f"{INFO}/RECORD": lists("shared/other.py"),
                f"{INFO}/kernels.lock": "",
            },
            f"{INFO}/kernels.lock",
        ),
    ],
)
def test_the_lock_of_a_file_is_that_of_its_distribution_or_project(
    tmp_path: Path, caller: str, files: dict[str, str], lock: str | None
) -> None:
    make(tmp_path, files)
    by = str(tmp_path / caller)
    assert lock_path(by) == (None if lock is None else str(tmp_path / lock))
    assert may_be_locked(by) == (lock is not None)


@pytest.mark.parametrize(
    "files",
    [
        # Two that list the file, each with a lock, or one without.
        {"evil.dist-info/RECORD": lists("shared/__init__.py"), "evil.dist-info/kernels.lock": ""},
        {"evil.dist-info/RECORD": lists("shared/__init__.py")},
        # One that installs a lock for the file of the other.
        {"evil.dist-info/RECORD": lists("honest.dist-info/kernels.lock")},
    ],
)
def test_a_lock_or_a_file_of_two_distributions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    site = tmp_path / "site-packages"
    make(site, {"honest.dist-info/RECORD": lists("shared/__init__.py"), "honest.dist-info/kernels.lock": "", **files})
    someone = module_at(site / "shared" / "__init__.py")
    for ask in (someone.path, someone.pinned, someone.pinned):
        with pytest.raises(LockError, match=r"belongs to evil and honest\. Uninstall .* KERNELS_LOCKFILE"):
            ask()
    named = write_lock(tmp_path / "named", "7")
    monkeypatch.setenv("KERNELS_LOCKFILE", str(named))
    assert (someone.path(), someone.pinned()) == (str(named), "7")


def test_a_lock_that_another_distribution_put_beside_a_package_is_refused(tmp_path: Path) -> None:
    files = {"someone/__init__.py": "", "someone/kernels.lock": ""}
    evil = {"evil.dist-info/RECORD": lists("someone/kernels.lock")}
    make(tmp_path / "site-packages", {**files, **evil, "honest.dist-info/RECORD": lists("someone/__init__.py")})
    with pytest.raises(LockError, match="belongs to evil and honest"):
        lock_path(str(tmp_path / "site-packages" / "someone" / "module.py"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such folders")
@pytest.mark.parametrize("mode", [0o1777, 0o3775, 0o1775])
def test_what_lies_in_a_folder_for_the_files_of_several_users_is_not_used(tmp_path: Path, mode: int) -> None:
    shared = project(tmp_path / "shared")
    shared.chmod(mode)
    assert module_at(shared / "mine" / "main.py").path() is None
    assert module_at(shared / "main.py", "other").path() is None
    shared.chmod(0o2775)
    find_lock._places_of_file.cache_clear()
    assert module_at(shared / "main.py", "other").path() == str(shared / "kernels.lock")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("linked", [False, True])
def test_another_users_lock_is_an_error_and_counts_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    folder = project(tmp_path / "project", lock=not linked)
    lock = folder / "kernels.lock"
    if linked:
        lock.symlink_to(write_lock(tmp_path / "mine"))
    os.chown(lock, 4321, -1, follow_symlinks=False)
    someone = module_at(folder / "main.py")
    monkeypatch.chdir(folder)
    for ask in (someone.path, lambda: lock_path(AT_A_TERMINAL)):
        with pytest.raises(LockError, match=rf"{re.escape(str(lock))} belongs to another user \(uid 4321\)"):
            ask()
    # Their code runs already: their lock gives them nothing more.
    os.chown(folder / "main.py", 4321, -1)
    assert someone.path() == str(lock)
    os.chown(folder / "main.py", 0, -1)
    monkeypatch.setenv("KERNELS_LOCKFILE", str(lock))
    assert someone.path() == lock_path(AT_A_TERMINAL) == str(lock)


def test_a_lock_that_appears_or_changes_while_the_process_runs_is_seen(tmp_path: Path) -> None:
    someone = module_at(project(tmp_path / "project", lock=False) / "main.py")
    by = someone.who()
    assert (someone.pinned(), may_be_locked(by)) == (None, False)
    path = write_lock(tmp_path / "project", "1")
    assert (someone.pinned(), may_be_locked(by)) == ("1", True)
    first = read_lock(path)
    assert read_lock(path) is first
    write_lock(tmp_path / "project", "2", GELU)
    os.utime(path, ns=(1, 1))
    assert someone.pinned() == "2"
    assert not read_lock(path).hashes
    entry = {"repo-id": "acme/gelu", "commit": "2" * 40, "variants": {}}
    path.with_name("kernels.hashes.json").write_text(json.dumps({"format": 1, "kernels": [entry]}))
    assert ("acme/gelu", "2" * 40) in read_lock(path).hashes
    path.unlink()
    assert someone.pinned() is None
    path.symlink_to("nowhere")
    assert may_be_locked(by), "a link to nothing is an error of the active lock, which says so"


# Who calls


def test_someone_without_a_file_has_the_current_folders_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path / "project")
    (folder / "notebooks").mkdir()
    cell = compile(MODULE, "/tmp/ipykernel_1/2.py", "exec")
    notebook: dict[str, Any] = {"__name__": "__main__"}
    exec(cell, notebook)
    assert notebook["path"]() is None
    monkeypatch.chdir(folder / "notebooks")
    assert notebook["path"]() == str(folder / "kernels.lock")
    monkeypatch.chdir(tmp_path / "nowhere")
    assert notebook["path"]() is None


def test_code_that_somebody_runs_is_theirs(tmp_path: Path) -> None:
    project(tmp_path / "project")
    source = f"def path():\n    names = {{}}\n    exec({MODULE!r}, names)\n    return names['path']()"
    inside = module_at(tmp_path / "project" / "inside.py", source=source)
    assert inside.path() == str(tmp_path / "project" / "kernels.lock")


def test_a_thread_pool_and_a_wrapper_pass_on_what_the_caller_asks_for(tmp_path: Path) -> None:
    someone = module_at(project(tmp_path / "project") / "main.py")
    with ThreadPoolExecutor(4) as pool:
        assert {each.result() for each in [pool.submit(someone.path) for _ in range(32)]} == {someone.path()}


def test_where_a_thread_runs_a_function_of_this_package_the_program_asks(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from concurrent.futures import ThreadPoolExecutor\nfrom kernels.resolver.find_lock import caller\n"
        "print(ThreadPoolExecutor().submit(caller).result())"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(program), done.stderr


@pytest.mark.parametrize("file", [None, "", 5, "gone\0.py", "<string>", "relative.py"])
def test_a_module_with_a_strange_file_has_no_lock(file: Any) -> None:
    names: dict[str, Any] = {"__name__": "frozen", "__file__": file}
    exec(compile(MODULE, "frozen.py", "exec"), names)
    assert names["path"]() is None


def test_a_module_in_an_archive_and_a_folder_that_is_gone_have_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("zipped_caller.py", MODULE)
        archive.writestr("kernels.lock", "[]")
    monkeypatch.syspath_prepend(str(tmp_path / "app.zip"))
    assert importlib.import_module("zipped_caller").path() is None
    sys.modules.pop("zipped_caller")
    (tmp_path / "nowhere").rmdir()
    assert lock_path(AT_A_TERMINAL) is None


@pytest.mark.parametrize("how", ["script", "module", "command", "stdin"])
def test_a_program_has_the_lock_of_where_it_is(tmp_path: Path, how: str) -> None:
    folder = project(tmp_path / "project")
    code = f"{MODULE}\nprint(path())"
    (folder / "program.py").write_text(code)
    arguments = {
        "script": [str(folder / "program.py")],
        "module": ["-m", "program"],
        "command": ["-c", code],
        "stdin": [],
    }
    done = subprocess.run(
        [sys.executable, *arguments[how]],
        cwd=tmp_path if how == "script" else folder,
        input=code if how == "stdin" else "",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == str(folder / "kernels.lock"), done.stderr


@pytest.mark.parametrize("where", ["project", "no lock", "installed"])
def test_a_caller_is_found_without_a_look_at_the_disk_and_its_lock_once(tmp_path: Path, where: str) -> None:
    if where == "installed":
        write_lock(tmp_path / INFO)
        make(tmp_path, {f"{INFO}/RECORD": lists("someone.py")})
        someone = module_at(tmp_path / SITE / "someone.py")
    else:
        someone = module_at(project(tmp_path / "project", lock=where == "project") / "main.py")
    seen: list[str] = []
    on = [True]
    # Files that are read and folders that are listed; a look at whether a known file has changed is neither.
    sys.addaudithook(lambda event, _: seen.append(event) if on[0] and event.startswith(("open", "os.")) else None)
    someone.who()
    assert seen == []
    first = someone.pinned()
    looked, seen[:] = len(seen), []
    again = someone.pinned()
    on[0] = False
    assert (again, seen) == (first, [])
    assert looked > 0 or where == "no lock"
    assert (first is None) == (where == "no lock")


# What is asked of a lock


def test_the_settings_lock_counts_for_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    someone = module_at(project(tmp_path / "project") / "main.py")
    other = write_lock(tmp_path / "other", "3")
    monkeypatch.setenv("KERNELS_LOCKFILE", str(other))
    assert someone.pinned() == "3"
    monkeypatch.setenv("KERNELS_LOCKFILE", str(tmp_path / "none.lock"))
    with pytest.raises(LockError, match=r"`KERNELS_LOCKFILE` is '.*none.lock': Cannot read"):
        someone.pinned()


def test_where_everything_is_locked_a_caller_without_a_lock_is_told_where_one_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_LOCKED", "1")
    by = str(project(tmp_path / "project", lock=False) / "src" / "main.py")
    with pytest.raises(NotLocked, match="KERNELS_LOCKED=1 allows locked kernels only") as raised:
        active_lock(by).find(RELU)
    assert "KERNELS_LOCKFILE is not set" in str(raised.value)
    assert str(tmp_path / "project" / "kernels.lock") in str(raised.value)
    installed = str(tmp_path / "site-packages" / "someone" / "__init__.py")
    with pytest.raises(NotLocked, match=r"someone/__init__\.py's distribution in .*site-packages"):
        active_lock(installed).find(RELU)


def test_who_must_have_a_lock_and_has_none_has_that_of_the_folder_the_kernels_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "carried").mkdir()
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path / "carried"))
    place = tmp_path / "carried" / "kernels.lock"
    alone = str(project(tmp_path / "alone", lock=False) / "main.py")
    own = str(project(tmp_path / "own") / "main.py")
    with pytest.raises(NotLocked, match=re.escape(str(place))):
        required_lock(None, alone).find(RELU)
    write_lock(tmp_path / "carried", "7")

    def pinned(lock: ActiveLock) -> str | None:
        return None if lock.lock is None else lock.lock.pins[0].commit[:1]

    assert [pinned(required_lock(None, by)) for by in (alone, own)] == ["7", "1"]
    assert [pinned(active_lock(by)) for by in (alone, own)] == [None, "1"]
    monkeypatch.setenv("KERNELS_LOCKED", "1")
    assert [pinned(active_lock(by)) for by in (alone, own)] == ["7", "1"]
    with pytest.raises(NotLocked, match=f"{re.escape(str(place))} does not list it"):
        active_lock(alone).find(GELU)
    monkeypatch.setenv("KERNELS_LOCKFILE", str(write_lock(tmp_path / "other", "3")))
    assert [pinned(active_lock(by)) for by in (alone, own)] == ["3", "3"]


def test_what_a_lock_does_not_list_is_free_unless_everything_is_locked(tmp_path: Path) -> None:
    lock = read_lock(write_lock(tmp_path))
    assert ActiveLock(lock).find(GELU) is None
    with pytest.raises(
        NotLocked, match=r"acme/gelu version 1 is not locked: .*kernels.lock does not list it, and because"
    ):
        ActiveLock(lock, "because").find(GELU)
    with pytest.raises(NotLocked, match=r"Did you mean 'acme/relu'\?"):
        ActiveLock(lock, "because").find(Requirement("acme/rellu", version=1))
    with pytest.raises(LockError, match=r"acme/relu version 2 was requested, but .*kernels.lock pins version 1"):
        ActiveLock(lock).find(Requirement("acme/relu", version=2))


@pytest.mark.parametrize("what", ["folder", "pipe", "loop", "dangling", "large", "text", "unreadable"])
def test_a_lock_that_cannot_be_read_is_an_error_and_not_passed_over(tmp_path: Path, what: str) -> None:
    someone = module_at(project(tmp_path / "project", lock=False) / "main.py")
    path = tmp_path / "project" / "kernels.lock"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "loop":
        path.symlink_to(path)
    elif what == "dangling":
        path.symlink_to(tmp_path / "none")
    elif what == "large":
        with path.open("wb") as file:
            file.truncate(100 * 2**20)
    elif what == "text":
        path.write_text("not JSON")
    else:
        write_lock(path.parent).chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read everything")
    with pytest.raises(LockError, match=r"project/kernels\.lock"):
        someone.pinned()


def test_an_explicit_lock_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lock(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for given in (path, str(path), "kernels.lock", "~/kernels.lock"):
        assert required_lock(given).find(RELU) is not None
    for wrong in (5, b"x", True):
        with pytest.raises(TypeError, match="`lockfile`"):
            required_lock(wrong)  # type: ignore[arg-type]
    for missing in ("none.lock", "a\0b", ""):
        with pytest.raises(LockError, match="Cannot read"):
            required_lock(missing)


def test_callers_in_one_project_and_callers_without_a_lock_have_the_same(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    one, other = (str(folder / name / "x.py") for name in ("a", "b"))
    nobody, terminal = str(tmp_path / "loose" / "x.py"), AT_A_TERMINAL
    assert same_lock(one, other)
    assert same_lock(nobody, terminal)
    assert not same_lock(one, nobody)


# Before anything that reads locks is imported


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
    assert may_be_locked(AT_A_TERMINAL) is may
    assert may or active_lock(AT_A_TERMINAL) is NO_LOCK


def test_whether_a_lock_may_apply_is_known_without_an_import_of_what_reads_locks() -> None:
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
    assert len(loaded) <= 15


#: Threads that read a lockfile first, all at once, as `kernelize` does.
READERS = """
import sys, threading
from kernels.resolver.locks import read_lock
sys.setswitchinterval(1e-5)
barrier = threading.Barrier(8)
def work():
    barrier.wait()
    read_lock(sys.argv[1])
threads = [threading.Thread(target=work) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
print("done")
"""


def test_threads_may_read_a_lockfile_for_the_first_time_at_once(tmp_path: Path) -> None:
    entry = {"repo-id": "acme/relu", "commit": "1" * 40, "variants": {}}
    (tmp_path / "kernels.hashes.json").write_text(json.dumps({"format": 1, "kernels": [entry]}))
    command = [sys.executable, "-c", READERS, str(write_lock(tmp_path))]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(6)]
    done = [(each.communicate(timeout=120), each.returncode) for each in running]
    assert [(status, out) for (out, _), status in done] == [(0, b"done\n")] * 6
