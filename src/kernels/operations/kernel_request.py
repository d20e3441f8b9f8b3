"""One kernel to get, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from kernels import settings
from kernels.models.requested_names import allowed_repositories, check_requested

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from kernels.backends import BackendName
    from kernels.models.requirement import Requirement
    from kernels.resolver.locks import ActiveLock
    from kernels.settings import Verify

__all__ = ["KernelRequest", "check_user_agent"]


class KernelRequest:
    """One kernel to get, with the arguments of `get_kernel`. A value: it cannot be changed.

    Args:
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

    # Written out, as it is made before the first request of a call is sent: a dataclass is slow to define, and a struct
    # needs msgspec.
    __slots__ = __match_args__ = (
        *("repo_id", "version", "revision", "backend", "user_agent", "trust_remote_code", "check_arch", "device"),
        *("verify", "local_files_only", "local_kernels", "lock"),
    )

    repo_id: str
    version: int | None
    revision: str | None
    backend: BackendName | None
    user_agent: str | Mapping[str, str] | None
    trust_remote_code: bool | Sequence[str]
    check_arch: bool
    device: int | str | None
    verify: Verify | None
    local_files_only: bool
    local_kernels: bool
    lock: ActiveLock | None

    def __init__(
        self,
        repo_id: str,
        version: int | None = None,
        revision: str | None = None,
        backend: BackendName | None = None,
        user_agent: str | Mapping[str, str] | None = None,
        trust_remote_code: bool | Sequence[str] = False,
        check_arch: bool = True,
        device: int | str | None = None,
        verify: Verify | None = None,
        local_files_only: bool = False,
        local_kernels: bool = True,
        lock: ActiveLock | None = None,
    ) -> None:
        values = (
            *(repo_id, version, revision, backend, user_agent, trust_remote_code, check_arch, device),
            *(verify, local_files_only, local_kernels, lock),
        )
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

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

    def with_changes(self, **changes: Any) -> Self:
        """The same request with other values of some attributes.

        Args:
            changes: Names of attributes, with their new values.
        """
        return type(self)(**dict(zip(self.__slots__, self._values(), strict=True)) | changes)

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values()[:-1])  # a lock is not hashable

    def __repr__(self) -> str:
        values = zip(self.__slots__[:-1], self._values()[:-1], strict=True)  # a lock may have a thousand kernels
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values)})"

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), self._values()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"cannot set {name!r}: a {type(self).__name__} cannot be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"cannot delete {name!r}: a {type(self).__name__} cannot be changed")


def check_user_agent(user_agent: object) -> None:
    """Raise a `TypeError` unless it is None, a string, or a mapping from names to versions."""
    if user_agent is None or isinstance(user_agent, str):
        return
    if not isinstance(user_agent, Mapping) or not all(isinstance(name, str) for name in user_agent):
        from kernels.support.formatting import wrong_type

        raise wrong_type("user_agent", "a string or a mapping such as {'framework': 'transformers'}", user_agent)
