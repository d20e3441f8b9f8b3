"""A cache that is cleared while kernels are loaded from it: what a loader finds gone, it gets again."""

from __future__ import annotations

import _ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hub import TestHub

from kernels import get_kernel, install_kernel
from kernels.cache.in_use import in_use, unused
from kernels.cache.inventory import scan_cache
from kernels.cache.prune import plan_prune, prune
from kernels.cache.verify import verify_contents
from kernels.errors import NotInCache
from kernels.loader.load import kernel_layers
from kernels.operations.call import KernelRequest, context_for
from kernels.operations.install import install
from kernels.operations.load import load
from kernels.settings import Verify

FILES = {
    "__init__.py": """
from . import first, second, data
total = first.value + second.value + len(data.text)

def late():
    from . import third
    return third.value
""",
    "first.py": "value = 1\n",
    "second.py": "from .inner import deep\nvalue = 1 + deep.value\n",
    "inner/__init__.py": "",
    "inner/deep.py": "value = 1\n",
    "third.py": "value = 3\n",
    "data.py": "import os\ntext = open(os.path.join(os.path.dirname(__file__), 'data.txt')).read()\n",
    "data.txt": "data",
    "layers.py": "value = 'layers'\n",
}
TOTAL = 7

CLEAR = """
import sys, time
from kernels.cache.inventory import scan_cache
from kernels.cache.prune import plan_prune, prune
print("ready", flush=True)
while True:
    prune(plan_prune(scan_cache(), everything=True))
    time.sleep(0.005)
"""

LOAD = """
from kernels import get_kernel
print(get_kernel("acme/relu", version=1).total, get_kernel("acme/gelu", version=1).total)
"""


@contextmanager
def cleared_all_the_time() -> Iterator[None]:
    """`prune --all` in a loop in another process."""
    process = subprocess.Popen([sys.executable, "-c", CLEAR], stdout=subprocess.PIPE, env=os.environ.copy())
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate(timeout=60)


def clear(cache: Path) -> None:
    """What somebody does who removes the cache by hand."""
    for repository in cache.glob("kernels--*"):
        shutil.rmtree(repository)


@pytest.mark.skipif(os.name == "nt", reason="folders cannot be locked")
def test_processes_load_while_the_cache_is_cleared(hub: TestHub, isolated_env: Path) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": FILES}, digest=True)
    hub.make_repo("acme/gelu", variants={"torch-cpu": FILES}, depends=[("acme/relu", 1)])
    with cleared_all_the_time():
        for _ in range(2):
            loaders = [
                subprocess.Popen(
                    [sys.executable, "-c", LOAD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
                for _ in range(2)
            ]
            ended = [loader.communicate(timeout=120) for loader in loaders]
            assert [said for said, _ in ended] == [f"{TOTAL} {TOTAL}\n"] * 2, ended
    assert all(each.ok for each in verify_contents(scan_cache()))


@pytest.mark.parametrize("verify", ["install", "load", "off"])
def test_what_is_cleared_between_download_and_import_is_downloaded_again(
    hub: TestHub, isolated_env: Path, verify: Verify
) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": FILES})
    hub.make_repo("acme/gelu", variants={"torch-cpu": FILES}, depends=[("acme/relu", 1)])
    request = KernelRequest("acme/gelu", 1, verify=verify)
    installed = install(context_for(request), request.requirement)
    clear(isolated_env)
    module = load(installed).module
    assert module.total == TOTAL
    assert get_kernel("acme/gelu", version=1) is module


# A kernel in whose import somebody clears the cache, once.
CLEARS = """
import os, shutil
marker = os.environ["TEST_CLEARED"]
with open(marker, "a") as log:
    log.write("x")
if os.path.getsize(marker) == 1:
    shutil.rmtree(os.path.dirname(__file__))
"""


@pytest.mark.parametrize(
    "after",
    [
        "from . import second\nvalue = second.value",
        "from .inner import deep\nvalue = 1 + deep.value",
        "import pkgutil\nvalue = len(pkgutil.get_data(__name__, 'data.txt')) - 2",
        "value = len(open(os.path.join(os.path.dirname(__file__), 'data.txt')).read()) - 2",
        "import ctypes\nctypes.CDLL(os.path.join(os.path.dirname(__file__), 'lib.so'))\nvalue = 2",
    ],
    ids=["module", "package", "resource", "file", "library"],
)
def test_what_is_cleared_while_it_is_imported_is_downloaded_again(
    hub: TestHub, isolated_env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    monkeypatch.setenv("TEST_CLEARED", str(tmp_path / "cleared"))
    own = {"__init__.py": f"{CLEARS}{after}\n", "lib.so": Path(_ctypes.__file__).read_bytes()}
    hub.make_repo("acme/relu", variants={"torch-cpu": {**FILES, **own}})
    assert get_kernel("acme/relu", version=1).value == 2
    assert (tmp_path / "cleared").read_text() == "xx"


def test_an_import_that_takes_a_cleared_file_for_an_absent_part_is_done_again_or_fails(
    hub: TestHub, isolated_env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_CLEARED", str(tmp_path / "cleared"))
    init = f"{CLEARS}\ntry:\n    from . import second\nexcept ImportError:\n    second = None\n"
    hub.make_repo("acme/relu", variants={"torch-cpu": {**FILES, "__init__.py": init}})
    install_kernel("acme/relu", version=1)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    before = set(sys.modules)
    with pytest.raises(NotInCache):
        get_kernel("acme/relu", version=1)
    assert not [name for name in set(sys.modules) - before if "relu" in name]


def test_a_kernel_that_fails_by_itself_is_imported_once(
    hub: TestHub, isolated_env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_CLEARED", str(tmp_path / "cleared"))
    (tmp_path / "cleared").write_text("x")
    init = f"{CLEARS}\nopen(os.path.join(os.path.dirname(__file__), 'never.there'))\n"
    hub.make_repo("acme/relu", variants={"torch-cpu": {**FILES, "__init__.py": init}})
    with pytest.raises(FileNotFoundError, match=r"never\.there"):
        get_kernel("acme/relu", version=1)
    assert (tmp_path / "cleared").read_text() == "xx"


def test_what_a_loaded_kernel_imports_later_is_there_once_it_was_got_again(hub: TestHub, isolated_env: Path) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": FILES})
    module = get_kernel("acme/relu", version=1)
    clear(isolated_env)
    with pytest.raises(FileNotFoundError, match=r"third\.py"):
        module.late()
    assert get_kernel("acme/relu", version=1) is module
    assert module.late() == 3
    assert kernel_layers(module).value == "layers"


def test_what_is_being_loaded_is_not_cleared_away(hub: TestHub, isolated_env: Path) -> None:
    hub.make_repo("acme/relu")
    folder = install_kernel("acme/relu", version=1)
    with in_use(folder) as there:
        assert there
        assert prune(plan_prune(scan_cache(), everything=True)).removed == ()
        assert install_kernel("acme/relu", version=1) == folder
    with unused(folder) as free, in_use(folder) as there:
        assert (free, there) == (True, False)  # it is being removed
    [removed] = prune(plan_prune(scan_cache(), everything=True)).removed
    assert removed.repo_id == "acme/relu"
    with in_use(folder) as there, unused(folder) as free:
        assert (there, free) == (False, True)


def test_what_is_put_into_a_commit_while_it_is_cleared_stays(
    hub: TestHub, isolated_env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu")
    folder = install_kernel("acme/relu", version=1)
    remove = os.rmdir

    def rmdir(path: str, **options: int) -> None:
        monkeypatch.setattr(os, "rmdir", remove)
        (folder / "metadata.json").write_text("{}")
        remove(path, **options)

    monkeypatch.setattr(os, "rmdir", rmdir)
    prune(plan_prune(scan_cache(), everything=True))
    assert [path.name for path in folder.iterdir()] == ["metadata.json"]
    assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"
