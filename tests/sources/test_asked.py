"""What an address is asked, and what there is in place of an answer: one rule for every question."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub
from mirror_tree import MirrorTree, StaticServer

from kernels import get_kernel, install_kernel
from kernels.errors import HubUnavailable, UntrustedSignature
from kernels.operations.open_sources import open_sources
from kernels.sources.asked import AskedSource
from kernels.sources.http import BRIEF, OtherKind, Patience


def opened() -> AskedSource:
    """The source that the settings name."""
    source = open_sources().default
    assert isinstance(source, AskedSource)
    return source


NEVER = None  # no question is asked


@pytest.mark.parametrize(
    ("away", "stored", "answers", "patience", "result", "away_after"),
    [
        (False, False, True, Patience(), "answer", False),
        (False, True, True, BRIEF, "answer", False),
        (False, False, False, Patience(), HubUnavailable, True),
        (False, True, False, BRIEF, "stored: silent", True),
        (True, False, True, BRIEF, "answer", True),
        (True, False, False, BRIEF, HubUnavailable, True),
        (True, True, True, NEVER, "stored: earlier", True),
    ],
)
def test_a_question_is_asked_or_what_is_stored_is_used(
    hub: TestHub,
    away: bool,
    stored: bool,
    answers: bool,
    patience: Patience | None,
    result: Any,
    away_after: bool,
) -> None:
    source = opened()
    asked: list[Patience] = []
    if away:
        source.memory.note_away(HubUnavailable("earlier"))

    def question(api: object, patience: Patience) -> str:
        asked.append(patience)
        if not answers:
            raise HubUnavailable("silent")
        return "answer"

    def ask() -> str:
        return source.ask("acme/relu", question, (lambda problem: f"stored: {problem}") if stored else None)

    if isinstance(result, str):
        assert ask() == result
    else:
        with pytest.raises(result):
            ask()
    assert asked == ([] if patience is None else [patience])
    assert source.memory.away == away_after


def test_after_one_kernel_by_commit_the_next_does_not_wait_for_a_hub_that_is_away(
    hub: TestHub, brief_waits: list[float]
) -> None:
    hub.down()
    waits = []
    for name in ("acme/relu", "acme/gelu"):
        brief_waits.clear()
        with pytest.raises(HubUnavailable):
            install_kernel(name, revision="1" * 40, trust_remote_code=True)
        waits.append(len(brief_waits))
    assert waits == [3, 0]


def test_where_a_hub_takes_the_place_of_a_mirror_one_question_is_asked_twice(
    hub: TestHub, tmp_path: Path, isolated_env: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    names = ("acme/relu", "acme/gelu", "acme/silu")
    tree = MirrorTree(tmp_path / "mirror")
    for name in names:
        tree.add(name)
        hub.make_repo(name)
    with StaticServer(tree.root) as server:
        monkeypatch.setenv("KERNELS_HUB", server.url)
        for name in names:
            install_kernel(name, version=1)
        for path in isolated_env.rglob("heads-*.json"):  # what the mirror said, as if it had been at the Hub's address
            said = path.read_bytes()
            path.unlink()
            moved_record(path, said, server.url, hub.url)
    monkeypatch.setenv("KERNELS_HUB", hub.url)
    new_process()
    for name in names:
        assert opened().kind_of(name) in ("mirror", "hub")
        install_kernel(name, version=1)
    assert hub.count("/refs") == len(names) + 1, hub.asked()
    assert hub.count("mirror.json") == 0


def moved_record(path: Path, said: bytes, old: str, new: str) -> None:
    """Write a record of one address as that of another one."""
    from kernels.cache.records import Answer
    from kernels.cache.store import RepoStore
    from kernels.support.record_file import decode_json

    answer = decode_json(said, Answer)
    repo_id = path.parents[1].name.removeprefix("kernels--").replace("--", "/")
    RepoStore(path.parents[2], repo_id).keep_answer(new, answer)


def test_a_mirror_that_answers_in_the_place_of_a_hub_costs_no_request_more(
    tmp_path: Path, isolated_env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = MirrorTree(tmp_path / "mirror")
    tree.add("acme/relu")
    with StaticServer(tree.root) as server:
        monkeypatch.setenv("KERNELS_HUB", server.url)
        source = opened()
        assert source.name == f"the Hub or mirror at {server.url}"
        assert source.kind_of("acme/relu") is None
        assert source.heads("acme/relu").versions == {1: "v1"}
        assert (source.name, source.asks_publishers) == (f"the mirror at {server.url}", False)
        assert len(server.requests) == 1


def test_what_answers_neither_way_is_an_error(hub: TestHub) -> None:
    source = opened()

    def flip(api: object, patience: Patience) -> None:
        raise OtherKind("it is the other kind")

    with pytest.raises(HubUnavailable, match="it is the other kind"):
        source.ask("acme/relu", flip)


def test_a_hub_is_no_mirror_where_mirrors_must_be_signed(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.make_repo("acme/relu")
    monkeypatch.setenv("KERNELS_MIRROR_KEYS", f"ed25519:{'A' * 43}=")
    with pytest.raises(UntrustedSignature, match="answers as a Hub"):
        get_kernel("acme/relu", version=1)
    assert hub.count("/resolve/") == 0
