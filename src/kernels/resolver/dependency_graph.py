"""The walk from what is required to everything it depends on, level by level, each snapshot once.

Planning a kernel, downloading every build and locking a project differ only in the edges they take from a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from kernels.errors import DependencyCycle
from kernels.models.metadata import MAX_KERNEL_DEPENDS
from kernels.models.requirement import Requirement
from kernels.resolver.finder import Resolved
from kernels.resolver.redirects import SnapshotKey
from kernels.sources.base import Source
from kernels.support.tasks import side_by_side

__all__ = ["Asked", "DependencyGraph", "GraphNode", "walk_dependencies"]

_T = TypeVar("_T")
_R = TypeVar("_R")
_Value = TypeVar("_Value")

#: Kernels nest two or three deep; a chain this long is a mistake or an attack.
MAX_DEPTH = 32

#: Releases that are looked at at the same time.
AT_ONCE = 8


class Asked(msgspec.Struct, frozen=True):
    """A requirement of a graph, and its source where that is given, as for a folder."""

    requirement: Requirement
    source: Source | None = None


class GraphNode(msgspec.Struct, Generic[_Value], frozen=True):
    """A snapshot of a graph: what the caller made of it, and what it depends on."""

    value: _Value
    depends: tuple[Requirement, ...] = ()


class DependencyGraph(msgspec.Struct, Generic[_Value], frozen=True):
    """Everything that roots depend on.

    Attributes:
        ways: Where each requirement leads.
        nodes: Each snapshot once, after those it depends on.
    """

    ways: Mapping[Asked, Resolved]
    nodes: Mapping[SnapshotKey, GraphNode[_Value]]


def walk_dependencies(
    roots: Sequence[Asked],
    resolve: Callable[[Asked], Resolved],
    edges_of: Callable[[Sequence[Resolved]], GraphNode[_Value]],
) -> DependencyGraph[_Value]:
    """Walk from requirements to everything they depend on.

    Args:
        roots: Where to begin.
        resolve: Finds the snapshot of a requirement, past redirects. It is called once for each requirement.
        edges_of: Gives the node of a snapshot. It is called once for each snapshot, with the ways that first led to it.

    Raises:
        DependencyCycle: Dependencies lead in a circle, nest too deep, or are too many.
    """
    most = len(roots) * (1 + MAX_KERNEL_DEPENDS)
    ways: dict[Asked, Resolved] = {}
    nodes: dict[SnapshotKey, GraphNode[_Value]] = {}
    level = list(dict.fromkeys(roots))
    depth = 0
    while level:
        depth += 1
        # Requirements of several names or versions, or past redirects, may lead to one snapshot.
        new: dict[SnapshotKey, list[Resolved]] = {}
        for asked, resolved in zip(level, _side_by_side(resolve, level), strict=True):
            ways[asked] = resolved
            if resolved.found.key not in nodes:
                new.setdefault(resolved.found.key, []).append(resolved)
        if new and depth > MAX_DEPTH:
            _order(roots, ways, {key: node.depends for key, node in nodes.items()} | dict.fromkeys(new, ()))
        nodes.update(zip(new, _side_by_side(edges_of, list(new.values())), strict=True))
        following = dict.fromkeys(Asked(each) for key in new for each in nodes[key].depends)
        level = [each for each in following if each not in ways]
        if len(ways) + len(level) > most:
            what = roots[0].requirement.repo_id + " depends" if len(roots) == 1 else f"{len(roots)} kernels depend"
            raise DependencyCycle(f"{what} on more than {most - len(roots)} kernels.")
    order = _order(roots, ways, {key: node.depends for key, node in nodes.items()})
    return DependencyGraph(ways, {key: nodes[key] for key in order})


def _order(
    roots: Iterable[Asked],
    ways: Mapping[Asked, Resolved],
    depends: Mapping[SnapshotKey, tuple[Requirement, ...]],
) -> list[SnapshotKey]:
    """All snapshots, each after those it depends on.

    Raises:
        DependencyCycle: They lead in a circle, or nest too deep.
    """
    longest: dict[SnapshotKey, tuple[SnapshotKey, ...]] = {}  # the longest path that begins at each

    def visit(key: SnapshotKey, before: tuple[SnapshotKey, ...]) -> None:
        path = (*before, key)
        _check_path(path)
        if key not in longest:
            following = dict.fromkeys(ways[Asked(each)].found.key for each in depends[key])
            for each in following:
                visit(each, path)
            longest[key] = (key, *max((longest[each] for each in following), key=len, default=()))
        _check_path((*before, *longest[key]))

    for root in roots:
        visit(ways[root].found.key, ())
    return list(longest)


def _check_path(path: tuple[SnapshotKey, ...]) -> None:
    *before, last = path
    if last in before:
        route = " -> ".join(each.repo_id for each in path[before.index(last) :])
        raise DependencyCycle(f"Kernel dependencies lead in a circle: {route}.")
    if len(path) > MAX_DEPTH:
        route = " -> ".join(each.repo_id for each in path[:5])
        raise DependencyCycle(f"Kernel dependencies nest more than {MAX_DEPTH} deep: {route} -> …")


def _side_by_side(work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """One item is worked on in the caller's thread; several are, by no more threads than `AT_ONCE`."""
    return [work(items[0])] if len(items) == 1 else side_by_side(work, items, at_once=AT_ONCE, name="plan")
