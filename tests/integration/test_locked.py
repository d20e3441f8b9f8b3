"""A lock chooses the commits: which, at how many requests, and what is refused (row 4 of the targets)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub
from logged import warned
from typer.testing import CliRunner

from kernels import (
    download_kernels,
    get_kernel,
    get_kernel_variants,
    get_locked_kernel,
    has_kernel,
    install_kernel,
    load_kernel,
)
from kernels.api import KernelRequest, explain, get_kernels
from kernels.authoring.check.repository import audit_repository
from kernels.cli import app
from kernels.errors import DigestMismatch, InvalidRepository, LockError, NotInCache, NotLocked, RevisionNotFound
from kernels.models.lockfile import ContentHash, Lock, Pin, hashes_path
from kernels.models.requirement import Requirement
from kernels.operations.open_sources import open_sources
from kernels.operations.verify import verify_lock
from kernels.resolver.content_hash import listed_hash


def pin(hub: TestHub, repo_id: str, version: int = 1) -> Pin:
    return Pin(Requirement(repo_id, version=version), hub.commit(repo_id, f"v{version}"))


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write the lock in force."""
    path = tmp_path / "project" / "kernels.lock"
    monkeypatch.setenv("KERNELS_LOCKFILE", str(path))

    def write(*pins: Pin) -> Path:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(Lock(pins).to_bytes())
        return path

    write()
    return write


def move_on(hub: TestHub, repo_id: str, seed: str = "later", **options: Any) -> None:
    """The branch of version 1 gets another commit; the Hub still has the one before."""
    branch = hub.root / repo_id / "v1"
    shutil.copytree(branch, branch.with_name(hub.commit(repo_id)))
    hub.make_repo(repo_id, seed=seed, **options)


def commit_of(module: object) -> str:
    return Path(str(module.__file__)).parents[2].name  # type: ignore[attr-defined]


def test_a_locked_kernel_is_the_one_that_was_locked(hub: TestHub, lock: Callable[..., Path]) -> None:
    hub.make_repo("acme/relu")
    pinned = pin(hub, "acme/relu")
    lock(pinned)
    move_on(hub, "acme/relu")
    assert hub.commit("acme/relu") != pinned.commit
    for asked in ({"version": 1}, {}, {"revision": "v1"}, {"revision": pinned.commit}):
        assert commit_of(get_kernel("acme/relu", **asked)) == pinned.commit  # type: ignore[arg-type]
    assert (hub.count("refs"), hub.count("/commits/")) == (1, 1)  # whether a branch leads to the commit
    [module] = get_kernels([KernelRequest("acme/relu", version=1)])
    assert commit_of(module) == pinned.commit
    assert install_kernel("acme/relu", version=1).parents[1].name == pinned.commit
    assert has_kernel("acme/relu", version=1)
    assert get_kernel_variants("acme/relu", version=1)


def test_a_warm_locked_kernel_takes_no_request_in_a_new_process(
    hub: TestHub, lock: Callable[..., Path], new_process: Callable[[], None]
) -> None:
    hub.make_repo("acme/base")
    hub.make_repo("acme/relu", depends=[("acme/base", 1)])
    lock(pin(hub, "acme/relu"), pin(hub, "acme/base"))
    get_kernel("acme/relu", version=1)
    assert (hub.count("refs"), hub.count("/commits/")) == (2, 0)
    hub.clear()
    new_process()
    get_kernel("acme/relu", version=1)
    assert hub.requests == []


@pytest.mark.parametrize("asked", [{"version": 2}, {"revision": "main"}, {"revision": "0" * 40}])
def test_another_version_beside_a_lock_names_both(
    hub: TestHub, lock: Callable[..., Path], asked: dict[str, object]
) -> None:
    hub.make_repo("acme/relu")
    hub.make_repo("acme/relu", version=2)
    path = lock(pin(hub, "acme/relu"))
    with pytest.raises(LockError, match="version 1") as raised:
        get_kernel("acme/relu", **asked)  # type: ignore[arg-type]
    assert str(path) in str(raised.value)
    assert str(next(iter(asked.values()))) in str(raised.value)
    assert hub.count("refs") == 0


def test_what_the_lock_does_not_list_is_free_unless_everything_is_locked(
    hub: TestHub, lock: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu")
    hub.make_repo("acme/gelu")
    path = lock(pin(hub, "acme/relu"))
    assert get_kernel("acme/gelu", version=1)
    monkeypatch.setenv("KERNELS_LOCKED", "1")
    assert get_kernel("acme/relu", version=1)
    for call in (get_kernel, has_kernel, install_kernel, explain, get_kernel_variants):
        with pytest.raises(NotLocked, match="does not list it, and KERNELS_LOCKED=1") as raised:
            call("acme/gelu", version=1)  # type: ignore[operator]
        assert str(path) in str(raised.value)
    monkeypatch.delenv("KERNELS_LOCKFILE")
    hub.clear()
    with pytest.raises(NotLocked, match="KERNELS_LOCKFILE is not set, and the caller has none"):
        get_kernel("acme/relu", version=1)
    assert hub.count("acme/relu") == 0


def test_dependencies_and_redirects_are_pinned_by_the_same_lock(hub: TestHub, lock: Callable[..., Path]) -> None:
    hub.make_repo("acme/base")
    hub.make_repo("acme/new", depends=[("acme/base", 1)])
    hub.make_repo("acme/old", variants=[], redirect="acme/new")
    pins = [pin(hub, name) for name in ("acme/old", "acme/new", "acme/base")]
    lock(*pins)
    move_on(hub, "acme/base")
    move_on(hub, "acme/new", depends=[("acme/base", 1)])
    with warned("moved"):
        module = get_kernel("acme/old", version=1)
    assert commit_of(module) == pins[1].commit
    bases = {path.name for path in (Path(os.environ["KERNELS_CACHE"]) / "kernels--acme--base" / "snapshots").iterdir()}
    assert bases == {pins[2].commit}
    assert (hub.count("refs"), hub.count("/commits/")) == (3, 2)  # two of the pinned commits are no head any more


def test_a_dependency_that_the_lock_lacks_is_said_and_where_all_is_locked_refused(
    hub: TestHub, lock: Callable[..., Path], new_process: Callable[[], None]
) -> None:
    hub.make_repo("acme/base")
    hub.make_repo("acme/relu", depends=[("acme/base", 1)])
    path = lock(pin(hub, "acme/relu"))
    with warned("acme/base, which it leads to, is not"):
        get_kernel("acme/relu", version=1)
    with pytest.raises(NotLocked, match=r"acme/base version 1 is not locked: .*a locked kernel is required"):
        get_locked_kernel("acme/relu", lockfile=path)


def test_a_commit_that_is_gone_names_the_lock(hub: TestHub, lock: Callable[..., Path]) -> None:
    hub.make_repo("acme/relu")
    path = lock(Pin(Requirement("acme/relu", version=1), "9" * 40))
    with pytest.raises(RevisionNotFound, match="kernels lock --upgrade-repo acme/relu") as raised:
        get_kernel("acme/relu", version=1)
    assert f"{path} pins acme/relu to commit {'9' * 12}" in str(raised.value)
    with pytest.raises(NotInCache, match=r"kernels\.lock pins acme/relu"):
        load_kernel("acme/relu")


def test_an_error_and_an_explanation_name_the_lock(
    hub: TestHub, lock: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu", variants=["torch-cuda"])
    path = lock(pin(hub, "acme/relu"))
    assert explain("acme/relu", version=1).lock == str(path)
    with pytest.raises(FileNotFoundError, match=r"pinned by .*kernels\.lock\)"):
        get_kernel("acme/relu", version=1)


def test_a_build_that_has_another_content_than_the_lock_pins_is_refused(
    hub: TestHub, lock: Callable[..., Path]
) -> None:
    hub.make_repo("acme/relu")
    pinned = pin(hub, "acme/relu")
    path = lock(pinned)
    content = ContentHash("sha256sum", f"sha256-{'0' * 64}")
    hashes = {("acme/relu", pinned.commit): {"torch-cpu": content}}
    hashes_path(path).write_bytes(Lock((pinned,), hashes).hashes_to_bytes())
    with pytest.raises(DigestMismatch, match=r"kernels\.lock"):
        get_kernel("acme/relu", version=1)


def pin_content(path: Path, *pins: Pin) -> None:
    """Write the hashes of all builds beside a lock, then forget all that was read for them."""
    sources = open_sources()
    snapshots = [(each, sources.of(each.requirement.repo_id)) for each in pins]
    listed = [(source, source.snapshot(each.requirement, each.commit)) for each, source in snapshots]
    hashes = {
        (snapshot.repo_id, snapshot.commit): {name: listed_hash(source, snapshot, name) for name in snapshot.builds}
        for source, snapshot in listed
    }
    hashes_path(path).write_bytes(Lock(pins, hashes).hashes_to_bytes())
    shutil.rmtree(os.environ["KERNELS_CACHE"])


def test_pinned_content_holds_under_a_new_name_too(
    hub: TestHub, lock: Callable[..., Path], new_process: Callable[[], None]
) -> None:
    hub.make_repo("acme/old")
    pinned = pin(hub, "acme/old")
    pin_content(lock(pinned), pinned)
    new_process()
    hub.make_repo("acme/new", revision=pinned.commit, seed="another")
    hub.make_repo("acme/new", revision="main", seed="main")  # whose history has the commit
    target = f"{hub.url}/api/kernels/acme/new/tree/{pinned.commit}?recursive=true&expand=false"
    hub.fail("/api/kernels/acme/old/tree", status=307, headers={"Location": target})
    with (
        warned("acme/old has moved"),
        pytest.raises(DigestMismatch, match=r"acme/new: build torch-cpu .* is not what .*kernels\.lock pins"),
    ):
        get_kernel("acme/old", version=1)
    with pytest.raises(DigestMismatch, match="is not what"):
        download_kernels(["acme/old"], version=1, all_variants=True)
    with pytest.raises(DigestMismatch, match="is not what"):
        audit_repository("acme/old", version=1)


def test_a_build_that_a_commit_got_later_is_none_of_those_whose_content_is_pinned(
    hub: TestHub, lock: Callable[..., Path], new_process: Callable[[], None]
) -> None:
    folder = hub.make_repo("acme/relu", variants=["torch-universal"])
    pinned = pin(hub, "acme/relu")
    path = lock(pinned)
    pin_content(path, pinned)
    new_process()
    folder.rename(folder.with_name(pinned.commit))
    hub.make_repo("acme/relu", revision="main", seed="main")  # whose history has the commit
    hub.make_repo("acme/relu", revision=pinned.commit, seed="another")
    for load in (get_kernel, install_kernel):
        with pytest.raises(DigestMismatch, match=r"'torch-cpu' is none of .*kernels\.lock.*kernels lock --rehash"):
            load("acme/relu", version=1)
    with pytest.raises(DigestMismatch, match="'torch-cpu' is none of"):
        download_kernels(["acme/relu"], version=1, all_variants=True)
    proofs = {each.variant: each.pinned.verdict for each in verify_lock(path, all_variants=True)}
    assert proofs == {"torch-cpu": "failed", "torch-universal": "ok"}


def test_a_commit_whose_content_is_pinned_leads_nowhere_that_the_lock_does_not_list(
    hub: TestHub, lock: Callable[..., Path], new_process: Callable[[], None]
) -> None:
    folder = hub.make_repo("acme/relu")
    hub.make_repo("acme/other")
    pinned = pin(hub, "acme/relu")
    pin_content(lock(pinned), pinned)
    new_process()
    folder.rename(folder.with_name(pinned.commit))
    hub.make_repo("acme/relu", revision="main", seed="main")  # whose history has the commit
    hub.make_repo("acme/relu", revision=pinned.commit, redirect="acme/other")
    with pytest.raises(LockError, match=r"leads to acme/other, which .* does not list"):
        get_kernel("acme/relu", version=1)


@pytest.mark.parametrize("destination", ["acme/other", "acme/relu"])
def test_a_hub_cannot_swap_two_entries_of_a_lock(
    hub: TestHub, lock: Callable[..., Path], new_process: Callable[[], None], destination: str
) -> None:
    hub.make_repo("acme/relu")
    folder = hub.make_repo("acme/relu", version=2, seed="newer")
    hub.make_repo("acme/other")
    pins = [pin(hub, "acme/relu"), pin(hub, "acme/relu", 2), pin(hub, "acme/other")]
    pin_content(lock(*pins), *pins)
    new_process()
    folder.rename(folder.with_name(pins[1].commit))
    hub.make_repo("acme/relu", revision="main", seed="main")  # whose history has the commit
    status = {"kind": "redirect", "destination": destination, "revision": "v1"}
    hub.make_repo("acme/relu", revision=pins[1].commit, status=status)
    with pytest.raises((LockError, InvalidRepository), match=r"now leads to acme/other|the same repository"):
        get_kernel("acme/relu", version=2)


def test_a_repository_that_had_moved_when_it_was_locked_leads_where_it_led(
    hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    hub.make_repo("acme/old", redirect="acme/new")
    hub.make_repo("acme/new")
    project = tmp_path / "locked"
    project.mkdir()
    (project / "pyproject.toml").write_text('[tool.kernels.dependencies]\n"acme/old" = 1\n')
    done = CliRunner().invoke(app, ["lock", str(project), "--hashes"])
    assert done.exit_code == 0, done.output
    monkeypatch.setenv("KERNELS_LOCKFILE", str(project / "kernels.lock"))
    new_process()
    assert get_kernel("acme/old", version=1).repo_id == "acme/new"


# LOCAL_KERNELS


def test_a_folder_stands_in_for_a_locked_kernel_with_a_warning_unless_everything_is_locked(
    hub: TestHub, lock: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.make_repo("acme/relu")
    pinned = pin(hub, "acme/relu")
    path = lock(pinned)
    build = install_kernel("acme/relu", version=1)
    other = hub.make_repo("acme/other")
    monkeypatch.setenv("LOCAL_KERNELS", f"acme/relu={other}")
    with warned(r"not the commit that .*kernels\.lock pins"):
        assert get_kernel("acme/relu", version=1).repo_id == "acme/other"
    # Whoever asks for what is locked gets that.
    assert install_kernel("acme/relu", version=1) == build
    assert get_locked_kernel("acme/relu", lockfile=path).repo_id == "acme/relu"
    assert load_kernel("acme/relu", lockfile=str(path)).repo_id == "acme/relu"
    monkeypatch.setenv("KERNELS_LOCKED", "1")
    with pytest.raises(NotLocked, match=r"`LOCAL_KERNELS` puts the folder .* in its place, and KERNELS_LOCKED=1"):
        get_kernel("acme/relu", version=1)
    assert load_kernel("acme/relu", path).repo_id == "acme/relu"


# Locked kernels


def test_a_kernel_that_is_not_locked_is_a_value_error(
    hub: TestHub, lock: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu")
    path = lock()
    for get in (get_locked_kernel, load_kernel):
        with pytest.raises(ValueError, match="acme/relu is not locked"):
            get("acme/relu", lockfile=path)
    monkeypatch.delenv("KERNELS_LOCKFILE")
    with pytest.raises(ValueError, match="No lockfile was found"):
        get_locked_kernel("acme/relu")
    assert hub.requests == []


def test_loading_a_locked_kernel_opens_no_socket(hub: TestHub, lock: Callable[..., Path], tmp_path: Path) -> None:
    hub.make_repo("acme/base")
    hub.make_repo("acme/relu", depends=[("acme/base", 1)])
    path = lock(pin(hub, "acme/relu"), pin(hub, "acme/base"))
    with pytest.raises(NotInCache):
        load_kernel("acme/relu", lockfile=path)
    assert hub.requests == []
    get_locked_kernel("acme/relu", lockfile=path)
    code = (
        "import sys, kernels\n"
        "def no(event, arguments):\n"
        "    if event.startswith('socket.'): raise SystemExit(f'{event} {arguments}')\n"
        "sys.addaudithook(no)\n"
        f"print(kernels.load_kernel('acme/relu', lockfile={str(path)!r}).repo_id)\n"
        "try: kernels.load_kernel('acme/none')\n"
        "except ValueError as error: print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["acme/relu", "NotLocked"], done.stderr


def test_an_older_lock_knows_the_repository_alone(hub: TestHub, lock: Callable[..., Path]) -> None:
    hub.make_repo("acme/relu")
    commit = hub.commit("acme/relu")
    path = lock()
    path.write_text(json.dumps([{"repo_id": "acme/relu", "sha": commit, "variants": {}}]))
    move_on(hub, "acme/relu")
    assert commit_of(get_locked_kernel("acme/relu", lockfile=path)) == commit
    assert commit_of(get_kernel("acme/relu", version=1)) == commit


# Whoever calls


def run(*arguments: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installed_library_has_its_own_lock_and_the_program_its_projects(hub: TestHub, tmp_path: Path) -> None:
    layers = "from torch import nn\nclass SiluAndMul(nn.Module):\n    pass\n"
    builds = {"variants": {"torch-cpu": {"layers.py": layers}}}
    hub.make_repo("acme/relu", **builds)
    first = pin(hub, "acme/relu")
    move_on(hub, "acme/relu", **builds)
    second = pin(hub, "acme/relu")
    move_on(hub, "acme/relu", "even later", **builds)
    code = (
        "import sys\nfrom kernels import get_kernel, LayerRepository\n"
        "def load():\n    return get_kernel('acme/relu', version=1)\n"
        "layer = LayerRepository('acme/relu', version=1, layer_name='SiluAndMul')\n"
    )
    site = tmp_path / "site-packages"
    (site / "some_library").mkdir(parents=True)
    (site / "some_library" / "__init__.py").write_text(code)
    info = site / "some_library-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-library\nVersion: 1.0\n")
    (info / "RECORD").write_text("some_library/__init__.py,,\n")
    (info / "kernels.lock").write_bytes(Lock((first,)).to_bytes())
    project = tmp_path / "program"
    project.mkdir()
    (project / "pyproject.toml").write_text("[project]\n")
    (project / "kernels.lock").write_bytes(Lock((second,)).to_bytes())
    (project / "main.py").write_text(
        f"{code}import some_library\n"
        "for each in (some_library.load(), load()):\n    print(each.__file__)\n"
        "for each in (some_library.layer, layer):\n    print(sys.modules[each.load().__module__].__file__)\n"
        "print(some_library.layer == layer)"
    )
    *files, equal = run("main.py", cwd=project, PYTHONPATH=str(site)).splitlines()
    assert [Path(file).parents[2].name for file in files] == [first.commit, second.commit] * 2
    assert equal == "False"
    one_for_all = {"PYTHONPATH": str(site), "KERNELS_LOCKFILE": str(project / "kernels.lock")}
    *files, equal = run("main.py", cwd=project, **one_for_all).splitlines()
    assert {Path(file).parents[2].name for file in files} == {second.commit}
    assert equal == "True"


def test_commands_use_the_lock_of_the_current_folders_project(
    hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu")
    hub.make_repo("acme/relu", version=2)
    pinned = pin(hub, "acme/relu")
    move_on(hub, "acme/relu")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    path = tmp_path / "kernels.lock"
    path.write_bytes(Lock((pinned,)).to_bytes())
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")

    def answer(*arguments: str) -> dict[str, object]:
        result = CliRunner().invoke(app, [*arguments, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.output)  # type: ignore[no-any-return]

    for command in ("info", "explain"):
        found = answer(command, "acme/relu")
        assert (found["commit"], found["lock"]) == (pinned.commit, str(path))
    assert f"pinned by {path}" in " ".join(CliRunner().invoke(app, ["explain", "acme/relu"]).output.split())
    [verified] = answer("verify", "acme/relu")["builds"]  # type: ignore[misc]
    assert verified["commit"] == pinned.commit  # type: ignore[index]
    result = CliRunner().invoke(app, ["verify-signature", "acme/relu", "2"])
    assert (result.exit_code, "version 2 was requested, but" in result.output) == (1, True)
    hub.make_repo("acme/free")
    assert CliRunner().invoke(app, ["verify", "acme/free"]).exit_code == 0
    monkeypatch.setenv("KERNELS_LOCKED", "1")
    result = CliRunner().invoke(app, ["verify", "acme/free"])
    assert (result.exit_code, "acme/free is not locked" in result.output) == (1, True)
    monkeypatch.delenv("KERNELS_LOCKED")
    audited = answer("check", "acme/relu", "--static")
    assert pinned.commit in json.dumps(audited)
    versions: list[dict[str, object]] = answer("versions", "acme/relu")  # type: ignore[assignment]
    assert {each["version"]: each["locked"] for each in versions} == {1: pinned.commit, 2: None}
    result = CliRunner().invoke(app, ["info", "acme/relu", "--version", "2"])
    assert result.exit_code == 1


def test_a_repository_under_a_new_name_has_the_commit_that_was_locked(hub: TestHub, lock: Callable[..., Path]) -> None:
    hub.make_repo("acme/new")
    pinned = pin(hub, "acme/new")
    lock(Pin(Requirement("acme/old", version=1), pinned.commit))
    move_on(hub, "acme/new")
    target = f"{hub.url}/api/kernels/acme/new/tree/{pinned.commit}?recursive=true&expand=false"
    hub.fail("/api/kernels/acme/old/tree", status=307, headers={"Location": target})
    with warned("acme/old has moved to acme/new"):
        assert commit_of(get_kernel("acme/old", version=1)) == pinned.commit


def test_what_a_kernel_asks_for_is_asked_for_by_who_uses_it(hub: TestHub, tmp_path: Path) -> None:
    hub.make_repo("acme/relu")
    pinned = pin(hub, "acme/relu")
    move_on(hub, "acme/relu")
    code = "import kernels\ndef other():\n    return kernels.get_kernel('acme/relu', version=1)\nfirst = other()\n"
    hub.make_repo("acme/outer", variants={"torch-cpu": {"__init__.py": code}})
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "kernels.lock").write_bytes(Lock((pinned, pin(hub, "acme/outer"))).to_bytes())
    (tmp_path / "main.py").write_text(
        "from kernels import get_kernel\nouter = get_kernel('acme/outer', version=1)\n"
        "print(outer.first.__file__)\nprint(outer.other().__file__)\n"
    )
    files = run("main.py", cwd=tmp_path).splitlines()
    assert [Path(file).parents[2].name for file in files] == [pinned.commit] * 2
