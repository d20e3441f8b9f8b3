"""A source that lists a build and does not give it: the next one is asked, as for what it does not have."""

from __future__ import annotations

from msgspec.structs import replace

from kernels.errors import HubUnavailable
from kernels.resolver.context import ResolveContext
from kernels.resolver.ordered_sources import PassedOver, leads_on
from kernels.resolver.planner import Planned, PlanTree
from kernels.support import distributed

__all__ = ["NotDelivered", "may_be_elsewhere", "without_undelivered"]


class NotDelivered(Exception):
    """A source does not give a build that it lists, and there is another source to ask.

    Args:
        planned: The build.
        error: Why it could not be downloaded. Content that differs is no such error: no other source hides it.
    """

    def __init__(self, planned: Planned, error: HubUnavailable) -> None:
        super().__init__(planned, error)
        self.planned = planned
        self.error = error


def may_be_elsewhere(planned: Planned, error: HubUnavailable) -> bool:
    """Whether another source may be asked for a build that could not be downloaded.

    The ranks of a job use one commit. If only one of them cannot download it, another source's branch is no help.
    """
    settled = planned.lock is not None or planned.requirement.commit is not None
    return leads_on(error) and planned.found.more and (settled or not distributed.in_job())


def without_undelivered(context: ResolveContext, tree: PlanTree, failed: NotDelivered) -> ResolveContext:
    """The context in which a plan is made again, without the source of a build that could not be downloaded.

    Args:
        context: The context of the plan.
        tree: The plan.
        failed: The build.
    """
    found = failed.planned.found
    over = {
        way.found.asked: (*way.found.passed, PassedOver(found.source, failed.error, listed=True))
        for way in tree.routes
        if way.found.key == found.key
    }
    return replace(context, undelivered={**context.undelivered, **over})
