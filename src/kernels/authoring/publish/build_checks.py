"""What keeps builds from being published: they are not those of the sources, or nobody could use them."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.authoring.check import audit_variant
from kernels.authoring.compile.freshness import refuse_stale, stale_builds
from kernels.authoring.compile.python_files import file_syntax_error
from kernels.authoring.compile.workspace import Workspace
from kernels.authoring.publish.local_builds import Builds
from kernels.errors import RequestError
from kernels.models.snapshot import BUILD_FOLDER

__all__ = ["check_builds"]

#: Faults that a message names.
_SHOWN = 5


def check_builds(builds: Builds, project: Workspace | None) -> None:
    """Refuse builds that are not those of the sources beside them, or that `kernels check --static` would fail.

    Args:
        builds: The builds; nothing of them is run.
        project: Their sources, if those are there.

    Raises:
        RequestError: There is such a build, or a benchmark that Python cannot compile.
        MissingPythonDependency: There are native files, and pyelftools, which reads them, is not installed.
    """
    if project is not None:
        stale = {name: reason for name, reason in stale_builds(project).items() if name in builds.builds}
        refuse_stale(
            project,
            stale,
            "and so does --build; one that no machine is to build again is deleted. --no-check publishes all as it is",
        )
    faults = [*_faults(builds)]
    if faults:
        more = f"; and {len(faults) - _SHOWN} more" * (len(faults) > _SHOWN)
        raise RequestError(
            f"Nothing was published. {'; '.join(faults[:_SHOWN])}{more}. `kernels check {builds.folder}` has all that "
            "is to be said of the builds; --no-check publishes them anyway."
        )


def _faults(builds: Builds) -> Iterator[str]:
    for name in builds.builds:
        folder = builds.folder / BUILD_FOLDER / name
        found = audit_variant(folder, dynamic=False, root=builds.folder, bytecode=False)
        yield from (f"{name}: {each.step}: {each.what}" for each in found.findings if each.verdict == "failed")
    for path, file in builds.benchmarks.items():
        fault = file_syntax_error(file, path)
        if fault is not None:
            yield f"{file}:{fault[0]}: not valid Python: {fault[1]}"
