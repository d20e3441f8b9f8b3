"""What a forward reads of its module is known from its source."""

from __future__ import annotations

import builtins
import contextlib
import functools
from typing import Any

import pytest
import torch
from torch import nn

from kernels.layer.reads import reads_of


def helper(x: Any, module: Any) -> Any:
    return x * module.alpha + deeper(module)


def deeper(module: Any) -> Any:
    return module.beta if hasattr(module, "gamma") else module.delta


class Plain:
    def forward(self, x: Any) -> Any:
        return x * self.weight + self.eps


class Nested:
    def forward(self, x: Any) -> Any:
        def grid(meta: Any) -> Any:
            return meta + self.size

        def unused() -> Any:
            return self.other

        with torch.no_grad():
            return launch(grid, lambda: self.weight, x)


class Guarded:
    def forward(self, x: Any) -> Any:
        eps = self.eps if hasattr(self, "eps") else self.variance_epsilon
        bias = getattr(self, "bias", None)
        try:
            scale = self.scale
        except AttributeError:
            scale = 1
        if "offset" in self.__dict__:
            x = x + self.offset
        return x * self.weight + eps + bias + scale


class Branches:
    def forward(self, x: Any, y: Any = None) -> Any:
        if x.numel() == 0:
            return x
        if x.dim() > 9:
            raise ValueError(self.name)
        x = x * (self.both if self.training else -self.both)
        for each in self.steps:
            x = x + self.inside * each
        y = y or self.fallback
        if y is None:
            x = x + self.left + self.common
            x = -x
        else:
            x = x + self.right + self.common
        match x:
            case 0:
                x = self.matched
        self.set = x
        return x + self.set + self.last


class Early:
    def forward(self, x: Any) -> Any:
        if x.is_cuda:
            return x * self.weight + self.fast
        return x * self.weight + self.slow


class Calls:
    def forward(self, x: Any) -> Any:
        return helper(x, self) + getattr(self, "strict")  # noqa: B009


class Methods:
    def forward(self, x: Any) -> Any:
        return self._norm(x) + sum(self.value for _ in self.layers)


class Suppressed:
    def forward(self, x: Any) -> Any:
        with contextlib.suppress(AttributeError):
            x = x + self.offset
        try:
            x = x + self.scale
        except builtins.AttributeError:
            pass
        return x * self.weight


class LeavesALoop:
    def forward(self, x: Any) -> Any:
        for each in self.steps:
            return x + each
        return x + self.last


class LeavesAMatch:
    def forward(self, x: Any) -> Any:
        match x:
            case 1:
                return self.weight
        return x + self.last


class LeavesAContext:
    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            if self.training:
                return x * self.weight
        return x * self.weight + self.last


class SetsAnyName:
    def forward(self, x: Any) -> Any:
        for name in ("weight", "bias"):
            setattr(self, name, x)
        return self.weight + self.bias


class SetsInItsDictionary:
    def forward(self, x: Any) -> Any:
        self.__dict__["weight"] = x
        return self.weight


class SetsInVars:
    def forward(self, x: Any) -> Any:
        vars(self).update(weight=x)
        return self.weight


class Registers:
    def forward(self, x: Any) -> Any:
        self.register_buffer("scratch", x)
        return self.weight + self.scratch


class CallsWhatSets:
    def forward(self, x: Any) -> Any:
        prepare(self)
        return self.weight + self.scratch


class Rebinds:
    def forward(self, x: Any) -> Any:
        self = x.owner
        return self.weight


def prepare(module: Any) -> None:
    module.scratch = 1


def launch(*arguments: Any) -> Any:
    return arguments


@pytest.mark.parametrize(
    ("cls", "required"),
    [
        (Plain, "eps weight"),
        (Nested, "size weight"),
        (Guarded, "__dict__ weight"),
        (Branches, "both common last steps training"),
        (Early, "weight"),
        (Calls, "alpha strict"),
        (Methods, "_norm layers"),
        (Suppressed, "weight"),
        (LeavesALoop, "steps"),
        (LeavesAMatch, ""),
        (LeavesAContext, "training weight"),
        (SetsAnyName, ""),
        (SetsInItsDictionary, ""),
        (SetsInVars, ""),
        (Registers, "register_buffer weight"),
        (CallsWhatSets, "weight"),
        (Rebinds, ""),
        (nn.LayerNorm, "bias eps normalized_shape weight"),
    ],
)
def test_only_what_every_call_reads_is_required(cls: Any, required: str) -> None:
    assert sorted(reads_of(cls.forward).required) == required.split()


def test_all_that_occurs_is_named() -> None:
    assert {"inside", "left", "right", "matched", "fallback", "name"} <= reads_of(Branches.forward).named
    assert {"alpha", "beta", "delta"} <= reads_of(Calls.forward).named


def test_a_decorated_forward_is_read_below_its_decorators() -> None:
    @functools.wraps(Plain.forward)
    def wrapped(*arguments: Any) -> Any:
        return Plain.forward(*arguments)

    assert reads_of(wrapped).required == {"weight", "eps"}
    assert reads_of(torch.no_grad()(Plain.forward)).required == {"weight", "eps"}


def test_without_a_source_nothing_is_known() -> None:
    made: dict[str, Any] = {}
    exec("def forward(self, x):\n    return self.weight", made)
    for function in (made["forward"], len, functools.partial(print), lambda self: self.x, None):
        assert reads_of(function).required == frozenset()
    wrapped = functools.wraps(Plain.forward)(lambda *arguments: None)
    wrapped.__wrapped__ = wrapped  # type: ignore[attr-defined]
    assert reads_of(wrapped).required == frozenset()
