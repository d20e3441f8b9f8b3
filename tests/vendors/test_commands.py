"""Commands know a vendor's accelerator as soon as it has joined."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from acme_kernels_hub import compiled, publish_kernels
from hub import TestHub

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the runtime library is an ELF library"),
]

RUN = """
import json, sys
from typer.testing import CliRunner
from kernels.cli import app

for arguments in sys.argv[1:]:
    done = CliRunner().invoke(app, arguments.split())
    print(json.dumps([done.exit_code, json.loads(done.stdout)]))
"""


def answers(output: str) -> list[Any]:
    """What each command printed; each succeeded."""
    results = [json.loads(line) for line in output.splitlines()]
    assert {code for code, _ in results} == {0}, output
    return [answer for _, answer in results]


# How it joins without a call: the folder of installed packages, and the environment.
WAYS = {
    "package": ("installed", {}),
    "json": ("extended_torch", {"KERNELS_BACKENDS_JSON": str(HERE / "acme.json")}),
    "vendor-folder": ("extended_torch", {"KERNELS_VENDOR_PATH": str(HERE / "acme_vendor")}),
}


@pytest.mark.parametrize("way", WAYS)
def test_commands_find_it_choose_for_it_and_check_it(
    way: str, acme: Callable[..., str], hub: TestHub, request: pytest.FixtureRequest
) -> None:
    publish_kernels(hub)
    packages, environment = WAYS[way]
    listed, report, chosen, refused, checked = answers(
        acme(
            "-c",
            RUN,
            "backends list --json",
            "doctor --json",
            "explain acme/activation --version 1 --backend acme --json",
            "explain acme/other --version 1 --json",
            "backends check acme --json",
            site=request.getfixturevalue(packages),
            KERNELS_BACKEND="acme",  # also where Torch was built for another one
            **environment,
        )
    )
    (row,) = [each for each in listed["backends"] if each["name"] == "acme"]
    assert (row["found"], row["version"], [each["arch"] for each in row["devices"]]) == (True, "1.2", ["a100x"])
    assert report["joined"].keys() == {"acme"}
    assert not [each for each in report["problems"] if "acme" in each]
    assert chosen["chosen"] == compiled("acme12")
    assert refused["chosen"] is None
    assert all("a100x" in each["reason"] and "b200y" in each["reason"] for each in refused["variants"])
    lacking = [each for each in checked["findings"] if each["verdict"] not in ("ok", "skipped")]
    assert [each["what"] for each in lacking if not each["what"].startswith("optional")] == []


@pytest.mark.parametrize(
    ("archs", "best", "reason"),
    [
        ("+a100x", "torch213-cxx11-acme12-x86_64-linux", "fits, but"),
        ("+2xb200y", None, "b200y"),
        ("", "torch213-cxx11-acme12-x86_64-linux", "fits, but"),
    ],
)
def test_another_machine_of_its_kind_is_judged_where_nothing_of_it_is_installed(
    acme: Callable[..., str], hub: TestHub, archs: str, best: str | None, reason: str
) -> None:
    for variant in ("torch213-cxx11-acme12-x86_64-linux", "torch-acme"):
        hub.make_repo(variants=[variant], metadata={"backend": {"type": "acme", "archs": ["a100x"]}})
    (judged,) = answers(
        acme(
            "-c",
            RUN,
            f"explain acme/relu --version 1 --target torch2.13-acme12-x86_64-linux{archs} --json",
            KERNELS_BACKENDS_JSON=str(HERE / "acme.json"),
            PATH=os.environ["PATH"].partition(os.pathsep)[2],
            LD_LIBRARY_PATH="",
        )
    )
    assert judged["chosen"] == best
    assert all(reason in each["reason"] for each in judged["variants"] if each["verdict"] != "chosen")


USE = """
import logging
import sys
import kernels

logging.basicConfig(stream=sys.stdout, format="%(message)s")
for name, backend in (("activation", None), ("portable", None), ("activation", None), ("portable", "cpu")):
    kernels.get_kernel(f"acme/{name}", version=1, backend=backend)
"""


def test_an_experimental_one_warns_once_naming_itself(
    acme: Callable[..., str], extended_torch: Path, hub: TestHub, tmp_path: Path
) -> None:
    publish_kernels(hub)
    further = tmp_path / "further.json"
    further.write_text('{"acme": {"experimental": true}}')
    files = os.pathsep.join([str(HERE / "acme.json"), str(further)])
    environment = {"KERNELS_BACKENDS_JSON": files, "KERNELS_BACKEND": "acme"}
    warnings = acme("-c", USE, site=extended_torch, **environment).splitlines()
    assert len(warnings) == 1, warnings
    assert "'acme'" in warnings[0]
    assert "experimental" in warnings[0]
