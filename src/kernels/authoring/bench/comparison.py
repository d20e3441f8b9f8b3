"""Whether a workload's result is the reference's, but for rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Comparison", "compare"]

#: Results may differ by this many units in the last place of the narrower type: a kernel and its reference add in
#: another order and round at other places.
_ROUNDINGS = 2

#: In float32 and float64 it is the length of sums that counts, not the last place.
_LEAST_SHARE = 1e-5

#: A reference of nothing but zeros has no scale to go by.
_LEAST = 1e-8


@dataclass(frozen=True)
class Comparison:
    """Why two results differ by more than rounding ("" when they do not), and their largest difference."""

    reason: str = ""
    largest: float | None = None


def compare(out: Any, wanted: Any, *, rtol: float | None = None, atol: float | None = None) -> Comparison:
    """Compare a result with its reference: tensors, numbers, or tuples and lists of them.

    Args:
        out: The result.
        wanted: The reference, of the same shape; it may be of another type and on another device.
        rtol: How far they may be apart as a share of the reference; None for 2 units in the last place of the
            narrower of the two types, and at least 1e-5.
        atol: How far besides, as a number; None for `rtol` of the reference's largest value.

    Returns:
        The comparison.

    Example:
        >>> compare([1, 2], [1, 3])
        Comparison(reason='self.out[1] is 2, the reference 3', largest=None)
    """
    return _compare("self.out", out, wanted, rtol, atol)


def _compare(name: str, out: Any, wanted: Any, rtol: float | None, atol: float | None) -> Comparison:
    import torch

    if isinstance(out, torch.Tensor) and isinstance(wanted, torch.Tensor):
        return _tensors(name, out, wanted, rtol, atol)
    if isinstance(out, (tuple, list)) and isinstance(wanted, (tuple, list)):
        return _several(name, out, wanted, rtol, atol)
    if isinstance(out, (int, float)) and isinstance(wanted, (int, float)):
        close = math.isclose(out, wanted, rel_tol=rtol or _LEAST_SHARE, abs_tol=atol or 0.0)
        exact = isinstance(out, int) and isinstance(wanted, int)
        same = out == wanted if exact else close
        return Comparison() if same else Comparison(f"{name} is {out!r}, the reference {wanted!r}")
    if out is None:
        return Comparison(f"{name} is None: the workload, or its setup, must set it to the result")
    return Comparison(f"{name} is a {type(out).__name__}, the reference a {type(wanted).__name__}")


def _several(name: str, out: Any, wanted: Any, rtol: float | None, atol: float | None) -> Comparison:
    if len(out) != len(wanted):
        return Comparison(f"{name} has {len(out)} results, the reference {len(wanted)}")
    each = [_compare(f"{name}[{place}]", *pair, rtol, atol) for place, pair in enumerate(zip(out, wanted, strict=True))]
    differences = [one.largest for one in each if one.largest is not None]
    reason = next((one.reason for one in each if one.reason), "")
    return Comparison(reason, max(differences, default=None))


def _tensors(name: str, out: torch.Tensor, wanted: torch.Tensor, rtol: float | None, atol: float | None) -> Comparison:
    import torch

    if out.shape != wanted.shape:
        return Comparison(f"{name} has the shape {list(out.shape)}, the reference {list(wanted.shape)}")
    if out.is_complex() != wanted.is_complex():
        return Comparison(f"{name} is of {out.dtype}, the reference of {wanted.dtype}")
    if out.is_complex():
        out, wanted = torch.view_as_real(out.resolve_conj()), torch.view_as_real(wanted.resolve_conj())
    out, wanted = out.detach(), wanted.detach().to(out.device)
    types = [dtype for dtype in (out.dtype, wanted.dtype) if dtype.is_floating_point]
    if out.numel() == 0:
        return Comparison(largest=0.0)
    if not types:
        count = int((out != wanted).sum())
        return Comparison(f"{name} differs from the reference in {count} of {out.numel()} values" if count else "")
    share = rtol if rtol is not None else max(_LEAST_SHARE, *(_ROUNDINGS * torch.finfo(dtype).eps for dtype in types))
    # Not every device has float64, and nothing is lost in float32 unless something is wider.
    wide = torch.float64 if torch.float64 in types else torch.float32
    out, wanted = out.to(wide), wanted.to(wide)
    # Equal infinities do not differ; their difference would be no number.
    largest = float(torch.where(out == wanted, torch.zeros_like(out), (out - wanted).abs()).max())
    scale = float(torch.where(wanted.isfinite(), wanted.abs(), torch.zeros_like(wanted)).max())
    absolute = atol if atol is not None else max(share * scale, _LEAST)
    if torch.allclose(out, wanted, rtol=share, atol=absolute):
        return Comparison(largest=largest)
    bad = ~torch.isclose(out, wanted, rtol=share, atol=absolute)
    place = [int(index) for index in bad.nonzero()[0]]
    return Comparison(
        f"{name} differs from the reference in {int(bad.sum())} of {out.numel()} values, by {largest:.3g} at most, "
        f"first at {place}: {float(out[tuple(place)]):.6g} for {float(wanted[tuple(place)]):.6g} "
        f"(allowed: rtol {share:.2g}, atol {absolute:.2g})",
        largest if math.isfinite(largest) else None,
    )
