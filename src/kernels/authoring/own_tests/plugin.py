"""The pytest plugin of `kernels test`: what runs is shown, and imports of the sources are reported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from kernels.authoring.own_tests.by_name import BuildFinder, notes, source_folders

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

__all__: list[str] = []

#: The parents of the Python packages in a source folder.
_PACKAGES = ("torch-ext", "tvm-ffi-ext")

_MAX_SHOWN = 5


def _finder() -> BuildFinder | None:
    return next((each for each in sys.meta_path if isinstance(each, BuildFinder)), None)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Import from the kernel's folder, as in `cd KERNEL && python -m pytest`, and not from the current one."""
    here = os.getcwd()
    if sys.path and os.path.realpath(sys.path[0] or here) == os.path.realpath(here):
        del sys.path[0]
    sys.path[:0] = source_folders
    finder = _finder()
    if finder is not None:  # before the finders of plugins that pytest has imported by now
        sys.meta_path.remove(finder)
        sys.meta_path.insert(0, finder)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of the tests that a repository's CI runs."""
    config.addinivalue_line("markers", "kernels_ci: the tests that CI runs on each build")


def pytest_report_header() -> list[str]:
    """The build that is tested, and the name that it is imported by."""
    finder = _finder()
    if finder is None:
        return []
    if finder.why_not:
        return [f"kernel: no build to import as {finder.name}: {finder.why_not}"]
    return [f"kernel: {os.path.basename(finder.build)}, imported as {finder.name}"]


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say where tests load another version, and that they imported sources, so that they do not test the build."""
    for note in notes:
        terminalreporter.write_line(f"kernels test: {note}.")
    found = sorted(_source_modules())
    if found:
        names = ", ".join(found[:_MAX_SHOWN]) + (f" and {len(found) - _MAX_SHOWN} more" * (len(found) > _MAX_SHOWN))
        terminalreporter.write_line(
            f"kernels test: the tests imported sources instead of the build: {names}. Import the kernel by its name."
        )


def _source_modules() -> Iterator[str]:
    tops = tuple(os.path.join(os.path.realpath(folder), name, "") for folder in source_folders for name in _PACKAGES)
    for module in [*sys.modules.values()]:
        file: Any = getattr(module, "__file__", None)
        if isinstance(file, str) and os.path.realpath(file).startswith(tops):
            yield os.path.relpath(os.path.realpath(file))
