"""The kernels that are loaded, as a notebook shows them."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from html_cells import HOSTILE, ReadHtml

from kernels.loader.registry import LoadedKernel, LoadedKernelList
from kernels.models.requirement import RepoInfo


@pytest.mark.parametrize("text", HOSTILE)
def test_a_notebook_shows_loaded_kernels_as_a_table_in_which_nothing_is_markup(text: str) -> None:
    metadata: Any = SimpleNamespace(name=text)
    loaded = [
        LoadedKernel(metadata, ModuleType(text), RepoInfo(text, text)),
        LoadedKernel(metadata, ModuleType("local"), None),
    ]
    read = ReadHtml(LoadedKernelList(loaded)._repr_html_())
    assert read.tags == {"table", "thead", "tbody", "tr", "th", "td"}
    assert read.cells[:5] == ["kernel", "repository", "revision", "variant", "module"]
    assert read.cells[11:] == ["-", "-", "-", "local"]
    assert ReadHtml(cast(Any, loaded[0])._repr_html_()).cells == read.cells[:10]
