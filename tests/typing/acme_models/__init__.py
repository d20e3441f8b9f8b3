"""A library that uses `kernels`, as its author writes it: what type checkers accept and what they reject.

`right_*.py` must pass. In `wrong.py` each line ignores the errors that it must have: an ignored error that does not
occur is an error of its own.
"""
