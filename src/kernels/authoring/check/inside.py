"""The process that loads a variant: what appears in Torch's dispatcher meanwhile, and whether layers keep the rules.

It runs code of the kernel, which could also deceive it: it finds mistakes, while trust is a question of its own.
"""

from __future__ import annotations

import inspect
import os
import re
import site
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import msgspec

from kernels.api import get_local_kernel
from kernels.authoring.check.namespaces import is_own
from kernels.backends import listed
from kernels.errors import (
    HubUnavailable,
    IncompatibleClient,
    KernelsError,
    LayerError,
    MissingPythonDependency,
    NoSuitableBuild,
    UntrustedPublisher,
)
from kernels.loader.load import get_loaded_kernels, kernel_layers
from kernels.resolver.variant import parse_variant
from kernels.support.checks import CheckResult, StepResults, failed, ok, skipped
from kernels.support.formatting import error_on_one_line, plural

__all__ = ["load_and_look", "main"]

#: What says nothing of the kernel: this machine, or the kernels and packages that it needs, stand in the way.
_ELSEWHERE = (HubUnavailable, IncompatibleClient, MissingPythonDependency, NoSuitableBuild, UntrustedPublisher)

#: The most lines of each kind that are said.
_SHOWN = 20


def main() -> None:
    """Load the variant that the process was started for, and print what was found as JSON."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)  # what the kernel prints is not the answer
    findings = load_and_look(sys.argv[1])
    with open(out, "wb") as answer:
        answer.write(msgspec.json.encode(findings))
    os._exit(0)  # not later: threads that the kernel started may never end


def load_and_look(folder: str) -> list[CheckResult]:
    """Load a variant into this process, and say what that did.

    Args:
        folder: The variant's folder.
    """
    before = _registrations()
    try:
        module = get_local_kernel(folder)
    except _ELSEWHERE as error:
        return [CheckResult("loading", *skipped(error_on_one_line(error)))]
    except KernelsError as error:
        return [CheckResult("loading", *failed(error_on_one_line(error)))]
    layers = [CheckResult("loaded layers", *each) for each in _layers(module)]
    found = [CheckResult("operators", *each) for each in _operators(folder, before)]
    return [CheckResult("loading", *ok(f"loaded as {module.__name__}")), *found, *layers]


def _registrations() -> dict[str, frozenset[str]]:
    """What Torch's dispatcher knows of each operator: a line for each kernel, with the place that registered it."""
    import torch

    names = torch._C._dispatch_get_all_op_names()
    return {name: frozenset(torch._C._dispatch_dump(name).splitlines()) for name in names}


def _operators(folder: str, before: dict[str, frozenset[str]]) -> StepResults:
    variant = parse_variant(os.path.basename(folder))
    kernels = [loaded.metadata for loaded in get_loaded_kernels()]  # its dependencies, too
    own, faults = 0, []
    for name, lines in _registrations().items():
        new = lines - before.get(name, frozenset())
        if any(is_own(name.partition("::")[0], metadata, variant) for metadata in kernels):
            own += bool(new)
        elif places := list(_foreign(new)):
            what = "changes the operator" if name in before else "registers the operator"
            faults.append(f"{what} {name}, which is not its own ({listed(places)})")
    yield from map(failed, sorted(faults)[:_SHOWN])
    if len(faults) > _SHOWN:
        yield failed(f"and {len(faults) - _SHOWN} more operators")
    if not faults:
        yield ok(f"{plural(own, 'operator')} under the kernel's own namespace, nothing else")


def _foreign(lines: frozenset[str]) -> Iterator[str]:
    """The places of registrations, without those of installed packages: Torch imports some of its own when used."""
    import torch

    # Torch may lie where no site's folders are: in a folder of PYTHONPATH, say.
    beside_torch = os.path.dirname(os.path.dirname(torch.__file__))
    folders = {*site.getsitepackages(), site.getusersitepackages(), beside_torch}
    installed = tuple(os.path.join(folder, "") for folder in folders)
    for line in sorted(lines):
        match = re.match(r"(?P<key>\w+).*?: registered at (?P<place>.+?:[0-9]+)", line)
        if match is not None and not match["place"].startswith(installed):
            yield f"{match['key']}, {match['place'][-200:]}"


def _layers(module: ModuleType) -> StepResults:
    from kernels.layer.validate import check_layer

    try:
        layers = kernel_layers(module)
    except KernelsError as error:
        yield failed(error_on_one_line(error))
        return
    if layers is None:
        yield skipped("the kernel has no layers")
        return
    good = 0
    for name, layer in _offered(layers, module):
        try:
            check_layer(layer, layer, f"layers.{name}")
        except LayerError as error:
            yield failed(str(error))
        else:
            good += 1
    yield ok(plural(good, "layer"))


def _offered(layers: Any, module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The layers that other code may use: those in `__all__`, else the kernel's own without `_`."""
    from torch import nn

    names: Sequence[str] | None = getattr(layers, "__all__", None)
    for name, each in sorted(vars(layers).items()):
        layer = inspect.isclass(each) and issubclass(each, nn.Module)
        if not layer or (name.startswith("_") if names is None else name not in names):
            continue
        if each.__module__.partition(".")[0] == module.__name__:
            yield name, each
