"""Check the rules for layers in the sources; they are parsed, never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernels.authoring.check.exported_layers import ExportedLayer, exported_layers
from kernels.authoring.check.faults import report_faults, report_hints
from kernels.authoring.check.package_files import PackageFiles
from kernels.layer.fits import ALLOWED_MEMBERS
from kernels.support.checks import StepResults, ok, skipped
from kernels.support.formatting import plural

__all__ = ["static_layers"]

#: Class attributes of `nn.Module` that a layer may set
#: (https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html).
_MODULE_ATTRIBUTES = frozenset({"call_super_init", "dump_patches", "training"})


def static_layers(files: PackageFiles) -> StepResults:
    """Whether the sources of the layers define constructors or additional members, which is not allowed.

    `kernelize` refuses such a layer. If it can use another one, that is a hint: the kernel is of use.
    """
    layers = exported_layers(files)
    if layers is None:
        yield skipped("the kernel has no layers")
        return
    faults = {layer.name: list(_faults(layer)) for layer in layers}
    good = sum(not found for found in faults.values())
    # Layers can share a base class.
    lines = list(dict.fromkeys(line for found in faults.values() for line in found))
    yield from report_hints(lines) if good else report_faults(lines)
    if good or not lines:
        yield ok(plural(good, "layer"))


def _faults(layer: ExportedLayer) -> Iterator[str]:
    allowed = ALLOWED_MEMBERS | _MODULE_ATTRIBUTES
    for each in layer.classes:
        for node in each.node.body:
            where = f"{each.file}, line {node.lineno}: {each.node.name}"
            # Other methods may be those of `nn.Module`; the check of the loaded layers knows.
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in ("__init__", "__new__"):
                yield f"{where} has a constructor; a layer uses the members of the layer that it replaces"
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                targets = [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and target.id not in allowed and not target.id.startswith("__"):
                    yield f"{where} has the member {target.id!r}; put it outside the class"
