"""The process that loads a variant, and checks the operators that it registers and its layers.

The kernel's code runs in the same process and could falsify the findings: this finds mistakes, not attacks.
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
from kernels.authoring.check.faults import report_faults, report_hints
from kernels.authoring.check.namespaces import is_own
from kernels.backends import listed
from kernels.errors import (
    HubUnavailable,
    IncompatibleClient,
    LayerError,
    MissingPythonDependency,
    NoSuitableBuild,
    UntrustedPublisher,
)
from kernels.loader.load import get_loaded_kernels, kernel_layers
from kernels.resolver.variant import parse_variant
from kernels.support.checks import CheckResult, StepResults, failed, hint, ok, skipped
from kernels.support.formatting import format_error, plural

__all__ = ["load_and_look", "main"]

#: Packages that kernels may import without declaring them; another machine has them.
_OF_FRAMEWORKS = frozenset({"torch", "triton"})

#: Errors that are not the kernel's fault: this machine, or a kernel or package that it needs.
_NOT_ITS_FAULT = (HubUnavailable, IncompatibleClient, MissingPythonDependency, NoSuitableBuild, UntrustedPublisher)


def main() -> None:
    """Load the variant in `sys.argv`, and print the findings as JSON."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)  # the kernel's own output goes to standard error
    findings = load_and_look(sys.argv[1])
    with open(out, "wb") as answer:
        answer.write(msgspec.json.encode(findings))
    os._exit(0)  # the kernel may have threads that never end


def load_and_look(folder: str) -> list[CheckResult]:
    """Load the variant in a folder into this process, and check what that did."""
    before = _registrations()
    try:
        module = get_local_kernel(folder)
    except _NOT_ITS_FAULT as error:
        return [CheckResult("loading", *skipped(format_error(error)))]
    except Exception as error:  # noqa: BLE001 - also what the kernel's own code raises
        needed = _missing_package(error)
        verdict = skipped if needed in _OF_FRAMEWORKS else failed
        return [CheckResult("loading", *verdict(format_error(error)))]
    layers = [CheckResult("loaded layers", *each) for each in _layers(module)]
    found = [CheckResult("operators", *each) for each in _operators(folder, before)]
    return [CheckResult("loading", *ok(f"loaded as {module.__name__}")), *found, *layers]


def _missing_package(error: Exception) -> str | None:
    """The package that an import did not find."""
    # A kernel's own error class may run any code for its `name`.
    found = error.name if type(error) is ModuleNotFoundError and isinstance(error.name, str) else None
    return None if found is None else found.partition(".")[0]


def _registrations() -> dict[str, frozenset[str]]:
    """Torch's operators, each with a line for every registration, which has its place in the sources."""
    import torch

    names = torch._C._dispatch_get_all_op_names()
    return {name: frozenset(torch._C._dispatch_dump(name).splitlines()) for name in names}


def _operators(folder: str, before: dict[str, frozenset[str]]) -> StepResults:
    variant = parse_variant(os.path.basename(folder))
    kernels = [loaded.metadata for loaded in get_loaded_kernels()]  # with its dependencies
    own, faults = 0, []
    for name, lines in _registrations().items():
        new = lines - before.get(name, frozenset())
        if any(is_own(name.partition("::")[0], metadata, variant) for metadata in kernels):
            own += bool(new)
        elif places := list(_foreign(new)):
            what = "changes" if name in before else "registers"
            faults.append(f"{what} the operator {name} outside of its namespace ({listed(places)})")
    yield from report_faults(sorted(faults), " operators")
    if not faults:
        yield ok(f"{plural(own, 'operator')} in the kernel's own namespace, none elsewhere")


def _foreign(lines: frozenset[str]) -> Iterator[str]:
    """The places of registrations, except in installed packages: Torch registers more operators when it is used."""
    import torch

    # Torch may be outside of the site folders: in a folder of PYTHONPATH, for example.
    beside_torch = os.path.dirname(os.path.dirname(torch.__file__))
    folders = {*site.getsitepackages(), site.getusersitepackages(), beside_torch}
    installed = tuple(os.path.join(folder, "") for folder in folders)
    for line in sorted(lines):
        match = re.match(r"(?P<key>\w+).*?: registered at (?P<place>.+?:[0-9]+)", line)
        if match is not None and not match["place"].startswith(installed):
            yield f"{match['key']}, {match['place'][-200:]}"


def _layers(module: ModuleType) -> StepResults:
    from kernels.layer.fits import check_layer

    try:
        layers = kernel_layers(module)
    except Exception as error:  # noqa: BLE001 - also what the kernel's own code raises
        needed = _missing_package(error)
        if needed in (None, module.__name__):
            yield failed(format_error(error))
        else:
            yield hint(f"only users who have {needed} can use the layers: {format_error(error)}")
        return
    if layers is None:
        yield skipped("the kernel has no layers")
        return
    good, faults = 0, []
    for name, layer in _public_layers(layers, module):
        try:
            check_layer(layer, layer, f"layers.{name}")
        except LayerError as error:
            faults.append(str(error))
        else:
            good += 1
    # `kernelize` refuses those alone, so a kernel with other layers is of use.
    yield from report_hints(faults, " layers") if good else report_faults(faults, " layers")
    if good or not faults:
        yield ok(plural(good, "layer"))


def _public_layers(layers: Any, module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The public layers: those in `__all__`, else those without `_`."""
    from torch import nn

    names: Sequence[str] | None = getattr(layers, "__all__", None)
    for name, each in sorted(vars(layers).items()):
        layer = inspect.isclass(each) and issubclass(each, nn.Module)
        if not layer or (name.startswith("_") if names is None else name not in names):
            continue
        if each.__module__.partition(".")[0] == module.__name__:
            yield name, each
