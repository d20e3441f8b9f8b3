"""Several sources in order: what one does not have comes from the next one, and nothing else leads there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from memory_source import MemorySource, commit_of, context, kernel, moved_to

from kernels.errors import (
    DigestMismatch,
    HubUnavailable,
    InvalidMetadata,
    InvalidRepository,
    KernelsError,
    NoSuitableBuild,
    PinnedCommitGone,
    PublisherUnknown,
    RepositoryNotFound,
    RevisionNotFound,
    UntrustedPublisher,
    UntrustedSignature,
)
from kernels.models.lockfile import Lock, Pin
from kernels.models.requirement import Requirement
from kernels.models.snapshot import Heads, Snapshot
from kernels.resolver.find import find
from kernels.resolver.found import leads_on
from kernels.resolver.locks import ActiveLock
from kernels.resolver.plan import plan_every_build, plan_tree
from kernels.resolver.usable_build import choose_from_sources

RELU = Requirement("acme/relu", version=1)
#: Builds that do not suit the target of `context`.
OTHER = kernel(builds=["torch29-cu128-x86_64-linux"])


class Named(MemorySource):
    """A source with a name, and an error that every question gets."""

    def __init__(self, name: str, *args: Any, error: KernelsError | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.name = name  # type: ignore[misc]
        self.endpoint = f"https://{name}.example"
        self.error = error

    def heads(self, repo_id: str) -> Heads:
        if self.error is not None:
            raise self.error
        return super().heads(repo_id)


def test_what_the_first_source_has_is_not_asked_of_another(caplog: pytest.LogCaptureFixture) -> None:
    mirror, hub = Named("mirror", {"acme/relu": kernel("acme/dep"), "acme/dep": kernel()}), Named("hub", {})
    tree = plan_tree(context(mirror, hub), RELU)
    assert [build.source for build in tree.builds] == [mirror, mirror]
    assert hub.asked == []
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("mirror", "reason"),
    [
        (Named("mirror", {}), "acme/relu version 1 is not in mirror"),
        (Named("mirror", {"acme/relu": {"v2": kernel(version=2)}}), "acme/relu version 1 is not in mirror"),
        (Named("mirror", {"acme/relu": OTHER}), "mirror has no suitable build of acme/relu version 1"),
        (Named("mirror", {"acme/relu": {"v1": {}}}), "mirror has no suitable build of acme/relu version 1"),
        (
            Named("mirror", {}, error=HubUnavailable("mirror does not answer.\nMore.")),
            "mirror did not give acme/relu version 1 (mirror does not answer)",
        ),
        (
            Named("mirror", {"acme/relu": kernel()}, unknown=["acme"]),
            "mirror does not know whether the publisher of acme/relu version 1 is trusted",
        ),
    ],
)
def test_what_a_source_does_not_have_comes_from_the_next_one_and_that_is_said(
    mirror: Named, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    hub = Named("hub", {"acme/relu": kernel()})
    for _ in range(3):
        assert plan_tree(context(mirror, hub), RELU).root.source is hub
    assert caplog.messages == [f"{reason}. It is taken from hub."]
    assert choose_from_sources(context(mirror, hub), RELU).source is (mirror if "publisher" in reason else hub)


@pytest.mark.parametrize(
    ("mirror", "hub", "taken"),
    [
        (
            {"acme/dep": kernel()},
            {"acme/relu": kernel("acme/dep", "acme/more"), "acme/dep": kernel(), "acme/more": kernel()},
            {"acme/relu": "hub", "acme/dep": "mirror", "acme/more": "hub"},
        ),
        (
            {"acme/new": kernel()},
            {"acme/relu": moved_to("acme/new"), "acme/new": kernel()},
            {"acme/new": "mirror"},
        ),
        (
            {"acme/relu": moved_to("acme/new"), "acme/new": OTHER},
            {"acme/new": kernel()},
            {"acme/new": "hub"},
        ),
        (None, {"acme/new": kernel()}, {"acme/new": "hub"}),
    ],
    ids=["dependencies", "a redirect", "a redirect to builds that do not suit", "renamed"],
)
def test_what_a_kernel_leads_to_is_asked_of_the_first_source_again(
    mirror: dict[str, Any] | None, hub: dict[str, Any], taken: dict[str, str]
) -> None:
    first = Named("mirror", mirror or {}, renamed=None if mirror else {"acme/relu": "acme/new"})
    tree = plan_tree(context(first, Named("hub", hub)), RELU)
    assert {build.snapshot.repo_id: build.source.name for build in tree.builds} == taken


def test_a_pinned_commit_is_looked_for_in_each_source() -> None:
    commit = commit_of("acme/relu")
    lock = ActiveLock(Lock((Pin(RELU, commit),), where="kernels.lock"), "everything must be locked")
    mirror = Named("mirror", {"acme/relu": {"v2": kernel(version=2)}})
    hub = Named("hub", {"acme/relu": kernel()})
    found = plan_tree(context(mirror, hub, lock=lock), RELU).root
    assert (found.source, found.found.lock) == (hub, "kernels.lock")
    with pytest.raises(PinnedCommitGone, match=r"(?s)kernels.lock pins acme/relu.*other: acme/relu has no commit"):
        plan_tree(context(Named("other", {"acme/relu": {"v3": kernel()}}), mirror, lock=lock), RELU)


@pytest.mark.parametrize(
    "mirror",
    [
        Named("mirror", {"acme/relu": kernel()}, trusted=()),
        *(
            Named("mirror", {}, error=error("final"))
            for error in (DigestMismatch, InvalidRepository, InvalidMetadata, UntrustedSignature)
        ),
        Named("mirror", {"acme/relu": {"build/torch-cpu/metadata.json": b"{"}}),
    ],
    ids=["untrusted", "digest", "document", "metadata", "signature", "damaged"],
)
def test_an_error_about_trust_or_content_is_final(mirror: Named) -> None:
    hub = Named("hub", {"acme/relu": kernel()})
    with pytest.raises((UntrustedPublisher, DigestMismatch, InvalidRepository, InvalidMetadata, UntrustedSignature)):
        plan_tree(context(mirror, hub), RELU)
    assert hub.asked == []


def test_the_verdict_of_the_source_that_has_it_counts() -> None:
    mirror, hub = Named("mirror", {}, trusted=["acme"]), Named("hub", {"acme/relu": kernel()}, trusted=())
    with pytest.raises(UntrustedPublisher):
        plan_tree(context(mirror, hub), RELU)
    mirror, hub = Named("mirror", {}, trusted=()), Named("hub", {"acme/relu": kernel()}, trusted=["acme"])
    assert plan_tree(context(mirror, hub), RELU).root.source is hub


def test_without_it_anywhere_the_last_error_is_raised_with_what_each_said() -> None:
    sources = Named("mirror", {"acme/relu": {"v2": kernel()}}), Named("one", {}), Named("hub", {})
    with pytest.raises(RepositoryNotFound) as missing:
        find(context(*sources), RELU, lambda found: found)
    assert str(missing.value) == (
        "hub has no repository acme/relu.\nOther addresses in KERNELS_HUB were asked too:\n"
        "  mirror: acme/relu has no version 1; it has 2.\n  one: one has no repository acme/relu."
    )
    away = Named("hub", {}, error=HubUnavailable("hub is away."))
    with pytest.raises(HubUnavailable, match=r"hub is away\.\nOther .*\n  one: one has no"):
        find(context(sources[1], away), RELU, lambda found: found)


@pytest.mark.parametrize("second", [Named("hub", {}), Named("hub", {}, error=HubUnavailable("hub is away."))])
def test_builds_that_do_not_suit_are_listed_although_another_source_has_none(second: Named) -> None:
    mirror = Named("mirror", {"acme/relu": OTHER})
    with pytest.raises(NoSuitableBuild, match=r"(?s)torch29-cu128-x86_64-linux: .*\n  hub: hub (has no|is away)"):
        plan_tree(context(mirror, second), RELU)
    choice = choose_from_sources(context(mirror, second), RELU)
    assert choice.source is mirror
    assert "\nFrom mirror.\n" in choice.title
    with pytest.raises(NoSuitableBuild, match=r"(?s)torch29-cu128.*\n  hub: .*torch29-cu128"):
        plan_tree(context(mirror, Named("hub", {"acme/relu": OTHER})), RELU)


def test_explain_says_where_builds_are_from_and_what_was_passed_over() -> None:
    hub = Named("hub", {"acme/relu": kernel()})
    title = choose_from_sources(context(Named("mirror", {}), hub), RELU).title
    assert title.splitlines()[1:] == ["From hub.", "acme/relu version 1 is not in mirror."]
    assert "From" not in choose_from_sources(context(hub), RELU).title


def test_every_build_is_planned_from_the_source_that_has_any() -> None:
    hub = Named("hub", {"acme/relu": OTHER})
    assert plan_every_build(context(Named("mirror", {"acme/relu": {"v1": {}}}), hub), RELU).root.source is hub


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls are those of ranks of one job."""
    store: dict[str, str] = {}

    def agree(key: str, ask: Any) -> str:
        return store[key] if key in store else store.setdefault(key, ask())

    monkeypatch.setattr("kernels.support.distributed.agree", agree)


@pytest.mark.usefixtures("job")
def test_all_ranks_of_a_job_use_the_source_that_the_first_one_used() -> None:
    away = Named("mirror", {}, error=HubUnavailable("away"))
    hub = Named("hub", {"acme/relu": kernel()})
    assert plan_tree(context(away, hub), RELU).root.source is hub
    back = Named("mirror", {"acme/relu": kernel(builds=["torch-cpu", "torch-cuda"])})
    assert plan_tree(context(back, hub), RELU).root.source is hub
    with pytest.raises(RevisionNotFound):
        plan_tree(context(back, Named("hub", {"acme/relu": {"v2": kernel()}})), RELU)


@pytest.mark.usefixtures("job")
def test_a_rank_that_cannot_ask_the_source_of_the_others_takes_no_other_one() -> None:
    mirror, hub = (Named(name, {"acme/relu": kernel()}) for name in ("mirror", "hub"))
    assert plan_tree(context(mirror, hub), RELU).root.source is mirror
    away = Named("mirror", {}, error=HubUnavailable("mirror is away"))
    with pytest.raises(KernelsError, match=r"\nAnother process of this job took it from mirror\."):
        plan_tree(context(away, hub), RELU)


def test_what_another_tool_downloaded_is_used_where_no_source_lists_it() -> None:
    class Unlisted(Named):
        def snapshot(self, requirement: Requirement, commit: str) -> Snapshot:
            return msgspec.structs.replace(super().snapshot(requirement, commit), listed=False)

    one, other = Unlisted("one", {"acme/relu": kernel()}), Named("other", {"acme/relu": kernel()})
    assert plan_tree(context(one, other), RELU).root.source is other
    assert plan_tree(context(one, Named("other", {})), RELU).root.source is one


def test_only_absence_leads_on() -> None:
    assert leads_on(PinnedCommitGone("gone"))
    assert leads_on(PublisherUnknown("unknown"))
    assert not leads_on(KernelsError("other"))
