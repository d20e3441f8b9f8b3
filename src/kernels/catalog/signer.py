"""Who signed a build, as the certificate in its signature says. Nothing is verified: it is for a person to read."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from kernels.support.record_file import decode_json
from kernels.trust.sigstore import MAX_BUNDLE_BYTES, signer_of

__all__ = ["read_signer"]


class _Certificate(msgspec.Struct, rename="camel"):
    raw_bytes: str


class _Chain(msgspec.Struct):
    certificates: list[_Certificate]


class _Material(msgspec.Struct, rename="camel"):
    certificate: _Certificate | None = None
    x509_certificate_chain: _Chain | None = msgspec.field(default=None, name="x509CertificateChain")


class _Bundle(msgspec.Struct, rename="camel"):
    verification_material: _Material


def read_signer(bundle: str) -> str:
    """The workflow that a Sigstore bundle's certificate names; "" if it cannot be read, or cryptography is missing.

    Args:
        bundle: The text of `metadata.json.sigstore`.

    Example:
        >>> read_signer("{}")
        ''
    """
    data = bundle.encode("utf-8", "replace")
    if len(data) > MAX_BUNDLE_BYTES:
        return ""
    try:
        material = decode_json(data, _Bundle).verification_material
        chain = material.x509_certificate_chain
        first = material.certificate or (chain.certificates[0] if chain is not None and chain.certificates else None)
        return "" if first is None else str(signer_of(_parsed(base64.b64decode(first.raw_bytes, validate=True))))
    except Exception:  # noqa: BLE001 - untrusted bytes, for which the parsers raise errors of any type
        return ""


def _parsed(certificate: bytes) -> Any:
    from cryptography.x509 import load_der_x509_certificate

    return load_der_x509_certificate(certificate)
