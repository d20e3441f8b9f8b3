"""SiLU of one half times the other, as in the MLPs of models of several widths."""

import torch

from kernels.benchmark import Benchmark


class SiluAndMul(Benchmark):
    seed = 42

    def _make(self, tokens: int, width: int) -> None:
        self.x = torch.randn(tokens, 2 * width, device=self.device, dtype=torch.bfloat16)

    def _call(self) -> None:
        self.out = self.kernel.silu_and_mul(self.x)

    def _reference(self) -> torch.Tensor:
        gate, up = self.x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    def setup_one_token(self) -> None:
        self._make(1, 14336)

    def benchmark_one_token(self) -> None:
        self._call()

    def verify_one_token(self) -> torch.Tensor:
        return self._reference()

    def setup_small(self) -> None:
        self._make(256, 2816)

    def benchmark_small(self) -> None:
        self._call()

    def verify_small(self) -> torch.Tensor:
        return self._reference()

    def setup_large(self) -> None:
        self._make(1024, 14336)

    def benchmark_large(self) -> None:
        self._call()

    def verify_large(self) -> torch.Tensor:
        return self._reference()
