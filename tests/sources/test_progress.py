"""The bar of downloads, where something fails."""

from __future__ import annotations

from typing import Any

import pytest

from kernels.sources import progress
from kernels.sources.progress import downloading, report


def test_after_a_bar_that_could_not_be_made_the_next_one_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    real, made = progress._bar, []

    def broken(size: int) -> Any:
        raise RuntimeError("no room for a bar")

    def counted(size: int) -> Any:
        made.append(real(size))
        return made[-1]

    monkeypatch.setattr("kernels.settings.progress_disabled", lambda: False)
    monkeypatch.setattr(progress, "_bar", broken)
    with pytest.raises(RuntimeError, match="no room"), downloading("acme/relu", 10):
        pass
    monkeypatch.setattr(progress, "_bar", counted)
    for _ in range(2):
        with downloading("acme/relu", 10):
            report(1, 10)
    assert len(made) == 2
