"""A kernel's own tests, run against the builds in its folder."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kernels import settings
from kernels.author.draft import LOCAL_PUBLISHER
from kernels.build import build_kernel, read_source
from kernels.errors import MissingPythonDependency, RequestError
from kernels.release import BUILD_FOLDER, METADATA_FILE

if sys.version_info >= (3, 11):
    pass
else:
    pass

__all__ = ["run_tests"]


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
        folder: The kernel's sources, with its builds in `build`.
        arguments: Further arguments for pytest.
        build: Build what can be built here first.
        stdout: A file descriptor for what pytest prints; None for this process's own.

    Returns:
        pytest's exit status: 0 when all passed, 1 when one failed, 5 when there is none.

    Raises:
        RequestError: The folder is no kernel's, or has no tests or no builds, or its path cannot stand in
            `LOCAL_KERNELS`.
        MissingPythonDependency: pytest is not installed.
        BuildError: The kernel could not be built.
    """
    source = read_source(folder)
    path = source.folder
    tests = path / "tests"
    if not tests.is_dir():
        raise RequestError(f"`folder` is {str(path)!r}, which has no tests: there is no folder {tests}.")
    if importlib.util.find_spec("pytest") is None:
        raise MissingPythonDependency("A kernel's tests need pytest, which is not installed: pip install pytest")
    repo_ids = [f"{LOCAL_PUBLISHER}/{source.name}", *filter(None, [source.repo_id])]
    environment = settings.environment_with_local_kernels(dict.fromkeys(repo_ids, path))
    if build:
        build_kernel(path, path)
    _check_built(path)
    command = [sys.executable, "-m", "pytest", str(tests), *arguments]
    return subprocess.run(command, env=environment, stdout=stdout, stdin=subprocess.DEVNULL, check=False).returncode


def _check_built(path: Path) -> None:
    if not any(path.glob(f"{BUILD_FOLDER}/*/{METADATA_FILE}")):
        raise RequestError(
            f"`folder` is {str(path)!r}, which has no builds; `kernels build {path}` makes them, or add --build."
        )
