"""A file that declares backends is checked before it is believed; the schema that ships says the same."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from declared_backends import FIVE, QUERY

from kernels.backends import interface_check
from kernels.backends.plugins import json_schema
from kernels.backends.plugins.json_backend import (
    SCHEMA_PATH,
    Declaration,
    DeclarationError,
    load_backends,
    read_declarations,
    schema,
)
from kernels.errors import RequestError


@pytest.fixture
def write(tmp_path: Path) -> Callable[[object], Path]:
    def write(content: object) -> Path:
        file = tmp_path / "acme.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return file

    return write


# What a file may say, judged alike by the reader and by the schema that ships

GOOD: dict[str, Any] = {
    "no backend": {},
    "an editor's schema": {"$schema": "backends.schema.json", "acme": FIVE},
    "KernelAgent's five fields": {"acme": FIVE},
    "nothing but a name": {"cuda": {}},
    "two backends": {"acme": FIVE, "acme_two": {**FIVE, "name": "acme_two"}},
    "a literal version": {"acme": {"version": "1.2"}},
    "a release candidate": {"acme": {"version": "8.2.RC1"}},
    "a command's version": {"acme": {"version": QUERY}},
    "Torch's version": {"acme": {"version": {"torch": "npu.get_device_properties(0).version"}}},
    "literal architectures": {"acme": {"archs": ["a100x", "9.0", "gfx942-b_1"]}},
    "no architectures": {"acme": {"archs": []}},
    "a command's architectures": {"acme": {"archs": QUERY}},
    "Torch's architectures": {"acme": {"archs": {"torch": "acme.archs(kind='short', index=0)"}}},
    "a module": {"acme": {"detect": {"import": "torch_acme"}}},
    "a library": {"acme": {"detect": {"library": "acmert"}}},
    "a library's path": {"acme": {"detect": {"library": "/opt/acme/lib/libacmert.so.1"}}},
    "a command": {"acme": {"detect": {"command": ["/opt/acme/bin/acme-smi"]}}},
    "dependencies": {
        "acme": {
            "python_depends": {"a": None, "b": "b.c", "c-d": {"package": "c", "module": None}, "e": {"package": "e"}}
        }
    },
    "flags and texts": {"acme": {"experimental": False, "vendor": "", "variant_token": "ac", "dispatch_key": "XPU"}},
    **{rule: {"acme": {"arch_rule": rule}} for rule in get_args(json_schema.ArchRule)},
}

# Content, the path in the error, and what else the error says.
BAD: dict[str, tuple[Any, str, str]] = {
    "a list": ([], "the file", r"is \[\]; allowed is an object: backend name to fields"),
    "text": ("acme", "the file", "is 'acme'; allowed is an object"),
    "nothing": (None, "the file", "is null; allowed is an object"),
    "a name with a dash": ({"a-b": {}}, "the file", "has the key 'a-b'; allowed is a name of lower-case letters"),
    "an empty name": ({"": {}}, "the file", "has the key ''"),
    "fields that are text": ({"acme": "acme"}, "`acme`", "is 'acme'; allowed is an object of fields"),
    "an unknown field": (
        {"acme": {"colour": "red"}},
        "`acme.colour`",
        "is 'red', an unknown key; allowed are name, dev",
    ),
    "a schema that is no text": ({"$schema": 1}, "`$schema`", "is 1; allowed is the address"),
    "a field that is null": ({"acme": {"vendor": None}}, "`acme.vendor`", "is null; allowed is text"),
    "a number for text": ({"acme": {"guidance_block": 7}}, "`acme.guidance_block`", "is 7; allowed is text"),
    "text for a flag": ({"acme": {"experimental": "yes"}}, "`acme.experimental`", "'yes'; allowed is true or false"),
    "a number for a flag": ({"acme": {"experimental": 1}}, "`acme.experimental`", "is 1; allowed is true or false"),
    "a device's number": (
        {"acme": {"device_string": "acme:0"}},
        "`acme.device_string`",
        "allowed is Torch's name of a",
    ),
    "a token with a digit": (
        {"acme": {"variant_token": "acme2"}},
        "`acme.variant_token`",
        "without a digit at the end",
    ),
    "a token with a dash": ({"acme": {"variant_token": "ac-me"}}, "`acme.variant_token`", "without a dash"),
    "a rule of its own": (
        {"acme": {"arch_rule": "newer"}},
        "`acme.arch_rule`",
        "is 'newer'; allowed is one of exact, p",
    ),
    "a rule that is a list": ({"acme": {"arch_rule": ["any"]}}, "`acme.arch_rule`", r'is \["any"\]; allowed is one of'),
    "a dispatch key": (
        {"acme": {"dispatch_key": "Private Use"}},
        "`acme.dispatch_key`",
        "one of Torch's dispatch keys",
    ),
    "one number": ({"acme": {"version": "7"}}, "`acme.version`", "is '7'; allowed is a version: major.minor"),
    "a version's number": ({"acme": {"version": 1.2}}, "`acme.version`", r"is 1.2; allowed is \"1.2\", \{\"command\""),
    "a list for a version": ({"acme": {"version": ["1.2"]}}, "`acme.version`", r'is \["1.2"\]; allowed is'),
    "an empty answer": ({"acme": {"version": {}}}, "`acme.version`", r"is \{\}; allowed is"),
    "a shell's line": (
        {"acme": {"version": {"command": "acme-smi -q", "pattern": "(.)(.)"}}},
        "`acme.version.command`",
        "is 'acme-smi -q'; allowed is a program and its arguments",
    ),
    "no pattern": ({"acme": {"version": {"command": ["a"]}}}, "`acme.version`", "without `pattern`; allowed is"),
    "a pattern that is a number": (
        {"acme": {"version": {"command": ["a"], "pattern": 7}}},
        "`acme.version.pattern`",
        "is 7; allowed is a Python reg",
    ),
    "an endless pattern": (
        {"acme": {"archs": {"command": ["a"], "pattern": "(" + "a" * 600 + ")"}}},
        "`acme.archs.pattern`",
        "with groups of at most 500 characters",
    ),
    "both ways to ask": (
        {"acme": {"version": {**QUERY, "torch": "acme.v"}}},
        "`acme.version.torch`",
        "an unknown key; allowed are comm",
    ),
    "no program": ({"acme": {"detect": {"command": []}}}, "`acme.detect.command`", "has 0 items; allowed is a program"),
    "many arguments": (
        {"acme": {"detect": {"command": ["a"] * 99}}},
        "`acme.detect.command`",
        "has 99 items.*at most 64",
    ),
    "a number in a command": (
        {"acme": {"detect": {"command": ["a", 1]}}},
        "`acme.detect.command[1]`",
        "is 1; allowed is",
    ),
    "a zero byte": ({"acme": {"detect": {"command": ["a\0"]}}}, "`acme.detect.command[0]`", "without a zero byte"),
    "a module below another": ({"acme": {"detect": {"import": "a.b"}}}, "`acme.detect.import`", "a top-level module"),
    "a library with a path": ({"acme": {"detect": {"library": "../x"}}}, "`acme.detect.library`", "a library's name"),
    "another way to detect": ({"acme": {"detect": {"file": "x"}}}, "`acme.detect`", r'allowed is \{"import": "…"\}'),
    "an architecture with a plus": (
        {"acme": {"archs": ["a", "b+c"]}},
        "`acme.archs[1]`",
        r"is 'b\+c'; allowed is an arch",
    ),
    "many devices": ({"acme": {"archs": ["a"] * 1025}}, "`acme.archs`", "has 1025 items; .* at most 1024"),
    "source lines that are one": (
        {"acme": {"cuda_hacks_to_strip": "x"}},
        "`acme.cuda_hacks_to_strip`",
        "is 'x'; allowed is a list of source lines",
    ),
    "an empty source line": ({"acme": {"cuda_hacks_to_strip": [""]}}, "`acme.cuda_hacks_to_strip[0]`", "a source line"),
    "a list of dependencies": (
        {"acme": {"python_depends": ["a"]}},
        "`acme.python_depends`",
        "an object: dependency name",
    ),
    "a dependency's name": ({"acme": {"python_depends": {"a b": None}}}, "`acme.python_depends`", "has the key 'a b'"),
    "a dependency without package": (
        {"acme": {"python_depends": {"a": {"module": "a"}}}},
        "`acme.python_depends.a`",
        "without `package`",
    ),
    "a dependency's module": (
        {"acme": {"python_depends": {"a": {"package": "a", "module": 7}}}},
        "`acme.python_depends.a.module`",
        "is 7; allowed",
    ),
    "an unknown key of a dependency": (
        {"acme": {"python_depends": {"a": {"package": "a", "pin": "1"}}}},
        "`acme.python_depends.a.pin`",
        "an unknown key",
    ),
}

# What no schema can say.
BAD_MEANINGS: dict[str, tuple[Any, str, str]] = {
    "another name": ({"acme": {"name": "ajax"}}, "`acme.name`", "is 'ajax'; allowed is 'acme', the key, or nothing"),
    "a broken pattern": (
        {"acme": {"version": {"command": ["a"], "pattern": "(1"}}},
        "`acme.version.pattern`",
        "is '(1', no regular expression: m",
    ),
    "a pattern beyond all bounds": (
        {"acme": {"archs": {"command": ["a"], "pattern": "(a){99999999999}"}}},
        "`acme.archs.pattern`",
        "no regular expression",
    ),
    "a pattern without groups": (
        {"acme": {"archs": {"command": ["a"], "pattern": "a+"}}},
        "`acme.archs.pattern`",
        "with 0 groups; allowed are 1",
    ),
    "a pattern with three": (
        {"acme": {"version": {"command": ["a"], "pattern": "(1)(2)(3)"}}},
        "`acme.version.pattern`",
        "allowed are 1 or 2:",
    ),
    "a pattern with flags": (
        {"acme": {"archs": {"command": ["a"], "pattern": "(?i)(a)"}}},
        "`acme.archs.pattern`",
        "flags in it, such as (?i)",
    ),
    "a path that begins above torch": (
        {"acme": {"archs": {"torch": "torch.acme.name"}}},
        "`acme.archs.torch`",
        "is 'torch.acme.name': the path begins below torch; leave `torch.` out",
    ),
    "a program in a folder nearby": (
        {"acme": {"version": {"command": ["./acme-smi"], "pattern": "(.+)"}}},
        "`acme.version.command[0]`",
        "an absolute path",
    ),
    "a program without a name": (
        {"acme": {"detect": {"command": [""]}}},
        "`acme.detect.command[0]`",
        "that PATH leads to",
    ),
    "Torch's private parts": (
        {"acme": {"version": {"torch": "acme.__class__.mro()"}}},
        "`acme.version.torch`",
        "'__class__' is private",
    ),
    "an expression": (
        {"acme": {"archs": {"torch": "acme.a + acme.b"}}},
        "`acme.archs.torch`",
        "neither a name nor a call",
    ),
    "architectures that cannot be compared": (
        {"acme": {"archs": ["1.2", "a3"], "arch_rule": "same-major-minor-not-newer"}},
        "`acme.archs[1]`",
        "is 'a3'; allowed with",
    ),
}


@pytest.fixture(scope="module")
def validator() -> Any:
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(schema())
    return jsonschema.Draft202012Validator(schema())


@pytest.mark.parametrize("case", GOOD)
def test_what_a_file_may_say_is_read(case: str, write: Any, validator: Any) -> None:
    names = [name for name in GOOD[case] if name != "$schema"]
    assert list(read_declarations(write(GOOD[case]))) == names
    assert validator.is_valid(GOOD[case])


@pytest.mark.parametrize("case", {**BAD, **BAD_MEANINGS})
def test_what_it_may_not_say_is_named_with_file_path_and_value(case: str, write: Any, validator: Any) -> None:
    content, path, says = {**BAD, **BAD_MEANINGS}[case]
    file = write(json.dumps(content))
    with pytest.raises(DeclarationError) as caught:
        read_declarations(file)
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"{file}: {path} ")
    assert re.search(says if case in BAD else re.escape(says), first)
    assert validator.is_valid(content) == (case in BAD_MEANINGS)


def test_every_error_of_a_file_is_told_up_to_ten(write: Any) -> None:
    with pytest.raises(RequestError) as caught:
        read_declarations(write({"acme": {"vendor": 1}, "ajax": {"version": 2}}))
    assert [line.split()[1] for line in str(caught.value).splitlines()] == ["`acme.vendor`", "`ajax.version`"]
    with pytest.raises(RequestError) as caught:
        read_declarations(write({f"acme_{letter}": 1 for letter in "abcdefghijklmnop"}))
    assert str(caught.value).splitlines()[10:] == [f"{write({})}: and more."]


def test_a_file_with_one_error_tells_which_backends_it_would_have_brought(write: Any) -> None:
    with pytest.raises(DeclarationError) as caught:
        read_declarations(write({"acme": {"vendor": 1}, "ajax": {}, "no-name": {}}))
    assert caught.value.names == ("acme", "ajax")


def deep(levels: int) -> str:
    return '{"acme":' * levels + "1" + "}" * levels


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON: Expecting value at line 1, column 1"),
        ('{"acme": {\n  "vendor": "A",\n}}', r"not JSON: .* at line 3, column 1|not JSON: .* at line 2, column 16"),
        ('{"acme": {}, "acme": {}}', "the file has the key 'acme' twice"),
        ('{"acme": {"vendor": "a", "vendor": "b"}}', "`acme` has the key 'vendor' twice; allowed is once"),
        ('{"acme": {"version": {"torch": "a", "torch": "b"}}}', "`acme.version` has the key 'torch' twice"),
        ('{"acme": [{"a": 1, "a": 2}]}', r"`acme\[0\]` has the key 'a' twice"),
        ('{"acme": {"experimental": NaN}}', "not JSON: NaN is no number"),
        ('{"acme": {"experimental": ' + "9" * 5000 + "}}", "a number has more than 1000 digits"),
        ('{"acme": {"vendor": "\\ud800"}}', r"`acme.vendor` is '\\ud800'; half a surrogate pair is no text"),
        ('{"acme\\ud800": {}}', r"the file has the key 'acme\\ud800'; half a surrogate pair is no text"),
        ('{"acme": {"\\u001b[31m": 1}}', r"`acme.'\\x1b\[31m'` is 1, an unknown key"),
        ('{"acme": {"vendor": ["\\u009b"]}}', r'`acme.vendor` is \["\\x9b"\]; allowed is text'),
        (
            '{"' + "k" * 500_000 + '": {' + ",".join(f'"{n}": 1' for n in range(30_000)) + "}}",
            "has the key 'kkkk.*kkk…;",
        ),
        (deep(20), "`acme.acme` is .* an unknown key"),
        (deep(100_000), "its JSON was not read: it is nested too deep, with more than 32"),
        ('{"acme": "' + "a" * 2**20 + '"}', "it has more than 1048576 bytes"),
        ('{"acme": {' + ",".join(f'"k{n}": 1' for n in range(50_000)) + "}}", "`acme.k0` is 1, an unknown key"),
        ("{" + ",".join(f'"k{n}": 1' for n in range(60_000)) + ', "k1": 1}', "has the key 'k1' twice"),
    ],
    ids=lambda value: value[:30],
)
def test_a_file_that_is_no_such_json_is_an_error(text: str, says: str, write: Any) -> None:
    file = write(text)
    with pytest.raises(DeclarationError, match=says) as caught:
        read_declarations(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert len(str(caught.value)) < 8000


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    file = tmp_path / "acme.json"
    file.write_bytes(b'\xef\xbb\xbf{"acme": {}}')
    assert list(read_declarations(file)) == ["acme"]


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"none\.json: the file .* cannot be read: No such file"):
        load_backends(tmp_path / "none.json")
    with pytest.raises(DeclarationError, match="it is no regular file"):
        load_backends(tmp_path)
    with pytest.raises(DeclarationError, match=r"cannot be read: .*null"):
        load_backends("acme\0.json")
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'{"acme": {"vendor": "\xe9"}}')
    with pytest.raises(DeclarationError, match="not JSON: byte 21 is no UTF-8"):
        load_backends(latin)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DeclarationError, match="it is no regular file"):
        load_backends(tmp_path / "pipe")


# The schema


def test_the_schema_has_the_fields_that_are_read_and_no_others() -> None:
    definitions = schema()["$defs"]
    generated = msgspec.json.schema(Declaration)["$defs"]
    assert set(definitions["backend"]["properties"]) == set(generated["Declaration"]["properties"])
    assert set(definitions["backend"]["properties"]["arch_rule"]["enum"]) == set(get_args(json_schema.ArchRule))
    query = {*definitions["command_answer"]["properties"], *definitions["torch_answer"]["properties"]}
    assert query == set(generated["Query"]["properties"])
    detect = [name for form in definitions["detect"]["anyOf"] for name in form["properties"]]
    assert set(detect) == set(generated["Detect"]["properties"])
    dependency = definitions["python_dependency"]["anyOf"][2]
    assert set(dependency["properties"]) == set(generated["DeclaredDependency"]["properties"])


def test_the_schema_spells_names_as_the_registry_does() -> None:
    properties = schema()["$defs"]["backend"]["properties"]
    spelled = {"name": "name", "device_string": "device_type", "variant_token": "token", "dispatch_key": "dispatch_key"}
    for field, member in spelled.items():
        assert properties[field]["pattern"] == f"^{interface_check.NAME_PATTERNS[member][0]}$"


def test_every_field_of_the_schema_is_described() -> None:
    definitions = schema()["$defs"]
    for name, field in definitions["backend"]["properties"].items():
        described = {**definitions.get(field.get("$ref", "").rpartition("/")[2], {}), **field}
        assert described["title"], name
        assert described["description"], name
    assert json.loads(SCHEMA_PATH.read_text(encoding="utf-8")) == schema()


def test_a_file_declares_no_more_backends_than_can_be_compared(tmp_path: Path) -> None:
    file = tmp_path / "many.json"
    file.write_text(json.dumps({f"acme_{number}_x": {"device_string": "acme"} for number in range(101)}))
    with pytest.raises(DeclarationError, match="the file declares 101 backends; allowed are 100 or fewer"):
        read_declarations(file)
