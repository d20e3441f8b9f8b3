"""Attention by `kernel.flash_attn_func` and `kernel.flash_attn_varlen_func`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernels.benchmark import Benchmark

if TYPE_CHECKING:
    import torch

__all__ = ["FlashAttentionBenchmark", "FlashAttentionCausalBenchmark", "FlashAttentionVarlenBenchmark"]


def _first(result: Any) -> Any:
    """The output, where a kernel gives more beside it."""
    return result[0] if isinstance(result, tuple) else result


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Torch's own attention, `[batch, sequence, heads, size]`, by its plainest implementation."""
    import torch

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal
        )
    return out.transpose(1, 2).contiguous()


class _AttentionBenchmark(Benchmark):
    """What the attentions share: float16 queries, keys and values of one shape."""

    seed: int | None = 42

    def _make(self, *shape: int) -> None:
        import torch

        self.q, self.k, self.v = (torch.randn(shape, device=self.device, dtype=torch.float16) for _ in range(3))
        self.out = torch.empty_like(self.q)


class FlashAttentionBenchmark(_AttentionBenchmark):
    """Attention by `kernel.flash_attn_func(q, k, v, causal=False)`, in float16.

    Workloads: `small` is `[2, 128, 8, 64]`, `medium` `[4, 512, 16, 64]`, `large` `[8, 1024, 32, 128]` (batch, sequence,
    heads, size of a head).

    Attributes:
        causal: Whether a token sees none after it; False.
    """

    causal: bool = False

    def setup_small(self) -> None:
        """`[2, 128, 8, 64]`."""
        self._make(2, 128, 8, 64)

    def benchmark_small(self) -> None:
        """Time the attention."""
        self.out = _first(self.kernel.flash_attn_func(self.q, self.k, self.v, causal=self.causal))

    def verify_small(self) -> torch.Tensor:
        """Torch's result, of the queries' shape."""
        return _attention(self.q, self.k, self.v, self.causal)

    def setup_medium(self) -> None:
        """`[4, 512, 16, 64]`."""
        self._make(4, 512, 16, 64)

    benchmark_medium = benchmark_small
    verify_medium = verify_small

    def setup_large(self) -> None:
        """`[8, 1024, 32, 128]`."""
        self._make(8, 1024, 32, 128)

    benchmark_large = benchmark_small
    verify_large = verify_small


class FlashAttentionCausalBenchmark(FlashAttentionBenchmark):
    """As `FlashAttentionBenchmark`, where a token sees none after it.

    Attributes:
        causal: Whether a token sees none after it; True.
    """

    causal = True


class FlashAttentionVarlenBenchmark(_AttentionBenchmark):
    """Attention by `kernel.flash_attn_varlen_func`: sequences of several lengths, one after the other, in float16.

    Workloads: `small` has 3 sequences of up to 64 tokens and 8 heads of 64, `medium` 5 of up to 256 tokens and 16 heads
    of 64, `large` 8 of up to 512 tokens and 32 heads of 128. Inputs are `[tokens, heads, size of a head]`.
    """

    def _pack(self, lengths: Sequence[int], heads: int, size: int) -> None:
        import torch

        self._make(sum(lengths), heads, size)
        self.lengths = list(lengths)
        ends = torch.tensor([0, *lengths]).cumsum(0)
        self.cu_seqlens = ends.to(device=self.device, dtype=torch.int32)
        self.max_seqlen = max(lengths)

    def setup_small(self) -> None:
        """3 sequences of up to 64 tokens, 8 heads of 64."""
        self._pack((32, 48, 64), 8, 64)

    def benchmark_small(self) -> None:
        """Time the attention."""
        ends, longest = self.cu_seqlens, self.max_seqlen
        self.out = _first(self.kernel.flash_attn_varlen_func(self.q, self.k, self.v, ends, ends, longest, longest))

    def verify_small(self) -> torch.Tensor:
        """Torch's result for each sequence, put together."""
        import torch

        split = [torch.split(each, self.lengths) for each in (self.q, self.k, self.v)]
        parts = [_attention(q[None], k[None], v[None], False)[0] for q, k, v in zip(*split, strict=True)]
        return torch.cat(parts)

    def setup_medium(self) -> None:
        """5 sequences of up to 256 tokens, 16 heads of 64."""
        self._pack((128, 192, 256, 200, 150), 16, 64)

    benchmark_medium = benchmark_small
    verify_medium = verify_small

    def setup_large(self) -> None:
        """8 sequences of up to 512 tokens, 32 heads of 128."""
        self._pack((256, 384, 512, 448, 320, 480, 400, 512), 32, 128)

    benchmark_large = benchmark_small
    verify_large = verify_small
