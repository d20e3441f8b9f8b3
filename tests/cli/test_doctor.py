"""`kernels doctor` tells what was found and what stands in the way, and fails at nothing."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from cuda_toolkits import cuda_toolkit
from hub import TestHub
from typer.testing import CliRunner

import kernels
from kernels.backends import Device
from kernels.cli import app
from kernels.cli.doctor import _toolkit
from kernels.diagnosis import Diagnosis, Finding, diagnose
from kernels.diagnosis.toolkits import ToolkitReport
from kernels.resolver.target import Target
from kernels.support.version import MajorMinor

OFFLINE = {"HF_HUB_OFFLINE": "1"}


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of installed packages: to read all packages of this environment takes a second."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr("kernels.diagnosis.packages.distributions", lambda: distributions(path=[str(folder)]))
    return folder


@pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(),
    reason="Torch is built for CUDA: that is a problem",
)
def test_this_environment_has_no_problems(isolated_env: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.diagnosis.packages.distributions", distributions)
    result = CliRunner().invoke(app, ["doctor", "--json"], env=OFFLINE)
    assert json.loads(result.stdout)["problems"] == []
    assert result.exit_code == 0


def run(*arguments: str, **environment: str) -> str:
    result = CliRunner().invoke(app, ["doctor", *arguments], env=environment)
    none = json.loads(result.stdout)["problems"] == [] if "--json" in arguments else "  none\n" in result.stdout
    assert result.exit_code == (0 if none else 1), result.output
    return result.stdout


def problem(report: Diagnosis, check: str) -> Finding:
    """The one problem that a check has found."""
    [found] = [each for each in report.problems if each.check == check]
    return found


def test_it_prints_the_machine_for_a_person(isolated_env: Path) -> None:
    text = run(**OFFLINE)
    target = Target.current()
    for part in (kernels.__version__, str(target), target.python or "", str(isolated_env), "offline (HF_HUB_OFFLINE)"):
        assert part in text
    assert "\x1b[" not in text


def test_of_a_toolkit_nothing_is_said_about_a_torch_that_is_not_installed() -> None:
    report = ToolkitReport("cuda", "CUDA", "13.0", "/opt/cuda", None, "the path")
    assert _toolkit(report, has_torch=False) == "cuda: CUDA 13.0 in /opt/cuda, from the path"
    assert _toolkit(report, has_torch=True).endswith("from the path; Torch is not built for cuda")


def test_the_toolkits_to_build_with_are_shown(
    isolated_env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(cuda_toolkit(tmp_path / "cuda", "13.0").parents[1]))
    torch = SimpleNamespace(builds={"cuda": MajorMinor(13, 0), "rocm": MajorMinor(7, 0)}, folder=tmp_path / "torch")
    monkeypatch.setattr("kernels.diagnosis.toolkits.this_torch", lambda: torch)
    monkeypatch.setenv("HIPCC", "no-such-hipcc")
    text = run(**OFFLINE)
    assert f"cuda: CUDA 13.0 in {tmp_path / 'cuda'}, from $CUDA_HOME; Torch was built with 13.0" in text
    assert "rocm: none for 7.0, with which Torch was built" in text
    assert "toolkits: rocm: $HIPCC is no-such-hipcc, which is not a program." in text
    said = {each["backend"]: each for each in json.loads(run("--json", **OFFLINE))["toolkits"]}
    assert (said["cuda"]["version"], said["cuda"]["found_by"], said["rocm"]["name"]) == ("13.0", "$CUDA_HOME", None)


def test_as_json_it_is_for_machines(isolated_env: Path) -> None:
    report = json.loads(run("--json", **OFFLINE))
    assert report["version"] == kernels.__version__
    assert Target.from_json(json.dumps(report["target"])) == Target.current()
    assert report["cache"] == {
        "path": str(isolated_env), "repositories": 0, "bytes": 0, "note": "does not exist yet",
    }  # fmt: skip
    assert report["variables"]["HF_HUB_OFFLINE"] == "1"


def test_devices_are_listed_with_their_facts(isolated_env: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = msgspec.structs.replace(
        Target.parse("torch2.9-cu128-x86_64-linux"),
        devices=(Device("cuda", 0, "NVIDIA H200", "9.0", 90, 150_754_820_096), Device("cuda", 1)),
        notes=("rocm: nothing there",),
    )
    monkeypatch.setattr(Target, "current", staticmethod(lambda: machine))
    text = run(**OFFLINE)
    assert "cuda:0" in text
    assert all(part in text for part in ("NVIDIA H200", "9.0", "90", "150.8 GB", "rocm: nothing there", "cuda 12.8"))


def test_the_cache_is_measured_without_counting_a_file_twice(isolated_env: Path) -> None:
    repository = isolated_env / "kernels--acme--relu"
    (repository / "blobs").mkdir(parents=True)
    (repository / "blobs/a").write_bytes(b"x" * 1000)
    (repository / "snapshots").mkdir()
    (repository / "snapshots/link").symlink_to("../blobs/a")
    os.link(repository / "blobs/a", repository / "snapshots/same")
    (isolated_env / "models--acme--other").mkdir()
    link = os.lstat(repository / "snapshots/link").st_size
    cache = diagnose().cache
    assert (cache.repositories, cache.bytes, cache.note) == (1, 1000 + link, None)


def test_a_cache_that_is_no_folder_is_a_problem(isolated_env: Path) -> None:
    isolated_env.write_text("not a folder")
    report = diagnose()
    assert "is not a folder" in (report.cache.note or "")
    assert problem(report, "cache").message == f"{isolated_env} is not a folder."


def test_a_hub_that_answers_is_said_to(hub: TestHub) -> None:
    found = diagnose().hub
    assert (found.endpoint, found.answers, found.note) == (hub.url, True, None)
    assert "answers" in run()


def test_a_hub_that_is_down_is_said_to_be(hub: TestHub) -> None:
    hub.down()
    found = diagnose().hub
    assert found.answers is False
    assert found.note
    assert "does not answer" in run()
    assert problem(diagnose(), "hub").fix


def test_a_hub_that_fails_is_said_to(hub: TestHub) -> None:
    hub.fail(status=503)
    found = diagnose().hub
    assert (found.answers, found.note) == (False, "answered with status 503")


def test_a_folder_of_repositories_is_not_asked(
    isolated_env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path))
    found = diagnose().hub
    assert (found.endpoint, found.answers) == (str(tmp_path), None)
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path / "nowhere"))
    found = diagnose().hub
    assert found.answers is False
    assert "expected" in (found.note or "")


def test_a_hub_that_is_named_and_not_asked_is_a_note(isolated_env: Path) -> None:
    notes = json.loads(run("--json", **OFFLINE, KERNELS_HUB="http://mirror.example"))["notes"]
    assert [each["message"] for each in notes if each["check"] == "hub"] == [
        "HF_HUB_OFFLINE is set: http://mirror.example is not asked, and only kernels in the cache are loaded."
    ]
    assert [each for each in json.loads(run("--json", **OFFLINE))["notes"] if each["check"] == "hub"] == []


def test_a_secret_is_not_printed(isolated_env: Path) -> None:
    text = run(HF_TOKEN="hf_verysecret", **OFFLINE)
    assert "HF_TOKEN=(set)" in text
    assert "verysecret" not in text


@pytest.mark.parametrize("name", ["KERNELS_HUB", "HF_ENDPOINT"])
def test_a_password_in_a_hubs_url_is_not_printed(
    isolated_env: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://ada:secretpw@hub.invalid")
    for arguments in ([], ["--json"]):
        text = run(*arguments, **{name: "http://ada:secretpw@hub.invalid"})
        assert "secretpw" not in text
        assert f"`{name}` is 'http://(hidden)@hub.invalid'" in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KERNELS_CACHE", "~no-such-user/x"),
        ("KERNELS_HUB", "~no-such-user/x"),
        ("KERNELS_HUB", "http://[x"),
        ("KERNELS_HUB", "/nowhere"),
        ("KERNELS_BACKEND", "abacus"),
        ("KERNELS_REFRESH", "soon"),
        ("KERNELS_TRUSTED_PUBLISHERS", "acme/relu"),
        ("KERNELS_POLICY", "/nowhere"),
        ("LOCAL_KERNELS", "relu=/x"),
        ("HF_HUB_ETAG_TIMEOUT", "abc"),
    ],
)
def test_a_setting_that_is_not_valid_is_a_problem_that_names_it(isolated_env: Path, name: str, value: str) -> None:
    report = json.loads(run("--json", **OFFLINE, **{name: value}))
    assert [each for each in report["problems"] if each["message"].startswith(f"`{name}`") and each["fix"]]


def test_a_policy_that_is_none_is_a_problem_with_its_line(isolated_env: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("require-signature = 1")
    report = json.loads(run("--json", **OFFLINE, KERNELS_POLICY=str(policy)))
    assert f"{policy}:1: `require-signature` is 1; expected true or false." in [
        each["message"] for each in report["problems"]
    ]


def test_one_kernel_is_one_kernel(isolated_env: Path) -> None:
    (isolated_env / "kernels--acme--relu").mkdir(parents=True)
    assert "1 kernel, 0 B" in run(**OFFLINE)


def test_on_a_narrow_terminal_nothing_is_cut(
    isolated_env: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kernels.cli.doctor import doctor

    machine = msgspec.structs.replace(Target.parse("torch2.9-cpu-x86_64-linux"), notes=("cuda: " + "words " * 40,))
    monkeypatch.setattr(Target, "current", staticmethod(lambda: machine))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for name, value in {"COLUMNS": "60", "TERM": "dumb", **OFFLINE}.items():
        monkeypatch.setenv(name, value)
    doctor()
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.count("words") for line in lines) == 40
    # A path that is longer than the line can still be copied: the terminal folds it.
    assert all(len(line.split()) <= 2 for line in lines if len(line) > 60)
    assert str(isolated_env) in " ".join(lines).split()


def install(site: Path, name: str, version: str, *lines: str, files: Any = ()) -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""])
    )
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))


def test_packages_that_provide_the_same_module_clash(isolated_env: Path, site: Path) -> None:
    install(site, "other-kernels", "3.1", files=["kernels/__init__.py", "kernels/api.py"])
    message = problem(diagnose(), "packages").message
    assert "Other packages provide the module `kernels`" in message
    assert f"other-kernels 3.1 in {site}" in message


def test_two_installations_of_this_package_clash(isolated_env: Path, site: Path) -> None:
    install(site, "kernels", "0.12.0", files=["kernels/__init__.py"])
    install(site, "Kernels", "0.13.0", files=["kernels/__init__.py"])
    message = problem(diagnose(), "packages").message
    assert f"kernels 0.12.0 in {site}" in message
    assert f"Kernels 0.13.0 in {site}" in message


def test_a_package_that_asks_for_another_version_is_named(isolated_env: Path, site: Path) -> None:
    install(site, "fits", "1.0", "Requires-Dist: kernels>=0.18.2", "Requires-Dist: not a requirement !")
    install(site, "old-client", "4.9", 'Requires-Dist: Kernels<0.13,>=0.6; extra == "hub"')
    assert problem(diagnose(), "packages").message == (
        f"old-client 4.9 requires kernels<0.13,>=0.6, but {kernels.__version__} is installed."
    )


def test_the_interpreter_is_the_one_that_runs(isolated_env: Path) -> None:
    assert diagnose().python == sys.executable
