"""One walk over dependencies: each snapshot once, its dependencies first, within limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from memory_source import MemorySource

from kernels.errors import DependencyCycle
from kernels.models.metadata import MAX_KERNEL_DEPENDS
from kernels.models.requirement import Requirement
from kernels.models.snapshot import Snapshot
from kernels.resolver.found import FoundSnapshot
from kernels.resolver.plan import MAX_DEPTH, Visited, walk

SOURCE = MemorySource({})


def asked(name: str) -> Requirement:
    return Requirement(f"acme/{name}", version=1)


def walked(
    depends: Mapping[str, Sequence[str]],
    roots: Sequence[str],
    *,
    names: Mapping[str, str] | None = None,
    calls: Counter[str] | None = None,
) -> list[str]:
    """Walk over a graph of names; `names` says which kernel a name leads to, where that is another one."""
    calls = Counter() if calls is None else calls

    def visit(each: Requirement) -> Visited[str]:
        name = each.repo_id.removeprefix("acme/")
        calls[name] += 1
        real = (names or {}).get(name, name)
        found = FoundSnapshot(each, each, SOURCE, Snapshot(f"acme/{real}", "1" * 40, ()))
        return Visited(found, real, tuple(map(asked, depends.get(real, ()))))

    return list(dict.fromkeys(node.value for node in walk([asked(each) for each in roots], visit).values()))


def chain(length: int) -> dict[str, list[str]]:
    return {f"k{each}": [f"k{each + 1}"] for each in range(length - 1)}


@pytest.mark.parametrize(
    ("depends", "roots", "names", "order"),
    [
        ({}, ["a"], {}, "a"),
        ({}, [], {}, ""),
        ({"a": ["b"], "b": ["c"]}, ["a"], {}, "c b a"),
        ({"a": ["b", "c"]}, ["a"], {}, "b c a"),
        ({"a": ["b", "c"], "b": ["d"], "c": ["d"]}, ["a"], {}, "d b c a"),
        ({"a": ["b", "c"], "c": ["b"]}, ["a"], {}, "b c a"),
        ({"a": ["c"], "b": ["c"]}, ["a", "b"], {}, "c a b"),
        ({"a": ["b"]}, ["a", "b"], {}, "b a"),
        ({"a": ["old", "older"]}, ["a"], {"old": "b", "older": "b"}, "b a"),
        ({"a": ["b", "old"], "b": ["c"]}, ["a"], {"old": "c"}, "c b a"),
    ],
    ids=["one", "none", "chain", "two", "diamond", "shortcut", "two roots", "a root", "two names", "a later name"],
)
def test_each_kernel_comes_once_after_its_dependencies(
    depends: dict[str, list[str]], roots: list[str], names: dict[str, str], order: str
) -> None:
    calls: Counter[str] = Counter()
    assert walked(depends, roots, names=names, calls=calls) == order.split()
    assert set(calls.values()) <= {1}


@pytest.mark.parametrize(
    ("depends", "message"),
    [
        ({"a": ["a"]}, "in a circle: acme/a -> acme/a."),
        ({"a": ["b"], "b": ["a"]}, "in a circle: acme/a -> acme/b -> acme/a."),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, "in a circle: acme/b -> acme/c -> acme/b."),
        ({"a": ["b", "d"], "b": ["c"], "c": ["d"], "d": ["c"]}, "in a circle: acme/d -> acme/c -> acme/d."),
        (
            {"k0": []} | chain(MAX_DEPTH + 1),
            f"more than {MAX_DEPTH} deep: acme/k0 -> acme/k1 -> acme/k2",
        ),
        ({"a": [f"b{each}" for each in range(MAX_KERNEL_DEPENDS + 1)]}, "acme/a depends on more than 256 kernels"),
    ],
    ids=["itself", "two", "below", "shared", "deep", "wide"],
)
def test_graphs_beyond_the_limits_are_refused(depends: dict[str, list[str]], message: str) -> None:
    with pytest.raises(DependencyCycle) as caught:
        walked(depends, [next(iter(depends))])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("depends", "root", "count"),
    [
        (chain(MAX_DEPTH), "k0", MAX_DEPTH),
        ({"a": [f"b{each}" for each in range(MAX_KERNEL_DEPENDS)]}, "a", 1 + MAX_KERNEL_DEPENDS),
    ],
    ids=["deep", "wide"],
)
def test_graphs_at_the_limits_are_walked(depends: dict[str, list[str]], root: str, count: int) -> None:
    assert len(walked(depends, [root])) == count


def test_a_chain_without_end_is_given_up_at_the_limit() -> None:
    calls: Counter[str] = Counter()
    with pytest.raises(DependencyCycle):
        walked(chain(1000), ["k0"], calls=calls)
    assert len(calls) == MAX_DEPTH


def test_more_kernels_than_a_plan_may_have_are_refused_before_they_are_looked_at() -> None:
    depends = {"top": ["a", "b", "c"]} | {each: [f"{each}{other}" for other in range(100)] for each in "abc"}
    calls: Counter[str] = Counter()
    with pytest.raises(DependencyCycle):
        walked(depends, ["top"], calls=calls)
    assert set(calls) == {"top", "a", "b", "c"}


def test_the_limit_grows_with_the_roots() -> None:
    depends = {name: [f"{name}{each}" for each in range(MAX_KERNEL_DEPENDS)] for name in ("a", "b")}
    assert len(walked(depends, ["a", "b"])) == 2 * (1 + MAX_KERNEL_DEPENDS)
    with pytest.raises(DependencyCycle, match="2 kernels depend on more than 512 kernels"):
        walked({**depends, "a0": ["c"]}, ["a", "b"])
