"""No message, log or record holds a token, whoever sends it back and in whatever form."""

from __future__ import annotations

import base64
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hub import TestHub, kernel_files
from logged import logged
from mirror_tree import MirrorTree, StaticServer
from terminal import each_on_a_terminal

from kernels import get_kernel, get_kernel_variants, install_kernel
from kernels.authoring.publish.hub_client import open_hub
from kernels.errors import HubUnavailable, KernelsError
from kernels.operations.explain import repository_info, repository_versions
from kernels.support import secrets
from kernels.support.formatting import format_error, format_text, format_value
from kernels.support.logs import logger, warn_once
from kernels.support.secrets import HIDDEN, holds_secret, redacted, register

#: As the public Hub's look; and one of another Hub, with all that a bearer token may have (RFC 6750, 2.1).
TOKEN = "hf_" + "Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8Qr9St0Uv1Wx2"
OTHER = "s3cr.et+to/ken_with-odd~chars==4711"


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is hidden in its own messages only."""
    monkeypatch.setattr(secrets, "_registered", frozenset())


def _forms(token: str) -> dict[str, str]:
    return {
        "plain": token,
        "bearer": f"Bearer {token}",
        "header": f"{{'authorization': 'Bearer {token}'}}",
        "bytes": repr(f"Bearer {token}".encode()),
        "repr": repr(token)[1:-1],
        "JSON": json.dumps(f'"{token}"'),
        "percent": quote(token, safe=""),
        "percent, slashes": quote(token),
        "basic": f"Basic {base64.b64encode(f'user:{token}'.encode()).decode()}",
        "url": f"https://user:{quote(token, safe='')}@hub.example/api",
    }


def _cores(token: str) -> list[str]:
    """What must not be found of a token: half of it in each of its forms."""
    forms = [token, quote(token, safe=""), quote(token)]
    return [form[start : start + len(form) // 2 + 1] for form in forms for start in (0, len(form) // 2 - 1)]


def check(text: str, token: str = TOKEN) -> None:
    """Check that nothing of a token is in a text."""
    for core in _cores(token):
        assert core not in text, text


# What hides them


@pytest.mark.parametrize("token", [TOKEN, OTHER])
@pytest.mark.parametrize("form", _forms("x"))
def test_a_token_is_hidden_in_each_of_its_forms(form: str, token: str) -> None:
    register(token)
    text = f"401 for {_forms(token)[form]}, which is not accepted"
    check(redacted(text), token)
    assert redacted(text).startswith("401 for")
    assert redacted(text).endswith("which is not accepted")
    assert HIDDEN in redacted(text)
    assert redacted(redacted(text)) == redacted(text)
    assert holds_secret(text.encode()) == (form != "basic")


@pytest.mark.parametrize("token", [TOKEN, OTHER])
@pytest.mark.parametrize("form", _forms("x"))
def test_a_token_is_hidden_in_errors_warnings_and_what_they_quote(form: str, token: str) -> None:
    register(token)
    text = _forms(token)[form]
    error = KernelsError(f"refused: {text}")
    try:
        try:
            raise HubUnavailable(text, {"a": text})
        except HubUnavailable as inner:
            raise KernelsError(text) from inner
    except KernelsError as outer:
        check("".join(traceback.format_exception(outer)), token)
    for told in (
        str(error),
        repr(error),
        *error.args,
        format_text(text),
        format_value([text]),
        format_error(ValueError(text)),
    ):
        check(told, token)
    with logged() as caught:
        warn_once(logger("kernels.example"), f"moved to {text}")
    check(caught[0].getMessage(), token)


def test_a_password_and_a_signed_address_are_hidden_though_nobody_registered_them() -> None:
    text = (
        "https://me:hunter2@hub.example/x?X-Amz-Signature=abc&v=1#a https://b.example/?a=1&token=t0p&Signature=s3 "
        "git+https://me:pass/hunter2@c.example/x https://oauth2:glpat-'hunter2<@d.example "
        "https://e.example/?private_token=hunter2 "
        "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.e30.abc basic dXNlcjpwYXNzd29yZA== hf_abcdefghijklmnopqrstuvwxyz"
    )
    hidden = redacted(text)
    for secret in ("hunter2", "abc", "t0p", "s3 ", "eyJ", "dXNl", "hf_"):
        assert secret not in hidden, hidden
    assert "hub.example/x?X-Amz-Signature=(hidden)&v=1#a" in hidden


@pytest.mark.parametrize(
    "text",
    [
        "A private repository needs a token: HF_TOKEN, or the one that `hf auth login` stored.",
        "Bearer authentication, basic auth, hf_hub_download, hf_raise_for_status_of_something",
        "https://github.com/org/name/.github/workflows/build.yaml@refs/heads/main",
        "acme/relu@v1, a@b.example, http://127.0.0.1:8910/api/kernels?limit=1",
        "file:///home/me@work/kernels",
        "http://hub.example:8910/@acme/relu, https://hub.example/@acme: a@b",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    register("dev", "", None, True, "  ")
    assert redacted(text) == text
    register("main1")
    assert redacted("main1 domain1 main12 'main1'") == "(hidden) domain1 main12 '(hidden)'"


def test_a_long_token_and_a_long_text_take_a_time_by_their_length() -> None:
    register("eyJ" + "a" * 5000, TOKEN)
    assert len(redacted("eyJ" + "a" * 1_000_000)) < 1_000_000
    assert redacted(TOKEN * 20_000) == HIDDEN * 20_000


# Hubs that send them back

_REFUSED = "/refs$|/tree/|/resolve/|/overview"


def _header(status: int, name: str) -> Callable[[TestHub, str], None]:
    def echo(hub: TestHub, text: str) -> None:
        hub.fail(_REFUSED, status=status, headers={name: text}, body=text.encode())

    return echo


def _body(hub: TestHub, text: str) -> None:
    hub.replace(_REFUSED, lambda body: text.encode())


def _branch(hub: TestHub, text: str) -> None:
    def change(body: bytes) -> bytes:
        answer = json.loads(body)
        answer["branches"].append({"name": text, "targetCommit": "1" * 40})
        return json.dumps(answer).encode()

    hub.replace("/refs$", change)


def _entry(field: str) -> Callable[[TestHub, str], None]:
    def echo(hub: TestHub, text: str) -> None:
        entry = {"type": "file", "path": "build/torch-cpu/a.py", "size": 1, field: text}
        hub.replace("/tree/", lambda body: json.dumps([*json.loads(body), entry]).encode())

    return echo


def _metadata(**fields: Callable[[str], Any]) -> Callable[[TestHub, str], None]:
    def echo(hub: TestHub, text: str) -> None:
        content = json.loads(kernel_files("acme/relu", "torch-cpu")["metadata.json"])
        content |= {name.replace("_", "-"): value(text) for name, value in fields.items()}
        hub.make_repo(variants={"torch-cpu": {"metadata.json": json.dumps(content)}})

    return echo


def _status(toml: str) -> Callable[[TestHub, str], None]:
    def echo(hub: TestHub, text: str) -> None:
        hub.make_repo(status=toml.replace("TEXT", json.dumps(text)))

    return echo


ECHOES: dict[str, Callable[[TestHub, str], None]] = {
    **{
        f"{name} {status}": _header(status, name)
        for name in ("X-Error-Message", "X-Error-Code", "Location", "WWW-Authenticate", "X-Request-Id")
        for status in (307, 400, 401, 403, 404)
    },
    **{
        f"{name} {status}": _header(status, name)
        for name in ("Link", "ETag", "X-Linked-Etag", "X-Repo-Commit", "RateLimit", "Retry-After", "Content-Type")
        for status in (200, 429)
    },
    "body": _body,
    "branch": _branch,
    "path": _entry("path"),
    "oid": _entry("oid"),
    "size": _entry("size"),
    "name": _metadata(name=str),
    "id": _metadata(id=str),
    "minver": _metadata(kernels_minver=str),
    "python-depends": _metadata(python_depends=lambda text: [text]),
    "kernel-depends": _metadata(kernel_depends=lambda text: [{"repo-id": "acme/b", text: 1}]),
    "archs": _metadata(backend=lambda text: {"type": "cpu", "archs": [text]}),
    "digest": _metadata(digest=lambda text: {"algorithm": "sha256", "files": {text: "a"}}),
    "destination": _status('kind = "redirect"\ndestination = TEXT'),
    "revision": _status('kind = "redirect"\ndestination = "acme/b"\nrevision = TEXT'),
    "kind": _status("kind = TEXT"),
    "TOML": _status("TEXT = 1\nTEXT = 1"),
}


@pytest.fixture
def sent(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> TestHub:
    """A Hub that gets a token with each request."""
    monkeypatch.setenv("KERNELS_HUB_TOKEN", TOKEN)
    register(TOKEN)
    hub.make_repo()
    return hub


def _echoed() -> Iterator[tuple[str, str]]:
    """Each echo with the token as it was sent, and the first of each name with one of the other forms, in turn.

    The other forms are hidden by the same rule, which the tests above try.
    """
    other = cycle(["plain", "percent, slashes", "basic"])
    names = set()
    for echo in ECHOES:
        yield echo, "bearer"
        if (name := echo.split(" ")[0]) not in names:
            names.add(name)
            yield echo, next(other)


@pytest.mark.parametrize(("echo", "form"), list(_echoed()))
def test_what_a_hub_sends_back_of_a_token_is_in_no_message_and_no_record(
    sent: TestHub, isolated_env: Path, echo: str, form: str
) -> None:
    ECHOES[echo](sent, _forms(TOKEN)[form])
    asked: list[Callable[[], object]] = [
        lambda: get_kernel("acme/relu", version=1),
        lambda: get_kernel("acme/relu", revision="none"),
        lambda: install_kernel("acme/relu", version=1),
        lambda: get_kernel_variants("acme/relu", version=1),
        lambda: repository_versions("acme/relu"),
        lambda: repository_info("acme/relu", version=1),
    ]
    with logged() as caught:
        for ask in asked:
            try:
                ask()
            except KernelsError as error:
                check(f"{error} {error!r} {error.args}")
                check("".join(traceback.format_exception(error)))
    for record in caught:
        check(record.getMessage())
    assert all(f"Bearer {TOKEN}" == asked.headers["authorization"] for asked in sent.requests)
    for path in isolated_env.rglob("*"):
        if path.is_file() and "blobs" not in path.parts and "snapshots" not in path.parts:
            check(path.read_bytes().decode(errors="replace"))


COMMANDS = [
    ["--debug", "download", "acme/relu", "--version", "1"],
    ["--debug", "info", "acme/relu", "--revision", "none"],
    ["explain", "acme/relu", "--version", "1", "--json"],
    ["versions", "acme/relu", "--json"],
    ["verify", "acme/relu", "--version", "1", "--json"],
    ["doctor", "--json"],
    ["doctor"],
]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such terminals")
@pytest.mark.parametrize("echo", ["X-Error-Message 403", "branch"])
def test_no_command_prints_a_token(sent: TestHub, echo: str) -> None:
    ECHOES[echo](sent, _forms(TOKEN)["bearer"])
    for command, written in zip(COMMANDS, each_on_a_terminal(COMMANDS), strict=True):
        assert written.strip(), command
        check(written)
        if "--json" in command and written.startswith(("{", "[")):
            json.loads(re.split(r"\n(?=[A-Z])", written)[0])


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409])
def test_a_hub_that_is_published_to_sends_back_no_token(sent: TestHub, status: int) -> None:
    text = f"Bearer {TOKEN}"
    body = json.dumps({"error": text}).encode()
    sent.fail("", status=status, headers={"X-Error-Message": text, "X-Request-Id": text}, body=body)
    hub = open_hub(sent.url, TOKEN)
    assert TOKEN not in repr(hub)
    for ask in (
        lambda: hub.create_repository("acme/new", private=False),
        lambda: hub.create_branch("acme/relu", "v2"),
        lambda: hub.remote("acme/relu", "main"),
        lambda: hub.private("acme/relu"),
        lambda: hub.files_at("acme/relu", "main", ["README.md"]),
        lambda: hub.read("acme/relu", "main", "README.md", (10, "0" * 40)),
    ):
        try:
            ask()
        except KernelsError as error:
            check("".join(traceback.format_exception(error)) + repr(error))


def test_json_with_a_secret_in_it_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    from kernels.cli._output import print_json

    register(OTHER)
    print_json({"a": [OTHER, 'x?token=b"c\\'], OTHER: ("//u:p@h", 1, None, True)})
    assert json.loads(capsys.readouterr().out) == {
        "a": [HIDDEN, f'x?token={HIDDEN}"c\\'],
        HIDDEN: [f"//{HIDDEN}@h", 1, None, True],
    }


# Several hosts


@pytest.mark.usefixtures("isolated_env")
def test_of_a_list_of_tokens_a_host_gets_its_own_and_messages_show_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = "own-secret-of-as-many-letters-as-a-token", "another-hosts-secret"
    tree = MirrorTree(tmp_path)
    tree.add()
    with StaticServer(tree.root) as server:
        host = server.url.removeprefix("http://")
        monkeypatch.setenv("KERNELS_HUB", server.url)
        monkeypatch.setenv("KERNELS_HUB_TOKEN", f"hub.example:8443={other},{host}={own}")
        get_kernel("acme/relu", version=1)
        with pytest.raises(KernelsError) as missing:
            get_kernel("acme/none", version=1)
    assert server.url in str(missing.value)
    assert {each.headers.get("authorization") for each in server.requests} == {f"Bearer {own}"}
    assert redacted(f"{server.url} {own} {other}") == f"{server.url} {HIDDEN} {HIDDEN}"
