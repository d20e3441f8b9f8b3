"""A cache on a network file system: `flock` is missing or does nothing, and so may symbolic links.

Processes see such a file system through a `sitecustomize` that changes what the operating system answers about files
in the cache.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hub import TestHub

from kernels import install_kernel

SITE = """
import errno, os, sys

def refuse(call, number):
    def refused(*arguments, **options):
        raise OSError(number, os.strerror(number))
    return refused

def in_cache(file):
    file = file if isinstance(file, int) else file.fileno()
    return os.readlink(f"/proc/self/fd/{file}").startswith(os.environ["KERNELS_CACHE"])

mode = os.environ["TEST_FILE_SYSTEM"].split()
if mode[0] != "links":
    import fcntl
    real = fcntl.flock
    def flock(file, operation):
        if not in_cache(file):
            return real(file, operation)
        if mode[0] != "nothing":
            number = getattr(errno, mode[0])
            raise OSError(number, os.strerror(number))
    fcntl.flock = flock
if "no-links" in mode:
    os.symlink = refuse("symlink", errno.EOPNOTSUPP)
"""

INSTALL = """
from kernels.sources import download
download.IN_MEMORY = 1000
from kernels import install_kernel
print(install_kernel("acme/relu", version=1))
"""

FILES = {f"part{number}.py": f"value = {number}\n" for number in range(5)}
CONTENT = {**FILES, "data.bin": b"large" * 400}

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc names the files behind descriptors")


def start(tmp_path: Path, file_system: str) -> subprocess.Popen[str]:
    site = tmp_path / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(SITE)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TEST_FILE_SYSTEM": file_system,
    }
    return subprocess.Popen(
        [sys.executable, "-c", INSTALL], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def check_whole(hub: TestHub, processes: list[subprocess.Popen[str]], cache: Path) -> None:
    outputs = [process.communicate(timeout=120) for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(said for _, said in outputs)
    [folder] = {output.strip() for output, _ in outputs}
    wanted = hub.root / "acme" / "relu" / "v1" / "build" / "torch-cpu"
    assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == {
        path.name: path.read_bytes() for path in wanted.iterdir()
    }
    assert not list(cache.rglob("*.held"))


@pytest.mark.parametrize("file_system", ["ENOLCK", "ENOSYS", "ENOTSUP", "ENOLCK no-links"])
def test_two_processes_without_flock_download_once(
    hub: TestHub, isolated_env: Path, tmp_path: Path, file_system: str
) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": CONTENT}, digest=True)
    check_whole(hub, [start(tmp_path, file_system) for _ in range(2)], isolated_env)
    assert hub.count("/resolve/", method="GET") == 9, hub.asked()
    assert not list(isolated_env.rglob("*.incomplete"))
    assert hub.count("/tree/") == 1


@pytest.mark.parametrize("file_system", ["nothing", "nothing no-links"])
def test_two_processes_whose_locks_do_nothing_both_end_with_a_whole_build(
    hub: TestHub, isolated_env: Path, tmp_path: Path, file_system: str
) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": CONTENT}, digest=True)
    hub.together("/(resolve|tree)/", 2)  # neither is given anything before the other has asked for it as well
    check_whole(hub, [start(tmp_path, file_system) for _ in range(2)], isolated_env)
    assert hub.count("/resolve/", method="GET") == 18, hub.asked()
    assert not list(isolated_env.rglob("*.incomplete"))
    hub.heal()
    hub.clear()
    install_kernel("acme/relu", version=1)
    assert hub.count("/resolve/") == 0


def test_a_process_that_is_killed_without_flock_is_not_waited_for(
    hub: TestHub, isolated_env: Path, tmp_path: Path
) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": CONTENT})
    hub.hang("part2")
    process = start(tmp_path, "ENOLCK")
    deadline = time.monotonic() + 60
    while hub.count("part2") == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert list(isolated_env.rglob("*.held"))
    hub.heal()
    check_whole(hub, [start(tmp_path, "ENOLCK") for _ in range(2)], isolated_env)
