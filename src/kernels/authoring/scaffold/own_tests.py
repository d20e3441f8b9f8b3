"""A kernel's own tests, run against the builds in its folder."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kernels import settings
from kernels.authoring.check.loading import crash_reason
from kernels.authoring.compile import build_kernel, read_source
from kernels.authoring.compile.freshness import refuse_stale, stale_builds
from kernels.authoring.compile.workspace import Workspace, find_workspace
from kernels.authoring.scaffold.draft import LOCAL_PUBLISHER
from kernels.errors import KernelImportError, MissingPythonDependency, RequestError
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE
from kernels.operations.info import repository_info

__all__ = ["run_tests"]

#: The folder of a kernel's tests.
TESTS = "tests"


def run_tests(
    folder: os.PathLike[str] | str,
    arguments: Sequence[str] = (),
    *,
    build: bool = False,
    stdout: int | None = None,
) -> int:
    """Run the tests below a kernel's `tests` folder with pytest, in a process of their own.

    There the folder stands in for the kernel's repository: for `local/<name>`, and for the one that `build.toml` names.

    Args:
        folder: The kernel's sources, with its builds in `build`; or the folder that several source folders of a kernel
            share, or one of those. Without tests of its own, it is tried by those of all of them.
        arguments: Further arguments for pytest.
        build: Build what can be built here first.
        stdout: A file descriptor for what pytest prints; None for this process's own.

    Returns:
        pytest's exit status: 0 when all passed, 1 when one failed, 5 when there is none.

    Raises:
        RequestError: The folder is no kernel's, or has no tests or no builds; a build that fits this machine is not
            that of the sources; or its path cannot stand in `LOCAL_KERNELS`.
        MissingPythonDependency: pytest is not installed.
        BuildError: The kernel could not be built.
        KernelImportError: Loading a build ended pytest's process.
    """
    project = find_workspace(folder)
    if project is None:
        read_source(folder)  # which says why
        raise AssertionError(folder)
    path, tests = project.folder, _tests(Path(os.path.realpath(folder)), project)
    if importlib.util.find_spec("pytest") is None:
        raise MissingPythonDependency("A kernel's tests need pytest, which is not installed: pip install pytest")
    repo_ids = [f"{LOCAL_PUBLISHER}/{project.sources[0].name}", *filter(None, [project.repo_id])]
    environment = settings.environment_with_local_kernels(dict.fromkeys(repo_ids, path))
    if build:
        build_kernel(path, path)
    _check_built(project)
    # Two source folders may have a file of one name among their tests.
    mode = ["--import-mode=importlib"] if len(tests) > 1 else []
    # A run in which all is skipped passes, and its reasons are what there is to know of it.
    command = [sys.executable, "-m", "pytest", *mode, *map(str, tests), *(arguments or ("-rs",))]
    status = subprocess.run(command, env=environment, stdout=stdout, stdin=subprocess.DEVNULL, check=False).returncode
    if status < 0:
        _explain_crash(project)
    return status


def _explain_crash(project: Workspace) -> None:
    """Raise if loading a build ended the tests: pytest keeps what C++ says to itself, and that goes with it."""
    for build in repository_info(project.folder).builds:
        folder = project.folder / BUILD_FOLDER / build.name
        if build.reason is None and (reason := crash_reason(folder)) is not None:
            raise KernelImportError(f"The tests ended with the load of {build.name}. {reason}")


def _tests(folder: Path, project: Workspace) -> list[Path]:
    """The folders of its tests: its own, or else those of the whole kernel."""
    own = folder / TESTS
    found = [own] if own.is_dir() and folder != project.folder else []
    found = found or [tests for each in project.folders if (tests := each / TESTS).is_dir()]
    if not found:
        raise RequestError(f"`folder` is {str(folder)!r}, which has no tests: there is no folder {own}.")
    return found


def _check_built(project: Workspace) -> None:
    path = project.folder
    if not any(path.glob(f"{BUILD_FOLDER}/*/{METADATA_FILE}")):
        raise RequestError(
            f"`folder` is {str(path)!r}, which has no builds; `kernels build {path}` makes them, or add --build."
        )
    stale = stale_builds(project)
    # Those of another machine are not what is tried here.
    fit = {build.name for build in repository_info(path).builds if build.reason is None} if stale else set()
    refuse_stale(project, {name: reason for name, reason in stale.items() if name in fit}, "and so does --build")
