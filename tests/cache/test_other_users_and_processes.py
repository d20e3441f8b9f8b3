"""What other users and processes leave, list or remove in a cache does no harm to this one."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub

from kernels import install_kernel
from kernels.cache.inventory import scan_cache
from kernels.cache.store import RepoStore
from kernels.cache.verify import verify_contents
from kernels.errors import StoreError
from kernels.models.snapshot import RepoFile
from kernels.sources import cached

CONTENT = b"#" * 3_000_000


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs another user")
def test_a_download_that_another_user_began_is_begun_anew() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        store = RepoStore(Path(folder), "acme/relu")
        blobs = store.folder / "blobs"
        blobs.mkdir(parents=True)
        file = RepoFile("build/torch-cpu/big.bin", len(CONTENT), "1" * 40)
        theirs = blobs / f"{file.blob}.01234567.left.incomplete"
        theirs.write_bytes(CONTENT[:2_000_000])
        theirs.chmod(0o666)
        for each in (store.folder, blobs):
            each.chmod(0o777)
        child = os.fork()
        if not child:
            status = 1
            try:
                os.setuid(65534)
                with store.writer("c" * 40).part(file) as part:
                    status = 0 if part.offset == 0 and part.append(CONTENT) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert theirs.read_bytes() == CONTENT[:2_000_000]


@pytest.mark.parametrize("listed", [["torch-cuda"], []], ids=["another build", "none"])
def test_verify_removes_no_build_that_only_one_of_several_addresses_lists(hub: TestHub, listed: list[str]) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"])
    build = install_kernel("acme/relu", version=1)
    [store] = {each.store for each in scan_cache().commits}
    files = store.listed(hub.url, hub.commit())
    assert files is not None
    # Records are read in the order of the hashes of their addresses: some of these come first.
    for number in range(8):
        some = [file for file in files if file.path.split("/")[1:2] in ([each] for each in listed)]
        store.keep_listed(f"https://mirror{number}.example", hub.commit(), some)
    [found] = verify_contents(scan_cache(), repair=True)
    assert (found.ok, found.unlisted, found.changed) == (True, (), ())
    assert (build / "__init__.py").is_file()
    (build / "extra.py").write_text("")
    (build / "layers.py").unlink()
    (build / "layers.py").write_text("other = 1")
    [found] = verify_contents(scan_cache(), repair=True)
    assert (found.unlisted, found.changed) == (("build/torch-cpu/extra.py",), ("build/torch-cpu/layers.py",))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a second process")
def test_one_commit_that_disappears_hides_no_other(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    install_kernel("acme/relu", version=1)
    [store] = {each.store for each in scan_cache().commits}
    other = store.snapshot("f" * 40)
    for number in range(200):
        store.snapshot(f"{number:040x}").mkdir()
    child = os.fork()
    if not child:
        while os.getppid() != 1:
            os.mkdir(other)
            os.rmdir(other)
    try:
        seen = {hub.commit() in store.commits() for _ in range(500)}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert seen == {True}


def test_a_build_that_another_process_removes_each_time_is_an_error(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, isolated_env: Path
) -> None:
    hub.make_repo("acme/relu")
    real = cached.exclusively

    def pruned_at_once(lock: Any) -> Any:
        for path in isolated_env.rglob("snapshots/*/build/torch-cpu/__init__.py"):
            path.unlink()
        return real(lock)

    monkeypatch.setattr(cached, "exclusively", pruned_at_once)
    with pytest.raises(StoreError, match=r"__init__\.py was removed by another process each time"):
        install_kernel("acme/relu", version=1)
