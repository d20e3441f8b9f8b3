"""What holds after each fault: a Hub that misbehaves, a disk that does, a process that is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hf_cache import KNOWS_KERNELS, complaints
from hub import TestHub
from logged import logged

from kernels import get_kernel, install_kernel
from kernels.errors import (
    DigestMismatch,
    HubUnavailable,
    NotInCache,
    RevisionNotFound,
    StoreError,
    UntrustedPublisher,
)

CALLS = {
    "refs": "/refs$",
    "listing": "/tree/",
    "verdict": "/overview$",
    "metadata": "metadata.json",
    "file": "layers.py",
}


def warnings_of(call: Callable[[], object]) -> list[str]:
    with logged() as records:
        call()
    return [each.getMessage() for each in records]


# The Hub is away


@pytest.mark.parametrize("fault", ["refuses", "fails", "closes", "hangs"])
def test_a_warm_kernel_loads_with_one_warning_when_the_hub_is_away(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    from huggingface_hub import constants

    hub.make_repo("acme/relu")
    hub.make_repo("acme/gelu")
    get_kernel("acme/relu", version=1)
    get_kernel("acme/gelu", version=1)
    new_process()
    if fault == "refuses":
        hub.down()
    elif fault == "fails":
        hub.fail(status=503)
    elif fault == "closes":
        hub.disconnect("")
    else:
        monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
        hub.hang("")
    said = warnings_of(lambda: [get_kernel("acme/relu", version=1), get_kernel("acme/gelu", version=1)])
    assert len(said) == 1
    assert re.search(
        r"^The cache is used in place of an answer, such as for acme/relu as it was (1 second|\d seconds) ago\. ",
        said[0],
    )
    assert hub.url in said[0]


def test_the_warning_says_why_the_hub_is_not_asked_after_another_kernel_failed(
    hub: TestHub, new_process: Callable[[], None]
) -> None:
    hub.make_repo("acme/relu")
    get_kernel("acme/relu", version=1)
    new_process()
    hub.down()
    with pytest.raises(HubUnavailable):
        get_kernel("acme/gelu", version=1)
    [said] = warnings_of(lambda: get_kernel("acme/relu", version=1))
    assert re.search(rf"such as for acme/relu as it was \d seconds? ago\. .*{re.escape(hub.url)} did not answer", said)


def test_what_was_never_downloaded_is_an_error_when_the_hub_is_away(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    hub.down()
    with pytest.raises(HubUnavailable, match="did not answer"):
        get_kernel("acme/relu", version=1)


@pytest.mark.parametrize("how", ["version", "commit", "neither"])
def test_offline_a_warm_kernel_loads_without_a_connection(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    hub.make_repo("acme/relu")
    request = {"version": {"version": 1}, "commit": {"revision": hub.commit("acme/relu")}, "neither": {}}[how]
    get_kernel("acme/relu", **request)
    hub.clear()
    new_process()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert get_kernel("acme/relu", **request).repo_id == "acme/relu"
    assert hub.requests == []


def test_offline_what_is_not_here_is_an_error_that_says_so(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.make_repo("acme/relu")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NotInCache, match=r"HF_HUB_OFFLINE, or local_files_only\), not from KERNELS_HUB either\."):
        get_kernel("acme/relu", version=1)
    assert hub.requests == []


def test_local_files_only_downloads_nothing(hub: TestHub, new_process: Callable[[], None]) -> None:
    hub.make_repo("acme/relu")
    with pytest.raises(NotInCache):
        install_kernel("acme/relu", version=1, local_files_only=True)
    path = install_kernel("acme/relu", version=1)
    hub.clear()
    new_process()
    assert install_kernel("acme/relu", version=1, local_files_only=True) == path
    assert hub.requests == []


# The Hub says "not now"


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("status", "headers"), [(429, {"Retry-After": "2"}), (429, {}), (500, {}), (503, {})])
def test_a_few_refusals_on_any_call_are_waited_out(
    hub: TestHub, brief_waits: list[float], call: str, status: int, headers: dict[str, str]
) -> None:
    hub.make_repo("acme/relu")
    hub.fail(CALLS[call], times=3, status=status, headers=headers)
    assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"
    assert len(brief_waits) == 3
    if headers:
        assert brief_waits == [2.0, 2.0, 2.0]


def test_a_few_refusals_about_a_revision_are_waited_out(hub: TestHub, brief_waits: list[float]) -> None:
    hub.make_repo("acme/relu")
    commit = hub.commit("acme/relu")
    hub.fail("/revision/", times=3, status=429)
    hub.fail("/revision/", status=200, body=json.dumps({"sha": commit}).encode())
    assert commit in str(get_kernel("acme/relu", revision=commit[:10]).__file__)
    assert len(brief_waits) == 3


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize(("status", "headers"), [(429, {"Retry-After": "2"}), (429, {}), (500, {}), (503, {})])
def test_a_few_refusals_of_a_large_file_are_waited_out(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, method: str, status: int, headers: dict[str, str]
) -> None:
    from kernels.sources import download

    monkeypatch.setattr(download, "IN_MEMORY", 1000)
    hub.make_repo("acme/relu", variants={"torch-cpu": {"data.bin": os.urandom(5000)}})
    hub.fail("data.bin", times=3, status=status, headers=headers, method=method)
    assert (install_kernel("acme/relu", version=1) / "data.bin").stat().st_size == 5000


def test_the_ratelimit_header_says_how_long_to_wait(hub: TestHub, brief_waits: list[float]) -> None:
    hub.make_repo("acme/relu")
    hub.fail("/refs$", times=1, status=429, headers={"RateLimit": '"api";r=0;t=55'})
    get_kernel("acme/relu", version=1)
    assert brief_waits == [55.0]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("headers", [{}, {"Retry-After": "1"}, {"Retry-After": "100000"}])
def test_refusals_for_ever_end_in_an_error_within_bounds(
    hub: TestHub, brief_waits: list[float], call: str, headers: dict[str, str]
) -> None:
    hub.make_repo("acme/relu")
    hub.fail(CALLS[call], status=429, headers=headers)
    # Where nobody says that a publisher is trusted, nothing of theirs is fetched.
    expected = UntrustedPublisher if call == "verdict" else HubUnavailable
    with pytest.raises(expected, match="could not be asked" if call == "verdict" else "429"):
        get_kernel("acme/relu", version=1)
    assert sum(brief_waits) < 330
    assert hub.count(CALLS[call]) < 10


def test_refusals_of_a_large_file_for_ever_end_in_an_error_within_bounds(
    hub: TestHub, quick_retries: list[float], brief_waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.sources import download

    monkeypatch.setattr(download, "IN_MEMORY", 1000)
    hub.make_repo("acme/relu", variants={"torch-cpu": {"data.bin": os.urandom(5000)}})
    hub.fail("data.bin", status=429)
    with pytest.raises(HubUnavailable, match="429"):
        install_kernel("acme/relu", version=1)
    assert sum(quick_retries) + sum(brief_waits) < 330
    assert hub.count("data.bin") < 50


# The Hub sends something else


@pytest.mark.parametrize("fault", ["truncate", "shorten", "corrupt"])
@pytest.mark.parametrize("path", ["metadata.json", "layers.py"])
def test_a_wrong_answer_is_asked_for_again_and_never_kept(hub: TestHub, fault: str, path: str) -> None:
    folder = hub.make_repo("acme/relu")
    getattr(hub, fault)(path, times=2)
    installed = install_kernel("acme/relu", version=1)
    assert (installed / path).read_bytes() == (folder / "build" / "torch-cpu" / path).read_bytes()
    assert hub.count(path) == 3


def test_a_file_that_is_always_wrong_is_an_error_and_nothing_is_kept(hub: TestHub, isolated_env: Path) -> None:
    hub.make_repo("acme/relu")
    hub.corrupt("layers.py")
    with pytest.raises(HubUnavailable, match="listed"):
        install_kernel("acme/relu", version=1)
    assert not list(isolated_env.rglob("layers.py"))
    hub.heal()
    assert (install_kernel("acme/relu", version=1) / "layers.py").is_file()


def test_a_listing_that_is_no_json_is_asked_for_again(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    hub.replace("/tree/", lambda body: b"<html>maintenance</html>", times=1)
    hub.replace("/refs$", lambda body: b"[" * 100_000, times=1)
    assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"


# Processes


def test_a_download_that_was_killed_is_repaired(hub: TestHub, isolated_env: Path) -> None:
    files = {f"part{number}.py": f"value = {number}\n" for number in range(30)}
    hub.make_repo("acme/relu", variants={"torch-cpu": files})
    hub.hang("part2")
    code = "from kernels import install_kernel; install_kernel('acme/relu', version=1)"
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ.copy())
    deadline = time.monotonic() + 60
    while hub.count("part2") == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    hub.heal()
    folder = install_kernel("acme/relu", version=1)
    assert {path.name for path in folder.iterdir()} == {"__init__.py", "layers.py", "metadata.json", *files}
    assert (folder / "part2.py").read_text() == "value = 2\n"


def test_sixteen_threads_download_once_and_get_one_module(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    modules: list[object] = []
    threads = [threading.Thread(target=lambda: modules.append(get_kernel("acme/relu", version=1))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(modules) == 16
    assert len({id(module) for module in modules}) == 1
    assert len(hub.requests) == 6, hub.asked()


# The disk


def test_a_disk_that_is_full_is_an_error_that_says_so_and_nothing_is_broken(hub: TestHub, isolated_env: Path) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": {"big.py": "#" * 200_000}})
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from kernels import install_kernel; from kernels.errors import StoreError\n"
        "try: install_kernel('acme/relu', version=1)\n"
        "except StoreError as error: print('StoreError', error)\n"
    )
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert output.stdout.startswith("StoreError Cannot write"), output
    assert "KERNELS_CACHE" in output.stdout
    assert not list(isolated_env.rglob("*.incomplete"))
    assert (install_kernel("acme/relu", version=1) / "big.py").stat().st_size == 200_000


def test_a_cache_that_cannot_be_written_is_an_error_that_says_so(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.make_repo("acme/relu")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(StoreError, match="KERNELS_CACHE"):
        install_kernel("acme/relu", version=1)


def test_a_lock_that_cannot_be_had_is_an_error_that_says_so(hub: TestHub, isolated_env: Path) -> None:
    hub.make_repo("acme/relu")
    isolated_env.mkdir(exist_ok=True)
    (isolated_env / ".locks").write_text("no folder: no lock can be taken")
    with pytest.raises(StoreError, match=r"Cannot write .*\.locks.* KERNELS_CACHE"):
        install_kernel("acme/relu", version=1)
    (isolated_env / ".locks").unlink()
    assert (install_kernel("acme/relu", version=1) / "layers.py").is_file()


def test_a_warm_kernel_needs_no_lock(hub: TestHub, new_process: Callable[[], None], isolated_env: Path) -> None:
    import shutil

    hub.make_repo("acme/relu")
    path = install_kernel("acme/relu", version=1)
    new_process()
    shutil.rmtree(isolated_env / ".locks")
    (isolated_env / ".locks").write_text("no folder: no lock can be taken")
    assert install_kernel("acme/relu", version=1) == path


@pytest.mark.parametrize("content", [b"", b"{", b"[1, [", b"\xff\xfe", b'[1, [{"path": 3}]]', b"[" * 100_000])
def test_a_damaged_index_is_made_anew(
    hub: TestHub, new_process: Callable[[], None], isolated_env: Path, content: bytes
) -> None:
    hub.make_repo("acme/relu")
    path = install_kernel("acme/relu", version=1)
    index = list((isolated_env / "kernels--acme--relu" / "index").glob("*.json"))
    assert len(index) == 2
    for file in index:
        file.write_bytes(content)
    new_process()
    hub.clear()
    assert install_kernel("acme/relu", version=1) == path
    assert hub.count("/tree/") == 1
    assert hub.count("/resolve/") == 0


def test_a_file_that_was_cut_short_is_fetched_again(
    hub: TestHub, new_process: Callable[[], None], isolated_env: Path
) -> None:
    hub.make_repo("acme/relu")
    path = install_kernel("acme/relu", version=1) / "layers.py"
    whole = path.read_bytes()
    path.resolve().write_bytes(whole[:-5])
    new_process()
    install_kernel("acme/relu", version=1)
    assert path.read_bytes() == whole


def test_a_file_that_was_changed_is_found_on_load_when_asked_for(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu")
    path = install_kernel("acme/relu", version=1) / "layers.py"
    whole = path.read_bytes()
    path.resolve().write_bytes(b"#" + whole[1:])
    monkeypatch.setenv("KERNELS_VERIFY", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    new_process()
    with pytest.raises(DigestMismatch, match=r"layers\.py"):
        install_kernel("acme/relu", version=1, local_files_only=True)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    new_process()
    install_kernel("acme/relu", version=1)
    assert path.read_bytes() == whole


# Caches that other tools filled


def test_a_cache_that_huggingface_hub_filled_is_used_as_it_is(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, isolated_env: Path
) -> None:
    from huggingface_hub import snapshot_download

    hub.make_repo("acme/relu")
    snapshot_download("acme/relu", repo_type="kernel", revision="v1", cache_dir=isolated_env, endpoint=hub.url)
    hub.clear()
    get_kernel("acme/relu", version=1)
    assert hub.count("/resolve/") == 0, hub.asked()

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"


@pytest.mark.parametrize("how", ["version", "commit"])
def test_a_hub_that_hangs_is_waited_for_once_for_what_huggingface_hub_downloaded(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, isolated_env: Path, how: str
) -> None:
    from huggingface_hub import constants, snapshot_download

    hub.make_repo("acme/relu")
    snapshot_download("acme/relu", repo_type="kernel", revision="v1", cache_dir=isolated_env, endpoint=hub.url)
    arguments: dict[str, int | str] = {"version": 1} if how == "version" else {"revision": hub.commit("acme/relu")}
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    hub.clear()
    hub.hang("")
    for _ in range(2):
        assert get_kernel("acme/relu", **arguments).repo_id == "acme/relu"
    assert len(hub.requests) == 1, hub.asked()


@pytest.mark.parametrize("with_refs", [True, False])
def test_offline_a_foreign_cache_gives_the_version_its_builds_state(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, isolated_env: Path, with_refs: bool
) -> None:
    from huggingface_hub import snapshot_download

    for version in (1, 2):
        hub.make_repo("acme/relu", version=version)
        revision = f"v{version}" if with_refs else hub.commit("acme/relu", f"v{version}")
        snapshot_download("acme/relu", repo_type="kernel", revision=revision, cache_dir=isolated_env, endpoint=hub.url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert get_kernel("acme/relu", version=1).version == 1
    assert get_kernel("acme/relu").version == 2


def test_offline_the_newest_snapshot_of_a_version_counts_in_a_foreign_cache(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, isolated_env: Path
) -> None:
    from huggingface_hub import snapshot_download

    commits = []
    for age, seed in ((100, "first"), (300, "second"), (200, "third")):
        hub.make_repo("acme/relu", seed=seed)
        commits.append(hub.commit())
        folder = snapshot_download(
            "acme/relu", repo_type="kernel", revision=commits[-1], cache_dir=isolated_env, endpoint=hub.url
        )
        os.utime(folder, (time.time() - age, time.time() - age))
    hub.make_repo("acme/relu", version=2)  # which nobody downloaded
    hub.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert commits[0] in str(get_kernel("acme/relu", version=1).__file__)
    with pytest.raises(RevisionNotFound, match="version 2"):
        get_kernel("acme/relu", version=2)
    assert hub.requests == []


def test_what_is_downloaded_here_is_seen_by_huggingface_hubs_tools(hub: TestHub, isolated_env: Path) -> None:
    from huggingface_hub import hf_hub_download, scan_cache_dir

    hub.make_repo("acme/relu")
    folder = install_kernel("acme/relu", version=1)
    assert complaints(isolated_env) == []
    if KNOWS_KERNELS:
        [repo] = scan_cache_dir(isolated_env).repos
        assert (repo.repo_id, repo.repo_type, repo.nb_files) == ("acme/relu", "kernel", 3)
    assert hf_hub_download(
        "acme/relu",
        "build/torch-cpu/layers.py",
        repo_type="kernel",
        revision=hub.commit("acme/relu"),
        cache_dir=isolated_env,
        local_files_only=True,
    ) == str(folder / "layers.py")


def test_large_files_take_one_request_each_and_its_redirect(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.sources import download

    monkeypatch.setattr(download, "IN_MEMORY", 1000)
    folder = hub.make_repo(
        "acme/relu", variants={"torch-cpu": {"op.abi3.so": os.urandom(5000), "data.bin": "x" * 2000}}
    )
    installed = install_kernel("acme/relu", version=1)
    for name in ("op.abi3.so", "data.bin"):
        assert (installed / name).read_bytes() == (folder / "build" / "torch-cpu" / name).read_bytes()
    for name, routes in {"op.abi3.so": ["kernels", "lfs"], "data.bin": ["kernels"]}.items():
        asked = [(each.method, each.path.split("/")[1]) for each in hub.requests if each.path.endswith(name)]
        assert asked == [("GET", route) for route in routes]


# Answers that are neither yes nor no


@pytest.mark.parametrize("status", [401, 403, 418, 501, 520])
def test_an_odd_answer_is_no_reason_to_forget_what_is_here(
    hub: TestHub, new_process: Callable[[], None], status: int
) -> None:
    hub.make_repo("acme/relu")
    get_kernel("acme/relu", version=1)
    new_process()
    headers = {"X-Error-Message": "Invalid credentials in Authorization header"} if status == 401 else {}
    hub.fail("", status=status, headers=headers)
    said = warnings_of(lambda: get_kernel("acme/relu", version=1))
    assert len(said) == 1
    assert str(status) in said[0]


def test_a_token_that_is_not_accepted_is_named_as_the_cause(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    hub.fail("/refs", status=401, headers={"X-Error-Message": "Invalid credentials in Authorization header"})
    with pytest.raises(HubUnavailable, match="The token was not accepted"):
        get_kernel("acme/relu", version=1)


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_verdict_that_cannot_be_had_is_no_verdict(
    hub: TestHub, new_process: Callable[[], None], isolated_env: Path, status: int
) -> None:
    hub.make_repo("acme/relu")
    get_kernel("acme/relu", version=1)
    [verdict] = (isolated_env / ".locks" / "kernels-verdicts").rglob("acme.json")
    verdict.write_text(json.dumps({**json.loads(verdict.read_text()), "time": 0}))
    hub.fail("overview", status=status)
    new_process()
    assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"


# Slow answers, and callers who have had enough


def test_an_answer_that_drips_for_ever_ends(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.sources import http

    hub.make_repo("acme/relu")
    get_kernel("acme/relu", version=1)
    new_process()
    # Each look at the clock takes a second, so that a long answer takes long.
    ticks = iter(range(10**9))
    monkeypatch.setattr(http.time, "monotonic", lambda: float(next(ticks)))
    hub.replace("/refs$", lambda body: body + b" " * 5_000_000)
    assert warnings_of(lambda: get_kernel("acme/relu", version=1))


def test_ctrl_c_ends_a_download_that_hangs(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    hub.fail("layers.py", status=429, headers={"Retry-After": "60"})
    code = (
        # A shell starts what runs in its background with Ctrl-C ignored, and a suite may run there.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from kernels import install_kernel; install_kernel('acme/relu', version=1)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ.copy(), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while hub.count("layers.py") == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in stderr
    hub.heal()
    assert (install_kernel("acme/relu", version=1) / "layers.py").is_file()


# Large files


@pytest.mark.parametrize("fault", ["truncate", "disconnect", "corrupt"])
def test_a_large_file_that_comes_wrong_is_fetched_again(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    from kernels.sources import download

    monkeypatch.setattr(download, "IN_MEMORY", 1000)
    folder = hub.make_repo("acme/relu", variants={"torch-cpu": {"data.bin": os.urandom(50_000)}})
    if fault == "disconnect":
        hub.disconnect("data.bin", times=1, method="GET")
    else:
        getattr(hub, fault)("data.bin", times=1)
    installed = install_kernel("acme/relu", version=1)
    assert (installed / "data.bin").read_bytes() == (folder / "build/torch-cpu/data.bin").read_bytes()


@pytest.mark.parametrize("status", [403, 404])
def test_a_large_file_that_cannot_be_had_is_the_hubs_fault_not_the_disks(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    from kernels.sources import download

    monkeypatch.setattr(download, "IN_MEMORY", 1000)
    hub.make_repo("acme/relu", variants={"torch-cpu": {"data.bin": os.urandom(5000)}})
    hub.fail("data.bin", status=status)
    with pytest.raises(HubUnavailable, match=r"data\.bin"):
        install_kernel("acme/relu", version=1)


def test_a_foreign_cache_that_cannot_be_written_is_used_online_too(hub: TestHub, isolated_env: Path) -> None:
    import shutil

    from huggingface_hub import snapshot_download

    hub.make_repo("acme/relu")
    snapshot_download("acme/relu", repo_type="kernel", revision="v1", cache_dir=isolated_env, endpoint=hub.url)
    shutil.rmtree(isolated_env / ".locks", ignore_errors=True)
    (isolated_env / ".locks").write_text("no folder: no lock can be taken")
    (isolated_env / "kernels--acme--relu" / "index").write_text("no folder: nothing can be remembered")
    hub.clear()
    assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"
    assert hub.count("/resolve/") == 0


def test_what_a_killed_process_left_is_no_part_of_the_build(hub: TestHub) -> None:
    hub.make_repo("acme/relu", digest=True)
    code = (
        "import os\n"
        "def killed(*names, **folder): os._exit(9)\n"
        "os.symlink = killed\n"
        "from kernels import install_kernel\n"
        "install_kernel('acme/relu', version=1)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], env=os.environ.copy()).returncode == 9
    folder = install_kernel("acme/relu", version=1)
    assert {path.name for path in folder.iterdir()} == {"__init__.py", "layers.py", "metadata.json"}
