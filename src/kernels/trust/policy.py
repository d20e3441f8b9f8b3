"""Policies: which identities may sign the builds of which repositories, read from a TOML file.

Most processes have none: then no file is read, and nothing that reads one is imported.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from kernels import settings
from kernels.errors import RequestError
from kernels.models.requirement import check_repo_id
from kernels.support.files import read_bounded
from kernels.support.formatting import format_text

if TYPE_CHECKING:
    from kernels.support.toml import Section

__all__ = ["Identity", "Policy", "Rule", "active_policy", "policy_to_verify"]

_COMMUNITY = Path(__file__).with_name("community.toml")
_PACKAGED = "the policy of this package"

#: The largest trusted root that is read; that of the public Sigstore has some 7 kB.
_MAX_ROOT_BYTES = 4 * 1024 * 1024

_URL = r"https://[^\s@]+[^\s@/]"
_WORKFLOW = r"(?!/)[^\s@:]+"
_REF = r"refs/[^\s@]+"


class Identity(msgspec.Struct, frozen=True):
    """The signer in a certificate: a workflow that ran in a repository.

    Attributes:
        issuer: The OIDC issuer of the identity.
        source_repository: URL of the repository whose sources were built.
        workflow: URL of the workflow with its ref: `https://…/build.yaml@refs/heads/main`.
    """

    issuer: str
    source_repository: str
    workflow: str

    def __str__(self) -> str:
        return format_text(self.workflow)


class Rule(msgspec.Struct, frozen=True):
    """The part of a policy for one repository.

    Attributes:
        signers: Who may sign its builds.
        required: Whether a build without a valid signature is refused.
        trusted_root: File with the keys of the trusted Sigstore; None for the public one.
        where: The policy's file, for messages.
    """

    signers: tuple[Identity, ...] = ()
    required: bool = False
    trusted_root: Path | None = None
    where: str = _PACKAGED

    @property
    def key(self) -> str:
        """A hash of everything that decides whether a signature is accepted.

        Raises:
            RequestError: The trusted root cannot be read.
        """
        signers = sorted((each.issuer, each.source_repository, each.workflow) for each in self.signers)
        root = None if self.trusted_root is None else hashlib.sha256(self.root_content()).hexdigest()
        return hashlib.sha256(msgspec.json.encode([signers, root])).hexdigest()

    def root_content(self) -> bytes:
        """The content of the trusted root's file.

        Raises:
            RequestError: It cannot be read.
        """
        assert self.trusted_root is not None
        try:
            return read_bounded(self.trusted_root, _MAX_ROOT_BYTES)
        except OSError as error:
            raise RequestError(
                f"The trusted root {self.trusted_root} cannot be read: {error.strerror or error}. Name a Sigstore "
                "trusted_root.json, or leave it out for the public Sigstore."
            ) from None


class Policy(msgspec.Struct, frozen=True):
    """Which identities may sign the builds of which repositories.

    Attributes:
        rules: By repository, `org/name`, or `org/*` for all of a publisher; in small letters.
        required: Whether repositories without a rule must be signed.
        trusted_root: The trusted root of those, and of rules that name none.
        where: The file, for messages.
    """

    rules: Mapping[str, Rule] = {}
    required: bool = False
    trusted_root: Path | None = None
    where: str = _PACKAGED

    @staticmethod
    @cache
    def community() -> Policy:
        """The policy of this package: the signers of the community publisher; no signature is required.

        Example:
            >>> Policy.community().rule("kernels-community/activation").signers[0].source_repository
            'https://github.com/huggingface/kernels-community'
        """
        return _read(_COMMUNITY, _PACKAGED)

    @staticmethod
    def read(path: Path) -> Policy:
        """The policy in a file, with the signers in the policy of this package for repositories that it does not name.

        Args:
            path: A TOML file.

        Raises:
            RequestError: It cannot be read, or is not a policy; the message has the line.
        """
        own = _read(path, str(path))
        known = {
            name: replace(rule, required=own.required, trusted_root=own.trusted_root, where=own.where)
            for name, rule in Policy.community().rules.items()
        }
        return replace(own, rules=known | dict(own.rules))

    def rule(self, repo_id: str) -> Rule:
        """The rule of a repository: the one with its name, else its publisher's, else that of all others.

        Args:
            repo_id: The repository, `org/name`.
        """
        # A Hub may ignore case in names; a required signature is required in every spelling.
        name = repo_id.lower()
        found = self.rules.get(name) or self.rules.get(f"{name.partition('/')[0]}/*")
        return found or Rule((), self.required, self.trusted_root, self.where)

    def required_rule(self, repo_id: str) -> Rule | None:
        """The rule of a repository whose builds must be signed; None for a repository whose builds need not be."""
        rule = self.rule(repo_id)
        return rule if rule.required else None

    def all_rules(self) -> tuple[Rule, ...]:
        """The rules for a folder, which names no repository: all signers of the policy, one rule per trusted root."""
        signers: dict[Path | None, dict[Identity, None]] = {self.trusted_root: {}}
        for rule in self.rules.values():
            signers.setdefault(rule.trusted_root, {}).update(dict.fromkeys(rule.signers))
        return tuple(Rule(tuple(each), self.required, root, self.where) for root, each in signers.items())

    def with_trusted_root(self, path: Path) -> Policy:
        """The same policy with another trusted root for every rule."""
        rules = {name: replace(rule, trusted_root=path) for name, rule in self.rules.items()}
        return replace(self, rules=rules, trusted_root=path)


def active_policy() -> Policy | None:
    """The policy that `KERNELS_POLICY` names, or None.

    Raises:
        RequestError: It cannot be read, or is not a policy.
    """
    path = settings.policy_file()
    return None if path is None else Policy.read(path)


def policy_to_verify(given: Policy | None = None) -> Policy:
    """The policy that signatures are verified with: the given one, else that of `KERNELS_POLICY`, else this package's.

    Args:
        given: The policy that the caller names, if any.

    Raises:
        RequestError: As `active_policy`.
    """
    return given or active_policy() or Policy.community()


def _read(path: Path, where: str) -> Policy:
    from kernels.support.toml import Section, read_toml

    try:
        file = read_toml(path)
    except OSError as error:
        raise RequestError(f"The policy {path} cannot be read: {error.strerror or error}.") from None
    return _policy(Section(file, (), file.data), where, path.parent)


def _policy(top: Section, where: str, folder: Path) -> Policy:
    required = _flag(top, "require-signature", False)
    root = _file(top, folder)
    repositories = top.section("repositories")
    rules: dict[str, Rule] = {}
    for name in () if repositories is None else repositories.table:
        assert repositories is not None
        _check_name(repositories, name)
        section = repositories.section(name)
        assert section is not None
        signers = tuple(signer for each in section.sections("signers") for signer in _signers(each))
        demanded = _flag(section, "require-signature", required)
        if name.lower() in rules:
            raise repositories.error((name,), f"{repositories.name(name)!r} is named twice, in two spellings.")
        rules[name.lower()] = Rule(signers, demanded, _file(section, folder) or root, where)
        section.refuse_unknown()
    top.refuse_unknown()
    return Policy(rules, required, root, where)


def _signers(section: Section) -> Iterator[Identity]:
    issuer = _matching(section, "issuer", _URL, 'a URL such as "https://token.actions.githubusercontent.com"')
    source = _matching(section, "source-repository", _URL, 'a URL such as "https://github.com/org/name"')
    ref = _matching(section, "ref", _REF, 'a branch or tag such as "refs/heads/main"')
    allowed = 'a path in the source repository, such as ".github/workflows/build.yaml", or a URL without a ref'
    workflows = section.texts("workflows")
    if not workflows:
        raise section.missing("workflows", f"a list, each {allowed}")
    for index, workflow in enumerate(workflows):
        if re.fullmatch(_URL, workflow) is None and re.fullmatch(_WORKFLOW, workflow) is None:
            raise section.wrong(("workflows", index), workflow, allowed)
        url = workflow if workflow.startswith("https://") else f"{source}/{workflow}"
        yield Identity(issuer, source, f"{url}@{ref}")
    section.refuse_unknown()


def _matching(section: Section, key: str, form: str, allowed: str) -> str:
    text = section.text(key, allowed)
    if text is None:
        raise section.missing(key, allowed)
    if re.fullmatch(form, text) is None:
        raise section.wrong(key, text, allowed)
    return text


def _flag(section: Section, key: str, default: bool) -> bool:
    _, value = section.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise section.wrong(key, value, "true or false")
    return value


def _file(section: Section, folder: Path) -> Path | None:
    text = section.text("trusted-root", "the path of a Sigstore trusted_root.json")
    return None if text is None else folder / text


def _check_name(section: Section, name: str) -> None:
    publisher, star, rest = name.partition("/*")
    try:
        check_repo_id(f"{publisher}/name" if star and not rest else name)
    except RequestError:
        raise section.error((name,), f'expected "org/name", or "org/*" for all of org, got {name!r}.') from None
