"""Do here what other packages do with `kernels`: import the names, make the calls, read the results.

Kernels come from a Hub in this process, with stand-ins for the repositories that are named.

    python compat/run_uses.py compat/dependents.json

prints the outcome for each use, as JSON; the exit status is 1 if one fails.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from uses import UNKNOWN

__all__ = ["Failed", "prepared", "run_use"]

#: The repository that stands for those that only the other program knows.
_ANY = "kernels-community/stand-in"

#: Calls that the other package makes only of older versions, by its name and the call's positional arguments.
_OLDER_ONLY = {("ms_swift", "kernels.get_local_kernel", 2): "only for kernels before 0.14"}

_INIT = """
class _Anything:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __call__(self, *args, **kwargs):
        return args[0] if args else None


def __getattr__(name):
    if name == "layers":
        import importlib

        return importlib.import_module(".layers", __name__)
    if name.startswith("__"):
        raise AttributeError(name)
    return _Anything()
"""

_LAYER = """

class {name}(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1
"""


class Failed(Exception):
    """What the other package does fails here."""


# ---------------------------------------------------------------------------------------------------------------------
# Stand-ins
# ---------------------------------------------------------------------------------------------------------------------


def _stand_ins(root: Path, trusted: Collection[str]) -> Any:
    """A folder of stand-ins: that for a commit is served under the id that a package names, whatever its content."""
    from kernels.models.requirement import is_commit
    from kernels.server.catalog import Catalog

    class StandIns(Catalog):
        def commit(self, repo_id: str, revision: str | None = None) -> Any:
            if revision is not None and is_commit(revision) and (root / repo_id / revision).is_dir():
                return replace(self._commit(repo_id, root / repo_id / revision), id=revision)
            return super().commit(repo_id, revision)

        def known(self, repo_id: str, commit: str) -> None:
            return None

    return StandIns(root, trusted=trusted)


@contextlib.contextmanager
def prepared(packages: Iterable[Mapping[str, Any]], folder: Path) -> Iterator[None]:
    """A Hub with stand-ins for every repository that the uses name, and an empty cache, both in a folder."""
    from kernels.server import HubServer

    repositories: dict[tuple[str, str], set[str]] = {(_ANY, "v1"): {"Layer"}}
    for use in (use for package in packages for use in package["uses"] if use["kind"] == "call"):
        named = _arguments(use)
        if isinstance(repo_id := named.get("repo_id"), str):
            branch = named.get("revision") or f"v{named.get('version') or 1}"
            repositories.setdefault((repo_id, branch), set()).add(named.get("layer_name") or "Layer")
    for (repo_id, branch), layers in repositories.items():
        _write_kernel(folder / "hub" / repo_id / branch, repo_id, layers)
    _write_kernel(folder / "hub" / "acme" / "untrusted" / "v1", "acme/untrusted", {"Layer"})
    unsuitable = folder / "hub" / "kernels-community" / "unsuitable" / "v1"
    _write_kernel(unsuitable, "kernels-community/unsuitable", {"Layer"}, variant="torch-npu", backend="cann")
    trusted = {repo_id.split("/")[0] for repo_id, _ in repositories}
    with HubServer(_stand_ins(folder / "hub", trusted)) as server:
        changed = {"KERNELS_HUB": server.url, "KERNELS_CACHE": str(folder / "cache")}
        before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _write_kernel(
    folder: Path, repo_id: str, layers: Iterable[str], *, variant: str = "torch-cpu", backend: str = "cpu"
) -> None:
    build = folder / "build" / variant
    build.mkdir(parents=True, exist_ok=True)
    name = repo_id.split("/")[1].lower().replace("_", "-")
    metadata = {
        "id": f"_{name.replace('-', '_')}_{backend}_0a1b2c3",
        "name": name,
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": backend},
    }
    (build / "metadata.json").write_text(json.dumps(metadata))
    (build / "__init__.py").write_text(_INIT)
    code = "import torch\nfrom torch import nn\n" + "".join(_LAYER.format(name=each) for each in sorted(layers))
    (build / "layers.py").write_text(code)


# ---------------------------------------------------------------------------------------------------------------------
# Uses
# ---------------------------------------------------------------------------------------------------------------------


def run_use(package: str, use: Mapping[str, Any], folder: Path) -> str:
    """Do what a package does, and say what was done.

    Args:
        package: The package.
        use: What it uses, as the scanner writes it.
        folder: The one that was prepared.

    Raises:
        Failed: It does not work here.
    """
    name, kind = use["name"], use["kind"]
    older = _OLDER_ONLY.get((package, name, len(use.get("positional", ()))))
    if older is not None:
        return older
    try:
        if kind == "asks":
            _check(importlib.util.find_spec(name) is not None, f"{name} is not found")
            return f"found, {importlib.metadata.version('kernels')}"
        if kind == "mark":
            return _marked(name)
        if kind == "variable":
            from kernels.diagnosis.variable_table import VARIABLES

            _check(name in {variable.name for variable in VARIABLES}, f"{name} is not read")
            return "read"
        value = _resolve(name)
        if kind != "call":
            return {"import": "imported", "attribute": "read", "subclass": "subclassed"}[kind]
        return _call(value, use, folder)
    except Failed:
        raise
    except Exception as error:
        raise Failed(f"{type(error).__name__}: {error}") from error


def _resolve(path: str) -> Any:
    parts = path.split(".")
    value: Any = importlib.import_module(parts[0])
    for position, part in enumerate(parts[1:], 2):
        if not hasattr(value, part):
            importlib.import_module(".".join(parts[:position]))
        value = getattr(value, part)
    return value


def _marked(name: str) -> str:
    import torch
    from torch import nn

    from kernels import use_kernel_forward_from_hub, use_kernelized_func

    @use_kernel_forward_from_hub("Func")
    def function(x: torch.Tensor) -> torch.Tensor:
        return x

    @use_kernelized_func(function)
    @use_kernel_forward_from_hub("Layer")
    class Layer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    layer = Layer()
    _check(layer.kernel_layer_name == "Layer", "kernel_layer_name is not the layer's name")
    _check(list(layer._kernel_funcs) == ["Func"], "_kernel_funcs does not list the function")
    _check(hasattr(layer, name), f"a marked layer has no {name}")
    return "set by the marks"


def _call(function: Any, use: Mapping[str, Any], folder: Path) -> str:
    path = use["name"]
    signature = inspect.signature(function)
    bound = signature.bind(*use.get("positional", ()), **use.get("keywords", {}))
    given = dict(bound.arguments)
    runner = _RUNNERS.get(path.removeprefix("kernels."))
    if runner is None:
        raise Failed(f"nothing here runs {path}")
    known = {key: _known(value) for key, value in given.items() if value != UNKNOWN}
    result = runner(function, given, known, folder)
    for attribute in use.get("reads", ()):
        getattr(result, attribute)
    caught = [_provoke(path, name) for name in use.get("catches", ()) if name != "Exception"]
    return ", ".join(["called", *filter(None, caught)])


def _known(value: Any) -> Any:
    """A value as the call gives it: names of the package are read, unknown ones get something of their kind."""
    if isinstance(value, str) and value.startswith("kernels."):
        parts = [_resolve(part) for part in value.split(" | ")]
        return parts[0] if len(parts) == 1 else parts[0] | parts[1]
    if isinstance(value, dict):
        return {key: "1.0" if each == UNKNOWN else _known(each) for key, each in value.items()}
    return value


def _arguments(use: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of the arguments that name a repository."""
    named = dict(use.get("keywords", {}))
    if use.get("positional"):
        named.setdefault("repo_id", use["positional"][0])
    return {key: value for key, value in named.items() if value != UNKNOWN}


def _hub_arguments(given: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    samples = {
        "repo_id": _ANY,
        "version": 1,
        "revision": None,
        "user_agent": {"library": "1.0"},
        "trust_remote_code": False,
        "layer_name": "Layer",
    }
    arguments = {key: samples[key] if given[key] == UNKNOWN else known[key] for key in given}
    if arguments.get("revision") is not None and "version" not in known:
        arguments.pop("version", None)
    return arguments


def _get_kernel(function: Callable[..., Any], given: Any, known: Any, folder: Path) -> Any:
    arguments = _hub_arguments(given, known)
    kernel = function(**arguments)
    _check(importlib.import_module(kernel.__name__) is kernel, "the kernel cannot be imported by its name")
    if "revision" in given and "revision" not in known:
        function(**arguments | {"version": None, "revision": "v1"})
    return kernel


def _get_local_kernel(function: Callable[..., Any], given: Any, known: Any, folder: Path) -> Any:
    return function(folder / "hub" / _ANY / "v1", **{key: value for key, value in known.items() if key != "repo_path"})


def _load_kernel(function: Callable[..., Any], given: Any, known: Any, folder: Path) -> Any:
    from kernels.server import Catalog

    repo_id = known.get("repo_id", _ANY)
    commit = Catalog(folder / "hub").commit(repo_id, "v1").id
    lockfile = folder / "kernels.lock"
    lockfile.write_text(json.dumps([{"repo_id": repo_id, "sha": commit, "variants": {}}]))
    _resolve("kernels.install_kernel")(repo_id, version=1)
    return function(repo_id, str(lockfile))


def _layer_repository(function: Callable[..., Any], given: Any, known: Any, folder: Path) -> Any:
    arguments = _hub_arguments(given, known)
    repository = function(**arguments)
    _check(repository.load().__name__ == arguments["layer_name"], "load() does not return the layer")
    if "revision" in given and "revision" not in known:
        function(**arguments | {"version": None, "revision": "v1"}).load()
    return repository


def _local_layer_repository(function: Callable[..., Any], given: Any, known: Any, folder: Path) -> Any:
    repository = function(repo_path=folder / "hub" / _ANY / "v1", layer_name="Layer")
    _check(repository.load().__name__ == "Layer", "load() does not return the layer")
    return repository


def _in_a_model(act: Callable[[type, Any, Any], Any]) -> Callable[..., Any]:
    """Run what marks and replaces layers on a layer of its own, and call it."""

    def run(function: Callable[..., Any], given: Any, known: Any, folder: Path) -> Any:
        import torch
        from torch import nn

        from kernels import LayerRepository, Mode

        class Layer(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x

        mapping = {"Layer": {"cpu": {Mode.FALLBACK: LayerRepository(_ANY, layer_name="Layer", version=1)}}}
        model = act(Layer, {"function": function, **known}, mapping)
        _check(model(torch.zeros(1)).item() == 1, "the layer was not replaced")
        return None

    return run


def _kernelized(layer: type, known: Any, mapping: Any) -> Any:
    import kernels

    options = {key: value for key, value in known.items() if key not in {"function", "model", "mapping"}}
    marked = kernels.use_kernel_forward_from_hub("Layer")(layer)
    model = marked().eval()
    with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
        return known["function"](model, **{"mode": kernels.Mode.INFERENCE, "device": "cpu"} | options)


def _with_mapping(layer: type, known: Any, mapping: Any) -> Any:
    import kernels

    options = {key: value for key, value in known.items() if key not in {"function", "mapping"}}
    model = kernels.use_kernel_forward_from_hub("Layer")(layer)().eval()
    with known["function"](mapping, **options):
        return kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device="cpu")


def _registered(layer: type, known: Any, mapping: Any) -> Any:
    import kernels

    known["function"](mapping)
    model = kernels.use_kernel_forward_from_hub("Layer")(layer)().eval()
    return kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device="cpu")


def _marked_layer(layer: type, known: Any, mapping: Any) -> Any:
    import kernels

    model = known["function"]("Layer")(layer)().eval()
    with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
        return kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device="cpu")


def _replaced(layer: type, known: Any, mapping: Any) -> Any:
    import kernels

    known["function"](layer, "Layer")
    with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
        return kernels.kernelize(layer().eval(), mode=kernels.Mode.INFERENCE, device="cpu")


def _marked_functions(function: Callable[..., Any], given: Any, known: Any, folder: Path) -> Any:
    return _marked("_kernel_funcs")


def _made(function: Callable[..., Any], given: Any, known: Any, folder: Path) -> Any:
    if "properties" in given:
        properties = "CUDAProperties" if known["type"] == "cuda" else "ROCMProperties"
        known = known | {"properties": _resolve(f"kernels.{properties}")(min_capability=80, max_capability=90)}
    return function(**known)


def _parse_variant(function: Callable[..., Any], given: Any, known: Any, folder: Path) -> Any:
    return function("torch-cpu")


def _resolve_variant(function: Callable[..., Any], given: Any, known: Any, folder: Path) -> Any:
    parse = _resolve("kernels.variants.parse_variant")
    variant, trace = function([parse("torch-cpu"), parse("torch-npu")])
    _check(variant.variant_str == "torch-cpu" and len(trace) == 2, "not the variant for this machine")
    return variant


def _trace(function: Callable[..., Any], given: Any, known: Any, folder: Path) -> Any:
    resolve, parse = _resolve("kernels.variants.resolve_variant"), _resolve("kernels.variants.parse_variant")
    _check("torch-npu" in function(resolve([parse("torch-npu")])[1]), "the variant is not in the text")


_RUNNERS: dict[str, Callable[..., Any]] = {
    "get_kernel": _get_kernel,
    "get_local_kernel": _get_local_kernel,
    "load_kernel": _load_kernel,
    "LayerRepository": _layer_repository,
    "LocalLayerRepository": _local_layer_repository,
    "kernelize": _in_a_model(_kernelized),
    "use_kernel_mapping": _in_a_model(_with_mapping),
    "register_kernel_mapping": _in_a_model(_registered),
    "use_kernel_forward_from_hub": _in_a_model(_marked_layer),
    "replace_kernel_forward_from_hub": _in_a_model(_replaced),
    "use_kernelized_func": _marked_functions,
    "Device": _made,
    "CUDAProperties": _made,
    "ROCMProperties": _made,
    "variants.parse_variant": _parse_variant,
    "variants.resolve_variant": _resolve_variant,
    "variants.variants_trace_str": _trace,
}

# -- exceptions -------------------------------------------------------------------------------------------------------

#: For what the other packages catch a type, by the function and the type.
_PROVOKED: dict[tuple[str, str], tuple[str, Callable[[], Any]]] = {
    ("kernels.get_kernel", "FileNotFoundError"): (
        "for no build",
        lambda: _resolve("kernels.get_kernel")("kernels-community/unsuitable", version=1),
    ),
    ("kernels.get_kernel", "ValueError"): (
        "for an untrusted publisher",
        lambda: _resolve("kernels.get_kernel")("acme/untrusted", version=1),
    ),
    ("kernels.variants.parse_variant", "ValueError"): (
        "for a name that is none",
        lambda: _resolve("kernels.variants.parse_variant")("no variant"),
    ),
}


def _provoke(path: str, name: str) -> str | None:
    """Raise what the other package catches; None where it catches more than this call raises."""
    what, act = _PROVOKED.get((path, name), (None, None))
    if what is None or act is None:
        return None
    try:
        act()
    except Exception as error:  # noqa: BLE001 - which one it is, is the question
        _check(name in {kind.__name__ for kind in type(error).__mro__}, f"{what}: {type(error).__name__}, not {name}")
        return f"`{name}` {what}"
    raise Failed(f"{what}: no {name}")


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Failed(otherwise)


# ---------------------------------------------------------------------------------------------------------------------


def run_all(packages: list[dict[str, Any]], folder: Path) -> list[list[str]]:
    """The outcome of each use of each package; those that fail begin with "FAILED"."""
    outcomes = []
    with prepared(packages, folder):
        for package in packages:
            outcomes.append([])
            for use in package["uses"]:
                try:
                    outcomes[-1].append(run_use(package["package"], use, folder))
                except Failed as error:
                    outcomes[-1].append(f"FAILED: {error}")
    return outcomes


def main() -> int:
    packages = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["packages"]
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run_all(packages, Path(folder))
    print(json.dumps(outcomes))
    return any(outcome.startswith("FAILED") for each in outcomes for outcome in each)


if __name__ == "__main__":
    sys.exit(main())
