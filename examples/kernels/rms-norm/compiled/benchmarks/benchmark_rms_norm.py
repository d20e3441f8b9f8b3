"""Root-mean-square normalisation of the hidden states of models of several widths."""

import torch

from kernels.benchmark import Benchmark


class RMSNorm(Benchmark):
    seed = 42
    eps = 1e-6

    def _make(self, tokens: int, width: int) -> None:
        self.x = torch.randn(tokens, width, device=self.device, dtype=torch.bfloat16)
        self.weight = torch.randn(width, device=self.device, dtype=torch.bfloat16)

    def _call(self) -> None:
        self.out = self.kernel.rms_norm(self.x, self.weight, self.eps)

    def _reference(self) -> torch.Tensor:
        return torch.nn.functional.rms_norm(self.x, self.weight.shape, self.weight, self.eps)

    def setup_one_token(self) -> None:
        self._make(1, 4096)

    def benchmark_one_token(self) -> None:
        self._call()

    def verify_one_token(self) -> torch.Tensor:
        return self._reference()

    def setup_small(self) -> None:
        self._make(256, 1024)

    def benchmark_small(self) -> None:
        self._call()

    def verify_small(self) -> torch.Tensor:
        return self._reference()

    def setup_large(self) -> None:
        self._make(2048, 4096)

    def benchmark_large(self) -> None:
        self._call()

    def verify_large(self) -> torch.Tensor:
        return self._reference()
