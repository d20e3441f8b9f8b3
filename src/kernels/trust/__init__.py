"""Whose code may run: publishers, digests, and the policy that says who must sign."""
