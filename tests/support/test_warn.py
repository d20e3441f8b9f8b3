"""Warnings: once, and at the line that called this package."""

from __future__ import annotations

import inspect
import warnings

from hub import TestHub

from kernels import get_kernel, has_kernel
from kernels.api import KernelRequest, get_kernels
from kernels.support.warn import KernelsWarning, warn_once


def test_a_warning_is_given_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_once("one")
        warn_once("one")
        warn_once("another")
    assert [str(each.message) for each in caught] == ["one", "another"]
    assert {each.category for each in caught} == {KernelsWarning}


def test_a_warning_points_to_the_line_that_called_also_from_work_done_side_by_side(hub: TestHub) -> None:
    for version in (1, 2):
        hub.make_repo("acme/base", version=version)
        hub.make_repo("acme/relu", version=version, depends=[("acme/base", 1)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", KernelsWarning)
        get_kernel("acme/relu", version=1)
        [*_] = get_kernels([KernelRequest("acme/gone"), KernelRequest("acme/relu")])
        has_kernel("acme/base")
    assert len(caught) == 4
    assert {each.filename for each in caught} == {__file__}
    first = inspect.getsourcelines(test_a_warning_points_to_the_line_that_called_also_from_work_done_side_by_side)[1]
    assert [each.lineno - first for each in caught] == [6, 6, 7, 8]
