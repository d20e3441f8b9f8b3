"""Signatures of a mirror's documents: who vouches for what the mirror says.

A signature covers the exact bytes of a document's content, after a line with the format's name: it is none of another
kind of file, and none of a document of another version of the format. What the content is about is in it: the
repository, the commit, the number.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

from kernels import settings
from kernels.errors import MissingPythonDependency, RequestError, UntrustedSignature
from kernels.models.mirror import MirrorSignature
from kernels.models.mirror_document import MIRROR_FORMAT, MirrorDocument
from kernels.models.mirror_keys import MirrorKey
from kernels.support.files import read_bounded
from kernels.support.formatting import format_names, format_text, format_value

__all__ = ["MirrorSigner", "active_signer", "check_signatures", "signed_bytes"]

#: The most bytes of a file with a private key.
_MAX_KEY_BYTES = 64 * 1024

#: Signatures that an error names.
_NAMED = 3


def signed_bytes(document: MirrorDocument) -> bytes:
    """What a signature covers.

    Example:
        >>> signed_bytes(MirrorDocument(b"{}"))
        b'kernels-mirror-1\\n{}'
    """
    return b"kernels-mirror-%d\n" % MIRROR_FORMAT + document.content


def check_signatures(document: MirrorDocument, where: str, keys: tuple[MirrorKey, ...]) -> MirrorKey | None:
    """Check that one of some keys has signed a document. Its content is not parsed for that.

    Args:
        document: The document.
        where: The file, for messages: its URL, without a secret.
        keys: Who may sign, as `settings.mirror_keys()` gives them. Without any, no signature is required.

    Returns:
        Who signed; None if no signature is required.

    Raises:
        UntrustedSignature: None of them has; the message says what was found.
        MissingPythonDependency: cryptography is not installed.
    """
    if not keys:
        return None
    found: list[str] = []
    for signature in document.signatures:
        try:
            if signature.kind == "ed25519":
                return _check_ed25519(document, signature, keys)
        except UntrustedSignature as error:
            found.append(str(error))
        else:
            found.append(f"it has a signature of the kind {format_value(signature.kind)}, which is not known here")
    raise UntrustedSignature(
        f"{where} is refused: {'; '.join(found[:_NAMED]) or 'it has no signature'}. KERNELS_MIRROR_KEYS requires one "
        f"of {format_names(keys, limit=_NAMED)}. Nothing was downloaded."
    )


def active_signer(key: Path | None = None) -> MirrorSigner | None:
    """The signer of a writer.

    Args:
        key: File with an Ed25519 private key (PEM, PKCS8); the default is `KERNELS_MIRROR_SIGN_KEY`.

    Returns:
        The signer; None if no key is named.

    Raises:
        RequestError: The key cannot be read.
        MissingPythonDependency: cryptography is not installed.
    """
    named = key or settings.mirror_sign_key()
    return None if named is None else MirrorSigner(named)


class MirrorSigner:
    """Signs with an Ed25519 private key; the same document always gets the same signature.

    Args:
        path: Its file: PEM, PKCS8, without a password, as `openssl genpkey -algorithm ed25519` writes it.

    Raises:
        RequestError: It has no such key. The message has nothing of its content.
        MissingPythonDependency: cryptography is not installed.
    """

    def __init__(self, path: Path) -> None:
        serialization = _cryptography().hazmat.primitives.serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        expected = "expected an Ed25519 private key as `openssl genpkey -algorithm ed25519 -out FILE` writes it"
        try:
            key = serialization.load_pem_private_key(read_bounded(path, _MAX_KEY_BYTES), password=None)
        except OSError as error:
            raise RequestError(f"The key {path} cannot be read: {error.strerror or error}.") from None
        except TypeError:
            raise RequestError(f"The key {path} has a password; {expected}, without a password.") from None
        except Exception:  # noqa: BLE001 - the parser raises errors of several types, which may quote the key
            raise RequestError(f"{path} is not a private key; {expected}.") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise RequestError(f"{path} has a private key of another kind; {expected}.")
        self._key = key
        raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        self.key = MirrorKey(base64.b64encode(raw).decode())
        self.name = str(self.key)

    def has_signed(self, document: MirrorDocument) -> bool:
        """Whether a document has this key's signature already."""
        return self._signature(document) in document.signatures

    def sign(self, document: MirrorDocument) -> MirrorDocument:
        """The document with this key's signature beside those of others."""
        others = [each for each in document.signatures if (each.kind, each.key) != ("ed25519", self.key.value)]
        return MirrorDocument(document.content, (*others, self._signature(document)))

    def _signature(self, document: MirrorDocument) -> MirrorSignature:
        value = base64.b64encode(self._key.sign(signed_bytes(document))).decode()
        return MirrorSignature("ed25519", value, self.key.value)


def _check_ed25519(document: MirrorDocument, signature: MirrorSignature, keys: tuple[MirrorKey, ...]) -> MirrorKey:
    key = MirrorKey(signature.key)
    if key not in keys:  # the same key has one spelling only: base64 is decoded and encoded again for `keys`
        raise UntrustedSignature(f"it is signed with another key, {format_text(key, 80)}")
    exceptions = _cryptography().exceptions
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        value = base64.b64decode(signature.value, validate=True)
        Ed25519PublicKey.from_public_bytes(base64.b64decode(key.value)).verify(value, signed_bytes(document))
    except (exceptions.InvalidSignature, binascii.Error, ValueError):
        raise UntrustedSignature(
            f"its signature with {key} is not valid: the content was changed, or signed as something else"
        ) from None
    return key


def _cryptography() -> Any:
    try:
        import cryptography.exceptions
        import cryptography.hazmat.primitives.serialization
    except ImportError as error:
        raise MissingPythonDependency(
            "The signatures of a mirror need the package cryptography, which is not installed: "
            "pip install cryptography (the extra `mirror`)"
        ) from error
    return cryptography
