"""Rotary position embedding of the queries and keys of a layer with grouped heads."""

import torch

from kernels.benchmark import Benchmark


class Rotary(Benchmark):
    seed = 42

    def _make(self, tokens: int, heads: int, key_heads: int, size: int) -> None:
        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device=self.device, dtype=torch.bfloat16)

        self.q, self.k = random(1, heads, tokens, size), random(1, key_heads, tokens, size)
        self.cos, self.sin = random(1, tokens, size).cos(), random(1, tokens, size).sin()

    def _call(self) -> None:
        self.out = self.kernel.apply_rotary_pos_emb(self.q, self.k, self.cos, self.sin)

    def _reference(self) -> tuple[torch.Tensor, ...]:
        cos, sin = self.cos.unsqueeze(1), self.sin.unsqueeze(1)

        def turned(x: torch.Tensor) -> torch.Tensor:
            first, second = x.chunk(2, dim=-1)
            return x * cos + torch.cat((-second, first), dim=-1) * sin

        return turned(self.q), turned(self.k)

    def setup_one_token(self) -> None:
        self._make(1, 32, 8, 128)

    def benchmark_one_token(self) -> None:
        self._call()

    def verify_one_token(self) -> tuple[torch.Tensor, ...]:
        return self._reference()

    def setup_small(self) -> None:
        self._make(256, 16, 8, 64)

    def benchmark_small(self) -> None:
        self._call()

    def verify_small(self) -> tuple[torch.Tensor, ...]:
        return self._reference()

    def setup_large(self) -> None:
        self._make(2048, 32, 8, 128)

    def benchmark_large(self) -> None:
        self._call()

    def verify_large(self) -> tuple[torch.Tensor, ...]:
        return self._reference()
