"""A Hub chooses no file name and no size: what it says of a file in its headers is compared, and never a path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub import TestHub

from kernels import get_kernel, install_kernel
from kernels.errors import HubUnavailable, InvalidRepository, KernelsError
from kernels.sources import download

LARGE = b"L" * 5000
PAYLOAD = b"import os; os.abort()\n"

#: Values of a header that huggingface_hub takes for a file's name below `blobs/`, `refs/` or `.no_exist/`.
PATHS = [
    "../../../../evil",
    "../../evil.pth",
    "/{outside}/evil",
    "../" * 20 + "tmp/evil",
    "..\\..\\evil",
    "evil/../../../evil",
    "0" * 64,
    "0" * 40,
    "x" * 5000,
    "C:\\evil",
    "evil%2f..%2fevil",
    "%2e%2e%2fevil",
    ".",
    "..",
]


@pytest.fixture
def served(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> TestHub:
    """A kernel with a file that is large here."""
    monkeypatch.setattr(download, "IN_MEMORY", 1000)
    hub.make_repo("acme/relu", variants={"torch-cpu": {"data.bin": LARGE}})
    return hub


def files_of(tmp_path: Path) -> dict[str, bytes]:
    """Every file below the test's folder that is not the Hub's own."""
    return {
        path.relative_to(tmp_path).as_posix(): path.read_bytes()
        for path in sorted(tmp_path.rglob("*"))
        if path.is_file() and "hub" not in path.relative_to(tmp_path).parts[0]
    }


def names_in(cache: Path) -> set[str]:
    """What the contents of a cache are called."""
    return {path.name for path in cache.glob("*/blobs/*")}


@pytest.mark.parametrize("header", ["ETag", "X-Linked-ETag", "X-Repo-Commit", "X-Linked-Size", "Content-Disposition"])
def test_no_header_of_a_file_becomes_a_path(served: TestHub, isolated_env: Path, tmp_path: Path, header: str) -> None:
    commit = served.commit()
    before = {path for path in tmp_path.rglob("*") if "hub" in path.parts}
    for value in PATHS:
        served.heal()
        served.add_headers("data.bin", {header: value.format(outside=tmp_path), "Connection": "close"})
        if header == "Content-Disposition":  # which says nothing that is looked at
            assert (install_kernel("acme/relu", revision=commit) / "data.bin").read_bytes() == LARGE
            continue
        with pytest.raises(HubUnavailable, match="another file"):
            install_kernel("acme/relu", revision=commit)
        assert not [path for path in tmp_path.rglob("*evil*") if path not in before]
        assert all(set(name.split(".")[0]) <= set("0123456789abcdef") for name in names_in(isolated_env))
    served.heal()
    assert (install_kernel("acme/relu", revision=commit) / "data.bin").read_bytes() == LARGE


def test_a_missing_file_with_a_commit_that_is_a_path_creates_nothing(
    served: TestHub, isolated_env: Path, tmp_path: Path
) -> None:
    for code in ("EntryNotFound", "RevisionNotFound", "RepoNotFound", "GatedRepo", ""):
        served.heal()
        headers = {"X-Repo-Commit": "../../../evil", "X-Error-Code": code, "ETag": '"../../evil"'}
        served.fail("data.bin", status=404, headers=headers)
        with pytest.raises(HubUnavailable, match=r"data\.bin"):
            install_kernel("acme/relu", version=1)
    assert not list(tmp_path.rglob("*evil*"))
    assert not list(isolated_env.rglob(".no_exist"))


@pytest.mark.parametrize("of", ["a trusted publisher", "another publisher"])
def test_verifying_an_untrusted_repository_creates_no_file_of_the_hubs_choice(
    served: TestHub, tmp_path: Path, of: str
) -> None:
    repo_id = "acme/relu" if of.startswith("a trusted") else "mallory/relu"
    served.make_repo(repo_id, variants={"torch-cpu": {"data.bin": LARGE}})
    served.add_headers("data.bin", {"ETag": '"../../../../evil.pth"', "X-Linked-ETag": '"../../../../evil.pth"'})
    code = (
        "import sys\nfrom kernels.sources import download\ndownload.IN_MEMORY = 1000\n"
        "from kernels.cli import main\nsys.argv = ['kernels', 'verify', sys.argv[1], '--version', '1']\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, repo_id], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "another file" in done.stderr
    assert not list(tmp_path.rglob("*evil*"))


def test_a_file_of_a_wrong_etag_is_refused_before_its_content_is_read(served: TestHub) -> None:
    served.add_headers("data.bin", {"ETag": f'"{"1" * 40}"'})
    with pytest.raises(HubUnavailable, match=r"ETag is '1{40}', expected [0-9a-f]{40}"):
        install_kernel("acme/relu", version=1)
    assert served.count("data.bin") == 1


@pytest.mark.parametrize("etag", ['W/"{oid}"', '"{oid}"', "{oid}"])
def test_an_etag_that_is_the_listed_hash_is_accepted_in_each_of_its_forms(served: TestHub, etag: str) -> None:
    oid = next(file.oid for file in served.catalog.commit("acme/relu").files.values() if "data.bin" in file.path)
    served.add_headers("data.bin", {"ETag": etag.format(oid=oid)})
    assert (install_kernel("acme/relu", version=1) / "data.bin").read_bytes() == LARGE


@pytest.mark.parametrize(
    "hash_", ["../../evil", "0" * 63, "g" * 64, "0" * 64 + "/../evil", "\n" * 64, "０" * 64], ids=range(6)
)
@pytest.mark.parametrize("field", ["oid", "lfs", "xetHash"])
def test_a_listed_hash_that_is_no_hash_is_refused(served: TestHub, tmp_path: Path, field: str, hash_: str) -> None:
    def lie(body: bytes) -> bytes:
        entries = json.loads(body)
        for entry in entries:
            if entry["path"].endswith("data.bin"):
                entry.update({"lfs": {"oid": hash_, "size": entry["size"]}} if field == "lfs" else {field: hash_})
        return json.dumps(entries).encode()

    served.replace("/tree/", lie)
    with pytest.raises(InvalidRepository, match="object id"):
        get_kernel("acme/relu", version=1)
    assert served.count("/resolve/") == 0


def test_what_is_written_is_bounded_by_the_listed_size_while_it_is_written(served: TestHub, isolated_env: Path) -> None:
    # A file listed with 5,000 bytes of which the Hub sends without end: a process that may write files of 1 MB at most
    # would die of it (SIGXFSZ) or run into an error of the disk.
    served.stream("data.bin", b"x" * 65536, most=400_000_000)
    code = """
import resource, signal
from kernels.sources import download, http
download.IN_MEMORY = 1000
http.pause = lambda seconds: None
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
from kernels import install_kernel
from kernels.errors import HubUnavailable
try:
    install_kernel("acme/relu", version=1)
except HubUnavailable as error:
    print("refused", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("refused"), done.stderr
    assert "more than the 5000 bytes listed" in done.stdout
    assert sum(path.stat().st_size for path in isolated_env.rglob("*.incomplete")) <= len(LARGE)


def test_an_announced_length_is_not_believed(served: TestHub) -> None:
    body = LARGE + b"more" * 1000
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    served.send_raw("data.bin", head + body)
    with pytest.raises(HubUnavailable, match="more than the 5000 bytes listed"):
        install_kernel("acme/relu", version=1)


@pytest.mark.parametrize(
    "head",
    [
        "206 Partial Content\r\nContent-Range: bytes 0-4999/5000",
        "206 Partial Content\r\nContent-Range: bytes 4000-4999/5000",
        "206 Partial Content\r\nContent-Range: bytes 99999999999999999999-1/2",
        "206 Partial Content",
        "416 Range Not Satisfiable",
        "200 OK",
    ],
)
def test_a_part_that_was_not_asked_for_is_never_put_together_with_another(
    served: TestHub, isolated_env: Path, head: str
) -> None:
    served.truncate("data.bin", keep=2000, times=1)
    served.send_raw("data.bin", f"HTTP/1.1 {head}\r\nConnection: close\r\n\r\n".encode() + PAYLOAD, times=1)
    try:
        folder = install_kernel("acme/relu", version=1)
    except KernelsError:
        served.heal()
        folder = install_kernel("acme/relu", version=1)
    assert (folder / "data.bin").read_bytes() == LARGE


def test_what_another_wrote_under_a_parts_name_is_never_kept(served: TestHub, isolated_env: Path) -> None:
    oid = next(file.oid for file in served.catalog.commit("acme/relu").files.values() if "data.bin" in file.path)
    blobs = isolated_env / "kernels--acme--relu" / "blobs"
    blobs.mkdir(parents=True)
    os.mkfifo(blobs / f"{oid}.00000000.left.incomplete")
    (blobs / f"{oid}.11111111.left.incomplete").write_bytes(PAYLOAD)
    (blobs / f"{oid}.22222222.left.incomplete").symlink_to("/etc/passwd")
    (blobs / f"{oid}.33333333.left.incomplete").write_bytes(b"x" * (len(LARGE) + 1))
    assert (install_kernel("acme/relu", version=1) / "data.bin").read_bytes() == LARGE
