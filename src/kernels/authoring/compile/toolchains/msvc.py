"""Microsoft's C++ compiler and linker, on Windows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from kernels.authoring.compile.toolchains.spelling import MSVC
from kernels.errors import CompilerNotFound
from kernels.support.version import MajorMinor

__all__ = ["Msvc"]

_INSTALL = (
    "the C++ build tools of Visual Studio (winget install Microsoft.VisualStudio.2022.BuildTools, workload "
    "Microsoft.VisualStudio.Workload.VCTools)"
)

#: The time limit for a script of Visual Studio; it looks for every Windows SDK.
_SECONDS = 120


class Msvc:
    """Microsoft's compiler: from the path, as in a developer's prompt, else the one that `vswhere` finds."""

    suffixes = frozenset({".cpp", ".cc", ".cxx", ".c"})
    language = ""
    device = False
    embeds = None
    reads_cxx_flags = True
    reads_device_flags = False
    spelling = MSVC

    def preferring(self, version: MajorMinor | None, packages: Path | None = None) -> Msvc:
        return self

    def compiled_archs(self, archs: Sequence[str]) -> tuple[str, ...]:
        return tuple(archs)

    def command(self) -> list[str]:
        return [_program("cl", self.environment())]

    def linker(self) -> list[str]:
        """The command of the linker."""
        # Not any `link` on the path: Git for Windows has another program of that name.
        return [str(Path(self.command()[0]).with_name(f"link{Path(self.command()[0]).suffix}"))]

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        # Torch is compiled with them, too (torch/utils/cpp_extension.py, COMMON_MSVC_FLAGS and what is added to them).
        flags = ["/nologo", "/std:c++20", "/O2", "/MD", "/EHsc", "/bigobj", "/utf-8"]
        return [*flags, "/Zc:__cplusplus", "/permissive-", "/Zc:preprocessor", "/external:W0", *extra]

    def link_flags(self, torch_lib: Path | None, compiled_with: Sequence[Sequence[str]] = ()) -> list[str]:
        folders = [Path(sys.base_prefix, "libs")]
        return ["/nologo", "/DLL", *(f"/LIBPATH:{folder}" for folder in folders if folder.is_dir())]

    def toolkit(self) -> None:
        return None

    def environment(self) -> Mapping[str, str]:
        """The variables that compiler and linker need; a developer's prompt has set most of them.

        Raises:
            CompilerNotFound: Visual Studio is not installed.
        """
        # Ninja knows the list of headers by its English words.
        english = {"VSLANG": "1033"}
        in_prompt = shutil.which("cl") and os.environ.get("INCLUDE")
        return english if in_prompt else {**_developers_environment(), **english}


@cache
def _developers_environment() -> Mapping[str, str]:
    """The variables of a developer's prompt that differ from those of this process."""
    script = _visual_studio() / "VC" / "Auxiliary" / "Build" / "vcvars64.bat"
    done = _answer([os.environ.get("COMSPEC", "cmd.exe"), "/u", "/c", f'"{script}" >nul && set'], "utf-16-le")
    found = dict(line.partition("=")[::2] for line in done.splitlines() if "=" in line)
    if "INCLUDE" not in found:
        raise CompilerNotFound(f"{script} set no INCLUDE. Install {_INSTALL}.")
    return {name: value for name, value in found.items() if os.environ.get(name) != value}


def _visual_studio() -> Path:
    """The folder of the newest Visual Studio with a C++ compiler (github.com/microsoft/vswhere, "Find VC")."""
    programs = os.environ.get("PROGRAMFILES(X86)", r"C:\Program Files (x86)")
    installed = Path(programs, "Microsoft Visual Studio", "Installer", "vswhere.exe")
    vswhere = str(installed) if installed.is_file() else shutil.which("vswhere")
    if vswhere is None:
        raise CompilerNotFound(f"Compiler not found: looked for cl, and vswhere to find it. Install {_INSTALL}.")
    needed = "Microsoft.VisualStudio.Component.VC.Tools.x86.x64"
    options = ["-latest", "-products", "*", "-requires", needed, "-property", "installationPath", "-utf8"]
    folder = _answer([vswhere, *options], "utf-8").strip()
    if not folder:
        raise CompilerNotFound(f"Visual Studio is installed without a C++ compiler. Install {_INSTALL}.")
    return Path(folder)


def _answer(command: Sequence[str], encoding: str) -> str:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilerNotFound(f"`{subprocess.list2cmdline(command)}` failed: {error}. Install {_INSTALL}.") from error
    return done.stdout.decode(encoding, errors="replace")


def _program(name: str, environment: Mapping[str, str]) -> str:
    path = next((value for key, value in environment.items() if key.upper() == "PATH"), None)
    found = shutil.which(name, path=path)
    if found is None:
        raise CompilerNotFound(f"Compiler not found: looked for {name}. Install {_INSTALL}.")
    return found
