"""The public names: those that code written for the existing client uses are here and take the same calls."""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import inspect
import pydoc
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

import kernels
import kernels.api

# What version 0.17.2 of the existing client takes, name by name, and what its classes take to be made.
SIGNATURES = {
    "CUDAProperties": "min_capability, max_capability",
    "Device": "type, properties=None",
    "FuncRepository": "repo_id, *, func_name, revision=None, version=None, trust_remote_code=False",
    "LayerRepository": (
        "repo_id, *, layer_name, revision=None, version=None, trust_remote_code=False, user_agent=None"
    ),
    "LoadedKernel": "metadata, module, repo_info",
    "LocalFuncRepository": "repo_path, *, func_name",
    "LocalLayerRepository": "repo_path, *, layer_name",
    "LockedFuncRepository": "repo_id, *, lockfile=None, func_name, trust_remote_code=False",
    "LockedLayerRepository": "repo_id, *, lockfile=None, layer_name, trust_remote_code=False",
    "ROCMProperties": "min_capability, max_capability",
    "RepoInfo": "repo_id, revision",
    "VariantAccepted": "variant",
    "VariantRejected": "variant, reason",
    "get_kernel": (
        "repo_id, *, revision=None, version=None, backend=None, user_agent=None, trust_remote_code=False, "
        "check_arch=True"
    ),
    "get_kernel_dep": "repo_id",
    "get_kernel_variants": "repo_id, *, revision=None, version=None, backend=None",
    "get_loaded_kernels": "",
    "get_locked_kernel": "repo_id, *, lockfile, trust_remote_code=False, user_agent=None",
    "get_local_kernel": "repo_path, *, backend=None, trust_remote_code=False, user_agent=None",
    "has_kernel": ("repo_id, *, revision=None, version=None, backend=None, trust_remote_code=False, check_arch=True"),
    "install_kernel": (
        "repo_id, *, revision=None, version=None, backend=None, local_files_only=False, user_agent=None, "
        "trust_remote_code=False"
    ),
    "kernelize": "model, *, mode, device=None, use_fallback=True",
    "load_kernel": "repo_id, *, lockfile, backend=None",
    "register_kernel_mapping": "mapping, inherit_mapping=True",
    "replace_kernel_forward_from_hub": "cls, layer_name, condition=None",
    "use_kernel_forward_from_hub": "layer_name, condition=None",
    "use_kernel_func_from_hub": "func_name",
    "use_kernel_mapping": "mapping, *, inherit_mapping=True",
    "use_kernelized_func": "*args",
}

# Attributes that its objects have.
ATTRIBUTES = {
    "Benchmark": ["setup", "seed"],
    "KernelizeFallback": [
        "NONE",
        "NO_LAYER",
        "NO_DEVICE",
        "NO_COMPATIBLE_PROPERTIES",
        "NO_COMPATIBLE_MODE",
        "CANNOT_LOAD",
        "DEFAULT",
        "ALL",
    ],
    "LayerRepository": ["load"],
    "LocalLayerRepository": ["load"],
    "Metadata": ["from_bytes", "read_from_file"],
    "Mode": ["FALLBACK", "TRAINING", "INFERENCE", "TORCH_COMPILE"],
}

# Modules that other libraries import by path.
PATHS = {
    "kernels.benchmark": "Benchmark",
    "kernels.layer": "LayerRepository",
    "kernels.layer.device": "Device",
    "kernels.layer.func": "FuncRepository",
    "kernels.layer.kernelize": "register_kernel_mapping",
    "kernels.layer.layer": "LayerRepository",
    "kernels.layer.mode": "Mode",
    "kernels.layer.repos": "RepositoryProtocol",
    "kernels.variants": "VariantAccepted",
}

EMPTY = inspect.Parameter.empty
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def recorded(text: str) -> inspect.Signature:
    return inspect.signature(eval(f"lambda {text}: None"))


@pytest.mark.parametrize("name", SIGNATURES)
def test_what_the_existing_client_takes_is_taken_here(name: str) -> None:
    here = inspect.signature(getattr(kernels, name)).parameters
    there = recorded(SIGNATURES[name]).parameters
    positions = [parameter.name for parameter in here.values() if parameter.kind in POSITIONAL]
    for position, parameter in enumerate(there.values()):
        if parameter.kind in VARIADIC:
            assert any(own.kind is parameter.kind for own in here.values())
            continue
        own = here[parameter.name]
        if parameter.kind in POSITIONAL:
            assert positions[position] == parameter.name
        else:
            assert own.kind is not inspect.Parameter.POSITIONAL_ONLY
        if parameter.default is not EMPTY:
            assert own.default == parameter.default


@pytest.mark.parametrize("name", SIGNATURES)
def test_what_is_new_beside_it_may_be_left_out(name: str) -> None:
    here = inspect.signature(getattr(kernels, name)).parameters
    there = recorded(SIGNATURES[name]).parameters
    added = [own for own in here.values() if own.name not in there and own.kind not in VARIADIC]
    assert all(own.default is not EMPTY for own in added)


@pytest.mark.parametrize(("name", "attribute"), [(name, each) for name, many in ATTRIBUTES.items() for each in many])
def test_what_the_existing_clients_objects_have_is_there(name: str, attribute: str) -> None:
    owner: Any = getattr(kernels, name)
    assert hasattr(owner, attribute) or attribute in inspect.get_annotations(owner)


@pytest.mark.parametrize(("path", "name"), PATHS.items())
def test_modules_that_others_import_by_path_hold_the_same_objects(path: str, name: str) -> None:
    assert getattr(importlib.import_module(path), name) is getattr(kernels, name)


@pytest.mark.parametrize(
    ("name", "fields"), [("LoadedKernel", "metadata module repo_info"), ("RepoInfo", "repo_id revision")]
)
def test_the_fields_are_the_known_ones_in_their_order(name: str, fields: str) -> None:
    assert [field.name for field in dataclasses.fields(getattr(kernels, name))] == fields.split()


def test_every_public_name_is_listed_and_can_be_had() -> None:
    assert set(kernels.__all__) >= {*SIGNATURES, *ATTRIBUTES, "__version__"}
    assert sorted(set(kernels.__all__)) == sorted(kernels.__all__)
    for name in kernels.__all__:
        assert getattr(kernels, name) is not None
        assert name in dir(kernels)


def test_type_checkers_see_the_names_that_exist_at_run_time() -> None:
    tree = ast.parse(Path(kernels.__file__).read_text())
    imports = [
        node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module.startswith("kernels")
    ]
    seen = [(alias.asname, alias.name, node.module) for node in imports for alias in node.names]
    seen.remove(("__version__", "__version__", "kernels._version"))
    assert seen == [(name, name, module) for _, name, module in seen]  # only `import x as x` exports a name
    assert {name: module for _, name, module in seen} == kernels._MODULE_OF


def test_a_star_import_gives_every_public_name() -> None:
    namespace: dict[str, Any] = {}
    exec("from kernels import *", namespace)
    assert set(kernels.__all__) <= set(namespace)


@pytest.mark.parametrize("name", SIGNATURES)
def test_help_describes_what_can_be_called(name: str) -> None:
    assert name in pydoc.render_doc(getattr(kernels, name))


@pytest.mark.parametrize("name", sorted({*kernels.api.__all__} - {"KernelRequest"}))
def test_the_types_of_functions_can_be_evaluated(name: str) -> None:
    assert "return" in typing.get_type_hints(getattr(kernels.api, name))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'kernels' has no attribute 'get_kernle'"):
        _ = kernels.get_kernle


def test_the_version_is_the_distributions() -> None:
    assert kernels.__version__ == importlib.metadata.version("kernels")


@pytest.mark.parametrize("module", ["kernels", "kernels.cli", "kernels.resolver.choice", "kernels.server"])
def test_importing_loads_neither_torch_nor_huggingface_hub(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert {name.partition(".")[0] for name in done.stdout.split()} & {
        "torch",
        "triton",
        "transformers",
        "huggingface_hub",
        "httpx",
        "httpx2",
    } == set()
