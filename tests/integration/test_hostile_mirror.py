"""Mirrors that lie: each is an error that names the mirror, and nothing of it is kept or run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hub import TestHub
from mirror_tree import MirrorTree, StaticServer

from kernels import get_kernel, settings
from kernels.errors import InvalidRepository, KernelsError, StoreError, UntrustedSignature
from kernels.mirror import archive
from kernels.mirror.signing import MirrorSigner
from kernels.models.mirror import RepositoryIndex, commit_path, index_path
from kernels.models.mirror_document import MIRROR_FORMAT, MirrorDocument

pytestmark = pytest.mark.skipif(
    find_spec("zstandard") is None or find_spec("cryptography") is None, reason="the extra `mirror` is not installed"
)

INDEX = index_path("acme/relu")
FUTURE = "2999-01-02T03:04:05Z"


@pytest.fixture
def tree(tmp_path: Path) -> MirrorTree:
    """A mirror of acme/relu, with an older commit, and acme/gelu."""
    tree = MirrorTree(tmp_path / "mirror")
    tree.add("acme/relu", version=1, seed=1)
    tree.add("acme/relu", version=1, seed=2)
    tree.add("acme/gelu", version=1)
    return tree


@pytest.fixture
def server(tree: MirrorTree, isolated_env: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StaticServer]:
    """A plain web server over the mirror, that `KERNELS_HUB` names."""
    with StaticServer(tree.root) as running:
        monkeypatch.setenv("KERNELS_HUB", running.url)
        yield running


@pytest.fixture
def signer(tree: MirrorTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MirrorSigner:
    """A key that has signed every document of the mirror, and must have."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    path = tmp_path / "key.pem"
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    signer = MirrorSigner(path)
    monkeypatch.setenv("KERNELS_MIRROR_KEYS", signer.name)
    sign_all(tree, signer)
    return signer


def sign_all(tree: MirrorTree, signer: MirrorSigner) -> None:
    for path in [tree.root / "mirror.json", *(tree.root / "api").rglob("*")]:
        if path.is_file():
            path.write_bytes(signer.sign(MirrorDocument.parse(path.read_bytes(), "")).to_bytes())


def kept() -> list[Path]:
    """The files of kernels in the cache, but metadata that was read to choose a build: it is in the index."""
    files = (path for path in settings.cache_dir().rglob("*") if path.is_file() and "snapshots" in path.parts)
    return [path for path in files if path.name != "metadata.json"]


def refused(server: StaticServer, says: str, error: type[Exception] = InvalidRepository, **request: Any) -> None:
    with pytest.raises(error, match=says) as caught:
        get_kernel("acme/relu", **(request or {"version": 1}))
    assert isinstance(caught.value, KernelsError)
    assert server.url in str(caught.value)
    assert kept() == []


def put(tree: MirrorTree, path: str, document: MirrorDocument) -> None:
    (tree.root / path).write_bytes(document.to_bytes())


def document(tree: MirrorTree, path: str) -> MirrorDocument:
    return MirrorDocument.parse((tree.root / path).read_bytes(), "")


# What a key has signed


def test_a_signed_mirror_is_read(server: StaticServer, tree: MirrorTree, signer: MirrorSigner) -> None:
    assert get_kernel("acme/relu", version=1).__file__
    assert get_kernel("acme/relu", revision=tree.indexes["acme/relu"].older[0]).__file__


def test_an_index_without_the_signature_is_refused(
    server: StaticServer, tree: MirrorTree, signer: MirrorSigner
) -> None:
    signed = document(tree, INDEX)
    put(tree, INDEX, MirrorDocument(signed.content))
    refused(server, f"{INDEX} is refused: it has no signature", UntrustedSignature)
    put(tree, INDEX, MirrorDocument(signed.content.replace(b"true", b"null"), signed.signatures))
    refused(server, "the content was changed", UntrustedSignature)
    put(tree, INDEX, MirrorDocument(signed.content.replace(b"true", b"[[[["), signed.signatures))
    refused(server, "not a valid document|the content was changed", KernelsError)


def test_a_signed_document_in_another_place_is_refused(
    server: StaticServer, tree: MirrorTree, signer: MirrorSigner
) -> None:
    relu = tree.indexes["acme/relu"]
    head, older = relu.branches["v1"], relu.older[0]
    own = document(tree, INDEX)
    put(tree, INDEX, document(tree, index_path("acme/gelu")))
    refused(server, "it is the index of 'acme/gelu', not of acme/relu")
    put(tree, INDEX, document(tree, commit_path("acme/relu", older)))
    refused(server, f"it is the document of commit {older}, not of the repository")
    put(tree, INDEX, document(tree, "mirror.json"))
    refused(server, "not a valid document of a mirror")
    put(tree, INDEX, own)
    for wrong, says in (
        (commit_path("acme/relu", head), f"it is the document of commit {head}, not of commit {older}"),
        (INDEX, f"it is the document of the repository, not of commit {older}"),
        (index_path("acme/gelu"), "it is the index of 'acme/gelu', not of acme/relu"),
    ):
        put(tree, commit_path("acme/relu", older), document(tree, wrong))
        refused(server, says, revision=older)


def test_an_older_index_is_refused(
    server: StaticServer, tree: MirrorTree, signer: MirrorSigner, new_process: Callable[[], None]
) -> None:
    before = document(tree, INDEX)
    tree.add("acme/relu", version=1, seed=3, trusted=False)  # the publisher is not trusted any more
    sign_all(tree, signer)
    after = document(tree, INDEX)
    with pytest.raises(ValueError, match="trusted"):
        get_kernel("acme/relu", version=1)
    new_process()
    put(tree, INDEX, before)
    refused(server, f"{INDEX} is refused: number 2 of .* is older than number 3 of ")
    new_process()
    put(tree, INDEX, after)
    with pytest.raises(ValueError, match="trusted"):
        get_kernel("acme/relu", version=1)


def test_an_older_document_of_a_commit_is_refused(
    server: StaticServer, tree: MirrorTree, signer: MirrorSigner, new_process: Callable[[], None]
) -> None:
    older = tree.indexes["acme/relu"].older[0]
    path = commit_path("acme/relu", older)
    before = document(tree, path)
    index = before.repository("acme/relu", "", older)
    newer = msgspec.structs.replace(index, number=7, publisher=msgspec.structs.replace(index.publisher, trusted=False))
    put(tree, path, signer.sign(MirrorDocument.of(newer)))
    with pytest.raises(ValueError, match="trusted"):
        get_kernel("acme/relu", revision=older)
    new_process()
    put(tree, path, before)
    refused(server, "number 1 of .* is older than number 7", revision=older)


def test_a_hub_in_the_place_of_a_signed_mirror_is_refused(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, signer: MirrorSigner
) -> None:
    hub.make_repo("acme/relu")
    with pytest.raises(UntrustedSignature, match="KERNELS_MIRROR_KEYS requires a signed mirror") as caught:
        get_kernel("acme/relu", version=1)
    assert hub.url in str(caught.value)
    assert kept() == []


def test_a_folder_of_repositories_in_the_place_of_a_signed_mirror_is_refused(
    tree: MirrorTree, isolated_env: Path, signer: MirrorSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_HUB", str(tree.root))
    assert get_kernel("acme/gelu", version=1).__file__
    build = tree.root / "acme" / "relu" / "v1" / "build" / "torch-universal"
    build.mkdir(parents=True)
    (build / "__init__.py").write_text("raise SystemExit('it ran')\n")
    (tree.root / "mirror.json").unlink()
    with pytest.raises(UntrustedSignature, match=r"it has no mirror\.json, and KERNELS_MIRROR_KEYS requires") as caught:
        get_kernel("acme/relu", version=1)
    assert str(tree.root) in str(caught.value)


def test_what_was_read_before_a_signature_was_required_does_not_count(
    server: StaticServer,
    tree: MirrorTree,
    signer: MirrorSigner,
    new_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KERNELS_MIRROR_KEYS")
    monkeypatch.setenv("KERNELS_REFRESH", "1000")
    unsigned = MirrorDocument(document(tree, INDEX).content)
    put(tree, INDEX, unsigned)
    get_kernel("acme/relu", version=1)
    new_process()
    monkeypatch.setenv("KERNELS_MIRROR_KEYS", signer.name)
    with pytest.raises(UntrustedSignature, match="it has no signature"):
        get_kernel("acme/relu", version=1)
    new_process()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(KernelsError):
        get_kernel("acme/relu", version=1)


# What no signature is needed for


Change = Callable[[MirrorTree, dict[str, Any]], None]


def other_archive(tree: MirrorTree, index: dict[str, Any]) -> None:
    """The archive of another repository, with its right name, size and hash."""
    other = next(iter(tree.indexes["acme/gelu"].builds.values())).archive
    for build in index["builds"].values():
        build["archive"] = msgspec.to_builtins(other)


def of_all(key: str, value: object) -> Change:
    def change(tree: MirrorTree, index: dict[str, Any]) -> None:
        for build in index["builds"].values():
            build["archive"][key] = value

    return change


def of(key: str, value: object) -> Change:
    def change(tree: MirrorTree, index: dict[str, Any]) -> None:
        index[key] = value

    return change


def listed(**values: object) -> Change:
    def change(tree: MirrorTree, index: dict[str, Any]) -> None:
        for build in index["builds"].values():
            build["files"][0].update(values)

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other_archive, "found something else"),
        (of_all("size", 2**60), r"at `\$\.builds\[...\]\.archive\.size`"),
        (of_all("size", 2**40), "more than an archive of its files can have"),
        (of_all("size", -1), r"at `\$\.builds\[...\]\.archive\.size`"),
        (of_all("name", "../../etc/passwd"), "not the name of an archive"),
        (of_all("name", "archives/00/" + "0" * 64 + ".tar.zst"), "not the name of an archive"),
        (of_all("sha256", "0" * 64), "not the name of an archive"),
        (of("number", 0), r"`int` >= 1 - at `\$\.number`"),
        (of("number", 10**400), "not a valid document"),
        (of("time", FUTURE), f"it has the time {FUTURE}, which is in the future"),
        (of("time", "9999-99-99T99:99:99Z"), "is not a time"),
        (of("origin", {"url": "https://hub.example", "time": FUTURE}), "which is in the future"),
        (of("repo-id", "acme/re\u2113u"), "not of acme/relu"),
        (of("repo-id", "acme/\u212aelu"), "not of acme/relu"),
        (of("repo-id", "acme/relu\u200b"), "not of acme/relu"),
        (of("moved-to", "../../x"), "expected 'org/name'"),
        (of("branches", {"v1": "../../x"}), r"at `\$\.branches"),
        (of("commits", [[]] * 3), "not a valid document"),
        (listed(path="../../../escape.py"), "could leave its folder"),
        (listed(path="/etc/passwd"), "could leave its folder"),
        (listed(path="a\u202eyp.py"), "invisible characters"),
        (listed(size=2**63), "not a valid document|with the size"),
        (listed(oid=""), "without a hash"),
    ],
)
def test_an_index_that_lies_is_refused(server: StaticServer, tree: MirrorTree, change: Change, says: str) -> None:
    index = msgspec.json.decode(document(tree, INDEX).content)
    change(tree, index)
    put(tree, INDEX, MirrorDocument(_json(index)))
    before = sorted(tree.root.parent.rglob("*.py"))
    refused(server, says, KernelsError)
    assert sorted(tree.root.parent.rglob("*.py")) == before
    assert not os.path.exists("/tmp/escape.py")


def _json(value: object) -> bytes:
    import json

    return json.dumps(value, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"mirror-format":2,"content":{},"signatures":[]}', "expected the format 1, got 2; update kernels"),
        (b'{"mirror-format":%d,"content":' % MIRROR_FORMAT + b"[" * 100_000 + b"}", "not a valid document"),
        (
            b'{"mirror-format":1,"content":{},"signatures":' + b'[{"kind":"","value":""}' + b"," * 9 + b"]}",
            "not a valid",
        ),
        (
            b'{"mirror-format":1,"content":{},"signatures":[' + b",".join([b'{"kind":"","value":""}'] * 99) + b"]}",
            r"length <= 16 - at `\$\.signatures`",
        ),
    ],
)
def test_a_document_that_is_none_is_refused(server: StaticServer, tree: MirrorTree, content: bytes, says: str) -> None:
    (tree.root / INDEX).write_bytes(content)
    refused(server, says, KernelsError)


def test_an_archive_that_is_cut_or_changed_is_refused(server: StaticServer, tree: MirrorTree) -> None:
    index: RepositoryIndex = tree.indexes["acme/relu"]
    path = tree.root / next(iter(index.builds.values())).archive.name
    content = path.read_bytes()
    for wrong in (content[:-1], content[:20], b"", content[:-1] + b"\0", content + b"\0", b"\0" * len(content)):
        path.write_bytes(wrong)
        refused(server, str(path.name), KernelsError)
    path.write_bytes(content)
    assert get_kernel("acme/relu", version=1).__file__


def test_an_archive_of_zeros_is_refused_before_it_is_unpacked(
    server: StaticServer, tree: MirrorTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros = {"torch-cpu": {"zeros.bin": bytes(80 * 2**20)}}
    with pytest.raises(InvalidRepository, match="more than 1000 times smaller"):
        tree.add("acme/relu", version=1, variants=zeros)
    with monkeypatch.context() as careless:
        careless.setattr(archive, "_MAX_RATIO", 10**6)  # the writer of this mirror is another program
        tree.add("acme/relu", version=1, variants=zeros)
    refused(server, "more than 1000 times as many")
    assert not list(settings.cache_dir().rglob("*.incomplete"))
    # What is not large may become as small as it likes.
    tree.add("acme/small", version=1, variants={"torch-cpu": {"zeros.bin": bytes(2**20)}})
    assert get_kernel("acme/small", version=1).__file__


def test_files_for_which_the_disk_has_no_room_are_not_requested(server: StaticServer, tree: MirrorTree) -> None:
    tree.add("acme/relu", version=1, variants={"torch-cpu": {"a.bin": os.urandom(100_000)}})
    index = msgspec.json.decode(document(tree, INDEX).content)
    for build in index["builds"].values():
        for file in build["files"]:
            file["size"] = 2**46 if file["path"] == "a.bin" else file["size"]
    put(tree, INDEX, MirrorDocument(_json(index)))
    server.requests.clear()
    with pytest.raises(StoreError, match=r"No space left on device for files of 7036874.* KERNELS_CACHE"):
        get_kernel("acme/relu", version=1)
    assert [each for each in server.requests if "archives" in each.path] == []
