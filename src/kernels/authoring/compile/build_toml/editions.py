"""Other editions of `build.toml`, brought to the current one.

Only editions from 5 have the key `edition`. An older one is recognized by its content: edition 4 has a framework
section, a version and a license; edition 3 may omit each of them; edition 2 has `universal` and lists no backends.
Edition 6 has `language = "cpp-cuda"` where edition 5 has `backend = "cuda"`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels.authoring.compile.build_toml.keys import EDITION, FRAMEWORKS, GeneralKeys, KernelKeys
from kernels.backends import entries
from kernels.support.toml import Section, TomlFile

__all__ = ["canonical", "edition_of", "upgraded"]

_OLDER = "files of older editions do not have this key"
_NEWER = "a newer edition needs a newer version of this package"

#: The newest edition that is read. Files are written as `EDITION`, which other builders and older clients read.
_NEWEST = 6
#: Its key for what a section is written in, and the beginning of each value that is compiled here.
_LANGUAGE, _CPP = "language", "cpp-"


def edition_of(file: TomlFile) -> int:
    """The edition of a file.

    Raises:
        RequestError: The edition, or a language that its sections name, is not supported, or `[general]` is missing.
    """
    top = Section(file, (), file.data)
    general = top.section("general")
    if general is None:
        raise top.missing("general", "a section with at least `name` and `backends`")
    key = GeneralKeys.edition.key
    supported = " or ".join(map(str, range(EDITION, _NEWEST + 1)))
    edition = general.integer(key, f"{supported}; {_OLDER}")
    if edition is not None:
        if not EDITION <= edition <= _NEWEST:
            raise general.wrong(key, edition, f"{supported}; {_NEWER if edition > EDITION else _OLDER}")
        if edition > EDITION:
            _check_languages(top)
        return edition
    framework = [name for name in FRAMEWORKS if name in file.data]
    tables = [general.table, *(table for name in framework if isinstance(table := file.data[name], dict))]
    only_in_kernels = bool(file.data.get("kernel")) and not {"version", "backends"} & general.table.keys()
    if only_in_kernels or any("universal" in table for table in tables):
        return 2
    if "torch-noarch" in framework or (framework and {"version", "license"} <= general.table.keys()):
        return 4
    return 3


def _check_languages(top: Section) -> None:
    """Raise if a section is written in a language that is not compiled here, such as Rust."""
    kernels = top.section("kernel")
    for name, table in () if kernels is None else kernels.table.items():
        if not isinstance(table, dict):
            continue  # the reader reports it
        section = Section(top.file, ("kernel", name), table)
        expected = f'"{_CPP}" and a backend, such as "{_CPP}cuda"'
        language = section.text(_LANGUAGE, expected)
        if language is None and KernelKeys.backend.key not in table:
            raise section.missing(_LANGUAGE, expected)
        if language is not None and not language.startswith(_CPP):
            raise section.wrong(_LANGUAGE, language, f"{expected}; other languages are not compiled by this package")


def upgraded(data: Mapping[str, Any], edition: int) -> dict[str, Any]:
    """Bring a file's content to edition 5.

    Values of a wrong type stay as they are, for the reader to report.

    Args:
        data: The file's content.
        edition: The edition of the file.

    Example:
        >>> upgraded({"general": {"name": "my_relu", "license": "mit", "backends": ["cpu"]}}, 3)["general"]
        {'name': 'my-relu', 'version': 1, 'edition': 5, 'license': 'mit', 'backends': ['cpu']}
    """
    new = dict(data)
    if edition == EDITION:
        return new
    if edition > EDITION:
        return _from_edition_6(new)
    general = dict(new["general"])
    if isinstance(name := general.get("name"), str):
        general["name"] = name.replace("_", "-")
    if edition == 2:
        new, general = _from_edition_2(new, general)
    if "version" not in general:
        general = _placed(general, "name", "version", 1)
    new["general"] = _placed(general, "version", "edition", EDITION)
    if not any(framework in new for framework in FRAMEWORKS):
        new["torch-noarch"] = {}
    return _with_archs_of_sections(new)


def _with_archs_of_sections(new: dict[str, Any]) -> dict[str, Any]:
    """Move the architectures of `[general.<backend>]`, where early files of edition 4 have them, to what they are of.

    That is `[torch-noarch]`, or each kernel section of the backend that has none.
    """
    for word in (KernelKeys.capabilities.suffix, KernelKeys.archs.suffix):
        for backend, needs in new["general"].items():
            if not isinstance(needs, dict) or word not in needs:
                continue
            archs = {f"{backend}-{word}": needs[word]}
            new["general"] = {**new["general"], backend: {key: needs[key] for key in needs if key != word}}
            if "torch-noarch" in new:
                noarch = new["torch-noarch"]
                new["torch-noarch"] = {**archs, **noarch} if isinstance(noarch, dict) else noarch
            elif isinstance(kernels := new.get("kernel"), dict):
                new["kernel"] = {
                    name: {**kernel, **archs} if _lacks_archs(kernel, backend) else kernel
                    for name, kernel in kernels.items()
                }
    return new


def _lacks_archs(kernel: Any, backend: str) -> bool:
    if not isinstance(kernel, dict) or kernel.get("backend") != backend:
        return False
    fields = KernelKeys.capabilities.of(backend), KernelKeys.archs.of(backend)
    return not any(key in kernel for field in fields for key in field.spellings)


def _from_edition_6(new: dict[str, Any]) -> dict[str, Any]:
    new["general"] = {**new["general"], GeneralKeys.edition.key: EDITION}
    if isinstance(kernels := new.get("kernel"), dict):
        new["kernel"] = {name: _with_backend(kernel) for name, kernel in kernels.items()}
    return new


def _with_backend(kernel: Any) -> Any:
    """A section of edition 6, with the backend of its language."""
    if not isinstance(kernel, dict) or KernelKeys.backend.key in kernel:
        return kernel
    return {
        (KernelKeys.backend.key if key == _LANGUAGE else key): (value.removeprefix(_CPP) if key == _LANGUAGE else value)
        for key, value in kernel.items()
    }


def _from_edition_2(new: dict[str, Any], general: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    torch = dict(new["torch"]) if isinstance(new.get("torch"), dict) else None
    # In edition 1 `universal` was in the section `torch`.
    universal = bool(general.pop("universal", False)) | bool((torch or {}).pop("universal", False))
    if "backends" not in general:
        kernels = new["kernel"].values() if isinstance(new.get("kernel"), dict) else ()
        named = {str(kernel.get("backend")) for kernel in kernels if isinstance(kernel, dict) and "backend" in kernel}
        # Universal meant every backend of that time: the built-in ones.
        known = {entry.name for entry in entries() if entry.origin.kind == "built-in"}
        if universal or named:
            general = _placed(general, "name", "backends", sorted(known if universal else named))
    for key in list(general):
        backend, _, bound = key.rpartition("-")
        if bound in ("minver", "maxver") and backend:
            general[backend] = {**general.get(backend, {}), bound: general.pop(key)}
    if torch is not None and universal:
        new = {("torch-noarch" if key == "torch" else key): value for key, value in new.items()}
        new["torch-noarch"] = torch
    elif torch is not None:
        new["torch"] = torch
    return new, general


def canonical(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same content, spelled for other builders.

    They read the architectures of a noarch section with underscores only, everything else with dashes only, and require
    `depends` in every kernel section.

    Args:
        data: The content of a valid file of edition 5.

    Example:
        >>> canonical({"torch-noarch": {"cuda-capabilities": ["9.0"]}})
        {'torch-noarch': {'cuda_capabilities': ['9.0']}}
    """
    new = dict(data)
    if "torch-noarch" in new:
        new["torch-noarch"] = {key.replace("-", "_"): value for key, value in new["torch-noarch"].items()}
    if "kernel" in new:
        depends = [] if "tvm-ffi" in new else ["torch"]
        kernels = {
            name: {key.replace("_", "-"): value for key, value in kernel.items()}
            for name, kernel in new["kernel"].items()
        }
        new["kernel"] = {
            name: kernel if "depends" in kernel else _placed(kernel, "backend", "depends", depends)
            for name, kernel in kernels.items()
        }
    return new


def _placed(table: Mapping[str, Any], after: str, key: str, value: Any) -> dict[str, Any]:
    """The table with a key added after another one, or at its end if that is missing."""
    new: dict[str, Any] = {}
    for each, content in table.items():
        new[each] = content
        if each == after:
            new[key] = value
    return {**new, key: value}
