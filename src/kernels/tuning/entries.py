"""The configurations in a `tune_configs.yaml`, as they are written or generated."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from kernels.support.formatting import format_value, wrong_type
from kernels.support.logs import logger
from kernels.support.warn import warn_once
from kernels.support.yaml import Node, Scalar, read_yaml, wrong

__all__ = ["TuneEntry", "TuneFile", "read_configs"]

_log = logger(__name__)

Operators = Mapping[str, tuple["TuneEntry", ...]]
"""The configurations of each operator, by its name."""

#: The top-level key whose value has a section for each architecture.
_ARCHS = "archs"

# More than a tuner can try: ten thousand compilations take hours.
_MAX_CONFIGS = 10_000
_MAX_CONFIGS_IN_FILE = 20_000
_MAX_PARAMETERS = 64


@dataclass(frozen=True)
class TuneEntry:
    """One configuration, as plain data.

    Attributes:
        meta: The kernel's compile-time parameters, such as block sizes in elements.
        num_warps: Warps of a program. The defaults of this and the next two are FlagGems' (`triton_config_default` in
            its configloader.py); Triton's own `num_stages` is 3.
        num_stages: Stages of a software-pipelined loop.
        num_ctas: Blocks of a cluster.
        others: Further arguments of `triton.Config`, which not every Triton has, such as `maxnreg`.
        line: The line in the file, from 1; 0 for an entry from no file.

    Example:
        >>> TuneEntry({"BLOCK_M": 64}, num_warps=8).num_stages
        2
    """

    meta: Mapping[str, Scalar]
    num_warps: int = 4
    num_stages: int = 2
    num_ctas: int = 1
    others: Mapping[str, Scalar] = field(default_factory=lambda: MappingProxyType({}))
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class TuneFile:
    """The content of a file.

    Attributes:
        path: The file.
        operators: The configurations of each operator.
        archs: Those for one architecture, by its name.
    """

    path: Path
    operators: Operators
    archs: Mapping[str, Operators]


def read_configs(path: os.PathLike[str] | str) -> TuneFile:
    """The configurations in a `tune_configs.yaml`, as plain data; Triton is not needed.

    Args:
        path: The file; `kernels.tuning` describes its form.

    Returns:
        Its content; generated configurations are written out.

    Raises:
        TypeError: `path` is not a path.
        RequestError: The file cannot be read or breaks its form; the message gives the file, the line and the value.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "tune_configs.yaml")
        >>> _ = file.write_text('''
        ... mm:
        ...   - META: {BLOCK_M: 64}
        ...     num_warps: 8
        ... softmax:
        ...   - gen: true
        ...     param_map: {META: {TILE: tile}, num_warps: warps}
        ...     tile: [32, 64]
        ...     warps: [4, 8]
        ... ''')
        >>> operators = read_configs(file).operators
        >>> operators["mm"][0].meta["BLOCK_M"], [(each.meta["TILE"], each.num_warps) for each in operators["softmax"]]
        (64, [(32, 4), (32, 8), (64, 4), (64, 8)])
    """
    if not isinstance(path, (str, os.PathLike)):
        raise wrong_type("path", "a path", path)
    file = Path(path)
    return _Form(file).file(read_yaml(file))


class _Form:
    """Checks a file's values against the form, and counts its configurations."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warned = False
        self.configs = 0  # of the operators before the one that is read

    def file(self, root: Node | None) -> TuneFile:
        sections = dict(self.mapping(root, "the file", "operators and their configurations") if root else {})
        archs = sections.pop(_ARCHS, None)
        by_arch = self.mapping(archs, f"`{_ARCHS}`", "architectures, each with operators") if archs else {}
        return TuneFile(
            self.path,
            self.operators(sections),
            {
                arch: self.operators(self.mapping(section, f"architecture {format_value(arch)}", "operators"))
                for arch, section in by_arch.items()
            },
        )

    def operators(self, section: Mapping[str, Node]) -> Operators:
        return {op: self.operator(op, node) for op, node in section.items()}

    def operator(self, op: str, node: Node) -> tuple[TuneEntry, ...]:
        entries: list[TuneEntry] = []
        for each in self.items(node, f"operator {format_value(op)}", "a list of configurations"):
            entry = self.mapping(each, f"a configuration of {format_value(op)}", "META, num_warps, …")
            known = len(entries)
            entries += self.generated(op, each.line, entry, known) if "gen" in entry else [self.literal(each, entry)]
            self.limit(op, each.line, len(entries))
        self.configs += len(entries)
        return tuple(entries)

    def limit(self, op: str, line: int, configs: int) -> None:
        if configs > _MAX_CONFIGS:
            count = format_value(configs)  # of any length
            why = f"operator {format_value(op)} has {count} configurations or more; the limit is {_MAX_CONFIGS}."
            raise wrong(self.path, line, why)
        if self.configs + configs > _MAX_CONFIGS_IN_FILE:
            raise wrong(self.path, line, f"the file has more than {_MAX_CONFIGS_IN_FILE} configurations.")

    # Literal ones

    def literal(self, node: Node, entry: Mapping[str, Node]) -> TuneEntry:
        meta = self.meta(self.of(entry, "META", node.line))
        options = {name: self.option(name, each) for name, each in entry.items() if name != "META"}
        return _entry(meta, options, node.line)

    def meta(self, node: Node) -> dict[str, Scalar]:
        named = self.mapping(node, "META", "the kernel's parameters")
        return {self.parameter(name, each): self.plain(name, each) for name, each in named.items()}

    # Generated ones

    def generated(self, op: str, line: int, entry: Mapping[str, Node], known: int) -> list[TuneEntry]:
        if entry["gen"].value is not True:
            raise wrong(self.path, entry["gen"].line, f"`gen` is {entry['gen']}; expected true, or no `gen`.")
        lists = {name: node for name, node in entry.items() if name not in ("gen", "param_map")}
        param_map = self.mapping(self.of(entry, "param_map", line), "`param_map`", "META, num_warps, …")
        source = self.of(param_map, "META", entry["param_map"].line)
        options = {name: node for name, node in param_map.items() if name != "META"}
        whole = not isinstance(source.value, dict)  # META is chosen as a whole, not each of its parameters
        named = {"META": source} if whole else self.mapping(source, "META", "the kernel's parameters")
        if len(named) + len(options) > _MAX_PARAMETERS:
            raise wrong(self.path, line, f"`param_map` has more than {_MAX_PARAMETERS} parameters.")
        # Counted before anything is made of them.
        parts = [self.choices(name, node, lists) for name, node in named.items()]
        settings = [self.choices(name, node, lists) for name, node in options.items()]
        self.limit(op, line, known + math.prod(map(len, [*parts, *settings])))
        self.warn_of_unused(lists)
        metas = [
            [self.meta(each) if whole else {self.parameter(name, each): self.plain(name, each)} for each in part]
            for name, part in zip(named, parts, strict=True)
        ]
        values = [
            [self.option(name, each) for each in setting] for name, setting in zip(options, settings, strict=True)
        ]
        entries = []
        for chosen in itertools.product(*metas):
            meta = {name: value for part in chosen for name, value in part.items()}
            for numbers in itertools.product(*values):
                entries.append(_entry(meta, dict(zip(options, numbers, strict=True)), line))
        return entries

    def warn_of_unused(self, lists: Mapping[str, Node]) -> None:
        """Warn, once a file, of a value beside `param_map`: it has no effect, as in FlagGems."""
        name = next((name for name, node in lists.items() if not isinstance(node.value, list)), None)
        if name is not None and not self.warned:
            self.warned = True
            warn_once(
                _log,
                f"{self.path}, line {lists[name].line}: `{name}: {lists[name]}` beside `param_map` has no effect. "
                "Put what every configuration has into `param_map`.",
            )

    def choices(self, name: str, node: Node, lists: Mapping[str, Node]) -> list[Node]:
        """What a parameter may be: the list of that name, a list in its place, or one value."""
        if isinstance(node.value, str):
            if node.value not in lists:
                there = ", ".join(lists) or "none"
                raise wrong(self.path, node.line, f"`{name}` names the list {node}, which is not found; found {there}.")
            node = lists[node.value]
        elif not isinstance(node.value, list):
            return [node]
        nodes = self.items(node, f"`{name}`", "a list of values")
        if not nodes:
            raise wrong(self.path, node.line, f"the list for `{name}` is empty; expected at least one value.")
        return nodes

    # Values

    def parameter(self, name: str, node: Node) -> str:
        if not name.isidentifier():
            raise wrong(self.path, node.line, f"META has {format_value(name)}; expected the name of a parameter.")
        if name in _LEAST:
            raise wrong(self.path, node.line, f"`{name}` is in META; it belongs beside META.")
        return name

    def option(self, name: str, node: Node) -> Scalar:
        value = self.plain(name, node)
        if name in _LEAST:
            least, powers = _LEAST[name]
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
            # Triton refuses to compile for another number of warps.
            if not whole or (powers and value & (value - 1)):  # type: ignore[operator]
                expected = f"a power of two from {least}" if powers else f"a whole number from {least}"
                raise wrong(self.path, node.line, f"`{name}` is {node}; expected {expected}.")
        return value

    def plain(self, name: str, node: Node) -> Scalar:
        if isinstance(node.value, (list, dict)):
            raise wrong(self.path, node.line, f"`{name}` is {node}; expected a number, true, false or text.")
        return node.value

    def mapping(self, node: Node, what: str, of: str) -> dict[str, Node]:
        if not isinstance(node.value, dict):
            raise wrong(self.path, node.line, f"{what} is {node}; expected a mapping of {of}.")
        if what == "META" and len(node.value) > _MAX_PARAMETERS:
            raise wrong(self.path, node.line, f"META has more than {_MAX_PARAMETERS} parameters.")
        return node.value

    def items(self, node: Node, what: str, expected: str) -> list[Node]:
        if not isinstance(node.value, list):
            raise wrong(self.path, node.line, f"{what} is {node}; expected {expected}.")
        return node.value

    def of(self, mapping: Mapping[str, Node], name: str, line: int) -> Node:
        if name not in mapping:
            there = ", ".join(map(format_value, mapping)) or "nothing"
            raise wrong(self.path, line, f"`{name}` is missing; found {there[:200]}.")
        return mapping[name]


#: The least that each number of a configuration may be, and whether it must be a power of two.
_LEAST: Mapping[str, tuple[int, bool]] = {"num_warps": (1, True), "num_stages": (0, False), "num_ctas": (1, False)}


def _entry(meta: Mapping[str, Scalar], options: Mapping[str, Scalar], line: int) -> TuneEntry:
    numbers = {name: value for name, value in options.items() if isinstance(value, int) and name in _LEAST}
    others = {name: value for name, value in options.items() if name not in _LEAST}
    return TuneEntry(MappingProxyType(dict(meta)), **numbers, others=MappingProxyType(others), line=line)
