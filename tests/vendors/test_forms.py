"""A chip that this source does not know joins in each way, does everything, and leaves without a trace."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from acme_kernels_hub import publish_kernels
from hub import TestHub

SCENARIO = Path(__file__).with_name("scenario.py")

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the runtime library is an ELF library"),
]


@pytest.mark.parametrize("form", ["subclass", "plain-object", "package", "json", "vendor-folder"])
def test_a_chip_of_another_vendor_joins_works_and_leaves(
    form: str, acme: Callable[..., str], hub: TestHub, installed: Path
) -> None:
    publish_kernels(hub)
    packages: dict[str, Any] = {"site": installed, "KERNELS_DISABLE_BACKENDS": "acme"} if form == "package" else {}
    held = acme(SCENARIO, form, **packages).split()
    assert held[0] == "it_is_not_known_before"
    assert held[-1] == "nothing_is_left_of_it_afterwards"
