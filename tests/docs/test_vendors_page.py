"""What the pages for vendors show joins, as a package and a file."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from acme_packages import add_package
from doc_pages import ROOT, names, table, write_files
from typer.testing import CliRunner

from kernels.backends import Device
from kernels.backends.plugins.arch_rules import rule_reason
from kernels.backends.plugins.json_schema import ArchRule
from kernels.cli import app

VENDORS = ROOT / "docs" / "vendors.md"
JOIN = ROOT / "docs" / "join-by-json.md"

needs_pip = pytest.mark.skipif(
    any(importlib.util.find_spec(each) is None for each in ("pip", "hatchling")), reason="needs pip and hatchling"
)


def searched(site: Path) -> str:
    """The folders of modules of a process: installed ones, those of these tests, and what this process was told."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(site), str(ROOT / "tests" / "fixtures"), *([given] if given else [])])


def run(*arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **variables}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_pip
@pytest.mark.parametrize(
    ("value", "devices"), [("acme_kernels:declared", [100, 100]), ("acme_kernels.backend:Acme", [])]
)
def test_the_package_of_the_vendors_page_joins_where_it_is_installed(
    reader: Path, value: str, devices: list[int]
) -> None:
    write_files(VENDORS, reader)
    project = reader / "acme-kernels"
    toml = (project / "pyproject.toml").read_text()
    assert "dependencies" not in toml
    (project / "pyproject.toml").write_text(toml.replace("acme_kernels:declared", value))
    # As the file, with a command in place of the vendor's.
    declared = json.loads((reader / "acme.json").read_text())
    declared["acme"]["archs"]["command"] = [sys.executable, "-c", "print('device 0: a100x\\ndevice 1: a100x')"]
    del declared["acme"]["detect"]
    (project / "src" / "acme_kernels" / "acme.json").write_text(json.dumps(declared))
    site = reader / "site"
    run(
        "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps",
        "--no-build-isolation", "--no-cache-dir", "--target", str(site), str(project),
    )  # fmt: skip
    shutil.rmtree(project)
    code = (
        "from kernels import Target, list_backends\n"
        "print({e.name: str(e.origin) for e in list_backends()}['acme'])\n"
        "print([device.capability for device in Target.current().backend_devices('acme')])"
    )
    shown = run("-c", code, PYTHONPATH=searched(site))
    assert shown.splitlines() == [f"installed by acme-kernels 1.0 ({value})", str(devices)]


def test_the_file_of_the_vendors_page_passes_its_check(reader: Path) -> None:
    write_files(VENDORS, reader)
    result = CliRunner().invoke(app, ["backends", "check", "acme.json"], prog_name="kernels")
    assert (result.exit_code, "nothing failed" in result.output) == (0, True), result.output


def test_each_rule_accepts_and_rejects_what_the_page_says() -> None:
    rows = table("vendors.md", "`exact`")
    assert [names(row[0])[0] for row in rows] == list(get_args(ArchRule))
    for rule, built, *columns in rows:
        for cell, runs in zip(columns, (True, False), strict=True):
            for arch in names(cell):
                reason = rule_reason(names(rule)[0], names(built), Device("acme", 0, arch=arch))  # type: ignore[arg-type]
                assert (reason is None) == runs, (rule, built, arch, reason)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the device is for Linux")
@pytest.mark.parametrize(("extended", "last_line"), [(True, r"=+ 2\d passed.*"), (False, r"=+ 2\d skipped.*")])
def test_the_tests_of_a_kernel_run_where_torch_finds_its_extension_by_itself(
    reader: Path, extended: bool, last_line: str
) -> None:
    pytest.importorskip("torch")
    write_files(JOIN, reader)
    file = json.dumps({"acme": {"device_string": "acme", "archs": ["a100x"]}})
    (reader / "acme.json").write_text(file)
    site = reader / "site"
    if extended:
        toml = (reader / "torch-acme" / "pyproject.toml").read_text()
        points = toml.replace('"', "").replace("project.entry-points.", "")
        extension = "import acme_device\n\n_autoload = acme_device.install\n"
        add_package(site, "torch-acme", points, torch_acme=extension)
    environment = {
        "KERNELS_BACKENDS_JSON": str(reader / "acme.json"),
        "KERNELS_BACKEND": "acme",
        "PYTHONPATH": searched(site),
    }
    run("-m", "kernels", "init", "acme-relu", "--noarch", "--backends", "acme", **environment)
    module = reader / "acme-relu" / "torch-ext" / "acme_relu" / "__init__.py"
    text = module.read_text()
    has_triton = 'importlib.util.find_spec("triton") is not None'
    assert has_triton in text
    module.write_text(text.replace(has_triton, "False"))  # which has no compiler for this device
    run("-m", "kernels", "build", "acme-relu", **environment)
    shown = run("-m", "kernels", "test", "acme-relu", **environment)
    assert re.fullmatch(last_line, shown.splitlines()[-1]), shown
