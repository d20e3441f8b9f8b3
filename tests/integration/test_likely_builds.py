"""What is requested before it is certain that it is used, and what becomes of it."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub, kernel_files

from kernels import download_kernels, get_kernel, get_kernel_variants, has_kernel, install_kernel
from kernels.cache.store import RepoStore
from kernels.errors import HubUnavailable, StoreError, UntrustedPublisher
from kernels.sources import ahead, download, wire
from kernels.sources.ahead import MAX_FILES, MAX_LARGE

HOPPER = "torch2.9-cu128-x86_64-linux+sm_90"

#: Builds for CUDA, the preferred first.
STABLE = [f"torch-stable-abi{minor}-cu128-x86_64-linux" for minor in (29, 28, 27, 26)]


@pytest.fixture
def slow(hub: TestHub) -> TestHub:
    """A Hub that takes its time, so that what is requested together is answered together."""
    hub.latency = 0.25
    return hub


def for_other_devices(hub: TestHub, variants: Iterable[str] = STABLE[:1], files: dict[str, bytes] | None = None) -> str:
    """A kernel of which the build `torch-cuda` suits, and those that its devices prefer by name do not."""
    builds = {
        f"build/{name}/{path}": data
        for name in variants
        for path, data in kernel_files("acme/relu", name, archs=["7.0"], files=files).items()
    }
    builds |= {f"build/torch-cuda/{path}": data for path, data in kernel_files("acme/relu", "torch-cuda").items()}
    return hub.list_files("acme/relu", builds).id


def on_disk(cache: Path, variant: str) -> list[str]:
    """The files of a build in the cache."""
    return sorted(path.name for path in cache.glob(f"kernels--acme--*/snapshots/*/build/{variant}/*"))


def is_free(cache: Path, repo_id: str, commit: str, variant: str) -> bool:
    lock = RepoStore(cache, repo_id).lock(f"{commit}-{variant}")
    free = lock.try_acquire()
    if free:
        lock.release()
    return free


# Round trips


def test_a_commit_that_is_named_is_two_round_trips_away(slow: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of an address in KERNELS_HUB it is not known before whether it is a mirror, which is not asked about publishers.
    monkeypatch.delenv("KERNELS_HUB")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", slow.url)
    slow.make_repo("acme/relu")
    install_kernel("acme/relu", revision=slow.commit("acme/relu"))
    # The branches tell whether it is the publisher's: they are asked for beside the listing.
    assert (len(slow.requests), slow.depth()) == (6, 2), slow.asked()


def test_a_commit_whose_files_are_known_is_one_round_trip_away(slow: TestHub, new_process: Callable[[], None]) -> None:
    slow.make_repo("acme/relu")
    commit = slow.commit("acme/relu")
    assert has_kernel("acme/relu", revision=commit)
    slow.clear()
    new_process()
    install_kernel("acme/relu", revision=commit)
    assert (len(slow.requests), slow.depth()) == (2, 1), slow.asked()  # its metadata is here already


def test_a_kernel_and_its_dependency_are_six_round_trips_away(slow: TestHub) -> None:
    slow.make_repo("acme/base")
    slow.make_repo("acme/top", depends=[("acme/base", 1)])
    install_kernel("acme/top", version=1)
    assert (len(slow.requests), slow.depth()) == (11, 6), slow.asked()


def test_kernels_to_download_are_three_round_trips_away(slow: TestHub) -> None:
    slow.make_repo("acme/relu")
    slow.make_repo("acme/gelu")
    download_kernels(["acme/relu", "acme/gelu"], version=1)
    assert (len(slow.requests), slow.depth()) == (11, 3), slow.asked()


def test_a_build_that_two_downloads_depend_on_is_requested_once(slow: TestHub, isolated_env: Path) -> None:
    slow.make_repo("acme/common")
    for name in ("acme/relu", "acme/gelu"):
        slow.make_repo(name, depends=[("acme/common", 1)])
    assert len(download_kernels(["acme/relu", "acme/gelu"], version=1)) == 3
    assert len({each.path for each in slow.requests}) == len(slow.requests), slow.asked()
    assert is_free(isolated_env, "acme/common", slow.commit("acme/common"), "torch-cpu")


def test_a_redirect_costs_three_round_trips(slow: TestHub) -> None:
    slow.make_repo("acme/new")
    slow.make_repo("acme/old", redirect="acme/new", variants=[])
    install_kernel("acme/old", version=1)
    assert slow.depth() == 6, slow.asked()


def test_the_metadata_of_builds_after_the_first_is_read_side_by_side(slow: TestHub) -> None:
    for_other_devices(slow, STABLE)
    install_kernel("acme/relu", version=1, target=HOPPER)
    assert slow.count(r"metadata\.json") == 5
    assert slow.depth() == 5, slow.asked()


#: A Hub keeps native code in LFS, and redirects to it; a file with another name, below 10 MB, it gives itself.
CONTENT = bytes(range(250)) * 20_000
LARGE = {"_relu.so": CONTENT, "one.py": "1"}
PLAIN = {"table.bin": CONTENT, "one.py": "1"}


def test_a_kernel_with_a_large_file_is_three_round_trips_away(slow: TestHub, isolated_env: Path) -> None:
    slow.make_repo("acme/relu", variants={"torch-cpu": PLAIN})
    build = install_kernel("acme/relu", version=1)
    assert (len(slow.requests), slow.depth()) == (3 + 5, 3), slow.asked()
    assert (build / "table.bin").read_bytes() == CONTENT
    assert not list(isolated_env.glob("**/*.incomplete"))


def test_native_code_is_a_redirect_and_so_one_round_trip_further_away(slow: TestHub) -> None:
    slow.make_repo("acme/relu", variants={"torch-cpu": LARGE})
    build = install_kernel("acme/relu", version=1)
    assert (len(slow.requests), slow.depth()) == (3 + 5 + 1, 4), slow.asked()
    assert slow.count("/lfs/") == 1
    assert (build / "_relu.so").read_bytes() == CONTENT


def test_a_large_file_of_another_host_is_requested_without_the_token(
    slow: TestHub, isolated_env: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KERNELS_HUB_TOKEN", "token-of-a-test")
    slow.make_repo("acme/relu", variants={"torch-cpu": PLAIN})
    with TestHub(tmp_path / "cdn", latency=slow.latency) as cdn:
        cdn.make_repo("acme/relu", variants={"torch-cpu": PLAIN})
        path = f"/kernels/acme/relu/resolve/{cdn.commit('acme/relu')}/build/torch-cpu/table.bin"
        slow.fail(r"table\.bin", status=302, headers={"Location": f"{cdn.url}{path}?signature=0"})
        build = install_kernel("acme/relu", version=1)
        assert len(slow.requests) == 3 + 5, slow.asked()
        assert slow.count(r"table\.bin") == cdn.count() == 1
        assert all(each.headers["authorization"] == "Bearer token-of-a-test" for each in slow.requests)
        assert "authorization" not in cdn.requests[0].headers
        slow.requests += cdn.requests
        assert slow.depth() == 4, slow.asked()
    assert (build / "table.bin").read_bytes() == CONTENT


def test_metadata_is_requested_before_the_files(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    class Noted(wire.Sending):
        def __init__(self, url: str, *others: Any, **options: Any) -> None:
            sent.append(url)
            super().__init__(url, *others, **options)

    monkeypatch.setattr(wire, "Sending", Noted)
    parts = {f"part{number}.py": str(number) for number in range(60)}
    hub.make_repo("acme/relu", variants={"torch-cpu": {**parts, **LARGE}})
    install_kernel("acme/relu", version=1)
    names = [url.rpartition("/")[2] for url in sent if "/resolve/" in url]
    assert "metadata.json" in names[:8]  # its thread was the first to begin
    assert len(names) == len(set(names)) == 64  # `one.py` is as `part1.py`


# Wrong guesses


def test_a_build_that_does_not_suit_leaves_nothing(hub: TestHub, isolated_env: Path) -> None:
    commit = for_other_devices(hub)
    assert install_kernel("acme/relu", version=1, target=HOPPER).name == "torch-cuda"
    assert on_disk(isolated_env, STABLE[0]) == ["metadata.json"]
    assert on_disk(isolated_env, "torch-cuda") == ["__init__.py", "layers.py", "metadata.json"]
    assert hub.count(r"/resolve/") <= 6, hub.asked()
    assert is_free(isolated_env, "acme/relu", commit, STABLE[0])
    blobs = [path.read_bytes() for path in isolated_env.glob("kernels--acme--relu/blobs/*")]
    assert len(blobs) == 4  # the metadata of two builds, and the other files of one


@pytest.mark.parametrize("status", [404, 403, 429, 500])
def test_files_of_a_build_that_does_not_suit_may_be_missing(hub: TestHub, status: int) -> None:
    for_other_devices(hub)
    hub.fail(f"{STABLE[0]}/.*py", status=status)
    assert install_kernel("acme/relu", version=1, target=HOPPER).name == "torch-cuda"


def test_wrong_files_of_a_build_that_does_not_suit_are_not_used(hub: TestHub) -> None:
    for_other_devices(hub)
    hub.corrupt(f"{STABLE[0]}/.*py")
    assert install_kernel("acme/relu", version=1, target=HOPPER).name == "torch-cuda"


def test_a_wrong_guess_costs_a_limited_number_of_requests(hub: TestHub) -> None:
    files = {f"part{number}.py": b"value = %d" % number for number in range(300)}
    for_other_devices(hub, STABLE, files)
    assert install_kernel("acme/relu", version=1, target=HOPPER).name == "torch-cuda"
    assert hub.count("/part") <= 2 * MAX_FILES


def test_a_wrong_guess_costs_few_bytes_of_large_files(hub: TestHub, isolated_env: Path) -> None:
    files = {f"large{number}.so": bytes([number]) * (9 * 2**20) for number in range(MAX_LARGE + 2)}
    commit = for_other_devices(hub, STABLE[:1], files)
    sent = hub.measure(r"large\d")
    requested = threading.Event()

    def wait() -> None:
        while not hub.count(r"large\d"):
            time.sleep(0.01)
        requested.set()

    hub.hold(f"{STABLE[0]}/metadata", requested)
    threading.Thread(target=wait, daemon=True).start()
    assert install_kernel("acme/relu", version=1, target=HOPPER).name == "torch-cuda"
    assert 0 < hub.count(r"large\d") <= MAX_LARGE, hub.asked()
    assert on_disk(isolated_env, STABLE[0]) == ["metadata.json"]
    assert is_free(isolated_env, "acme/relu", commit, STABLE[0])
    assert sum(path.stat().st_size for path in isolated_env.glob("kernels--acme--relu/blobs/*")) < 2**16
    # Most of it is what the server's sockets hold.
    assert sum(sent) <= MAX_LARGE * 4 * 2**20


@pytest.mark.parametrize(("size", "refused"), [(0, HubUnavailable), (1, HubUnavailable), (10**15, StoreError)])
def test_a_listing_with_wrong_sizes_is_refused(
    hub: TestHub, isolated_env: Path, quick_retries: None, size: int, refused: type[Exception]
) -> None:
    hub.make_repo("acme/relu")

    def other_sizes(body: bytes) -> bytes:
        entries = json.loads(body)
        return json.dumps(
            [{**each, "size": size if "layers" in each["path"] else each["size"]} for each in entries]
        ).encode()

    hub.replace("/tree/", other_sizes)
    with pytest.raises(refused):  # the disk has no room for a petabyte
        install_kernel("acme/relu", version=1)
    assert "layers.py" not in on_disk(isolated_env, "torch-cpu")


# The build that is used


def test_a_file_that_is_missing_is_the_error_of_a_download(hub: TestHub, isolated_env: Path) -> None:
    hub.make_repo("acme/relu")
    commit = hub.commit("acme/relu")
    hub.fail("layers.py", status=404, headers={"X-Error-Code": "EntryNotFound"})
    with pytest.raises(HubUnavailable, match=r"layers\.py is listed but not available"):
        get_kernel("acme/relu", version=1)
    assert hub.count("layers.py") == 1
    assert is_free(isolated_env, "acme/relu", commit, "torch-cpu")
    hub.heal()
    assert get_kernel("acme/relu", version=1).double(2) == 4


def test_a_part_of_a_build_that_is_here_is_not_requested(hub: TestHub, isolated_env: Path) -> None:
    hub.make_repo("acme/relu")
    folder = install_kernel("acme/relu", version=1)
    for name in ("metadata.json", "layers.py"):
        path = folder / name
        path.resolve().unlink()
        path.unlink()
    hub.clear()
    assert install_kernel("acme/relu", version=1) == folder
    assert sorted(Path(each.path).name for each in hub.requests) == ["layers.py", "metadata.json"]


def test_contents_of_several_files_are_requested_once(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": {f"empty{number}.py": "" for number in range(9)}})
    folder = install_kernel("acme/relu", version=1)
    assert len(list(folder.glob("empty*.py"))) == 9
    assert hub.count("empty") == 1


def test_a_plan_that_fails_leaves_nothing(hub: TestHub, isolated_env: Path) -> None:
    hub.make_repo("mallory/base")
    hub.make_repo("acme/top", depends=[("mallory/base", 1)])
    with pytest.raises(UntrustedPublisher, match="mallory/base"):
        install_kernel("acme/top", version=1)
    assert hub.count("mallory/base/resolve") == 0
    assert on_disk(isolated_env, "torch-cpu") == ["metadata.json"]
    assert len(list(isolated_env.glob("kernels--acme--top/blobs/*"))) == 1
    assert is_free(isolated_env, "acme/top", hub.commit("acme/top"), "torch-cpu")


def test_what_waits_too_long_for_dependencies_is_requested_again(
    hub: TestHub, isolated_env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noted(download.Gate):
        def close(self) -> None:
            super().close()
            dropped.set()

    dropped = threading.Event()
    monkeypatch.setattr(download, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(ahead, "Gate", Noted)
    hub.make_repo("acme/base")
    hub.make_repo("acme/top", depends=[("acme/base", 1)])
    hub.hold("base/refs", dropped)
    assert sorted(path.name for path in install_kernel("acme/top", version=1).iterdir())[0] == "__init__.py"
    assert hub.count("top/resolve/.*/__init__.py") == 2


@pytest.mark.parametrize("fault", ["fail", "disconnect", "truncate", "corrupt", "shorten"])
@pytest.mark.parametrize("pattern", ["/resolve/.*large", "/lfs/"])
def test_a_large_file_that_fails_once_is_requested_again(
    hub: TestHub, quick_retries: None, fault: str, pattern: str
) -> None:
    name = "large.so" if "lfs" in pattern else "large.bin"
    hub.make_repo("acme/relu", variants={"torch-cpu": {name: CONTENT}})
    getattr(hub, fault)(pattern, times=1)
    assert (install_kernel("acme/relu", version=1) / name).read_bytes() == CONTENT
    assert hub.count(pattern) == 2, hub.asked()


def test_a_large_file_that_is_missing_is_the_error_of_a_download(hub: TestHub, isolated_env: Path) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": LARGE})
    hub.fail(r"_relu\.so", status=404, headers={"X-Error-Code": "EntryNotFound"})
    with pytest.raises(HubUnavailable, match=r"_relu\.so is listed but not available"):
        install_kernel("acme/relu", version=1)
    assert hub.count(r"_relu\.so") == 1
    assert is_free(isolated_env, "acme/relu", hub.commit("acme/relu"), "torch-cpu")


def test_a_large_file_of_which_a_part_is_here_is_continued(hub: TestHub, isolated_env: Path) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": LARGE})
    blobs = isolated_env / "kernels--acme--relu" / "blobs"
    blobs.mkdir(parents=True)
    part = blobs / f"{hashlib.sha256(CONTENT).hexdigest()}.0123abcd.left.incomplete"
    part.write_bytes(CONTENT[: 2**21])
    assert (install_kernel("acme/relu", version=1) / "_relu.so").read_bytes() == CONTENT
    requested = [each.headers.get("range") for each in hub.requests if each.path.endswith("_relu.so")]
    assert requested == [f"bytes={2**21}-"] * 2  # the redirect, and where it leads


# Where nothing is downloaded


def test_questions_about_a_kernel_request_none_of_its_files(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    assert has_kernel("acme/relu", version=1)
    assert len(get_kernel_variants("acme/relu", version=1)) == 1
    assert hub.count("/resolve/") == hub.count("metadata.json") == 1


def test_files_of_a_repository_that_is_not_trusted_are_not_requested(hub: TestHub) -> None:
    hub.make_repo("mallory/relu")
    hub.delay("overview", 0.5)  # the repository is known before its publisher
    with pytest.raises(UntrustedPublisher):
        get_kernel("mallory/relu", version=1)
    assert hub.count("/resolve/") == 0
