"""Where a mapping's layer comes from: a kernel, and the name of the layer in it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernels.errors import MappingError
from kernels.layer.function import function_layer
from kernels.layer.kernel_repository import HubRepository, KernelRepository, LocalRepository
from kernels.models.requirement import Requirement
from kernels.support.formatting import did_you_mean, format_names, wrong_type
from kernels.tracebacks import public

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "FuncRepository",
    "LayerRepository",
    "LocalFuncRepository",
    "LocalLayerRepository",
    "NamedFunction",
    "NamedLayer",
    "checked_name",
    "deprecated",
]


class NamedLayer(KernelRepository):
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


class NamedFunction(KernelRepository):
    """Names a function at the kernel's top level."""

    func_name: str

    def layer_in(self, kernel: ModuleType) -> type[nn.Module]:
        from kernels.loader.load import kernel_attribute

        function = kernel_attribute(kernel, self.func_name)
        if not callable(function):
            names = [
                name for name, value in vars(kernel).copy().items() if callable(value) and not name.startswith("_")
            ]
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


def _layer_names(layers: Any) -> list[str]:
    from torch import nn

    found = [
        name for name, value in vars(layers).copy().items() if isinstance(value, type) and issubclass(value, nn.Module)
    ]
    return sorted(found) or ["none"]
