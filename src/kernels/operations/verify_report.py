"""The report on one build on disk: digest, pinned content and signature, each with a result."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from kernels.errors import InvalidMetadata, KernelsError, StoreError, UntrustedSignature
from kernels.models.metadata import MAX_METADATA_BYTES, Metadata
from kernels.models.snapshot import BUNDLE_FILE, METADATA_FILE
from kernels.resolver.read_metadata import check_signed_version
from kernels.support.checks import CheckResult
from kernels.support.files import FileTooLarge, NotRegularFile, read_bounded
from kernels.support.formatting import plural
from kernels.trust.content import BuildContent
from kernels.trust.policy import Identity, Rule
from kernels.trust.sigstore import MAX_BUNDLE_BYTES, too_large, verify_bundle

__all__ = ["NOT_PINNED", "BuildReport", "report_on_folder"]

NOT_PINNED = CheckResult("pinned", "missing", "no lockfile pins its content")


class BuildReport(msgspec.Struct, frozen=True):
    """The results of the checks of one build on disk.

    Attributes:
        repo_id: Its repository; None for a folder.
        commit: The commit; None for a folder.
        variant: Its name.
        digest: Whether its files are those in the digest of its metadata.
        pinned: Whether its content is what a lock pins.
        signature: Whether its metadata is signed by an identity that the policy allows.
        signer: Who signed, where the signature is accepted.
        untrusted: Whether the Hub says that the publisher is not trusted, or that no branch or tag leads to the commit:
            `get_kernel` refuses the build unless the caller allows it.
    """

    repo_id: str | None
    commit: str | None
    variant: str
    digest: CheckResult
    pinned: CheckResult
    signature: CheckResult
    signer: Identity | None = None
    untrusted: bool = False

    @property
    def results(self) -> tuple[CheckResult, CheckResult, CheckResult]:
        """The results in the order of tables."""
        return self.digest, self.pinned, self.signature

    @property
    def failed(self) -> bool:
        """Whether a check failed."""
        return any(each.verdict == "failed" for each in self.results)

    def requiring(self, steps: Collection[str]) -> BuildReport:
        """The same report, in which each of these checks that is not ok has failed.

        Args:
            steps: `digest`, `pinned` or `signature`.
        """
        unmet = {
            each.step: CheckResult(each.step, "failed", f"{each.what}, and --require {each.step}")
            for each in self.results
            if each.step in steps and each.verdict not in ("ok", "failed")
        }
        return msgspec.structs.replace(self, **unmet) if unmet else self

    @property
    def problems(self) -> str:
        """The failed results, on one line."""
        reasons = [" ".join(each.what.split()).rstrip(".") for each in self.results if each.verdict == "failed"]
        return "; ".join(dict.fromkeys(reasons))


def report_on_folder(
    folder: Path,
    rules: Sequence[Rule],
    *,
    pinned: CheckResult = NOT_PINNED,
    offline: bool = False,
    version: int | None = None,
    remedy: str = "Build or download it again.",
) -> BuildReport:
    """Check one build's folder: the signature before the metadata is parsed, then the files.

    Args:
        folder: The build's folder.
        rules: Who may sign; one of the rules must accept the signature.
        pinned: The result of comparing the content with what a lock pins.
        offline: Use the keys that are on this machine.
        version: The version that must have been signed; None if the caller names no version.
        remedy: What to do if the files are not those in the digest.

    Raises:
        MissingPythonDependency: There is a signature, and sigstore is not installed (an `ImportError`).
        RequestError, HubUnavailable: The keys to verify with are not available.
    """
    metadata, signer = None, None
    try:
        metadata = _read(folder / METADATA_FILE, MAX_METADATA_BYTES)
        bundle = _read(folder / BUNDLE_FILE, MAX_BUNDLE_BYTES)
        signature, signer = _check_signature(metadata, bundle, rules, offline)
        if signer is not None and metadata is not None:
            with suppress(InvalidMetadata):  # reported by the digest, which is in it
                check_signed_version(version, Metadata.from_bytes(metadata))
    except (UntrustedSignature, InvalidMetadata, StoreError) as error:
        signature, signer = CheckResult("signature", "failed", str(error)), None
    if signature.verdict == "failed":
        # Metadata that is not what was signed is not parsed.
        digest = CheckResult("digest", "skipped", "the metadata is not what was signed")
    else:
        digest = _check_digest(folder, metadata, remedy)
        if signer is not None and digest.verdict == "missing" and any(rule.required for rule in rules):
            digest = CheckResult("digest", "failed", f"{digest.what}: the signature does not cover the files")
    return BuildReport(None, None, folder.name, digest, pinned, signature, signer)


def _read(path: Path, limit: int) -> bytes | None:
    try:
        return read_bounded(path, limit)
    except FileNotFoundError:
        return None
    except NotRegularFile:
        raise StoreError(f"Cannot read {path}: it is not a file.") from None
    except FileTooLarge:
        if path.name == BUNDLE_FILE:
            raise UntrustedSignature(too_large(path.stat().st_size)) from None
        raise InvalidMetadata(f"{path.name} has more than {limit} bytes, the most that are read") from None
    except OSError as error:
        raise StoreError(f"Cannot read {path}: {error.strerror or error}.") from error


def _check_signature(
    metadata: bytes | None, bundle: bytes | None, rules: Sequence[Rule], offline: bool
) -> tuple[CheckResult, Identity | None]:
    required = next((rule for rule in rules if rule.required), None)
    if bundle is None:
        if required is not None:
            return CheckResult("signature", "failed", f"unsigned, and {required.where} requires a signature"), None
        return CheckResult("signature", "missing", f"unsigned: it has no {BUNDLE_FILE}"), None
    if metadata is None:
        return CheckResult("signature", "failed", f"it has a {BUNDLE_FILE} and no {METADATA_FILE}"), None
    refused: list[str] = []
    for rule in rules:
        try:
            signer = verify_bundle(metadata, bundle, rule, offline=offline)
        except UntrustedSignature as error:
            refused.append(str(error))
        else:
            return CheckResult("signature", "ok", f"signed by {signer}"), signer
    return CheckResult("signature", "failed", "; ".join(dict.fromkeys(refused))), None


def _check_digest(folder: Path, metadata: bytes | None, remedy: str) -> CheckResult:
    if metadata is None:
        return CheckResult("digest", "missing", f"it has no {METADATA_FILE}")
    try:
        digest = Metadata.from_bytes(metadata).digest
        if digest is None:
            return CheckResult("digest", "missing", f"its {METADATA_FILE} has no digest")
        BuildContent(folder).check_digest(digest, remedy)
    except (KernelsError, OSError) as error:
        return CheckResult("digest", "failed", str(error))
    return CheckResult("digest", "ok", f"{digest.algorithm} of {plural(len(digest.files), 'file')}")
