"""The index of a repository as every reader reads it: signed, of the repository, not older than before."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from mirror_tree import of_commit

from kernels.errors import InvalidRepository, UntrustedSignature
from kernels.mirror.read_index import read_mirror_index, read_repository_index, records_key
from kernels.mirror.signing import MirrorSigner
from kernels.models.mirror import (
    MirrorCommit,
    MirrorIndex,
    MirrorOrigin,
    MirrorPublisher,
    RepositoryIndex,
    format_time,
)
from kernels.models.mirror_document import MirrorDocument

pytestmark = pytest.mark.skipif(find_spec("cryptography") is None, reason="cryptography is not installed")

URL = "https://mirror.example"
WHERE = f"{URL}/api/kernels/org/relu/refs"
TIME = "2026-01-02T03:04:05Z"
HEAD, OLDER = "1" * 40, "2" * 40


def index(number: int = 1, repo_id: str = "org/relu", time: str = TIME) -> RepositoryIndex:
    return RepositoryIndex(
        repo_id=repo_id,
        number=number,
        time=time,
        origin=MirrorOrigin("https://hub.example", TIME),
        publisher=MirrorPublisher("org", True),
        branches={"v1": HEAD},
        commits={HEAD: MirrorCommit({}, TIME)},
        builds={},
    )


@pytest.fixture
def signer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MirrorSigner:
    """A key whose signature is required."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    path = tmp_path / "key.pem"
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    signer = MirrorSigner(path)
    monkeypatch.setenv("KERNELS_MIRROR_KEYS", signer.name)
    return signer


@pytest.fixture
def read(tmp_path: Path, signer: MirrorSigner) -> Callable[..., RepositoryIndex]:
    """Read an index that is signed with the key, as `org/relu`."""

    def read(index: RepositoryIndex, commit: str | None = None, url: str = URL) -> RepositoryIndex:
        data = signer.sign(MirrorDocument.of(index)).to_bytes()
        return read_repository_index(data, WHERE, "org/relu", commit, url=url, cache=tmp_path / "cache")

    return read


def test_an_older_index_is_refused(read: Callable[..., RepositoryIndex], tmp_path: Path) -> None:
    assert read(index(3)).number == 3
    assert read(index(3)).number == 3
    assert read(index(7, time="2026-02-02T03:04:05Z")).number == 7
    with pytest.raises(InvalidRepository) as caught:
        read(index(6))
    text = str(caught.value)
    assert f"{WHERE} is refused: number 6 of {TIME} is older than number 7 of 2026-02-02T03:04:05Z, which was" in text
    record = next((tmp_path / "cache/.locks/kernels-mirrors").rglob("*.json"))
    assert f"If the mirror was made anew, remove {record}" in text
    assert read(index(6), url="https://other.example").number == 6  # of another mirror
    record.unlink()
    assert read(index(6)).number == 6


def test_the_document_of_a_commit_has_an_age_of_its_own(read: Callable[..., RepositoryIndex]) -> None:
    # It is written again only when it changes, so its number stays behind the repository's.
    assert read(index(9)).number == 9
    assert read(of_commit(index(4), HEAD), HEAD).number == 4
    with pytest.raises(InvalidRepository, match=r"number 3 of .* is older than number 4"):
        read(of_commit(index(3), HEAD), HEAD)


def test_signed_documents_are_not_swapped(read: Callable[..., RepositoryIndex]) -> None:
    for document, commit, says in (
        (index(repo_id="org/other"), None, "it is the index of 'org/other', not of org/relu"),
        (of_commit(index(), HEAD), None, "not of the repository"),
        (index(), HEAD, f"it is the document of the repository, not of commit {HEAD}"),
        (of_commit(index(), HEAD), OLDER, f"not of commit {OLDER}"),
    ):
        with pytest.raises(InvalidRepository, match=says):
            read(document, commit)


def test_without_a_signature_nothing_is_parsed_and_nothing_remembered(
    signer: MirrorSigner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b'{"mirror-format":1,"content":{"not":"an index"},"signatures":[]}'
    with pytest.raises(UntrustedSignature, match="it has no signature"):
        read_repository_index(data, WHERE, "org/relu", url=URL, cache=tmp_path)
    with pytest.raises(UntrustedSignature, match="it has no signature"):
        read_mirror_index(data, f"{URL}/mirror.json")
    monkeypatch.delenv("KERNELS_MIRROR_KEYS")
    for number in (3, 2):  # without a required signature, a number proves nothing
        found = read_repository_index(
            MirrorDocument.of(index(number)).to_bytes(), WHERE, "org/relu", url=URL, cache=tmp_path
        )
        assert found.number == number
    assert not (tmp_path / ".locks").exists()


def test_a_time_in_the_future_is_refused(read: Callable[..., RepositoryIndex]) -> None:
    import time

    assert read(index(time=format_time(time.time() + 3600))).number == 1
    with pytest.raises(InvalidRepository, match="it has the time 2999-01-02T03:04:05Z, which is in the future"):
        read(index(2, time="2999-01-02T03:04:05Z"))
    future = msgspec.structs.replace(index(2), origin=MirrorOrigin("https://hub.example", "2999-01-02T03:04:05Z"))
    with pytest.raises(InvalidRepository, match="in the future"):
        read(future)
    assert read(index(2)).number == 2  # what was refused is not remembered


def test_the_index_of_a_mirror_is_checked_too(signer: MirrorSigner) -> None:
    own = MirrorIndex(number=1, time=TIME, writer="kernels", repositories={})
    assert read_mirror_index(signer.sign(MirrorDocument.of(own)).to_bytes(), URL) == own
    swapped = signer.sign(MirrorDocument.of(index()))
    with pytest.raises(InvalidRepository, match="missing required field"):
        read_mirror_index(swapped.to_bytes(), URL)


def test_records_without_a_signature_are_other_records(signer: MirrorSigner, monkeypatch: pytest.MonkeyPatch) -> None:
    with_key = records_key(URL)
    monkeypatch.setenv("KERNELS_MIRROR_KEYS", f"{signer.name},ed25519:{'A' * 43}=")
    assert len({with_key, records_key(URL), URL}) == 3
    monkeypatch.delenv("KERNELS_MIRROR_KEYS")
    assert records_key(URL) == URL
