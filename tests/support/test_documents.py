"""Documents that are hostile are errors, whatever a parser would make of them."""

from __future__ import annotations

import pytest

from kernels.support.documents import TooComplex, check_source, load_json, load_toml


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"[" * 1_000_000, "nested too deep"),
        (b'{"a":' * 1_000_000, "nested too deep"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "4300 digits"),
        (b"[NaN]", "NaN is not a number"),
        (b"[-Infinity]", "-Infinity is not a number"),
        (b"]", "Expecting value"),
        (b'["\xff"]', "can't decode byte"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_json_that_is_hostile_is_a_value_error(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        load_json(data)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a = " + "{a=" * 100_000,
        "a." * 100_000 + "a = 1",
        "'a' . " * 100_000 + "a = 1",
        '"\\" . x".' * 100_000 + "a = 1",
        "[" + "a." * 100_000 + "a]",
        "[[" + "a." * 100_000 + "a]]",
        "b = {" + "a." * 100_000 + "a = 1}",
        's = """"""\n' + "a." * 100_000 + "a = 1",
        "[" + ".".join("a" * 40) + "]",
    ],
    ids=lambda value: value[:12],
)
def test_toml_that_nests_is_refused(text: str) -> None:
    with pytest.raises(TooComplex, match="nested too deep"):
        load_toml(text)


@pytest.mark.parametrize(
    "text",
    [
        ".".join("a" * 30) + " = 1",
        "\n".join(f"[[a]]\nb.c = {number}.5" for number in range(100)),
        "a = [" + ",".join(["1.5"] * 100) + "]",
        "a = [" + ",".join(["{b.c=[1.5,'a.cu',\"b.cu\"]}"] * 100) + "]",
        "a = '" + "." * 5000 + "'",
    ],
    ids=lambda value: value[:12],
)
def test_usual_toml_is_read(text: str) -> None:
    assert load_toml(text)


def test_a_long_key_is_found_by_its_line() -> None:
    with pytest.raises(TooComplex, match="a key in line 3 has more than 32 parts"):
        load_toml("a = 1\n\n" + ".".join("a" * 40) + " = 1")


def test_python_with_too_many_signs_is_refused() -> None:
    check_source(b"name = 'text with words'\n" * 10_000)
    with pytest.raises(TooComplex, match="more than 250000 signs"):
        check_source(b"a;" * 300_000)
