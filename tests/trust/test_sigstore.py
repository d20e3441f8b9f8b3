"""A bundle is verified by sigstore itself, and its signer against the policy."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sigstore_root import ACME, OTHERS, SigstoreRoot, Workflow

from kernels.errors import HubUnavailable, MissingPythonDependency, RequestError, UntrustedSignature
from kernels.trust.policy import Identity, Rule
from kernels.trust.sigstore import MAX_BUNDLE_BYTES, verify_bundle

METADATA = b'{"name": "relu"}'
ALLOWED = Identity(str(ACME.issuer), str(ACME.repository), ACME.signer)


@pytest.fixture
def rule(root: SigstoreRoot, tmp_path: Path) -> Rule:
    return Rule((ALLOWED,), True, root.write(tmp_path / "trusted_root.json"), "policy.toml")


def refusal(metadata: bytes, bundle: bytes, rule: Rule) -> str:
    with pytest.raises(UntrustedSignature) as caught:
        verify_bundle(metadata, bundle, [rule], offline=True)
    return str(caught.value)


def test_a_bundle_over_these_bytes_by_an_allowed_workflow_says_who_signed(root: SigstoreRoot, rule: Rule) -> None:
    assert verify_bundle(METADATA, root.sign(METADATA), [rule], offline=True) == ALLOWED


def test_long_ago_is_no_reason_to_refuse(root: SigstoreRoot, rule: Rule) -> None:
    # The certificate lasts ten minutes: what counts is that the signature was logged within them.
    bundle = root.sign(METADATA, after=timedelta(minutes=9))
    assert verify_bundle(METADATA, bundle, [rule], offline=True) == ALLOWED


@pytest.mark.parametrize("who", list(OTHERS))
def test_a_valid_signature_of_somebody_else_is_refused_with_what_differs(
    who: str, root: SigstoreRoot, rule: Rule
) -> None:
    message = refusal(METADATA, root.sign(METADATA, OTHERS[who]), rule)
    what = {
        "another workflow": f"the workflow {OTHERS[who].signer}; policy.toml allows {ACME.signer}",
        "another branch": "the workflow https://github.com/acme/kernels/.github/workflows/build.yaml@refs/heads/attack",
        "another repository": "the source repository https://github.com/evil/kernels; policy.toml allows https://github",
        "another repository, the same workflow": "the source repository https://github.com/evil/kernels; policy.toml",
        "another issuer": "the OIDC issuer https://issuer.example; policy.toml allows https://token.actions",
    }[who]
    assert message.startswith("it is signed with ")
    assert what in message


def test_parts_of_two_allowed_identities_are_not_an_identity(root: SigstoreRoot, rule: Rule) -> None:
    other = Identity("https://issuer.example", "https://github.com/evil/kernels", ACME.signer)
    both = msgspec.structs.replace(rule, signers=(ALLOWED, other))
    mixed = replace(OTHERS["another repository, the same workflow"], issuer=ACME.issuer)
    assert "policy.toml forbids" in refusal(METADATA, root.sign(METADATA, mixed), both)


@pytest.mark.parametrize("missing", ["issuer", "repository"])
def test_a_certificate_that_does_not_say_who_is_refused(missing: str, root: SigstoreRoot, rule: Rule) -> None:
    workflow = replace(Workflow(url="https://github.com/acme/kernels/.github/workflows/build.yaml"), **{missing: None})
    assert "the certificate has no" in refusal(METADATA, root.sign(METADATA, workflow), rule)


def test_where_nobody_may_sign_the_signer_is_named(root: SigstoreRoot, rule: Rule) -> None:
    message = refusal(METADATA, root.sign(METADATA), msgspec.structs.replace(rule, signers=()))
    assert message == f"it is signed by {ACME.signer}, and policy.toml allows no signer for this repository"


def test_metadata_that_changed_after_it_was_signed_is_refused(root: SigstoreRoot, rule: Rule) -> None:
    assert "not valid" in refusal(METADATA + b" ", root.sign(METADATA), rule)


def test_a_signature_over_other_bytes_that_claims_these_is_refused(root: SigstoreRoot, rule: Rule) -> None:
    bundle, wanted = json.loads(root.sign(b"other")), json.loads(root.sign(METADATA))
    bundle["messageSignature"]["messageDigest"] = wanted["messageSignature"]["messageDigest"]
    assert "Signature is invalid for input" in refusal(METADATA, json.dumps(bundle).encode(), rule)


def test_a_signature_made_when_the_certificate_had_expired_is_refused(root: SigstoreRoot, rule: Rule) -> None:
    assert "not valid at validation time" in refusal(METADATA, root.sign(METADATA, after=timedelta(hours=1)), rule)
    assert "not valid at validation time" in refusal(METADATA, root.sign(METADATA, after=-timedelta(hours=1)), rule)


def test_another_sigstore_is_not_believed(rule: Rule) -> None:
    assert "not valid" in refusal(METADATA, SigstoreRoot().sign(METADATA), rule)


def changed(bundle: bytes, *path: str | int, value: Any) -> bytes:
    data = json.loads(bundle)
    part = data
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return json.dumps(data).encode()


ENTRY = ("verificationMaterial", "tlogEntries", 0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*ENTRY, "integratedTime"), "1767323046"),
        ((*ENTRY, "inclusionProof", "rootHash"), "AAAA"),
        ((*ENTRY, "inclusionProof", "hashes"), []),
        ((*ENTRY, "inclusionPromise", "signedEntryTimestamp"), "AAAA"),
        ((*ENTRY, "canonicalizedBody"), "e30="),
        ((*ENTRY, "inclusionPromise"), None),
        (("messageSignature", "signature"), "AAAA"),
        (("messageSignature",), None),
        (("verificationMaterial", "certificate", "rawBytes"), "AAAA"),
        (("verificationMaterial", "tlogEntries"), []),
        (("mediaType",), "text/plain"),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else "to",
)
def test_no_part_of_a_bundle_can_be_changed(
    path: tuple[str | int, ...], value: Any, root: SigstoreRoot, rule: Rule
) -> None:
    assert refusal(METADATA, changed(root.sign(METADATA), *path, value=value), rule).startswith("its ")


@pytest.mark.parametrize(
    "bundle",
    [b"", b"{}", b"[]", b"null", b"not JSON", b"\xff\xfe", b"[" * 500_000, b'{"a":' * 100_000],
    ids=["empty", "object", "list", "null", "text", "bytes", "deep lists", "deep objects"],
)
def test_garbage_is_no_bundle(bundle: bytes, rule: Rule) -> None:
    message = refusal(METADATA, bundle, rule)
    assert message.startswith("its metadata.json.sigstore is not a Sigstore bundle: ")
    assert len(message) < 500


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_a_truncated_bundle_is_no_bundle(part: float, root: SigstoreRoot, rule: Rule) -> None:
    bundle = root.sign(METADATA)
    assert "is not a Sigstore bundle" in refusal(METADATA, bundle[: int(len(bundle) * part)], rule)


def test_a_bundle_of_more_than_a_mebibyte_is_not_parsed(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sigstore", None)  # so that parsing would fail in another way
    assert "1048577 bytes; at most 1048576 are read" in refusal(b"", b" " * (MAX_BUNDLE_BYTES + 1), rule)


def test_without_sigstore_the_error_names_the_extra(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sigstore", None)
    with pytest.raises(MissingPythonDependency, match="pip install sigstore"):
        verify_bundle(METADATA, b"{}", [rule], offline=True)


@pytest.mark.parametrize("content", [b"", b"{}", b"not JSON"], ids=["empty", "object", "text"])
def test_a_file_that_is_no_trusted_root_is_named(content: bytes, root: SigstoreRoot, rule: Rule) -> None:
    assert rule.trusted_root is not None
    rule.trusted_root.write_bytes(content)
    with pytest.raises(RequestError, match=r"trusted_root\.json is not a Sigstore trusted root"):
        verify_bundle(METADATA, root.sign(METADATA), [rule], offline=True)


def test_a_trusted_root_that_is_not_there_is_named(root: SigstoreRoot, rule: Rule, tmp_path: Path) -> None:
    gone = msgspec.structs.replace(rule, trusted_root=tmp_path / "gone.json")
    with pytest.raises(RequestError, match=r"gone\.json cannot be read: No such file"):
        verify_bundle(METADATA, root.sign(METADATA), [gone], offline=True)


def test_offline_the_public_sigstore_is_verified_with_the_keys_that_are_here(
    root: SigstoreRoot, own_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # No test can have a signature of the public Sigstore made; that of another one is refused by its real keys.
    assert "its signature is not valid" in refusal(METADATA, root.sign(METADATA), Rule((ALLOWED,)))
    assert list(own_home.rglob("trusted_root.json")) != []
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("unreachable")
def test_where_the_keys_cannot_be_refreshed_the_error_says_how_to_do_without(root: SigstoreRoot) -> None:
    with pytest.raises(HubUnavailable, match=r"are not available: TUFError.*`kernels verify --offline`.*trusted-root"):
        verify_bundle(METADATA, root.sign(METADATA), [Rule((ALLOWED,))], offline=False)


@pytest.mark.usefixtures("unreachable")
def test_with_the_variable_for_offline_the_keys_are_not_refreshed(
    root: SigstoreRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UntrustedSignature, match="its signature is not valid"):
        verify_bundle(METADATA, root.sign(METADATA), [Rule((ALLOWED,))])


def test_offline_without_keys_the_error_says_where_to_get_them(root: SigstoreRoot, own_home: Path) -> None:
    own_home.write_text("a file where sigstore wants a folder")
    with pytest.raises(
        HubUnavailable, match=r"keys of the public Sigstore are not available.*Verify once while online"
    ):
        verify_bundle(METADATA, root.sign(METADATA), [Rule((ALLOWED,))], offline=True)
