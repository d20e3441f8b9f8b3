"""How often, and how deep, a Hub is asked (rows 2 to 4, 6 and 7 of the targets)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub

from kernels import __version__, download_kernels, get_kernel, has_kernel, install_kernel, settings
from kernels.api import KernelRequest, get_kernels
from kernels.cli.lock import lock
from kernels.models.lockfile import Lock
from kernels.sources import download
from kernels.sources.http import Http

MANY = {f"part{number}.py": f"value = {number}\n" for number in range(60)}


def test_a_cold_kernel_of_three_files_takes_three_requests_and_one_a_file(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu"])
    get_kernel("acme/relu", version=1)
    assert len(hub.requests) == 6, hub.asked()
    assert not hub.count("", method="HEAD")


def test_a_cold_kernel_of_63_files_takes_three_requests_and_one_a_file(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": MANY})
    get_kernel("acme/relu", version=1)
    assert len(hub.requests) == 66, hub.asked()


def test_files_of_one_content_are_requested_once(hub: TestHub) -> None:
    folders = [f"part{number}/" for number in range(20)]
    hub.make_repo("acme/relu", variants={"torch-cpu": {f"{folder}__init__.py": "" for folder in folders}})
    build = install_kernel("acme/relu", version=1)
    assert hub.count("/part") == 1, hub.asked()
    assert all((build / f"{folder}__init__.py").read_bytes() == b"" for folder in folders)


def test_63_files_take_two_round_trips(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": MANY})
    # No answer of a wave leaves before all 32 of it have arrived. With fewer at once none would.
    hub.in_waves("/resolve/", 32, 63)
    hub.latency = 0.25
    install_kernel("acme/relu", version=1)
    assert hub.depth() <= 4, hub.asked()
    assert len(hub.requests) == 66, hub.asked()


def test_downloads_of_several_kernels_share_the_connections(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_turns", threading.Semaphore(5))
    now: list[str] = []
    most = [0]
    content = Http.content

    def counted(client: Http, path: str, *arguments: Any) -> bytes:
        now.append(path)
        most[0] = max(most[0], len([each for each in now if "/part" in each]))
        try:
            return content(client, path, *arguments)
        finally:
            now.remove(path)

    monkeypatch.setattr(Http, "content", counted)
    names = [f"acme/kernel{number}" for number in range(3)]
    for name in names:
        hub.make_repo(
            name, variants={"torch-cpu": {f"part{part}.py": f"value = '{name}', {part}" for part in range(12)}}
        )
    hub.latency = 0.05
    get_kernels([KernelRequest(name, version=1) for name in names])
    assert hub.count("/part") == 36
    assert most[0] <= 5


def test_a_cold_kernel_is_three_round_trips_deep(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    hub.latency = 0.25
    install_kernel("acme/relu", version=1)
    assert hub.depth() <= 3, hub.asked()


def test_a_cold_commit_is_two_round_trips_deep(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setenv("KERNELS_HUB", "hub")
    hub.make_repo("acme/relu")
    hub.latency = 0.25
    install_kernel("acme/relu", revision=hub.commit("acme/relu"))
    assert hub.depth() <= 2, hub.asked()


def test_only_the_metadata_of_builds_that_fit_by_name_is_read(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-npu", "torch29-cxx11-cu128-x86_64-linux"])
    get_kernel("acme/relu", version=1)
    assert hub.count("metadata.json") == 1


def test_a_warm_kernel_takes_one_request_in_a_new_process(hub: TestHub, new_process: Callable[[], None]) -> None:
    hub.make_repo("acme/relu")
    get_kernel("acme/relu", version=1)
    hub.clear()
    new_process()
    get_kernel("acme/relu", version=1)
    assert hub.asked() == ["GET /api/kernels/acme/relu/refs"]


def test_the_same_process_asks_once(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    first = get_kernel("acme/relu", version=1)
    hub.clear()
    assert get_kernel("acme/relu", version=1) is first
    assert has_kernel("acme/relu", version=1)
    assert hub.requests == []


def test_a_commit_takes_no_request_once_it_is_here(hub: TestHub, new_process: Callable[[], None]) -> None:
    hub.make_repo("acme/relu")
    commit = hub.commit("acme/relu")
    get_kernel("acme/relu", revision=commit)
    assert (hub.count("refs"), hub.count("/commits/")) == (1, 0)
    hub.clear()
    new_process()
    get_kernel("acme/relu", revision=commit)
    assert hub.requests == []


def test_within_the_refresh_time_no_request_is_made(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_REFRESH", "3600")
    hub.make_repo("acme/relu")
    get_kernel("acme/relu", version=1)
    hub.clear()
    new_process()
    get_kernel("acme/relu", version=1)
    assert hub.requests == []


def test_a_second_kernel_of_a_publisher_asks_for_no_second_verdict(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    hub.make_repo("acme/gelu")
    get_kernel("acme/relu", version=1)
    get_kernel("acme/gelu", version=1)
    assert hub.count("organizations") == 1


def test_a_new_commit_downloads_only_files_that_changed(hub: TestHub, new_process: Callable[[], None]) -> None:
    folder = hub.make_repo("acme/relu", variants={"torch-cpu": MANY})
    install_kernel("acme/relu", version=1)
    (folder / "build" / "torch-cpu" / "part7.py").write_text("value = 'changed'\n")
    hub.clear()
    new_process()
    install_kernel("acme/relu", version=1)
    assert hub.count("/resolve/") == 2, hub.asked()  # the file, and metadata.json, which is read first


def test_kernels_asked_for_together_are_fetched_side_by_side(hub: TestHub) -> None:
    for number in range(4):
        hub.make_repo(f"acme/k{number}")
    hub.latency = 0.25
    modules = get_kernels([KernelRequest(f"acme/k{number}", version=1) for number in range(4)])
    assert [module.repo_id for module in modules] == [f"acme/k{number}" for number in range(4)]
    assert hub.depth() <= 3, hub.asked()


MACHINES = ["torch2.9-cpu-x86_64-linux", "torch2.9-cu128-x86_64-linux+sm_90", "torch2.9-xpu20252-x86_64-linux"]


@pytest.fixture
def eight(hub: TestHub) -> list[str]:
    """Eight kernels of three builds each, on a Hub that takes its time."""
    names = [f"acme/k{number}" for number in range(8)]
    for name in names:
        hub.make_repo(name, variants=["torch-cpu", "torch-cuda", "torch-xpu"])
    hub.latency = 0.25
    return names


def test_kernels_are_locked_with_all_their_builds_side_by_side(hub: TestHub, eight: list[str], tmp_path: Path) -> None:
    table = "".join(f'"{name}" = 1\n' for name in eight)
    (tmp_path / "pyproject.toml").write_text(f"[tool.kernels.dependencies]\n{table}")
    lock(tmp_path, hashes=True)
    assert len(Lock.read(tmp_path / "kernels.lock").pins) == 8
    assert len(hub.requests) <= 89, hub.asked()  # builds may share a file
    assert hub.depth() <= 20, hub.asked()


def test_kernels_are_downloaded_for_several_machines_side_by_side(hub: TestHub, eight: list[str]) -> None:
    assert len(download_kernels(eight, version=1, targets=MACHINES)) == 24
    assert len(hub.requests) <= 89, hub.asked()  # builds may share a file
    assert hub.depth() <= 20, hub.asked()


def test_of_kernels_asked_for_together_one_that_is_missing_fails_alone(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    module, missing = get_kernels([KernelRequest("acme/relu", version=1), KernelRequest("acme/none", version=1)])
    assert module.repo_id == "acme/relu"
    assert isinstance(missing, FileNotFoundError)


def test_kernels_asked_for_by_name_alone_are_refused_with_the_type_to_use() -> None:
    with pytest.raises(TypeError, match=r"`requests\[0\]`: expected a KernelRequest, got 'acme/relu' \(str\)"):
        get_kernels(["acme/relu"])  # type: ignore[list-item]


def test_a_url_with_a_path_too_many_is_said_to_answer_404(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.make_repo("acme/relu")
    monkeypatch.setenv("KERNELS_HUB", f"{hub.url}/x")
    with pytest.raises(FileNotFoundError, match=r"/x has no repository acme/relu\. Its answer is not that of a Hub"):
        get_kernel("acme/relu", version=1)


def test_eight_processes_download_once(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": {**MANY, "large.bin": b"large" * 200_000}})
    code = "from kernels import get_kernel; print(get_kernel('acme/relu', version=1).repo_id)"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], env=os.environ.copy(), stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    outputs = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert outputs == ["acme/relu"] * 8
    assert len(hub.requests) <= 67 + 8, hub.asked()
    assert hub.count("/resolve/") == 64


def test_the_user_agent_says_what_asks_unless_telemetry_is_off(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub.make_repo("acme/relu")
    has_kernel("acme/relu", version=1)
    assert hub.requests[0].headers["user-agent"].startswith(f"kernels/{__version__}; ")
    assert "backend/" not in hub.requests[0].headers["user-agent"]

    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "0")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr(constants, "HF_HUB_USER_AGENT_ORIGIN", "tests", raising=False)
    get_kernel("acme/relu", version=1, user_agent={"framework": "diffusers", "tricky": "a\r\nX-Evil: 1"})
    agent = hub.requests[-1].headers["user-agent"]
    for part in (
        f"kernels/{__version__}",
        "python/",
        "torch/",
        "backend/cpu",
        "platform/x86_64-linux",
        "file_type/kernel",
        "glibc/",
        "framework/diffusers",
        "origin/tests",
    ):
        assert part in agent.split("; ") or (part.endswith("/") and part in agent), agent
    assert ("tvm-ffi/" in agent) == (find_spec("tvm_ffi") is not None), agent
    assert "x-evil" not in hub.requests[-1].headers


def test_the_token_of_one_hub_is_not_sent_to_another(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    hub.make_repo("acme/relu")
    get_kernel("acme/relu", version=1)
    assert all("authorization" not in asked.headers for asked in hub.requests)

    monkeypatch.setenv("KERNELS_HUB_TOKEN", "for-this-hub")
    get_kernel("acme/relu", revision="v1")
    hub.make_repo("acme/gelu")
    get_kernel("acme/gelu", version=1)
    assert hub.requests[-1].headers["authorization"] == "Bearer for-this-hub"


def test_the_token_for_a_url_is_sent_there_also_if_the_url_is_huggingface_hubs_own(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    from kernels.authoring.publish.hub_client import open_hub

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    hub.make_repo("acme/relu")
    hub.make_repo("acme/gelu")
    hub.make_repo("acme/silu")

    def tokens(repo_id: str) -> set[str | None]:
        hub.clear()
        get_kernel(repo_id, version=1)
        return {asked.headers.get("authorization") for asked in hub.requests}

    assert tokens("acme/relu") == {"Bearer hf_secret"}
    assert settings.token_source(hub.url) == "KERNELS_HUB_TOKEN, or HF_TOKEN"
    monkeypatch.setenv("KERNELS_HUB_TOKEN", "for-this-hub")
    assert tokens("acme/gelu") == {"Bearer for-this-hub"}
    assert open_hub().token == "for-this-hub"
    monkeypatch.setenv("KERNELS_HUB", "hub")
    assert tokens("acme/silu") == {"Bearer hf_secret"}
    assert open_hub().token == "hf_secret"
    assert settings.token_source(hub.url).startswith("HF_TOKEN")


def test_a_listing_of_several_pages_is_read_to_its_end(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": {f"m{number}.py": "" for number in range(1100)}})
    assert has_kernel("acme/relu", version=1)
    assert hub.count("/tree/") == 2
    index = json.loads(next(_index_files()).read_text())
    assert len(index[0]) == 1103


def _index_files():  # type: ignore[no-untyped-def]
    from pathlib import Path

    return (
        path
        for path in Path(os.environ["KERNELS_CACHE"]).glob("kernels--acme--relu/index/*.json")
        if not path.name.startswith("heads-")
    )
