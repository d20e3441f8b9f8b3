"""One kernel to get, and what the call resolves it with: the settings, the caller's lock, this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kernels import settings
from kernels.models.requested_names import allowed_repositories, check_requested

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernels.backends import BackendName
    from kernels.models.requirement import Requirement
    from kernels.resolver.context import ResolveContext
    from kernels.resolver.locks import ActiveLock
    from kernels.resolver.target import Target
    from kernels.settings import Verify

__all__ = ["KernelRequest", "check_user_agent", "context_for", "distinct_targets", "target_of"]


class KernelRequest(NamedTuple):
    """One kernel to get, with the arguments of `get_kernel`. A value: it cannot be changed.

    Attributes:
        repo_id: The repository, `org/name`.
        version: A major version; not together with `revision`.
        revision: A branch, a tag or a commit.
        backend: The backend to load a build for; the default follows Torch's build.
        user_agent: Text to add to the `User-Agent` header of requests.
        trust_remote_code: As for `get_kernel`.
        check_arch: Whether the build must cover the device's architecture.
        device: The device to choose the build for: an index, or Torch's name.
        verify: When the content of the builds is checked, as for `get_kernel`.
        local_files_only: Use only what is in the cache.
        local_kernels: Whether `LOCAL_KERNELS` is used.
        lock: The lock to use; the default is the caller's.

    Example:
        >>> KernelRequest("org/name", version=1) == KernelRequest("org/name", 1)
        True
    """

    repo_id: str
    version: int | None = None
    revision: str | None = None
    backend: BackendName | None = None
    user_agent: str | Mapping[str, str] | None = None
    trust_remote_code: bool | Sequence[str] = False
    check_arch: bool = True
    device: int | str | None = None
    verify: Verify | None = None
    local_files_only: bool = False
    local_kernels: bool = True
    lock: ActiveLock | None = None

    def check(self) -> None:
        """Raise if an argument is not valid, as far as that can be said without knowing this machine.

        Raises:
            TypeError: One is of the wrong type.
            RequestError: One is not valid.
        """
        check_requested(self.repo_id, self.version, self.revision)
        for name in ("check_arch", "local_files_only"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                from kernels.support.formatting import wrong_type

                raise wrong_type(name, "True or False", value)
        check_user_agent(self.user_agent)
        allowed_repositories(self.trust_remote_code)
        settings.verify_when(self.verify)

    @property
    def requirement(self) -> Requirement:
        """The repository, with the version or the revision."""
        from kernels.models.requirement import Requirement

        return Requirement(self.repo_id, version=self.version, revision=self.revision)

    def with_changes(self, **changes: Any) -> KernelRequest:
        """The same request with other values of some attributes.

        Args:
            changes: Names of attributes, with their new values.
        """
        return self._replace(**changes)

    def __hash__(self) -> int:
        return hash(self[:-1])  # a lock is not hashable

    def __repr__(self) -> str:
        values = list(self._asdict().items())[:-1]  # a lock may have a thousand kernels
        return f"KernelRequest({', '.join(f'{name}={value!r}' for name, value in values)})"


def check_user_agent(user_agent: object) -> None:
    """Raise a `TypeError` unless it is None, a string, or a mapping from names to versions."""
    if user_agent is None or isinstance(user_agent, str):
        return
    if not isinstance(user_agent, Mapping) or not all(isinstance(name, str) for name in user_agent):
        from kernels.support.formatting import wrong_type

        raise wrong_type("user_agent", "a string or a mapping such as {'framework': 'transformers'}", user_agent)


def context_for(request: KernelRequest, *, target: Target | None = None, prerequisites: bool = True) -> ResolveContext:
    """The context that a request is resolved in.

    Args:
        request: The kernel.
        target: The machine to choose builds for; the default is this one.
        prerequisites: Whether the client's version and the Python packages that a build needs are checked.

    Raises:
        TypeError: An argument of the request is of the wrong type.
        RequestError, LockError: An argument, a setting, or the caller's lock, cannot be used.
    """
    from kernels.operations.open_sources import open_sources
    from kernels.resolver.choice import choose_backend
    from kernels.resolver.context import ResolveContext
    from kernels.resolver.locks import active_lock
    from kernels.resolver.target import Target
    from kernels.trust.policy import active_policy
    from kernels.trust.publishers import TrustPolicy

    request.check()
    target = target or Target.current()
    choose_backend(target, request.backend, request.device)  # before the Hub is asked
    return ResolveContext(
        sources=open_sources(
            user_agent=request.user_agent,
            local_files_only=request.local_files_only,
            overrides=request.local_kernels,
            verify=request.verify,
        ),
        target=target,
        trust=TrustPolicy.of(request.trust_remote_code),
        signing=active_policy(),
        lock=active_lock() if request.lock is None else request.lock,
        backend=request.backend,
        check_arch=request.check_arch,
        device=request.device,
        prerequisites=prerequisites,
    )


def target_of(target: Target | str | None) -> Target:
    """The machine that a `target` argument names; None is this one."""
    from kernels.resolver.target import Target
    from kernels.support.formatting import wrong_type

    if target is None:
        return Target.current()
    if isinstance(target, str):
        return Target.parse(target)
    if not isinstance(target, Target):
        raise wrong_type("target", "a Target or a string such as 'torch2.9-cu128-x86_64-linux+sm_90'", target)
    return target


def distinct_targets(targets: Iterable[Target | str | None]) -> list[Target]:
    """The machines that a `targets` argument names, each once; two that read alike may differ."""
    found: list[Target] = []
    for target in map(target_of, targets):
        if target not in found:
            found.append(target)
    return found
