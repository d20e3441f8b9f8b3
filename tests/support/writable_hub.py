"""A `TestHub` that can be written to with a token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hub import TestHub

from kernels.serve import HubServer

__all__ = ["TOKEN", "WritableHub", "writable_hub"]

TOKEN = "hf_secret"


class WritableHub(TestHub):
    """A `TestHub` with the write side, for those who send `TOKEN`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._server = HubServer(self.catalog, wrap=self._wrap, token=TOKEN, writable=True)


@pytest.fixture
def writable_hub(
    tmp_path: Path, isolated_env: Path, quick_retries: list[float], monkeypatch: pytest.MonkeyPatch
) -> Iterator[WritableHub]:
    """The Hub in use, which takes what is published."""
    with WritableHub(tmp_path / "hub") as server:
        monkeypatch.setenv("KERNELS_HUB", server.url)
        monkeypatch.setenv("KERNELS_HUB_TOKEN", TOKEN)
        yield server
