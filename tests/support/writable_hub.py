"""A `TestHub` that can be written to with a token."""

from __future__ import annotations

from pathlib import Path

from hub import TestHub

from kernels.serve import HubServer

__all__ = ["TOKEN", "WritableHub"]

TOKEN = "hf_secret"


class WritableHub(TestHub):
    """A `TestHub` with the write side, for those who send `TOKEN`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._server = HubServer(self.catalog, wrap=self._wrap, token=TOKEN, writable=True)
