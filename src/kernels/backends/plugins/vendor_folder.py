"""Vendor folders: packages with `vendor_info`, operators, tune configurations and heuristics."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from kernels import settings
from kernels.backends import lookup, registry
from kernels.backends.base import Backend
from kernels.backends.plugins.json_backend import declare, owner_of
from kernels.backends.plugins.json_schema import Declaration, DeviceType, convert_declaration
from kernels.backends.plugins.vendor_info import VendorInfo
from kernels.backends.plugins.vendor_modules import (
    forget_unused,
    import_package,
    vendor_module,
)
from kernels.backends.registration import BackendEntry, Origin
from kernels.errors import RequestError

__all__ = ["VendorInfo", "register_vendor", "vendor_module"]


#: Members that a declaration does not have.
_OWN = ("device_query_cmd", "triton_extra_name", "backend")


def register_vendor(path_or_module: os.PathLike[str] | str | ModuleType) -> BackendEntry:
    """Add a vendor's backend from its folder, or add the folder to a registered backend.

    Args:
        path_or_module: The folder, which is imported under a name of its own, or a package that is imported already.

    Returns:
        The backend as it is registered, its `folder` with operators (`ops/`), `tune_configs.yaml` and
        `heuristics_config_utils.py`. A folder that is registered already is left as it is. `unregister_backend` takes
        it back; a backend that it was added to is then as before.

    Raises:
        TypeError: The argument is of another type, or a member of `vendor_info` is.
        RequestError: There is no such folder, its code fails, or its `vendor_info` is not what it must be; the message
            names folder and member. Nothing was registered, and no module of it stays.
        ValueError: The backend cannot stand beside the others; see `register_backend`.

    Example:
        >>> import tempfile
        >>> from kernels import unregister_backend
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "__init__.py").write_text(
        ...         "from kernels.backends.plugins.vendor_folder import VendorInfo\\n"
        ...         "vendor_info = VendorInfo(vendor_name='Acme', device_name='acme')\\n"
        ...     )
        ...     entry = register_vendor(folder)
        ...     unregister_backend(entry.name)
        >>> entry.name, entry.backend.vendor, entry.origin.kind
        ('acme', 'Acme', 'vendor')
    """
    folder = _folder(path_or_module)
    present = _registered_from(folder)
    if present is not None:
        return present
    try:
        info = _info(_given(path_or_module) or import_package(folder), folder)
        present = _registered_from(folder)
        if present is not None:
            return present
        backend, override = _backend(info, folder)
        # Where threads register one folder at once, all of them get the first one's entry.
        [entry] = registry.enter([(backend, Origin("vendor", str(folder)))], override=override)
        return entry
    finally:
        forget_unused(folder)


# Reading a folder


def _folder(path_or_module: object) -> Path:
    if isinstance(path_or_module, ModuleType):
        places = list(getattr(path_or_module, "__path__", ()))
        if not places:
            raise RequestError(f"`path_or_module`: expected a package, got the module {path_or_module.__name__}.")
        return Path(places[0]).absolute()
    if not isinstance(path_or_module, (str, os.PathLike)):
        raise TypeError(
            f"`path_or_module`: expected the path of a vendor folder, or a package, got {path_or_module!r} "
            f"({type(path_or_module).__name__})."
        )
    folder = Path(os.path.expanduser(path_or_module)).absolute()
    if not (folder / "__init__.py").is_file():
        what = "no file `__init__.py`" if folder.is_dir() else "no such folder"
        raise RequestError(f"The vendor folder {folder}: {what}; expected a folder with `__init__.py`.")
    return folder


def _given(path_or_module: object) -> ModuleType | None:
    return path_or_module if isinstance(path_or_module, ModuleType) else None


def _registered_from(folder: Path) -> BackendEntry | None:
    path = os.path.realpath(folder)
    lookup.entries()  # the environment's folders are registered first
    for entry in registry.registered():
        for each in entry.layers():
            if each.origin.kind == "vendor" and os.path.realpath(each.origin.place) == path:
                return each
    return None


def _info(module: ModuleType, folder: Path) -> VendorInfo:
    given = vars(module).get("vendor_info")
    if given is None:
        raise RequestError(
            f"The vendor folder {folder}: its `__init__.py` has no `vendor_info`; expected "
            "vendor_info = VendorInfo(vendor_name=…, device_name=…, device_query_cmd=…)."
        )
    if isinstance(given, VendorInfo):
        return given
    # FlagGems' own class serves as well.
    found: dict[str, Any] = {}
    for field in fields(VendorInfo):
        with suppress(AttributeError):
            found[field.name] = getattr(given, field.name)
    missing = [name for name in ("vendor_name", "device_name") if name not in found]
    if missing:
        raise RequestError(
            f"The vendor folder {folder}: `vendor_info`: expected a VendorInfo, got a {type(given).__name__} without "
            f"{' and '.join(missing)}."
        )
    return VendorInfo(**found)


def _backend(info: VendorInfo, folder: Path) -> tuple[Backend, bool]:
    """The backend that a folder makes, and whether it overrides another."""
    name, declaration = _declared(info, folder)
    name = owner_of(name, folder)
    existing = registry.would_override(name)
    declared = declaration.given()
    if existing is not None:
        device = declared.pop("device_string")
        if device != existing.device_type:
            raise RequestError(
                f"The vendor folder {folder}: `device_name` of `vendor_info` is {device!r}, but backend {name!r} has "
                f"the device type {existing.device_type!r}."
            )
        if info.detect is None:
            declared.pop("detect", None)  # the backend has its own probe
        if not info.backend and existing.vendor:
            declared.pop("vendor")  # it says which backend is meant
    try:
        backend = declare(name, Declaration(**declared), existing)
    except RequestError as error:
        raise RequestError(f"The vendor folder {folder}: {error}") from None
    backend.folder = folder
    return backend, existing is not None or name in settings.disabled_backends()


class _VendorDeclaration(Declaration, frozen=True):
    """A declaration with the names of `VendorInfo`."""

    device_string: DeviceType = msgspec.field(name="device_name")
    vendor: str = msgspec.field(name="vendor_name")


def _declared(info: VendorInfo, folder: Path) -> tuple[str, Declaration]:
    """The backend's name, and what is declared of it."""
    given = {field.name: getattr(info, field.name) for field in fields(VendorInfo)}
    declared = {name: value for name, value in given.items() if name not in _OWN and value is not None}
    name = str(info.backend or str(info.vendor_name).lower())
    command = info.device_query_cmd
    if isinstance(command, str):
        try:
            command = shlex.split(command)
        except ValueError as error:
            raise RequestError(f"The vendor folder {folder}: `device_query_cmd` of `vendor_info`: {error}.") from None
    if command and info.detect is None:
        declared["detect"] = {"command": command}
    try:
        return name, convert_declaration(name, declared, _VendorDeclaration)
    except ValueError as error:
        raise RequestError(f"The vendor folder {folder}: `vendor_info`: {error}.") from None
