"""The configurations in a `tune_configs.yaml`, as they are written or generated."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernels.errors import RequestError
from kernels.support.formatting import format_text, format_value, wrong_type
from kernels.support.logs import logger, warn_once
from kernels.support.yaml import Scalar, read_yaml

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
        place: Where in the file it is, such as `mm[3]`; empty for an entry from no file.

    Example:
        >>> TuneEntry({"BLOCK_M": 64}, num_warps=8).num_stages
        2
    """

    meta: Mapping[str, Scalar]
    num_warps: int = 4
    num_stages: int = 2
    num_ctas: int = 1
    others: Mapping[str, Scalar] = field(default_factory=lambda: MappingProxyType({}))
    place: str = field(default="", compare=False)


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
        RequestError: The file cannot be read or breaks its form; the message gives the file, the place and the value.

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
        self.place = ""  # of the value that is read, such as `mm[3]`
        self.warned = False
        self.configs = 0  # of the operators before the one that is read

    def wrong(self, why: str) -> RequestError:
        return RequestError(f"{', '.join(filter(None, (str(self.path), self.place)))}: {why}")

    def file(self, root: Any) -> TuneFile:
        sections = {} if root is None else self.mapping(root, "the file", "operators and their configurations")
        archs = sections.pop(_ARCHS, None)
        by_arch = {} if archs is None else self.mapping(archs, f"`{_ARCHS}`", "architectures, each with operators")
        return TuneFile(
            self.path,
            self.operators(sections, ""),
            {
                arch: self.operators(
                    self.mapping(section, f"architecture {format_value(arch)}", "operators"), f"{_ARCHS}.{arch}."
                )
                for arch, section in by_arch.items()
            },
        )

    def operators(self, section: Mapping[str, Any], prefix: str) -> Operators:
        return {op: self.operator(op, value, f"{prefix}{op}") for op, value in section.items()}

    def operator(self, op: str, value: Any, place: str) -> tuple[TuneEntry, ...]:
        entries: list[TuneEntry] = []
        self.place = ""
        for index, each in enumerate(self.items(value, f"operator {format_value(op)}", "a list of configurations")):
            self.place = f"{format_text(place, 100)}[{index}]"
            entry = self.mapping(each, f"a configuration of {format_value(op)}", "META, num_warps, …")
            entries += self.generated(op, entry, len(entries)) if "gen" in entry else [self.literal(entry)]
            self.limit(op, len(entries))
        self.place = ""
        self.configs += len(entries)
        return tuple(entries)

    def limit(self, op: str, configs: int) -> None:
        if configs > _MAX_CONFIGS:
            count = format_value(configs)  # of any length
            raise self.wrong(
                f"operator {format_value(op)} has {count} configurations or more; the limit is {_MAX_CONFIGS}."
            )
        if self.configs + configs > _MAX_CONFIGS_IN_FILE:
            raise self.wrong(f"the file has more than {_MAX_CONFIGS_IN_FILE} configurations.")

    # Literal ones

    def literal(self, entry: Mapping[str, Any]) -> TuneEntry:
        meta = self.meta(self.of(entry, "META"))
        return self.entry(meta, {name: self.option(name, each) for name, each in entry.items() if name != "META"})

    def meta(self, value: Any) -> dict[str, Scalar]:
        named = self.mapping(value, "META", "the kernel's parameters")
        if len(named) > _MAX_PARAMETERS:
            raise self.wrong(f"META has more than {_MAX_PARAMETERS} parameters.")
        return {self.parameter(name): self.plain(name, each) for name, each in named.items()}

    def entry(self, meta: Mapping[str, Scalar], options: Mapping[str, Scalar]) -> TuneEntry:
        numbers = {name: value for name, value in options.items() if isinstance(value, int) and name in _LEAST}
        others = {name: value for name, value in options.items() if name not in _LEAST}
        return TuneEntry(MappingProxyType(dict(meta)), **numbers, others=MappingProxyType(others), place=self.place)

    # Generated ones

    def generated(self, op: str, entry: Mapping[str, Any], known: int) -> list[TuneEntry]:
        if entry["gen"] is not True:
            raise self.wrong(f"`gen` is {_shown(entry['gen'])}; expected true, or no `gen`.")
        lists = {name: value for name, value in entry.items() if name not in ("gen", "param_map")}
        param_map = self.mapping(self.of(entry, "param_map"), "`param_map`", "META, num_warps, …")
        source = self.of(param_map, "META")
        options = {name: value for name, value in param_map.items() if name != "META"}
        whole = not isinstance(source, dict)  # META is chosen as a whole, not each of its parameters
        named = {"META": source} if whole else self.mapping(source, "META", "the kernel's parameters")
        if len(named) + len(options) > _MAX_PARAMETERS:
            raise self.wrong(f"`param_map` has more than {_MAX_PARAMETERS} parameters.")
        # Counted before anything is made of them.
        parts = [self.choices(name, value, lists) for name, value in named.items()]
        settings = [self.choices(name, value, lists) for name, value in options.items()]
        self.limit(op, known + math.prod(map(len, [*parts, *settings])))
        self.warn_of_unused(lists)
        metas = [
            [self.meta(each) if whole else {self.parameter(name): self.plain(name, each)} for each in part]
            for name, part in zip(named, parts, strict=True)
        ]
        values = [
            [self.option(name, each) for each in setting] for name, setting in zip(options, settings, strict=True)
        ]
        entries = []
        for chosen in itertools.product(*metas):
            meta = {name: value for part in chosen for name, value in part.items()}
            for numbers in itertools.product(*values):
                entries.append(self.entry(meta, dict(zip(options, numbers, strict=True))))
        return entries

    def warn_of_unused(self, lists: Mapping[str, Any]) -> None:
        """Warn, once a file, of a value beside `param_map`: it has no effect, as in FlagGems."""
        name = next((name for name, value in lists.items() if not isinstance(value, list)), None)
        if name is not None and not self.warned:
            self.warned = True
            warn_once(
                _log,
                f"{self.path}, {self.place}: `{name}: {_shown(lists[name])}` beside `param_map` has no effect. "
                "Put what every configuration has into `param_map`.",
            )

    def choices(self, name: str, value: Any, lists: Mapping[str, Any]) -> list[Any]:
        """What a parameter may be: the list of that name, a list in its place, or one value."""
        if isinstance(value, str):
            if value not in lists:
                there = ", ".join(lists) or "none"
                raise self.wrong(f"`{name}` names the list {_shown(value)}, which is not found; found {there}.")
            value = lists[value]
        elif not isinstance(value, list):
            return [value]
        choices = self.items(value, f"`{name}`", "a list of values")
        if not choices:
            raise self.wrong(f"the list for `{name}` is empty; expected at least one value.")
        return choices

    # Values

    def parameter(self, name: str) -> str:
        if not name.isidentifier():
            raise self.wrong(f"META has {format_value(name)}; expected the name of a parameter.")
        if name in _LEAST:
            raise self.wrong(f"`{name}` is in META; it belongs beside META.")
        return name

    def option(self, name: str, value: Any) -> Any:
        value = self.plain(name, value)
        if name in _LEAST:
            least, powers = _LEAST[name]
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
            # Triton refuses to compile for another number of warps.
            if not whole or (powers and value & (value - 1)):
                expected = f"a power of two from {least}" if powers else f"a whole number from {least}"
                raise self.wrong(f"`{name}` is {_shown(value)}; expected {expected}.")
        return value

    def plain(self, name: str, value: Any) -> Any:
        if value is not None and not isinstance(value, (bool, int, float, str)):
            raise self.wrong(f"`{name}` is {_shown(value)}; expected a number, true, false or text.")
        return value

    def mapping(self, value: Any, what: str, of: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong(f"{what} is {_shown(value)}; expected a mapping of {of}.")
        return {str(name): each for name, each in value.items()}  # YAML reads `9.0` and `on` as values

    def items(self, value: Any, what: str, expected: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.wrong(f"{what} is {_shown(value)}; expected {expected}.")
        return value

    def of(self, mapping: Mapping[str, Any], name: str) -> Any:
        if name not in mapping:
            there = ", ".join(map(format_value, mapping)) or "nothing"
            raise self.wrong(f"`{name}` is missing; found {there[:200]}.")
        return mapping[name]


def _shown(value: Any) -> str:
    kinds: dict[type, str] = {list: "a list", dict: "a mapping"}
    return kinds.get(type(value)) or format_value(value)


#: The least that each number of a configuration may be, and whether it must be a power of two.
_LEAST: Mapping[str, tuple[int, bool]] = {"num_warps": (1, True), "num_stages": (0, False), "num_ctas": (1, False)}
