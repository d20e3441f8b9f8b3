"""The checks before publishing: builds are up to date, and pass `kernels check --static`."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.authoring.check.audit import audit_variant
from kernels.authoring.compile.freshness import refuse_stale, stale_builds
from kernels.authoring.compile.sources.python_files import syntax_errors
from kernels.authoring.compile.sources.workspace import Workspace
from kernels.authoring.publish.local_builds import LocalBuilds
from kernels.errors import RequestError
from kernels.models.snapshot import BUILD_FOLDER
from kernels.support.formatting import shell_word

__all__ = ["check_builds"]

#: Problems that a message lists.
_SHOWN = 5


def check_builds(builds: LocalBuilds, workspace: Workspace | None) -> None:
    """Raise if a build is stale or would fail `kernels check --static`, or Python cannot compile a benchmark.

    Args:
        builds: The builds; none of their code is run.
        workspace: Their sources, if present.

    Raises:
        RequestError: A check failed.
        MissingPythonDependency: There are native files, and what reads them (pyelftools, LIEF) is not installed.
    """
    if workspace is not None:
        stale = {name: reason for name, reason in stale_builds(workspace).items() if name in builds.builds}
        refuse_stale(
            workspace,
            stale,
            "and so does --build; delete builds that no machine can rebuild. --no-check publishes them as they are",
        )
    problems = [*_problems(builds)]
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" * (len(problems) > _SHOWN)
        raise RequestError(
            f"Nothing was published. {'; '.join(problems[:_SHOWN])}{more}. Run `kernels check "
            f"{shell_word(builds.folder)}` for the full report; --no-check publishes the builds anyway."
        )


def _problems(builds: LocalBuilds) -> Iterator[str]:
    for name in builds.builds:
        folder = builds.folder / BUILD_FOLDER / name
        # The digest was compared when the builds were read, and their files hashed.
        found = audit_variant(folder, dynamic=False, root=builds.folder, bytecode=False, without=("digest",))
        yield from (f"{name}: {each.step}: {each.what}" for each in found.findings if each.verdict == "failed")
    files = [(file.path, str(file.path)) for file in builds.benchmarks.values()]
    yield from (f"{path}:{line}: not valid Python: {problem}" for path, line, problem in syntax_errors(files))
