"""Who signed a build: the signature over its metadata, and whom a policy allows to sign for a repository."""

from __future__ import annotations

from kernels.resolver.signature_check import signer_of
from kernels.trust.signing_policy import Identity, Policy, Rule

__all__ = ["Identity", "Policy", "Rule", "signer_of"]
