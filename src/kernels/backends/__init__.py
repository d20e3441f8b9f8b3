"""Which accelerators exist: what a backend is, those there are, and the ways in which a vendor's joins."""

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
    allowed_python_depends,
    listed,
)
from kernels.backends.builtin import BUILT_IN, BuiltInName
from kernels.backends.experimental import mention_experimental
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
    parse_accelerator,
    problems,
    reserved_names,
    unknown_accelerator,
    variant_tokens,
)
from kernels.backends.registration import Entry, Origin, Problem
from kernels.backends.registry import MISSING_VENDOR, enter, on_first_need, register_backend, unregister_backend
from kernels.backends.sandbox import (
    guarded_arch,
    guarded_capability,
    guarded_index,
    guarded_probe,
    guarded_reason,
    guarded_text,
)
from kernels.backends.torch_build import for_device_type, for_torch
from kernels.settings import backend_sources
from kernels.support.version import MajorMinor

__all__ = [
    "GENERAL_PYTHON_DEPENDS",
    "MISSING_VENDOR",
    "Backend",
    "BackendLike",
    "BackendName",
    "BackendProbe",
    "Device",
    "Entry",
    "Found",
    "MajorMinor",
    "Origin",
    "Problem",
    "PythonDependency",
    "Stage",
    "all_backends",
    "allowed_python_depends",
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
    "guarded_arch",
    "guarded_capability",
    "guarded_index",
    "guarded_probe",
    "guarded_reason",
    "guarded_text",
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

#: A backend's name in a type hint: editors complete the built-in ones, and any other is as good.
BackendName = BuiltInName | str

enter((family(), Origin("built-in")) for family in BUILT_IN)


def _discover() -> bool:
    from kernels.backends.plugins.discovery import discover

    return discover()


on_first_need(backend_sources, _discover)
