"""What stands in a source folder, file by file: what an id, and whether to build again, are decided by."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kernels.authoring.compile.build_toml.reader import KernelSource
from kernels.authoring.compile.source_files import source_entries, source_files
from kernels.errors import RequestError
from kernels.models.snapshot import BUILD_FOLDER
from kernels.support.documents import TooComplex, check_source
from kernels.support.files import FileTooLarge, open_regular, read_bounded

__all__ = ["SourceHashes", "check_python", "file_fault", "package_files", "python_fault", "read_contents"]

#: The macros that carry a build's id into its sources: Torch's, and tvm-ffi's.
_ID_MACROS = (b"TORCH_EXTENSION_NAME", b"TVM_FFI_EXTENSION_NAME")

#: Folders beside a kernel's code: builds are tried by what is in them, not made of it.
_BESIDE = frozenset({"benchmarks", "tests"})

_CHUNK = 1 << 20

#: The largest Python file that is compiled: a generated module has some 100 kB.
_MAX_PYTHON_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True)
class SourceHashes:
    """The files of a source folder.

    Attributes:
        hashes: SHA-256, in hexadecimal, by the path relative to the folder.
        id: SHA-256, in hexadecimal, of all files and their names.
        naming: The files that mention a macro of the build's id; what they become changes with every id.
        code: SHA-256, in hexadecimal, of those that go into builds: all but tests, benchmarks and Markdown.
    """

    hashes: Mapping[str, str]
    id: str
    naming: frozenset[str]
    code: str = ""


def read_contents(folder: Path) -> SourceHashes:
    """Read a source folder, without `build/`, where builds go.

    Args:
        folder: The folder.

    Example:
        >>> sorted(read_contents(Path(__file__).parent / "include").hashes)
        ['older_glibc.h', 'registration.h']
    """
    hashes, naming = {}, set()
    for name, path in source_files(folder):
        if name.parts[0] == BUILD_FOLDER and len(name.parts) > 1:
            continue
        digest, tail = hashlib.sha256(), b""
        with open_regular(path) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                if any(macro in tail + chunk for macro in _ID_MACROS):
                    naming.add(str(name))
                tail = chunk[-max(map(len, _ID_MACROS)) :]
        hashes[str(name)] = digest.hexdigest()
    code = {name: value for name, value in hashes.items() if not _beside_the_code(name)}
    return SourceHashes(hashes, _together(hashes), frozenset(naming), _together(code))


def _beside_the_code(name: str) -> bool:
    top, _, rest = name.partition("/")
    return top in _BESIDE if rest else top.endswith(".md")


def _together(hashes: Mapping[str, str]) -> str:
    text = "".join(f"{name}\0{value}\n" for name, value in hashes.items())
    # A name need not be Unicode, unless the file is published.
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def package_files(source: KernelSource) -> list[tuple[PurePosixPath, Path]]:
    """The files of a source's Python package that go into its builds.

    Args:
        source: The source.

    Returns:
        Each file's path in the package, and the file.

    Raises:
        RequestError: A link leads out of the source folder, or to a folder; or a name is none that every system can
            have.
    """
    suffixes = {f".{suffix}" for suffix in source.pyext}
    found = []
    for name in source_entries(source.package_dir):
        path = source.package_dir / name
        if path.is_dir():
            raise RequestError(f"{path} is a link to a folder; a package holds its own files.")
        if not path.is_file() or path.suffix not in suffixes or name.name == "_ops.py":
            continue
        if not path.resolve().is_relative_to(source.folder):
            raise RequestError(f"{path} is a link that leads out of {source.folder}; a package holds its own files.")
        if not str(name).isprintable() or "\\" in str(name):
            shown = str(name)[:200]
            raise RequestError(f"{source.package_dir} holds {shown!r}, a name that not every system can have.")
        found.append((name, path))
    return found


def check_python(source: KernelSource) -> None:
    """Refuse a package with a file that Python cannot compile: its builds could not be imported.

    Args:
        source: The source.

    Raises:
        RequestError: There is one; the message has the file and the line.
    """
    for _, path in package_files(source):
        fault = file_fault(path, path.name) if path.suffix == ".py" else None
        if fault is not None:
            line, what = fault
            raise RequestError(f"{path}:{line}: not valid Python: {what}.")


def file_fault(path: Path, name: str) -> tuple[int, str] | None:
    """`python_fault` of a file.

    Args:
        path: The file.
        name: What to call it.
    """
    try:
        return python_fault(read_bounded(path, _MAX_PYTHON_BYTES), name)
    except FileTooLarge:
        return 1, f"it has more than {_MAX_PYTHON_BYTES} bytes"


def python_fault(data: bytes, name: str) -> tuple[int, str] | None:
    """Why Python cannot compile a file, which is not run: the line, and what is wrong there; None where it can.

    Args:
        data: The file.
        name: What to call it.

    Example:
        >>> python_fault(b"one = 1\\nreturn one\\n", "a.py")
        (2, "'return' outside function")
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the file's own making, such as an escape that is none
            check_source(data)
            compile(data, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.lineno or 1, error.msg
    except TooComplex as error:
        return 1, str(error)
    except (ValueError, RecursionError, MemoryError) as error:  # a zero byte; nested beyond reason
        return 1, f"it cannot be compiled ({type(error).__name__})"
    return None
