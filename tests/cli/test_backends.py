"""`kernels backends` lists every accelerator with its origin, shows one, and checks a registration step by step."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from logged import warned
from typer.testing import CliRunner

from kernels import backends
from kernels.backend_check.temporary_registration import TemporaryRegistrations
from kernels.backends import Backend, BackendProbe, Device, MajorMinor
from kernels.backends.registration import Origin, Problem
from kernels.cli import app
from kernels.resolver.target import Target


class Acme(Backend):
    name = device_type = "acme"
    versioned = checks_archs = experimental = True
    vendor = "Acme Corporation"
    guidance_block = "Vectors of 256 bits.\nAn escape: \x1b[2J"
    kernel_guidance = "Keep [red]tiles[/red] small."
    cuda_hacks_to_strip = ("import pycuda",)

    def probe(self) -> BackendProbe:
        devices = (Device("acme", 0, "Acme One", "a100x", 100, 64_000_000_000), Device("acme", 1))
        return BackendProbe(True, MajorMinor(1, 2), devices, ("fans are slow",))

    def before_import(self, variant_dir: Path, metadata: object) -> None:
        pass


@pytest.fixture
def acme() -> Iterator[Backend]:
    """A backend of a stranger, registered by this file."""
    with TemporaryRegistrations():
        backend = Acme()
        backends.register_backend(backend)
        yield backend


@pytest.fixture
def with_problem(monkeypatch: pytest.MonkeyPatch) -> str:
    """Something that kept a backend from coming in."""
    message = "Backend 'lost', declared in /etc/lost.json: `token` is 3."
    problem = Problem(Origin("declared", "/etc/lost.json"), message, ("lost",))
    monkeypatch.setattr(backends, "problems", lambda: (problem,))
    return message


def rows(text: str) -> dict[str, str]:
    """The lines of a table by their first word."""
    return {line.split()[0]: line for line in text.splitlines() if line.strip()}


# list


@pytest.mark.parametrize("arguments", [(), ("list",)])
def test_every_backend_is_a_row_with_its_names_and_origin(
    kernels: Callable[..., Any], acme: Backend, arguments: tuple[str, ...]
) -> None:
    result = kernels("backends", *arguments)
    assert result.exit_code == 0
    table = rows(result.stdout)
    assert [name for name in table if name != "Name"] == [each.name for each in backends.all_backends()]
    assert table["cann"].split() == ["cann", "npu", "cann<version>", "npu", "npu", "PrivateUse1", "no", "built", "in"]
    assert table["cpu"].split()[6] == "yes"
    assert table["acme"].split()[:8] == [
        "acme", "acme", "acme<version>", "acme", "acme", "PrivateUse1", "1.2", "registered",
    ]  # fmt: skip
    assert f"registered by {__file__}, line " in table["acme"]
    assert table["acme"].endswith("; experimental")


def test_for_programs_the_list_has_every_fact_of_the_table(kernels: Callable[..., Any], acme: Backend) -> None:
    said = json.loads(kernels("backends", "--json").stdout)
    assert said["problems"] == []
    assert [each["name"] for each in said["backends"]] == [each.name for each in backends.all_backends()]
    [ours] = [each for each in said["backends"] if each["name"] == "acme"]
    place = ours["origin"].pop("place")
    assert place.startswith(f"{__file__}, line ")
    assert ours == {
        "name": "acme",
        "noarch_name": "acme",
        "token": "acme",
        "device_type": "acme",
        "mapping_device": "acme",
        "dispatch_key": "PrivateUse1",
        "versioned": True,
        "checks_archs": True,
        "experimental": True,
        "vendor": "Acme Corporation",
        "origin": {"kind": "run-time"},
        "found": True,
        "version": "1.2",
        "devices": [
            {
                "backend": "acme",
                "index": 0,
                "name": "Acme One",
                "arch": "a100x",
                "capability": 100,
                "memory": 64_000_000_000,
            },
            {"backend": "acme", "index": 1, "name": "", "arch": "", "capability": None, "memory": None},
        ],
    }


def test_what_could_not_come_in_is_listed_below(kernels: Callable[..., Any], with_problem: str) -> None:
    result = kernels("backends")
    assert result.stdout.splitlines()[-1] == f"Not registered  {with_problem}"
    assert json.loads(kernels("backends", "list", "--json").stdout)["problems"] == [
        {"origin": {"kind": "declared", "place": "/etc/lost.json"}, "message": with_problem, "names": ["lost"]}
    ]


def test_the_built_in_ones_fit_a_terminal_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for name, value in {"COLUMNS": "80", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    from kernels.cli.backends import backends as command

    command()
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + len(backends.all_backends())
    assert max(map(len, printed)) <= 80


def test_a_backend_that_the_user_prefers_and_is_not_here_does_not_hide_the_list(
    kernels: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_BACKEND", "abacus")
    result = kernels("backends")
    assert result.exit_code == 0
    assert rows(result.stdout)["cpu"].split()[6] == "yes"


# show


def test_one_backend_is_shown_with_everything_that_is_known_of_it(kernels: Callable[..., Any], acme: Backend) -> None:
    result = kernels("backends", "show", "acme")
    assert result.exit_code == 0
    for line in (
        "Vendor           Acme Corporation",
        "Experimental     yes: warns once when it is used",
        "Compiled builds  acme<version>",
        "Noarch builds    torch-acme",
        "Torch device     acme",
        "In mappings      acme",
        "Dispatch key     PrivateUse1",
        "Architectures    checked against the device's",
        "Python packages  einops, helion, tvm-ffi",
        "Stages           before_import",
        "Found here       yes, version 1.2",
        "Devices          0: Acme One, a100x, capability 100, 64.0 GB",
        "                 1: unknown",
        "Notes            acme: fans are slow",
        "Hardware (guidance_block)",
        "  Vectors of 256 bits.",
        "  An escape: \\x1b[2J",
        "How to write kernels (kernel_guidance)",
        "  Keep [red]tiles[/red] small.",
        "Source lines that are not allowed in a kernel (cuda_hacks_to_strip)",
        "  import pycuda",
    ):
        assert line in [printed for printed in result.stdout.splitlines() if printed.startswith(line)], line


def test_a_backend_is_shown_by_any_of_its_names(kernels: Callable[..., Any]) -> None:
    shown = {kernels("backends", "show", name).stdout for name in ("cann", "npu")}
    assert len(shown) == 1
    assert shown.pop().startswith("Name             cann\n")


def test_what_a_backend_stands_in_for_is_shown(kernels: Callable[..., Any]) -> None:
    class Ours(type(backends.get("cuda"))):  # type: ignore[misc]
        pass

    with TemporaryRegistrations():
        backends.register_backend(Ours(), override=True)
        assert "Replaces         cuda, built in\n" in kernels("backends", "show", "cuda").stdout
        said = json.loads(kernels("backends", "show", "cuda", "--json").stdout)
    assert said["overrides"] == {"kind": "built-in", "place": ""}


def test_what_a_file_adds_to_is_listed_and_shown(kernels: Callable[..., Any], acme: Backend, tmp_path: Path) -> None:
    from kernels.backends.plugins.json_backend import load_backends

    files = [tmp_path / "first.json", tmp_path / "second.json"]
    for file in files:
        file.write_text(json.dumps({"acme": {"kernel_guidance": file.name}}))
        load_backends(file)
    listed = rows(kernels("backends").stdout)["acme"]
    shown = kernels("backends", "show", "acme").stdout
    beneath = f"registered by {__file__}, line "
    assert beneath in listed
    assert listed.endswith(f"; declared in {files[0]}; declared in {files[1]}; experimental")
    assert rows(shown)["Origin"].endswith(f"declared in {files[1]}")
    assert f"\nAdds to          {beneath}" in shown
    assert f"; declared in {files[0]}\n" in shown
    assert "Replaces" not in shown


def test_for_programs_show_has_the_facts_of_the_list_and_more(kernels: Callable[..., Any], acme: Backend) -> None:
    listed = json.loads(kernels("backends", "--json").stdout)["backends"]
    said = json.loads(kernels("backends", "show", "acme", "--json").stdout)
    [ours] = [each for each in listed if each["name"] == "acme"]
    assert {key: said.pop(key) for key in ours} == ours
    assert said == {
        "order": 1000,
        "overrides": None,
        "python_depends": {
            "einops": {"package": "einops", "module": "einops"},
            "helion": {"package": "helion", "module": "helion"},
            "tvm-ffi": {"package": "apache-tvm-ffi", "module": "tvm_ffi"},
        },
        "stages": ["before_import"],
        "folder": None,
        "operators": [],
        "tune_configs": {"operators": {}, "archs": {}},
        "guidance_block": acme.guidance_block,
        "kernel_guidance": acme.kernel_guidance,
        "cuda_hacks_to_strip": ["import pycuda"],
    }


def test_what_a_vendors_folder_offers_is_shown(kernels: Callable[..., Any], tmp_path: Path) -> None:
    from kernels.backends.plugins.vendor_folder import register_vendor

    tuned = "mm: [{META: {M: 1}}, {META: {M: 2}}]\nbmm: [{META: {M: 1}}]\narchs: {a200x: {mm: [{META: {M: 3}}]}}\n"
    place = vendor(tmp_path, "__all__ = ['silu', 'gelu']\ndef silu(x): ...\ndef gelu(x): ...\n", tuned)
    with TemporaryRegistrations():
        register_vendor(place)
        text = kernels("backends", "show", "acme").stdout
        said = json.loads(kernels("backends", "show", "acme", "--json").stdout)
    assert f"Folder           {place}\n" in text
    assert "Operators        2: silu, gelu\n" in text
    assert "Tuned            configurations: mm 2, bmm 1; a200x: mm 1\n" in text
    assert (said["folder"], said["operators"]) == (str(place), ["silu", "gelu"])
    assert said["tune_configs"] == {"operators": {"mm": 2, "bmm": 1}, "archs": {"a200x": {"mm": 1}}}


def test_a_vendors_folder_that_cannot_be_read_is_still_shown(kernels: Callable[..., Any], tmp_path: Path) -> None:
    from kernels.backends.plugins.vendor_folder import register_vendor

    place = vendor(tmp_path, "__all__ = 3", tuned="mm: 3")
    with TemporaryRegistrations():
        register_vendor(place)
        result = kernels("backends", "show", "acme")
        said = json.loads(kernels("backends", "show", "acme", "--json").stdout)
    assert result.exit_code == 0
    assert "`__all__` of `ops`" in rows(result.stdout)["Operators"]
    assert "tune_configs.yaml" in rows(result.stdout)["Tuned"]
    assert (said["operators"], said["tune_configs"]) == (None, None)


def vendor(folder: Path, operators: str, tuned: str = "mm:\n  - META: {BLOCK: 64}\n") -> Path:
    """A vendor's folder."""
    place = folder / "acme"
    (place / "ops").mkdir(parents=True)
    (place / "__init__.py").write_text(
        "from kernels.backends.plugins.vendor_folder import VendorInfo\n"
        "vendor_info = VendorInfo(vendor_name='Acme', device_name='acme', dispatch_key='PrivateUse1')\n"
    )
    (place / "ops" / "__init__.py").write_text(operators)
    (place / "tune_configs.yaml").write_text(tuned)
    return place


# check


def test_a_registration_without_fault_ends_with_status_0(kernels: Callable[..., Any], acme: Backend) -> None:
    result = kernels("backends", "check", "cpu")
    assert result.exit_code == 0
    table = result.stdout.splitlines()
    assert table[0].split() == ["Step", "Verdict", "What"]
    assert table[1].split() == ["registration", "ok", "cpu,", "built", "in"]
    assert table[-1] == "cpu: nothing failed."


def test_a_registration_with_faults_ends_with_status_1_and_says_what_to_write(
    kernels: Callable[..., Any], acme: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Acme, "device_capability", lambda self, device: "high")
    result = kernels("backends", "check", "acme")
    assert result.exit_code == 1
    assert result.stderr == ""
    faults = [line.split(maxsplit=2) for line in result.stdout.splitlines() if " failed " in line]
    assert {step for step, *_ in faults} == {"architectures", "capability"}
    assert "turns no other architecture down for device 0 (a100x); it must return why" in faults[0][2]
    assert "device_capability(device 0) is 'high'; it must be a whole number such as 75, or None" in faults[1][2]
    assert result.stdout.splitlines()[-1] == "acme: 2 failed."


def test_for_programs_a_check_is_a_list_of_findings(kernels: Callable[..., Any], acme: Backend) -> None:
    result = kernels("backends", "check", "acme", "--json")
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert (said["checked"], said["failed"]) == ("acme", True)
    assert said["origins"]["acme"].startswith(f"registered by {__file__}")
    assert {"step", "verdict", "what", "backend"} == set().union(*said["findings"])
    assert {each["verdict"] for each in said["findings"]} == {"ok", "missing", "failed", "skipped"}
    assert {each["backend"] for each in said["findings"]} == {None, "acme"}


def test_what_a_vendors_code_prints_does_not_mix_with_the_report(
    kernels: Callable[..., Any], acme: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Acme, "probe", lambda self: print("looking for acme …") or BackendProbe())
    result = kernels("backends", "check", "acme", "--json")
    assert json.loads(result.stdout)["origins"]
    assert "looking for acme …" in result.stderr


def test_what_a_vendors_code_says_does_not_steer_the_terminal(
    kernels: Callable[..., Any], acme: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(self: Backend) -> BackendProbe:
        raise RuntimeError("\x1b]0;owned\x07 [bold]no")

    monkeypatch.setattr(Acme, "probe", probe)
    result = kernels("backends", "check", "acme")
    assert result.exit_code == 1
    assert "\x1b" not in result.stdout
    assert "[bold]no" in result.stdout


def test_a_file_is_checked_without_any_line_of_python(kernels: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "acme.json"
    file.write_text('{"acme": {"device_string": "acme"}, "brand": {"device_string": "brand"}}')
    result = kernels("backends", "check", file)
    assert result.exit_code == 0, result.stdout
    assert result.stdout.splitlines()[0].split() == ["Backend", "Step", "Verdict", "What"]
    assert result.stdout.splitlines()[-1] == "acme, brand: nothing failed."
    file.write_text('{"acme": {"device_string": 3}}')
    result = kernels("backends", "check", file)
    assert result.exit_code == 1
    assert "at `$.acme.device_string`" in result.stdout
    assert result.stdout.splitlines()[-1] == "acme.json: 1 failed."


@pytest.mark.parametrize("action", ["check", "show"])
def test_what_kept_a_backend_from_coming_in_is_said_once(
    kernels: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    action: str,
) -> None:
    file = tmp_path / "bad.json"
    file.write_text('{"zephyr": {"device_string": 3}}')
    monkeypatch.setenv("KERNELS_BACKENDS_JSON", str(file))
    result = kernels("backends", action, "zephyr")
    assert result.exit_code == 1
    assert result.stderr.count("at `$.zephyr.device_string`") == 1
    assert "zephyr" not in caplog.text


def test_what_is_wrong_elsewhere_is_still_warned_of(
    kernels: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bad.json"
    file.write_text('{"zephyr": {"device_string": 3}}')
    monkeypatch.setenv("KERNELS_BACKENDS_JSON", str(file))
    with warned(r"at `\$\.zephyr\.device_string`"):
        assert kernels("backends", "check", "cpu").exit_code == 0


# Wrong arguments


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("show", "abacus"), 1, "`backend`: expected one of "),
        (("check", "abacus"), 1, "No file or folder has that name either."),
        (("check", "./abacus"), 1, "no such file or folder"),
        (("check", "abacus.json"), 1, "no such file or folder"),
    ],
)
def test_what_nobody_knows_is_one_line_of_error(
    kernels: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = kernels("backends", *arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("remove", "cpu"), "'remove' is not one of 'list', 'show', 'check'"),
        (("list", "cpu"), "`list` takes no name. To show one: kernels backends show cpu"),
        (("show",), "`show` needs the name of a backend"),
        (("check",), "`check` needs the name of a backend, or the path of a file or folder"),
    ],
)
def test_wrong_arguments_end_with_status_2(
    kernels: Callable[..., Any], arguments: tuple[str, ...], message: str
) -> None:
    result = kernels("backends", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


# A new name in other commands


def complete(*words: str) -> list[str]:
    """What a shell is offered after those words."""
    asked = {
        "_KERNELS_COMPLETE": "complete_bash",
        "COMP_CWORD": str(len(words)),
        "COMP_WORDS": " ".join(["kernels", *words]),
    }
    result: Any = CliRunner().invoke(app, [], env=asked, prog_name="kernels")
    return list(result.stdout.split())


@pytest.mark.parametrize(
    "command", [("explain", "acme/relu", "--backend"), ("backends", "show"), ("backends", "check")]
)
def test_a_new_backend_is_completed_at_once(acme: Backend, command: tuple[str, ...]) -> None:
    assert complete(*command, "ac") == ["acme"]


def test_a_new_backend_is_accepted_by_an_option_at_once(hub: Any, kernels: Callable[..., Any], acme: Backend) -> None:
    hub.make_repo("acme/relu", version=1, variants=["torch-acme", "torch-cpu"])
    result = kernels("explain", "acme/relu", "--version", 1, "--backend", "acme")
    assert "acme" in Target.current().backends
    assert result.exit_code == 0, result.stderr
    assert rows(result.stdout)["torch-cpu"].split()[1:][:4] == ["rejected", "for", "cpu,", "not"]


def test_an_unknown_backend_is_refused_with_the_new_one_in_the_list(
    hub: Any, kernels: Callable[..., Any], acme: Backend
) -> None:
    hub.make_repo("acme/relu", version=1, variants=["torch-cpu"])
    result = kernels("explain", "acme/relu", "--version", 1, "--backend", "abacus")
    assert result.exit_code == 1
    assert "`backend` is 'abacus'; this machine" in result.stderr
    assert "acme" in result.stderr.partition(" has ")[2]
    assert os.linesep not in result.stderr.strip()
