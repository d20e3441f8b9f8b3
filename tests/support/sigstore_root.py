"""A Sigstore of its own for tests: certificate authority, certificate log, signature log and timestamp authority.

Nothing is mocked: bundles are made as a publisher's workflow gets them from the public Sigstore, with keys that are
made in this process, and are verified by sigstore's `Verifier` with this root's `trusted_root.json`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import struct
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID, ObjectIdentifier
from der import octets, text
from timestamp_authority import timestamp

__all__ = ["ACME", "OTHERS", "SIGNED_AT", "SigstoreRoot", "Workflow"]

#: When the signatures of the tests are made, unless they say otherwise. Verification never looks at today's clock.
SIGNED_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)

_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Workflow:
    """Who signs: what the certificate says."""

    issuer: str | None = "https://token.actions.githubusercontent.com"
    repository: str | None = "https://github.com/acme/kernels"
    path: str = ".github/workflows/build.yaml"
    ref: str = "refs/heads/main"
    url: str | None = None

    @property
    def signer(self) -> str:
        """The workflow's URL with its ref, as certificates have it."""
        return f"{self.url or f'{self.repository}/{self.path}'}@{self.ref}"


ACME = Workflow()


class SigstoreRoot:
    """A Sigstore: `sign` makes a bundle, `trusted_root` is what its users believe."""

    def __init__(self, name: str = "test") -> None:
        self.name = name
        self._root_key, self._ca_key = _new_key(), _new_key()
        self._root = _authority(f"{name} root", None, self._root_key, self._root_key)
        self._ca = _authority(f"{name} intermediate", self._root, self._root_key, self._ca_key)
        self._ct_key, self._rekor_key, self._clock_key = _new_key(), _new_key(), _new_key()
        self._clock = _authority(f"{name} clock", self._root, self._root_key, self._clock_key, clock=True)

    @functools.cached_property
    def trusted_root(self) -> dict[str, Any]:
        """The content of `trusted_root.json`."""
        valid = {"start": "2025-01-01T00:00:00Z"}
        subject = {"organization": self.name, "commonName": self.name}

        def log(url: str, key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            return {
                "baseUrl": url,
                "hashAlgorithm": "SHA2_256",
                "publicKey": {
                    "rawBytes": _text(_public(key)),
                    "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                    "validFor": valid,
                },
                "logId": {"keyId": _text(_key_id(key))},
            }

        def authority(certificate: x509.Certificate) -> dict[str, Any]:
            chain = [{"rawBytes": _text(each.public_bytes(Encoding.DER))} for each in (certificate, self._root)]
            return {"subject": subject, "certChain": {"certificates": chain}, "validFor": valid}

        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log("https://rekor.example", self._rekor_key)],
            "certificateAuthorities": [authority(self._ca)],
            "ctlogs": [log("https://ctfe.example", self._ct_key)],
            "timestampAuthorities": [authority(self._clock)],
        }

    def write(self, path: Path) -> Path:
        """Write `trusted_root.json`."""
        path.write_text(json.dumps(self.trusted_root), encoding="utf-8")
        return path

    def sign(
        self,
        content: bytes,
        workflow: Workflow = ACME,
        *,
        at: datetime = SIGNED_AT,
        after: timedelta = timedelta(),
        clock: bool = False,
    ) -> bytes:
        """A bundle over some bytes, as the file beside them holds it.

        Args:
            content: What is signed.
            workflow: Who signs.
            at: When the certificate is given; it is valid for ten minutes.
            after: How long after that the signature is made, and logged.
            clock: Whether the timestamp authority says when, as with newer logs; else the log does.
        """
        key = _new_key()
        certificate = self._certificate(key, workflow, at)
        signature = key.sign(content, ec.ECDSA(hashes.SHA256()))
        entry = self._entry(content, signature, certificate, at + after)
        material: dict[str, Any] = {
            "certificate": {"rawBytes": _text(certificate.public_bytes(Encoding.DER))},
            "tlogEntries": [entry],
        }
        if clock:
            del entry["integratedTime"], entry["inclusionPromise"]
            answer = timestamp(signature, at + after, self._clock, self._clock_key)
            material["timestampVerificationData"] = {"rfc3161Timestamps": [{"signedTimestamp": _text(answer)}]}
        digest = {"algorithm": "SHA2_256", "digest": _text(hashlib.sha256(content).digest())}
        bundle = {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": material,
            "messageSignature": {"messageDigest": digest, "signature": _text(signature)},
        }
        return json.dumps(bundle).encode()

    def _certificate(self, key: ec.EllipticCurvePrivateKey, workflow: Workflow, at: datetime) -> x509.Certificate:
        """A certificate as Fulcio gives it (https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md)."""
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._ca_key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self._ca.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(at)
            .not_valid_after(at + timedelta(minutes=10))
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(authority, critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(workflow.signer)]), critical=True
            )
        )
        named = {8: workflow.issuer, 9: workflow.signer, 12: workflow.repository, 14: workflow.ref}
        for number, said in named.items():
            if said is not None:
                oid = ObjectIdentifier(f"1.3.6.1.4.1.57264.1.{number}")
                builder = builder.add_extension(x509.UnrecognizedExtension(oid, text(said)), critical=False)
        return self._logged(builder, at)

    def _logged(self, builder: x509.CertificateBuilder, at: datetime) -> x509.Certificate:
        """The certificate with the certificate log's promise in it (RFC 6962, section 3.2 and 3.3)."""
        # What the log signs is the certificate without its promise, so it is signed twice by the authority.
        unlogged = builder.sign(self._ca_key, hashes.SHA256())
        issuer = hashlib.sha256(_public(self._ca_key)).digest()
        body = unlogged.tbs_certificate_bytes
        milliseconds = int(at.timestamp() * 1000)
        signed = struct.pack("!BBQH", 0, 0, milliseconds, 1) + issuer + len(body).to_bytes(3, "big") + body + b"\0\0"
        signature = self._ct_key.sign(signed, ec.ECDSA(hashes.SHA256()))
        promise = b"\0" + _key_id(self._ct_key) + struct.pack("!QH", milliseconds, 0)
        promise += b"\x04\x03" + struct.pack("!H", len(signature)) + signature  # SHA-256, ECDSA
        listed = struct.pack("!H", len(promise)) + promise
        listed = struct.pack("!H", len(listed)) + listed
        oid = ExtensionOID.PRECERT_SIGNED_CERTIFICATE_TIMESTAMPS
        return builder.add_extension(x509.UnrecognizedExtension(oid, octets(listed)), critical=False).sign(
            self._ca_key, hashes.SHA256()
        )

    def _entry(self, content: bytes, signature: bytes, certificate: x509.Certificate, at: datetime) -> dict[str, Any]:
        """The signature log's entry, the second of two, with its proof, checkpoint and promise."""
        body = _canonical(
            {
                "apiVersion": "0.0.1",
                "kind": "hashedrekord",
                "spec": {
                    "data": {"hash": {"algorithm": "sha256", "value": hashlib.sha256(content).hexdigest()}},
                    "signature": {
                        "content": _text(signature),
                        "publicKey": {"content": _text(certificate.public_bytes(Encoding.PEM))},
                    },
                },
            }
        )
        neighbour = hashlib.sha256(b"\0the entry before").digest()
        root = hashlib.sha256(b"\1" + neighbour + hashlib.sha256(b"\0" + body).digest()).digest()
        note = f"rekor.example - 1\n2\n{_text(root)}\n"
        sealed = _key_id(self._rekor_key)[:4] + self._rekor_key.sign(note.encode(), ec.ECDSA(hashes.SHA256()))
        time = int(at.timestamp())
        promised = {
            "body": _text(body),
            "integratedTime": time,
            "logID": _key_id(self._rekor_key).hex(),
            "logIndex": 1,
        }
        promise = self._rekor_key.sign(_canonical(promised), ec.ECDSA(hashes.SHA256()))
        return {
            "logIndex": "1",
            "logId": {"keyId": _text(_key_id(self._rekor_key))},
            "kindVersion": {"kind": "hashedrekord", "version": "0.0.1"},
            "integratedTime": str(time),
            "inclusionPromise": {"signedEntryTimestamp": _text(promise)},
            "inclusionProof": {
                "logIndex": "1",
                "rootHash": _text(root),
                "treeSize": "2",
                "hashes": [_text(neighbour)],
                "checkpoint": {"envelope": f"{note}\n\N{EM DASH} rekor.example {_text(sealed)}\n"},
            },
            "canonicalizedBody": _text(body),
        }


def _authority(
    name: str,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
    *,
    clock: bool = False,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(SIGNED_AT - 365 * _DAY)
        .not_valid_after(SIGNED_AT + 3650 * _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if clock:
        stamping = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING])
        builder = builder.add_extension(stamping, critical=True).add_extension(_usage(digital_signature=True), True)
    else:
        constraints = x509.BasicConstraints(ca=True, path_length=1 if issuer is None else 0)
        usage = _usage(key_cert_sign=True, crl_sign=True)
        builder = builder.add_extension(constraints, critical=True).add_extension(usage, critical=True)
    return builder.sign(issuer_key, hashes.SHA256())


def _usage(**purposes: bool) -> x509.KeyUsage:
    every = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**(dict.fromkeys(every, False) | purposes))


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _key_id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(_public(key)).digest()


def _canonical(value: Any) -> bytes:
    """JSON as RFC 8785 has it, for the plain values here."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


#: Workflows that differ from `ACME` in one thing each.
OTHERS = {
    "another workflow": replace(ACME, path=".github/workflows/test.yaml"),
    "another branch": replace(ACME, ref="refs/heads/attack"),
    "another repository": replace(ACME, repository="https://github.com/evil/kernels"),
    "another repository, the same workflow": replace(
        ACME,
        repository="https://github.com/evil/kernels",
        url="https://github.com/acme/kernels/.github/workflows/build.yaml",
    ),
    "another issuer": replace(ACME, issuer="https://issuer.example"),
}
