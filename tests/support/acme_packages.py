"""Installed packages, as an installer leaves them in a folder."""

from __future__ import annotations

from pathlib import Path

__all__ = ["add_package"]


def add_package(site: Path, name: str, entry_points: str, **modules: str) -> None:
    """Leave in a folder of packages what an installer leaves of version 1.0 of one.

    Args:
        site: The folder.
        name: The package.
        entry_points: The text of its `entry_points.txt`.
        modules: Its modules' sources, by name.
    """
    metadata = site / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)
    for module, source in modules.items():
        (site / f"{module}.py").write_text(source)
