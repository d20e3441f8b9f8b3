"""A YAML file of an untrusted repository, as plain values that know their lines.

The file's events are counted before nodes are composed from them, and the values of an anchor as often as they are
used: neither nesting nor anchors make a small file large. Tags make no objects; a key is the text that was written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.errors import RequestError
from kernels.support.files import FileTooLarge, NotRegularFile, read_bounded
from kernels.support.formatting import format_text, format_value

__all__ = ["Node", "Scalar", "check_events", "read_yaml", "wrong"]

#: A value that contains no other.
Scalar = bool | int | float | str | None

# The largest `tune_configs.yaml` of FlagGems has some 25 KB, 2,000 values and five levels.
_MAX_BYTES = 1 << 20
_MAX_NODES = 100_000
_MAX_DEPTH = 20
_MAX_TEXT = 1000

_PREFIX = "tag:yaml.org,2002:"
#: What a plain scalar may be other than text.
_NOT_TEXT = frozenset({"bool", "float", "int", "null"})


@dataclass(frozen=True)
class Node:
    """A value in a YAML file.

    Attributes:
        value: A number, truth value, text or None; a list of nodes; or a dictionary of them by the key's text.
        line: Where it begins, from 1.
        size: How many values it holds, itself included, and those of an anchor as often as they are used.
    """

    value: Scalar | list[Node] | dict[str, Node]
    line: int
    size: int = 1

    def __str__(self) -> str:
        kinds: dict[type, str] = {list: "a list", dict: "a mapping"}
        return kinds.get(type(self.value)) or format_value(self.value)


def read_yaml(path: Path) -> Node | None:
    """The one value that a YAML file holds.

    Args:
        path: The file.

    Returns:
        The value, or None when the file is empty.

    Raises:
        RequestError: The file cannot be read, is too large or is not YAML; or it has a tag, a key twice, an anchor
            within itself, or more than one document. The message gives the file and the line.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "sizes.yaml")
        >>> _ = file.write_text("mm:\\n  block: 64\\n")
        >>> block = read_yaml(file).value["mm"].value["block"]
        >>> block.value, block.line
        (64, 2)
    """
    import yaml

    text = _text(path)
    # libyaml's parser, where PyYAML has it, is some ten times as fast.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # libyaml composes recursively in C: only what is known to be shallow is composed.
        check_events(yaml.parse(text, Loader=loader), path)
        root = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = format_text(": ".join(filter(None, (error.context, error.problem))))
        raise wrong(path, mark.line + 1 if mark else 1, f"this is not YAML: {why}.") from None
    except yaml.YAMLError as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        reason = getattr(error, "reason", None) or "it cannot be parsed"
        raise wrong(path, line, f"this is not YAML: {reason}.") from None
    return None if root is None else _Converter(path).node(root)


def wrong(path: Path, line: int, why: str) -> RequestError:
    """The error for a line of a file."""
    return RequestError(f"{path}, line {line}: {why}")


def _text(path: Path) -> str:
    try:
        data = read_bounded(path, _MAX_BYTES)
    except FileNotFoundError:
        raise RequestError(f"{path} does not exist; expected a YAML file.") from None
    except NotRegularFile:
        raise RequestError(f"{path} is not a file; expected a YAML file.") from None
    except FileTooLarge:
        raise RequestError(f"{path} has more than {_MAX_BYTES} bytes, the limit for a YAML file.") from None
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}.") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise wrong(path, line, f"the byte 0x{data[error.start]:02x} is not UTF-8.") from None


def check_events(events: Any, path: Path) -> None:
    """Check what must hold before a file is composed: its size, its depth, no tags and one document."""
    import yaml

    documents = nodes = depth = 0
    for event in events:
        line = event.start_mark.line + 1
        documents += isinstance(event, yaml.DocumentStartEvent)
        if documents > 1:
            raise wrong(path, line, "a second document begins; expected one.")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise wrong(path, line, f"values are nested more than {_MAX_DEPTH} deep.")
        if isinstance(event, yaml.NodeEvent):
            nodes += 1
            if nodes > _MAX_NODES:
                raise wrong(path, line, f"the file has more than {_MAX_NODES} values.")
            if getattr(event, "tag", None) is not None:
                raise wrong(path, line, f"the tag {format_value(event.tag)} is not allowed; expected plain values.")


class _Converter:
    """Turns composed nodes into plain values, and counts them."""

    def __init__(self, path: Path) -> None:
        import yaml

        self.constructor: Any = yaml.constructor.SafeConstructor()
        self.path = path
        self.size = 0
        self.nodes: dict[int, Node | None] = {}  # by the composed node's id; None while its values are converted

    def node(self, composed: Any, parent: Any = None) -> Node:
        if id(composed) in self.nodes:  # an alias, whose own line the parent is nearest to
            node = self.nodes[id(composed)]
            if node is None:
                raise self.wrong(parent, "an alias (`*name`) is inside the value that its anchor (`&name`) names.")
            self.add(node.size, parent)
            return node
        self.nodes[id(composed)] = None
        before = self.size
        self.add(1, composed)
        value: Scalar | list[Node] | dict[str, Node]
        if composed.id == "scalar":
            value = self.scalar(composed)
        elif composed.id == "sequence":
            value = [self.node(each, composed) for each in composed.value]
        else:
            value = self.mapping(composed)
        node = self.nodes[id(composed)] = Node(value, composed.start_mark.line + 1, self.size - before)
        return node

    def add(self, size: int, composed: Any) -> None:
        self.size += size
        if self.size > _MAX_NODES:
            why = f"the file has more than {_MAX_NODES} values; those of an anchor count as often as they are used."
            raise self.wrong(composed, why)

    def mapping(self, composed: Any) -> dict[str, Node]:
        lines: dict[str, int] = {}
        entries: dict[str, Node] = {}
        inherited: dict[str, Node] = {}
        for key, value in composed.value:
            if key.id != "scalar":
                raise self.wrong(key, "a key is a list or a mapping; expected text.")
            self.add(1, key)
            name = self.checked(key)
            if name in lines:
                raise self.wrong(key, f"the key {format_value(name)} is already in line {lines[name]}.")
            lines[name] = key.start_mark.line + 1
            if key.tag == _PREFIX + "merge":
                inherited = self.merged(self.node(value, key), key)
            else:
                entries[name] = self.node(value, key)
        return {**inherited, **entries}

    def merged(self, node: Node, key: Any) -> dict[str, Node]:
        """What `<<` adds to a mapping; of several, the first that has a key (https://yaml.org/type/merge.html)."""
        sources = node.value if isinstance(node.value, list) else [node]
        entries: dict[str, Node] = {}
        for each in reversed(sources or [node]):
            if not isinstance(each.value, dict):
                raise self.wrong(key, f"`<<` is {node}; expected a mapping, or a list of mappings.")
            entries.update(each.value)
        return entries

    def scalar(self, composed: Any) -> Scalar:
        """A scalar's value; YAML 1.1, as PyYAML's loaders read it."""
        text, tag = self.checked(composed), composed.tag.removeprefix(_PREFIX)
        if tag == "null" and not text:
            raise self.wrong(composed, "a value is missing; write `null` for none.")
        if tag == "timestamp":
            raise self.wrong(composed, f"{text} is a date; expected a number, true, false or text.")
        if tag not in _NOT_TEXT:
            return text
        try:
            value: Scalar = self.constructor.construct_object(composed)
        except (ValueError, OverflowError):  # such as `0b_`, or base 60 beyond what a float holds
            raise self.wrong(composed, f"{text!r} is not a number.") from None
        return value

    def checked(self, composed: Any) -> str:
        text: str = composed.value
        if len(text) > _MAX_TEXT:
            raise self.wrong(composed, f"{format_value(text)} has more than {_MAX_TEXT} characters.")
        return text

    def wrong(self, composed: Any, why: str) -> RequestError:
        return wrong(self.path, composed.start_mark.line + 1, why)
