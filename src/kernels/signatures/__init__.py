"""Who signed a build: the signature over its metadata, and whom a policy allows to sign for a repository."""

from __future__ import annotations

from kernels.signatures.policy import Identity, Policy, Rule
from kernels.signatures.record import signer_of

__all__ = ["Identity", "Policy", "Rule", "signer_of"]
