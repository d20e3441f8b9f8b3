"""Which accelerators exist: the interface of a backend, the registered ones, and how a vendor adds one."""

from __future__ import annotations

from kernels.backends.base import (
    GENERAL_PYTHON_DEPENDS,
    Backend,
    BackendLike,
    BackendProbe,
    Device,
    Found,
    PythonDependency,
    Stage,
    Unanswered,
    allowed_python_depends,
    arch_of_build,
    listed,
)
from kernels.backends.builtin import BuiltInName, families
from kernels.backends.lookup import (
    all_backends,
    device_types,
    dispatch_keys,
    entries,
    entry_of,
    find,
    generation,
    get,
    get_backend,
    host,
    known,
    list_backends,
    mention_experimental,
    parse_accelerator,
    problems,
    reserved_names,
    unknown_accelerator,
    variant_tokens,
)
from kernels.backends.registration import BackendEntry, Origin, Problem
from kernels.backends.registry import MISSING_VENDOR, enter, register_backend, unregister_backend
from kernels.backends.torch_build import for_device_type, for_torch
from kernels.support.version import MajorMinor

__all__ = [
    "GENERAL_PYTHON_DEPENDS",
    "MISSING_VENDOR",
    "Backend",
    "BackendEntry",
    "BackendLike",
    "BackendName",
    "BackendProbe",
    "Device",
    "Found",
    "MajorMinor",
    "Origin",
    "Problem",
    "PythonDependency",
    "Stage",
    "Unanswered",
    "all_backends",
    "allowed_python_depends",
    "arch_of_build",
    "device_types",
    "dispatch_keys",
    "entries",
    "entry_of",
    "find",
    "for_device_type",
    "for_torch",
    "generation",
    "get",
    "get_backend",
    "host",
    "known",
    "list_backends",
    "listed",
    "mention_experimental",
    "parse_accelerator",
    "problems",
    "register_backend",
    "reserved_names",
    "unknown_accelerator",
    "unregister_backend",
    "variant_tokens",
]

BackendName = BuiltInName | str
"""A backend's name in a type hint: editors complete the built-in ones, and any other is as good."""

enter((family, Origin("built-in")) for family in families())
