"""Hostile answers by the hundred: each question of a client, answered in each wrong way.

Whatever comes, the kernel that runs is the one that was published, or the error is one of this project's, short, and
without the token that was sent.
"""

from __future__ import annotations

import gzip
import json
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hub import LoggedRequest, TestHub

from kernels import get_kernel
from kernels.errors import KernelsError
from kernels.loader.load import get_loaded_kernels
from kernels.sources import download

TOKEN = "hf_secretsecretsecretsecretsecret"

#: Every kind of question, as a pattern of its path.
QUESTIONS = {
    "branches": "/refs$",
    "publisher": "/overview$",
    "listing": "/tree/",
    "metadata": r"/resolve/.*/metadata\.json$",
    "small file": r"/resolve/.*/__init__\.py$",
    "large file": r"/resolve/.*/data\.bin$",
}


@dataclass(frozen=True)
class Attack:
    """An answer: bytes in its place, or headers beside a right one."""

    name: str
    raw: bytes | Callable[[LoggedRequest], bytes] | None = None
    headers: dict[str, str] | Callable[[LoggedRequest], dict[str, str]] | None = None
    question: str = "listing"  # the one that it is an answer to, or nearly


def asked_of(attack: Attack, number: int) -> set[str]:
    """The questions that an attack answers: its own, a file's, and, one in seven, each other.

    Seven has no factor in common with the lengths of the tables, so that every row and column has its turn.
    """
    own = {attack.question, "small file"}
    others = [question for question in QUESTIONS if question not in own]
    return own | set(others[number % 7 : number % 7 + 1])


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    """An HTTP answer with the right length, unless a header gives another."""
    lines = [f"HTTP/1.1 {status}", "Connection: close", *headers]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def echo(asked: LoggedRequest) -> str:
    return asked.headers.get("authorization", "nothing")


def statuses() -> Iterator[Attack]:
    reasons = [100, 101, 199, 201, 202, 203, 204, 205, 206, 207, 226, 299, 300, 301, 302, 303, 304, 305, 306, 307, 308]
    reasons += [310, 399, 400, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 416, 417]
    reasons += [418, 421, 422, 423, 424, 425, 426, 428, 429, 431, 451, 499, 500, 501, 502, 503, 504, 505, 507, 511]
    reasons += [520, 599, 600, 999]
    for status in reasons:
        yield Attack(f"status {status}", answer(f"{status} Odd", b"{}"))
        if 300 <= status < 400:
            yield Attack(
                f"status {status}, to itself",
                lambda asked, s=status: answer(f"{s} Odd", b"", f"Location: {asked.path}"),
            )
    yield Attack("status of no digits", answer("abc Odd", b"{}"))
    yield Attack("status of many digits", answer("2" * 500 + " Odd", b"{}"))
    yield Attack("no status", b"HTTP/1.1\r\n\r\n")
    yield Attack("another protocol", b"SSH-2.0-OpenSSH_9.0\r\n")
    yield Attack("HTTP/9", b"HTTP/9.9 200 OK\r\n\r\n{}")
    yield Attack("nothing", b"")
    yield Attack("NUL bytes", bytes(4096))
    yield Attack("a header without end", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000)
    yield Attack("headers without end", b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(20_000)))


def locations() -> Iterator[Attack]:
    targets = [
        "",
        " ",
        "/",
        "//",
        "///x",
        "http://",
        "http://[::",
        "http://[::1",
        "http://]",
        "http://a b/",
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "javascript:1",
        "data:,x",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:-1/",
        "http://x:y:z/",
        "http://user:password@127.0.0.1:1/",
        "http://127.0.0.1:1/",
        "https://127.0.0.1:1/",
        "\\\\host\\share",
        "?",
        "#",
        "?x#y",
        "/" + "a" * 9000,
        "http://" + "a" * 70_000 + "/",
        "http://" + "a." * 500 + "/",
        "/api/kernels/../../x",
        "/api/kernels/a/b/c",
        "/api/kernels/mallory/relu/refs",
        "/api/models/mallory/relu/tree/x",
        "http://xn--/",
        "http://\xff\xfe/",
        "/%00",
        "/%ff%fe",
        "http://127.0.0.1:1/" + "%2e%2e/" * 50,
        "/api/kernels/acme/relu/refs/" + "x/" * 3000,
        "//127.0.0.1:1/",
        "http:///x",
        "///",
    ]
    for target in targets:
        for status in ("302 Found", "308 Permanent Redirect"):
            yield Attack(f"{status} to {target[:40]!r}", answer(status, b"", f"Location: {target}"))
    yield Attack("two Locations", answer("302 Found", b"", "Location: /a", "Location: /b"))


def waits() -> Iterator[Attack]:
    values = ["-1", "0", "1e400", "nan", "inf", "9" * 5000, "1" * 300, "soon", "", "Mon, 01 Jan 99999 00:00:00 GMT"]
    values += ["Fri, 31 Dec 1999 23:59:59 +99999999999999", "Thu, 01 Jan 1970 00:00:00 GMT", "٣", "0x10", "1;2", "1,2"]
    for value in values:
        for header in ("Retry-After", "RateLimit", "ratelimit-policy"):
            text = value if header == "Retry-After" else f'"api";r=0;t={value}'
            raw = answer("429 Slow", b"", f"{header}: {text}".encode().decode("latin-1"))
            yield Attack(f"{header}: {value[:20]}", raw)
    both = f'RateLimit: "api";r={"9" * 5000};t={"9" * 5000}'
    yield Attack(
        "RateLimit of 5,000 digits", answer("429 Slow", b"", both, f'RateLimit-Policy: "p";q={"9" * 5000};w=1')
    )


def links() -> Iterator[Attack]:
    targets = [
        "",
        ">",
        "http://[::",
        "/" + "x" * 20_000,
        "http://127.0.0.1:1/x",
        "?cursor=" + "%ff" * 3000,
        "\x01",
        "//",
        "file:///x",
    ]
    for target in targets:
        yield Attack(f"Link to {target[:20]!r}", headers={"Link": f'<{target}>; rel="next"'})
    yield Attack("Link of many parts", headers={"Link": ", ".join(f'<{n}>; rel="x"' for n in range(3000))})
    yield Attack("Link of quotes", headers={"Link": "<x>; rel=" + '"' * 30_000})
    yield Attack("Link of semicolons", headers={"Link": "<x>" + "; a=b" * 10_000 + "; rel=next"})
    yield Attack("Link to itself", headers=lambda asked: {"Link": f'<{asked.path}?{asked.query}>; rel="next"'})


def encodings() -> Iterator[Attack]:
    bomb = gzip.compress(bytes(100_000_000), 9) if not _bombs else _bombs[0]
    _bombs[:] = [bomb]
    yield Attack("a gzip bomb", answer("200 OK", bomb, "Content-Encoding: gzip"))
    yield Attack("a gzip bomb in chunks", _chunked(bomb, "Content-Encoding: gzip"))
    yield Attack("gzip in gzip", answer("200 OK", gzip.compress(bomb), "Content-Encoding: gzip, gzip"))
    yield Attack("gzip cut short", answer("200 OK", gzip.compress(b"{}" * 1000)[:-10], "Content-Encoding: gzip"))
    yield Attack("no gzip", answer("200 OK", b"[]", "Content-Encoding: gzip"))
    yield Attack("deflate", answer("200 OK", zlib.compress(b"[]"), "Content-Encoding: deflate"))
    for name in ("br", "zstd", "compress", "x-unknown", "gzip;q=1", "\x7f", "identity, gzip", "," * 100):
        yield Attack(f"Content-Encoding {name[:10]!r}", answer("200 OK", b"[]", f"Content-Encoding: {name}"))
    yield Attack("chunks that end early", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab")
    yield Attack("chunks of no length", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n")
    yield Attack("a chunk of 2^64", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nab")
    yield Attack("two lengths", answer("200 OK", b"[]", "Content-Length: 2", "Content-Length: 3"))
    yield Attack("length and chunks", answer("200 OK", b"[]", "Content-Length: 2", "Transfer-Encoding: chunked"))
    yield Attack("a negative length", answer("200 OK", b"[]", "Content-Length: -1"))
    yield Attack("a length of 5,000 digits", answer("200 OK", b"[]", f"Content-Length: {'9' * 5000}"))
    yield Attack("too short", answer("200 OK", b"[", "Content-Length: 1000000"))
    yield Attack("10 MB", answer("200 OK", b"[" + b" " * 10_000_000))  # no answer may have more than 8 MiB
    yield Attack("charset", answer("200 OK", b"\xff\xfe[\x00]\x00", "Content-Type: application/json; charset=utf-16"))


_bombs: list[bytes] = []


def _chunked(body: bytes, *headers: str) -> bytes:
    pieces = [body[at : at + 4096] for at in range(0, len(body), 4096)]
    sent = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    head = "\r\n".join(["HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "Connection: close", *headers])
    return head.encode() + b"\r\n\r\n" + sent


def meant_for(shape: object) -> str:
    """The question whose answer has such a shape."""
    fields = shape if isinstance(shape, dict) else {}
    if "branches" in fields:
        return "branches"
    if "trustedKernelPublisher" in fields:
        return "publisher"
    return "metadata" if "backend" in fields else "listing"


def documents() -> Iterator[Attack]:
    commit = "0" * 40
    shapes: list[object] = [
        None,
        True,
        0,
        -1,
        1.5,
        10**30,
        "",
        "x",
        [],
        {},
        [[]],
        [{}],
        [None],
        {"": ""},
        [1, "a", None],
        {"branches": None, "tags": None},
        {"branches": [], "tags": []},
        {"branches": [{}], "tags": []},
        {"branches": [{"name": "v1", "targetCommit": commit}], "tags": []},
        {"branches": [{"name": "v1", "targetCommit": "../../evil"}], "tags": []},
        {"branches": [{"name": "../../evil", "targetCommit": commit}], "tags": {}},
        {"branches": [{"name": "v" + "9" * 5000, "targetCommit": commit}], "tags": []},
        {"branches": [{"name": f"v{n}", "targetCommit": commit} for n in range(20_000)], "tags": []},
        {"branches": {"v1": commit}, "tags": []},
        {"name": "mallory", "trustedKernelPublisher": True},
        {"name": ["acme"], "trustedKernelPublisher": True},
        {"trustedKernelPublisher": "true"},
        {"trustedKernelPublisher": 1},
        [{"type": "file", "path": "build/torch-cpu/metadata.json", "size": 10**30, "oid": commit}],
        [{"type": "file", "path": "build/torch-cpu/metadata.json", "size": -1, "oid": commit}],
        [{"type": "file", "path": "build/torch-cpu/metadata.json", "size": 2.5, "oid": commit}],
        [{"type": "file", "path": ["a"], "size": 1, "oid": commit}],
        [{"type": "file", "path": "\ud800", "size": 1}],
        [{"type": "file", "path": "a" * 100_000, "size": 1, "oid": commit}],
        [{"type": "directory", "path": "../x"}],
        [{"type": "file", "path": f"build/v{n}/x", "size": 1, "oid": commit} for n in range(2000)],
        [
            {
                "type": "file",
                "path": "build/torch-cpu/metadata.json",
                "size": 9 * 10**18,
                "oid": commit,
                "lfs": {"oid": "0" * 64},
            }
        ],
        [{"type": "file", "path": "x", "size": 1, "lfs": []}],
        [{"type": "file", "path": "x", "size": 1, "lfs": {"size": "1"}}],
        {"sha": "../..", "lastModified": 5},
        {"error": "busy"},
        {"id": "_x", "name": "x", "backend": {"type": "cpu"}},
    ]
    for shape in shapes:
        body = json.dumps(shape).encode()
        yield Attack(f"the JSON {body[:60].decode()}", answer("200 OK", body), question=meant_for(shape))
    for body in (
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"[" + b"{}," * 1_000_000 + b"{}]",
        b'"' + b"\\u0000" * 50_000 + b'"',
        b"9" * 100_000,
        b"1e999999999",
        b"NaN",
        b"[Infinity]",
        b"\xef\xbb\xbf[]",
        b"[]\x00",
        b"[] []",
        b"<html>",
        b"\xff" * 1000,
        b'"\xed\xa0\x80"',
        b'{"branches": [' + b'{"name":"","targetCommit":""},' * 100_000 + b'{}], "tags": []}',
        b"{" + b'"a":1,' * 100_000 + b'"a":1}',
        b"[" + b'{"path":""},' * 100_000 + b'{"path":""}]',
        b"//",
        b"/*",
        b"# x",
        b"'x'",
        b"[1,]",
        b'{"a"}',
        b" " * 1_000_000,
    ):
        yield Attack(f"the bytes {body[:40]!r}", answer("200 OK", body))


def echoes() -> Iterator[Attack]:
    """The token that was sent comes back in every place that a message could quote."""
    for status in ("400 Bad", "401 Unauthorized", "403 Forbidden", "404 Not Found", "418 Odd", "429 Slow", "500 Error"):
        for header in (
            "X-Error-Message",
            "X-Error-Code",
            "Retry-After",
            "RateLimit",
            "WWW-Authenticate",
            "ETag",
            "Server",
        ):
            yield Attack(
                f"the token in {header} of {status}",
                lambda asked, s=status, h=header: answer(s, echo(asked).encode(), f"{h}: {echo(asked)}"),
            )
        yield Attack(
            f"the token in the reason of {status}", lambda asked, s=status: answer(f"{s} {echo(asked)}", b"{}")
        )
    yield Attack(
        "the token in Location",
        lambda asked: answer("302 Found", b"", f"Location: http://{echo(asked)}@x/{echo(asked)}"),
    )
    yield Attack("the token as a protocol", lambda asked: f"{echo(asked)} 200 OK\r\n\r\n".encode())
    yield Attack("the token as a header", lambda asked: f"HTTP/1.1 200 OK\r\n{echo(asked)}\r\n\r\n".encode())
    yield Attack("the token as JSON", lambda asked: answer("200 OK", json.dumps(echo(asked)).encode()))
    yield Attack(
        "the token as a field", lambda asked: answer("200 OK", json.dumps([{"path": echo(asked), "size": -1}]).encode())
    )
    yield Attack("the token as an ETag", headers=lambda asked: {"ETag": echo(asked), "X-Linked-ETag": echo(asked)})
    yield Attack("the token as a Link", headers=lambda asked: {"Link": f'<http://[{echo(asked)}>; rel="next"'})
    yield Attack("the token as an encoding", headers=lambda asked: {"Content-Encoding": echo(asked)})


ATTACKS = {
    "statuses": statuses,
    "locations": locations,
    "waits": waits,
    "links": links,
    "encodings": encodings,
    "documents": documents,
    "echoes": echoes,
}


def outcome() -> tuple[Any, BaseException | None]:
    """The kernel, or the error."""
    try:
        return get_kernel("acme/relu", version=1), None
    except BaseException as error:  # noqa: BLE001 - of whatever kind, to be told with the attack's name
        return None, error


def written(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file below a folder; threads that gave up may still be removing their own."""
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file():
                yield path, path.read_bytes()


def test_there_are_hundreds_of_them() -> None:
    assert sum(len(list(attacks())) for attacks in ATTACKS.values()) > 380


def test_every_question_gets_attacks_of_every_kind() -> None:
    for kind, attacks in ATTACKS.items():
        asked = [asked_of(attack, number) for number, attack in enumerate(attacks())]
        assert set().union(*asked) == set(QUESTIONS), kind
        assert all({"small file"} < questions for questions in asked), kind


@pytest.mark.parametrize("kind", ATTACKS)
def test_no_answer_breaks_the_client(
    hub: TestHub,
    new_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
) -> None:
    monkeypatch.setattr(download, "IN_MEMORY", 1000)
    monkeypatch.setenv("KERNELS_HUB_TOKEN", TOKEN)
    hub.make_repo("acme/relu", variants={"torch-cpu": {"data.bin": b"x" * 2000}})
    source = (hub.root / "acme/relu/v1/build/torch-cpu/__init__.py").read_text()
    for number, attack in enumerate(ATTACKS[kind]()):
        for question in sorted(asked_of(attack, number)):
            name = f"{attack.name}, to {question}"
            cache = tmp_path / f"cache{number}-{question}"
            monkeypatch.setenv("KERNELS_CACHE", str(cache))
            hub.heal()
            if attack.raw is not None:
                hub.send_raw(QUESTIONS[question], attack.raw)
            elif attack.headers is not None:
                hub.add_headers(QUESTIONS[question], attack.headers)
            hub.clear()
            new_process()
            loaded = len(get_loaded_kernels())
            kernel, error = outcome()
            assert hub.count(QUESTIONS[question]), name
            if error is None:
                assert Path(str(kernel.__file__)).read_text() == source, name
            else:
                said = "".join(traceback.format_exception(error)) + repr(error)
                assert isinstance(error, KernelsError), f"{name}: {said[-2000:]}"
                assert TOKEN not in said, f"{name}: {said[-2000:]}"
                assert len(str(error)) < 4000, name
                assert len(get_loaded_kernels()) == loaded, name
            for path, content in written(cache):
                assert "evil" not in path.relative_to(cache).as_posix(), name
                assert len(content) < 2_000_000, (name, path)
                assert TOKEN.encode() not in content, (name, path)
    assert not list(tmp_path.rglob("*evil*"))
