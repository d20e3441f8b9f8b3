"""Kernels into a mirror: what `kernels mirror` does.

what to take -> plans -> builds that the mirror does not have -> archives -> commits -> repositories -> the mirror
"""
