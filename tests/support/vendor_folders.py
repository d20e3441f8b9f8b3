"""A vendor's folder, written by a test, and the backend that has it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from kernels.backends import Backend, BackendProbe

__all__ = ["FolderBackend", "write_folder"]


class FolderBackend(Backend):
    """A backend with a folder, registered without any of the other ways to join."""

    name = device_type = "acme"
    dispatch_key = "CPU"

    def __init__(self, folder: Path | None, **members: object) -> None:
        self.folder = folder
        for name, value in members.items():
            setattr(self, name, value)

    def probe(self) -> BackendProbe:
        return BackendProbe()


def write_folder(folder: Path, **files: str) -> Path:
    """Write files below a folder; `ops` and `init` are the parts that vendors have, `a__b` is `a/b.py`."""
    paths = {"init": "__init__.py", "ops": "ops/__init__.py"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").touch()
    for name, text in files.items():
        path = folder / paths.get(name, name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return folder
