"""The compiler runs of one extension: from the files to compile, their flags and the framework."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from kernels.authoring.compile.build_toml.model import KernelSource
from kernels.authoring.compile.execution.compiler_steps import Compilation, CompileUnit, EmbeddedLibrary, Translation
from kernels.authoring.compile.frameworks.installed import InstalledFramework
from kernels.authoring.compile.plan.sections import PlannedFile
from kernels.authoring.compile.sources.source_files import SourceHashes
from kernels.authoring.compile.toolchains import Toolkit, device_toolchain, link_extension, toolkit_for
from kernels.authoring.compile.toolchains.hipify import hip_translator
from kernels.backends import Backend
from kernels.errors import CompilerNotFound
from kernels.support.logs import logger, warn_once

__all__ = ["plan_compilation"]

_log = logger(__name__)

#: Suffixes of files that no source includes.
_NOT_INCLUDED = frozenset({".ipynb", ".md", ".png", ".py", ".pyi", ".toml"})


def plan_compilation(
    source: KernelSource,
    contents: SourceHashes,
    backend: Backend,
    files: Sequence[PlannedFile],
    id: str,
    framework: InstalledFramework,
) -> Compilation:
    """Plan the compiler runs of an extension.

    Args:
        source: The source.
        contents: The hashes of its files.
        backend: The backend that is built for.
        files: The files to compile.
        id: The build's id.
        framework: What they are compiled against.

    Raises:
        CompilerNotFound: A compiler is not installed.
    """
    # Published sources ask for either macro; Torch's headers declare some functions only where the second one is set.
    macros = [f"-D{backend.name.upper()}_KERNEL", f"-DUSE_{backend.name.upper()}=1"]
    headers = [flag for folder in framework.include for flag in ("-isystem", str(folder))]
    # The id changes with every change of any file: passed to all of them, it would recompile all of them.
    everywhere = not contents.naming <= {file.path for file in files}
    toolkit = _host_toolkit(files, framework)
    embedding = next((file.toolchain.embeds for file in files if file.toolchain.embeds is not None), None)
    linked: list[CompileUnit] = []
    embedded: list[CompileUnit] = []
    for file in files:
        toolchain = file.toolchain
        named = [f"-D{framework.id_macro}={id}"] if everywhere or file.path in contents.naming else []
        flags = toolchain.flags(file.archs, file.flags)
        own = [] if toolkit is None else toolkit.header_flags(device=toolchain.device)
        folders = [*file.includes, *headers, *own]
        asking = embedding.defines if embedding is not None and toolchain.embeds is None else ()
        compiler = tuple(toolchain.command())
        all_flags = toolchain.spelling.arguments([*flags, *named, *macros, *asking, *framework.defines, *folders])
        unit = CompileUnit(file.path, (*compiler, *all_flags), toolchain.spelling, compiler)
        (linked if toolchain.embeds is None else embedded).append(unit)
    compiled_with = list(dict.fromkeys((*file.flags, *file.includes) for file in files if file.toolchain.device))
    toolchains = [file.toolchain for file in files]
    device = device_toolchain(framework.language, framework.toolkit, framework.packages)
    if toolkit is not None and device is not None:
        toolchains.append(device)  # it links what C++ sources call of the accelerator's libraries
    linking = link_extension(toolchains, framework.libraries, framework.torch_lib, compiled_with)
    library = None
    if embedding is not None:
        linker = tuple(embedding.linker())
        library = EmbeddedLibrary(tuple(embedded), linker, embedding.file, embedding.header, embedding.namespace)
    return Compilation(
        folder=source.folder,
        units=tuple(linked),
        link=linking.command,
        libraries=linking.arguments,
        files=tuple(contents.hashes.items()),
        against=framework.full_version,
        spelling=linking.spelling,
        embedded=library,
        environment=linking.environment,
        translation=_translation(source, contents, framework),
    )


def _translation(source: KernelSource, contents: SourceHashes, framework: InstalledFramework) -> Translation | None:
    """The translation of the sources, all files but Python's and texts among them: some may be included."""
    files = [path for path in contents.hashes if PurePosixPath(path).suffix not in _NOT_INCLUDED]
    translator = hip_translator(source.folder, files, framework.language, framework.torch_lib)
    return None if translator is None else Translation(translator, tuple(files))


def _host_toolkit(files: Iterable[PlannedFile], framework: InstalledFramework) -> Toolkit | None:
    """The toolkit whose headers the C++ sources are compiled with; it must be there if device sources need it too."""
    try:
        toolkit = toolkit_for(framework.language, framework.toolkit, framework.packages)
    except CompilerNotFound as error:
        if any(file.toolchain.device for file in files):
            raise
        warn_once(_log, f"C++ sources are compiled without the toolkit's headers and libraries: {error}")
        return None
    for remark in () if toolkit is None else toolkit.remarks:
        warn_once(_log, remark)
    return toolkit
