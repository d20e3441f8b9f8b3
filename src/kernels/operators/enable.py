"""Override ATen operators with functions of a vendor or of kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any, ClassVar

from kernels import backends
from kernels.backends import Backend
from kernels.backends.plugins.vendor_folder import vendor_module
from kernels.errors import RequestError
from kernels.operators.aten import Operator, check_dispatch_key, find_operator, operator_names
from kernels.operators.dispatch import Override, active_overrides, decomposed, insert, remove
from kernels.operators.schema import check_function, is_with_backward
from kernels.support.formatting import did_you_mean, format_value, wrong_type
from kernels.support.html_table import TableList
from kernels.tracebacks import public

__all__ = [
    "ActiveOp",
    "EnabledOps",
    "FuncSpec",
    "active_ops",
    "enable_kernel_ops",
    "enable_vendor_ops",
    "listed_functions",
    "use_kernel_ops",
    "use_vendor_ops",
]


@dataclass(frozen=True)
class FuncSpec:
    """A function of a kernel.

    Attributes:
        repo_id: The repository, `org/name`.
        func_name: The function's name in the kernel's module.
        version: A major version; not together with `revision`.
        revision: A branch, a tag or a commit.
        trust_remote_code: As for `get_kernel`.

    Example:
        >>> str(FuncSpec("org/repo", "silu", version=1))
        'silu of kernel org/repo, version 1'
    """

    repo_id: str
    func_name: str
    version: int | None = None
    revision: str | None = None
    trust_remote_code: bool | Sequence[str] = False

    def __post_init__(self) -> None:
        if not isinstance(self.func_name, str) or not self.func_name.isidentifier():
            raise RequestError(f"`func_name`: expected the name of a function, got {self.func_name!r}.")

    @property
    def kernel(self) -> str:
        """The kernel, for messages."""
        chosen = f", version {self.version}" if self.version is not None else ""
        return f"kernel {self.repo_id}{chosen}{f' at {self.revision}' if self.revision is not None else ''}"

    def __str__(self) -> str:
        return f"{self.func_name} of {self.kernel}"


@dataclass(frozen=True)
class ActiveOp:
    """An operator that a function overrides.

    Attributes:
        operator: The operator: `aten::silu`, `aten::add.Tensor`.
        dispatch_key: Torch's dispatch key: only tensors of that backend are affected.
        function: The function's name in its source.
        origin: Its source: the vendor and folder, or the kernel.
    """

    operator: str
    dispatch_key: str
    function: str
    origin: str


class ActiveOpList(TableList[ActiveOp]):
    """Operators that are overridden: a list that a notebook shows as a table."""

    headings: ClassVar[tuple[str, ...]] = ("operator", "dispatch key", "function", "origin")

    @staticmethod
    def cells(item: ActiveOp) -> tuple[str, ...]:
        return (item.operator, item.dispatch_key, item.function, item.origin)


class EnabledOps:
    """Functions that override operators until `disable` is called, or until its `with` block ends."""

    def __init__(self, overrides: Sequence[Override]) -> None:
        self._overrides = tuple(overrides)

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators, in the order in which they were given."""
        return tuple(str(each.operator) for each in self._overrides)

    def disable(self) -> None:
        """Remove these overrides; others of the same operators stay. A second call does nothing."""
        remove(self._overrides)

    def __enter__(self) -> EnabledOps:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.disable()

    def __repr__(self) -> str:
        return f"EnabledOps({', '.join(self.operators)})"


@contextmanager
def use_vendor_ops(
    name: str, *, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
) -> Iterator[EnabledOps]:
    """Override ATen operators with a vendor's functions on the vendor's device, in a `with` block.

    As `enable_vendor_ops`; the end of the block removes the overrides.

    Example:
        ```python
        from kernels import use_vendor_ops

        with use_vendor_ops("acme"):
            model(inputs)
        ```
    """
    with enable_vendor_ops(name, include=include, exclude=exclude) as enabled:
        yield enabled


@public
def enable_vendor_ops(
    name: str, *, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
) -> EnabledOps:
    """Override ATen operators with a vendor's functions on the vendor's device, until `disable` is called.

    `__all__` of the vendor folder's `ops` names the functions. A function has the operator's name: `silu`, `silu_`, and
    with an overload `add_Tensor` for `aten::add.Tensor`. Overrides apply to the whole process, every thread included,
    and only to tensors of the backend's dispatch key. If a function calls the operator that it overrides, the previous
    kernel runs. If a caller gives a number for a tensor (`x * 2`), Torch gives the function that number. Operators that
    return views of their arguments (`detach`, `transpose`) are refused.

    `unregister_backend` removes the backend's overrides. Do not enable or disable while other threads call the same
    operators: Torch changes its table of kernels while they read it, so that such a call can fail, and end the process
    if Torch has no `torch.library.get_kernel`.

    Torch's derivatives do not change. If Torch computes an operator by others (`linear`), their derivatives are used,
    which a function would lose; so it is refused: give a subclass of `torch.autograd.Function` with a `backward`, under
    the operator's name.

    `torch.compile` traces operators, not these functions: they run if the compiled graph calls the operator
    (`backend="aot_eager"`), but not if a compiler generates its own code for it; and for operators that Torch computes
    by others, in no compiled graph.

    Args:
        name: The backend by any of its names, or its vendor.
        include: Names of functions or operators (`aten::silu`) to use; the default is all of them.
        exclude: Names of functions or operators to leave out.

    Returns:
        What is active, with `disable`.

    Raises:
        TypeError: An argument is of the wrong type.
        RequestError: The vendor or a function is unknown, `ops` cannot be imported, or a function cannot override its
            operator. Nothing was changed.
    """
    included = None if include is None else _texts(include, "include")
    excluded = [] if exclude is None else _texts(exclude, "exclude")
    backend = _vendor(name)
    module = vendor_module(backend, "ops")
    if module is None:
        raise RequestError(
            f"`name` is {name!r}, but backend {backend.name!r} has no operators: {backend.folder} has no `ops`."
        )
    where = f"vendor {backend.vendor or backend.name} ({backend.folder})"
    functions = _functions(module, where)
    names = operator_names()
    taken = _chosen(functions, included, excluded, where, names)
    overrides: dict[Operator, Override] = {}
    for function_name in taken:
        try:
            operator = find_operator(function_name, names)
        except RequestError as error:
            raise RequestError(f"`{function_name}` in `__all__` of `ops` of {where}: {error}") from None
        if operator in overrides:
            twice = overrides[operator].function_name
            raise RequestError(f"`{twice}` and `{function_name}` in `__all__` of `ops` of {where} are both {operator}.")
        function = functions[function_name]
        overrides[operator] = Override(operator, backend.dispatch_key, function, function_name, where, backend)
    enabled = _enable(list(overrides.values()), backend)
    if all(each is not backend for each in backends.all_backends()):
        enabled.disable()
        raise RequestError(
            f"`name` is {name!r}, but backend {backend.name!r} was unregistered while its operators were enabled."
        )
    return enabled


@contextmanager
def use_kernel_ops(functions: Mapping[str, FuncSpec], *, backend: str | None = None) -> Iterator[EnabledOps]:
    """Override ATen operators with functions of kernels, in a `with` block.

    As `enable_kernel_ops`; the end of the block removes the overrides.

    Example:
        ```python
        from kernels import FuncSpec, use_kernel_ops

        with use_kernel_ops({"aten::silu": FuncSpec("org/repo", "silu", version=1)}):
            model(inputs)
        ```
    """
    with enable_kernel_ops(functions, backend=backend) as enabled:
        yield enabled


@public
def enable_kernel_ops(functions: Mapping[str, FuncSpec], *, backend: str | None = None) -> EnabledOps:
    """Override ATen operators with functions of kernels, until `disable` is called.

    All kernels are loaded before the first operator changes. The functions follow the rules of `enable_vendor_ops`.

    Args:
        functions: Operators (`aten::silu`, `aten::add.Tensor`, or `silu`, `add_Tensor`), with the function for each.
        backend: The backend whose operators change, and whose builds are loaded; the default follows Torch's build.

    Returns:
        What is active, with `disable`.

    Raises:
        TypeError: An argument is of the wrong type.
        RequestError: An operator or function is unknown, or a function cannot override its operator.
        KernelsError: A kernel cannot be loaded, as for `get_kernel`. Nothing was changed.
    """
    from kernels.api import KernelRequest, get_kernels
    from kernels.loader.load import kernel_attribute
    from kernels.resolver.target import Target

    if not isinstance(functions, Mapping):
        raise wrong_type("functions", "a mapping of operators to FuncSpec", functions)
    for key, spec in functions.items():
        if not isinstance(spec, FuncSpec):
            raise wrong_type(f"functions[{key!r}]", "a FuncSpec", spec)
    chosen = backends.find(backend) if backend is not None else backends.get(Target.current().default_backend)
    names = operator_names()
    specs: dict[Operator, FuncSpec] = {}
    for key, spec in functions.items():
        operator = find_operator(key, names)
        if operator in specs:
            raise RequestError(f"`functions` has {operator} twice, once as {key!r}.")
        specs[operator] = spec
    check_dispatch_key(chosen.dispatch_key, f"backend {chosen.name!r}")
    requests = [
        KernelRequest(spec.repo_id, spec.version, spec.revision, backend, None, spec.trust_remote_code)
        for spec in specs.values()
    ]
    overrides = []
    for (operator, spec), module in zip(specs.items(), get_kernels(requests), strict=True):
        if isinstance(module, Exception):
            raise module
        function = kernel_attribute(module, spec.func_name)
        if function is None:
            raise RequestError(f"`functions[{str(operator)!r}]` is {spec}, but the kernel has no such function.")
        overrides.append(Override(operator, chosen.dispatch_key, function, spec.func_name, spec.kernel))
    return _enable(overrides, chosen)


def active_ops() -> list[ActiveOp]:
    """The operators that are overridden, in the order in which they were enabled.

    If an operator is listed twice under one dispatch key, the later override runs.

    Example:
        >>> active_ops()
        []
    """
    return ActiveOpList(
        ActiveOp(str(each.operator), each.dispatch_key, each.function_name, each.origin) for each in active_overrides()
    )


def _enable(overrides: Sequence[Override], backend: Backend) -> EnabledOps:
    check_dispatch_key(backend.dispatch_key, f"backend {backend.name!r}")
    for override in overrides:
        check_function(override.operator, override.function, f"`{override.function_name}` of {override.origin}")
        _check_derivative(override)
    backends.mention_experimental(backend)
    insert(overrides)
    return EnabledOps(overrides)


def _check_derivative(override: Override) -> None:
    """Raise if an operator would lose its derivative, or have two."""
    operator, where = override.operator, f"`{override.function_name}` of {override.origin}"
    with_backward = is_with_backward(override.function)
    if decomposed(operator, override.dispatch_key):
        if not with_backward:
            raise RequestError(
                f"{where} cannot override {operator}: Torch computes it by other operators (CompositeImplicitAutograd) "
                "and uses their derivatives, so its gradient would be lost. Give a torch.autograd.Function of that "
                "name, with a `backward`, or functions for those operators."
            )
    elif with_backward:
        raise RequestError(
            f"{where} is a torch.autograd.Function, but Torch has a derivative of {operator}. Give a function; for "
            "another derivative, also give one for the operator that computes it."
        )


def _vendor(name: str) -> Backend:
    if not isinstance(name, str):
        raise wrong_type("name", "the name of a backend or vendor", name)
    found = [each.backend for each in backends.list_backends() if each.name == name]
    found = found or [each for each in backends.all_backends() if name and each.vendor == name and each.folder]
    if len(found) > 1:
        raise RequestError(
            f"`name` is {name!r}, the vendor of {', '.join(each.name for each in found)}; name one of these."
        )
    backend = found[0] if found else backends.find(name)
    if backend.folder is None:
        raise RequestError(
            f"`name` is {name!r}, but backend {backend.name!r} has no vendor folder with operators; `register_vendor` "
            "adds one."
        )
    return backend


def listed_functions(module: ModuleType, where: str) -> list[str]:
    """The names in a vendor's `__all__`.

    Args:
        module: The `ops` of a vendor's folder.
        where: The vendor or folder, for messages.

    Raises:
        RequestError: `__all__` is missing, or not a list of names.

    Example:
        >>> module = ModuleType("ops")
        >>> module.__all__ = ["silu"]
        >>> listed_functions(module, "acme")
        ['silu']
    """
    form = """a list of the functions' names, such as __all__ = ["silu"]"""
    if "__all__" not in vars(module):
        raise RequestError(f"`ops` of {where} has no `__all__`: {form}.")
    listed = vars(module)["__all__"]
    if not isinstance(listed, (list, tuple)) or not all(isinstance(each, str) for each in listed):
        raise RequestError(f"`__all__` of `ops` of {where} is {format_value(listed)}; expected {form}.")
    return list(listed)


def _functions(module: ModuleType, where: str) -> dict[str, Any]:
    """The functions that `__all__` names."""
    functions: dict[str, Any] = {}
    for name in listed_functions(module, where):
        if name in functions:
            raise RequestError(f"`__all__` of `ops` of {where} names {name!r} twice.")
        try:
            functions[name] = getattr(module, name)
        except Exception as error:  # noqa: BLE001 - the module may have its own `__getattr__`
            why = "which does not exist" if isinstance(error, AttributeError) else f"which fails: {error}"
            raise RequestError(f"`__all__` of `ops` of {where} names {name!r}, {why}.") from None
    return functions


def _chosen(
    functions: Iterable[str],
    included: list[str] | None,
    excluded: list[str],
    where: str,
    names: dict[str, list[str]],
) -> list[str]:
    """The functions to use, in their own order."""
    functions = list(functions)

    def meant(entry: str, argument: str) -> set[str]:
        operator = _operator(entry, names)
        found = {each for each in functions if each == entry or (operator and _operator(each, names) == operator)}
        if not found:
            raise RequestError(
                f"`{argument}` has {entry!r}, which {where} does not offer; it offers {', '.join(functions)}."
                f"{did_you_mean(entry, functions)}"
            )
        return found

    taken = set(functions) if included is None else set[str]().union(*(meant(each, "include") for each in included))
    for entry in excluded:
        taken -= meant(entry, "exclude")
    return [each for each in functions if each in taken]


def _operator(text: str, names: dict[str, list[str]]) -> Operator | None:
    try:
        return find_operator(text, names)
    except RequestError:
        return None


def _texts(given: Iterable[str], argument: str) -> list[str]:
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else None
    if listed is None or not all(isinstance(each, str) for each in listed):
        raise wrong_type(argument, "a list of names of functions or operators", given)
    return listed
