"""Whether a workload's result equals the reference's, except for rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Comparison", "compare"]

#: A kernel and its reference add in another order and round at other places: results may differ by this many units in
#: the last place of the narrower type.
_ROUNDINGS = 2

#: In float32 and float64 the length of sums matters, not the last place.
_MIN_RTOL = 1e-5

#: For a reference that is all zeros, which gives no scale.
_MIN_ATOL = 1e-8


@dataclass(frozen=True)
class Comparison:
    """Why two results differ by more than rounding ("" if they do not), and their largest difference."""

    reason: str = ""
    largest: float | None = None


def compare(out: Any, expected: Any, *, rtol: float | None = None, atol: float | None = None) -> Comparison:
    """Compare a result with its reference: tensors, numbers, or tuples and lists of them.

    The types and devices may differ. By default `rtol` is 2 units in the last place of the narrower type, at least
    1e-5, and `atol` is `rtol` times the reference's largest value. Integers must be equal. The largest difference is
    None for integers, and if it is not finite.

    Example:
        >>> compare([1, 2], [1, 3]).reason[:56]
        'self.out[1]: Scalars are not equal! Expected 3 but got 2'
    """
    return _compare("self.out", out, expected, rtol, atol)


def _compare(name: str, out: Any, expected: Any, rtol: float | None, atol: float | None) -> Comparison:
    import torch

    if out is None:
        return Comparison(f"{name} is None; the workload or its setup must set it to the result")
    if isinstance(out, (tuple, list)) and isinstance(expected, (tuple, list)):
        if len(out) != len(expected):
            return Comparison(f"{name} has {len(out)} results, the reference {len(expected)}")
        pairs = enumerate(zip(out, expected, strict=True))
        parts = [_compare(f"{name}[{index}]", *pair, rtol, atol) for index, pair in pairs]
        reason = next((part.reason for part in parts if part.reason), "")
        return Comparison(reason, max((part.largest for part in parts if part.largest is not None), default=None))
    if isinstance(out, (int, float)) and isinstance(expected, (int, float)):
        kind = torch.float64 if isinstance(out, float) or isinstance(expected, float) else torch.int64
        out, expected = torch.tensor(out, dtype=kind), torch.tensor(expected, dtype=kind)
    if not isinstance(out, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return Comparison(f"{name} is a {type(out).__name__}, the reference a {type(expected).__name__}")
    if out.is_complex() != expected.is_complex():
        return Comparison(f"{name} is of {out.dtype}, the reference of {expected.dtype}")
    return _compare_tensors(name, out.detach(), expected.detach().to(out.device), rtol, atol)


def _compare_tensors(
    name: str, out: torch.Tensor, expected: torch.Tensor, rtol: float | None, atol: float | None
) -> Comparison:
    import torch

    largest = None
    inexact = [kind for kind in (out.dtype, expected.dtype) if kind.is_floating_point or kind.is_complex]
    if not inexact:
        rtol, atol = 0.0, 0.0
    elif out.shape == expected.shape and out.numel():
        # At least float32, which every device has.
        wide = torch.promote_types(torch.promote_types(out.dtype, expected.dtype), torch.float32)
        out, expected = out.to(wide), expected.to(wide)
        # The difference of equal infinities would be NaN.
        difference = float(torch.where(out == expected, 0.0, (out - expected).abs()).max())
        largest = difference if math.isfinite(difference) else None
        if rtol is None:
            rtol = max(_MIN_RTOL, *(_ROUNDINGS * torch.finfo(kind).eps for kind in inexact))
        if atol is None:
            atol = max(rtol * float(expected.abs().nan_to_num(0.0, 0.0).max()), _MIN_ATOL)
    try:
        torch.testing.assert_close(out, expected, rtol=rtol or 0.0, atol=atol or 0.0, check_dtype=False)
    except AssertionError as error:
        return Comparison(f"{name}: {' '.join(str(error).split())}", largest)
    return Comparison(largest=largest)
