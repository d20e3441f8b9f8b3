"""The Torch that a build is compiled against: this Python's, or that of another environment.

An extension for the stable ABI needs nothing of the Python that it is compiled for. So one builder compiles for the
Torch of every environment on the machine, and none of them needs this package.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.backends.torch_build import cxx11_abi, installed_torch, torch_builds, torch_builds_in, torch_in
from kernels.errors import CompilerNotFound, RequestError
from kernels.support.command import CommandFailed, run_command
from kernels.support.formatting import format_value
from kernels.support.version import MajorMinor

__all__ = ["TorchInstallation", "python_in", "this_torch", "torch_of"]

#: The time limit for the questions to another Python.
_SECONDS = 60.0

#: Runs in the other Python, whatever its version: it imports nothing that is installed there.
_QUESTIONS = """
import importlib.util, json, sysconfig
spec = importlib.util.find_spec("torch")
found = list(spec.submodule_search_locations or []) if spec else []
print(json.dumps({"torch": found[0] if found else None, "include": sysconfig.get_path("include")}))
"""


@dataclass(frozen=True)
class TorchInstallation:
    """An installed Torch.

    Attributes:
        version: Its version.
        folder: The folder of its package, with `include` and `lib`.
        builds: The backends that it was built for, with the versions of their toolkits.
        cxx11_abi: Whether its C++ library uses GCC's new string ABI; None where there is no such choice.
        hip: Whether it was built for HIP: `.cu` sources are then compiled by hipcc.
        python_include: The folder of its Python's headers, which may be absent.
        python: Its Python; None for the one that runs.
    """

    version: str
    folder: Path
    builds: Mapping[str, MajorMinor | None]
    cxx11_abi: bool | None
    hip: bool
    python_include: Path
    python: Path | None = None


def this_torch() -> TorchInstallation | None:
    """The Torch of the Python that runs; None if it is not installed.

    Example:
        >>> torch = this_torch()
        >>> torch is None or "cpu" in torch.builds
        True
    """
    torch, spec = installed_torch(), importlib.util.find_spec("torch")
    if torch is None or spec is None or spec.origin is None:
        return None
    return TorchInstallation(
        version=str(torch.__version__),
        folder=Path(spec.origin).parent,
        builds=torch_builds(),
        cxx11_abi=cxx11_abi(),
        hip=getattr(torch.version, "hip", None) is not None,
        python_include=Path(sysconfig.get_path("include")),
    )


def python_in(place: str) -> Path:
    """The Python that a user means.

    Args:
        place: The path of a Python, of an environment's folder, or the name of a command: `python3.12`.

    Returns:
        Its path. A link is not followed: in an environment it is what makes its packages visible.

    Raises:
        RequestError: There is none.

    Example:
        >>> import sys
        >>> python_in(sys.executable) == Path(sys.executable)
        True
    """
    folder = Path(place).expanduser()
    if folder.is_dir():
        for inside in ("bin/python", "bin/python3", "Scripts/python.exe", "python.exe"):
            if (folder / inside).is_file():
                return (folder / inside).absolute()
        raise RequestError(f"`python` is {format_value(place)}, a folder that has no Python environment.")
    found = shutil.which(folder)
    if found is None:
        raise RequestError(
            f"`python` is {format_value(place)}; expected a Python, the folder of an environment, or a command on the "
            "path."
        )
    return Path(found).absolute()


def torch_of(python: Path) -> TorchInstallation:
    """The Torch of another Python, which runs for a moment; Torch is not imported.

    Args:
        python: The path of the Python.

    Raises:
        RequestError: It does not run, or is no Python.
        CompilerNotFound: It has no Torch, or one whose files do not say what it was built for.
    """
    answer = _ask(python)
    if answer["torch"] is None:
        raise CompilerNotFound(f"{python} has no Torch: {python} -m pip install torch")
    folder = Path(answer["torch"])
    torch = torch_in(folder)
    if torch is None:
        raise CompilerNotFound(
            f"The files in {folder} do not say what this Torch was built for; install this package beside it, and "
            f"build with {python} -m kernels build."
        )
    return TorchInstallation(
        version=str(torch.__version__),
        folder=folder,
        builds=torch_builds_in(torch),
        cxx11_abi=torch.cxx11_abi,
        hip=torch.version.hip is not None,
        python_include=Path(answer["include"]),
        python=python,
    )


def _ask(python: Path) -> Any:
    # Isolated: the variables of this Python (PYTHONPATH) and the current folder are not the other one's.
    try:
        output = run_command([str(python), "-I", "-"], seconds=_SECONDS, given=_QUESTIONS.encode())
    except CommandFailed as error:
        raise RequestError(f"`python`: {error}.") from None
    try:
        # What is installed there may print something at the start.
        answer = json.loads(output.splitlines()[-1])
        if isinstance(answer["include"], str) and isinstance(answer["torch"], str | None):
            return answer
    except (ValueError, TypeError, KeyError, IndexError):
        pass
    raise RequestError(f"{python} is not a Python: its answer is {format_value(output, 200)}.")
