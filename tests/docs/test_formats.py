"""The pages about files: their keys are those of the code, and their examples are what this package writes."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from doc_pages import ROOT, Block, blocks, names, same_everywhere, table, tables, write_files
from typer.testing import CliRunner

from kernels import backends, install_kernel
from kernels.backends import GENERAL_PYTHON_DEPENDS, allowed_python_depends
from kernels.cli import app
from kernels.models import lockfile, metadata, mirror
from kernels.models.kernel_status import destination
from kernels.models.project import KernelProject
from kernels.models.requirement import Requirement

Keys = dict[str, bool]


def structs(kind: Any) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """The structs that a field's type has, with the part of a key between: `.<variant>` of a mapping."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield "", kind
        return
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        yield from structs(arguments[0])
    elif origin in (list, typing.Union, types.UnionType):
        for each in arguments:
            yield from structs(each)
    elif origin is dict:
        for between, each in structs(arguments[1]):
            yield f".<variant>{between}", each


def keys(form: type[msgspec.Struct]) -> Keys:
    """The keys of a form's documents, and whether each is required where the object that has it is there."""
    found: Keys = {}
    hints = typing.get_type_hints(form, include_extras=True)
    for field in msgspec.structs.fields(form):
        inner = list(structs(hints[field.name]))
        if not inner:
            found[field.encode_name] = field.required
        for between, each in inner:
            found |= {f"{field.encode_name}{between}.{key}": required for key, required in keys(each).items()}
    return found


def shown(page: str, *first: str) -> Keys:
    """The keys in tables of a page; "one of the two" is not required by itself."""
    return {names(row[0])[0]: row[2] == "yes" for cell in first for row in table(page, f"`{cell}`")}


def json_blocks(page: str) -> list[Block]:
    return [block for block in blocks(ROOT / "docs" / page) if block.language == "json"]


def comparable(text: str) -> Any:
    """A document without what differs from build to build."""
    text = re.sub(r'"[A-Za-z0-9+/]{43}="', '"<digest>"', text)
    text = re.sub(r'(_[a-z_]+_)[0-9a-z]{7}"', r'\1<unique>"', text)
    return json.loads(re.sub(r'"version": "[^"]+"', '"version": "<version>"', same_everywhere(text)))


# metadata.json


def test_the_page_of_metadata_has_every_key_and_says_which_are_required() -> None:
    own = {**shown("metadata.md", "id"), **shown("metadata.md", "backend.type"), **shown("metadata.md", "digest.files")}
    own |= {**shown("metadata.md", "kernel-depends.repo-id"), **shown("metadata.md", "provenance.kernel.commit")}
    objects = {key.partition(".")[0] for key in own if "." in key}
    assert objects <= own.keys()
    # Older builds have the other spelling of a commit; a kernel has no version here, but a builder has.
    elsewhere = {f"provenance.{each}.sha" for each in ("kernel", "kernel-builder")} | {"provenance.kernel.version"}
    # `metadata` has the forms of the file to itself.
    expected = {key: required for key, required in keys(metadata._File).items() if key not in elsewhere}
    required = {field.encode_name: field.required for field in msgspec.structs.fields(metadata._File)}
    assert own == {**expected, **{each: required[each] for each in objects}}


def test_the_python_packages_are_those_that_backends_allow() -> None:
    expected = {"all": set(GENERAL_PYTHON_DEPENDS)}
    for backend in backends.all_backends():
        more = allowed_python_depends(backend).keys() - GENERAL_PYTHON_DEPENDS.keys()
        if more:
            expected[backend.name] = set(more)
    rows = table("metadata.md", "all")
    assert {row[0].strip("`"): set(names(row[1])) for row in rows} == expected


def test_the_metadata_on_the_page_is_that_of_the_example_kernel(reader: Path) -> None:
    target = "torch2.13-cu130-x86_64-linux+sm_90"
    build = install_kernel("kernels-examples/rms-norm", version=1, target=target)
    written = json.loads((build / "metadata.json").read_text(encoding="utf-8"))
    page = json.loads(json_blocks("metadata.md")[0].text)
    # Where the sources are in no repository of git, there is no provenance; in one with changes it is dirty.
    for each in (written, page):
        each.pop("provenance", None)
    assert comparable(json.dumps(written)) == comparable(json.dumps(page))


def test_the_provenance_on_the_page_is_as_it_is_written() -> None:
    page = json_blocks("metadata.md")[0].text.encode()
    assert metadata.Metadata.from_bytes(page).to_bytes() == page


def test_the_redirect_on_the_page_leads_to_a_repository() -> None:
    [moved] = [block.text for block in blocks(ROOT / "docs" / "metadata.md") if block.language == "toml"]
    assert destination(moved.encode(), Requirement("org/name", version=1)) == Requirement("org/new-name", version=1)
    assert shown("metadata.md", "destination") == {"kind": True, "destination": True, "revision": False}


# Lockfiles


def test_the_page_of_lockfiles_has_every_key() -> None:
    forms = {
        "lock.commit": lockfile._Entry,
        "sha": lockfile._OlderEntry,
        "format": lockfile._Hashes,
    }
    for cell, form in forms.items():
        assert shown("lockfile.md", cell) == keys(form), cell
    kinds = {lockfile.SHA256SUM, lockfile.GIT_LFS_CONCAT}
    assert {names(row[0])[0] for row in table("lockfile.md", "`sha256sum`")} == kinds


def test_the_lockfiles_on_the_page_are_what_the_command_writes(reader: Path) -> None:
    write_files(ROOT / "docs" / "lockfile.md", reader)
    assert CliRunner().invoke(app, ["lock", "--hashes"]).exit_code == 0
    current, older, hashes = (block.text for block in json_blocks("lockfile.md"))
    written = (reader / "kernels.lock").read_text(encoding="utf-8")
    assert same_everywhere(written) == same_everywhere(current)
    assert lockfile.Lock.from_bytes(current.encode()).to_bytes().decode() + "\n" == current
    assert len(lockfile.Lock.from_bytes(older.encode()).hashes) == 1
    listed = json.loads((reader / "kernels.hashes.json").read_text(encoding="utf-8"))
    [kernel] = [each for each in listed["kernels"] if each["repo-id"] == "kernels-examples/rms-norm"]
    kernel["variants"] = {"torch-cpu": kernel["variants"]["torch-cpu"]}
    assert comparable(json.dumps({**listed, "kernels": [kernel]})) == comparable(hashes)


@pytest.mark.parametrize("value", ["1", "{ version = 1 }", '{ revision = "main" }'])
def test_the_values_of_the_table_of_kernels_are_read(tmp_path: Path, value: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.kernels.dependencies]\n"org/name" = {value}\n')
    assert len(KernelProject.read(tmp_path).dependencies) == 1


# Mirrors


MIRROR_FORMS = {
    "writer": mirror.MirrorIndex,
    "versions": mirror.MirroredRepository,
    "repo-id": mirror.RepositoryIndex,
    "url": mirror.MirrorOrigin,
    "trusted": mirror.MirrorPublisher,
    "variants": mirror.MirrorCommit,
    "archive": mirror.MirrorBuild,
    "name": mirror.MirrorArchive,
    "path": mirror.MirrorFile,
    "kind": mirror.MirrorSignature,
}


@pytest.mark.parametrize(("key", "form"), MIRROR_FORMS.items(), ids=MIRROR_FORMS)
def test_the_format_of_mirrors_has_every_key_and_its_default(key: str, form: type[msgspec.Struct]) -> None:
    expected = {field.encode_name: field.required for field in msgspec.structs.fields(form)}
    found = [rows for rows in tables(ROOT / "docs" / "mirror-format.md") if any(row[0] == f"`{key}`" for row in rows)]
    assert expected in [{names(row[0])[0]: row[2] == "" for row in rows} for rows in found]


def test_the_documents_on_the_page_are_those_of_a_mirror(reader: Path) -> None:
    arguments = ["mirror", "./mirror", "--repo", "kernels-examples/rms-norm", "--target", "torch2.13-cpu-x86_64-linux"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    whole, index = (json.loads(block.text) for block in json_blocks("mirror-format.md"))
    assert normal(json.loads((reader / "mirror" / "mirror.json").read_text("utf-8"))) == normal(whole)
    written = json.loads((reader / "mirror" / "api/kernels/kernels-examples/rms-norm/refs").read_text("utf-8"))
    [build] = written["content"]["builds"].values()
    assert len(build["files"]) == 6
    build |= {"files": build["files"][:1], "metadata": "…"}
    assert normal(written) == normal(index)


def normal(document: Any) -> Any:
    """A document of a mirror without hashes, sizes and times."""
    text = re.sub(r'"size": [0-9]+', '"size": 1', json.dumps(document))
    text = re.sub(r"archives/[0-9a-f]{2}/", "archives/", re.sub(r"T[0-9:.]+Z", "", text))
    return json.loads(re.sub(r"kernels [0-9.]+", "kernels <version>", same_everywhere(text)))
