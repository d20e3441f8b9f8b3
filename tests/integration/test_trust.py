"""Whose code may run, and what holds when nobody can be asked."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hub import TestHub
from logged import logged, warned

from kernels import get_kernel, has_kernel
from kernels.errors import HubUnavailable, NotInCache, PublisherUnknown, UntrustedPublisher


def test_a_publisher_that_the_hub_does_not_mark_is_refused_before_anything_is_downloaded(hub: TestHub) -> None:
    hub.make_repo("mallory/relu")
    with pytest.raises(UntrustedPublisher, match="trust_remote_code") as raised:
        get_kernel("mallory/relu", version=1)
    assert isinstance(raised.value, ValueError)
    assert hub.count("/resolve/") == 0


def test_none_from_a_configuration_trusts_nobody_else(hub: TestHub) -> None:
    hub.make_repo("mallory/relu")
    hub.make_repo("acme/relu", variants={"torch-cpu": None})
    with pytest.raises(UntrustedPublisher, match="mallory"):
        get_kernel("mallory/relu", version=1, trust_remote_code=None)  # type: ignore[arg-type]
    assert get_kernel("acme/relu", version=1, trust_remote_code=None).double(2) == 4  # type: ignore[arg-type]


def test_a_persons_account_is_no_trusted_publisher(hub: TestHub) -> None:
    hub.users.add("jane")
    hub.make_repo("jane/relu")
    with pytest.raises(UntrustedPublisher, match="jane"):
        get_kernel("jane/relu", version=1)


@pytest.mark.parametrize("how", ["everything", "listed", "setting"])
def test_what_the_caller_allows_is_loaded_and_no_verdict_is_asked_for(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    hub.make_repo("mallory/relu")
    trust: bool | list[str] = {"everything": True, "listed": ["mallory/relu"], "setting": False}[how]
    if how == "setting":
        monkeypatch.setenv("KERNELS_TRUSTED_PUBLISHERS", "someone, mallory")
    assert get_kernel("mallory/relu", version=1, trust_remote_code=trust).repo_id == "mallory/relu"
    assert hub.count("overview") == 0


def test_naming_one_repository_allows_no_other(hub: TestHub) -> None:
    hub.make_repo("mallory/relu", depends=[("mallory/other", 1)])
    hub.make_repo("mallory/other")
    with pytest.raises(UntrustedPublisher, match="mallory/other"):
        get_kernel("mallory/relu", version=1, trust_remote_code=["mallory/relu"])


def test_a_verdict_holds_for_a_day(hub: TestHub, new_process: Callable[[], None], isolated_env: Path) -> None:
    hub.make_repo("acme/relu")
    has_kernel("acme/relu", version=1)
    new_process()
    has_kernel("acme/relu", version=1)
    assert hub.count("overview") == 1

    [verdict] = (isolated_env / ".locks" / "kernels-verdicts").rglob("acme.json")
    record = json.loads(verdict.read_text())
    record["time"] -= 25 * 3600
    verdict.write_text(json.dumps(record))
    hub.trusted.discard("acme")
    new_process()
    with pytest.raises(UntrustedPublisher):
        get_kernel("acme/relu", version=1)


def test_a_verdict_from_the_future_is_not_believed(
    hub: TestHub, new_process: Callable[[], None], isolated_env: Path
) -> None:
    hub.make_repo("acme/relu")
    has_kernel("acme/relu", version=1)
    [verdict] = (isolated_env / ".locks" / "kernels-verdicts").rglob("acme.json")
    record = {**json.loads(verdict.read_text()), "time": time.time() + 1e6}
    verdict.write_text(json.dumps(record))
    new_process()
    has_kernel("acme/relu", version=1)
    assert hub.count("overview") == 2


def test_a_refusal_is_asked_for_again(hub: TestHub, new_process: Callable[[], None]) -> None:
    hub.make_repo("mallory/relu")
    with pytest.raises(UntrustedPublisher):
        get_kernel("mallory/relu", version=1)
    hub.trusted.add("mallory")
    new_process()
    assert get_kernel("mallory/relu", version=1).repo_id == "mallory/relu"


def test_a_verdict_of_one_hub_says_nothing_for_another(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.make_repo("acme/relu")
    get_kernel("acme/relu", version=1)
    with TestHub(tmp_path / "other", trusted=()) as other:
        other.make_repo("acme/relu")
        monkeypatch.setenv("KERNELS_HUB", other.url)
        with pytest.raises(UntrustedPublisher):
            get_kernel("acme/relu", version=1)


def test_offline_what_is_in_the_cache_counts_as_checked_with_one_warning(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("mallory/relu")
    get_kernel("mallory/relu", version=1, trust_remote_code=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    new_process()
    with logged() as caught:
        for _ in range(2):
            get_kernel("mallory/relu", version=1)
    assert len([each for each in caught if "Hub's word" in each.getMessage()]) == 1


def test_offline_a_publisher_that_was_refused_stays_refused(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("mallory/relu")
    get_kernel("mallory/relu", version=1, trust_remote_code=True)
    with pytest.raises(UntrustedPublisher):
        get_kernel("mallory/relu", version=1)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    new_process()
    with pytest.raises(UntrustedPublisher):
        get_kernel("mallory/relu", version=1)


def test_offline_a_verdict_that_was_seen_needs_no_warning(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu")
    get_kernel("acme/relu", version=1)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    new_process()
    with logged() as records:
        get_kernel("acme/relu", version=1)
    assert not records


def test_nothing_new_is_fetched_from_a_publisher_without_a_verdict(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    hub.fail("overview")
    with pytest.raises((UntrustedPublisher, HubUnavailable, NotInCache), match="acme"):
        get_kernel("acme/relu", version=1)
    assert hub.count("/resolve/") == 0


def test_a_hub_that_keeps_only_its_verdict_back_gains_nothing_by_it(
    hub: TestHub, new_process: Callable[[], None]
) -> None:
    hub.make_repo("mallory/relu")
    get_kernel("mallory/relu", version=1, trust_remote_code=True)
    hub.fail("overview")
    new_process()
    with pytest.raises(UntrustedPublisher, match="could not be asked"):
        get_kernel("mallory/relu", version=1)


def test_a_hub_that_is_away_leaves_what_a_caller_allowed(hub: TestHub, new_process: Callable[[], None]) -> None:
    hub.make_repo("mallory/relu")
    get_kernel("mallory/relu", version=1, trust_remote_code=True)
    hub.fail("")
    new_process()
    with warned("Hub's word"):
        get_kernel("mallory/relu", version=1)


def test_a_publisher_that_could_not_be_asked_about_is_a_connection_error_first(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu")
    get_kernel("acme/relu", version=1)
    new_process()
    away = "http://127.0.0.1:1"
    monkeypatch.setenv("KERNELS_HUB", away)
    with pytest.raises(PublisherUnknown) as raised:
        get_kernel("acme/relu", version=1)
    for kind in (ConnectionError, ValueError):
        assert isinstance(raised.value, kind)
    text = str(raised.value)
    assert text.startswith(f"{away} did not answer (ConnectError: ")
    assert text.lower().count("try again") == 1
    assert text.endswith("pass trust_remote_code=['acme/relu'] (in a command: --trust-remote-code).")
