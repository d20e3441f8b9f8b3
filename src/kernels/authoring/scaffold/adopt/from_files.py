"""From files to a kernel's folder: what language they are, what they include, and what the folder has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kernels.authoring.compile.toolchains import toolchain_for
from kernels.authoring.scaffold.adopt.compiled import AdoptedFiles, AdoptedSource, compiled_files
from kernels.authoring.scaffold.adopt.cpp_source import read_cpp
from kernels.authoring.scaffold.adopt.noarch import noarch_files
from kernels.authoring.scaffold.adopt.python_source import InlineSources, read_python
from kernels.authoring.scaffold.draft import Draft, draft_kernel
from kernels.authoring.scaffold.guidance import guidance
from kernels.authoring.scaffold.new import check_free, write_files
from kernels.authoring.spdx import license_problem
from kernels.backends import Backend, all_backends
from kernels.errors import RequestError
from kernels.support.files import open_regular
from kernels.support.written_paths import stay_inside

__all__ = ["Adopted", "adopt_kernel"]

#: The suffixes of files with device code, and of C++.
_SUFFIXES = (".cu", ".hip", ".sycl", ".cpp", ".cc", ".cxx")

#: The backend of a kernel in Triton if none is named: most are written for it.
_OF_TRITON = "cuda"

#: Torch adds these to the sources of `load_inline` (torch/utils/cpp_extension.py).
_INLINE_CPP = "#include <torch/extension.h>\n"
_INLINE_CUDA = "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"

#: Torch's name of the host, for C++ without device code.
_HOST = "cpu"

#: The licence of a kernel whose files name none.
_LICENSE = "Apache-2.0"
# The expression in a comment, up to the comment's end (SPDX specification, annex E).
_SPDX = re.compile(r"SPDX-License-Identifier:[ \t]*([A-Za-z0-9(][A-Za-z0-9.+:() -]{0,198})")

_MAX_BYTES = 4 << 20
_MAX_HEADERS = 200
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class Adopted:
    """A kernel that was made from files.

    Attributes:
        folder: Its folder.
        offered: The functions that its package offers.
        notes: What could not be mapped, and what its author should look at.
    """

    folder: Path
    offered: tuple[str, ...]
    notes: tuple[str, ...]


def adopt_kernel(
    files: Sequence[os.PathLike[str] | str],
    name: str | None = None,
    folder: os.PathLike[str] | str | None = None,
    *,
    backends: Iterable[str] | None = None,
    license: str | None = None,
    repo_id: str | None = None,
) -> Adopted:
    """Create a kernel's folder around files that somebody has. The files are read, never run, and copied unchanged.

    Args:
        files: One Python file (with Triton functions, or texts for `load_inline`), or the C++, CUDA or HIP files of one
            kernel. Headers beside them that they include are copied, too.
        name: The kernel's name. Default: that of the first file.
        folder: The new folder, or an empty one. Default: the name, in the working directory.
        backends: Names of backends; one for files that are compiled. Default: those of the files' language.
        license: SPDX expression. Default: that of the lines `SPDX-License-Identifier` in the files, or else Apache-2.0
            and a note.
        repo_id: `org/name`, where the kernel will be published.

    Returns:
        The folder, and what its author should know.

    Raises:
        TypeError: An argument is of another type.
        RequestError: A file is of another kind or has nothing to offer, or as for `new_kernel`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     file = Path(parent, "scale.cpp")
        ...     _ = file.write_text("torch::Tensor scale(torch::Tensor x, double by) { return x * by; }")
        ...     adopt_kernel([file], folder=f"{parent}/scale").offered
        ('scale',)
    """
    paths = [Path(os.path.realpath(each)) for each in files]
    if not paths:
        raise RequestError("`files` is empty; expected at least one file.")
    sources = [AdoptedSource(PurePosixPath(_plain(path)), _read(path)) for path in paths]
    name = _kernel_name(paths[0]) if name is None else name
    target = stay_inside(name if folder is None else folder)
    found = _license(sources) if license is None else license
    options = {"license": _LICENSE if found is None else found, "repo_id": repo_id}
    if any(path.suffix == ".py" for path in paths):
        made = _from_python(name, sources, backends, options)
    else:
        made = _from_cpp(name, sources, _headers(paths), backends, options)
    chosen = [backend for backend in all_backends() if backend.name in made.backends]
    notes = guidance(chosen)
    page = {} if notes is None else {PurePosixPath("GUIDANCE.md"): notes}
    check_free(target)
    write_files({**made.files, **page}, target)
    unknown = () if found is not None else (f"the licence is {_LICENSE}: set that of {sources[0].path} with --license",)
    return Adopted(target, made.offered, (*made.notes, *unknown))


def _license(sources: Sequence[AdoptedSource]) -> str | None:
    """The licence that all files name; None if one names none, or not the same."""
    named = {match[1].strip() if (match := _SPDX.search(each.text)) else "" for each in sources}
    [license, *others] = named
    return None if others or not license or license_problem(license) else license


def _from_python(
    name: str, sources: Sequence[AdoptedSource], backends: Iterable[str] | None, options: dict[str, str | None]
) -> AdoptedFiles:
    if len(sources) > 1:
        raise RequestError(f"`files` has {len(sources)} files; a Python file is taken alone.")
    [file] = sources
    source = read_python(file.data, file.path.name)
    if source.inline is not None and not source.kernels:
        return _from_inline(name, file, source.inline, backends, options)
    return noarch_files(_draft(name, [_OF_TRITON] if backends is None else backends, True, options), file, source)


def _from_inline(
    name: str,
    file: AdoptedSource,
    inline: InlineSources,
    backends: Iterable[str] | None,
    options: dict[str, str | None],
) -> AdoptedFiles:
    """From the texts for `load_inline`: Torch writes the bindings of the listed functions itself."""
    text, suffix = (inline.cuda, ".cu") if inline.cuda.strip() else (inline.cpp, ".cpp")
    before = _INLINE_CUDA if suffix == ".cu" else _INLINE_CPP
    found = {each.name for each in read_cpp(text).functions}
    names = [each for each in inline.functions if each in found]
    if not names:
        raise RequestError(f"{file.path}: load_inline lists no function that its texts define.")
    source = AdoptedSource(PurePosixPath(file.path.stem).with_suffix(suffix), f"{before}{text.strip()}\n".encode())
    made = _from_cpp(name, [source], [], backends, options, names)
    left = [each for each in inline.functions if each not in found]
    note = f"{source.path} is the text that {file.path} gives to load_inline; its classes in Python were not taken"
    missing = [f"{each}, which load_inline lists, was not found in that text" for each in left]
    return AdoptedFiles(made.files, made.offered, (note, *missing, *made.notes), made.backends)


def _from_cpp(
    name: str,
    sources: Sequence[AdoptedSource],
    headers: Sequence[AdoptedSource],
    backends: Iterable[str] | None,
    options: dict[str, str | None],
    names: Sequence[str] = (),
) -> AdoptedFiles:
    chosen = [_backend(sources).name] if backends is None else list(backends)
    draft = _draft(name, chosen, False, options)
    if len(draft.backends) > 1:
        given = ", ".join(backend.name for backend in draft.backends)
        raise RequestError(f"`backends` is {given}; files that are compiled are for one backend.")
    return compiled_files(draft, sources, headers, names)


def _draft(name: str, backends: Iterable[str], noarch: bool, options: dict[str, str | None]) -> Draft:
    license = options["license"]
    assert license is not None
    return draft_kernel(name, backends=backends, noarch=noarch, license=license, repo_id=options["repo_id"])


def _backend(sources: Sequence[AdoptedSource]) -> Backend:
    """The backend of the files' language."""
    languages = {toolchain_for(each.path.name).language for each in sources}
    languages |= {"sycl" for each in sources if b"sycl/sycl.hpp" in each.data}
    device = languages - {""}
    if len(device) > 1:
        raise RequestError(
            f"the files are in {', '.join(sorted(device))}; expected files of one kernel for one device."
        )
    language = next(iter(device), "")
    known = sorted(all_backends(), key=lambda backend: (backend.device_type != _HOST, backend.order))
    return next(backend for backend in known if backend.device_language == language)


def _kernel_name(path: Path) -> str:
    """A kernel's name from that of a file: `001_vector_add.cu` is `kernel-001-vector-add`."""
    stem = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")
    is_name = len(stem) > 1 and stem[0].isalpha()
    return (stem if is_name else f"kernel-{stem}".rstrip("-"))[:96].rstrip("-")


def _plain(path: Path) -> str:
    """The name of a file to adopt, which stands in sources and build files."""
    if path.suffix == ".metal":
        raise RequestError(
            f"{path.name}: a Metal file needs host code in Objective-C++, which is not written here; start with "
            "`kernels init NAME --backends metal`, and copy the file into that folder."
        )
    if path.suffix not in _SUFFIXES and path.suffix != ".py":
        known = ", ".join([*_SUFFIXES, ".py"])
        raise RequestError(f"{path.name!r}: expected a file with one of the suffixes {known}.")
    if _PLAIN_NAME.fullmatch(path.name) is None:
        raise RequestError(f"{path.name!r}: expected a file name of letters, digits and . _ - +; rename the file.")
    return path.name


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise RequestError(f"`files`: {str(path)!r} does not exist.") from None
    except OSError as error:
        raise RequestError(f"`files`: {str(path)!r} cannot be read ({error.strerror or error}).") from None
    if len(data) > _MAX_BYTES:
        raise RequestError(f"{path.name} has more than {_MAX_BYTES >> 20} MiB.")
    return data


def _headers(paths: Sequence[Path]) -> list[AdoptedSource]:
    """The files that the sources include by a path below their own folders, and what those include."""
    found: dict[PurePosixPath, AdoptedSource] = {}
    own = set(paths)
    left = [(path.parent, path) for path in paths]
    while left and len(found) < _MAX_HEADERS:
        root, path = left.pop()
        data = found[PurePosixPath(path.relative_to(root))].data if path not in own else _read(path)
        for include in read_cpp(data.decode("utf-8-sig", "replace")).includes:
            header = path.parent / include[1:-1]
            real = Path(os.path.realpath(header))
            # Of somebody's own folder only: a link or `..` may lead anywhere.
            is_own = include[0] == '"' and not {"..", "/"} & set(Path(include[1:-1]).parts) and real == header
            if not is_own or not real.is_file() or real in own:
                continue
            name = PurePosixPath(header.relative_to(root))
            if name not in found and all(map(_PLAIN_NAME.fullmatch, name.parts)):
                found[name] = AdoptedSource(name, _read(real))
                left.append((root, real))
    return [found[name] for name in sorted(found)]
