"""What the benchmarks in a kernel's sources subclass."""

from __future__ import annotations

from typing import Any

__all__ = ["Benchmark"]


class Benchmark:
    """Base class of a kernel's benchmarks: each method `benchmark_<workload>` is one workload.

    A fresh instance serves each workload: the runner seeds the random numbers, sets `device` and `kernel`, calls
    `setup_<workload>` (or `setup`, where there is none of that name), calls `benchmark_<workload>` once, compares `out`
    with what `verify_<workload>` returns, where there is one, and then times both.

    Attributes:
        seed: Seed of the random numbers, or None to leave them unseeded.
        device: Name of the Torch device to measure on.
        kernel: The kernel's module.
        out: The tensor, or the tuple of tensors, that a workload writes its result to.
        rtol: How far `out` may be from the reference, as a share of the reference; None for what suits its type.
        atol: How far it may be besides, as a number; None for `rtol` of the reference's largest value.

    Example:
        >>> class Double(Benchmark):
        ...     seed = 0
        ...     def setup(self) -> None:
        ...         self.x = 21
        ...     def benchmark_double(self) -> None:
        ...         self.out = self.kernel(self.x)
        ...     def verify_double(self) -> int:
        ...         return 42
    """

    seed: int | None = None
    device: str = "cpu"
    rtol: float | None = None
    atol: float | None = None
    # On the class, so that a subclass with a constructor of its own need not call this one.
    kernel: Any = None
    out: Any = None

    def setup(self) -> None:
        """Make the inputs, as attributes of the instance; called once before a workload is timed."""
