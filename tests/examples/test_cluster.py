"""The recipes of `examples/cluster/`: their commands run here, and what they set is what the commands wrote."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from hub import TestHub

from kernels.cli import app
from kernels.models.lockfile import HASHES_FILE, LOCK_FILE
from kernels.models.project import KernelProject
from kernels.operations.lock import lock_project

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
SCRIPTS = sorted((CLUSTER / "slurm").iterdir())
MANIFESTS = sorted((CLUSTER / "kubernetes").iterdir())
README = (CLUSTER / "README.md").read_text(encoding="utf-8")

TRAIN = """
import json, os, socket
from kernels import get_kernel
class Refused:
    def __init__(self, *arguments, **options):
        raise AssertionError("a socket was opened")
socket.socket = Refused
lock = os.environ["KERNELS_LOCKFILE"]
print(json.dumps([get_kernel("acme/relu", version=1).__file__, lock, open(lock).read()]))
"""

#: What stands in for Slurm: one node, one task, options aside.
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""


def id_of(path: Path) -> str:
    return path.name


@pytest.fixture
def project(hub: TestHub, tmp_path: Path) -> Path:
    """A project with a lock and a `train.py`."""
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"])
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[tool.kernels.dependencies]\n"acme/relu" = 1\n')
    lock_project(KernelProject.read(folder), hashes=True).write()
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that has this `kernels` and this `python`, and a stand-in for `srun`."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in {
        "kernels": f'#!/usr/bin/env bash\nexec {shlex.quote(sys.executable)} -m kernels "$@"\n',
        "python": f'#!/usr/bin/env bash\nexec {shlex.quote(sys.executable)} "$@"\n',
        "srun": SRUN,
    }.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    return {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "TMPDIR": os.fspath(tmp_path)}


def run(script: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifests(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


def container(name: str) -> dict[str, Any]:
    [job] = [each for each in manifests(CLUSTER / "kubernetes" / name) if each["kind"] == "Job"]
    [found] = job["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.skipif(shutil.which("bash") is None, reason="the recipes are for bash")
@pytest.mark.parametrize("script", SCRIPTS, ids=id_of)
def test_the_scripts_are_valid(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True, timeout=30)


@pytest.mark.skipif(shutil.which("bash") is None, reason="the recipes are for bash")
def test_slurm_prefetches_once_and_runs_without_a_network(
    hub: TestHub, project: Path, machine: dict[str, str], tmp_path: Path
) -> None:
    machine |= {
        "PROJECT": os.fspath(project),
        "TARGETS": "torch2.9-cpu-x86_64-linux torch2.9-cu128-x86_64-linux+sm_90",
    }
    said = run(CLUSTER / "slurm" / "prefetch.sh", machine)
    assert "Downloaded 2 builds of 2" in said
    hub.clear()
    assert "Nothing to do: 2 builds are present." in run(CLUSTER / "slurm" / "prefetch.sh", machine)
    assert hub.count("/resolve/") == 0
    hub.down()
    machine |= {"SLURM_JOB_ID": "7"}
    here = tmp_path / "kernels-7"
    for left in ("nothing", "kernels of a run that was requeued"):
        if left != "nothing":
            here.mkdir()
            (here / "kernels.lock").write_text(left)
        *verified, printed = run(CLUSTER / "slurm" / "job.sbatch", machine).splitlines()
        assert verified[-1] == "1 build: nothing failed."
        loaded, lock, content = json.loads(printed)
        assert loaded.startswith(os.fspath(here / "kernels--acme--relu" / "snapshots" / hub.commit()))
        assert lock == os.fspath(project / "kernels.lock")
        assert content == (project / "kernels.lock").read_text()
        assert not here.exists()
    (project / "kernels.hashes.json").unlink()
    done = subprocess.run(
        ["bash", CLUSTER / "slurm" / "job.sbatch"],
        env=machine,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, "no lockfile pins its content, and --require pinned" in done.stdout) == (1, True)


@pytest.mark.parametrize("path", MANIFESTS, ids=id_of)
def test_the_manifests_are_complete(path: Path) -> None:
    for each in manifests(path):
        assert {"apiVersion", "kind", "metadata", "spec"} <= set(each)
        if each["kind"] != "Job":
            continue
        pod = each["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounted = [mount for each in pod["containers"] for mount in each["volumeMounts"]]
        assert {mount["name"] for mount in mounted} == volumes


def test_what_kubernetes_prefetches_is_what_it_runs_with(
    hub: TestHub, project: Path, machine: dict[str, str], tmp_path: Path
) -> None:
    prefetch, ran = container("prefetch.yaml"), container("run.yaml")
    places = {"/lock": project, "/kernels": tmp_path / "volume", "/cache": tmp_path / "cache of the job"}
    assert {mount["mountPath"] for mount in prefetch["volumeMounts"]} == set(places)

    def here(text: str) -> str:
        for path, place in places.items():
            if text == path or text.startswith(f"{path}/"):
                return os.fspath(place) + text[len(path) :]
        return text

    # What the README puts into the volume of the lock, under the names that it has there.
    [create] = [line for line in README.splitlines() if "kubectl create configmap" in line]
    carried = [word.removeprefix("--from-file=") for word in shlex.split(create) if word.startswith("--from-file=")]
    assert carried == [LOCK_FILE, HASHES_FILE]
    (tmp_path / "volume" / "lost+found").mkdir(parents=True)  # as a fresh volume has it
    this_one = ["--target", "torch2.9-cpu-x86_64-linux"]  # the job runs here, too
    command = [*prefetch["command"], *map(here, prefetch["args"]), *this_one]
    environment = machine | {each["name"]: here(each["value"]) for each in prefetch["env"]}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "Downloaded 2 builds of 2" in done.stdout) == (0, True), done.stderr
    settings = {each["name"]: each["value"] for each in ran["env"]}
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in ran["volumeMounts"]}
    assert mounts == {"/lock": True, "/kernels": True, "/cache": False}
    assert settings["KERNELS_HUB"] == "/kernels"
    assert (settings["KERNELS_LOCKED"], settings["HF_HUB_OFFLINE"]) == ("1", "1")
    assert Path(here(settings["KERNELS_LOCKFILE"])).read_bytes() == (project / LOCK_FILE).read_bytes()
    assert (tmp_path / "volume" / HASHES_FILE).read_bytes() == (project / HASHES_FILE).read_bytes()
    hub.down()
    shell, option, line = ran["command"]
    environment = machine | {name: here(value) for name, value in settings.items()}
    command = [shell, option, line.replace("/app", shlex.quote(os.fspath(project)))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    loaded, lock, _ = json.loads(done.stdout.splitlines()[-1])
    assert loaded.startswith(os.fspath(tmp_path / "cache of the job"))
    assert lock == os.fspath(project / LOCK_FILE)


def test_the_policy_of_the_run_lets_nothing_out() -> None:
    [policy] = [each for each in manifests(CLUSTER / "kubernetes" / "run.yaml") if each["kind"] == "NetworkPolicy"]
    [job] = [each for each in manifests(CLUSTER / "kubernetes" / "run.yaml") if each["kind"] == "Job"]
    assert policy["spec"]["egress"] == []
    assert policy["spec"]["podSelector"]["matchLabels"] == job["spec"]["template"]["metadata"]["labels"]


def test_every_kernels_command_of_the_recipes_is_one_that_there_is() -> None:
    group = typer.main.get_command(app)
    context = group.make_context("kernels", ["--help"], resilient_parsing=True)
    prefetch = container("prefetch.yaml")
    name, *arguments = [*prefetch["command"][1:], *prefetch["args"]]
    command = group.get_command(context, name)
    assert command is not None
    command.make_context(name, arguments)


def test_every_file_is_in_the_readme() -> None:
    assert [path.name for path in (*SCRIPTS, *MANIFESTS) if f"{path.parent.name}/{path.name}`" not in README] == []


def test_the_containers_run_the_scripts_that_are_there() -> None:
    services = yaml.safe_load((CLUSTER / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert set(services) == {"proxy", "mirror"}
    for name, service in services.items():
        assert service["command"] == f"/{name}/serve.sh"
        assert f"./{name}:/{name}:ro" in service["volumes"]
        script = (CLUSTER / name / "serve.sh").read_text(encoding="utf-8")
        assert all(f"${{{variable}:" in script for variable in service["environment"])


@pytest.mark.parametrize("name", ["proxy", "mirror"])
def test_each_variable_of_a_server_is_in_its_script(name: str) -> None:
    script = (CLUSTER / name / "serve.sh").read_text(encoding="utf-8")
    template = (CLUSTER / name / "nginx.conf.template").read_text(encoding="utf-8")
    variables = set(re.findall(r"\$\{([A-Z_]+)\}", template))
    assert variables == set(re.findall(r"^export ([A-Z_]+)", script, re.MULTILINE))
