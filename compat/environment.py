"""Make a Python environment with given packages, and use it again as long as they are the same.

    python compat/environment.py NAME REQUIREMENT... [--folder FOLDER] [--python 3.13] [--borrow] [--option=--pre]

prints the environment's Python. Without `--folder` the environment is `.venv-NAME` at the top of the repository, which
git ignores. It is made with `uv` where there is one (`UV` names another), else with `venv` and `pip`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]


class EnvironmentFailed(Exception):
    """The environment could not be made; the message ends with what the installer said."""


def make_environment(
    name: str,
    requirements: Sequence[str],
    *,
    folder: Path | None = None,
    python: str | None = None,
    borrow: bool = False,
    options: Sequence[str] = (),
) -> Path:
    """Return the Python of an environment that has these packages.

    An environment that was made with the same arguments is used as it is: a requirement without a version is not
    looked up again. Any other is made anew. Several processes may ask at once; one makes it, the others wait.

    Args:
        name: Of the environment: its folder is `.venv-<name>`.
        requirements: What to install, in one resolution: `"kernels==0.17.2"`, the path of a wheel or a project,
            `"--editable=PATH"`.
        folder: Where to make it instead.
        python: Its version (`"3.13"`) or the path of an interpreter; this one if None.
        borrow: Whether it sees the packages of this environment behind its own, so that Torch is not installed twice.
        options: What else to tell the installer; `uv` and `pip` spell most options the same.

    Raises:
        EnvironmentFailed: The interpreter is not there, or a package cannot be installed.

    Example:
        python = make_environment("existing", ["kernels==0.17.2"], borrow=True)
        subprocess.run([python, "-c", "import kernels"], check=True)
    """
    folder = (folder or ROOT / f".venv-{name}").absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    executable = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = folder / "made-with.json"
    wanted = {
        "requirements": list(requirements),
        "python": python or sys.executable,
        "borrowed": _packages_of_this_environment() if borrow else [],
        "options": list(options),
    }
    with FileLock(f"{folder}.lock"):
        if not (executable.exists() and _read(stamp) == wanted):
            shutil.rmtree(folder, ignore_errors=True)
            _create(folder, executable, python)
            if borrow:
                _borrow(executable, wanted["borrowed"])
            if requirements:
                _install(executable, [*options, *requirements])
            stamp.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
    return executable


def find_uv() -> str | None:
    """The path of `uv`: the variable UV, the one of this environment, or the one on PATH."""
    return os.environ.get("UV") or shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")


def _create(folder: Path, executable: Path, python: str | None) -> None:
    if uv := find_uv():
        _run([uv, "venv", "--quiet", "--python", python or sys.executable, str(folder)])
    else:
        interpreter = python or sys.executable
        if interpreter.replace(".", "").isdigit():
            interpreter = f"python{interpreter}"
        if shutil.which(interpreter) is None:
            raise EnvironmentFailed(f"{interpreter} is not installed, and uv, which could fetch it, is not either")
        _run([interpreter, "-m", "venv", "--without-pip", str(folder)])
    if not executable.exists():
        raise EnvironmentFailed(f"{folder} was made without {executable.name}")


def _install(executable: Path, arguments: Sequence[str]) -> None:
    if uv := find_uv():
        _run([uv, "pip", "install", "--quiet", "--python", str(executable), *arguments])
    else:
        pip = [sys.executable, "-m", "pip", "--python", str(executable), "--disable-pip-version-check"]
        _run([*pip, "install", "--quiet", *arguments])


def _packages_of_this_environment() -> list[str]:
    return sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


def _borrow(executable: Path, folders: Sequence[str]) -> None:
    """Put folders at the end of the environment's path, behind its own packages."""
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    Path(_run([str(executable), "-c", query]).strip(), "borrowed.pth").write_text("\n".join(folders) + "\n")


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _run(command: Sequence[str]) -> str:
    kept = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=kept)
    except OSError as error:
        raise EnvironmentFailed(f"{command[0]} cannot be started: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise EnvironmentFailed(f"{' '.join(command)} failed with exit status {done.returncode}:\n{said}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="of the environment: its folder is .venv-NAME")
    parser.add_argument("requirements", nargs="+", metavar="requirement", help="what to install")
    parser.add_argument("--folder", type=Path, help="make it there instead")
    parser.add_argument("--python", metavar="VERSION", help="a version such as 3.13, or a path; default: this Python")
    parser.add_argument("--borrow", action="store_true", help="see the packages of this environment too")
    parser.add_argument("--option", action="append", default=[], help="what else to tell the installer")
    arguments = parser.parse_args()
    try:
        python = make_environment(
            arguments.name,
            arguments.requirements,
            folder=arguments.folder,
            python=arguments.python,
            borrow=arguments.borrow,
            options=arguments.option,
        )
    except EnvironmentFailed as error:
        sys.exit(str(error))
    print(python)


if __name__ == "__main__":
    main()
