"""Signing with Sigstore: no key, but the identity that a CI gives to its workflows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kernels import settings
from kernels.errors import HubUnavailable, MissingPythonDependency, RequestError
from kernels.support.formatting import error_on_one_line

__all__ = ["keyless_signer"]


def keyless_signer() -> Callable[[bytes], str]:
    """What signs bytes with the public Sigstore and returns the text of the bundle.

    The identity is that of the machine: of a workflow in GitHub Actions (`id-token: write`), GitLab, Buildkite,
    CircleCI or Google Cloud, as sigstore finds it. A certificate serves for several signatures.

    Raises:
        RequestError: The machine has no identity.
        MissingPythonDependency: sigstore is not installed.
        HubUnavailable: Sigstore did not answer, or `HF_HUB_OFFLINE` is set.
    """
    try:
        from sigstore.models import ClientTrustConfig
        from sigstore.oidc import IdentityError, IdentityToken, detect_credential
        from sigstore.sign import Signer, SigningContext
    except ImportError as error:
        raise MissingPythonDependency(
            "Signing with Sigstore needs the package sigstore, which is not installed: "
            "pip install sigstore (the extra `sign`)"
        ) from error

    if settings.offline():
        raise HubUnavailable(
            "Signing with Sigstore needs a network, and HF_HUB_OFFLINE is set. Nothing was signed. Without a network, "
            "sign with a key (--sign-key FILE)."
        )

    def renew() -> Signer:
        try:
            token = detect_credential()
        except IdentityError as error:
            raise RequestError(f"This machine gives no identity for Sigstore: {_line(error)}. {_WAYS}") from None
        if token is None:
            raise RequestError(f"This machine gives no identity for Sigstore. {_WAYS}")
        with SigningContext.from_trust_config(ClientTrustConfig.production()).signer(IdentityToken(token)) as signer:
            return signer

    with _answers():
        signer, made = renew(), time.monotonic()

    def sign(content: bytes) -> str:
        nonlocal made, signer
        with _answers():
            if time.monotonic() - made > _RENEW_SECONDS:
                signer, made = renew(), time.monotonic()
            return signer.sign_artifact(content).to_json()

    return sign


#: A certificate is valid for ten minutes, and the signature must be logged within them.
_RENEW_SECONDS = 300.0

_WAYS = (
    "Run in a CI whose workflows have one (GitHub Actions with `permissions: id-token: write`), or sign with a key "
    "(--sign-key FILE)."
)


@contextmanager
def _answers() -> Iterator[None]:
    try:
        yield
    except RequestError:
        raise
    except Exception as error:  # it asks servers and parses, each with its own errors
        raise HubUnavailable(f"Sigstore gave no signature: {_line(error)}. Nothing was signed.") from error


def _line(error: BaseException) -> str:
    return error_on_one_line(error).rstrip(".")
