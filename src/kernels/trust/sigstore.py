"""A Sigstore bundle over `metadata.json`: whether its signature is valid, and who made it.

The signature, the certificate, the log entry and the time are checked by sigstore's own `Verifier`. Whom it found is
compared with whom a policy allows here.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from kernels.errors import HubUnavailable, MissingPythonDependency, RequestError, UntrustedSignature
from kernels.support.documents import check_json
from kernels.support.formatting import error_on_one_line, format_text
from kernels.trust.signing_policy import Identity, Rule

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BUNDLE_FILE", "MAX_BUNDLE_BYTES", "verify_bundle"]

BUNDLE_FILE = "metadata.json.sigstore"

#: The largest bundle that is read; published ones have some 10 kB.
MAX_BUNDLE_BYTES = 1024 * 1024

#: Where Fulcio certificates hold what is compared
#: (https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md), each the DER of a string.
_EXTENSIONS: Mapping[str, tuple[str, str]] = {
    "issuer": ("OIDC issuer", "1.3.6.1.4.1.57264.1.8"),
    "source_repository": ("source repository", "1.3.6.1.4.1.57264.1.12"),
    "workflow": ("workflow", "1.3.6.1.4.1.57264.1.9"),
}

#: A verifier by trusted root and whether its keys may be refreshed: making one may take a request.
_verifiers: dict[tuple[str | None, bool], Any] = {}
_making = threading.Lock()


def _renew() -> None:
    # A lock that another thread of the parent held is held for ever in the child.
    global _making
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def verify_bundle(metadata: bytes, bundle: bytes, rule: Rule, *, offline: bool) -> Identity:
    """Check a signature, and that whoever made it may sign.

    Args:
        metadata: The content of `metadata.json`, which is not parsed here.
        bundle: The content of `metadata.json.sigstore`.
        rule: Who may sign, and which Sigstore is believed.
        offline: Whether the keys of the public Sigstore are taken from this machine alone.

    Returns:
        Who signed.

    Raises:
        UntrustedSignature: The bundle is none, the signature is not valid, or its signer is not allowed.
        MissingPythonDependency: sigstore is not installed.
        RequestError: The trusted root is none.
        HubUnavailable: The keys of the public Sigstore cannot be had.
    """
    if len(bundle) > MAX_BUNDLE_BYTES:
        raise UntrustedSignature(too_large(len(bundle)))
    models = _sigstore()
    verifier = _verifier(rule, offline)
    found = _Found()
    try:
        check_json(bundle)
        parsed = models.Bundle.from_json(bundle)
    except Exception as error:  # noqa: BLE001 - a stranger's bytes, for which its parsers raise what they like
        raise UntrustedSignature(f"its {BUNDLE_FILE} is no Sigstore bundle: {_line(error)}") from None
    try:
        verifier.verify_artifact(metadata, parsed, found)
    except Exception as error:  # noqa: BLE001 - the same: certificates and log entries are a stranger's as well
        raise UntrustedSignature(f"its signature is not valid: {_line(error)}") from None
    return allowed(found.identity, rule)


def allowed(identity: Identity, rule: Rule) -> Identity:
    """The identity, where a rule lets it sign.

    Raises:
        UntrustedSignature: It does not; the message says in what they differ.
    """
    if identity in rule.signers:
        return identity
    if not rule.signers:
        raise UntrustedSignature(
            f"it is signed by {identity}, and {rule.where} allows nobody to sign for this repository"
        )
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


def too_large(size: int) -> str:
    """What is wrong with a bundle of that many bytes."""
    return f"its {BUNDLE_FILE} has {size} bytes; no bundle has more than {MAX_BUNDLE_BYTES}, and it was not read"


class _Found:
    """What sigstore takes for a policy: it remembers who signed, for a judgement once all the rest is known valid."""

    identity: Identity

    def verify(self, cert: Any) -> None:
        """Called by sigstore with the certificate, after its chain was checked."""
        self.identity = Identity(**{name: _extension(cert, *where) for name, where in _EXTENSIONS.items()})


def _extension(cert: Any, what: str, oid: str) -> str:
    from cryptography.hazmat import asn1
    from cryptography.x509 import ExtensionNotFound, ObjectIdentifier

    try:
        value = cert.extensions.get_extension_for_oid(ObjectIdentifier(oid)).value.value
    except ExtensionNotFound:
        raise ValueError(f"the certificate names no {what} ({oid})") from None
    return asn1.decode_der(str, value)


def _verifier(rule: Rule, offline: bool) -> Any:
    key = (None, offline) if rule.trusted_root is None else (rule.key, True)
    with _making:
        if key not in _verifiers:
            _verifiers[key] = _public(offline) if rule.trusted_root is None else _private(rule)
        return _verifiers[key]


def _private(rule: Rule) -> Any:
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier

    rule.root_content()  # a file that cannot be read is told apart from one that is no trusted root
    try:
        return Verifier(trusted_root=TrustedRoot.from_file(str(rule.trusted_root)))
    except Exception as error:  # noqa: BLE001 - its parsers raise what they like
        raise RequestError(f"{rule.trusted_root} is no Sigstore trusted root: {_line(error)}.") from None


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
        raise HubUnavailable(f"The keys of the public Sigstore cannot be had: {_line(error)}. {way}.") from error


def _sigstore() -> Any:
    try:
        from sigstore import models
    except ImportError as error:
        raise MissingPythonDependency(
            'Checking a signature needs the package sigstore, which is not installed: pip install "kernels[sign]"'
        ) from error
    # Told to work offline it warns that it does, and without a handler a warning lands on standard error.
    logging.getLogger("sigstore").addHandler(logging.NullHandler())
    return models


def _line(error: BaseException) -> str:
    # Of the parser's own words, what follows is the input again and a link to its manual.
    return format_text(error_on_one_line(error, 1000).partition(" [type=")[0]).rstrip(".")
