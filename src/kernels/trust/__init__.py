"""Whose code may run: publishers, digests, and the policy that says who must sign."""

from __future__ import annotations

from kernels.trust.signing_policy import Identity, Policy, Rule

__all__ = ["Identity", "Policy", "Rule"]
