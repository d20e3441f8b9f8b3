"""Translate CUDA sources to HIP with Torch's own translator. Run as a script by the builder.

python hipify_sources.py TRANSLATOR SOURCES OUT LIST FILE...

TRANSLATOR is the folder `torch/utils/hipify`, which is loaded without Torch. Each FILE of the folder SOURCES is written
to the same path in OUT: C++, CUDA and their headers translated, others as they are. LIST gets the paths of those that
the translation changed. A file in OUT that would stay the same is not written: what was compiled of it is still good.
"""

from __future__ import annotations

import importlib
import importlib.util
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

__all__ = ["TRANSLATED_SUFFIXES", "translate"]

#: Suffixes of the files that are translated. `.hip` is HIP already.
TRANSLATED_SUFFIXES = frozenset(
    {".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".ipp", ".tpp"}
)

#: What the translator puts before a source with device code.
_ADDED = '#include "hip/hip_runtime.h"\n'


def translate(translator: Path, sources: Path, out: Path, files: Sequence[str]) -> list[str]:
    """Write the translation of some files.

    Args:
        translator: The folder `torch/utils/hipify`.
        sources: The folder of the sources.
        out: The folder to write to.
        files: The paths of the files, relative to both.

    Returns:
        The files whose translation differs from the source.
    """
    hipify = _load(translator)
    changed = []
    with tempfile.TemporaryDirectory(dir=out.parent, prefix="translating-") as made:
        # The translator makes paths absolute, and reads those outside of its folder as others.
        staging = Path(made).resolve()
        _keep_names(hipify, frozenset(files))
        for name in files:
            original, copy = sources / name, staging / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(original, copy)
            if copy.suffix in TRANSLATED_SUFFIXES and _translated(hipify, staging, copy):
                changed.append(name)
            _write(copy, out / name)
    return changed


def _load(translator: Path) -> ModuleType:
    name = "_torch_hipify"
    spec = importlib.util.spec_from_file_location(
        name, translator / "__init__.py", submodule_search_locations=[str(translator)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{translator} is no Python package")
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    return importlib.import_module(f"{name}.hipify_python")


def _keep_names(hipify: ModuleType, files: frozenset[str]) -> None:
    """Translate each file to its own path.

    By default the translator renames files, `csrc/cuda/a.cuh` to `csrc/hip/a.cuh`, and the names in those includes that
    it can follow. For a header that is found another way (`-I`, a macro), the compiler would get the one for CUDA.
    """
    renamed: Callable[..., str] = vars(hipify)["get_hip_file_path"]

    def path(rel_filepath: str, *args: bool, **options: bool) -> str:
        # Torch's headers have other names for HIP: `ATen/cuda/CUDAContext.h`.
        return rel_filepath if rel_filepath in files else renamed(rel_filepath, *args, **options)

    vars(hipify)["get_hip_file_path"] = path


def _translated(hipify: ModuleType, folder: Path, file: Path) -> bool:
    before = file.read_bytes()
    try:
        # Alone: headers that it includes are not translated by the way, and a second time later.
        hipify.preprocess_file_and_save_result(
            output_directory=str(folder),
            filepath=str(file),
            all_files=[str(file)],
            header_include_dirs=[],
            stats={"unsupported_calls": [], "kernel_launches": []},
            hip_clang_launch=True,  # clang compiles `<<<...>>>` for HIP too
            is_pytorch_extension=True,
            clean_ctx=hipify.GeneratedFileCleaner(keep_intermediates=True),
            show_progress=False,
        )
    except UnicodeDecodeError:  # in a comment of Latin-1, say
        file.write_bytes(before)
        return False
    after = file.read_bytes()
    added = _ADDED.encode()
    if after.startswith(added) and not before.startswith(added):
        # The compiler's messages then have the lines of the source.
        file.write_bytes(added + b"#line 1\n" + after[len(added) :])
    return after != before


def _write(made: Path, to: Path) -> None:
    if to.is_file() and to.read_bytes() == made.read_bytes():
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(made, to)


def _arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments, also those in a file if there are too many for a command line."""
    if arguments and arguments[-1].startswith("@"):
        return [*arguments[:-1], *shlex.split(Path(arguments[-1][1:]).read_text(encoding="utf-8"))]
    return list(arguments)


if __name__ == "__main__":
    given, source_folder, made_in, listed, *names = _arguments(sys.argv[1:])
    result = translate(Path(given), Path(source_folder), Path(made_in), names)
    text = "".join(f"{name}\n" for name in result)
    if not Path(listed).is_file() or Path(listed).read_text(encoding="utf-8") != text:
        Path(listed).write_text(text, encoding="utf-8")
