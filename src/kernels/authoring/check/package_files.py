"""The Python files of a variant, and what their names and imports refer to; they are parsed, never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernels.authoring.check.checked_variant import MAX_TEXT_BYTES, CheckedVariant
from kernels.authoring.check.namespaces import dotted_name, imported_names
from kernels.authoring.python_syntax import parse_source
from kernels.support.documents import TooComplex

__all__ = ["DefinedClass", "PackageFiles"]

_INIT = "__init__.py"

#: How many imports and base classes are followed from one name, and for all; a hostile variant may have any number.
_MAX_DEPTH, _MAX_STEPS = 20, 100_000

_MODULES = frozenset({"torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module"})


@dataclass(frozen=True)
class DefinedClass:
    """A class statement, and the file that it is in."""

    file: str
    node: ast.ClassDef


def _is_init(name: str) -> bool:
    return name.rpartition("/")[2] == _INIT


class PackageFiles:
    """The Python files of a variant, each parsed once."""

    def __init__(self, checked: CheckedVariant) -> None:
        self.checked = checked
        self._trees: dict[str, ast.Module | str] = {}
        self._modules: dict[str, ModuleNames | None] = {}
        self._steps = 0

    def module(self, file: str) -> ast.Module | str:
        """The syntax tree of a file, or the reason why it has none."""
        if file not in self._trees:
            self._trees[file] = self._parse(file)
        return self._trees[file]

    def _parse(self, file: str) -> ast.Module | str:
        data = self.checked.read(file)
        if data is None:
            return f"it has more than {MAX_TEXT_BYTES} bytes"
        try:
            return parse_source(data, file)
        except SyntaxError as error:
            return f"line {error.lineno}: {error.msg}"
        except ValueError as error:
            return str(error)

    @property
    def init(self) -> str | None:
        """The file of the kernel's module; older builds have the package in a folder of its own."""
        names = self.checked.files.sizes
        return next((name for name in names if name.split("/")[1:] in ([], [_INIT]) and _is_init(name)), None)

    def imported_at_load(self) -> set[str]:
        """The files that are imported with the kernel's module and its `layers`, not later by a function."""
        pending = [] if self.init is None else [self.init]
        if self.init is not None and isinstance(layers := self.find(self.init, "layers"), str):
            pending.append(layers)
        found: set[str] = set()
        while pending:
            file = pending.pop()
            if file in found:
                continue
            found.add(file)
            folders = file.split("/")[:-1]
            packages = ["/".join([*folders[:count], _INIT]) for count in range(len(folders) + 1)]
            pending += [name for name in packages if name in self.checked.files.sizes and name != file]
            names = self._names(file)
            if names is None:
                continue
            for level, module, name in names.imports.values():
                dotted = f"{module}.{name}" if module else name
                pending += filter(None, [self._module(file, level, module), self._module(file, level, dotted)])
            pending += filter(None, [self._module(file, level, module) for level, module in names.stars])
        return found

    def _names(self, file: str) -> ModuleNames | None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise TooComplex(f"the imports of its layers take more than {_MAX_STEPS} steps to follow")
        if file not in self._modules:
            module = self.module(file)
            self._modules[file] = ModuleNames.of(module) if isinstance(module, ast.Module) else None
        return self._modules[file]

    def public_names(self, file: str, depth: int = _MAX_DEPTH) -> list[str]:
        """The names of a module that `from module import *` gives, without imported modules' own submodules."""
        names = self._names(file)
        if names is None:
            return []
        if names.offered is not None:
            return list(dict.fromkeys(names.offered))
        stars = [
            name
            for level, module in names.stars
            if depth and (other := self._module(file, level, module)) is not None
            for name in self.public_names(other, depth - 1)
        ]
        return [
            name for name in dict.fromkeys([*names.classes, *names.aliases, *names.imports, *stars]) if name[0] != "_"
        ]

    def find(self, file: str, name: str, depth: int = _MAX_DEPTH) -> DefinedClass | str | None:
        """What a name in a module is: a class of the variant, or the path of a module of it; None for anything else."""
        names = self._names(file)
        if names is None or not depth:
            return None
        if name in names.classes:
            return DefinedClass(file, names.classes[name])
        if name in names.aliases:
            return self.find(file, names.aliases[name], depth - 1)
        if name in names.imports:
            level, module, original = names.imports[name]
            other = self._module(file, level, module)
            if other is None:
                return self._module(file, level, f"{module}.{original}" if module else original)
            if other != file and (found := self.find(other, original, depth - 1)) is not None:
                return found
            return self._module(file, level, f"{module}.{original}" if module else original)
        for level, module in names.stars:
            other = self._module(file, level, module)
            if other is not None and other != file and (found := self.find(other, name, depth - 1)) is not None:
                return found
        return self._module(file, 1, name) if _is_init(file) else None

    def _module(self, file: str, level: int, dotted: str) -> str | None:
        """The file of a relative import."""
        folders = file.split("/")[:-1]
        if level - 1 > len(folders):
            return None
        parts = [*folders[: len(folders) - (level - 1)], *filter(None, dotted.split("."))]
        path = "/".join(parts)
        candidates = (f"{path}/{_INIT}", f"{path}.py") if parts else (_INIT,)
        return next((name for name in candidates if name in self.checked.files.sizes), None)

    def lineage(self, layer: DefinedClass, depth: int = _MAX_DEPTH) -> list[DefinedClass] | None:
        """A class and its bases in the variant, if one of them is a subclass of `nn.Module`; else None."""
        names = self._names(layer.file)
        if names is None or not depth:
            return None
        found, is_layer = [layer], False
        for base in layer.node.bases:
            base = base.value if isinstance(base, ast.Subscript) else base
            if dotted_name(base, names.absolute) in _MODULES:
                is_layer = True
            elif (other := self._base(layer.file, base, depth)) is not None and other != layer:
                inherited = self.lineage(other, depth - 1)
                is_layer = is_layer or inherited is not None
                found += inherited if inherited is not None else [other]
        return found if is_layer else None

    def _base(self, file: str, base: ast.expr, depth: int = _MAX_DEPTH) -> DefinedClass | None:
        parts: list[str] = []
        while isinstance(base, ast.Attribute):
            parts.append(base.attr)
            base = base.value
        if not isinstance(base, ast.Name):
            return None
        found = self.find(file, base.id, depth)
        for part in reversed(parts):
            found = self.find(found, part, depth) if isinstance(found, str) else None
        return found if isinstance(found, DefinedClass) else None


@dataclass(frozen=True)
class ModuleNames:
    """What the statements of a module bind, also those in `if` and `try`."""

    classes: dict[str, ast.ClassDef]
    aliases: dict[str, str]  # `A = B`
    imports: dict[str, tuple[int, str, str]]  # relative ones: level, module, name
    stars: list[tuple[int, str]]  # relative ones: level, module
    absolute: dict[str, str]  # the dotted names of the others
    offered: list[str] | None  # `__all__`

    @staticmethod
    def of(module: ast.Module) -> ModuleNames:
        found = ModuleNames({}, {}, {}, [], imported_names(module), _offered(module))
        for node in _statements(module.body):
            if isinstance(node, ast.ClassDef):
                found.classes[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
                found.aliases.update({target: node.value.id for target in targets if target != node.value.id})
            elif isinstance(node, ast.ImportFrom) and node.level:
                for alias in node.names:
                    if alias.name == "*":
                        found.stars.append((node.level, node.module or ""))
                    else:
                        found.imports[alias.asname or alias.name] = (node.level, node.module or "", alias.name)
        return found


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    pending = [*reversed(body)]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            inside = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
            inside += [each for handler in getattr(node, "handlers", ()) for each in handler.body]
            pending += reversed(inside)


def _offered(module: ast.Module) -> list[str] | None:
    for node in module.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        if isinstance(value, (ast.List, ast.Tuple)) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in targets
        ):
            return [each.value for each in value.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return None
