"""Who may sign the documents of mirrors: Ed25519 public keys, and identities of Sigstore."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

from kernels.support.formatting import format_value

__all__ = ["Ed25519Key", "MirrorKey", "SigstoreIdentity", "parse_mirror_key", "parse_mirror_keys"]

#: The DER of an Ed25519 public key before its 32 bytes (RFC 8410, section 4).
_PREFIX = bytes.fromhex("302a300506032b6570032100")

_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_ISSUER = re.compile(r"https://[^\s@,]+")
_FORMS = "ed25519:<base64 of 32 bytes>, sigstore:<identity>@<issuer>, or a file of such lines or of PEM public keys"


@dataclass(frozen=True)
class Ed25519Key:
    """An Ed25519 public key.

    Attributes:
        value: Its 32 bytes in base64.
    """

    value: str

    def __str__(self) -> str:
        return f"ed25519:{self.value}"


@dataclass(frozen=True)
class SigstoreIdentity:
    """Who signs with Sigstore.

    Attributes:
        identity: The name in the certificate: a workflow's URL with its ref, or an e-mail address.
        issuer: The URL of the OIDC issuer.
    """

    identity: str
    issuer: str

    def __str__(self) -> str:
        return f"sigstore:{self.identity}@{self.issuer}"


MirrorKey = Ed25519Key | SigstoreIdentity


def parse_mirror_key(text: str) -> MirrorKey:
    """A key as settings name it: `ed25519:…`, or `sigstore:…`.

    Raises:
        ValueError: It is neither; the message says what was expected.

    Example:
        >>> parse_mirror_key("sigstore:mirrors@acme.example@https://accounts.acme.example").issuer
        'https://accounts.acme.example'
    """
    kind, _, value = text.strip().partition(":")
    if kind == "ed25519":
        try:
            raw = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if len(raw) == 32:
            return Ed25519Key(base64.b64encode(raw).decode())
    elif kind == "sigstore":
        # An identity may have an @ of its own: an e-mail address, or a workflow with its ref.
        identity, _, issuer = value.rpartition("@")
        if identity and identity.isprintable() and _ISSUER.fullmatch(issuer):
            return SigstoreIdentity(identity, issuer)
    raise ValueError(f"expected {_FORMS}, got {format_value(text.strip())}")


def parse_mirror_keys(text: str) -> tuple[MirrorKey, ...]:
    """The keys in a file: PEM public keys, or lines as `parse_mirror_key` reads them; `#` starts a comment.

    Raises:
        ValueError: It has none, or something else.
    """
    found: list[MirrorKey] = []
    for label, body in _PEM.findall(text):
        if label != "PUBLIC KEY":
            # Its content is not shown: it may be a private key.
            raise ValueError(f"expected public keys, got the PEM of a {label.lower()}")
        try:
            der = base64.b64decode("".join(body.split()), validate=True)
        except (binascii.Error, ValueError):
            der = b""
        if not der.startswith(_PREFIX) or len(der) != len(_PREFIX) + 32:
            raise ValueError("expected an Ed25519 public key, got another key")
        found.append(Ed25519Key(base64.b64encode(der[len(_PREFIX) :]).decode()))
    if not found and "-----" in text:
        raise ValueError("expected PEM public keys, got something damaged")
    lines = [] if found else [line.partition("#")[0].strip() for line in text.splitlines()]
    found += [parse_mirror_key(line) for line in lines if line]
    if not found:
        raise ValueError(f"expected {_FORMS}, got a file without a key")
    return tuple(dict.fromkeys(found))
