"""Plans over data alone: the build of each kernel of a tree, and what every way to a kernel demands of it."""

from __future__ import annotations

import json

import msgspec
import pytest
from logged import logged, warned
from memory_source import CPU, Files, MemorySource, commit_of, context, kernel, moved_to

from kernels.backends import Device, Unanswered
from kernels.errors import (
    DependencyCycle,
    DigestMismatch,
    InvalidMetadata,
    NoSuitableBuild,
    NotInCache,
    UntrustedPublisher,
    UntrustedSignature,
)
from kernels.models.lockfile import ContentHash, Lock, Pin
from kernels.models.requirement import Requirement
from kernels.resolver.locks import ActiveLock
from kernels.resolver.plan import PlanTree, plan_every_build, plan_tree
from kernels.trust.policy import Policy, Rule

BOTH = ("torch-cpu", "torch-cuda")


def plan(source: MemorySource, repo_id: str = "acme/top", **options: object) -> PlanTree:
    return plan_tree(context(source, **options), Requirement(repo_id, version=1))  # type: ignore[arg-type]


def names(tree: PlanTree) -> str:
    """The builds of a plan: `relu`, or `relu:torch-cuda` where it is not the one for the CPU."""
    return " ".join(
        each.snapshot.repo_id.removeprefix("acme/") + f":{each.variant}" * (each.variant != "torch-cpu")
        for each in tree.builds
    )


@pytest.mark.parametrize(
    ("repositories", "target", "one", "every"),
    [
        ({"acme/top": kernel()}, CPU, "top", "top"),
        ({"acme/top": kernel("acme/a"), "acme/a": kernel()}, CPU, "a top", "a top"),
        (
            {"acme/top": kernel("acme/a", builds=BOTH), "acme/a": kernel(builds=BOTH)},
            "torch2.9-cu128-x86_64-linux",
            "a:torch-cuda top:torch-cuda",
            "a a:torch-cuda top top:torch-cuda",
        ),
        (
            {"acme/top": kernel("acme/old", "acme/a"), "acme/old": moved_to("acme/a"), "acme/a": kernel()},
            CPU,
            "a top",
            "a top",
        ),
        (
            {"acme/top": kernel() | kernel("acme/a", builds=["torch-cuda"]), "acme/a": kernel(builds=["torch-cuda"])},
            CPU,
            "top",
            "a:torch-cuda top top:torch-cuda",
        ),
    ],
    ids=["one", "depends", "for cuda", "two ways", "other build's dependency"],
)
def test_a_plan_has_the_builds_that_suit_or_every_one(
    repositories: dict[str, Files], target: str, one: str, every: str
) -> None:
    source = MemorySource(repositories)
    tree = plan(source, target=target)
    assert names(tree) == one
    assert tree.root.snapshot.repo_id == "acme/top"
    assert names(plan_every_build(context(source, target=target), Requirement("acme/top", version=1))) == every
    for build in tree.builds:
        assert [key.repo_id for key in build.depends.values()] == [
            "acme/a" if each.repo_id == "acme/old" else each.repo_id for each in build.metadata.kernel_depends
        ]


def test_architectures_that_could_not_be_compared_are_told_where_a_query_failed() -> None:
    [(path, content)] = kernel(builds=["torch-cuda"]).items()
    metadata = json.loads(content) | {"backend": {"type": "cuda", "archs": ["9.0", "10.0"]}}
    source = MemorySource({"acme/top": {path: json.dumps(metadata).encode()}})
    failed = Unanswered("architectures", "'acme-smi' ended with exit status 3")

    def plan_with(**facts: object) -> None:
        known = context(source, target="torch2.9-cu128-x86_64-linux")
        machine = msgspec.structs.replace(known.target, **facts)
        plan_tree(msgspec.structs.replace(known, target=machine), Requirement("acme/top", version=1))

    with warned("") as said:
        plan_with(unanswered={"cuda": (failed,)})
    assert said == [
        "Build torch-cuda of acme/top is for 9.0, 10.0; that was not compared with the cuda devices, whose "
        "architectures are not known ('acme-smi' ended with exit status 3)."
    ]
    with logged() as records:
        plan_with()
        plan_with(unanswered={"cuda": (Unanswered("version", "failed"),)})
        plan_with(unanswered={"cuda": (failed,)}, devices=(Device("cuda", 0, arch="9.0"),))
    assert records == []


def test_a_plan_tells_how_each_kernel_was_found() -> None:
    source = MemorySource({"acme/top": kernel("acme/old"), "acme/old": moved_to("acme/a"), "acme/a": kernel()})
    ways = [[step.snapshot.repo_id for step in found.steps] for found in plan(source).found]
    assert ways == [["acme/old", "acme/a"], ["acme/top"]]


def test_each_kernel_is_asked_for_once() -> None:
    source = MemorySource(
        {
            "acme/top": kernel("acme/a", "acme/b"),
            "acme/a": kernel("acme/c"),
            "acme/b": kernel("acme/c"),
            "acme/c": kernel(),
        }
    )
    plan(source)
    assert len(source.asked) == len(set(source.asked))


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (MemorySource({"acme/top": kernel(builds=["torch-cuda"])}), NoSuitableBuild, "torch-cuda: for cuda, not cpu"),
        (MemorySource({"acme/top": {"README.md": b""}}), NoSuitableBuild, "has no builds at all"),
        (MemorySource({"acme/top": {"build/torch-cpu/a.py": b""}}), InvalidMetadata, "it has no metadata.json"),
        (MemorySource({"acme/top": {"build/torch-cpu/metadata.json": b"{"}}), InvalidMetadata, "metadata.json"),
        (
            MemorySource({"acme/top": {"v1": kernel(builds=["torch-cuda"]), "v2": kernel(version=2)}}),
            NoSuitableBuild,
            "Version 2 has a build that suits: version=2.",
        ),
        (MemorySource({"acme/top": kernel()}, local=[], offline=True), NotInCache, "It has none; this machine is"),
        (
            MemorySource({"acme/top": kernel(builds=BOTH)}, local=["acme/top/torch-cuda"], offline=True),
            NotInCache,
            "It has torch-cuda; this machine is torch2.9-cpu",
        ),
        (MemorySource({"acme/top": kernel()}, trusted=[]), UntrustedPublisher, "'acme' is not one that"),
        (MemorySource({"acme/top": kernel()}, unknown=["acme"]), UntrustedPublisher, "could not be asked"),
        (
            MemorySource({"acme/top": kernel("other/a"), "other/a": kernel()}),
            UntrustedPublisher,
            "'other' is not one that",
        ),
        (
            MemorySource({"acme/top": kernel("acme/a"), "acme/a": kernel("acme/top")}),
            DependencyCycle,
            "in a circle: acme/top -> acme/a -> acme/top",
        ),
    ],
    ids=[
        "no build",
        "no builds",
        "no metadata",
        "broken metadata",
        "another version",
        "nothing on disk",
        "another on disk",
        "untrusted",
        "unknown",
        "untrusted dependency",
        "circle",
    ],
)
def test_what_stands_in_the_way_of_a_plan_is_said(source: MemorySource, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        plan(source)
    assert message in str(caught.value)


def test_offline_the_build_that_is_on_disk_is_used() -> None:
    builds = ("torch-stable-abi29-cpu-x86_64-linux", "torch-cpu")
    source = MemorySource({"acme/top": kernel(builds=builds)}, local=["acme/top/torch-cpu"], offline=True)
    assert plan(source).root.variant == "torch-cpu"
    assert plan(MemorySource({"acme/top": kernel(builds=builds)})).root.variant == builds[0]


PINNED = ContentHash("sha256sum", f"sha256-{'0' * 64}")


def lock(hashes: dict[str, ContentHash] | None) -> ActiveLock:
    """A lock that pins acme/top, perhaps with the content of builds."""
    commit = commit_of("acme/top")
    content = {} if hashes is None else {("acme/top", commit): hashes}
    return ActiveLock(Lock((Pin(Requirement("acme/top", version=1), commit),), content))


def test_a_build_carries_the_content_that_its_lock_pins() -> None:
    source = MemorySource({"acme/top": kernel()})
    assert plan(source, lock=lock({"torch-cpu": PINNED})).root.pinned == PINNED
    assert plan(source, lock=lock(None)).root.pinned is None
    with pytest.raises(DigestMismatch, match="'torch-cpu' is none of the commit's builds"):
        plan(source, lock=lock({"torch-cuda": PINNED}))


def test_an_unsigned_build_is_refused_where_signatures_are_required() -> None:
    source = MemorySource({"acme/top": kernel()})
    assert not plan(source, signing=Policy()).root.signed
    with pytest.raises(UntrustedSignature, match=r"it has no signature \(metadata.json.sigstore\)"):
        plan(source, signing=Policy({"acme/top": Rule(required=True)}))


def test_every_way_to_a_kernel_has_to_be_admitted() -> None:
    repositories = {
        "acme/top": kernel("acme/a", "acme/b"),
        "acme/a": kernel(),
        "acme/b": kernel("mist/old"),
        "mist/old": moved_to("acme/a"),  # a later way to what the first one led to
    }
    online = context(MemorySource(repositories, unknown=["mist"]))
    on_disk = context(MemorySource(repositories, unknown=["mist"], offline=True))
    asked = Requirement("acme/top", version=1)
    assert names(plan_tree(on_disk, asked)) == "a b top"
    for planning, within in ((plan_tree, online), (plan_every_build, online), (plan_every_build, on_disk)):
        with pytest.raises(UntrustedPublisher):
            planning(within, asked)
