"""Run a kernel's own tests against the builds in its folder (`kernels test`)."""

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

TESTS = "tests"


def run_tests(
    folder: os.PathLike[str] | str,
    arguments: Sequence[str] = (),
    *,
    build: bool = False,
    stdout: int | None = None,
) -> int:
    """Run the tests in a kernel's folder `tests` with pytest, in a separate process.

    The tests load the folder's builds instead of the repositories `local/<name>` and `general.hub.repo-id`.

    Args:
        folder: A source folder, or the parent of a kernel's source folders. A source folder without tests uses those of
            the others.
        arguments: Further arguments for pytest.
        build: First build what this machine can build.
        stdout: A file descriptor for pytest's output. Default: this process's stdout.

    Returns:
        pytest's exit status: 0 if all passed, 1 if one failed, 5 if no test was found.

    Raises:
        RequestError: The folder has no `build.toml`, tests or builds; a build for this machine is stale; or
            `LOCAL_KERNELS` cannot have the folder's path.
        MissingPythonDependency: pytest is not installed.
        BuildError: The kernel could not be built.
        KernelImportError: Loading a build ended pytest's process.
    """
    workspace = find_workspace(folder)
    if workspace is None:
        read_source(folder)  # raises
        raise AssertionError(folder)
    path, tests = workspace.folder, _tests(Path(os.path.realpath(folder)), workspace)
    if importlib.util.find_spec("pytest") is None:
        raise MissingPythonDependency("A kernel's tests need pytest, which is not installed: pip install pytest")
    repo_ids = [f"{LOCAL_PUBLISHER}/{workspace.sources[0].name}", *filter(None, [workspace.repo_id])]
    environment = settings.environment_with_local_kernels(dict.fromkeys(repo_ids, path))
    if build:
        build_kernel(path, path)
    _check_built(workspace)
    # Two source folders can have test files with one name.
    mode = ["--import-mode=importlib"] if len(tests) > 1 else []
    # If all tests are skipped, the run passes: show the reasons.
    command = [sys.executable, "-m", "pytest", *mode, *map(str, tests), *(arguments or ("-rs",))]
    status = subprocess.run(command, env=environment, stdout=stdout, stdin=subprocess.DEVNULL, check=False).returncode
    if status < 0:
        _explain_crash(workspace)
    return status


def _explain_crash(workspace: Workspace) -> None:
    """Raise if loading a build crashed pytest: its captured output is lost."""
    for build in repository_info(workspace.folder).builds:
        folder = workspace.folder / BUILD_FOLDER / build.name
        if build.reason is None and (reason := crash_reason(folder)) is not None:
            raise KernelImportError(f"The tests crashed while loading {build.name}. {reason}")


def _tests(folder: Path, workspace: Workspace) -> list[Path]:
    """The folders of the tests: the folder's own, or else those of the whole kernel."""
    own = folder / TESTS
    found = [own] if own.is_dir() and folder != workspace.folder else []
    found = found or [tests for each in workspace.folders if (tests := each / TESTS).is_dir()]
    if not found:
        raise RequestError(f"`folder` is {str(folder)!r}, which has no tests: {own} does not exist.")
    return found


def _check_built(workspace: Workspace) -> None:
    path = workspace.folder
    if not any(path.glob(f"{BUILD_FOLDER}/*/{METADATA_FILE}")):
        raise RequestError(
            f"`folder` is {str(path)!r}, which has no builds; run `kernels build {path}`, or add --build."
        )
    stale = stale_builds(workspace)
    # Builds for other machines are not tested here.
    fit = {build.name for build in repository_info(path).builds if build.reason is None} if stale else set()
    refuse_stale(workspace, {name: reason for name, reason in stale.items() if name in fit}, "and so does --build")
