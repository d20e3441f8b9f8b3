"""Signatures of a mirror's documents."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import msgspec
import pytest

from kernels import settings
from kernels.diagnosis import variable_table
from kernels.errors import RequestError, UntrustedSignature
from kernels.mirror.signing import MirrorSigner, active_signer, check_signatures
from kernels.models.mirror import MirrorSignature
from kernels.models.mirror_document import MirrorDocument
from kernels.models.mirror_keys import MirrorKey

pytestmark = pytest.mark.skipif(find_spec("cryptography") is None, reason="cryptography is not installed")

WHERE = "https://mirror.example/api/kernels/org/relu/refs"
DOCUMENT = MirrorDocument(b'{"repo-id":"org/relu","number":1}')


@pytest.fixture
def new_key(tmp_path: Path) -> Callable[[str], MirrorSigner]:
    """Make a key in a file, as docs/mirrors.md says it."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    def make(name: str) -> MirrorSigner:
        key = Ed25519PrivateKey.generate()
        path = tmp_path / name
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return MirrorSigner(path)

    return make


def test_a_signed_document_passes_and_names_its_signer(new_key: Callable[[str], MirrorSigner]) -> None:
    ours, other = new_key("a.pem"), new_key("b.pem")
    signed = ours.sign(DOCUMENT)
    read = MirrorDocument.parse(signed.to_bytes(), WHERE)
    assert check_signatures(read, WHERE, (other.key, ours.key)) == ours.key
    assert check_signatures(DOCUMENT, WHERE, ()) is None
    assert ours.has_signed(read)
    assert not other.has_signed(read)
    assert ours.sign(read) == signed  # the same bytes again
    both = other.sign(signed)
    assert [check_signatures(both, WHERE, (each.key,)) for each in (ours, other)] == [ours.key, other.key]


def test_what_is_not_signed_as_required_is_refused(new_key: Callable[[str], MirrorSigner]) -> None:
    ours, other = new_key("a.pem"), new_key("b.pem")
    signed = ours.sign(DOCUMENT)
    renamed = msgspec.structs.replace(signed.signatures[0], key=other.key.value)
    cases = {
        "it has no signature": DOCUMENT,
        f"it is signed with another key, {other.key}": other.sign(DOCUMENT),
        "the content was changed": MirrorDocument(DOCUMENT.content + b" ", signed.signatures),
        f"its signature with {ours.key} is not valid": MirrorDocument(
            DOCUMENT.content, (MirrorSignature("ed25519", "AAAA", ours.key.value),)
        ),
        "is not valid: the content": MirrorDocument(
            DOCUMENT.content, (MirrorSignature("ed25519", "not base64", ours.key.value),)
        ),
        "it is signed with another key": MirrorDocument(DOCUMENT.content, (renamed,)),
        "of the kind 'rot13'": MirrorDocument(DOCUMENT.content, (MirrorSignature("rot13", "x"),)),
    }
    for says, document in cases.items():
        with pytest.raises(UntrustedSignature) as caught:
            check_signatures(document, WHERE, (ours.key,))
        text = str(caught.value)
        assert says in text
        assert WHERE in text
        assert f"KERNELS_MIRROR_KEYS requires one of {ours.key}" in text


def test_a_signature_of_the_bare_content_is_none_of_the_document(new_key: Callable[[str], MirrorSigner]) -> None:
    # What else the key signs, a file of the same bytes, does not vouch for a mirror.
    import base64

    ours = new_key("a.pem")
    value = base64.b64encode(ours._key.sign(DOCUMENT.content)).decode()
    with pytest.raises(UntrustedSignature, match="signed as something else"):
        check_signatures(
            MirrorDocument(DOCUMENT.content, (MirrorSignature("ed25519", value, ours.key.value),)), WHERE, (ours.key,)
        )


@pytest.mark.skipif(which("openssl") is None, reason="openssl is not installed")
def test_keys_are_made_with_openssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The lines of docs/mirrors.md.
    lines = """
        openssl genpkey -algorithm ed25519 -out mirror-key.pem
        openssl pkey -in mirror-key.pem -pubout -out mirror-key.pub
        echo "ed25519:$(openssl pkey -in mirror-key.pem -pubout -outform DER | tail -c 32 | base64)" > line
    """
    subprocess.run(["sh", "-ec", lines], cwd=tmp_path, check=True, capture_output=True)
    signer = active_signer(tmp_path / "mirror-key.pem")
    assert isinstance(signer, MirrorSigner)
    assert (tmp_path / "line").read_text().strip() == signer.name
    for value in (signer.name, str(tmp_path / "mirror-key.pub"), str(tmp_path / "line")):
        monkeypatch.setenv("KERNELS_MIRROR_KEYS", value)
        assert check_signatures(signer.sign(DOCUMENT), WHERE, settings.mirror_keys()) == signer.key
    monkeypatch.setenv("KERNELS_MIRROR_KEYS", str(tmp_path / "mirror-key.pem"))
    with pytest.raises(RequestError, match="expected public keys, got the PEM of a private key") as caught:
        settings.mirror_keys()
    assert (tmp_path / "mirror-key.pem").read_text().splitlines()[1] not in str(caught.value)


KEY = "ed25519:" + "A" * 43 + "="


def test_the_setting_names_keys_and_files_of_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = "ed25519:" + "B" * 43 + "="
    (tmp_path / "keys").write_text(f"# two\n{KEY}\n{other} # ours\n")
    monkeypatch.setenv("KERNELS_MIRROR_KEYS", f"{KEY}, {tmp_path / 'keys'}")
    assert settings.mirror_keys() == (MirrorKey("A" * 43 + "="), MirrorKey("B" * 42 + "A="))
    assert variable_table.active_variables()["KERNELS_MIRROR_KEYS"].startswith(KEY)
    monkeypatch.setenv("KERNELS_MIRROR_KEYS", "")
    assert settings.mirror_keys() == ()


@pytest.mark.parametrize(
    "value",
    ["ed25519:AAAA", "ed25519:", KEY + "A", "sigstore:x@https://a", "/nowhere", ",",
     f"{KEY},", "rsa:abc", str(Path(__file__)), "/dev/null", "/"],
)  # fmt: skip
def test_another_value_is_an_error_and_never_no_key(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("KERNELS_MIRROR_KEYS", value)
    with pytest.raises(RequestError, match="`KERNELS_MIRROR_KEYS`"):
        settings.mirror_keys()
    assert any("KERNELS_MIRROR_KEYS" in problem for problem in variable_table.invalid_settings())


def test_a_key_that_is_none_is_named_without_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption
    from cryptography.hazmat.primitives.serialization import PrivateFormat as Format

    path = tmp_path / "key.pem"
    for content, says in (
        (b"hush", "is not a private key"),
        (b"-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----\n", "is not a private key"),
        (
            ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, Format.PKCS8, NoEncryption()),
            "of another kind",
        ),
        (
            ed25519.Ed25519PrivateKey.generate().private_bytes(
                Encoding.PEM, Format.PKCS8, BestAvailableEncryption(b"hush")
            ),
            "has a password",
        ),
    ):
        path.write_bytes(content)
        with pytest.raises(RequestError, match=says) as caught:
            active_signer(path)
        assert "openssl genpkey -algorithm ed25519" in str(caught.value)
        assert "hush" not in str(caught.value)
    with pytest.raises(RequestError, match="cannot be read: No such file"):
        active_signer(tmp_path / "none.pem")
    monkeypatch.setenv("KERNELS_MIRROR_SIGN_KEY", str(tmp_path / "none.pem"))
    with pytest.raises(RequestError, match="`KERNELS_MIRROR_SIGN_KEY`"):
        active_signer()
    monkeypatch.delenv("KERNELS_MIRROR_SIGN_KEY")
    assert active_signer() is None


def test_the_text_of_a_document_never_shows_in_the_error(new_key: Callable[[str], MirrorSigner]) -> None:
    hostile = MirrorDocument(b"{}", (MirrorSignature("\x1b[2J" * 9, "", ""), MirrorSignature("ed25519", "", "\x1b[2J")))
    with pytest.raises(UntrustedSignature) as caught:
        check_signatures(hostile, WHERE, (new_key("a.pem").key,))
    assert "\x1b" not in str(caught.value)
    assert json.dumps(str(caught.value)).isascii()
