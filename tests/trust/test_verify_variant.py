"""`kernels.verify`: one build on disk, for programs that come from the existing client."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import make_repo

from kernels.models.metadata import MAX_METADATA_BYTES
from kernels.verify import (
    DEFAULT_POLICIES,
    DigestViolation,
    GitHubWorkflowPolicy,
    VerificationResult,
    verify_variant,
)

Sign = Callable[..., None]

WORKFLOW = "https://github.com/acme/kernels/.github/workflows/build.yaml@refs/heads/main"
ACME = GitHubWorkflowPolicy(repo_id="acme/kernels", signer_uris=[WORKFLOW])
OTHER = GitHubWorkflowPolicy(repo_id="acme/other", signer_uris=[WORKFLOW])


@pytest.fixture
def build(isolated_env: Path, policy: Path, tmp_path: Path) -> Path:
    """A build with a digest, not signed; the policy in force believes the tests' Sigstore."""
    return make_repo(tmp_path / "hub", "acme/relu", digest=True) / "build" / "torch-cpu"


@pytest.fixture
def sign(sign_builds: Sign) -> Sign:
    return lambda build: sign_builds(build.parents[1])


@pytest.mark.parametrize("policies", [None, [ACME], [OTHER, ACME]])
def test_a_signed_build_with_its_files_succeeds(build: Path, sign: Sign, policies: Any) -> None:
    sign(build)
    assert verify_variant(build, policies) == VerificationResult.Success()
    assert verify_variant(str(build), policies=policies) == VerificationResult.Success()


def test_policies_of_sigstore_itself_can_be_given(build: Path, sign: Sign) -> None:
    from sigstore.verify import policy as policies

    sign(build)
    allowed = policies.OIDCSourceRepositoryURI("https://github.com/acme/kernels")
    refused = policies.OIDCSourceRepositoryURI("https://github.com/acme/other")
    assert verify_variant(build, [refused, allowed]) == VerificationResult.Success()
    assert isinstance(verify_variant(build, [refused]), VerificationResult.SignatureVerificationFailure)


@pytest.mark.parametrize("policies", [[OTHER], DEFAULT_POLICIES, []])
def test_another_signer_fails_with_a_reason(build: Path, sign: Sign, policies: Any) -> None:
    sign(build)
    match verify_variant(build, policies):
        case VerificationResult.SignatureVerificationFailure(reason=reason):
            assert "its signature is not valid" in reason
        case other:
            pytest.fail(f"{other}")


def test_every_file_that_differs_is_a_violation_with_its_kind(build: Path, sign: Sign) -> None:
    sign(build)
    (build / "layers.py").unlink()
    (build / "__init__.py").write_text("changed = True\n")
    (build / "extra.py").write_text("")
    found = verify_variant(build)
    assert isinstance(found, VerificationResult.DigestVerificationFailure)
    kinds = {violation.path: type(violation) for violation in found.violations}
    assert kinds == {
        "__init__.py": DigestViolation.HashMismatch,
        "extra.py": DigestViolation.UnknownFile,
        "layers.py": DigestViolation.MissingFile,
    }
    assert [str(each).partition(", got ")[0].partition(": expected ")[0] for each in found.violations] == [
        "File hash mismatch for __init__.py",
        "Unknown file: extra.py",
        "Missing file: layers.py",
    ]
    match found.violations[0]:
        case DigestViolation.HashMismatch(path=path, expected=expected, got=got):
            assert (path, expected != got) == ("__init__.py", True)
        case other:
            pytest.fail(f"{other}")


def test_each_thing_that_is_missing_or_broken_has_its_result(build: Path, sign: Sign) -> None:
    assert verify_variant(build) == VerificationResult.SignatureBundleMissing()
    assert verify_variant(build / "none") == VerificationResult.SignatureBundleMissing()

    (build / "metadata.json.sigstore").write_text("{}")
    assert isinstance(verify_variant(build), VerificationResult.SignatureBundleInvalid)

    content = json.loads((build / "metadata.json").read_text())
    (build / "metadata.json").write_text(json.dumps({**content, "digest": None}))
    sign(build)
    assert verify_variant(build) == VerificationResult.DigestMissing()

    (build / "metadata.json").write_text(json.dumps({**content, "name": "No Name"}))
    sign(build)
    assert isinstance(verify_variant(build), VerificationResult.MetadataInvalid)

    (build / "metadata.json").write_text(json.dumps(content))  # not what was signed
    assert isinstance(verify_variant(build), VerificationResult.SignatureVerificationFailure)

    (build / "metadata.json").write_bytes(b" " * (MAX_METADATA_BYTES + 1))
    assert isinstance(verify_variant(build), VerificationResult.MetadataInvalid)

    (build / "metadata.json").unlink()
    assert verify_variant(build) == VerificationResult.MetadataMissing()

    with (build / "metadata.json.sigstore").open("wb") as file:
        file.truncate(100_000_000)
    reason = "its metadata.json.sigstore has 100000000 bytes; at most 1048576 are read"
    assert verify_variant(build) == VerificationResult.SignatureBundleInvalid(reason)


def test_a_policy_names_at_least_one_workflow() -> None:
    with pytest.raises(ValueError, match="`signer_uris` is empty"):
        GitHubWorkflowPolicy(repo_id="acme/kernels", signer_uris=[])


def test_the_default_policies_are_those_of_this_package() -> None:
    [policy] = DEFAULT_POLICIES
    assert isinstance(policy, GitHubWorkflowPolicy)
    assert policy.repo_id == "huggingface/kernels-community"
    assert all(
        uri.startswith("https://github.com/huggingface/kernels-community/.github/") for uri in policy.signer_uris
    )
