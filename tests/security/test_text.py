"""No text from a Hub or a repository steers a terminal, hides in a message, or passes for a line of one.

Every way in which text comes here, times every kind of character that must not come through.
"""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hub import TestHub, kernel_files
from logged import logged
from terminal import each_on_a_terminal

from kernels import errors, get_kernel, get_kernel_variants, install_kernel
from kernels.errors import KernelsError
from kernels.layer.report import KernelizeReport, KernelizeRow
from kernels.models.lockfile import Lock
from kernels.operations.explain import repository_info, repository_versions
from kernels.resolver.decision import VariantRejected
from kernels.support.formatting import format_error, format_text, format_value
from kernels.support.logs import logger, make_safe, warn_once
from kernels.support.text import CleanError, clean, indented, one_line
from kernels.trust.policy import Identity, Rule
from kernels.trust.sigstore import allowed

#: What a line looks like that a hostile text would put into our messages.
FORGED = "All checks passed"

#: Texts, by what is wrong with them.
UNSAFE = {
    "escape": "\x1b[2J\x1b]0;title\x07",
    "C0": "\x01\x08\x0b\x0c\x0e\x1f",
    "return": "\rsafe",
    "DEL": "\x7f",
    "C1": "\x80\x85\x9b2J\x9d\x9f",
    "bidi": "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
    "zero width": "\u200b\u200c\u200d\u2060\u2061\u2064\ufeff\u00ad\u180e",
    "invisible": "\u034f\u115f\u1160\u17b4\u2800\u3164\ufe0f\uffa0\U000e0100\U000e01ef",
    "tags": "\U000e0001\U000e0041\U000e007f",
    "lines": "\u2028\u2029\x1c\x1d\x1e",
    "others": "\ue000\ufdd0\uffff\U0010ffff",
    "forged": f"\n{FORGED}\n",
}

#: Shows nothing, and counts as printable with Python.
INVISIBLE = set("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | {
    chr(code) for code in (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
}


def unsafe_in(text: str) -> set[str]:
    """The characters of a text that must not be in it, and the lines that look like ours and are not."""
    found = {character for character in text if not character.isprintable() and character not in "\n\t"}
    return found | (INVISIBLE & set(text)) | {line for line in text.split("\n") if line.strip() == FORGED}


def check_error(error: BaseException) -> None:
    """Check all that can be read of an error of ours, and of those it was raised from."""
    if isinstance(error, KernelsError):
        told = [str(error), repr(error), *map(str, error.args), *getattr(error, "__notes__", [])]
        told += [str(getattr(error, name, "")) for name in ("filename", "strerror", "msg")]
        for text in told:
            assert not unsafe_in(text), ascii(text)


def check_traceback(error: BaseException) -> None:
    """Check the traceback, which shows the errors that one was raised from as well."""
    text = "".join(traceback.format_exception(error))
    assert not unsafe_in(text), ascii(text)


# The characters


def test_every_character_that_cannot_be_seen_is_escaped() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    kept = "".join([each for each in every if (each.isprintable() and each not in INVISIBLE) or each in "\n\t"])
    others = every.translate(dict.fromkeys(map(ord, kept)))
    assert len(kept) + len(others) == len(every)
    assert clean(kept) == kept
    shown = clean(others)
    assert shown.isascii()
    assert shown.count("\\") == len(others)
    assert one_line(others + kept).isprintable()
    unseen = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    assert not {each for each in kept if unicodedata.category(each) in unseen} - set("\n\t")


@pytest.mark.parametrize("kind", UNSAFE)
def test_a_character_is_shown_by_its_escape_and_text_that_is_safe_stays(kind: str) -> None:
    text = f"größe {UNSAFE[kind]} 漢字"
    assert not unsafe_in(one_line(text))
    assert not unsafe_in(indented(text))
    assert one_line(text).encode().decode("unicode_escape", "ignore")
    assert one_line("größe 漢字 😀 ™ → \\x1b") == "größe 漢字 😀 ™ → \\x1b"
    assert clean(clean(text)) == clean(text)
    assert one_line("\x1b\x9b\u202e\U000e0041\ud800\n") == "\\x1b\\x9b\\u202e\\U000e0041\\ud800\\n"


@pytest.mark.parametrize(
    "text",
    [
        "\x1b",
        "\u202e",
        "\U0010fffe\ud800",
        "//a@",
        "Bearer ",
        "?token=a&",
        "hf_",
        "//a",
        "basic\t",
        "@",
        "\n",
        "\ufe0f",
    ],
)
def test_a_long_text_takes_a_time_by_its_length(text: str) -> None:
    long = text * (300_000 // len(text))
    begun = time.monotonic()
    clean(long), one_line(long)
    assert time.monotonic() - begun < 5


# Errors, warnings, records and values, whoever writes them

_KINDS = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("of", [*_KINDS, CleanError], ids=lambda cls: cls.__name__)
def test_an_error_is_safe_whatever_it_was_given(of: type[CleanError]) -> None:
    for unsafe in UNSAFE.values():
        _check_safe(of, "a" + unsafe.replace("\n", " "))  # a whole text is the error's own


def _check_safe(of: type[CleanError], text: str) -> None:
    for error in (of(text), of(2, text), of(2, text, text)):
        check_error(error)
    for error in (of(text), of(2, text), of("a", {"b": text})):
        assert not unsafe_in(f"{error} {error!r}")
    if issubclass(of, ImportError):
        check_error(of(text, name=text))
    error = of("refused")
    error.args = (text,)
    assert not unsafe_in(f"{error} {error!r}")
    if sys.version_info >= (3, 11):
        error.add_note(text)
        assert error.__notes__
        assert not unsafe_in("".join(error.__notes__))


@pytest.mark.parametrize("kind", UNSAFE)
def test_a_warning_and_a_log_record_are_safe(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    text = UNSAFE[kind].replace("\n", "")
    with logged() as caught:
        warn_once(logger("kernels.example"), f"moved to {text}")
    assert not unsafe_in(caught[0].getMessage())
    with caplog.at_level("INFO"):
        try:
            raise ValueError(text)
        except ValueError:
            logger("kernels.example").exception("cannot load %s", text)
    assert not unsafe_in(caplog.text.split("Traceback")[0] + str(caplog.records[0].exc_text))


@pytest.mark.parametrize("kind", UNSAFE)
def test_what_huggingface_hub_logs_is_safe(kind: str) -> None:
    log = logging.getLogger("kernels-test-library")
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    log.addHandler(handler)
    make_safe(log.name)
    log.warning("%s; %s", UNSAFE[kind].replace("\n", ""), 1)
    log.removeHandler(handler)
    assert out.getvalue()
    assert not unsafe_in(out.getvalue())


@pytest.mark.parametrize("kind", UNSAFE)
def test_what_a_message_quotes_is_one_line_or_set_off(kind: str) -> None:
    text = UNSAFE[kind]
    for quoted in (
        format_text(text),
        format_value(text),
        format_error(ValueError(text)),
    ):
        assert not unsafe_in(quoted), ascii(quoted)
    assert "\n" not in format_text(text) + format_value(text)
    row = KernelizeRow(text, text, kernel=text, commit=text, variant=text, mode=text)
    report = str(KernelizeReport((row, KernelizeRow("a", "B", reason=text))))
    assert not unsafe_in(report)
    assert len(report.splitlines()) == 5


# What a Hub and a repository send


def _refused(status: int, header: str) -> Callable[[TestHub, str], None]:
    def attack(hub: TestHub, text: str) -> None:
        hub.make_repo()
        hub.fail("/refs$|/tree/|/resolve/", status=status, headers={header: text})

    return attack


def _redirect(hub: TestHub, text: str) -> None:
    hub.make_repo()
    hub.fail("/refs$", status=307, headers={"Location": f"/api/kernels/acme/{text}/refs"})


def _branches(hub: TestHub, text: str) -> None:
    hub.make_repo()
    answer = {"branches": [{"name": f"x{text}", "targetCommit": "1" * 40}], "tags": []}
    hub.replace("/refs$", lambda body: json.dumps(answer).encode())


def _listing(entry: Callable[[str], Any]) -> Callable[[TestHub, str], None]:
    def attack(hub: TestHub, text: str) -> None:
        hub.make_repo()
        hub.replace("/tree/", lambda body: json.dumps([*json.loads(body), entry(text)]).encode())

    return attack


def _metadata(change: Callable[[dict[str, Any], str], None]) -> Callable[[TestHub, str], None]:
    def attack(hub: TestHub, text: str) -> None:
        content = json.loads(kernel_files("acme/relu", "torch-cpu")["metadata.json"])
        change(content, text)
        hub.make_repo(variants={"torch-cpu": {"metadata.json": json.dumps(content)}})

    return attack


def _field(*path: str, value: Callable[[str], Any] = str) -> Callable[[TestHub, str], None]:
    def change(content: dict[str, Any], text: str) -> None:
        for name in path[:-1]:
            content = content.setdefault(name, {})
        content[path[-1]] = value(text)

    return _metadata(change)


def _status(toml: str) -> Callable[[TestHub, str], None]:
    def attack(hub: TestHub, text: str) -> None:
        hub.make_repo(status=toml.replace("TEXT", json.dumps(f"a{text}")).replace("RAW", text))

    return attack


def _variant(hub: TestHub, text: str) -> None:
    hub.list_files("acme/relu", {f"build/torch-cpu{text}/metadata.json": b"{}"})


def _raises(code: str) -> Callable[[TestHub, str], None]:
    def attack(hub: TestHub, text: str) -> None:
        hub.make_repo(variants={"torch-cpu": {"__init__.py": code.replace("TEXT", ascii(text))}})

    return attack


CHANNELS: dict[str, Callable[[TestHub, str], None]] = {
    **{f"X-Error-Message {status}": _refused(status, "X-Error-Message") for status in (400, 401, 403, 404, 410)},
    **{f"X-Error-Code {status}": _refused(status, "X-Error-Code") for status in (400, 401, 404)},
    "Location": _redirect,
    "branch": _branches,
    "listed path": _listing(lambda text: {"type": "file", "path": f"build/torch-cpu/a{text}.py", "size": 1}),
    "listed oid": _listing(lambda text: {"type": "file", "path": "a", "size": 1, "oid": text}),
    "listed twice": _listing(
        lambda text: {"type": "file", "path": "build/torch-cpu/__init__.py", "size": 1, "x": text}
    ),
    "listed size": _listing(lambda text: {"type": "file", "path": "a", "size": text}),
    "listed form": _listing(lambda text: {"type": "file", text: text}),
    "variant": _variant,
    "name": _field("name"),
    "id": _field("id"),
    "version": _field("version"),
    "license": _field("license"),
    "license type": _field("license", value=lambda text: {text: text}),
    "upstream": _field("upstream"),
    "source": _field("source"),
    "backend": _field("backend", "type"),
    "archs": _field("backend", "archs", value=lambda text: [text]),
    "minver": _field("kernels-minver"),
    "python-depends": _field("python-depends", value=lambda text: [text]),
    "kernel-depends": _field("kernel-depends", value=lambda text: [{"repo-id": text, "version": 1}]),
    "kernel-depends revision": _field("kernel-depends", value=lambda text: [{"repo-id": "acme/b", "revision": text}]),
    "kernel-depends key": _field("kernel-depends", value=lambda text: [{"repo-id": "acme/b", text: 1}]),
    "digest": _field("digest", value=lambda text: {"algorithm": text, "files": {}}),
    "digest path": _field("digest", value=lambda text: {"algorithm": "sha256", "files": {text: text}}),
    "digest type": _field("digest", value=lambda text: {"algorithm": "sha256", "files": {text: [text]}}),
    "provenance": _field("provenance", "kernel", value=lambda text: {"commit": text, "dirty": True}),
    "destination": _status('kind = "redirect"\ndestination = TEXT'),
    "destination revision": _status('kind = "redirect"\ndestination = "acme/b"\nrevision = TEXT'),
    "kind": _status("kind = TEXT"),
    "key": _status("TEXT = 1\nTEXT = 1"),
    "TOML": _status("RAW"),
    "TOML value": _status("kind = RAW"),
    "raised": _raises("raise ValueError(TEXT)"),
    "exit": _raises("import sys; sys.exit(TEXT)"),
    "missing": _raises("raise ModuleNotFoundError(TEXT, name=TEXT)"),
    "raised kind": _raises("raise type('A' + TEXT, (Exception,), {})(TEXT)"),
}


def _asked(hub: TestHub) -> Iterator[Callable[[], object]]:
    yield lambda: get_kernel("acme/relu", version=1)
    yield lambda: get_kernel("acme/relu", revision="none")
    yield lambda: install_kernel("acme/relu", version=1)
    yield lambda: get_kernel_variants("acme/relu", version=1)
    yield lambda: repository_versions("acme/relu")
    yield lambda: repository_info("acme/relu", version=1)


def _texts() -> Iterator[tuple[str, str]]:
    """Each way with the texts of every kind in one, which one of them could have refused, and with two kinds alone.

    The two are others from one way to the next, so that every kind comes in several ways.
    """
    kinds = list(UNSAFE)
    for number, channel in enumerate(CHANNELS):
        for kind in ("all", kinds[2 * number % len(kinds)], kinds[(2 * number + 1) % len(kinds)]):
            yield channel, kind


@pytest.mark.parametrize(("channel", "kind"), list(_texts()))
def test_nothing_that_a_hub_or_a_repository_says_is_in_a_message_as_it_is(
    hub: TestHub, channel: str, kind: str
) -> None:
    text = "".join(UNSAFE.values()) if kind == "all" else UNSAFE[kind]
    if channel.startswith("X-") or channel == "Location":
        text = text.replace("\n", "").replace("\r", "")  # no header holds one
    CHANNELS[channel](hub, quote(text) if channel == "Location" else text)
    seen = 0
    for ask in _asked(hub):
        with logged() as caught:
            try:
                result = ask()
            except Exception as error:  # noqa: BLE001 - which one it is, other tests say
                own = "raised" in channel or channel in ("exit", "missing")  # what the kernel raised stays as it is
                for note in getattr(error, "__notes__", ()):
                    assert not unsafe_in(note), ascii(note)
                if own and not isinstance(error, KernelsError):
                    assert error.__notes__  # type: ignore[attr-defined] # noqa: PT017
                else:
                    assert isinstance(error, KernelsError), repr(error)  # noqa: PT017
                    check_error(error)
                if not own:
                    check_traceback(error)
                seen += 1
            else:
                for each in result if isinstance(result, list) else ():
                    if isinstance(each, VariantRejected):
                        assert not unsafe_in(f"{each.variant} {each.reason}")
                # Python shows what Unicode says is ignored, which is of no effect but that nobody sees it.
                assert not unsafe_in(repr(result)) - INVISIBLE
        for record in caught:
            assert not unsafe_in(record.getMessage()), ascii(record.getMessage())


@pytest.mark.parametrize("kind", UNSAFE)
def test_what_a_lock_and_a_certificate_hold_is_in_a_message_by_its_escapes(kind: str) -> None:
    text = UNSAFE[kind]
    entry = {"dependency": {"repo-id": "acme/relu", "version": 1}, "lock": {"commit": "1" * 40}}
    locks: list[Any] = [
        [{**entry, text: 1}],
        [{**entry, "lock": {"commit": text}}],
        [{**entry, "dependency": {"repo-id": text, "version": 1}}],
        [{**entry, "dependency": {"repo-id": "acme/relu", "revision": text}}],
        {text: text},
    ]
    for lock in locks:
        try:
            Lock.from_bytes(json.dumps(lock).encode())
        except errors.LockError as error:
            check_traceback(error)
        else:
            assert kind == "invisible", lock
    signed = Identity(text, text, text)
    other = Identity("https://a", "https://b", "https://c")
    rules = [
        Rule(),
        Rule((other,)),
        Rule((Identity(text, "https://b", "https://c"),)),
        Rule((Identity(text, text, "https://c"),)),
        Rule((Identity(text, text, "https://c"), Identity("https://a", text, text))),
    ]
    for rule in rules:
        with pytest.raises(errors.UntrustedSignature) as refused:
            allowed(signed, rule)
        check_traceback(refused.value)


# Commands on a terminal

_EVERYTHING = "".join(UNSAFE.values()) + "[red][link=https://evil.example]markup[/]"


def _hostile(hub: TestHub) -> None:
    """A repository that says everything wrong wherever it may say something and still be one."""
    content = json.loads(kernel_files("acme/relu", "torch-cpu")["metadata.json"])
    for name in ("license", "upstream", "source"):
        content[name] = _EVERYTHING
    content["backend"]["archs"] = [_EVERYTHING[:200]]
    content["provenance"] = {"kernel": {"commit": _EVERYTHING[:200], "dirty": True}}
    content["digest"] = {"algorithm": "sha256", "files": {_EVERYTHING: "a"}}
    bad = {**content, "kernel-depends": [{"repo-id": "acme/b", _EVERYTHING: 1}]}
    init = f"raise ValueError({_EVERYTHING!a})"
    hub.make_repo(
        variants={
            "torch-cpu": {"metadata.json": json.dumps(content), "__init__.py": init},
            "torch-universal": {"metadata.json": json.dumps(bad)},
            f"torch-{UNSAFE['bidi']}{UNSAFE['C1']}": None,
        }
    )
    branch = {"name": f"x{_EVERYTHING}", "targetCommit": "1" * 40}
    hub.replace(
        "/refs$",
        lambda body: json.dumps({**json.loads(body), "branches": [*json.loads(body)["branches"], branch]}).encode(),
    )
    dated = {"lastModified": _EVERYTHING, "sha": "1" * 40}
    hub.replace("/revision/", lambda body: json.dumps({**json.loads(body), **dated}).encode())


COMMANDS = [
    ["info", "acme/relu", "--version", "1"],
    ["info", "acme/relu", "--version", "1", "--json"],
    ["info", "acme/relu", "--revision", "none"],
    ["explain", "acme/relu", "--version", "1", "--json"],
    ["explain", "acme/relu", "--version", "1"],
    ["versions", "acme/relu"],
    ["versions", "acme/relu", "--json"],
    ["verify", "acme/relu", "--version", "1", "--all-variants"],
    ["verify", "acme/relu", "--version", "1", "--json"],
    ["check", "acme/relu", "--version", "1", "--static"],
    ["check", "acme/relu", "--version", "1", "--static", "--json"],
    ["download", "acme/relu", "--version", "1"],
    ["--debug", "download", "acme/relu", "--version", "1"],
    ["benchmark", "acme/relu", "--version", "1"],
    ["doctor", "--json"],
]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such terminals")
def test_nothing_hostile_reaches_a_terminal(hub: TestHub) -> None:
    _hostile(hub)
    for command, written in zip(COMMANDS, each_on_a_terminal(COMMANDS), strict=True):
        assert written.strip(), command
        assert not unsafe_in(written), (command, ascii(written))
        assert "\t" not in written, command
        if "--json" in command and written.lstrip().startswith("{"):
            assert written.isascii(), command
            json.loads(written[: written.rindex("}") + 1])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such terminals")
def test_what_lies_in_the_cache_and_in_a_lock_does_not_reach_a_terminal(hub: TestHub, tmp_path: Path) -> None:
    text = "".join(UNSAFE.values()).replace("\x00", "")
    hub.make_repo()
    install_kernel("acme/relu", version=1)
    cache = tmp_path / "cache"
    commit = hub.commit()
    (cache / "kernels--acme--relu" / "refs").mkdir(exist_ok=True)
    (cache / "kernels--acme--relu" / "refs" / f"x{text}").write_text(commit)
    (cache / "kernels--acme--relu" / "snapshots" / commit / "build" / f"torch{text}").mkdir()
    (cache / f"kernels--acme--{text[:40]}").mkdir()
    lock = tmp_path / "kernels.lock"
    lock.write_text(json.dumps([{"dependency": {"repo-id": text, text: 1}, "lock": {}}]))
    commands = [["cache", "list"], ["cache", "list", "--json"], ["verify", "--lockfile", str(lock)]]
    for written in each_on_a_terminal(commands, own_cache=False):
        assert written.strip()
        assert not unsafe_in(written), ascii(written)


def test_json_that_a_program_reads_is_utf_8_and_says_the_same(hub: TestHub, tmp_path: Path) -> None:
    import os
    import subprocess

    _hostile(hub)
    command = [sys.executable, "-m", "kernels", "info", "acme/relu", "--version", "1", "--json"]
    done = subprocess.run(command, capture_output=True, check=True, env=dict(os.environ), timeout=120)
    data = json.loads(done.stdout.decode())
    assert data["license"] == _EVERYTHING
    assert not re.search(rb"[\x00-\x09\x0b-\x1f]", done.stdout)
