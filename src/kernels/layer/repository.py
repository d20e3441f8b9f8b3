"""Where a mapping's layer comes from. A Hub or a disk is read only when `kernelize` needs the layer."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernels.errors import MappingError, RequestError, UnsupportedSpecifier
from kernels.layer.device import ModuleDevice, requested_device
from kernels.layer.function import function_layer
from kernels.models.requirement import Requirement
from kernels.resolver.caller import caller
from kernels.support.formatting import did_you_mean, format_names, wrong_type
from kernels.tracebacks import public

if TYPE_CHECKING:
    import torch
    from torch import nn

    from kernels.operations.kernel_request import KernelRequest
    from kernels.operations.load import Loaded
    from kernels.resolver.lock_pins import ActiveLock

__all__ = [
    "FuncRepository",
    "HubRepository",
    "LayerRepository",
    "LocalFuncRepository",
    "LocalLayerRepository",
    "LocalRepository",
    "NamedFunction",
    "NamedLayer",
    "checked_name",
    "deprecated",
]


class _KernelRepository(ABC):
    """A kernel, and the layer in it. Equal repositories load the same layer."""

    @public
    def load(self, device: str | torch.device | None = None) -> type[nn.Module]:
        """Load the layer class; download the kernel if it is not in the cache.

        Args:
            device: The device it will run on; default as for `get_kernel`.

        Raises:
            FileNotFoundError: The kernel cannot be found, or no build of it suits this machine.
            ValueError: The publisher is not trusted, or the kernel has no such layer.
            ImportError: A dependency is missing, or the kernel cannot be imported.
        """
        return self.layer_in(self.load_kernel(requested_device(device)).module)

    @abstractmethod
    def load_kernel(self, device: ModuleDevice | None) -> Loaded:
        """Load the kernel for a device."""

    @abstractmethod
    def layer_in(self, kernel: ModuleType) -> type[nn.Module]:
        """The kernel's attribute with the layer's name, not checked."""

    @abstractmethod
    def kernel_key(self) -> Hashable:
        """What repositories share that load one kernel, whichever layer of it they name."""

    @property
    @abstractmethod
    def origin(self) -> str:
        """The repository or folder, for messages."""

    @abstractmethod
    def _key(self) -> tuple[Any, ...]:
        """The values that equal repositories share."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


class HubRepository(_KernelRepository):
    """A repository on a Hub, at the required version or revision, or where the caller's lock pins it."""

    def __init__(
        self,
        requirement: Requirement,
        trust_remote_code: bool | Sequence[str],
        user_agent: str | Mapping[str, Any] | None,
        specifier: str | None = None,
    ) -> None:
        self._requirement = requirement
        self._specifier = specifier
        self._trust_remote_code: bool | tuple[str, ...] = _trusted(trust_remote_code)
        self._user_agent = _agent(user_agent)
        # The lock itself is looked for when the kernel is needed.
        self._caller = caller(own=1)

    @property
    def origin(self) -> str:
        return self._requirement.repo_id

    def request(self, device: ModuleDevice | None) -> KernelRequest:
        """The kernel to fetch for a device.

        Raises:
            RequestError: The repository was made without a version or revision.
            UnsupportedSpecifier: It was made with a version specifier.
        """
        from kernels.operations.kernel_request import KernelRequest

        self._check_named()
        trusted = self._trust_remote_code
        return KernelRequest(
            self._requirement.repo_id,
            version=self._requirement.version,
            revision=self._requirement.revision,
            backend=None if device is None else device.backend.name,
            trust_remote_code=trusted if isinstance(trusted, bool) else list(trusted),
            user_agent=self._user_agent,
            device=_chosen(device),
            lock=self._lock(),
        )

    def load_kernel(self, device: ModuleDevice | None) -> Loaded:
        from kernels.operations.first_request import first_requests

        request = self.request(device)
        with first_requests(request):
            from kernels.operations.load import load_requested

            return load_requested(request)

    def kernel_key(self) -> Hashable:
        # The lock is the caller's: it is found once for the repositories of a module.
        return type(self), self._requirement, self._specifier, self._trust_remote_code, self._sent(), self._caller

    def _sent(self) -> Hashable:
        agent = self._user_agent
        return agent if agent is None or isinstance(agent, str) else repr(agent)

    def _check_named(self) -> None:
        if self._specifier is not None:
            raise UnsupportedSpecifier(
                f"{self._requirement.repo_id}: the version specifier {self._specifier!r} is of an older client; "
                "expected an integer such as 1, or a revision."
            )
        if self._requirement.branch is None:
            raise RequestError(
                f"A kernel version or revision must be specified for {self._requirement.repo_id}: `version=1` (a major "
                "version) or `revision='v1'` (a branch, a tag or a commit). To use what a lock pins, use "
                "LockedLayerRepository."
            )

    def _lock(self) -> ActiveLock:
        from kernels.resolver.active_lock import active_lock

        return active_lock(self._caller)

    def _key(self) -> tuple[Any, ...]:
        return self._requirement, self._specifier, self._trust_remote_code

    def __eq__(self, other: object) -> bool:
        if not super().__eq__(other) or not isinstance(other, HubRepository):
            return False
        from kernels.resolver.active_lock import same_lock

        return same_lock(self._caller, other._caller)

    __hash__ = _KernelRepository.__hash__

    def __str__(self) -> str:
        return str(self._requirement)


class LocalRepository(_KernelRepository):
    """A kernel in a folder."""

    def __init__(self, repo_path: Path | str) -> None:
        if not isinstance(repo_path, (str, Path)):
            raise wrong_type("repo_path", "a path", repo_path)
        self._repo_path = Path(repo_path)

    @property
    def origin(self) -> str:
        return str(self._repo_path)

    def load_kernel(self, device: ModuleDevice | None) -> Loaded:
        from kernels.operations.kernel_request import KernelRequest
        from kernels.operations.load import load_requested
        from kernels.sources.folder import PathSource

        source = PathSource(Path(os.path.expanduser(self._repo_path)).absolute())
        backend = None if device is None else device.backend.name
        return load_requested(
            KernelRequest(source.requirement.repo_id, backend=backend, device=_chosen(device)), source
        )

    def kernel_key(self) -> Hashable:
        return type(self), self._repo_path

    def _key(self) -> tuple[Any, ...]:
        return (self._repo_path,)

    def __str__(self) -> str:
        return str(self._repo_path)


class NamedLayer(_KernelRepository):
    """Names a class in the kernel's `layers`."""

    layer_name: str

    def layer_in(self, kernel: ModuleType) -> type[nn.Module]:
        from kernels.loader.load import kernel_attribute, kernel_layers

        layers = kernel_layers(kernel)
        if layers is None:
            raise MappingError(f"{self}: the kernel defines no layers.")
        layer: type[nn.Module] | None = kernel_attribute(kernel, self.layer_name, of=layers)
        if layer is None:
            raise MappingError(
                f"{super().__str__()} has no layer {self.layer_name!r}; "
                f"its layers are {format_names(_layer_names(layers))}."
                f"{did_you_mean(self.layer_name, _layer_names(layers))}"
            )
        return layer

    def _key(self) -> tuple[Any, ...]:
        return (*super()._key(), self.layer_name)  # type: ignore[safe-super]

    def __str__(self) -> str:
        return f"{super().__str__()}, layer {self.layer_name}"


class NamedFunction(_KernelRepository):
    """Names a function at the kernel's top level."""

    func_name: str

    def layer_in(self, kernel: ModuleType) -> type[nn.Module]:
        from kernels.loader.load import kernel_attribute

        function = kernel_attribute(kernel, self.func_name)
        if not callable(function):
            names = [name for name, value in vars(kernel).items() if callable(value) and not name.startswith("_")]
            raise MappingError(f"{self}: the kernel has no such function.{did_you_mean(self.func_name, names)}")
        return function_layer(function)

    def _key(self) -> tuple[Any, ...]:
        return (*super()._key(), self.func_name)  # type: ignore[safe-super]

    def __str__(self) -> str:
        return f"{super().__str__()}, function {self.func_name}"


class LayerRepository(NamedLayer, HubRepository):
    """A layer of a kernel on a Hub, for a mapping.

    If the caller's lock lists the repository, the lock chooses the commit.

    Args:
        repo_id: The repository, `org/name`.
        layer_name: The layer's name in the kernel's `layers`.
        revision: A branch, a tag or a commit. Either it or `version` must be given before the layer is loaded.
        version: A major version.
        trust_remote_code: True trusts every publisher, a list those repositories beside the trusted publishers.
        user_agent: Added to the user agent of requests.

    Raises:
        TypeError: An argument is of the wrong type.
        RequestError: A malformed name, or both `revision` and `version`.

    Example:
        >>> print(LayerRepository("kernels-community/activation", layer_name="SiluAndMul", version=1))
        kernels-community/activation version 1, layer SiluAndMul
    """

    @public
    def __init__(
        self,
        repo_id: str,
        *,
        layer_name: str,
        revision: str | None = None,
        version: int | None = None,
        trust_remote_code: bool | Sequence[str] = False,
        user_agent: str | Mapping[str, Any] | None = None,
    ) -> None:
        requirement, specifier = _required(repo_id, version, revision)
        super().__init__(requirement, trust_remote_code, user_agent, specifier)
        self.layer_name = checked_name("layer_name", layer_name)


class LocalLayerRepository(NamedLayer, LocalRepository):
    """A layer of a kernel in a folder, for a mapping.

    Args:
        repo_path: A kernel repository, its `build` folder, or one variant.
        layer_name: The layer's name in the kernel's `layers`.

    Raises:
        TypeError: An argument is of the wrong type.

    Example:
        >>> from pathlib import Path
        >>> LocalLayerRepository(Path("activation"), layer_name="SiluAndMul").layer_name
        'SiluAndMul'
    """

    @public
    def __init__(self, repo_path: Path | str, *, layer_name: str) -> None:
        super().__init__(repo_path)
        self.layer_name = checked_name("layer_name", layer_name)


class FuncRepository(NamedFunction, HubRepository):
    """Deprecated: a function of a kernel on a Hub, for a mapping. `LayerRepository` serves functions too.

    Args:
        repo_id: The repository, `org/name`.
        func_name: The function's name at the kernel's top level.
        revision: A branch, a tag or a commit. Either it or `version` must be given before the layer is loaded.
        version: A major version.
        trust_remote_code: As in `LayerRepository`.

    Raises:
        TypeError: An argument is of the wrong type.
        RequestError: A malformed name, or both `revision` and `version`.
    """

    @public
    def __init__(
        self,
        repo_id: str,
        *,
        func_name: str,
        revision: str | None = None,
        version: int | None = None,
        trust_remote_code: bool | Sequence[str] = False,
    ) -> None:
        deprecated("FuncRepository", "LayerRepository")
        requirement, specifier = _required(repo_id, version, revision)
        super().__init__(requirement, trust_remote_code, None, specifier)
        self.func_name = checked_name("func_name", func_name)


class LocalFuncRepository(NamedFunction, LocalRepository):
    """Deprecated: a function of a kernel in a folder, for a mapping. `LocalLayerRepository` serves functions too.

    Args:
        repo_path: A kernel repository, its `build` folder, or one variant.
        func_name: The function's name at the kernel's top level.

    Raises:
        TypeError: An argument is of the wrong type.
    """

    @public
    def __init__(self, repo_path: Path | str, *, func_name: str) -> None:
        deprecated("LocalFuncRepository", "LocalLayerRepository")
        super().__init__(repo_path)
        self.func_name = checked_name("func_name", func_name)


def _chosen(device: ModuleDevice | None) -> str | None:
    # Without an index it is the current device, which is also the default.
    return None if device is None or device.index is None else device.torch_device


def deprecated(old: str, new: str) -> None:
    """Warn of a deprecated class, at the line that makes one."""
    warnings.warn(
        f"{old} is deprecated: put the function's layer into the kernel's `layers` and use {new}.",
        DeprecationWarning,
        stacklevel=4,  # past the frame that `public` adds
    )


def checked_name(argument: str, value: Any) -> str:
    """An argument that is a name.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(value, str) or not value:
        raise wrong_type(argument, "a name", value)
    return value


def _required(repo_id: str, version: Any, revision: str | None) -> tuple[Requirement, str | None]:
    """The requirement, and a version specifier of clients before 0.12: transformers 5.0 has some in its mapping."""
    try:
        return _same_required(repo_id, version, revision)
    except TypeError:  # one that cannot be hashed has the wrong type, which is said there
        return _same_required.__wrapped__(repo_id, version, revision)


# A mapping names one kernel for many layers.
@lru_cache(maxsize=1024, typed=True)
def _same_required(repo_id: str, version: Any, revision: str | None) -> tuple[Requirement, str | None]:
    if isinstance(version, str) and revision is None and _is_specifier(version):
        return Requirement(repo_id), version
    return Requirement(repo_id, version=version, revision=revision), None


def _is_specifier(text: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return len(SpecifierSet(text)) > 0
    except InvalidSpecifier:
        return False


def _trusted(value: Any) -> bool | tuple[str, ...]:
    if value is None or isinstance(value, bool):
        return bool(value)
    from kernels.trust.publishers import TrustPolicy

    TrustPolicy.of(value)  # raises for a wrong value
    return tuple(value)


def _agent(value: Any) -> str | dict[str, Any] | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise wrong_type("user_agent", "a string, a dictionary with strings as keys, or None", value)


def _layer_names(layers: Any) -> list[str]:
    from torch import nn

    found = [name for name, value in vars(layers).items() if isinstance(value, type) and issubclass(value, nn.Module)]
    return sorted(found) or ["none"]
