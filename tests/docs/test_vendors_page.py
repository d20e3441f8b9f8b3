"""What the page for vendors shows joins, as a package and a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from doc_pages import ROOT, write_files
from typer.testing import CliRunner

from kernels.cli import app

VENDORS = ROOT / "docs" / "vendors.md"


def test_the_package_of_the_vendors_page_joins_where_it_is_installed(reader: Path) -> None:
    write_files(VENDORS, reader)
    project = reader / "acme-kernels"
    name = re.search(r'\[project\.entry-points\."(.+)"\]\n(.+)', (project / "pyproject.toml").read_text())
    assert name is not None
    group, point = name.groups()
    # What an installer writes, beside the package's own folder.
    info = project / "src" / "acme_kernels-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-kernels\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{point.replace(chr(34), '')}\n")
    code = "from kernels import list_backends; print({e.name: str(e.origin) for e in list_backends()}['acme'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(project / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "installed by acme-kernels 1.0 (acme_kernels:Acme)", done.stderr


def test_the_file_of_the_vendors_page_passes_its_check(reader: Path) -> None:
    write_files(VENDORS, reader)
    result = CliRunner().invoke(app, ["backends", "check", "acme.json"], prog_name="kernels")
    assert (result.exit_code, "nothing failed" in result.output) == (0, True), result.output
