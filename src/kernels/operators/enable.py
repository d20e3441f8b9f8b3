"""Override ATen operators with functions of a vendor or of kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar

from kernels import backends
from kernels.backends import Backend, BackendName
from kernels.backends.plugins.vendor_modules import vendor_module
from kernels.errors import RequestError
from kernels.operators.aten import Operator, check_dispatch_key, find_operator, operator_names
from kernels.operators.dispatch import Override, active_overrides, insert, remove
from kernels.operators.vendor_functions import (
    UnusedOp,
    check_override,
    chosen_functions,
    left_out_by,
    overrides_of,
    read_functions,
)
from kernels.support.formatting import format_names, plural, wrong_type
from kernels.support.html_table import TableList
from kernels.support.logs import logger, warn_once
from kernels.tracebacks import public

__all__ = [
    "ActiveOp",
    "EnabledOps",
    "FuncSpec",
    "UnusedOp",
    "active_ops",
    "enable_kernel_ops",
    "enable_vendor_ops",
    "use_kernel_ops",
    "use_vendor_ops",
]

_log = logger(__name__)


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
    """Functions that override operators until `disable` is called, or until its `with` block ends.

    Attributes:
        unused: The vendor's functions that override nothing, and why.
    """

    def __init__(self, overrides: Sequence[Override], unused: Sequence[UnusedOp] = ()) -> None:
        self._overrides = tuple(overrides)
        self.unused: tuple[UnusedOp, ...] = tuple(unused)

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
    name: BackendName, *, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
) -> Iterator[EnabledOps]:
    """Override ATen operators with a vendor's functions on the vendor's device, in a `with` block.

    As `enable_vendor_ops`; the end of the block removes the overrides.

    Args:
        name: The backend by any of its names, or its vendor.
        include: Names of functions or operators (`aten::silu`) to use; the default is all of them.
        exclude: Names of functions or operators to leave out.

    Yields:
        What is active, and what is not used.

    Raises:
        TypeError: As for `enable_vendor_ops`.
        RequestError: As for `enable_vendor_ops`.

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
    name: BackendName, *, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
) -> EnabledOps:
    """Override ATen operators with a vendor's functions on the vendor's device, until `disable` is called.

    `__all__` of the vendor folder's `ops` names the functions; without it, these are all functions there. A function
    has the operator's name, as in FlagGems: `silu`, `silu_`, `add` for `aten::add.Tensor`, `add_scalar` or `add_Scalar`
    for another overload, `softmax` for `aten::_softmax`, which Torch computes it by. Where a name may mean several
    operators, the function's parameters decide. Overrides apply to the whole process, every thread included, and only
    to tensors of the backend's dispatch key. If a function calls the operator that it overrides, the previous kernel
    runs. If a caller gives a number for a tensor (`x * 2`), Torch gives the function that number.

    A function that cannot override an operator is left out, and `unused` of the result says why: no operator has its
    name; the operator returns views of its arguments (`detach`, `transpose`); the function does not take the operator's
    arguments or has other defaults; the folder lists it in `CUSTOMIZED_UNUSED_OPS`. A function that lacks a parameter
    for an argument that may be left out is used for calls without it, and the previous kernel for the others.

    `unregister_backend` removes the backend's overrides. Do not enable or disable while other threads call the same
    operators: Torch changes its table of kernels while they read it, so that such a call can fail, and end the process
    if Torch has no `torch.library.get_kernel`.

    Torch's derivatives do not change. If Torch computes an operator by others (`linear`), their derivatives are used,
    which a function would lose; so it runs only where no gradient is needed. With a `backward`, as a subclass of
    `torch.autograd.Function` under the operator's name, it always runs.

    `torch.compile` traces operators, not these functions: they run if the compiled graph calls the operator
    (`backend="aot_eager"`), but not if a compiler generates its own code for it; and for operators that Torch computes
    by others, in no compiled graph.

    Args:
        name: The backend by any of its names, or its vendor.
        include: Names of functions or operators (`aten::silu`) to use; the default is all of them.
        exclude: Names of functions or operators to leave out.

    Returns:
        What is active, with `disable`, and what is not used.

    Raises:
        TypeError: An argument is of the wrong type.
        RequestError: The vendor is unknown, `ops` cannot be imported, a function of `include` is unknown or cannot
            override an operator, or none of the functions can. Nothing was changed.

    Example:
        ```python
        from kernels import enable_vendor_ops

        enabled = enable_vendor_ops("acme", exclude=["softmax"])
        print(enabled.operators, enabled.unused)
        enabled.disable()
        ```
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
    functions, missing = read_functions(module, where)
    names = operator_names()
    taken = chosen_functions({**functions, **dict.fromkeys(missing)}, included, excluded, where, names)
    unused = [] if included is not None else left_out_by(backend, taken)
    kept = {
        each: functions[each] for each in taken if each in functions and each not in {one.function for one in unused}
    }
    check_dispatch_key(backend.dispatch_key, f"backend {backend.name!r}")
    overrides, refused = overrides_of(kept, backend, where, names)
    refused = {**{each: missing[each] for each in taken if each in missing}, **refused}
    if refused and (included is not None or not overrides):
        raise next(iter(refused.values()))
    unused += [UnusedOp(function, str(error)) for function, error in refused.items()]
    if unused:
        _mention(unused, where)
    enabled = _enable(overrides, backend, unused)
    if all(each is not backend for each in backends.all_backends()):
        enabled.disable()
        raise RequestError(
            f"`name` is {name!r}, but backend {backend.name!r} was unregistered while its operators were enabled."
        )
    return enabled


@contextmanager
def use_kernel_ops(functions: Mapping[str, FuncSpec], *, backend: BackendName | None = None) -> Iterator[EnabledOps]:
    """Override ATen operators with functions of kernels, in a `with` block.

    As `enable_kernel_ops`; the end of the block removes the overrides.

    Args:
        functions: Operators (`aten::silu`, `aten::add.Tensor`, or `silu`, `add_Tensor`), with the function for each.
        backend: The backend whose operators change, and whose builds are loaded; the default follows Torch's build.

    Yields:
        What is active.

    Raises:
        TypeError: As for `enable_kernel_ops`.
        RequestError: As for `enable_kernel_ops`.
        KernelsError: As for `enable_kernel_ops`.

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
def enable_kernel_ops(functions: Mapping[str, FuncSpec], *, backend: BackendName | None = None) -> EnabledOps:
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

    Example:
        ```python
        from kernels import FuncSpec, enable_kernel_ops

        enabled = enable_kernel_ops({"aten::silu": FuncSpec("org/repo", "silu", version=1)})
        enabled.disable()
        ```
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
    for override in overrides:
        check_override(override)
    return _enable(overrides, chosen)


def active_ops() -> list[ActiveOp]:
    """The operators that are overridden, in the order in which they were enabled.

    Returns:
        One entry for each override, in a list that a notebook shows as a table. If an operator is listed twice under
        one dispatch key, the later override runs.

    Example:
        >>> active_ops()
        []
    """
    return ActiveOpList(
        ActiveOp(str(each.operator), each.dispatch_key, each.function_name, each.origin) for each in active_overrides()
    )


def _enable(overrides: Sequence[Override], backend: Backend, unused: Sequence[UnusedOp] = ()) -> EnabledOps:
    backends.mention_experimental(backend)
    insert(overrides)
    return EnabledOps(overrides, unused)


def _mention(unused: Sequence[UnusedOp], where: str) -> None:
    names = format_names([each.function for each in unused], limit=12)
    warn_once(
        _log,
        f"{plural(len(unused), 'function')} of {where} replace no operator: {names}. `unused` of the result says why, "
        "as does `kernels backends check`.",
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


def _texts(given: Iterable[str], argument: str) -> list[str]:
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else None
    if listed is None or not all(isinstance(each, str) for each in listed):
        raise wrong_type(argument, "a list of names of functions or operators", given)
    return listed
