"""Environments with a Torch each: found by the version of their Torch, or made."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from kernels import settings
from kernels.authoring.compile.frameworks.torch_installation import TorchInstallation, python_in, this_torch, torch_of
from kernels.errors import CompilerNotFound, RequestError
from kernels.support.formatting import format_value

__all__ = ["WantedTorch", "find_torches", "make_environment"]

#: The descriptor of standard error: what the commands print is no answer of this program.
_STDERR = 2

_WANTED = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,4}){1,2})(?:\+([a-z0-9.]{1,40}))?")


@dataclass(frozen=True)
class WantedTorch:
    """The version of a Torch that a user wants to build for.

    Attributes:
        release: Its first two or three numbers.
        local: What it is built for, as its own version says it: `cu128`; None for any.
    """

    release: tuple[int, ...]
    local: str | None = None

    @staticmethod
    def parse(text: str) -> WantedTorch:
        """A version from text.

        Raises:
            RequestError: The text is not `2.9`, `2.9.1` or `2.9+cu128`.

        Example:
            >>> WantedTorch.parse("2.9+cu128")
            WantedTorch(release=(2, 9), local='cu128')
        """
        match = _WANTED.fullmatch(text)
        if match is None:
            raise RequestError(f"`torch` is {format_value(text)}; expected a version such as 2.9, 2.9.1 or 2.9+cu128.")
        return WantedTorch(tuple(map(int, match[1].split("."))), match[2])

    def fits(self, version: str) -> bool:
        """Whether an installed version is the wanted one.

        Example:
            >>> WantedTorch.parse("2.9").fits("2.9.1+cu128"), WantedTorch.parse("2.9+cpu").fits("2.9.1+cu128")
            (True, False)
        """
        try:
            found = Version(version)
        except ValueError:
            return False
        release = found.release[: len(self.release)]
        return release == self.release and self.local in (None, found.local)

    def __str__(self) -> str:
        return ".".join(map(str, self.release)) + ("" if self.local is None else f"+{self.local}")


def find_torches(
    pythons: Iterable[str] = (),
    versions: Iterable[str] = (),
    *,
    make: Callable[[Sequence[str]], None] | None = None,
) -> list[TorchInstallation]:
    """The installations of Torch that a user names.

    Args:
        pythons: Pythons, or folders of environments: the Torch of each.
        versions: Versions of Torch. It is looked for in this Python and in the environments in `KERNELS_TORCH_ENVS`;
            every installation of a version counts.
        make: Called with each command that makes an environment for a version that is not found. Default: a missing
            version is an error.

    Returns:
        The installations, each once: first those of `pythons`.

    Raises:
        RequestError: A Python does not run, or a version is not found.
        CompilerNotFound: A Python has no Torch.
    """
    found = [torch_of(python_in(python)) for python in pythons]
    wanted = [WantedTorch.parse(version) for version in versions]
    folder = settings.torch_environments()
    known = _installed(folder) if wanted else []
    for each in wanted:
        fitting = [torch for torch in known if each.fits(torch.version)]
        if not fitting and make is not None:
            fitting = [make_environment(each, folder, make)]
        if not fitting:
            have = f" Here: {', '.join(dict.fromkeys(torch.version for torch in known))}." if known else ""
            commands = " && ".join(map(shlex.join, _commands(each, folder)))
            raise RequestError(
                f"`torch` is '{each}', which is installed neither here nor in {folder}.{have} --make-envs makes the "
                f"environment; it downloads gigabytes. The commands are: {commands}"
            )
        found += fitting
    return list({torch.folder: torch for torch in found}.values())


def _installed(folder: Path) -> list[TorchInstallation]:
    here = this_torch()
    found = [] if here is None else [here]
    try:
        places = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        places = []
    for place in places:
        try:
            found.append(torch_of(python_in(str(place))))
        except (RequestError, CompilerNotFound):
            continue  # no environment, or one whose Torch was not installed to the end
    return found


def make_environment(wanted: WantedTorch, folder: Path, run: Callable[[Sequence[str]], None]) -> TorchInstallation:
    """Make an environment with a Torch: with uv where it is installed, else with venv and pip.

    Args:
        wanted: The version.
        folder: The folder of the environments.
        run: Called with each command.

    Raises:
        RequestError: A command failed, or is needed and not installed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for command in _commands(wanted, folder):
            run(command)
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=_STDERR)
            if done.returncode:
                raise RequestError(f"`{shlex.join(command)}` ended with exit status {done.returncode}.")
    except OSError as error:
        raise RequestError(f"The environment for Torch {wanted} was not made: {error}") from None
    return torch_of(python_in(str(_place(wanted, folder))))


def _place(wanted: WantedTorch, folder: Path) -> Path:
    return folder / f"torch-{wanted}"


def _commands(wanted: WantedTorch, folder: Path) -> list[list[str]]:
    place, numbers = str(_place(wanted, folder)), ".".join(map(str, wanted.release))
    requirement = f"torch=={numbers}" + (".*" if len(wanted.release) == 2 else "")
    uv = shutil.which("uv")
    if uv is not None:
        backend = [] if wanted.local is None else ["--torch-backend", wanted.local]
        return [
            [uv, "venv", "--allow-existing", "--python", sys.executable, place],
            [uv, "pip", "install", "--python", place, *backend, requirement],
        ]
    if wanted.local is not None:
        raise RequestError(
            f"`torch` is '{wanted}'; for one that is built for {wanted.local}, install uv: pip install uv"
        )
    python = os.path.join(place, "Scripts" if os.name == "nt" else "bin", "python")
    # Isolated: without it, Python imports modules of the current folder first.
    return [[sys.executable, "-I", "-m", "venv", place], [python, "-I", "-m", "pip", "install", requirement]]
