"""An activation of one half of the last dimension times the other half: `kernel.<activation>_and_mul(out, x)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernels.benchmark import Benchmark

if TYPE_CHECKING:
    import torch

__all__ = ["GeluAndMulBenchmark", "SiluAndMulBenchmark"]


class _GatedBenchmark(Benchmark):
    """What the activations share: float16, 8 batches, a workload for each size of a batch's input."""

    seed: int | None = 42
    #: The activation's name in the kernel and in `torch.nn.functional`.
    activation: str

    def _make(self, size: Sequence[int]) -> None:
        import torch

        rows, width = size
        self.x = torch.randn(8, rows, width, device=self.device, dtype=torch.float16)
        self.out = torch.empty(8, rows, width // 2, device=self.device, dtype=torch.float16)

    def _call(self) -> None:
        getattr(self.kernel, f"{self.activation}_and_mul")(self.out, self.x)

    def _reference(self) -> torch.Tensor:
        import torch

        gate, up = self.x.chunk(2, dim=-1)
        result: torch.Tensor = getattr(torch.nn.functional, self.activation)(gate) * up
        return result

    def setup_small(self) -> None:
        """8 times `[1024, 2048]`."""
        self._make((1024, 2048))

    def benchmark_small(self) -> None:
        """Time the activation."""
        self._call()

    def verify_small(self) -> torch.Tensor:
        """Torch's result, `[8, rows, width / 2]`."""
        return self._reference()

    def setup_medium(self) -> None:
        """8 times `[2048, 4096]`."""
        self._make((2048, 4096))

    benchmark_medium = benchmark_small
    verify_medium = verify_small

    def setup_large(self) -> None:
        """8 times `[4096, 8192]`."""
        self._make((4096, 8192))

    benchmark_large = benchmark_small
    verify_large = verify_small


class SiluAndMulBenchmark(_GatedBenchmark):
    """SiLU of the first half of the last dimension times the second half: `kernel.silu_and_mul(out, x)`, in float16.

    Workloads: 8 batches of `[1024, 2048]` (`small`), `[2048, 4096]` (`medium`) or `[4096, 8192]` (`large`).

    Attributes:
        activation: The name of the activation in the kernel and in `torch.nn.functional`.
    """

    activation = "silu"


class GeluAndMulBenchmark(_GatedBenchmark):
    """Exact GELU of the first half of the last dimension times the second half: `kernel.gelu_and_mul(out, x)`.

    Workloads as in `SiluAndMulBenchmark`.

    Attributes:
        activation: The name of the activation in the kernel and in `torch.nn.functional`.
    """

    activation = "gelu"
