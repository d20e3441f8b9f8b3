"""Find the layers that a kernel's sources export; they are parsed, never run.

`kernelize` takes a layer from the attribute `layers` of the kernel's module, or from its submodule of that name. A
class is a layer if it has a public name there and is a subclass of `torch.nn.Module`, wherever it is defined.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.authoring.check.package_files import DefinedClass, PackageFiles

__all__ = ["ExportedLayer", "exported_layers"]


@dataclass(frozen=True)
class ExportedLayer:
    """A layer, with the classes of the variant that it is made of: its own first, then those that it inherits from."""

    name: str
    classes: tuple[DefinedClass, ...]


def exported_layers(files: PackageFiles) -> list[ExportedLayer] | None:
    """The layers that a variant's `layers` exports, by name; None if it has no `layers` that the sources show."""
    found = None if files.init is None else files.find(files.init, "layers")
    if not isinstance(found, str):
        return None
    layers = []
    for name in files.public_names(found):
        each = files.find(found, name)
        if isinstance(each, DefinedClass) and (classes := files.lineage(each)) is not None:
            layers.append(ExportedLayer(name, tuple(classes)))
    return layers
