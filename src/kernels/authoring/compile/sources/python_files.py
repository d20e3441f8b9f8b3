"""The files of a kernel's Python package, and whether Python can compile them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from kernels.authoring.compile.build_toml.model import KernelSource
from kernels.authoring.compile.sources.source_files import source_entries
from kernels.authoring.python_syntax import find_syntax_errors
from kernels.errors import RequestError
from kernels.support.formatting import plural
from kernels.support.limited_call import LimitExceeded, call_limited

__all__ = ["check_python", "package_files", "syntax_errors"]

#: The largest Python file that is compiled: a generated module has some 100 kB.
_MAX_PYTHON_BYTES = 2 * 1024 * 1024


def package_files(source: KernelSource) -> list[tuple[PurePosixPath, Path]]:
    """The files of a source's Python package that go into its builds: each path in the package, and the file.

    Raises:
        RequestError: A link leads out of the source folder or to a folder, or a name is not allowed on every system.
    """
    suffixes = {f".{suffix}" for suffix in source.pyext}
    found = []
    for name in source_entries(source.package_dir):
        path = source.package_dir / name
        if path.is_dir():
            raise RequestError(f"{path} is a link to a folder; a package holds its own files.")
        if not path.is_file() or path.suffix not in suffixes or str(name) == "_ops.py":  # the builder's
            continue
        if not path.resolve().is_relative_to(source.folder):
            raise RequestError(f"{path} is a link that leads out of {source.folder}; a package holds its own files.")
        if not str(name).isprintable() or "\\" in str(name):
            raise RequestError(f"{source.package_dir} has {str(name)[:200]!r}, a name that not every system allows.")
        found.append((name, path))
    return found


def check_python(source: KernelSource) -> None:
    """Check that Python can compile every file of the package: otherwise the builds could not be imported.

    Raises:
        RequestError: It cannot; the message has the file and the line.
    """
    files = [(path, str(path)) for _, path in package_files(source) if path.suffix == ".py"]
    for name, line, problem in syntax_errors(files):
        raise RequestError(f"{name}:{line}: not valid Python: {problem}.")


def syntax_errors(files: Sequence[tuple[Path, str]]) -> list[tuple[str, int, str]]:
    """The files that Python cannot compile: the name, the line and the problem. Nothing of them is run.

    Args:
        files: Each file, and the name that it has in the result.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.py")
        >>> _ = path.write_bytes(b"one = 1\\nreturn one\\n")
        >>> syntax_errors([(path, "a.py")])
        [('a.py', 2, "'return' outside function")]
    """
    if not files:
        return []
    try:
        return call_limited(find_syntax_errors, files, _MAX_PYTHON_BYTES)
    except LimitExceeded as error:
        return [(files[0][1], 1, f"the {plural(len(files), 'Python file')} cannot be compiled: {error}")]
