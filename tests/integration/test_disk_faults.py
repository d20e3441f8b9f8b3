"""What holds after a fault of the disk, or a kill: seen by processes whose every access to the cache is watched.

A hook on Python's audit events stands for the operating system: it refuses what a read-only file system refuses, or
ends the process just before the access.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hub import TestHub

from kernels import download_kernels

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")

WATCH = """
import errno, os, signal, sys, traceback
from kernels import get_kernel, install_kernel
from kernels.errors import StoreError
from kernels.sources import download
download.IN_MEMORY = 1000

CHANGES = {"os.mkdir", "os.rename", "os.symlink", "os.link", "os.remove", "os.rmdir", "os.utime", "os.chmod"}

def inside(path, cache):  # a relative path is one in a folder of the cache that is open
    if not isinstance(path, (str, bytes)):
        return False
    return os.fsdecode(path).startswith(cache) or not os.path.isabs(os.fsdecode(path))

def changes(event, arguments, cache):
    if event == "open":
        path, _, flags = arguments
        return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) and inside(path, cache)
    return event in CHANGES and any(inside(each, cache) for each in arguments)
"""

FILES = {"part.py": "value = 1\n", "data.bin": b"large" * 400}


def run(code: str, *arguments: object) -> list[str]:
    """What a process prints, line by line."""
    command = [sys.executable, "-c", WATCH + code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_process_that_is_killed_at_any_moment_is_repaired_by_the_next(hub: TestHub, tmp_path: Path) -> None:
    built = hub.make_repo("acme/relu", variants={"torch-cpu": FILES}, digest=True) / "build" / "torch-cpu"
    folders = run(
        """
import functools, importlib, ssl
from contextlib import suppress
from kernels import Target

# What each of the processes would do anew: import modules, look at the machine, and read certificates for TLS,
# which nothing here uses.
modules = os.path.join(sys.argv[1], "modules")
os.makedirs(sys.argv[1])
if not (child := os.fork()):
    os.environ["KERNELS_CACHE"] = os.path.join(sys.argv[1], "modules.cache")
    install_kernel("acme/relu", version=1)
    with open(modules, "w") as file:
        file.write("\\n".join(sys.modules))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
with open(modules) as file:
    for name in file.read().splitlines():
        with suppress(ImportError):
            importlib.import_module(name)
Target.current()
ssl.create_default_context = functools.cache(ssl.create_default_context)
ssl.create_default_context()

def install(cache, moment):
    # In a process that is killed just before it changes the cache for the given time.
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    left = [moment]
    def watch(event, arguments):
        if changes(event, arguments, cache):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.environ["KERNELS_CACHE"] = cache
        sys.addaudithook(watch)
        print(install_kernel("acme/relu", version=1), flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

for moment in range(1, 1000):
    cache = os.path.join(sys.argv[1], str(moment))
    status = install(cache, moment)
    if status == 0:  # it was done before that moment
        break
    assert status == signal.SIGKILL, status
    assert install(cache, 0) == 0
    left = [name for _, _, names in os.walk(os.path.join(cache, "kernels--acme--relu", "snapshots")) for name in names]
    assert not [name for name in left if name.endswith(("incomplete", "tmp"))], left
""",
        tmp_path / "killed",
    )
    assert len(folders) > 30, "a moment for each file, link and record at least"
    wanted = contents(built)
    assert [folder for folder in folders if contents(Path(folder)) != wanted] == []


#: Large for this process.
LARGE = """
from kernels.sources import download
download.IN_MEMORY = 1_000_000
"""


def test_a_large_file_goes_on_where_a_killed_process_left_it(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, isolated_env: Path
) -> None:
    from kernels.sources import download

    built = hub.make_repo("acme/relu", variants={"torch-cpu": {"data.bin": os.urandom(15_000_000)}}, digest=True)
    hub.truncate("^/lfs/.*data.bin", keep=12_000_000, times=1)
    hub.hang("^/lfs/.*data.bin", method="GET")
    code = LARGE + "from kernels import download_kernels\ndownload_kernels(['acme/relu'], version=1)\n"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while hub.count("^/lfs/.*data.bin", method="GET") < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait(timeout=30)
    a_minute_ago = time.time() - 61
    for left in isolated_env.rglob("*.incomplete"):
        os.utime(left, (a_minute_ago, a_minute_ago))
    hub.heal()
    hub.clear()
    monkeypatch.setattr(download, "IN_MEMORY", 1_000_000)
    [build] = download_kernels(["acme/relu"], version=1)
    assert contents(build.path) == contents(built / "build" / "torch-cpu")
    [rest] = [asked for asked in hub.requests if asked.path.startswith("/lfs/") and asked.method == "GET"]
    begun = int(rest.headers["range"].removeprefix("bytes=").removesuffix("-"))
    assert 1_000_000 < begun <= 12_000_000  # what was on its way when the connection broke may be lost


@pytest.mark.parametrize("left", ["other bytes", "the first bytes, of a Hub that gives whole files alone", "a link"])
def test_what_is_left_of_a_large_file_and_cannot_be_gone_on_with_does_no_harm(
    hub: TestHub, isolated_env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    from kernels.sources import download

    monkeypatch.setattr(download, "IN_MEMORY", 1000)
    data = os.urandom(5000)
    hub.make_repo("acme/relu", variants={"torch-cpu": {"data.bin": data}}, digest=True)
    blobs = isolated_env / "kernels--acme--relu" / "blobs"
    blobs.mkdir(parents=True)
    begun = blobs / f"{hashlib.sha256(data).hexdigest()}.0a1b2c3d.left.incomplete"
    if left == "a link":
        (tmp_path / "elsewhere").write_bytes(data[:3000])
        begun.symlink_to(tmp_path / "elsewhere")
    else:
        begun.write_bytes(bytes(3000) if left == "other bytes" else data[:3000])
    if left.endswith("whole files alone"):
        hub.fail("^/lfs/.*data.bin", status=200, body=data, method="GET")
    [build] = download_kernels(["acme/relu"], version=1)
    assert (build.path / "data.bin").read_bytes() == data
    assert begun.is_symlink() == (left == "a link")
    assert left != "a link" or begun.read_bytes() == data[:3000]


READ_ONLY = """
cache = os.environ["KERNELS_CACHE"]
def refuse(event, arguments):
    if changes(event, arguments, cache):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), arguments[0])
sys.addaudithook(refuse)
try:
    print("loaded", get_kernel("acme/relu", version=1).repo_id)
except StoreError as error:
    print("StoreError", error)
"""


@pytest.mark.parametrize("offline", [False, True])
def test_a_warm_kernel_loads_from_a_cache_that_is_read_only(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, isolated_env: Path, offline: bool
) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": FILES}, digest=True)
    run('install_kernel("acme/relu", version=1)')
    if offline:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert run(READ_ONLY) == ["loaded acme/relu"]


@pytest.mark.parametrize("what", ["nothing", "an older commit"])
def test_what_is_not_in_a_cache_that_is_read_only_is_an_error_that_says_so(
    hub: TestHub, isolated_env: Path, what: str
) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": FILES})
    if what == "an older commit":
        run('install_kernel("acme/relu", version=1)')
        hub.make_repo("acme/relu", variants={"torch-cpu": FILES}, seed="later")
    before = sorted(isolated_env.rglob("*"))
    [said] = run(READ_ONLY)
    assert said.startswith("StoreError Cannot write ")
    assert "Read-only file system" in said
    assert "KERNELS_CACHE" in said
    assert sorted(isolated_env.rglob("*")) == before


@pytest.mark.parametrize("size", [900, 200_000], ids=["in memory", "as it arrives"])
def test_a_disk_that_fills_up_is_an_error_that_says_so(hub: TestHub, isolated_env: Path, size: int) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": {"data.bin": os.urandom(size)}})
    code = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
size = int(sys.argv[1])
def limit(event, arguments):  # when metadata and lists are written, which are smaller or larger
    writes = event == "open" and changes(event, arguments, os.environ["KERNELS_CACHE"])
    if writes and ".incomplete" in str(arguments[0]):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
sys.addaudithook(limit)
try:
    install_kernel("acme/relu", version=1)
except StoreError as error:
    print("StoreError", error)
"""
    [said] = run(code, min(size, 100_000) // 2)
    assert said.startswith("StoreError ")
    assert "File too large" in said
    assert "KERNELS_CACHE" in said
    assert not list(isolated_env.rglob("*.incomplete"))
    assert not list(isolated_env.rglob("*.tmp"))
    [folder] = run('print(install_kernel("acme/relu", version=1))')
    assert (Path(folder) / "data.bin").stat().st_size == size
