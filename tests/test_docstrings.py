"""Every public name is documented, and the examples in the documentation do what they say."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import kernels

SOURCE = Path(kernels.__file__).parent
FILES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}
WITH_EXAMPLES = [name for name, path in FILES.items() if ">>> " in path.read_text(encoding="utf-8")]
#: Without packages whose `__init__.py` is a docstring alone.
PUBLIC = [
    name
    for name, path in FILES.items()
    if not any(part.startswith("_") for part in name.split("."))
    and len(ast.parse(path.read_text(encoding="utf-8")).body) > 1
]


@pytest.mark.usefixtures("isolated_env")
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_module_do_what_they_say(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", FILES)
def test_a_module_says_what_it_is_for(name: str) -> None:
    assert ast.get_docstring(ast.parse(FILES[name].read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_of_a_module_is_listed_and_documented(name: str) -> None:
    module = importlib.import_module(name)
    for public in module.__all__:
        value = getattr(module, public)
        # Constants have no docstrings; what is defined elsewhere is looked at there.
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == name:
            assert value.__doc__, f"{name}.{public} has no docstring"


@pytest.mark.parametrize("name", FILES)
def test_tools_can_read_the_signature_of_every_class(name: str) -> None:
    module = importlib.import_module(name)
    for each in vars(module).values():
        if inspect.isclass(each) and each.__module__ == name and hasattr(each, "__struct_fields__"):
            assert isinstance(inspect.signature(each), inspect.Signature)
