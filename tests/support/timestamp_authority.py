"""A timestamp authority for tests: answers as RFC 3161 has them, signed as RFC 5652 says."""

from __future__ import annotations

import hashlib
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from der import der, integer, octets, oid, sequence, set_of

__all__ = ["timestamp"]

_SIGNED_DATA = "1.2.840.113549.1.7.2"
_TIMESTAMP_INFO = "1.2.840.113549.1.9.16.1.4"
_CONTENT_TYPE = "1.2.840.113549.1.9.3"
_MESSAGE_DIGEST = "1.2.840.113549.1.9.4"
_SIGNING_CERTIFICATE = "1.2.840.113549.1.9.16.2.47"
_SHA256 = sequence(oid("2.16.840.1.101.3.4.2.1"))
_ECDSA = sequence(oid("1.2.840.10045.4.3.2"))


def timestamp(content: bytes, at: datetime, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bytes:
    """The answer that some bytes were there at a time.

    Args:
        content: The bytes.
        at: When, in UTC.
        certificate: The authority's.
        key: The certificate's.
    """
    info = sequence(
        integer(1),
        oid("1.3.6.1.4.1.57264.2"),  # the authority's own terms
        sequence(_SHA256, octets(hashlib.sha256(content).digest())),
        integer(1),
        der(0x18, at.strftime("%Y%m%d%H%M%SZ").encode()),
    )
    named = sequence(sequence(sequence(octets(certificate.fingerprint(hashes.SHA256())))))
    attributes = [
        sequence(oid(_CONTENT_TYPE), set_of([oid(_TIMESTAMP_INFO)])),
        sequence(oid(_MESSAGE_DIGEST), set_of([octets(hashlib.sha256(info).digest())])),
        sequence(oid(_SIGNING_CERTIFICATE), set_of([named])),
    ]
    signer = sequence(
        integer(1),
        sequence(certificate.issuer.public_bytes(), integer(certificate.serial_number)),
        _SHA256,
        set_of(attributes, tag=0xA0),
        _ECDSA,
        octets(key.sign(set_of(attributes), ec.ECDSA(hashes.SHA256()))),
    )
    signed = sequence(
        integer(3),
        set_of([_SHA256]),
        sequence(oid(_TIMESTAMP_INFO), der(0xA0, octets(info))),
        der(0xA0, certificate.public_bytes(Encoding.DER)),
        set_of([signer]),
    )
    return sequence(sequence(integer(0)), sequence(oid(_SIGNED_DATA), der(0xA0, signed)))
