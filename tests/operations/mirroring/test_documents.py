"""The documents of a mirror as its writers change them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from kernels.errors import RequestError, UntrustedSignature
from kernels.mirror.signing import MirrorSigner
from kernels.mirror.stores.folder import FolderStore
from kernels.models.mirror import MIRROR_FILE, MirrorIndex
from kernels.models.mirror_document import MirrorDocument
from kernels.operations.mirroring.documents import MirrorDocuments

pytestmark = pytest.mark.skipif(find_spec("cryptography") is None, reason="cryptography is not installed")

OWN = MirrorIndex(number=1, time="2026-01-02T03:04:05Z", writer="kernels", repositories={})


def signer(path: Path) -> MirrorSigner:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return MirrorSigner(path)


def test_what_others_wrote_gets_no_signature_if_keys_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, store = signer(tmp_path / "key.pem"), FolderStore(tmp_path / "mirror")
    monkeypatch.setenv("KERNELS_MIRROR_KEYS", ours.name)
    MirrorDocuments(store, ours).change_mirror(lambda _: OWN)
    signed = (store.root / MIRROR_FILE).read_bytes()
    assert ours.has_signed(MirrorDocument.parse(signed, "here"))
    foreign = MirrorDocument.of(OWN).to_bytes()
    (store.root / MIRROR_FILE).write_bytes(foreign)
    with pytest.raises(UntrustedSignature, match="it has no signature"):
        MirrorDocuments(store, ours).change_mirror(lambda _: OWN)
    assert (store.root / MIRROR_FILE).read_bytes() == foreign
    # The first run with a key signs what is there.
    monkeypatch.delenv("KERNELS_MIRROR_KEYS")
    MirrorDocuments(store, ours).change_mirror(lambda before: before or OWN)
    assert (store.root / MIRROR_FILE).read_bytes() == signed


def test_nothing_is_written_that_readers_would_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = signer(tmp_path / "a.pem"), signer(tmp_path / "b.pem")
    store = FolderStore(tmp_path / "mirror")
    monkeypatch.setenv("KERNELS_MIRROR_KEYS", ours.name)
    with pytest.raises(RequestError, match=r"nothing signs what is written to .*: name the key \(--sign-key FILE\)"):
        MirrorDocuments(store).change_mirror(lambda _: OWN)
    with pytest.raises(UntrustedSignature, match="signed with another key"):
        MirrorDocuments(store, other).change_mirror(lambda _: OWN)
    assert not (store.root / MIRROR_FILE).exists()


def test_a_signature_is_not_lost(tmp_path: Path) -> None:
    ours, store = signer(tmp_path / "key.pem"), FolderStore(tmp_path / "mirror")
    MirrorDocuments(store, ours).change_mirror(lambda _: OWN)
    signed = (store.root / MIRROR_FILE).read_bytes()
    with pytest.raises(RequestError, match=r"mirror\.json is signed by ed25519:.*: name the key \(--sign-key FILE\)"):
        MirrorDocuments(store).change_mirror(lambda _: msgspec.structs.replace(OWN, number=2))
    assert MirrorDocuments(store).change_mirror(lambda before: before or OWN) == OWN  # nothing to write
    assert (store.root / MIRROR_FILE).read_bytes() == signed
