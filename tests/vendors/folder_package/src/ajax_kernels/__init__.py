"""Ajax accelerators, as their notes, operators and configurations say; all of them are files of this package."""

from pathlib import Path

from kernels.backends import Backend
from kernels.backends.plugins.json_backend import declare, read_declarations

HERE = Path(__file__).parent


def make() -> Backend:
    backend = declare("ajax", read_declarations(HERE / "ajax.json")["ajax"], None)
    backend.folder = HERE
    return backend
