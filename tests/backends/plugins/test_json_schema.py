"""A file that declares backends is checked before it is believed; the schema that ships says the same."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from declared_backends import FIVE, QUERY
from logged import warned

from kernels.backends import interface_check
from kernels.backends.plugins import json_schema
from kernels.backends.plugins.json_backend import load_backends
from kernels.backends.plugins.json_schema import SCHEMA_PATH, Declaration, read_declarations
from kernels.backends.registration import DeclarationError
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
    "a device language": {"acme": {"device_string": "acme", "device_language": "sycl"}},
    "an unknown field": {"acme": {"colour": "red"}},
    **{rule: {"acme": {"arch_rule": rule}} for rule in get_args(json_schema.ArchRule)},
}

# Content, and what the error says.
BAD: dict[str, tuple[Any, str]] = {
    "a list": ([], "expected an object of backends by their names, got []."),
    "text": ("acme", "expected an object of backends by their names, got 'acme'."),
    "nothing": (None, "expected an object of backends by their names, got None."),
    "a name with a dash": (
        {"a-b": {}},
        "expected a backend's name of lower-case letters, digits and underscores, got 'a-b'.",
    ),
    "an empty name": ({"": {}}, "expected a backend's name of lower-case letters, digits and underscores, got ''."),
    "fields that are text": ({"acme": "acme"}, "Expected `object`, got `str` - at `$.acme`."),
    "a field that is null": ({"acme": {"vendor": None}}, "expected a value, got null - at `$.acme.vendor`."),
    "a number for text": (
        {"acme": {"guidance_block": 7}},
        "Expected `str | null`, got `int` - at `$.acme.guidance_block`.",
    ),
    "text for a flag": (
        {"acme": {"experimental": "yes"}},
        "Expected `bool | null`, got `str` - at `$.acme.experimental`.",
    ),
    "a number for a flag": (
        {"acme": {"experimental": 1}},
        "Expected `bool | null`, got `int` - at `$.acme.experimental`.",
    ),
    "a device's number": ({"acme": {"device_string": "acme:0"}}, "- at `$.acme.device_string`."),
    "a token with a digit": ({"acme": {"variant_token": "acme2"}}, "- at `$.acme.variant_token`."),
    "a token with a dash": ({"acme": {"variant_token": "ac-me"}}, "- at `$.acme.variant_token`."),
    "a rule of its own": ({"acme": {"arch_rule": "newer"}}, "Invalid enum value 'newer' - at `$.acme.arch_rule`."),
    "a rule that is a list": (
        {"acme": {"arch_rule": ["any"]}},
        "Expected `str | null`, got `array` - at `$.acme.arch_rule`.",
    ),
    "a device language": ({"acme": {"device_language": "SYCL 2020"}}, "- at `$.acme.device_language`."),
    "a dispatch key": ({"acme": {"dispatch_key": "Private Use"}}, "- at `$.acme.dispatch_key`."),
    "one number": ({"acme": {"version": "7"}}, "- at `$.acme.version`."),
    "a version's number": (
        {"acme": {"version": 1.2}},
        "Expected `str | object | null`, got `float` - at `$.acme.version`.",
    ),
    "a list for a version": (
        {"acme": {"version": ["1.2"]}},
        "Expected `str | object | null`, got `array` - at `$.acme.version`.",
    ),
    "an empty answer": (
        {"acme": {"version": {}}},
        'expected {"command": […], "pattern": "…"} or {"torch": "…"} - at `$.acme.version`.',
    ),
    "a shell's line": (
        {"acme": {"version": {"command": "acme-smi -q", "pattern": "(.)(.)"}}},
        "Expected `array`, got `str` - at `$.acme.version.command`.",
    ),
    "no pattern": (
        {"acme": {"version": {"command": ["a"]}}},
        'expected {"command": […], "pattern": "…"} or {"torch": "…"}, got no `pattern` - at `$.acme.version`.',
    ),
    "a pattern that is a number": (
        {"acme": {"version": {"command": ["a"], "pattern": 7}}},
        "Expected `str`, got `int` - at `$.acme.version.pattern`.",
    ),
    "an endless pattern": (
        {"acme": {"archs": {"command": ["a"], "pattern": "(" + "a" * 600 + ")"}}},
        "Expected `str` of length <= 500 - at `$.acme.archs.pattern`.",
    ),
    "both ways to ask": (
        {"acme": {"version": {**QUERY, "torch": "acme.v"}}},
        'expected {"command": […], "pattern": "…"} or {"torch": "…"} - at `$.acme.version`.',
    ),
    "no program": (
        {"acme": {"detect": {"command": []}}},
        "Expected `array` of length >= 1 - at `$.acme.detect.command`.",
    ),
    "many arguments": (
        {"acme": {"detect": {"command": ["a"] * 99}}},
        "Expected `array` of length <= 64 - at `$.acme.detect.command`.",
    ),
    "a number in a command": (
        {"acme": {"detect": {"command": ["a", 1]}}},
        "Expected `str`, got `int` - at `$.acme.detect.command[1]`.",
    ),
    "a zero byte": ({"acme": {"detect": {"command": ["a\0"]}}}, "- at `$.acme.detect.command[0]`."),
    "a module below another": ({"acme": {"detect": {"import": "a.b"}}}, "- at `$.acme.detect.import`."),
    "a library with a path": ({"acme": {"detect": {"library": "../x"}}}, "- at `$.acme.detect.library`."),
    "another way to detect": (
        {"acme": {"detect": {"file": "x"}}},
        "Object contains unknown field `file` - at `$.acme.detect`.",
    ),
    "an architecture with a plus": ({"acme": {"archs": ["a", "b+c"]}}, "- at `$.acme.archs[1]`."),
    "many devices": ({"acme": {"archs": ["a"] * 1025}}, "Expected `array` of length <= 1024 - at `$.acme.archs`."),
    "source lines that are one": (
        {"acme": {"cuda_hacks_to_strip": "x"}},
        "Expected `array | null`, got `str` - at `$.acme.cuda_hacks_to_strip`.",
    ),
    "an empty source line": (
        {"acme": {"cuda_hacks_to_strip": [""]}},
        "Expected `str` of length >= 1 - at `$.acme.cuda_hacks_to_strip[0]`.",
    ),
    "a list of dependencies": (
        {"acme": {"python_depends": ["a"]}},
        "Expected `object | null`, got `array` - at `$.acme.python_depends`.",
    ),
    "a dependency's name": ({"acme": {"python_depends": {"a b": None}}}, "- at `key` in `$.acme.python_depends`."),
    "a dependency without package": (
        {"acme": {"python_depends": {"a": {"module": "a"}}}},
        "Object missing required field `package` - at `$.acme.python_depends[...]`.",
    ),
    "a dependency's module": (
        {"acme": {"python_depends": {"a": {"package": "a", "module": 7}}}},
        "Expected `str | null`, got `int` - at `$.acme.python_depends[...].module`.",
    ),
    "an unknown key of a dependency": (
        {"acme": {"python_depends": {"a": {"package": "a", "pin": "1"}}}},
        "Object contains unknown field `pin` - at `$.acme.python_depends[...]`.",
    ),
}

# What no schema can say.
BAD_MEANINGS: dict[str, tuple[Any, str]] = {
    "another name": ({"acme": {"name": "ajax"}}, "expected 'acme', the key, got 'ajax' - at `$.acme.name`."),
    "a broken pattern": (
        {"acme": {"version": {"command": ["a"], "pattern": "(1"}}},
        "`pattern`: not a regular expression: '(1': missing ), unterminated subpattern",
    ),
    "a pattern beyond all bounds": (
        {"acme": {"archs": {"command": ["a"], "pattern": "(a){99999999999}"}}},
        "`pattern`: not a regular expression: '(a){99999999999}': the repetition number is too large",
    ),
    "a pattern without groups": (
        {"acme": {"archs": {"command": ["a"], "pattern": "a+"}}},
        "`pattern`: expected 1 group with the answer, got 0; put ( ) around the part that counts: 'a+' - at "
        "`$.acme.archs`.",
    ),
    "a pattern with three": (
        {"acme": {"version": {"command": ["a"], "pattern": "(1)(2)(3)"}}},
        "`pattern`: expected 1 or 2 groups with the answer, got 3: '(1)(2)(3)' - at `$.acme.version`.",
    ),
    "a pattern with flags": (
        {"acme": {"archs": {"command": ["a"], "pattern": "(?i)(a)"}}},
        "`pattern`: flags such as (?i) are not supported, write [Aa]: '(?i)(a)' - at `$.acme.archs`.",
    ),
    "a path that begins above torch": (
        {"acme": {"archs": {"torch": "torch.acme.name"}}},
        "the path begins below torch; leave `torch.` out - at `$.acme.archs`.",
    ),
    "a program in a folder nearby": (
        {"acme": {"version": {"command": ["./acme-smi"], "pattern": "(.+)"}}},
        "`command`: expected a program on PATH or an absolute path, got './acme-smi' - at `$.acme.version`.",
    ),
    "a program without a name": (
        {"acme": {"detect": {"command": [""]}}},
        "`command`: expected a program on PATH or an absolute path, got '' - at `$.acme.detect`.",
    ),
    "Torch's private parts": (
        {"acme": {"version": {"torch": "acme.__class__.mro()"}}},
        "'__class__' is private - at `$.acme.version`.",
    ),
    "an expression": (
        {"acme": {"archs": {"torch": "acme.a + acme.b"}}},
        "'acme.a + acme.b' is neither a name nor a call - at `$.acme.archs`.",
    ),
    "architectures that cannot be compared": (
        {"acme": {"archs": ["1.2", "a3"], "arch_rule": "same-major-minor-not-newer"}},
        "`archs`: expected major.minor with arch_rule same-major-minor-not-newer, got 'a3' - at `$.acme`.",
    ),
}


def schema() -> Any:
    return json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))


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
    content, says = {**BAD, **BAD_MEANINGS}[case]
    file = write(json.dumps(content))
    with pytest.raises(DeclarationError) as caught:
        read_declarations(file)
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"{file}: ")
    assert says in first
    assert validator.is_valid(content) == (case in BAD_MEANINGS)


def test_the_first_error_of_each_backend_is_reported_up_to_ten(write: Any) -> None:
    with pytest.raises(RequestError) as caught:
        read_declarations(write({"acme": {"vendor": 1}, "ajax": {"version": 2}}))
    assert [line.split()[-1] for line in str(caught.value).splitlines()] == ["`$.acme.vendor`.", "`$.ajax.version`."]
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
        ('{"acme": {}, "acme": {}}', "an object has the same key twice: 'acme'"),
        ('{"acme": {"vendor": "a", "vendor": "b"}}', "same key twice: 'vendor'"),
        ('{"acme": {"version": {"torch": "a", "torch": "b"}}}', "same key twice: 'torch'"),
        ('{"acme": [{"a": 1, "a": 2}]}', "same key twice: 'a'"),
        ('{"acme": {"experimental": NaN}}', "not JSON: NaN is not a number"),
        ('{"acme": {"experimental": ' + "9" * 5000 + "}}", "not JSON: Exceeds the limit"),
        ('{"acme": {"vendor": "\\ud800"}}', "half of a surrogate pair is not text"),
        ('{"acme\\ud800": {}}', "half of a surrogate pair is not text"),
        ('{"acme": {"vendor": ["\\u009b"]}}', r"got `array` - at `\$.acme.vendor`"),
        (
            '{"' + "k" * 500_000 + '": {' + ",".join(f'"{n}": 1' for n in range(30_000)) + "}}",
            "got 'kkkk.*kkk…",
        ),
        (deep(100_000), "not JSON: it is nested too deep"),
        ('{"acme": "' + "a" * 2**20 + '"}', "cannot be read: more than 1048576 bytes"),
        ("{" + ",".join(f'"k{n}": 1' for n in range(60_000)) + ', "k1": 1}', "same key twice: 'k1'"),
    ],
    ids=lambda value: value[:30],
)
def test_a_file_that_is_no_such_json_is_an_error(text: str, says: str, write: Any) -> None:
    file = write(text)
    with pytest.raises(DeclarationError, match=says) as caught:
        read_declarations(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert len(str(caught.value)) < 8000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"acme": {"kernel_guidence": "", "colour": 1}}', r"'kernel_guidence' \(near: kernel_guidance\), 'colour'\."),
        ('{"acme": {"\\u001b[31m": 1}}', r"'\\x1b\[31m'\.$"),
        (deep(20), "fields of `acme` that are not known, and ignored: 'acme'"),
        ('{"acme": {' + ",".join(f'"k{n}": 1' for n in range(50_000)) + "}}", r"'k0', 'k1', .*'k9'\.$"),
    ],
)
def test_fields_that_are_not_known_are_mentioned_and_ignored(text: str, says: str, write: Any) -> None:
    with warned(says):
        [declared] = read_declarations(write(text)).values()
    assert declared == Declaration()


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    file = tmp_path / "acme.json"
    file.write_bytes(b'\xef\xbb\xbf{"acme": {}}')
    assert list(read_declarations(file)) == ["acme"]


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"none\.json: cannot be read: No such file"):
        load_backends(tmp_path / "none.json")
    with pytest.raises(DeclarationError, match="cannot be read: not a regular file"):
        load_backends(tmp_path)
    with pytest.raises(DeclarationError, match=r"cannot be read: .*null"):
        load_backends("acme\0.json")
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'{"acme": {"vendor": "\xe9"}}')
    with pytest.raises(DeclarationError, match="not JSON: byte 21 is not UTF-8"):
        load_backends(latin)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DeclarationError, match="cannot be read: not a regular file"):
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


def test_a_file_declares_no_more_backends_than_can_be_compared(tmp_path: Path) -> None:
    file = tmp_path / "many.json"
    file.write_text(json.dumps({f"acme_{number}_x": {"device_string": "acme"} for number in range(101)}))
    with pytest.raises(DeclarationError, match="expected at most 100 backends, got 101"):
        read_declarations(file)
