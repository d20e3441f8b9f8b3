"""Pages about kernels for people: what a mirror has in its tree, and what `kernels serve` shows."""

from __future__ import annotations

from kernels.catalog.writer import CatalogChanges, has_catalog, write_catalog

__all__ = ["CatalogChanges", "has_catalog", "write_catalog"]
