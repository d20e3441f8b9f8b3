"""Files in Xet come as a stream: real hf_xet, with a store in a folder; the Hub's plain HTTP serves where it fails."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub

from kernels import install_kernel
from kernels.errors import StoreError
from kernels.sources import download, xet

hf_xet = pytest.importorskip("hf_xet")

DATA = os.urandom(300_000)


@pytest.fixture
def store(hub: TestHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Have the Hub list `data.bin` in Xet, whose server is a folder that holds some content."""
    monkeypatch.setattr(download, "IN_MEMORY", 1000)
    monkeypatch.setattr(download, "DIRECT_BYTES", 1000)
    monkeypatch.setattr(xet, "_SCHEMES", frozenset({"https", "http", "local"}))
    hub.make_repo("acme/relu", variants={"torch-cpu": {"data.bin": DATA}})

    def put(content: bytes = DATA, **token: Any) -> None:
        file = tmp_path / "content"
        file.write_bytes(content)
        address = f"local://{tmp_path / 'cas'}"
        commit = hf_xet.XetSession().new_upload_commit(endpoint=address)
        commit.start_upload_file(str(file))
        [uploaded] = commit.wait_to_finish().uploads.values()

        def listed(body: bytes) -> bytes:
            entries = json.loads(body)
            for entry in entries:
                if entry["path"].endswith("data.bin"):
                    entry["xetHash"] = uploaded.xet_info.hash
            return json.dumps(entries).encode()

        hub.replace("/tree/", listed)
        answer = {"accessToken": "read-only", "exp": 2_000_000_000, "casUrl": address, **token}
        hub.fail("/xet-read-token/", status=200, body=json.dumps(answer).encode())

    return put


def installed() -> bytes:
    return (install_kernel("acme/relu", version=1) / "data.bin").read_bytes()


def test_a_large_file_in_xet_is_read_from_there(hub: TestHub, store: Callable[..., None]) -> None:
    store()
    assert installed() == DATA
    assert hub.count("/xet-read-token/") == 1
    assert hub.count("/resolve/.*data.bin") == 0


def test_what_is_here_of_a_file_is_not_read_again(
    hub: TestHub, store: Callable[..., None], isolated_env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store()
    starts = []
    real = xet.xet_stream
    monkeypatch.setattr(download, "xet_stream", lambda *args: [starts.append(args[-1]), real(*args)][1])
    sha = next(each for each in hub.catalog.commit("acme/relu").files.values() if "data.bin" in each.path)
    begun = isolated_env / "kernels--acme--relu" / "blobs" / f"{sha.oid}.01234567.left.incomplete"
    begun.parent.mkdir(parents=True)
    begun.write_bytes(DATA[:100_000])
    assert installed() == DATA
    assert starts == [100_000]


@pytest.mark.parametrize("content", [DATA[::-1], DATA[::-1] + b"more", DATA[:1000]], ids=["other", "more", "less"])
def test_what_xet_gives_is_held_against_the_listing(hub: TestHub, store: Callable[..., None], content: bytes) -> None:
    store(content)
    assert installed() == DATA
    assert hub.count("/resolve/.*data.bin") == 1


@pytest.mark.parametrize(
    "token",
    [
        {"casUrl": "file:///etc"},
        {"casUrl": "/etc"},
        {"casUrl": "https://127.0.0.1:1/"},
        {"casUrl": "https://[::"},
        {"casUrl": 3},
        {"exp": 10**30},
        {"accessToken": None},
    ],
    ids=str,
)
def test_a_xet_server_that_is_none_is_left_for_the_hub(
    hub: TestHub, store: Callable[..., None], token: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xet, "_SCHEMES", frozenset({"https", "http"}))
    monkeypatch.setattr(xet, "_STALLED_SECONDS", 0.5)
    store(**token)
    assert installed() == DATA
    assert hub.count("/resolve/.*data.bin") == 1


def test_without_an_address_of_xet_the_hub_gives_the_file(hub: TestHub, store: Callable[..., None]) -> None:
    store()
    hub.heal()
    hub.replace("/tree/", lambda body: body.replace(b'"oid"', b'"xetHash": "' + b"0" * 64 + b'", "oid"'))
    assert installed() == DATA


def test_a_full_disk_is_the_disks_fault(
    hub: TestHub, store: Callable[..., None], isolated_env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.cache.writing import Part

    store()

    def full(part: Part, chunk: bytes) -> bool:
        raise StoreError("no room")

    monkeypatch.setattr(Part, "append", full)
    with pytest.raises(StoreError, match="no room"):
        installed()
    assert hub.count("/resolve/.*data.bin") == 0
    assert not list(isolated_env.rglob("*.incomplete"))


def test_xet_is_left_out_where_huggingface_hub_leaves_it_out(
    hub: TestHub, store: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    store()
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    assert installed() == DATA
    assert hub.count("/xet-read-token/") == 0
