"""Normalisations by `kernel.dropout_add_ln_fwd`, with neither dropout nor a residual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.benchmark import Benchmark

if TYPE_CHECKING:
    import torch

__all__ = ["LayerNormBenchmark", "RMSNormBenchmark"]


class _NormBenchmark(Benchmark):
    """What the normalisations share: float16, a weight of ones, a workload for each `[batch, sequence, width]`."""

    seed: int | None = 42
    eps: float = 1e-5
    #: Whether the kernel takes no mean off.
    root_mean_square: bool

    def _make(self, batch: int, sequence: int, width: int) -> None:
        import torch

        self.x = torch.randn(batch, sequence, width, device=self.device, dtype=torch.float16)
        self.weight = torch.ones(width, device=self.device, dtype=torch.float16)
        self.out = torch.empty_like(self.x)

    def _call(self) -> None:
        result = self.kernel.dropout_add_ln_fwd(
            input=self.x.view(-1, self.x.shape[-1]),
            gamma=self.weight,
            beta=None,
            rowscale=None,
            colscale=None,
            x0_subset=None,
            z_subset=None,
            dropout_p=0.0,
            epsilon=self.eps,
            rowscale_const=1.0,
            z_numrows=self.x.shape[1],
            gen=None,
            residual_in_fp32=False,
            is_rms_norm=self.root_mean_square,
        )
        self.out = result[0].view(self.x.shape)

    def _reference(self) -> torch.Tensor:
        import torch

        norm = torch.nn.functional.rms_norm if self.root_mean_square else torch.nn.functional.layer_norm
        result: torch.Tensor = norm(self.x, self.weight.shape, self.weight, eps=self.eps)
        return result

    def setup_small(self) -> None:
        """`[2, 128, 768]`."""
        self._make(2, 128, 768)

    def benchmark_small(self) -> None:
        """Time the normalisation over the last dimension."""
        self._call()

    def verify_small(self) -> torch.Tensor:
        """Torch's result, of the input's shape."""
        return self._reference()

    def setup_medium(self) -> None:
        """`[4, 512, 2048]`."""
        self._make(4, 512, 2048)

    benchmark_medium = benchmark_small
    verify_medium = verify_small

    def setup_large(self) -> None:
        """`[8, 1024, 4096]`."""
        self._make(8, 1024, 4096)

    benchmark_large = benchmark_small
    verify_large = verify_small


class LayerNormBenchmark(_NormBenchmark):
    """Layer normalisation by `kernel.dropout_add_ln_fwd`, with neither dropout nor a residual, in float16.

    Workloads: `small` is `[2, 128, 768]`, `medium` `[4, 512, 2048]`, `large` `[8, 1024, 4096]` (batch, sequence,
    width).

    Attributes:
        eps: Added to the variance; 1e-5.
        root_mean_square: False: the mean is taken off.
    """

    root_mean_square = False


class RMSNormBenchmark(_NormBenchmark):
    """Root-mean-square normalisation by `kernel.dropout_add_ln_fwd`; workloads as in `LayerNormBenchmark`.

    Attributes:
        eps: Added to the mean of the squares; 1e-5.
        root_mean_square: True: no mean is taken off.
    """

    root_mean_square = True
