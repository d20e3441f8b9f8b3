"""The commands that compile and link an extension, and in which order: data, before anything runs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernels.authoring.compile.toolchains import compiler_version
from kernels.authoring.compile.toolchains.spelling import GNU, Spelling
from kernels.errors import RequestError

__all__ = [
    "Compilation",
    "CompileUnit",
    "EmbeddedLibrary",
    "Step",
    "Translation",
    "compiler_steps",
    "working_folder",
]

#: Writes the header of an embedded library; it is run as a script.
_EMBED = Path(__file__).with_name("embed_library.py")


#: Translates CUDA to HIP; it is run as a script.
_HIPIFY = Path(__file__).with_name("hipify_sources.py")


@dataclass(frozen=True)
class CompileUnit:
    """A source to compile.

    Attributes:
        source: Its path, relative to the source folder.
        command: The compiler's command line, without source and object.
        spelling: How the compiler is told the source and the object.
        compiler: The part of the command that is the compiler, which is asked for its version. Default: the first word.
    """

    source: str
    command: tuple[str, ...]
    spelling: Spelling = GNU
    compiler: tuple[str, ...] = ()


@dataclass(frozen=True)
class EmbeddedLibrary:
    """A device library that the other sources embed: a header with its bytes is written before they are compiled.

    Attributes:
        units: Its sources.
        link: The command line that makes the library of their objects, without objects and output.
        file: The name of the library.
        header: The name of the header; its folder is added to the other sources' include folders.
        namespace: The C++ namespace that the header declares.
    """

    units: tuple[CompileUnit, ...]
    link: tuple[str, ...]
    file: str
    header: str
    namespace: str


@dataclass(frozen=True)
class Translation:
    """The translation of CUDA sources to HIP: they are written to a folder of the build, which the compilers run in.

    All files keep their paths, so that the compilers' messages name those of the author.

    Attributes:
        translator: The folder of Torch's translator.
        files: The files that are written, translated or not.
    """

    translator: Path
    files: tuple[str, ...]


@dataclass(frozen=True)
class Compilation:
    """The compiler runs of one extension.

    Attributes:
        folder: The source folder, where the compilers run: the paths in their output are then the same everywhere.
        units: The sources to compile, each once.
        link: The command line that links the objects, without objects and output.
        libraries: The arguments after the objects.
        files: SHA-256 of the folder's files, by their path.
        against: The framework whose headers and libraries are used, with its version.
        spelling: How the linker is told its output.
        embedded: The device library that is made before the units are compiled.
        environment: Environment variables that the compilers need.
        translation: The translation of the sources, before anything is compiled.
    """

    folder: Path
    units: tuple[CompileUnit, ...]
    link: tuple[str, ...]
    libraries: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()
    against: str = ""
    spelling: Spelling = GNU
    embedded: EmbeddedLibrary | None = None
    environment: tuple[tuple[str, str], ...] = ()
    translation: Translation | None = None

    @property
    def all_units(self) -> tuple[CompileUnit, ...]:
        """Every source that is compiled."""
        return (*(self.embedded.units if self.embedded else ()), *self.units)

    def versions(self) -> list[str]:
        """The versions of the framework and of each compiler."""
        asked = {(unit.compiler or unit.command[:1], unit.spelling.version_arguments) for unit in self.all_units}
        if not self.spelling.microsoft:  # its linker is of the compiler's version
            asked.add((self.link, self.spelling.version_arguments))
        return [
            self.against,
            *(f"{shlex.join(each)}: {compiler_version(*each, asked=arguments)}" for each, arguments in sorted(asked)),
        ]

    def fingerprint(self) -> list[str]:
        """Everything that the result depends on, except the sources: command lines and versions."""
        commands = [[*unit.command, unit.source] for unit in self.all_units]
        embedded = [list(self.embedded.link)] if self.embedded else []
        first = [] if self.translation is None else [[str(self.translation.translator)]]
        return [*map(shlex.join, [*first, *commands, *embedded, [*self.link, *self.libraries]]), *self.versions()]


@dataclass(frozen=True)
class Step:
    """A command that makes one file.

    Attributes:
        name: Its name in messages.
        command: The command line.
        inputs: The files that it reads.
        output: The file that it makes.
        spelling: How it is told these.
        compiles: Whether it is a compiler, which lists further files that it reads.
        needed: Further files that it may read, which other steps make.
        movable: How many words at its end can be passed in a file.
        others: Further files that it makes, and writes only if they change.
        note: What else to say if it fails.
    """

    name: str
    command: list[str]
    inputs: list[str]
    output: Path
    spelling: Spelling = GNU
    compiles: bool = False
    needed: tuple[str, ...] = ()
    movable: int = 0
    others: tuple[str, ...] = ()
    note: str = ""


def working_folder(compilation: Compilation, object_dir: Path) -> Path:
    """The folder that the commands run in: the source folder, or that of the translated sources.

    Args:
        compilation: The compiler runs.
        object_dir: The folder of the objects.
    """
    return compilation.folder if compilation.translation is None else object_dir / "hip"


def compiler_steps(compilation: Compilation, name: str, object_dir: Path) -> list[list[Step]]:
    """The commands that compile and link an extension, in their order.

    Args:
        compilation: The compiler runs.
        name: The extension's name, for messages.
        object_dir: The folder of the objects.

    Returns:
        Lists of steps: those of one list need only what the lists before it make. The last one makes the extension.

    Raises:
        RequestError: A path or a flag has a line break or a null byte.
    """
    waves: list[list[Step]] = []
    if compilation.translation is not None:
        waves = [[_translate(compilation.translation, compilation.folder, object_dir)]]
    includes: list[str] = []
    needed: tuple[str, ...] = ()
    embedded = compilation.embedded
    if embedded is not None:
        shaders = [_compile(unit, object_dir) for unit in embedded.units]
        objects = [str(step.output) for step in shaders]
        made = object_dir / "embedded" / embedded.file
        header = made.with_name(embedded.header)
        command = [sys.executable, "-I", str(_EMBED), str(made), str(header), embedded.namespace]
        waves += [
            shaders,
            [_link(embedded.file, embedded.link, objects, made, GNU)],
            [Step(embedded.header, command, [str(made)], header)],
        ]
        includes, needed = [f"-I{header.parent}"], (str(header),)
    steps = [_compile(unit, object_dir, includes, needed) for unit in compilation.units]
    if compilation.translation is not None:
        here = working_folder(compilation, object_dir)
        steps = [replace(step, note=f"Compiled is its translation to HIP: {here / step.name}") for step in steps]
    objects, library = [str(step.output) for step in steps], object_dir / "extension.so"
    link = _link(name, compilation.link, objects, library, compilation.spelling, compilation.libraries)
    waves = [*waves, steps, [link]]
    for step in (step for wave in waves for step in wave):
        if any(set(part) & set("\0\n\r") for part in step.command):
            raise RequestError(f"A path or a flag for {step.name} has a line break or a null byte; remove it.")
    return waves


def _translate(translation: Translation, folder: Path, object_dir: Path) -> Step:
    listed, to = object_dir / "translated.txt", object_dir / "hip"
    own = [sys.executable, "-I", str(_HIPIFY), str(translation.translator), str(folder), str(to), str(listed)]
    return Step(
        "the translation from CUDA to HIP",
        [*own, *translation.files],
        [str(folder / path) for path in translation.files],
        listed,
        movable=len(translation.files),
        others=translation.files,
    )


def _link(
    name: str, command: Sequence[str], objects: list[str], made: Path, spelling: Spelling, after: Sequence[str] = ()
) -> Step:
    rest = [*objects, *spelling.linked(made), *after]
    movable = len(rest) if spelling.reads_files else 0
    return Step(name, [*command, *rest], objects, made, spelling, movable=movable)


def _compile(unit: CompileUnit, object_dir: Path, includes: Sequence[str] = (), needed: tuple[str, ...] = ()) -> Step:
    spelling = unit.spelling
    made = object_dir / "objects" / f"{os.path.normpath(unit.source)}{spelling.object_suffix}"
    # A name that begins like an option must be read as a file.
    source = f"./{unit.source}" if unit.source[0] in "-@/" else unit.source
    command = [*unit.command, *includes, *spelling.compiled(source, made)]
    return Step(unit.source, command, [source], made, spelling, compiles=True, needed=needed)
