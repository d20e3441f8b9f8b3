"""Run pytest with a kernel's folder in place of its repository, and its build under the name of the sources."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from kernels import settings
from kernels.authoring.check.loading import crash_reason
from kernels.authoring.compile import read_source
from kernels.authoring.compile.builder import build_here
from kernels.authoring.compile.freshness import refuse_stale, stale_builds
from kernels.authoring.compile.sources.workspace import Workspace, find_workspace
from kernels.authoring.own_tests import by_name
from kernels.authoring.own_tests.choice import TestedBuild, check_prerequisites, choose_tested_build
from kernels.authoring.own_tests.requested_versions import MAX_TEST_BYTES, other_versions
from kernels.authoring.scaffold.draft import LOCAL_PUBLISHER
from kernels.errors import KernelImportError, MissingPythonDependency, RequestError
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE
from kernels.operations.explain import explain_folder
from kernels.support.files import FileTooLarge, read_bounded
from kernels.support.formatting import shell_word

__all__ = ["run_tests"]

TESTS = "tests"

#: The owner in a repository's name.
_OWNER = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"

#: Options of pytest whose next argument can be the path of a test that is not selected by it.
_WITH_PATHS = frozenset({"--ignore", "--ignore-glob", "--deselect", "-k", "-m", "-c", "--config-file", "--rootdir"})

#: Notes on other versions in the tests that are said.
_MAX_NOTES = 3

_PLUGIN = "kernels.authoring.own_tests.plugin"

#: As `python -m pytest`, which would import modules of the current folder first.
_PYTEST = (
    "import sys; sys.path[:] = [path for path in sys.path if path]; "
    "import runpy; runpy.run_module('pytest', run_name='__main__', alter_sys=True)"
)


def run_tests(
    folder: os.PathLike[str] | str,
    arguments: Sequence[str] = (),
    *,
    build: bool = False,
    backend: str | None = None,
    variant: str | None = None,
    stdout: int | None = None,
) -> int:
    """Run the tests in a kernel's folder `tests` with pytest, in a separate process.

    The tests can import the kernel by the name of its Python package, and load it from the repositories `local/<name>`
    and `general.hub.repo-id`, or from one of its name that they mention: all give the folder's build, as one module.

    Args:
        folder: A source folder, or the parent of a kernel's source folders. A source folder without tests uses those of
            the others.
        arguments: Further arguments for pytest. Without a test file or folder among them, all tests are run. Such a
            path is relative to the working directory, else to the kernel's folder or that of its tests.
        build: First build what this machine can build.
        backend: The backend whose build is imported by name, and the default of `get_kernel`. Default: Torch's.
        variant: The build that is tested, by its name. Default: the one that fits this machine best.
        stdout: A file descriptor for pytest's output. Default: this process's stdout.

    Returns:
        pytest's exit status: 0 if all passed, 1 if one failed, 5 if no test was found.

    Raises:
        RequestError: The folder has no `build.toml`, tests or builds; a build for this machine is stale; the backend or
            variant is not there, or does not fit this machine; the name is one of Python's standard library;
            `LOCAL_KERNELS` cannot have the folder's path; or `KERNELS_LOCKED` is set, and no lockfile pins such builds.
        MissingPythonDependency: pytest, or a package that the kernel needs, is not installed.
        BuildError: The kernel could not be built.
        KernelsError: A kernel that this one depends on cannot be found.
        KernelImportError: Loading a build ended pytest's process.
    """
    workspace = find_workspace(folder)
    if workspace is None:
        read_source(folder)  # raises
        raise AssertionError(folder)
    if settings.locked_only():
        raise RequestError(
            f"KERNELS_LOCKED=1 allows locked kernels only, and no lockfile pins the builds in {workspace.folder}. "
            "Unset KERNELS_LOCKED to test them."
        )
    path, tests = workspace.folder, _tests(Path(os.path.realpath(folder)), workspace)
    name = _module_name(workspace)
    if importlib.util.find_spec("pytest") is None:
        raise MissingPythonDependency("A kernel's tests need pytest, which is not installed: pip install pytest")
    repo_ids = _repositories(workspace, tests)
    _with_local_kernels(dict.fromkeys(repo_ids, path))  # raises before a build, which takes minutes
    if build:
        build_here(path)
    _check_built(workspace, backend, variant)
    tested = choose_tested_build(path, backend=backend, variant=variant)
    check_prerequisites(tested)
    environment = _environment(repo_ids, tested)
    # pytest imports their modules as those of this package, `kernels.test_a`, if their parent is no package.
    hidden = [each / "kernels" for each in tests if _is_package(each / "kernels") and not _is_package(each)]
    if hidden:
        environment["PY_IGNORE_IMPORTMISMATCH"] = "1"
    with tempfile.TemporaryDirectory(prefix="kernels-test-") as startup:
        notes = [*filter(None, [tested.note]), *_notes(workspace, tests, repo_ids)]
        source = _startup(name, tested, startup, workspace.folders, hidden, notes)
        Path(startup, "sitecustomize.py").write_text(source, encoding="utf-8")
        paths = [startup, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        # Two source folders can have test files with one name.
        mode = ["--import-mode=importlib"] if len(tests) > 1 else []
        # If all tests are skipped, the run passes: show the reasons.
        further = [*mode, *_with_tests(arguments or ("-rs",), path, tests)]
        command = [sys.executable, "-c", _PYTEST, "-p", _PLUGIN, *further]
        process = subprocess.run(command, env=environment, stdout=stdout, check=False)  # `--pdb` reads stdin
    if process.returncode < 0:
        _explain_crash(workspace)
    return process.returncode


def _module_name(workspace: Workspace) -> str | None:
    """The name that tests can import the kernel by; None if no `import` statement can have it.

    Raises:
        RequestError: `import` of that name gives a module of Python's standard library.
    """
    name = workspace.sources[0].name.python_name
    problem = by_name.hides_the_standard_library(name)
    if problem is not None:
        raise RequestError(f"`general.name` is {workspace.sources[0].name!r}, and {problem}.")
    return name if by_name.is_importable(name) else None


def _environment(repo_ids: Sequence[str], tested: TestedBuild) -> dict[str, str]:
    environment = _with_local_kernels(dict.fromkeys(repo_ids, tested.local))
    return environment if tested.backend is None else {**environment, "KERNELS_BACKEND": tested.backend}


def _with_local_kernels(folders: Mapping[str, Path]) -> dict[str, str]:
    """The environment for a process that uses local folders as repositories, besides those that are set already."""
    for path in folders.values():
        # A colon separates entries, and the space around an entry is not part of it.
        if ":" in path.relative_to(path.anchor).as_posix() or str(path) != str(path).strip():
            raise RequestError(
                f"`folder` is {str(path)!r}; expected a path without ':' and without space at its end, as it has to "
                "stand in LOCAL_KERNELS."
            )
    environment = settings.environment()
    own = [f"{repo_id}={path}" for repo_id, path in folders.items()]
    # Of two entries for one repository the later one is used.
    before = filter(None, [environment.get("LOCAL_KERNELS")])
    return {**environment, "LOCAL_KERNELS": ":".join([*before, *own])}


def _repositories(workspace: Workspace, tests: Sequence[Path]) -> list[str]:
    """The repositories that the kernel's folder replaces: its own, and those of its name that the tests mention."""
    name = workspace.sources[0].name
    mentioned = re.compile(rf"""["']({_OWNER}/(?:{re.escape(name)}|{re.escape(name.python_name)}))["'@]""")
    found = [f"{LOCAL_PUBLISHER}/{name}", *filter(None, [workspace.repo_id])]
    for file in sorted(path for folder in tests for path in folder.rglob("*.py")):
        with suppress(OSError, FileTooLarge):
            found += mentioned.findall(read_bounded(file, MAX_TEST_BYTES).decode("utf-8", "replace"))
    return list(dict.fromkeys(found))


def _startup(
    name: str | None,
    tested: TestedBuild,
    folder: str,
    sources: Sequence[Path],
    hidden: Sequence[Path],
    notes: Sequence[str],
) -> str:
    """The source of the `sitecustomize` of every Python process that the run starts."""
    arguments = (name, os.fspath(tested.folder), tested.id, tested.why_not)
    lines = [
        "import importlib.util, sys",
        f"spec = importlib.util.spec_from_file_location({by_name.__name__!r}, {by_name.__file__!r})",
        "found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)",
        "spec.loader.exec_module(found)",
        f"found.source_folders += {[*map(os.fspath, sources)]!r}",
        f"found.notes += {[*notes]!r}",
        *([f"found.install{arguments!r}"] if name is not None else []),
        *(f"found.add_folder({os.fspath(each)!r})" for each in hidden),
        f"found.next_sitecustomize({folder!r})",
    ]
    return "\n".join([*lines, ""])


def _notes(workspace: Workspace, tests: Sequence[Path], repo_ids: Sequence[str]) -> list[str]:
    """What is said after the tests: where they load another version than that of `build.toml`."""
    version = workspace.sources[0].version
    files = sorted(path for folder in tests for path in folder.rglob("*.py"))
    found = other_versions(files, repo_ids, version)
    return [
        f"{os.path.relpath(file)}, line {line}, loads version {requested}; this folder, of version {version}, was "
        "tested in its place"
        for file, line, requested in islice(found, _MAX_NOTES)
    ]


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _explain_crash(workspace: Workspace) -> None:
    """Raise if loading a build crashed pytest: its captured output is lost."""
    for each in explain_folder(workspace.folder).resolution.decisions:
        folder = workspace.folder / BUILD_FOLDER / each.variant.name
        if each.verdict != "rejected" and (reason := crash_reason(folder)) is not None:
            raise KernelImportError(f"The tests crashed while loading {each.variant.name}. {reason}")


def _tests(folder: Path, workspace: Workspace) -> list[Path]:
    """The folders of the tests: the folder's own, or else those of the whole kernel."""
    own = folder / TESTS
    found = [own] if own.is_dir() and folder != workspace.folder else []
    found = found or [tests for each in workspace.folders if (tests := each / TESTS).is_dir()]
    if not found:
        raise RequestError(f"`folder` is {str(folder)!r}, which has no tests: {own} does not exist.")
    return found


def _with_tests(arguments: Sequence[str], folder: Path, tests: Sequence[Path]) -> list[str]:
    """Pytest's arguments with the tests to run: those that the arguments select, else all."""
    selected = [
        None if before in _WITH_PATHS else _selected(argument, (Path.cwd(), folder, *tests), tests)
        for before, argument in zip(("", *arguments), arguments, strict=False)
    ]
    if not any(selected):
        return [*map(str, tests), *arguments]
    return [chosen or argument for chosen, argument in zip(selected, arguments, strict=True)]


def _selected(argument: str, places: Sequence[Path], tests: Sequence[Path]) -> str | None:
    """The test that an argument names, with its whole path; None for other arguments."""
    path, separator, test = argument.partition("::")
    if argument.startswith("-"):
        return None
    # A single word can be the value of an option.
    exists = os.path.exists if separator or path.endswith(".py") or "/" in path or os.sep in path else os.path.isdir
    for place in places:
        at = Path(os.path.realpath(place / path))
        if exists(at) and any(at.is_relative_to(os.path.realpath(own)) for own in tests):
            return f"{at}{separator}{test}"
    return None


def _check_built(workspace: Workspace, backend: str | None, variant: str | None) -> None:
    path = workspace.folder
    if not any(path.glob(f"{BUILD_FOLDER}/*/{METADATA_FILE}")):
        raise RequestError(
            f"`folder` is {str(path)!r}, which has no builds; run `kernels build {shell_word(path)}`, or add --build."
        )
    stale = stale_builds(workspace)
    # Builds for other machines are not tested here.
    fit = set() if variant is None else {variant}
    if stale and variant is None:
        decisions = explain_folder(path).resolution.decisions
        fit = {each.variant.name for each in decisions if each.verdict != "rejected"}
        fit.add(choose_tested_build(path, backend=backend).variant)
    refuse_stale(workspace, {name: reason for name, reason in stale.items() if name in fit}, "and so does --build")
