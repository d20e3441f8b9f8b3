"""Repositories that cost more than they say to choose from, or to plan: bounded work, threads, reads and messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub, kernel_files

from kernels import download_kernels, install_kernel
from kernels.errors import InvalidMetadata, InvalidRepository, KernelsError
from kernels.models.requirement import Requirement
from kernels.operations.open_sources import open_sources
from kernels.resolver import plan, usable_build
from kernels.resolver.advice import no_suitable_build
from kernels.resolver.build_choice import MAX_READ, BuildChoice, choose_build
from kernels.resolver.choice import resolve
from kernels.resolver.context import ResolveContext
from kernels.resolver.find import find
from kernels.resolver.locks import NO_LOCK
from kernels.resolver.plan import PlanTree, plan_tree
from kernels.resolver.target import Target
from kernels.resolver.variant import Variant, parse_variant
from kernels.trust.publishers import TrustPolicy

CPU = "torch2.9-cpu-x86_64-linux"


def context(target: str = CPU) -> ResolveContext:
    return ResolveContext(
        sources=open_sources(),
        target=Target.parse(target),
        trust=TrustPolicy(),
        signing=None,
        lock=NO_LOCK,
        prerequisites=False,
    )


def choose(target: str = CPU, *, every: bool = False, most: int = MAX_READ) -> BuildChoice:
    within = context(target)
    asked = Requirement("acme/relu", version=1)
    return find(within, asked, lambda found: choose_build(within, found, every=every, most=most), admit=False)


def planned(repo_id: str) -> PlanTree:
    return plan_tree(context(), Requirement(repo_id, version=1))


def fitting(count: int) -> list[str]:
    """Builds that all fit by their names."""
    return [f"torch-stable-abi1{number}-cpu-x86_64-linux" for number in range(count)]


def limited(code: str, seconds: int = 10) -> str:
    """What a script prints within a limit on processor time."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds}))\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # with tests/fixtures
    command = [sys.executable, "-c", limit + code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout.strip()


@contextmanager
def most_threads() -> Iterator[list[int]]:
    """The most threads of this package at one time; looked at whenever one starts."""
    peak, start = [0], threading.Thread.start

    def counted(thread: threading.Thread) -> None:
        start(thread)
        own = [each for each in threading.enumerate() if each.name.startswith("kernels-")]
        peak[0] = max(peak[0], len(own))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", counted)
        yield peak


# Many builds


@pytest.mark.parametrize("every", [False, True])
def test_each_name_is_judged_once(hub: TestHub, monkeypatch: pytest.MonkeyPatch, every: bool) -> None:
    judged: Counter[str] = Counter()

    def parse(name: str, *known: Any) -> Variant:
        judged.update([name])
        return parse_variant(name, *known)

    monkeypatch.setattr("kernels.resolver.choice.parse_variant", parse)
    hub.list_files("acme/relu", [f"build/{name}/__init__.py" for name in fitting(300)])
    try:
        choice = choose(every=every)
        assert every
        assert {each.reason for each in choice.resolution.rejected} == {
            "it has no metadata.json; builds made before that format have none"
        }
    except InvalidMetadata:
        assert not every
    assert set(judged.values()) == {1}
    assert len(judged) == 300


def test_ten_thousand_builds_that_fit_are_judged_at_once(hub: TestHub) -> None:
    hub.list_files("acme/relu", [f"build/{name}/__init__.py" for name in fitting(10_000)])
    code = f"""
from kernels import get_kernel, get_kernel_variants
from kernels.errors import InvalidMetadata
print(len(get_kernel_variants("acme/relu", version=1, target={CPU!r})))
"""
    assert limited(code) == "10000"


def listing_of(count: int, metadata: bytes = b"{}") -> dict[str, bytes]:
    return {f"build/{name}/metadata.json": metadata for name in fitting(count)}


def test_no_more_metadata_is_read_than_bounded_to_choose_a_build(hub: TestHub) -> None:
    hub.list_files("acme/relu", listing_of(MAX_READ + 50))
    with pytest.raises(InvalidMetadata):
        choose()
    assert hub.count("/resolve/") <= MAX_READ


def test_no_more_metadata_is_read_than_bounded_to_explain(hub: TestHub) -> None:
    files = listing_of(MAX_READ + 50)
    best = max(fitting(MAX_READ + 50), key=lambda name: int(name[len("torch-stable-abi1") :].split("-")[0]))
    for name, data in kernel_files("acme/relu", best).items():
        files[f"build/{best}/{name}"] = data
    hub.list_files("acme/relu", files)
    choice = choose("torch1.999-cpu-x86_64-linux", every=True)
    assert choice.best == best
    assert hub.count("/resolve/") == MAX_READ
    unread = [each for each in choice.resolution.rejected if "was not read: at most 256" in each.reason]
    assert len(unread) == 50


def test_builds_that_fit_and_are_not_read_are_named(hub: TestHub) -> None:
    # Valid metadata, and for other devices.
    name = "torch-stable-abi1{}-cu128-x86_64-linux"
    own = kernel_files("acme/relu", name.format(0), archs=["7.0"])["metadata.json"]
    hub.list_files("acme/relu", {f"build/{name.format(each)}/metadata.json": own for each in range(50)})
    with pytest.raises(InvalidRepository, match=r"acme/relu version 1 .*was not read: at most 20"):
        choose("torch2.9-cu128-x86_64-linux+sm_90", most=20)
    assert hub.count("/resolve/") <= 20


def test_metadata_of_many_builds_is_bounded_in_bytes(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.resolver.build_choice.MAX_READ_BYTES", 40_000)
    hub.list_files("acme/relu", listing_of(20, b'{"a": "' + b"x" * 4000 + b'"}'))
    with pytest.raises(InvalidMetadata):
        choose()
    assert hub.count("/resolve/") == 9


def test_every_build_of_a_repository_with_too_many_is_not_downloaded(hub: TestHub) -> None:
    hub.list_files("acme/relu", listing_of(1100))
    with pytest.raises(KernelsError, match="1100 builds; more than 1024 are not read"):
        download_kernels(["acme/relu"], version=1, all_variants=True)
    assert hub.count("/resolve/") == 0


# Dependencies


def layers(hub: TestHub, count: int, width: int) -> None:
    """Kernels in layers, each of which depends on all of the next layer."""

    def depends(layer: int) -> list[tuple[str, int]]:
        return [(f"acme/k{layer}-{each}", 1) for each in range(width)] if layer < count else []

    for layer in range(count):
        for each in range(width):
            hub.make_repo(f"acme/k{layer}-{each}", depends=depends(layer + 1))
    hub.make_repo("acme/top", depends=depends(0))


def test_each_kernel_of_a_graph_is_found_and_planned_once(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    layers(hub, 4, 4)
    found: Counter[str] = Counter()
    chosen: Counter[str] = Counter()

    def counted_find(within, requirement, use, source, **options):
        found[requirement.repo_id] += 1
        return find(within, requirement, use, source, **options)

    def counted_choose(within, release, **options):
        chosen[release.snapshot.repo_id] += 1
        return choose_build(within, release, **options)

    monkeypatch.setattr(plan, "find", counted_find)
    monkeypatch.setattr(usable_build, "choose_build", counted_choose)
    with most_threads() as peak:
        tree = planned("acme/top")
    assert len(tree.builds) == 17
    assert set(found.values()) == set(chosen.values()) == {1}
    # Eight kernels at once, each with a thread for its publisher and one for its repository; some have just ended.
    assert peak[0] <= 40


def test_graphs_with_many_ways_are_planned_within_seconds(hub: TestHub) -> None:
    layers(hub, 8, 16)  # 16 ** 8 ways
    code = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 * 10**9,) * 2)
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_planning import planned
print(len(planned("acme/top").builds))
"""
    assert limited(code) == "129"


# Messages


@pytest.mark.parametrize(
    "names",
    [
        [f"torch-x{number}{'y' * 100}" for number in range(20_000)],
        [f"torch{major}{minor}-cpu-x86_64-linux" for major in range(10) for minor in range(1000) if major != 2],
        [f"torch29-cxx11-{'z' * 90}{number}-x86_64-linux" for number in range(2000)],
        [f"{number}{'y' * 240}" for number in range(2000)],
    ],
    ids=["backends", "Torch versions", "accelerators", "no variants"],
)
def test_a_message_about_many_builds_is_short(names: list[str]) -> None:
    outcome = resolve(names, Target.parse(CPU))
    assert len(str(no_suitable_build("acme/relu", outcome))) < 10_000


def test_a_message_about_many_versions_is_short(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    hub.make_repo("acme/empty")
    branches = [{"name": f"v{number}", "targetCommit": "0" * 40} for number in range(2, 5000)]
    hub.replace("acme/relu/refs", lambda body: json.dumps({"branches": branches, "tags": []}).encode())
    with pytest.raises(KernelsError, match=r"it has 4980, .*, 4999 and 4978 older ones\.") as caught:
        install_kernel("acme/relu", version=1)
    assert len(str(caught.value)) < 1000
