"""What is needed everywhere and knows nothing about kernels."""

from __future__ import annotations

__all__: list[str] = []
