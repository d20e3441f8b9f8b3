"""Kernels into a mirror: what `kernels mirror` does.

choices -> plans -> builds that the mirror does not have -> archives -> commits -> repositories -> the mirror
"""
