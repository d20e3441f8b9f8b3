"""Rewrite a `build.toml` as the current edition, with its comments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kernels.authoring.compile.build_toml.editions import canonical, upgraded
from kernels.authoring.compile.build_toml.keys import EDITION
from kernels.authoring.compile.build_toml.reader import parse_source, read_build_toml
from kernels.errors import BuildError
from kernels.support.files import replace_file
from kernels.support.toml import TomlFile, parse_toml
from kernels.support.written_paths import stay_inside

__all__ = ["update_build_toml"]


def update_build_toml(source_dir: os.PathLike[str] | str) -> bool:
    """Rewrite a source folder's `build.toml` as edition 5, spelled for every builder. A newer edition stays.

    Comments, order and layout stay. The file is replaced in one step: a failure leaves it unchanged.

    Args:
        source_dir: The folder.

    Returns:
        Whether the file was changed.

    Raises:
        RequestError: The file is missing or not valid, is a link out of the folder, or has no license, which edition 5
            requires.
        BuildError: `tomlkit` is not installed, or the file cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> (folder / "torch-ext" / "twice").mkdir(parents=True)
        >>> _ = (folder / "torch-ext" / "twice" / "__init__.py").write_text("")
        >>> _ = (folder / "build.toml").write_text(
        ...     '[general]\\nname = "twice" # two\\nlicense = "MIT"\\nbackends = ["cpu"]\\n'
        ... )
        >>> update_build_toml(folder), update_build_toml(folder)
        (True, False)
        >>> print((folder / "build.toml").read_text().partition("license")[0])
        [general]
        name = "twice" # two
        version = 1
        edition = 5
        <BLANKLINE>
    """
    file = read_build_toml(source_dir)
    path = stay_inside(file.path, source_dir)
    source = parse_source(file)
    if source.license is None:
        raise file.error(("general",), '`general.license` is missing; set an SPDX identifier such as "apache-2.0".')
    wanted = canonical(upgraded(file.data, source.edition))
    if source.edition > EDITION or wanted == file.data:
        return False
    text, mode = _rewritten(file, wanted), path.stat().st_mode & 0o777
    try:
        replace_file(path, text.encode(), mode=mode)
        path.chmod(mode)  # whatever the umask is
    except OSError as error:
        raise BuildError(f"{path} could not be written: {error.strerror or error}.") from error
    return True


def _rewritten(file: TomlFile, wanted: dict[str, Any]) -> str:
    try:
        import tomlkit
    except ImportError as error:
        raise BuildError("Rewriting build.toml needs tomlkit: pip install tomlkit (the extra `build`).") from error
    document = tomlkit.parse(file.text)
    _bring_to(document, file.data, wanted)
    text = tomlkit.dumps(document)
    if "\r\n" in file.text:
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
    if parse_toml(text, file.path).data != wanted:
        raise file.error((), f"this layout cannot be rewritten; edit it by hand so that its content is {wanted!r}.")
    return text


def _bring_to(table: Any, have: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Change the content of a tomlkit table from `have` to `wanted`."""
    renamed = {old: new for old in have if old not in wanted for new in wanted if new not in have and _same(old, new)}
    gone = [key for key in have if key not in wanted and key not in renamed]
    if renamed:
        _rename(table, renamed)
    for key in gone:
        del table[key]
    before: str | None = None
    kept = {renamed.get(key, key): value for key, value in have.items() if key not in gone}
    for key, value in wanted.items():
        if key not in kept:
            _add(table, before, key, value)
        elif isinstance(value, dict) and isinstance(kept[key], dict):
            _bring_to(table[key], kept[key], value)
        elif value != kept[key]:
            table[key] = value
        before = key


def _same(old: str, new: str) -> bool:
    return old.replace("-", "_") == new.replace("-", "_") or (old, new) == ("torch", "torch-noarch")


def _rename(table: Any, renamed: Mapping[str, str]) -> None:
    container = _container(table)
    for old, new in renamed.items():
        if container is None or isinstance(table[old], dict):  # a section's heading is not a key to rename
            table[new] = table.pop(old)
        else:
            # tomlkit has no public function to rename a key in place, or to insert one after another.
            container._replace(old, new, container.item(old))


def _add(table: Any, before: str | None, key: str, value: Any) -> None:
    from tomlkit.items import Table

    container = _container(table) if isinstance(table, Table) else None
    if (
        container is not None
        and before is not None
        and not any(isinstance(each, dict) for each in (value, container[before]))
    ):
        container._insert_after(before, key, value)
    else:
        table[key] = value


def _container(table: Any) -> Any:
    """The container of a table's lines; None for a table in several parts."""
    from tomlkit.container import Container, OutOfOrderTableProxy

    if isinstance(table, OutOfOrderTableProxy):
        return None
    return table if isinstance(table, Container) else table.value
