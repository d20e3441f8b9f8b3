"""What everything that finds and plans kernels for one call has in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from kernels.resolver.locks import ActiveLock

if TYPE_CHECKING:
    from kernels.errors import HubUnavailable
    from kernels.resolver.likely_builds import LikelyBuilds
    from kernels.resolver.target import Target
    from kernels.sources.call_sources import Sources
    from kernels.trust.policy import Policy
    from kernels.trust.publishers import TrustPolicy
else:  # `inspect.signature` and `help` evaluate the types of a struct's fields
    HubUnavailable = LikelyBuilds = Target = Sources = TrustPolicy = Policy = Any

__all__ = ["ResolveContext"]


class ResolveContext(msgspec.Struct, frozen=True, kw_only=True):
    """What one call resolves kernels with. What decides about security has no default.

    Attributes:
        sources: Where kernels are found.
        target: The machine they must run on.
        trust: Which repositories may be loaded besides those of trusted publishers.
        signing: Which builds must be signed, and by whom (`active_policy()`); None for none. Folders of the user's
            own need no signature.
        lock: The active lock: it chooses the commits of the repositories it lists, dependencies and redirects too.
        backend: The backend to choose builds for, or None for the target's default.
        check_arch: Whether builds must cover the device's architecture.
        device: The device's index or Torch name, or None for the current one.
        prerequisites: Whether the client's version and the Python packages that a build needs are checked.
        undelivered: What a source lists and could not give, by the source's name and the repository: there the next
            source is asked.
        likely: The builds that are requested before it is known that they are used; None where nothing is fetched, or
            only later.
    """

    sources: Sources
    target: Target
    trust: TrustPolicy
    signing: Policy | None
    lock: ActiveLock
    backend: str | None = None
    check_arch: bool = True
    device: int | str | None = None
    prerequisites: bool = True
    undelivered: Mapping[tuple[str, str], HubUnavailable] = {}
    likely: LikelyBuilds | None = None
