"""Sigstore bundles over `metadata.json`: whether the signature is valid, and who signed.

sigstore's `Verifier` checks the signature, the certificate, the log entry and the time. The signer it finds is compared
with the policy here.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels import settings
from kernels.errors import (
    HubUnavailable,
    InvalidMetadata,
    MissingPythonDependency,
    RequestError,
    StoreError,
    UntrustedSignature,
)
from kernels.models.metadata import MAX_METADATA_BYTES
from kernels.models.snapshot import BUNDLE_FILE, METADATA_FILE
from kernels.support.files import FileTooLarge, read_bounded
from kernels.support.forks import ForkLock
from kernels.support.formatting import format_error, format_text
from kernels.trust.policy import Identity, Rule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "MAX_BUNDLE_BYTES",
    "allowed",
    "check_signature",
    "check_size",
    "parse_bundle",
    "read_signed",
    "signer_of",
    "verify_bundle",
]


#: The largest bundle that is read; published ones have some 10 kB.
MAX_BUNDLE_BYTES = 1024 * 1024

#: The most characters of a parser's error, which repeats its input.
_MAX_REASON = 300

#: The extensions of Fulcio certificates that are compared
#: (https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md), each the DER of a string.
_EXTENSIONS: Mapping[str, tuple[str, str]] = {
    "issuer": ("OIDC issuer", "1.3.6.1.4.1.57264.1.8"),
    "source_repository": ("source repository", "1.3.6.1.4.1.57264.1.12"),
    "workflow": ("workflow", "1.3.6.1.4.1.57264.1.9"),
}

#: Verifiers by trusted root and whether their keys may be refreshed: making one may send a request.
_verifiers: dict[tuple[str | None, bool], Any] = {}
_making = ForkLock()


def verify_bundle(metadata: bytes, bundle: bytes, rules: Sequence[Rule], *, offline: bool = False) -> Identity:
    """Check a signature, and that a policy allows its signer.

    Args:
        metadata: The content of `metadata.json`, which is not parsed here.
        bundle: The content of `metadata.json.sigstore`.
        rules: Who may sign, and which Sigstore is trusted; one of them must accept the signature.
        offline: Whether to use only keys of the public Sigstore that are on this machine, also without
            `HF_HUB_OFFLINE`.

    Returns:
        Who signed.

    Raises:
        UntrustedSignature: The bundle cannot be read, the signature is not valid, or its signer is not allowed.
        MissingPythonDependency: sigstore is not installed.
        RequestError: The trusted root is not valid.
        HubUnavailable: The keys of the public Sigstore are not available.
    """
    parsed = parse_bundle(bundle)
    refused: list[str] = []
    for rule in rules:
        found = _SignerRecorder()
        try:
            check_signature(metadata, parsed, found, rule, offline=offline)
            return allowed(found.identity, rule)
        except UntrustedSignature as error:
            refused.append(str(error))
    raise UntrustedSignature("; ".join(dict.fromkeys(refused)))


def read_signed(folder: Path) -> tuple[bytes | None, bytes | None]:
    """The metadata of a build on disk, not parsed, and its signature; None for what is not there.

    Args:
        folder: The build's folder.

    Raises:
        UntrustedSignature, InvalidMetadata: The signature, or the metadata, is too large.
        StoreError: One cannot be read, or is not a file.
    """
    bundle = _read(folder / BUNDLE_FILE, MAX_BUNDLE_BYTES)
    return _read(folder / METADATA_FILE, MAX_METADATA_BYTES), bundle


def _read(path: Path, limit: int) -> bytes | None:
    try:
        return read_bounded(path, limit)
    except FileNotFoundError:
        return None
    except FileTooLarge:
        if path.name == BUNDLE_FILE:
            check_size(path.stat().st_size)
        raise InvalidMetadata(f"its {path.name} has more than {limit} bytes, the most that are read") from None
    except OSError as error:
        raise StoreError(f"Cannot read {path}: {error.strerror or error}.") from error


def parse_bundle(bundle: bytes) -> Any:
    """A Sigstore bundle.

    Args:
        bundle: The content of `metadata.json.sigstore`.

    Raises:
        UntrustedSignature: It is not one.
        MissingPythonDependency: sigstore is not installed.
    """
    check_size(len(bundle))
    models = _sigstore()
    try:
        return models.Bundle.from_json(bundle)
    except Exception as error:  # noqa: BLE001 - untrusted bytes, for which the parsers raise errors of any type
        raise UntrustedSignature(f"its {BUNDLE_FILE} is not a Sigstore bundle: {_line(error)}") from None


def check_signature(metadata: bytes, bundle: Any, policy: Any, rule: Rule, *, offline: bool = False) -> None:
    """Check a signature and its certificate.

    Args:
        metadata: The content of `metadata.json`, which is not parsed here.
        bundle: As `parse_bundle` returns it.
        policy: An object whose `verify(certificate)` raises for a signer that it does not allow.
        rule: Which Sigstore is trusted.
        offline: Whether to use only keys of the public Sigstore that are on this machine, also without
            `HF_HUB_OFFLINE`.

    Raises:
        UntrustedSignature: The signature is not valid, or `policy` raises.
        RequestError: The trusted root is not valid.
        HubUnavailable: The keys of the public Sigstore are not available.
    """
    verifier = _verifier(rule, offline)
    try:
        verifier.verify_artifact(metadata, bundle, policy)
    except Exception as error:  # noqa: BLE001 - certificates and log entries are untrusted too
        raise UntrustedSignature(f"its signature is not valid: {_line(error)}") from None


def allowed(identity: Identity, rule: Rule) -> Identity:
    """The identity, if a rule allows it to sign.

    Raises:
        UntrustedSignature: It is not allowed; the message says what differs.
    """
    if identity in rule.signers:
        return identity
    if not rule.signers:
        raise UntrustedSignature(f"it is signed by {identity}, and {rule.where} allows no signer for this repository")
    for name, (what, _) in _EXTENSIONS.items():
        own = getattr(identity, name)
        others = list(dict.fromkeys(getattr(each, name) for each in rule.signers))
        if own not in others:
            raise UntrustedSignature(
                f"it is signed with the {what} {format_text(own)}; {rule.where} allows {', '.join(others)}"
            )
    raise UntrustedSignature(
        f"it is signed by {identity} for {format_text(identity.source_repository)}, which {rule.where} forbids"
    )


def check_size(size: int) -> None:
    """Raise `UntrustedSignature` for a bundle with too many bytes, which is not read."""
    if size > MAX_BUNDLE_BYTES:
        raise UntrustedSignature(f"its {BUNDLE_FILE} has {size} bytes; at most {MAX_BUNDLE_BYTES} are read")


class _SignerRecorder:
    """Passed to sigstore as its policy: it records the signer, who is compared once everything else is valid."""

    identity: Identity

    def verify(self, cert: Any) -> None:
        """Called by sigstore with the certificate, after its chain was checked."""
        self.identity = signer_of(cert)


def signer_of(cert: Any) -> Identity:
    """The signer that a Fulcio certificate names.

    Raises:
        ValueError: An extension is missing, or is not a string.
    """
    return Identity(**{name: _extension(cert, *where) for name, where in _EXTENSIONS.items()})


def _extension(cert: Any, what: str, oid: str) -> str:
    from cryptography.hazmat import asn1
    from cryptography.x509 import ExtensionNotFound, ObjectIdentifier

    try:
        value = cert.extensions.get_extension_for_oid(ObjectIdentifier(oid)).value.value
    except ExtensionNotFound:
        raise ValueError(f"the certificate has no {what} ({oid})") from None
    return asn1.decode_der(str, value)


def _verifier(rule: Rule, offline: bool) -> Any:
    offline = offline or settings.offline()
    key = (None, offline) if rule.trusted_root is None else (rule.key, True)
    with _making:
        if key not in _verifiers:
            _verifiers[key] = _public(offline) if rule.trusted_root is None else _private(rule)
        return _verifiers[key]


def _private(rule: Rule) -> Any:
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier

    rule.root_content()  # an unreadable file has its own error
    try:
        return Verifier(trusted_root=TrustedRoot.from_file(str(rule.trusted_root)))
    except Exception as error:  # noqa: BLE001 - the parsers raise errors of any type
        raise RequestError(f"{rule.trusted_root} is not a Sigstore trusted root: {_line(error)}.") from None


def _public(offline: bool) -> Any:
    from sigstore.verify import Verifier

    try:
        return Verifier.production(offline=offline)
    except Exception as error:  # it reads files, asks a server and parses, each with its own errors
        way = (
            "Verify once while online, which stores them, or name a copy: `trusted-root` in the policy, --trusted-root"
            if offline
            else "Use those stored here (`kernels verify --offline`, HF_HUB_OFFLINE=1), or name a copy: `trusted-root` "
            "in the policy, --trusted-root"
        )
        raise HubUnavailable(f"The keys of the public Sigstore are not available: {_line(error)}. {way}.") from error


def _sigstore() -> Any:
    try:
        from sigstore import models
    except ImportError as error:
        raise MissingPythonDependency(
            "Checking a signature needs the package sigstore, which is not installed: "
            "pip install sigstore (the extra `sign`)"
        ) from error
    # It warns when it works offline; without a handler, the warning is printed on standard error.
    logging.getLogger("sigstore").addHandler(logging.NullHandler())
    return models


def _line(error: BaseException) -> str:
    return format_error(error, _MAX_REASON).rstrip(".")
