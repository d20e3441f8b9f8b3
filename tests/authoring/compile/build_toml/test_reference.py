"""The page and the schema of `build.toml` say what the reader reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels.authoring.compile import read_source
from kernels.authoring.compile.build_toml.fields import ByBackend, Keys
from kernels.authoring.compile.build_toml.keys import (
    FRAMEWORKS,
    BackendNeedsKeys,
    GeneralKeys,
    HubKeys,
    KernelDependsKeys,
    KernelKeys,
)
from kernels.authoring.compile.build_toml.model import Framework, KernelSource
from kernels.authoring.compile.build_toml.reference import SCHEMA_PATH, example, schema_text, write_reference
from kernels.backends import all_backends
from kernels.errors import RequestError
from kernels.support.documents import load_toml

_PAGE = Path(__file__).parents[4] / "docs" / "build-toml.md"


def _read(folder: Path, toml: str) -> KernelSource:
    """Read a file beside the sources that it lists."""
    data = load_toml(toml)
    name = data["general"]["name"].replace("-", "_")
    sections = [*(data.get(framework, {}) for framework in FRAMEWORKS), *data.get("kernel", {}).values()]
    paths = [path for section in sections for path in section.get("src", [])]
    extension = "tvm-ffi-ext" if "tvm-ffi" in data else "torch-ext"
    for path in [f"{extension}/{name}/__init__.py", *paths]:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("")
    (folder / "build.toml").write_text(toml)
    return read_source(folder)


def _complete_examples() -> list[str]:
    """The files that the page shows, without the parts of files of its generated half."""
    found = re.findall(
        r"^```toml\n(\[general\]\n.*?)^```$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return [toml for toml in found if re.search(r"^\[(torch|torch-noarch|tvm-ffi)\]$", toml, re.MULTILINE)]


@pytest.fixture(scope="module")
def validator() -> Any:
    import jsonschema

    schema = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_page_and_the_schema_are_those_of_the_keys() -> None:
    assert write_reference(_PAGE) == _PAGE.read_text(encoding="utf-8"), "run `make reference`"
    assert schema_text() == SCHEMA_PATH.read_text(encoding="utf-8"), "run `make reference`"


@pytest.mark.parametrize("toml", _complete_examples(), ids=lambda toml: re.findall(r'name = "(.*?)"', toml)[0])
def test_the_files_that_the_page_shows_are_read(tmp_path: Path, toml: str, validator: Any) -> None:
    source = _read(tmp_path, toml)
    assert source.edition == 5
    assert [error.message for error in validator.iter_errors(load_toml(toml))] == []


def test_the_page_shows_a_file_for_each_framework() -> None:
    shown = [name for toml in _complete_examples() for name in FRAMEWORKS if f"\n[{name}]\n" in toml]
    assert set(shown) == set(FRAMEWORKS)


def _example_file(framework: Framework) -> str:
    compiled = (KernelKeys,) if framework != "torch-noarch" else ()
    parts = (GeneralKeys, HubKeys, BackendNeedsKeys, FRAMEWORKS[framework], *compiled)
    return "".join(f"{line}\n" for keys in parts for line in example(keys))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_example_of_every_key_is_read(tmp_path: Path, framework: Framework, validator: Any) -> None:
    toml = _example_file(framework)
    source = _read(tmp_path, toml)
    assert (source.framework, source.repo_id, source.kernels_minver) == (framework, "my-org/my-relu", "0.17.0")
    assert source.kernel_depends["cuda"] == (
        {"repo-id": "kernels-community/relu", "version": 1},
        {"repo-id": "kernels-community/activation", "version": 1},
    )
    if framework != "torch-noarch":
        (kernel,) = source.kernels
        assert (kernel.minver, kernel.archs) == ((12, 8), ("8.0", "9.0a", "12.0+PTX"))
        assert (kernel.device_flags, kernel.cxx_flags) == (("--use_fast_math",), ("-O3", "-fopenmp"))
    assert [error.message for error in validator.iter_errors(load_toml(toml))] == []


def _declared(keys: type[Keys], backend: str = "cuda") -> Iterator[str]:
    for field in keys.fields():
        if isinstance(field, ByBackend):
            yield field.of(backend).key
        elif field.key == "<backend>":
            yield from (each.name for each in all_backends())
        else:
            yield field.key


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        (GeneralKeys, "[general]\n"),
        (HubKeys, "[general.hub]\n"),
        (BackendNeedsKeys, "[general.cuda]\n"),
        (KernelDependsKeys, "kernel-depends = [{ "),
        (FRAMEWORKS["torch"], "[torch]\n"),
        (FRAMEWORKS["tvm-ffi"], "[tvm-ffi]\n"),
        (KernelKeys, "[kernel.my_relu]\n"),
    ],
)
def test_the_reader_reads_the_declared_keys_and_no_others(
    tmp_path: Path, keys: type[Keys], place: str, validator: Any
) -> None:
    file = _example_file("tvm-ffi" if "tvm-ffi" in place else "torch")
    wrong = file.replace(place, f"{place}zzz = 1{', ' if place.endswith('{ ') else chr(10)}", 1)
    with pytest.raises(RequestError) as caught:
        _read(tmp_path, wrong)
    listed = re.search(r"has the unknown key `zzz`; expected (.*?)\.", str(caught.value))
    assert listed is not None
    assert {key.replace("_", "-") for key in listed[1].split(", ")} == set(_declared(keys))
    assert not validator.is_valid(load_toml(wrong))


@pytest.mark.parametrize(
    "change",
    [
        ('name = "my-relu"', "name = 1"),
        ("version = 1", 'version = "1"'),
        ('name = "my-relu"\n', ""),
        ('backends = ["cpu", "cuda"]', 'backends = "cuda"'),
        ('minver = "12.6"', 'minver = "12"'),
        ("[torch]\n", "[torch-noarch]\n[torch]\n"),
        ("[torch]\n", "[trch]\n"),
        ('stable-abi = { cuda = "2.10" }', "stable-abi = 2"),
    ],
    ids=lambda change: change[1].strip() or "missing",
)
def test_what_the_reader_refuses_an_editor_marks(tmp_path: Path, change: tuple[str, str], validator: Any) -> None:
    file = _example_file("torch")
    wrong = file.replace(*change, 1)
    assert wrong != file
    assert not validator.is_valid(load_toml(wrong))
    (tmp_path / "build.toml").write_text(wrong)
    with pytest.raises(RequestError, match=r"build\.toml:\d+: "):
        read_source(tmp_path)


def test_the_schema_can_be_printed_with_the_backends_of_vendors(capsys: pytest.CaptureFixture[str]) -> None:
    import runpy

    runpy.run_module("kernels.authoring.compile.build_toml", run_name="__main__")
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))


def test_a_page_without_the_generated_part_gets_one(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nWritten by hand.\n\n")
    page.write_text(write_reference(page))
    text = page.read_text()
    assert text.startswith("# Title\n\nWritten by hand.\n\n<!-- From here")
    assert "## `[kernel.<name>]`" in text
    assert write_reference(page) == text
