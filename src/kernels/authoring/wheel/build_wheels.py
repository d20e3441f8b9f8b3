"""Make a wheel of each build."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import parse_wheel_filename
from packaging.version import InvalidVersion, Version

from kernels import settings
from kernels.authoring.compile.builder import build_here
from kernels.authoring.compile.freshness import refuse_stale, stale_builds
from kernels.authoring.compile.sources.workspace import Workspace, find_workspace
from kernels.authoring.publish.local_builds import LocalBuild, LocalBuilds, read_builds
from kernels.authoring.wheel.archive import write_wheel
from kernels.authoring.wheel.core_metadata import core_metadata, local_version, requirements
from kernels.authoring.wheel.platform_tag import wheel_tag
from kernels.errors import RequestError
from kernels.models.snapshot import BUILD_FOLDER
from kernels.support.formatting import format_value
from kernels.support.written_paths import stay_inside

__all__ = ["BuiltWheel", "build_wheels"]

_LICENSE_FILE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE).*", re.IGNORECASE)


@dataclass(frozen=True)
class BuiltWheel:
    """A wheel.

    Attributes:
        variant: The build that it has.
        path: The file.
        name: The name of the distribution: `pip install <name>`.
        version: Its version.
        tag: The Pythons and systems that it is for: `cp310-abi3-manylinux_2_28_x86_64`.
        requires: The packages that pip installs with it.
    """

    variant: str
    path: Path
    name: str
    version: str
    tag: str
    requires: tuple[str, ...]


def build_wheels(
    folder: os.PathLike[str] | str,
    out: os.PathLike[str] | str | None = None,
    *,
    backends: Iterable[str] | None = None,
    variant: str | None = None,
    version: str | None = None,
    local: bool = True,
    build: bool = False,
) -> list[BuiltWheel]:
    """Make a wheel of each build of a kernel.

    A wheel has the files of a build, unchanged, as the package `<python_name>`: `import <python_name>`. The same builds
    give the same bytes.

    Args:
        folder: The kernel's folder, with `build/<variant>`.
        out: The folder of the wheels. Default: `dist` in the kernel's folder.
        backends: Only builds for these backends. Default: all.
        variant: Only this build.
        version: The version, whose first number is the kernel's version. Default: `<version>.0`.
        local: Whether the version says what the build is for: `1.0+torch213.cu130`. Without it, several wheels can have
            the same name, which is an error.
        build: First build what this machine can build.

    Returns:
        The wheels, by the name of the variant.

    Raises:
        RequestError: There is no such build, a build is stale or cannot be a wheel, or the version is not valid.
        MissingPythonDependency: pyelftools is missing, which reads what a native file needs.
        InvalidMetadata, DigestMismatch, InvalidRepository: A build is not complete or not its own (`read_builds`).

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "torch-ext" / "twice").mkdir(parents=True)
        >>> _ = (folder / "torch-ext" / "twice" / "__init__.py").write_text("def twice(x): return x + x")
        >>> general = '[general]\\nname = "twice"\\nversion = 1\\nlicense = "MIT"\\nedition = 5\\nbackends = ["cpu"]'
        >>> _ = (folder / "build.toml").write_text(general + "\\n[torch-noarch]\\n")
        >>> [(wheel.path.name, wheel.requires) for wheel in build_wheels(folder, build=True)]
        [('twice-1.0+cpu-py3-none-any.whl', ('torch',))]
    """
    workspace = find_workspace(folder)
    root = Path(os.path.realpath(folder)) if workspace is None else workspace.folder
    if build:
        build_here(root)
    builds = read_builds(root)
    chosen = _chosen(builds, backends, variant)
    _refuse_stale(workspace, chosen)
    public = _public_version(builds, version)
    texts = (_description(builds), _licenses(workspace, root))
    planned: dict[str, tuple[BuiltWheel, dict[str, bytes | Path]]] = {}
    to = stay_inside(root / "dist", root) if out is None else Path(os.path.abspath(out))
    for name, each in chosen.items():
        wheel, files = _wheel(name, each, builds, public, local, to, *texts)
        other = planned.setdefault(wheel.path.name, (wheel, files))[0]
        if other is not wheel:
            raise RequestError(
                f"The wheels of {other.variant} and {name} would both be {wheel.path.name}; choose one of them, or let "
                "the version say what each is for."
            )
    for wheel, files in planned.values():
        write_wheel(wheel.path, files, settings.source_date())
    return [wheel for wheel, _ in planned.values()]


def _chosen(builds: LocalBuilds, backends: Iterable[str] | None, variant: str | None) -> dict[str, LocalBuild]:
    chosen = dict(builds.builds)
    if variant is not None:
        chosen = {name: build for name, build in chosen.items() if name == variant}
        if not chosen:
            raise RequestError(f"`variant` is {format_value(variant)}; there are {', '.join(builds.builds)}.")
    if backends is not None:
        wanted, there = set(backends), {build.metadata.backend.type for build in chosen.values()}
        if missing := sorted(wanted - there):
            raise RequestError(f"`backend` is {missing[0]!r}; the builds are for {', '.join(sorted(there))}.")
        chosen = {name: build for name, build in chosen.items() if build.metadata.backend.type in wanted}
    return chosen


def _refuse_stale(workspace: Workspace | None, chosen: Mapping[str, LocalBuild]) -> None:
    if workspace is not None:
        stale = {name: reason for name, reason in stale_builds(workspace).items() if name in chosen}
        refuse_stale(workspace, stale, "and so does --build; delete builds that no machine can rebuild")


def _public_version(builds: LocalBuilds, version: str | None) -> Version:
    major = builds.metadata.version
    if version is None:
        if major is None:
            raise RequestError("The builds have no version; give `version`, for example 1.0.")
        return Version(f"{major}.0")
    try:
        public = Version(version)
    except InvalidVersion:
        public = None
    if public is None or public.local is not None or (major is not None and public.major != major):
        first = "" if major is None else f" that begins with {major}, the kernel's version"
        raise RequestError(f"`version` is {format_value(version)}; expected a version of Python packages{first}.")
    return public


def _description(builds: LocalBuilds) -> str:
    if builds.readme is None:
        return f"# {builds.metadata.name}\n\nA compute kernel. `import {builds.metadata.name.python_name}` loads it.\n"
    text = builds.readme.read_text(encoding="utf-8", errors="replace")
    # The Hub's front matter is not for people.
    return re.sub(r"\A---\n.*?\n---\n", "", text, count=1, flags=re.DOTALL).lstrip("\n")


def _licenses(workspace: Workspace | None, root: Path) -> dict[str, Path]:
    """The files of the licence, by name: those of the source folders, or of the folder of builds."""
    folders = (root,) if workspace is None else workspace.folders
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if _LICENSE_FILE.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                found.setdefault(path.name, path)
    return found


def _wheel(
    name: str,
    build: LocalBuild,
    builds: LocalBuilds,
    public: Version,
    local: bool,
    out: Path,
    description: str,
    licenses: Mapping[str, Path],
) -> tuple[BuiltWheel, dict[str, bytes | Path]]:
    metadata, prefix = build.metadata, f"{BUILD_FOLDER}/{name}/"
    package = metadata.name.python_name
    files = {path.removeprefix(prefix): file.path for path, file in build.files.items()}
    if "__init__.py" not in files:
        raise RequestError(f"{name} has no __init__.py of its own, as builds of older builders; build it again.")
    tag = wheel_tag(build.variant, files)
    version = f"{public}+{local_version(build.variant)}" if local else str(public)
    requires = requirements(name, build.variant, metadata)
    info = f"{package}-{version}.dist-info"
    contents: dict[str, bytes | Path] = {f"{package}/{path}": file for path, file in files.items()}
    contents |= {f"{info}/licenses/{each}": path for each, path in licenses.items()}
    contents[f"{info}/METADATA"] = core_metadata(
        metadata, version, requires, native=tag.abi != "none", licenses=licenses, description=description
    )
    pure = "true" if build.variant.noarch else "false"
    contents[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: kernels\nRoot-Is-Purelib: {pure}\nTag: {tag}\n".encode()
    )
    path = out / f"{package}-{version}-{tag}.whl"
    parse_wheel_filename(path.name)
    return BuiltWheel(name, path, str(metadata.name), version, str(tag), requires), contents
