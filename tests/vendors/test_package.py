"""A vendor's package is installed, and its accelerator is there: no call, no setting."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from acme_kernels_hub import publish_kernels
from acme_packages import add_package
from hub import TestHub
from packaging.version import Version

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the runtime library is an ELF library"),
]

ORIGINS = """
import sys
import kernels
assert "acme_kernels" not in sys.modules
print({entry.name: str(entry.origin) for entry in kernels.list_backends()}.get("acme"))
"""


def test_it_is_discovered_at_the_first_question_and_not_at_import(acme: Callable[..., str], installed: Path) -> None:
    assert acme("-c", ORIGINS, site=installed) == "installed by acme-kernels 1.0 (acme_kernels:Acme)\n"


def test_it_can_be_left_out(acme: Callable[..., str], installed: Path) -> None:
    left_out = {"site": installed, "KERNELS_DISABLE_BACKENDS": "xpu,acme"}
    assert acme("-c", ORIGINS, **left_out) == "None\n"
    ask = "import kernels\ntry: kernels.get_backend('acme')\nexcept ValueError as error: print(error)"
    assert "disabled by KERNELS_DISABLE_BACKENDS" in acme("-c", ask, **left_out)


TWIN = """
from acme_kernels import Acme

class Twin(Acme):
    name = "twin"
    token = "cu"
"""


def test_a_package_whose_entry_point_fails_is_reported_and_takes_nothing_with_it(
    acme: Callable[..., str], installed: Path
) -> None:
    add_package(
        installed,
        "broken",
        "[kernels.backends]\nbroken = broken_backend:Broken\n",
        broken_backend="raise OSError('no')",
    )
    add_package(installed, "twin", "[kernels.backends]\ntwin = twin_backend:Twin\n", twin_backend=TWIN)
    assert acme("-c", ORIGINS, site=installed).startswith("installed by acme-kernels 1.0")
    report = json.loads(acme("-m", "kernels", "doctor", "--json", site=installed, status=1))
    problems = [each["message"] for each in report["problems"]]
    assert report["joined"].keys() == {"acme"}
    assert any("'broken', installed by broken 1.0" in each and "OSError: no" in each for each in problems)
    assert any("twin 1.0" in each and "'cuda' (built in)" in each for each in problems)


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="no pip")
def test_a_real_installer_installs_it(acme: Callable[..., str], tmp_path: Path) -> None:
    try:
        setuptools = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("no build backend")
    if Version(setuptools) < Version("77"):
        pytest.skip("its build backend is too old")
    source, site = tmp_path / "source", tmp_path / "site"
    shutil.copytree(HERE / "acme_package", source)
    # What is installed already may be needed by the build, and nothing is downloaded.
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *options, str(source)], check=True, timeout=120)
    assert acme("-c", ORIGINS, site=site) == "installed by acme-kernels 1.0 (acme_kernels:Acme)\n"


USE = """
from kernels import get_kernel
kernel = get_kernel("acme/activation", version=1)
assert get_kernel("acme/activation", version=1) is kernel
print(kernel.program)
print(get_kernel("acme/activation", version=1, backend="cpu").variant)
"""


def test_the_stages_run_once_in_a_process(
    acme: Callable[..., str], installed: Path, hub: TestHub, tmp_path: Path
) -> None:
    publish_kernels(hub)
    journal = tmp_path / "journal"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(installed), os.environ["PYTHONPATH"]]),
        "ACME_JOURNAL": str(journal),
    }
    said = subprocess.run(
        [sys.executable, "-c", USE], env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=True
    ).stdout
    program, other = said.splitlines()
    assert (program.startswith("program of torch"), other) == (True, "torch-cpu")
    assert [line.split()[1] for line in journal.read_text().splitlines()] == ["before_import", "after_import"]
