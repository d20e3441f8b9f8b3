"""The base class of the benchmarks in a kernel's sources."""

from __future__ import annotations

from typing import Any

__all__ = ["Benchmark"]


class Benchmark:
    """Base class of a kernel's benchmarks: each method `benchmark_<workload>` is one workload.

    Each workload has its own instance. The runner seeds the random numbers, sets `device` and `kernel`, calls
    `setup_<workload>` (or `setup`, if it does not exist), calls `benchmark_<workload>` once, compares `out` with the
    result of `verify_<workload>`, if that exists, and then times both.

    Attributes:
        seed: Seed of the random numbers, or None to leave them unseeded.
        device: Name of the Torch device to measure on.
        kernel: The kernel's module.
        out: The result of a workload: a tensor or a tuple of tensors.
        rtol: Tolerance relative to the reference; None for a default that depends on the type.
        atol: Absolute tolerance; None for `rtol` times the reference's largest value.

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
    # On the class, so that a subclass with its own constructor need not call this one.
    kernel: Any = None
    out: Any = None

    def setup(self) -> None:
        """Make the inputs, as attributes of the instance; called once before a workload is timed."""
