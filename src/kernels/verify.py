"""Verify the signature and the files of one build on disk, for programs that do not use `kernels verify`.

These names are at the path where the existing client has them. `kernels.trust` decides.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

from kernels.errors import InvalidMetadata, UntrustedSignature
from kernels.models.metadata import Metadata
from kernels.trust.content import BuildContent
from kernels.trust.policy import Identity, Policy, Rule, policy_to_verify
from kernels.trust.sigstore import allowed, check_signature, parse_bundle, read_signed, signer_of, verify_bundle

__all__ = [
    "DEFAULT_POLICIES",
    "DigestViolation",
    "GitHubWorkflowPolicy",
    "SignerPolicy",
    "VerificationResult",
    "verify_variant",
]

_GITHUB = "https://token.actions.githubusercontent.com"


class SignerPolicy(Protocol):
    """Who may sign, as sigstore asks it: any policy of `sigstore.verify.policy`."""

    def verify(self, cert: Any) -> None:
        """Raise `sigstore.errors.VerificationError` for a certificate of a signer who may not.

        Args:
            cert: The signer's certificate, a `cryptography.x509.Certificate`.
        """


class GitHubWorkflowPolicy:
    """Allows signatures that workflows of one GitHub repository made.

    Args:
        repo_id: The repository on GitHub, `org/name`.
        signer_uris: URLs of the workflows with their refs,
            `https://github.com/<org>/<name>/.github/workflows/<file>.yaml@refs/heads/main`.

    Raises:
        ValueError: `signer_uris` is empty.

    Example:
        >>> workflow = "https://github.com/acme/kernels/.github/workflows/build.yaml@refs/heads/main"
        >>> GitHubWorkflowPolicy(repo_id="acme/kernels", signer_uris=[workflow]).repo_id
        'acme/kernels'
    """

    def __init__(self, *, repo_id: str, signer_uris: Sequence[str]) -> None:
        if not signer_uris:
            raise ValueError("`signer_uris` is empty; expected the URL of at least one workflow.")
        self.repo_id = repo_id
        self.signer_uris = list(signer_uris)
        source = f"https://github.com/{repo_id}"
        signers = tuple(Identity(_GITHUB, source, uri) for uri in self.signer_uris)
        self._rule = Rule(signers, where=f"the policy for {repo_id}")

    def verify(self, cert: Any) -> None:
        """Raise `sigstore.errors.VerificationError` for a certificate of a signer who may not.

        Args:
            cert: The certificate, of `cryptography`.
        """
        from sigstore.errors import VerificationError

        try:
            allowed(signer_of(cert), self._rule)
        except ValueError as error:
            raise VerificationError(str(error)) from None


def _community() -> list[SignerPolicy]:
    found: dict[str, list[str]] = {}
    for rule in Policy.community().all_rules():
        for signer in rule.signers:
            found.setdefault(signer.source_repository.removeprefix("https://github.com/"), []).append(signer.workflow)
    return [GitHubWorkflowPolicy(repo_id=repo_id, signer_uris=uris) for repo_id, uris in found.items()]


DEFAULT_POLICIES: list[SignerPolicy] = _community()
"""The signers that this package knows."""


@dataclass(frozen=True)
class DigestViolation:
    """A file that is not as the digest in the metadata has it.

    Attributes:
        path: The file's POSIX path in the build's folder.
        MissingFile: The kind for a file that the digest has and the folder does not.
        UnknownFile: The kind for a file that the folder has and the digest does not.
        HashMismatch: The kind for a file with other content; `expected` and `got` are base64.
    """

    path: str

    MissingFile: ClassVar[type[DigestViolation]]
    UnknownFile: ClassVar[type[DigestViolation]]
    HashMismatch: ClassVar[type[DigestViolation]]


@dataclass(frozen=True)
class _MissingFile(DigestViolation):
    """The digest has the file, and the folder does not."""

    def __str__(self) -> str:
        return f"Missing file: {self.path}"


@dataclass(frozen=True)
class _UnknownFile(DigestViolation):
    """The folder has the file, and the digest does not."""

    def __str__(self) -> str:
        return f"Unknown file: {self.path}"


@dataclass(frozen=True)
class _HashMismatch(DigestViolation):
    """The file's content is another one; `expected` and `got` are base64."""

    expected: str
    got: str

    def __str__(self) -> str:
        return f"File hash mismatch for {self.path}: expected {self.expected}, got {self.got}"


DigestViolation.MissingFile = _MissingFile
DigestViolation.UnknownFile = _UnknownFile
DigestViolation.HashMismatch = _HashMismatch


class VerificationResult:
    """What `verify_variant` returns: one of these, compared with `==` or matched with `match`.

    Attributes:
        Any: Any of these, for type hints.
    """

    @dataclass
    class Success:
        """An allowed signer signed the metadata, and the files are those in its digest."""

    @dataclass
    class SignatureBundleMissing:
        """There is no `metadata.json.sigstore`."""

    @dataclass
    class SignatureBundleInvalid:
        """`metadata.json.sigstore` is not a Sigstore bundle.

        Attributes:
            reason: Why.
        """

        reason: str

    @dataclass
    class SignatureVerificationFailure:
        """The signature is not valid, or its signer is not allowed.

        Attributes:
            reason: Why.
        """

        reason: str

    @dataclass
    class MetadataMissing:
        """There is a signature and no `metadata.json`."""

    @dataclass
    class MetadataInvalid:
        """`metadata.json` was signed as it is, and is not valid.

        Attributes:
            reason: Why.
        """

        reason: str

    @dataclass
    class DigestMissing:
        """The metadata has no digest: the signature says nothing about the files."""

    @dataclass
    class DigestVerificationFailure:
        """Files are not as the digest has them.

        Attributes:
            violations: The files, by their paths.
        """

        violations: list[DigestViolation]

    Any: TypeAlias = (
        Success
        | SignatureBundleMissing
        | SignatureBundleInvalid
        | SignatureVerificationFailure
        | MetadataMissing
        | MetadataInvalid
        | DigestMissing
        | DigestVerificationFailure
    )


def verify_variant(
    variant_path: os.PathLike[str] | str, policies: Sequence[SignerPolicy] | None = None
) -> VerificationResult.Any:
    """Verify one build on disk: the signature before the metadata is parsed, then the files.

    Args:
        variant_path: The folder of the variant.
        policies: Who may sign; one of them must allow the signer. The default is the policy that `KERNELS_POLICY`
            names, else the one of this package.

    Returns:
        What was found. Only `VerificationResult.Success` means that the build is what an allowed signer published.

    Raises:
        MissingPythonDependency: There is a signature, and sigstore is not installed (an `ImportError`).
        InvalidRepository: The folder holds what no digest can describe, such as a link to a folder (a `ValueError`).
        HubUnavailable: The keys of the public Sigstore are not available (a `ConnectionError`).
        OSError: A file cannot be read.

    Example:
        >>> import tempfile
        >>> verify_variant(tempfile.mkdtemp())
        VerificationResult.SignatureBundleMissing()
    """
    folder, policy = Path(variant_path), policy_to_verify()
    try:
        content, bundle = read_signed(folder)
        if bundle is None:
            return VerificationResult.SignatureBundleMissing()
        parsed = parse_bundle(bundle)
    except UntrustedSignature as error:
        return VerificationResult.SignatureBundleInvalid(str(error))
    except InvalidMetadata as error:
        return VerificationResult.MetadataInvalid(str(error))
    if content is None:
        return VerificationResult.MetadataMissing()
    try:
        if policies is None:
            verify_bundle(content, bundle, policy.all_rules())
        else:
            from sigstore.verify.policy import AnyOf

            check_signature(content, parsed, AnyOf(list(policies)), Rule(trusted_root=policy.trusted_root))
    except UntrustedSignature as error:
        return VerificationResult.SignatureVerificationFailure(str(error))
    try:
        digest = Metadata.from_bytes(content).digest
    except InvalidMetadata as error:
        return VerificationResult.MetadataInvalid(str(error))
    if digest is None:
        return VerificationResult.DigestMissing()
    violations = [_violation(path, *each) for path, each in BuildContent(folder).differences(digest).items()]
    return VerificationResult.DigestVerificationFailure(violations) if violations else VerificationResult.Success()


def _violation(path: str, expected: str | None, got: str | None) -> DigestViolation:
    if got is None:
        return _MissingFile(path)
    return _UnknownFile(path) if expected is None else _HashMismatch(path, expected, got)
