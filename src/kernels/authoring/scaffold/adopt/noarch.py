"""A noarch kernel's folder around a Python file with Triton functions, which stays as it is."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from pathlib import PurePosixPath

from kernels.authoring.scaffold.adopt.compiled import (
    AdoptedFiles,
    AdoptedSource,
    adopted_template,
    example,
    kernel_test,
    kernel_tests,
    page,
)
from kernels.authoring.scaffold.adopt.python_source import Launcher, PythonSource
from kernels.authoring.scaffold.draft import TEMPLATES, Draft
from kernels.authoring.scaffold.render import common_values
from kernels.backends import host
from kernels.errors import RequestError

__all__ = ["noarch_files"]

#: Names that the package of a kernel uses itself.
_TAKEN = frozenset({"_ops", "layers"})

#: The type in a schema of a parameter's annotation; all others are taken for tensors.
_SCHEMA = {name: name for name in ("int", "float", "bool", "str")}


def noarch_files(draft: Draft, file: AdoptedSource, source: PythonSource) -> AdoptedFiles:
    """A noarch kernel around a file.

    Args:
        draft: The kernel.
        file: The file.
        source: What it has.

    Raises:
        RequestError: It has no Triton functions.
    """
    if not source.kernels:
        raise RequestError(
            f"{file.path} has no function with @triton.jit, and no call of load_inline with texts that stand in the "
            "file; expected one of the two."
        )
    offered = tuple(each.name for each in source.launchers) + source.classes
    notes = []
    if not offered:
        offered = source.kernels
        notes.append(
            f"no function of {file.path} launches {', '.join(source.kernels)}: the package offers the Triton functions "
            "themselves; write a function that launches them"
        )
    if source.classes:
        notes.append(
            f"{', '.join(source.classes)}: a class for `kernelize` belongs in layers.py, without a constructor"
        )
    if source.modules:
        notes.append(
            f"{file.path} imports {', '.join(source.modules)}: list what the kernel needs in `python-depends` of "
            "build.toml, where it is allowed, and remove the rest"
        )
    if source.runs:
        lines = ", ".join(map(str, source.runs[:5]))
        notes.append(f"{file.path}, line {lines}: this runs in every process that loads the kernel; move it to tests/")
    hosts = [backend.name for backend in draft.backends if backend.name == host().name]
    if hosts:
        notes.append(
            f"Triton needs an accelerator: on {hosts[0]}, {file.path} needs code without Triton. `TRITON_INTERPRET=1 "
            "kernels test` runs it there slowly, as a test"
        )
    stem = file.path.stem
    module = stem if stem.isidentifier() and not keyword.iskeyword(stem) and stem not in _TAKEN else "_source"
    values = common_values(draft)
    archs = (TEMPLATES / "archs" / f"{backend.name}.toml.in" for backend in draft.backends)
    values["ARCHS"] = "".join(f"\n{path.read_text(encoding='utf-8')}".rstrip("\n") for path in archs if path.is_file())
    values["FILE"], values["MODULE"] = file.path.name, module
    values["NAMES"], values["ALL"] = _imported(sorted(offered)), _lines(sorted(offered))
    package = PurePosixPath("torch-ext") / draft.name.python_name
    values["BACKEND"] = draft.backends[0].name
    rows = [
        ("build.toml", "name, version, backends"),
        (f"{package}/{module}.py", f"`{file.path.name}`, unchanged"),
        (f"{package}/__init__.py", "what the kernel offers"),
        ("tests/", "run by `kernels test`; fill them in"),
    ]
    tests = "".join(f"\n\n{_test(each)}" for each in source.launchers)
    return AdoptedFiles(
        files={
            package / f"{module}.py": file.data,
            package / "__init__.py": adopted_template("init_triton.py", values),
            PurePosixPath("build.toml"): adopted_template("noarch.toml", values),
            **kernel_tests(draft, values, offered, tests),
            **page(values, rows),
        },
        offered=tuple(offered),
        notes=tuple(notes),
        backends=tuple(backend.name for backend in draft.backends),
    )


def _imported(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else "(\n" + "".join(f"    {name},\n" for name in names) + ")"


def _lines(names: Sequence[str]) -> str:
    return f'"{names[0]}"' if len(names) == 1 else "\n" + "".join(f'    "{name}",\n' for name in names)


def _test(function: Launcher) -> str:
    called = f"kernel.{function.name}({', '.join(f'{name}={name}' for name, _ in function.parameters)})"
    return kernel_test(
        function.name,
        [(name, example(_SCHEMA.get(annotation, "Tensor"))) for name, annotation in function.parameters],
        [f"found = {called}"] if function.returns else [called, "found = ...  # what it writes into"],
    )
