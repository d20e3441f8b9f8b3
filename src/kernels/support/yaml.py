"""A YAML file of a stranger, as plain values that know their lines.

The file's events are counted before anything is built from them: neither nesting nor anchors that stand for one another
can make a small file large. Tags make no objects; every key is the text that was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernels.errors import RequestError
from kernels.support.files import FileTooLarge, NotRegularFile, read_bounded

__all__ = ["Node", "Scalar", "quoted", "read_yaml", "wrong"]

#: What a value may be that holds no other.
Scalar = bool | int | float | str | None

# The largest `tune_configs.yaml` of FlagGems has some 25 KB, 2,000 values and five levels.
_MAX_BYTES = 1 << 20
_MAX_NODES = 100_000
_MAX_DEPTH = 20
_MAX_TEXT = 1000

_PREFIX = "tag:yaml.org,2002:"
#: What a plain value may be other than text.
_PLAIN = frozenset({"bool", "float", "int", "null"})


@dataclass(frozen=True)
class Node:
    """A value in a YAML file.

    Attributes:
        value: A number, truth value, text or None; a list of nodes; or a dictionary of them by the key's text.
        line: Where it begins, from 1.
        size: How many values it holds, itself counted, and those of an anchor as often as they are used.
    """

    value: Scalar | list[Node] | dict[str, Node]
    line: int
    size: int = 1

    def __str__(self) -> str:
        kinds: dict[type, str] = {list: "a list", dict: "a mapping"}
        return kinds.get(type(self.value)) or quoted(self.value)


def read_yaml(path: Path) -> Node | None:
    """The one value that a YAML file holds.

    Args:
        path: The file.

    Returns:
        The value, or None when the file holds none.

    Raises:
        RequestError: The file cannot be read, is too large, is no YAML, or holds what plain values need not: a tag, a
            key twice, an anchor within itself, more than one document. The message gives the file and the line.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "sizes.yaml")
        >>> _ = file.write_text("mm:\\n  block: 64\\n")
        >>> block = read_yaml(file).value["mm"].value["block"]
        >>> block.value, block.line
        (64, 2)
    """
    return _Reader(path).read(_text(path))


def wrong(path: Path, line: int, why: str) -> RequestError:
    """The error for what stands in a line of a file."""
    return RequestError(f"{path}, line {line}: {why}")


def quoted(value: object) -> str:
    """A value as a message shows it, however long it is."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def _text(path: Path) -> str:
    try:
        data = read_bounded(path, _MAX_BYTES)
    except (NotRegularFile, FileNotFoundError) as error:
        what = "not there" if isinstance(error, FileNotFoundError) else "not a file"
        raise RequestError(f"{path} is {what}; allowed is a YAML file.") from None
    except FileTooLarge:
        raise RequestError(
            f"{path} has more than {_MAX_BYTES} bytes, which is all that is read of a YAML file."
        ) from None
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}.") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise wrong(path, line, f"it holds the byte 0x{data[error.start]:02x}, which is no UTF-8.") from None


@dataclass
class _Open:
    """A list or mapping whose end has not come."""

    line: int
    anchor: str | None
    items: list[Node] | None  # None in a mapping
    entries: dict[str, Node] = field(default_factory=dict)
    key: str | None = None  # whose value comes next
    merging: bool = False  # whether that key is `<<`
    lines: dict[str, int] = field(default_factory=dict)  # of the keys
    merged: list[Node] = field(default_factory=list)
    size: int = 1


class _Reader:
    """Builds a file's value from its events, and counts."""

    def __init__(self, path: Path) -> None:
        import yaml

        self.yaml: Any = yaml
        self.resolver = self.yaml.resolver.Resolver()
        self.constructor = self.yaml.constructor.SafeConstructor()
        self.path = path
        self.count = 0
        self.open: list[_Open] = []
        self.anchors: dict[str, Node] = {}
        self.root: Node | None = None

    def read(self, text: str) -> Node | None:
        yaml = self.yaml
        # libyaml's parser, where PyYAML has it, is some ten times as fast.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            documents = 0
            for event in yaml.parse(text, Loader=loader):
                documents += isinstance(event, yaml.DocumentStartEvent)
                if documents > 1:
                    raise self.wrong(event, "a second document begins; allowed is one.")
                self.take(event)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise wrong(self.path, mark.line + 1 if mark else 1, f"this is no YAML: {error.problem}.") from None
        except yaml.YAMLError as error:
            line = text.count("\n", 0, getattr(error, "position", 0)) + 1
            reason = getattr(error, "reason", None) or "it cannot be parsed"
            raise wrong(self.path, line, f"this is no YAML: {reason}.") from None
        return self.root

    def take(self, event: Any) -> None:
        yaml = self.yaml
        if isinstance(event, yaml.AliasEvent):
            self.place(self.aliased(event), event)
        elif isinstance(event, yaml.ScalarEvent):
            self.check(event)
            plain = event.implicit[0]
            if self.expects_key():
                self.take_key(event, plain)
                return
            node = Node(self.scalar(event) if plain else event.value, event.start_mark.line + 1)
            self.anchor(event.anchor, node)
            self.place(node, event)
        elif isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent)):
            self.check(event)
            if self.expects_key():
                raise self.wrong(event, "a key is a list or a mapping; allowed is text.")
            if len(self.open) == _MAX_DEPTH:
                raise self.wrong(event, f"values are nested more than {_MAX_DEPTH} deep.")
            items: list[Node] | None = [] if isinstance(event, yaml.SequenceStartEvent) else None
            self.open.append(_Open(event.start_mark.line + 1, event.anchor, items))
        elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
            ended = self.open.pop()
            value = {**self.inherited(ended), **ended.entries} if ended.items is None else ended.items
            node = Node(value, ended.line, ended.size)
            self.anchor(ended.anchor, node)
            self.place(node, event)

    def check(self, event: Any) -> None:
        self.counted(1, event)
        if event.tag is not None:
            raise self.wrong(event, f"the tag {quoted(event.tag)} stands here; allowed are plain values.")

    def counted(self, nodes: int, event: Any) -> None:
        self.count += nodes
        if self.count > _MAX_NODES:
            raise self.wrong(
                event,
                f"the file has more than {_MAX_NODES} values, those of an anchor counted as often as they are used.",
            )

    def aliased(self, event: Any) -> Node:
        name = event.anchor
        if any(each.anchor == name for each in self.open):
            raise self.wrong(event, f"*{name[:80]} stands within what it stands for.")
        if name not in self.anchors:
            raise self.wrong(event, f"*{name[:80]} stands for nothing: there is no &{name[:80]} before it.")
        node = self.anchors[name]
        self.counted(node.size, event)
        if self.expects_key():
            raise self.wrong(event, f"the key is *{name[:80]}; allowed is text.")
        return node

    def anchor(self, name: str | None, node: Node) -> None:
        if name is not None:
            self.anchors[name] = node

    def expects_key(self) -> bool:
        return bool(self.open) and self.open[-1].items is None and self.open[-1].key is None

    def take_key(self, event: Any, plain: bool) -> None:
        mapping, line = self.open[-1], event.start_mark.line + 1
        key = event.value
        if len(key) > _MAX_TEXT:
            raise self.wrong(event, f"the key {quoted(key)} has more than {_MAX_TEXT} characters.")
        if key in mapping.lines:
            raise self.wrong(event, f"the key {quoted(key)} stands here again; it stands in line {mapping.lines[key]}.")
        mapping.lines[key] = line
        mapping.key = key
        mapping.merging = plain and key == "<<"
        self.anchor(event.anchor, Node(key, line))

    def place(self, node: Node, event: Any) -> None:
        if not self.open:
            self.root = node
            return
        parent = self.open[-1]
        parent.size += node.size
        if parent.items is not None:
            parent.items.append(node)
            return
        key, parent.key = parent.key, None
        assert key is not None
        if parent.merging:
            values = node.value if isinstance(node.value, list) else [node]
            if not values or not all(isinstance(each.value, dict) for each in values):
                raise self.wrong(event, f"`<<` is {node}; allowed is a mapping, or a list of mappings.")
            parent.merged = values
        else:
            parent.entries[key] = node

    def inherited(self, mapping: _Open) -> Mapping[str, Node]:
        """What `<<` brings into a mapping; of several, the first that has a key (https://yaml.org/type/merge.html)."""
        entries: dict[str, Node] = {}
        for node in reversed(mapping.merged):
            assert isinstance(node.value, dict)
            entries.update(node.value)
        return entries

    def scalar(self, event: Any) -> Scalar:
        """What a plain value means; YAML 1.1, as PyYAML's loaders have it."""
        text: str = event.value
        if len(text) > _MAX_TEXT:
            raise self.wrong(event, f"the value {quoted(text)} has more than {_MAX_TEXT} characters.")
        tag = self.resolver.resolve(self.yaml.ScalarNode, text, (True, False)).removeprefix(_PREFIX)
        if tag == "null" and not text:
            raise self.wrong(event, "there is no value; allowed is one, or `null`.")
        if tag == "timestamp":
            raise self.wrong(event, f"the value {text} is a date; allowed are numbers, truth values and text.")
        if tag not in _PLAIN:
            return text
        try:
            value: Scalar = self.constructor.construct_object(self.yaml.ScalarNode(_PREFIX + tag, text))
        except (ValueError, OverflowError):  # such as `0b_`, or base 60 beyond what a float holds
            raise self.wrong(event, f"the value {text!r} is no number.") from None
        return value

    def wrong(self, event: Any, why: str) -> RequestError:
        return wrong(self.path, event.start_mark.line + 1, why)
