"""The Hub that the other tests use misbehaves exactly as it is told to."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path

import pytest
from hub import TestHub, kernel_files, variant_backend

from kernels.models.metadata import Metadata

REPO = "acme/relu"
INFO = f"/api/kernels/{REPO}"
FILE = f"/kernels/{REPO}/resolve/v1/build/torch-cpu/layers.py"


@pytest.fixture
def served(hub: TestHub) -> TestHub:
    hub.make_repo(REPO)
    return hub


def get(hub: TestHub, path: str = INFO, *, timeout: float = 30.0, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(hub.host, timeout=timeout)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_failure_lasts_as_often_as_ordered_and_carries_its_headers(served: TestHub) -> None:
    served.fail("/api/", times=2, status=429, headers={"Retry-After": "0"})
    assert [get(served)[0] for _ in range(3)] == [429, 429, 200]
    assert [asked.status for asked in served.requests] == [429, 429, 200]


def test_a_fault_strikes_only_what_it_names(served: TestHub) -> None:
    served.fail("/resolve/", method="HEAD")
    served.fail("/refs", after=1, times=1)
    assert [get(served)[0], get(served, FILE)[0], get(served, FILE, method="HEAD")[0]] == [200, 200, 503]
    assert [get(served, INFO + "/refs")[0] for _ in range(3)] == [200, 503, 200]
    served.heal()
    assert get(served, FILE, method="HEAD")[0] == 200


def test_a_truncated_answer_ends_before_its_length(served: TestHub) -> None:
    served.truncate("/resolve/", keep=7, times=1)
    with pytest.raises(http.client.IncompleteRead) as error:
        get(served, FILE)
    assert len(error.value.partial) == 7
    assert len(get(served, FILE)[1]) > 7


def test_a_shortened_or_corrupted_answer_looks_flawless(served: TestHub) -> None:
    content = get(served, FILE)[1]
    served.shorten("/resolve/", keep=7, times=1)
    assert get(served, FILE) == (200, content[:7])
    served.corrupt("/resolve/", times=1)
    corrupt = get(served, FILE)[1]
    assert corrupt != content
    assert len(corrupt) == len(content)
    assert get(served, FILE)[1] == content


def test_a_dropped_connection_has_no_answer(served: TestHub) -> None:
    served.disconnect("/refs", times=1)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        get(served, INFO + "/refs")
    assert get(served, INFO + "/refs")[0] == 200
    assert [asked.status for asked in served.requests] == [0, 200]


def test_a_hanging_request_never_ends_and_does_not_keep_the_hub_up(served: TestHub) -> None:
    served.hang("/refs")
    with pytest.raises(TimeoutError):
        get(served, INFO + "/refs", timeout=0.2)
    assert get(served)[0] == 200


def test_a_delayed_answer_comes_whole(served: TestHub) -> None:
    served.delay("/refs", 0.05, times=1)
    assert get(served, INFO + "/refs")[0] == 200
    (asked,) = served.requests
    assert asked.end - asked.start >= 0.05


def test_down_refuses_and_up_answers_at_the_same_address(served: TestHub) -> None:
    url = served.url
    served.down()
    with pytest.raises(ConnectionRefusedError):
        get(served)
    served.up()
    assert served.url == url
    assert get(served)[0] == 200


def test_nobody_is_given_the_port_of_a_hub_that_is_down(served: TestHub) -> None:
    served.down()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", int(served.host.partition(":")[2])))


def test_requests_are_counted_and_their_longest_chain_found(served: TestHub) -> None:
    for _ in range(3):
        get(served)
    get(served, FILE, method="HEAD")
    assert served.asked() == [f"GET {INFO}"] * 3 + [f"HEAD {FILE}"]
    assert (served.count(), served.count("/resolve/"), served.count(method="GET")) == (4, 1, 3)
    assert served.depth() == 4
    for asked in served.requests:
        asked.start, asked.end = 0.0, 1.0
    assert served.depth() == 1
    served.clear()
    assert served.count() == 0


def test_a_gated_repository_says_so(served: TestHub) -> None:
    served.gate(REPO)
    assert get(served, FILE)[0] == 401
    assert get(served)[0] == 200


def test_a_virtual_branch_stands_beside_those_on_disk(served: TestHub) -> None:
    served.list_files(
        REPO, {"build/torch-cpu/../../../x": b"hostile", "build/torch-cpu/metadata.json": b"{"}, branch="v2"
    )
    assert set(served.catalog.branches(REPO)) == {"v1", "v2"}
    assert get(served, f"/kernels/{REPO}/resolve/v2/build/torch-cpu/metadata.json") == (200, b"{")
    assert b'"build/torch-cpu/../../../x"' in get(served, f"{INFO}/tree/v2?recursive=true")[1]
    assert served.catalog.commit(REPO, "v1").files


@pytest.mark.parametrize(
    ("variant", "backend"),
    [
        ("torch-cpu", "cpu"),
        ("torch-cuda", "cuda"),
        ("torch-npu", "cann"),
        ("torch213-cxx11-cu130-x86_64-linux", "cuda"),
        ("torch212-metal-aarch64-darwin", "metal"),
        ("torch-stable-abi29-rocm70-x86_64-linux", "rocm"),
        ("tvm-ffi01-xpu20253-x86_64-linux", "xpu"),
    ],
)
def test_a_written_build_has_valid_metadata(variant: str, backend: str) -> None:
    files = kernel_files(REPO, variant, digest=True, depends=[("acme/other", 2)], python_depends=["einops"])
    metadata = Metadata.from_bytes(files["metadata.json"])
    assert variant_backend(variant) == metadata.backend.type == backend
    assert metadata.digest is not None
    assert set(metadata.digest.files) == set(files) - {"metadata.json"}
    assert [str(depend) for depend in metadata.kernel_depends] == ["acme/other version 2"]


def test_a_written_repository_is_a_redirect_when_told(hub: TestHub, tmp_path: Path) -> None:
    folder = hub.make_repo("acme/old", version=3, variants=[], redirect="acme/relu")
    assert (folder / "kernel-status.toml").read_text() == 'kind = "redirect"\ndestination = "acme/relu"\n'
    assert [path.name for path in folder.iterdir()] == ["kernel-status.toml"]
