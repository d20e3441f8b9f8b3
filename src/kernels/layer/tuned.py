"""What `autotune` decided, kept for this machine or in a file, and how `kernelize` uses it.

<cache>/.locks/kernels-autotune/<hash of the facts>.json    one kind of layer

A decision holds for what it was measured with: the device and its architecture, Torch and its backend's version, the
class of the layer with the code of its forward and attributes such as an eps, the sizes and the type of its parameters,
the mode, and the kernel's commit, build and code. Where one of these is another, nothing was measured.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec.structs import replace

from kernels import settings
from kernels.errors import RequestError
from kernels.layer.decision import LayerDecision, dtype_of
from kernels.layer.forwards import Forward, by_size, unless_gradient, wrapped_kernel
from kernels.layer.layer import is_function, is_function_class
from kernels.layer.loading import name_in_kernel
from kernels.layer.mode import Mode
from kernels.layer.plan import LayerRequest, plan_layers
from kernels.support.files import check_folders, read_bounded, replace_file
from kernels.support.formatting import format_error, wrong_type
from kernels.support.record_file import StoredRecord, decode_json, read_record, write_record

if TYPE_CHECKING:
    from torch import nn

    from kernels.layer.device import ModuleDevice
    from kernels.layer.marked import ModelModules

    Plan = list[tuple[list[nn.Module], LayerDecision | None]]

__all__ = [
    "AUTOTUNE_FILE",
    "NOT_FASTER",
    "KernelIdentity",
    "Segment",
    "TunedLayer",
    "cached_tuned",
    "check_tuned",
    "facts_of",
    "identity_of",
    "machine_facts",
    "read_tuned",
    "remove_tuned",
    "save_tuned",
    "tuned_decision",
    "tuned_folder",
    "tuned_plan",
    "write_tuned",
]

#: What a report's saved file is called, beside `kernels.lock`.
AUTOTUNE_FILE = "kernels.autotune.json"

#: The largest file of decisions that is read: a kind of layer has about one kilobyte.
_MOST_BYTES = 16 * 2**20

NOT_FASTER = "not faster than its own forward"

_Natural = Annotated[int, msgspec.Meta(ge=0)]


class KernelIdentity(msgspec.Struct, frozen=True):
    """A kernel that was measured.

    Attributes:
        kernel: Its repository or folder.
        commit: The commit, if it has one.
        variant: The build, if it has one.
        layer: The layer's name in it, if it has one: two of one source may differ in what a factory gave them.
        code: A hash of its forward, and of the files of a build in a folder.
    """

    kernel: str
    commit: str | None
    variant: str | None
    layer: str | None
    code: str

    @property
    def text(self) -> str:
        """It on one line."""
        return " ".join(filter(None, (self.kernel, self.commit, self.variant, self.layer, self.code)))


class Segment(msgspec.Struct, frozen=True):
    """What serves a layer from some size on.

    Attributes:
        elements: From how many elements of its first tensor on.
        kernel: The kernel; None for its own forward.
    """

    elements: _Natural
    kernel: KernelIdentity | None = None


class TunedLayer(StoredRecord, kw_only=True):
    """The decision for one kind of layer.

    Attributes:
        facts: What it was measured with.
        segments: What serves it from which size on.
        measured: The kernels that were measured.
        out: Those that were not right, and why.
        forward_only: Those whose backward was not right, and why.
        argument: The tensor whose size decides: its place among the arguments, and its name.
    """

    facts: dict[str, str]
    segments: Annotated[tuple[Segment, ...], msgspec.Meta(min_length=1)]
    measured: tuple[KernelIdentity, ...]
    out: dict[str, str] = msgspec.field(default_factory=dict)
    forward_only: dict[str, str] = msgspec.field(default_factory=dict)
    argument: tuple[_Natural, str] | None = None

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the kernels that were measured."""
        return tuple(dict.fromkeys(each.kernel for each in self.measured))

    @property
    def serves(self) -> str:
        """For which inputs which kernel serves, as text."""
        if all(each.kernel is None for each in self.segments):
            return f"never: {next(iter(self.out.values()), NOT_FASTER)}"
        parts = []
        for each in self.segments:
            name = "own forward" if each.kernel is None else each.kernel.kernel if len(self.kernels) > 1 else ""
            size = f"from {each.elements:,} elements" if each.elements else ""
            parts.append(f"{name} {size}".strip() or "always")
        return "; ".join(parts)


class _SavedFile(msgspec.Struct, kw_only=True):
    """A file of decisions."""

    autotune: int
    layers: list[TunedLayer]


def facts_of(model: nn.Module, module: nn.Module, decision: LayerDecision, mode: Mode) -> dict[str, str]:
    """What a decision for a layer holds for, as text.

    Args:
        model: The model.
        module: The layer.
        decision: What was planned for it.
        mode: What the model is used for.
    """
    cls: Any = type(module)
    chosen = decision.chosen or (decision.each[0].chosen if decision.each else None)
    dtype = decision.state.dtype if decision.state else None
    if dtype is None:
        dtype = next((dtype for each in model.parameters() if (dtype := dtype_of(each)) is not None), None)
    sizes, attributes = _makeup(module)
    return {
        **machine_facts(None if chosen is None else chosen.device),
        "layer": decision.layer,
        "class": f"{cls.__module__}.{cls.__qualname__}",
        "forward": code_hash(cls.forward),
        "dtype": str(dtype).removeprefix("torch."),
        "parameters": sizes,
        "attributes": attributes,
        "mode": str(mode),
    }


def _makeup(module: nn.Module) -> tuple[str, str]:
    """The sizes of a layer's parameters, and what it and the modules in it compute by."""
    if is_function(module):
        return "", ""
    sizes = ", ".join(str(tuple(each.shape)) for each in module.parameters())
    return sizes, "; ".join(_attributes(*each) for each in module.named_modules())


def _attributes(path: str, module: nn.Module) -> str:
    """The class of a layer, or of a module in it, and what it computes by."""
    plain = {name: getattr(value, "__qualname__", value) for name, value in _computes_by(module)}
    return f"{path} {type(module).__name__} {plain or ''}".strip()


def _computes_by(module: nn.Module) -> list[tuple[str, Any]]:
    """What a module computes by beside its tensors, such as an eps or an activation."""
    return [
        (name, value)
        for name, value in vars(module).items()
        if name[:1] != "_" and name not in _OF_EVERY_MODULE and isinstance(value, _PLAIN)
    ]


_PLAIN = (bool, int, float, str, FunctionType, BuiltinFunctionType)
_OF_EVERY_MODULE = ("training", "layer_idx", "forward")


def _group(module: nn.Module) -> tuple[Any, ...]:
    """What layers with the same makeup share, without its text: there may be 100,000 of them."""
    modules = module.named_modules() if module._modules else (("", module),)
    return tuple(
        (
            path,
            type(each),
            *[None if parameter is None else parameter.shape for parameter in each._parameters.values()],
            *[(name, type(value), value) for name, value in _computes_by(each)],
        )
        for path, each in modules
    )


@lru_cache(maxsize=64)
def machine_facts(device: ModuleDevice | None) -> dict[str, str]:
    """What a decision holds for of this machine and a device of it."""
    import torch

    from kernels.resolver.target import Target

    facts = {"torch": str(torch.__version__), "device": "", "arch": "", "backend": ""}
    if device is None:
        return facts
    target = Target.current()
    facts["backend"] = target.backends.get(device.backend.name) or ""
    facts["arch"] = device.arch() or target.cpu
    kind: Any = getattr(torch, device.backend.device_type, None)
    if hasattr(kind, "get_device_name"):
        facts["device"] = str(kind.get_device_name(device.index))
    else:
        facts["device"] = f"{device.type}, {torch.get_num_threads()} threads"
    return facts


@lru_cache(maxsize=4096)
def code_hash(function: Any) -> str:
    """A hash of a function's source, which is the same on each machine; of its code where there is no source."""
    function = inspect.unwrap(function)
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        text = repr(function) if code is None else repr((code.co_code, code.co_names, code.co_consts))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity_of(decision: LayerDecision) -> KernelIdentity:
    """The kernel of a decision."""
    code = code_hash(wrapped_kernel(decision.function)) if decision.function is not None else ""
    if decision.commit is None and decision.variant is not None and decision.kernel is not None:
        code += _folder_hash(decision.kernel, decision.variant)
    repository = getattr(decision.chosen.choice, "repository", None) if decision.chosen else None
    return KernelIdentity(decision.kernel or "", decision.commit, decision.variant, name_in_kernel(repository), code)


def _folder_hash(folder: str, variant: str) -> str:
    """A hash of the names, sizes and times of a local build's files: it may be built anew."""
    root = Path(folder)
    places = [place for place in (root / "build" / variant, root / variant, root) if place.is_dir()]
    found = hashlib.sha256()
    for path in sorted(places[0].rglob("*")) if places else ():
        if path.is_file() and path.suffix != ".pyc":
            facts = path.stat()
            found.update(f"{path.relative_to(places[0])} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return found.hexdigest()[:16]


def tuned_decision(
    cls: Any,
    decisions: Sequence[LayerDecision],
    segments: Sequence[tuple[int, int | None]],
    forward_only: Collection[int],
    argument: tuple[int, str] | None,
    reason: str,
) -> LayerDecision:
    """One decision of several kernels, by the size of the input.

    Args:
        cls: The layer's class.
        decisions: The decision for each kernel.
        segments: From how many elements on which of them serves, None for the own forward; from the smallest on.
        forward_only: Which of them serve only where no gradient is needed; else the own forward does.
        argument: The tensor whose size decides.
        reason: Why the layer keeps its own forward where no kernel serves.
    """
    own: Forward = cls.forward
    if argument is None:  # the size cannot be asked: a kernel serves if it does at every size that was measured
        chosen = {candidate for _, candidate in segments[1:]} or {segments[0][1]}
        segments = [(0, chosen.pop() if len(chosen) == 1 else None)]
    used = [decisions[candidate] for _, candidate in segments if candidate is not None]
    if not used:
        first = decisions[0]
        return replace(first, function=None, reason=f"measured: {reason}", measured=True, each=())

    def forward_of(candidate: int | None) -> Forward:
        function = None if candidate is None else decisions[candidate].function
        if function is None:
            return own
        if candidate in forward_only:
            return unless_gradient(function, own, None, is_function_class(cls))
        return function

    function = forward_of(segments[0][1])
    for elements, candidate in segments[1:]:
        function = by_size(elements, function, forward_of(candidate), own, argument or (0, ""))
    names = ", ".join(dict.fromkeys(each.kernel or "-" for each in used))
    sizes = [f"from {elements:,} elements" for elements, _ in segments if elements]
    return replace(used[0], function=function, kernel=names, from_size="; ".join(sizes) or None, measured=True)


def check_tuned(autotuned: Any) -> bool | Path:
    """The `autotuned` argument of `kernelize`.

    Raises:
        TypeError: It is neither a bool nor a path.
    """
    if isinstance(autotuned, bool):
        return autotuned
    if isinstance(autotuned, (str, os.PathLike)):
        return Path(autotuned)
    raise wrong_type("autotuned", "True, False, or the path of a saved file", autotuned)


def tuned_plan(
    model: nn.Module, found: ModelModules, request: LayerRequest, plan: Plan, autotuned: bool | Path
) -> Plan:
    """A plan with what was measured.

    Args:
        model: The model.
        found: Its modules.
        request: What `kernelize` was asked for.
        plan: The plan without it.
        autotuned: Which decisions count.
    """
    served = [(modules, each) for modules, each in plan if each is not None and each.function is not None]
    if not served or autotuned is False or settings.autotune_ignored() or len(request.modes) > 1:
        return plan
    find = _finder(autotuned)
    if find is None:
        return plan
    others: list[dict[int, LayerDecision]] = []
    tuned: Plan = []
    for modules, decision in plan:
        if decision is None or decision.chosen is None or decision.function is None:
            tuned.append((modules, decision))
            continue
        alike: dict[tuple[Any, ...], list[nn.Module]] = {}
        for module in modules:
            alike.setdefault(_group(module), []).append(module)
        for part in alike.values():
            record = find(facts_of(model, part[0], decision, request.modes[0]))
            applied = None
            if record is not None:
                applied = _applied(record, part, decision, others, found, request)
            tuned.append((part, applied or decision))
    return tuned


def _applied(
    record: TunedLayer,
    modules: list[nn.Module],
    decision: LayerDecision,
    others: list[dict[int, LayerDecision]],
    found: ModelModules,
    request: LayerRequest,
) -> LayerDecision | None:
    """The decision that was measured; None where it is of other kernels than those that are mapped now."""
    module = modules[0]
    decisions = [decision]
    identities = [identity_of(decision)]
    wanted = {each.kernel for each in record.segments if each.kernel is not None}
    candidates = getattr(decision.chosen.choice, "candidates", ()) if decision.chosen else ()
    for number in range(1, len(candidates)):
        if wanted.issubset(identities):
            break
        if len(others) < number:
            plan = plan_layers(found, replace(request, candidate=number))
            others.append({id(each): one for each_modules, one in plan if one is not None for each in each_modules})
        other = others[number - 1].get(id(module))
        if other is not None and other.function is not None:
            decisions.append(other)
            identities.append(identity_of(other))
    out = record.out.get(identities[0].text)
    mapped = wanted.issubset(identities)
    # A kernel that was wrong stays out where the one that served in its place is mapped no more.
    if identities[0] not in record.measured or not (mapped or out):
        return None
    segments = [
        (each.elements, None if each.kernel is None or not mapped else identities.index(each.kernel))
        for each in record.segments
    ]
    reason = out or NOT_FASTER
    forward_only = {place for place, each in enumerate(identities) if each.text in record.forward_only}
    return tuned_decision(type(module), decisions, segments, forward_only, record.argument, reason)


def _finder(autotuned: bool | Path) -> Callable[[Mapping[str, str]], TunedLayer | None] | None:
    """What finds the decision for facts; None where there are none at all."""
    if isinstance(autotuned, Path):
        layers = {_key(each.facts): each for each in read_tuned(autotuned)}
        return lambda facts: layers.get(_key(facts))
    folder = tuned_folder()
    if not folder.is_dir():
        return None

    def find(facts: Mapping[str, str]) -> TunedLayer | None:
        record = read_record(folder / f"{_key(facts)}.json", TunedLayer)
        return record if record is not None and record.facts == facts else None

    return find


def tuned_folder() -> Path:
    """Where the decisions of this machine lie."""
    return settings.cache_dir() / ".locks" / "kernels-autotune"


def cached_tuned() -> dict[Path, TunedLayer | None]:
    """The decisions in the cache by their files; None for a file that is not used: damaged, or another user's."""
    folder = tuned_folder()
    try:
        check_folders(folder)  # a link leads out of this cache
        return {path: read_record(path, TunedLayer) for path in sorted(folder.glob("*.json"))}
    except OSError:
        return {}


def remove_tuned(path: Path) -> bool:
    """Remove a decision from the cache; whether it is gone."""
    with suppress(OSError):
        check_folders(path.parent)
        path.unlink(missing_ok=True)
    return not os.path.lexists(path)


def write_tuned(layer: TunedLayer) -> None:
    """Keep a decision in the cache."""
    write_record(tuned_folder() / f"{_key(layer.facts)}.json", layer)


def save_tuned(path: Path, layers: Sequence[TunedLayer]) -> None:
    """Write decisions to a file, to be reviewed and used elsewhere.

    Raises:
        OSError: It cannot be written.
    """
    plain = [msgspec.structs.replace(each, about="") for each in layers]
    replace_file(path, msgspec.json.format(msgspec.json.encode(_SavedFile(autotune=1, layers=plain)), indent=2) + b"\n")


def read_tuned(path: Path) -> list[TunedLayer]:
    """The decisions in a file.

    Raises:
        RequestError: It cannot be read, or is no such file.
    """
    try:
        saved = decode_json(read_bounded(path, _MOST_BYTES), _SavedFile)
    except OSError as error:
        raise RequestError(f"The file of autotune {path} cannot be read: {format_error(error)}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        message = f"{path} is not a file that a report of autotune saved: {format_error(error)}"
        raise RequestError(message) from None
    if saved.autotune != 1:
        raise RequestError(f"{path} has version {saved.autotune} of autotune's files; expected 1.")
    return saved.layers


def _key(facts: Mapping[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(dict(sorted(facts.items())))).hexdigest()[:32]
