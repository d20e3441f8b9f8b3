"""Policies are data: who may sign for which repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.errors import RequestError
from kernels.trust.policy import Identity, Policy, active_policy

GITHUB = "https://token.actions.githubusercontent.com"

SIGNERS = """\
issuer = "https://token.actions.githubusercontent.com"
source-repository = "https://github.com/acme/kernels"
workflows = [".github/workflows/build.yaml"]
ref = "refs/heads/main"
"""


def read(tmp_path: Path, text: str) -> Policy:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return Policy.read(path)


def test_the_policy_of_this_package_knows_the_community_publisher_and_demands_nothing() -> None:
    policy = Policy.community()
    rule = policy.rule("kernels-community/activation")
    source = "https://github.com/huggingface/kernels-community"
    assert rule.signers == tuple(
        Identity(GITHUB, source, f"{source}/.github/workflows/{name}.yaml@refs/heads/main")
        for name in ("build", "build-mac", "build-windows", "sign-old-builds")
    )
    assert not rule.required
    assert policy.rule("kernels-community-2/activation").signers == ()
    assert policy.rule("acme/relu").signers == ()


def test_a_workflow_is_a_path_in_the_source_repository_or_a_url(tmp_path: Path) -> None:
    shared = "https://github.com/acme/ci/.github/workflows/sign.yaml"
    text = SIGNERS.replace('build.yaml"', f'build.yaml", "{shared}"').replace("refs/heads/main", "refs/tags/v2")
    policy = read(tmp_path, f'[[repositories."acme/*".signers]]\n{text}')
    assert [each.workflow for each in policy.rule("acme/relu").signers] == [
        "https://github.com/acme/kernels/.github/workflows/build.yaml@refs/tags/v2",
        f"{shared}@refs/tags/v2",
    ]


def test_the_nearest_name_counts_and_nothing_of_the_others(tmp_path: Path) -> None:
    policy = read(
        tmp_path,
        f"""\
require-signature = true
trusted-root = "roots/all.json"
[repositories."acme/*"]
signers = [{{ {", ".join(SIGNERS.splitlines())} }}]
[repositories."acme/relu"]
require-signature = false
trusted-root = "/etc/acme.json"
""",
    )
    every, relu, other = (policy.rule(name) for name in ("acme/gelu", "acme/relu", "other/relu"))
    assert (len(every.signers), every.required, every.trusted_root) == (1, True, tmp_path / "roots/all.json")
    assert (relu.signers, relu.required, relu.trusted_root) == ((), False, Path("/etc/acme.json"))
    assert (other.signers, other.required, other.trusted_root) == ((), True, tmp_path / "roots/all.json")


def test_a_name_counts_in_every_spelling(tmp_path: Path) -> None:
    policy = read(tmp_path, '[repositories."Acme/*"]\nrequire-signature = true')
    assert all(policy.rule(name).required for name in ("acme/relu", "ACME/ReLU", "Acme/relu"))
    with pytest.raises(RequestError, match=r":2: .*acme/\*.* is named twice, in two spellings"):
        read(tmp_path, '[repositories."Acme/*"]\n[repositories."acme/*"]')


def test_a_policy_adds_to_that_of_this_package_and_may_replace_it(tmp_path: Path) -> None:
    known = read(tmp_path, "require-signature = true").rule("kernels-community/activation")
    assert (len(known.signers), known.required) == (4, True)
    replaced = read(tmp_path, f'[[repositories."kernels-community/*".signers]]\n{SIGNERS}')
    assert len(replaced.rule("kernels-community/activation").signers) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("require-signature = 1", r":1: `require-signature` is 1; expected true or false"),
        ("\nrequire_signature = true", r":2: policy\.toml has the unknown key `require_signature`; expected repo.*"),
        ("trusted-root = []", r":1: `trusted-root` is \[\]; expected the path of"),
        ("repositories = []", r":1: `repositories` is \[\]; expected a section"),
        ("[repositories.relu]", r':1: .*expected "org/name", or "org/\*" for all of org, got .*relu'),
        ('[repositories."*"]', r":1: expected .org/name., or"),
        ('[repositories."acme/*/x"]', r":1: expected .org/name., or"),
        ('[repositories."acme/relu"]\nsigner = []', r":2: .*unknown key `signer`; expected require-signature, sig"),
        ('[repositories."acme/relu"]\nsigners = {}', r":2: .*signers` is \{\}; expected a list of tables"),
        ('[[repositories."a/b".signers]]', r":1: .*issuer` is missing; expected a URL such as"),
        (f'[[repositories."a/b".signers]]\n{SIGNERS}email = "a@b"', r":6: .*unknown key `email`; expected issuer,"),
        ("require-signature = tru", r":1: not valid TOML"),
    ],
    ids=[
        "flag", "spelling", "root", "repositories", "name", "star", "path", "signer", "table", "no issuer", "email",
        "TOML",
    ],
)  # fmt: skip
def test_what_is_no_policy_is_an_error_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("https://token", "http://token", r"issuer` is 'http://token.*; expected a URL such as"),
        ("kernels\"", "kernels/\"", r"source-repository` is 'https://github.com/acme/kernels/'; expected a URL"),
        ("refs/heads/main", "main", r"ref` is 'main'; expected a branch or tag such as \"refs/heads/main\""),
        ("build.yaml", "build.yaml@main", r"workflows\[0\]` is '.github/workflows/build.yaml@main'; expected a path"),
        ('".github', '"/.github', r"workflows\[0\]` is '/.github"),
        ('[".github/workflows/build.yaml"]', "[]", r"workflows` is missing; expected a list, each a path"),
    ],
    ids=["issuer", "repository", "ref", "workflow with a ref", "workflow's path", "no workflow"],
)  # fmt: skip
def test_an_identity_that_no_certificate_has_is_an_error(old: str, new: str, message: str, tmp_path: Path) -> None:
    text = SIGNERS.replace(old, new)
    assert text != SIGNERS
    with pytest.raises(RequestError, match=message):
        read(tmp_path, f'[[repositories."a/b".signers]]\n{text}')


def test_a_policy_that_is_not_there_is_named_with_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_POLICY", str(tmp_path / "policy.toml"))
    with pytest.raises(RequestError, match=r"`KERNELS_POLICY` is '.*policy\.toml'; expected a TOML file that exists"):
        active_policy()


def test_a_policy_that_changes_counts_at_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELS_POLICY", raising=False)
    assert active_policy() is None
    path = tmp_path / "policy.toml"
    monkeypatch.setenv("KERNELS_POLICY", str(path))
    for required in (True, False):
        path.write_text(f"require-signature = {str(required).lower()}")
        policy = active_policy()
        assert policy is not None
        assert policy.required is required
