"""The example kernels, built once a test run."""

from __future__ import annotations

from example_kernels import example_hub

__all__ = ["example_hub"]
