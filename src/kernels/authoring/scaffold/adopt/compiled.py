"""A compiled kernel's folder around C++ and CUDA files, which stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from kernels.authoring.scaffold.adopt.cpp_schema import (
    LAUNCH,
    AdoptedOperator,
    NotMapped,
    operator_of,
    operators_of_schemas,
)
from kernels.authoring.scaffold.adopt.cpp_source import CppFunction, CppSource, read_cpp
from kernels.authoring.scaffold.draft import TEMPLATES, Draft
from kernels.authoring.scaffold.render import common_values, device_templates, fill
from kernels.backends import Backend
from kernels.errors import RequestError

__all__ = [
    "AdoptedFiles",
    "AdoptedSource",
    "adopted_template",
    "compiled_files",
    "example",
    "kernel_test",
    "kernel_tests",
    "page",
]

_ADOPTED = TEMPLATES / "adopted"
#: Templates of parts of a file, which keep the empty line at their end.
_PARTS = frozenset({"data_of", "launch_size"})

_CALL = re.compile(r"\b(\w+)\b(?=\s*(?:<[^;(]{0,500}>\s*)?\()")
_PYBIND = re.compile(r"<(torch/extension\.h|torch/python\.h|pybind11/[\w/]+\.h)>")


@dataclass(frozen=True)
class AdoptedSource:
    """A file of somebody's kernel.

    Attributes:
        path: Its path in the new kernel's folder of sources.
        data: Its content.
    """

    path: PurePosixPath
    data: bytes

    @property
    def text(self) -> str:
        """Its content as text."""
        return self.data.decode("utf-8-sig", "replace")


@dataclass(frozen=True)
class AdoptedFiles:
    """The files of a kernel that was made from others.

    Attributes:
        files: Their contents, by path in the kernel's folder.
        offered: What the Python package offers.
        notes: What could not be mapped, and what its author should look at.
        backends: The names of its backends.
    """

    files: Mapping[PurePosixPath, str | bytes]
    offered: tuple[str, ...]
    notes: tuple[str, ...]
    backends: tuple[str, ...]


def compiled_files(
    draft: Draft, sources: Sequence[AdoptedSource], headers: Sequence[AdoptedSource], names: Sequence[str] = ()
) -> AdoptedFiles:
    """A compiled kernel around sources.

    Args:
        draft: The kernel, for one backend.
        sources: The files to compile. The first that registers functions is bound, or else the first.
        headers: The files that they include.
        names: The functions of the first file to offer. Default: those that it registers, or else all that can be.

    Raises:
        RequestError: No function can become an operator.
    """
    [backend] = draft.backends
    read = {source.path: read_cpp(source.text) for source in sources}
    bound = next((each for each in sources if _registers(read[each.path])), sources[0])
    source = read[bound.path]
    if names:
        source = replace(source, python_names={each: each for each in names})
    others = [each for path, each in read.items() if path != bound.path]
    everything = _all_of([source, *others, *(read_cpp(each.text) for each in headers)])
    operators, notes, is_registered = _operators(source, everything)
    if not operators:
        reasons = "; ".join(notes) or "it defines no function with a tensor or a pointer, and no __global__ function"
        raise RequestError(f"{bound.path} has nothing that can become an operator: {reasons}.")
    folder = PurePosixPath(f"{draft.name.python_name}_{backend.name}")
    values = {**common_values(draft), "BACKEND": backend.name, "DISPATCH_KEY": backend.dispatch_key}
    values["FILE"] = bound.path.as_posix()
    files: dict[PurePosixPath, str | bytes] = {folder / each.path: each.data for each in (*sources, *headers)}
    compiled = [folder / each.path for each in sources]
    if not is_registered:
        bindings = folder / f"{bound.path.stem}_bindings{bound.path.suffix}"
        files[bindings] = _bindings(operators, source, backend, values)
        # The bindings include it.
        compiled = [bindings, *(path for path in compiled if path != folder / bound.path)]
    adapters = _adapters(folder, [*sources, *headers], values)
    files.update(adapters)
    options = device_templates(backend) / "options.toml.in"
    values["SOURCES"] = ", ".join(f'"{path}"' for path in compiled)
    values["INCLUDE"] = f'include = ["{folder}", "{folder}/adapters"]\n' if adapters else f'include = ["{folder}"]\n'
    values["OPTIONS"] = options.read_text(encoding="utf-8").rstrip("\n") if options.is_file() else ""
    files[PurePosixPath("build.toml")] = adopted_template("build.toml", values)
    values["DEFINITIONS"] = "" if source.schemas else _definitions(operators)
    files[PurePosixPath("torch-ext/torch_binding.cpp")] = adopted_template("torch_binding.cpp", values)
    files.update(_python_files(draft, operators, values, compiled))
    notes += _hints(source, headers, [bound.path, *(each.path for each in sources)])
    offered = tuple(operator.name for operator in operators)
    noted = (*notes, *(note for each in operators for note in each.notes))
    return AdoptedFiles(files, offered, noted, (backend.name,))


def _registers(source: CppSource) -> bool:
    return bool(source.python_names or source.schemas or source.implementations)


def _all_of(sources: Sequence[CppSource]) -> dict[str, CppFunction]:
    """The functions of all files by name: definitions before declarations, the first file's first."""
    found: dict[str, CppFunction] = {}
    for function in (function for source in sources for function in source.functions):
        if function.name not in found or found[function.name].is_declaration > function.is_declaration:
            found[function.name] = function
    return found


def _operators(
    source: CppSource, everything: Mapping[str, CppFunction]
) -> tuple[list[AdoptedOperator], list[str], bool]:
    """The operators, what was not mapped, and whether the file registers its implementations itself."""
    if source.schemas:
        operators, left = operators_of_schemas(source.schemas)
        return operators, [f"{name} has an overload name; the package has no function for it" for name in left], True
    if source.implementations:
        return (*_mapped(source.implementations, source, everything), True)
    if source.python_names:
        return (*_mapped(source.python_names, source, everything), False)
    names = _callable_functions(source) or {each.name: each.name for each in source.functions if each.is_kernel}
    return (*_mapped(names, source, {each.name: each for each in source.functions}), False)


def _mapped(
    names: Mapping[str, str], source: CppSource, functions: Mapping[str, CppFunction]
) -> tuple[list[AdoptedOperator], list[str]]:
    operators, notes = [], []
    for name, function_name in names.items():
        function = functions.get(function_name)
        if function is None:
            notes.append(f"{function_name}, registered as {name!r}, was not found in the file")
            continue
        if function.is_declaration:
            notes.append(
                f"{function.name} is declared and not defined in these files: give the file that defines it with "
                "another --from, or the build does not load"
            )
        defaults = source.python_defaults.get(name, ())
        if len(defaults) == len(function.parameters):
            given = zip(function.parameters, defaults, strict=True)
            changed = tuple(replace(each, default=default or each.default) for each, default in given)
            function = replace(function, parameters=changed)
        try:
            operators.append(operator_of(name, function, source))
        except NotMapped as reason:
            notes.append(f"{function.name} (line {function.line}) was not mapped: {reason}")
    return operators, notes


def _callable_functions(source: CppSource) -> dict[str, str]:
    """The functions of the host that are worth an operator: with tensors, or with pointers and a launch."""
    host = [each for each in source.functions if not each.is_kernel and not each.is_declaration]
    has_kernels = any(each.is_kernel for each in source.functions)
    launching = {each.name for each in host if "<<<" in each.body or "hipLaunchKernelGGL" in each.body}
    if has_kernels:
        launching = _with_callers(launching, host)
    found = {}
    for each in host:
        types = [parameter.type for parameter in each.parameters]
        has_tensor = any("Tensor" in type_ for type_ in [*types, each.returns])
        has_pointer = any("*" in type_ for type_ in types) and (each.name in launching or not has_kernels)
        if has_tensor or has_pointer:
            found[each.name] = each.name
    return found


def _with_callers(names: Iterable[str], functions: Iterable[CppFunction]) -> set[str]:
    """Functions, and those that call them, directly or through others."""
    callers: dict[str, set[str]] = {}
    for each in functions:
        for name in _CALL.findall(each.body):
            callers.setdefault(name, set()).add(each.name)
    found, left = set[str](), list(names)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += callers.get(name, ())
    return found


def _definitions(operators: Sequence[AdoptedOperator]) -> str:
    lines = "".join(f'  ops.def("{operator.schema}");\n' for operator in operators)
    return f"TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {{\n{lines}}}\n\n"


def _bindings(
    operators: Sequence[AdoptedOperator], source: CppSource, backend: Backend, values: Mapping[str, str]
) -> str:
    language = _ADOPTED / "languages" / backend.device_language
    has_language = bool(backend.device_language) and language.is_dir()

    def of_language(name: str, more: Mapping[str, str] | None = None) -> str:
        return adopted_template(f"languages/{backend.device_language}/{name}", more or {}) if has_language else ""

    launches = any(operator.function is not None and operator.function.is_kernel for operator in operators)
    has_pointers = any("data_of<" in each.passed for operator in operators for each in operator.arguments)
    prelude = "#include <torch/types.h>\n" if not _includes_torch(source) and _names_torch(operators) else ""
    prelude += of_language("headers") if has_pointers or launches else ""
    helpers = adopted_template("data_of", {"HALF_TYPES": of_language("half_types")}) if has_pointers else ""
    helpers += adopted_template("launch_size", {}) if launches else ""
    functions = "".join(_wrapper(operator, of_language) for operator in operators)
    implementations = "".join(f'  ops.impl("{each.name}", &call_{each.name});\n' for each in operators)
    own = {"PRELUDE": f"{prelude}\n" if prelude else "", "HELPERS": helpers, "FUNCTIONS": functions}
    return adopted_template("bindings", {**values, **own, "IMPLEMENTATIONS": implementations})


def _includes_torch(source: CppSource) -> bool:
    return any(each.startswith(("<torch/", "<ATen/")) for each in source.includes)


def _names_torch(operators: Sequence[AdoptedOperator]) -> bool:
    functions = [operator.function for operator in operators if operator.function is not None]
    return any("torch::" in type_ or "Tensor" in type_ for each in functions for type_ in _types(each))


def _types(function: CppFunction) -> list[str]:
    return [function.returns, *(each.type for each in function.parameters)]


def _wrapper(operator: AdoptedOperator, of_language: object) -> str:
    function = operator.function
    assert function is not None
    assert callable(of_language)
    returns = {"()": "void", "Tensor": "at::Tensor", "Tensor[]": "std::vector<at::Tensor>", "int": "int64_t"}
    returned = returns.get(operator.returns, {"float": "double"}.get(operator.returns, operator.returns))
    if operator.returns.startswith("(T"):
        count = operator.returns.count("Tensor")
        returned = f"std::tuple<{', '.join(['at::Tensor'] * count)}>"
    parameters = ", ".join(f"{each.cpp} {each.name}" for each in operator.arguments)
    lines = [f"{returned} call_{operator.name}({parameters}) {{"]
    first = next((each.name for each in operator.arguments if each.type == "Tensor"), None)
    if first is not None:
        lines.append(f"  const c10::DeviceGuard guard({first}.device());")
    if function.scope:
        lines.append(f"  using namespace {function.scope};  // for the types of its parameters")
    passed = ", ".join(each.passed for each in operator.arguments if each.passed)
    if function.is_kernel:
        grid, block, shared = (each.name for each in operator.arguments[-len(LAUNCH) :])
        place = {"FUNCTION": function.qualified, "GRID": grid, "BLOCK": block, "SHARED": shared, "ARGUMENTS": passed}
        lines.append(of_language("launch", place).rstrip("\n"))
    else:
        call = f"{function.qualified}({passed})"
        call = f"static_cast<{returned}>({call})" if returned in ("int64_t", "double") else call
        lines.append(f"  {'' if operator.returns == '()' else 'return '}{call};")
    return "\n".join([*lines, "}\n\n"])


def _adapters(
    folder: PurePosixPath, files: Sequence[AdoptedSource], values: Mapping[str, str]
) -> dict[PurePosixPath, str | bytes]:
    """Headers that stand before Torch's: without Python's, and with the build's own namespace."""
    adapters: dict[PurePosixPath, str | bytes] = {}
    wanted = [match for each in files for match in _PYBIND.findall(" ".join(read_cpp(each.text).includes))]
    for name in dict.fromkeys(["torch/extension.h", *wanted] if wanted else []):
        text = adopted_template("adapters/torch/extension.h", values)
        if name != "torch/extension.h":
            text = "#pragma once\n\n#include <torch/extension.h>\n"
        adapters[folder / "adapters" / name] = text
    if any("TORCH_LIBRARY" in each.text for each in files):
        adapters[folder / "adapters/torch/library.h"] = adopted_template("adapters/torch/library.h", values)
    return adapters


def _python_files(
    draft: Draft, operators: Sequence[AdoptedOperator], values: dict[str, str], compiled: Sequence[PurePosixPath]
) -> dict[PurePosixPath, str | bytes]:
    package = PurePosixPath("torch-ext") / draft.name.python_name
    offered = "".join(f'    "{name}",\n' for name in sorted(operator.name for operator in operators))
    values["ALL"] = f"\n{offered}"
    values["FUNCTIONS"] = "".join(f"\n\n{_python_function(operator)}" for operator in operators)
    rows = [
        ("build.toml", "name, version, backend and sources"),
        (f"{package}/__init__.py", "the functions in Python"),
        ("torch-ext/torch_binding.cpp", "the operators' schemas"),
        *((path.as_posix(), "compiled") for path in compiled),
        ("tests/", "run by `kernels test`; fill them in"),
    ]
    tests = "".join(f"\n\n{_python_test(operator)}" for operator in operators)
    return {
        package / "__init__.py": adopted_template("init_py", values),
        **kernel_tests(draft, values, [operator.name for operator in operators], tests),
        **page(values, rows),
    }


def kernel_tests(
    draft: Draft, values: Mapping[str, str], offered: Sequence[str], tests: str
) -> dict[PurePosixPath, str | bytes]:
    """The tests of a kernel that was made from a file: what it offers, and a test to fill for each."""
    names = "".join(f'    "{name}",\n' for name in offered)
    text = adopted_template("test.py", {**values, "OFFERED": f"\n{names}", "TESTS": tests})
    return {PurePosixPath(f"tests/test_{draft.name.python_name}.py"): text}


def page(values: Mapping[str, str], rows: Sequence[tuple[str, str]]) -> dict[PurePosixPath, str | bytes]:
    """The page of a kernel that was made from a file, and its `.gitignore`."""
    table = "".join(f"| `{path}` | {content} |\n" for path, content in rows)
    ignored = fill((TEMPLATES / "common" / ".gitignore.in").read_text(encoding="utf-8"), values)
    return {
        PurePosixPath("README.md"): adopted_template("README.md", {**values, "FILES": table}),
        PurePosixPath(".gitignore"): ignored,
    }


def _python_function(operator: AdoptedOperator) -> str:
    parameters = [
        f"    {each.name}: {each.python}{f' = {each.default}' if each.default else ''},\n"
        for each in operator.arguments
    ]
    returned = {"Tensor": "torch.Tensor", "Tensor[]": "list[torch.Tensor]", "()": "None"}.get(
        operator.returns, operator.returns.replace("Tensor", "torch.Tensor")
    )
    if returned.startswith("("):
        returned = f"tuple[{returned[1:-1]}]"
    written = [each.name for each in operator.arguments if each.is_written]
    said = f"Writes to {_listed(written)}." if written else "Describe it here."
    line_break = "\n" if parameters else ""
    # Where C++ has pointers, only type, device and strides are checked.
    unsized = "    # The sizes are not checked: check them here.\n" * any(
        "data_of<" in each.passed for each in operator.arguments
    )
    call = ", ".join(each.name for each in operator.arguments)
    text = f"    return ops.{operator.name}({call})\n"
    if len(text) > 88:
        each_line = "".join(f"        {each.name},\n" for each in operator.arguments)
        text = f"    return ops.{operator.name}(\n{each_line}    )\n"
    whole = f'def {operator.name}({line_break}{"".join(parameters)}) -> {returned}:\n    """{said}"""\n{unsized}{text}'
    return f"{whole}{_fake(operator)}"


def _fake(operator: AdoptedOperator) -> str:
    """A fake to complete, as comments; none for a function that gives no tensor, which needs none."""
    if operator.returns != "Tensor":
        return ""
    parameters = ", ".join(each.name for each in operator.arguments)
    like = next((each.name for each in operator.arguments if each.type == "Tensor"), None)
    result = f"torch.empty_like({like})" if like is not None else "torch.empty(...)"
    return (
        "\n\n# For torch.compile: the result's shape, type and strides. Correct it, and uncomment it. It needs\n"
        "# `from ._ops import add_op_namespace_prefix, ops`.\n"
        f'# @torch.library.register_fake(add_op_namespace_prefix("{operator.name}"))\n'
        f"# def _{operator.name}_fake({parameters}):\n"
        f"#     return {result}\n"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _python_test(operator: AdoptedOperator) -> str:
    called = f"kernel.{operator.name}({', '.join(each.name for each in operator.arguments)})"
    written = ", ".join(each.name for each in operator.arguments if each.is_written)
    result = f"found = {written}" if written else "found = ...  # what it writes into"
    arguments = [(each.name, example(each.type)) for each in operator.arguments]
    return kernel_test(
        operator.name, arguments, [called, result] if operator.returns == "()" else [f"found = {called}"]
    )


def kernel_test(name: str, arguments: Sequence[tuple[str, str]], found: Sequence[str]) -> str:
    """A test of a function to fill in.

    Args:
        name: The function's name.
        arguments: The names of its arguments, and example values.
        found: The lines that call it, and name what was found.
    """
    lines = [
        f"def test_{name}(kernel, device):",
        f'    pytest.skip("fill in: compare {name} with a reference")',
        *(f"    {argument} = {value}" for argument, value in arguments),
        *(f"    {line}" for line in found),
        "    expected = ...",
        "    torch.testing.assert_close(found, expected)",
    ]
    return "\n".join(lines) + "\n"


def example(type_: str) -> str:
    """An example value for an argument of a type in a schema, as Python writes it."""
    examples = {
        "Tensor": "torch.randn(1024, device=device)",
        "Tensor?": "None",
        "Tensor[]": "[torch.randn(1024, device=device)]",
        "int[]": "[1]",
        "float[]": "[1.0]",
        "bool": "True",
        "str": '""',
        "ScalarType": "torch.float32",
    }
    return examples.get(type_, "None" if type_.endswith("?") else "1.0" if type_ in ("float", "Scalar") else "1024")


def _hints(source: CppSource, headers: Sequence[AdoptedSource], paths: Sequence[PurePosixPath]) -> list[str]:
    known = {each.path.as_posix() for each in headers} | {path.as_posix() for path in paths}
    missing = [each[1:-1] for each in source.includes if each.startswith('"') and each[1:-1] not in known]
    hints = [f"{paths[0]} includes {name!r}, which is not beside it: copy it there" for name in missing]
    if source.on_default_stream:
        lines = ", ".join(map(str, source.on_default_stream[:5]))
        hints.append(
            f"{paths[0]}, line {lines}: a launch without a stream does not wait for Torch's current stream; give it "
            "that stream as the fourth value of <<< >>>"
        )
    return hints


def adopted_template(name: str, values: Mapping[str, str]) -> str:
    """A file of a kernel that was made from another, from its template."""
    text = fill((_ADOPTED / f"{name}.in").read_text(encoding="utf-8"), values)
    return f"{text.rstrip()}\n" if name not in _PARTS and "/" not in name else text
