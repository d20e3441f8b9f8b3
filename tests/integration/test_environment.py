"""What surrounds a call: the ecosystem's variables, a terminal, a distributed job, a torch that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hub import TestHub

GET = "from kernels import get_kernel; print(get_kernel('acme/relu', version=1).repo_id)"


def test_hf_endpoint_names_the_hub(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.make_repo("acme/relu")
    monkeypatch.delenv("KERNELS_HUB")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    output = subprocess.run([sys.executable, "-c", GET], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "acme/relu"
    assert {asked.headers.get("authorization") for asked in hub.requests} == {"Bearer hf_mine"}


def run_on_terminal(code: str) -> str:
    """What a process writes to a terminal that is its standard error."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    written = b""
    while True:
        try:
            chunk = os.read(ours, 4096)
        except OSError:  # Linux's way to say that the other side is closed
            break
        if not chunk:
            break
        written += chunk
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return written.decode(errors="replace")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize(("disabled", "shown"), [("0", True), ("1", False)])
def test_a_terminal_sees_a_progress_bar_unless_told_otherwise(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, disabled: str, shown: bool
) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": {"data.bin": bytes(2_000_000)}})
    hub.delay("resolve/.*/data.bin", 1.5)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", disabled)
    written = run_on_terminal(GET)
    # One bar of all files, in bytes.
    assert ("Fetching acme/relu:" in written, "/2.00M [" in written, "B/s]" in written) == (shown,) * 3
    assert ("100%" in written, "data.bin" in written, written.count("\n") == 1) == (shown, False, shown)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_kernels_at_once_share_one_bar(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.make_repo("acme/gelu", variants={"torch-cpu": {"data.bin": bytes(1_000_000)}})
    hub.make_repo("acme/relu", variants={"torch-cpu": {"data.bin": bytes(1_000_000)}}, depends=[("acme/gelu", 1)])
    hub.delay("resolve/.*/data.bin", 1.5)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "0")
    written = run_on_terminal(GET)
    assert "Fetching 2 kernels:" in written
    assert "/2.00M [" in written
    assert written.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_quick_download_has_no_bar(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.sources import progress

    hub.make_repo("acme/relu")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "0")
    later = f"import {progress.__name__} as progress; progress._DELAY_SECONDS = 60; "
    assert run_on_terminal(later + GET) == ""


def test_nothing_but_a_terminal_sees_a_progress_bar(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.make_repo("acme/relu")
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS")
    output = subprocess.run([sys.executable, "-c", GET], capture_output=True, text=True, check=True)
    assert output.stderr == ""


def test_all_ranks_of_a_job_use_one_commit_though_the_branch_moves(hub: TestHub, tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        import torch.distributed as dist
        from kernels import get_kernel, get_loaded_kernels

        rank, folder = int(sys.argv[1]), Path(sys.argv[2])
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
        if rank == 1:
            while not (folder / "moved").exists():
                time.sleep(0.02)
        get_kernel("acme/relu", version=1)
        [kernel] = get_loaded_kernels()
        (folder / f"rank{rank}").write_text(kernel.repo_info.revision)
        dist.barrier()
        dist.destroy_process_group()
        """
    )
    folder = hub.make_repo("acme/relu")
    first = hub.commit("acme/relu")
    ranks = [subprocess.Popen([sys.executable, "-c", code, str(rank), str(tmp_path)]) for rank in range(2)]
    deadline = time.monotonic() + 100
    while not (tmp_path / "rank0").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    (folder / "README.md").write_text("the branch moves on")
    assert hub.commit("acme/relu") != first
    (tmp_path / "moved").touch()
    assert [rank.wait(timeout=100) for rank in ranks] == [0, 0]
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == [first, first]


def test_choosing_and_downloading_work_without_torch(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-universal"])
    code = textwrap.dedent(
        """
        import importlib.metadata as metadata, sys
        sys.modules["torch"] = None
        real = metadata.version
        def version(name):
            if name == "torch":
                raise metadata.PackageNotFoundError(name)
            return real(name)
        metadata.version = version
        from kernels import get_kernel, install_kernel
        print(install_kernel("acme/relu", version=1).name, get_kernel("acme/relu", version=1).variant)
        """
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.split()[1:] == output.stdout.split()[:1]


def run(code: str) -> list[str]:
    """The words that a program writes to its standard output."""
    program = textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


AFTER_THE_MAIN_THREAD = "threading.Thread(target=lambda: (threading.main_thread().join(), call())).start()"


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="its first releases start no thread by then")
@pytest.mark.parametrize("later", ["atexit.register(call)", AFTER_THE_MAIN_THREAD])
def test_the_first_call_may_come_as_the_program_ends(hub: TestHub, later: str) -> None:
    hub.make_repo("acme/relu")
    code = f"""
        import atexit, threading
        from kernels import get_kernel

        def call():
            print(get_kernel("acme/relu", version=1).double(2))

        {later}
    """
    assert run(code) == ["4"]


def test_the_session_of_a_program_may_have_hooks_that_read_answers(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": {"table.bin": b"1" * 2_000_000, "one.py": "1"}})
    code = """
        import huggingface_hub
        from huggingface_hub.utils import get_session
        from kernels import get_kernel

        own = type(get_session())
        seen = []
        hooks = {"response": [lambda response: seen.append(len(response.read()))]}
        huggingface_hub.set_client_factory(lambda: own(event_hooks=hooks))
        print(get_kernel("acme/relu", version=1).double(2), 2_000_000 in seen)
    """
    assert run(code) == ["4", "True"]


def test_a_program_that_ends_leaves_no_thread(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    code = """
        import atexit, threading

        atexit.register(lambda: print(len(threading.enumerate())))  # what is registered first is called last
        from kernels import get_kernel

        get_kernel("acme/relu", version=1)
    """
    assert run(code) == ["1"]
