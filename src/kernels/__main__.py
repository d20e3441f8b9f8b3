"""`python -m kernels`: the `kernels` command."""

from __future__ import annotations

from kernels.cli import main

if __name__ == "__main__":
    main()
