"""What a machine answers to the questions of a declared backend; what it does not answer is a note."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
from declared_backends import QUERY, fake_torch, new, say

from kernels.backends import BackendProbe, Device, Found, MajorMinor
from kernels.backends.plugins import json_probe, json_schema, torch_expression
from kernels.backends.plugins.arch_rules import rule_reason
from kernels.backends.plugins.json_backend import (
    Declaration,
)

# Architectures


@pytest.mark.parametrize(
    ("rule", "archs", "device", "fits"),
    [
        ("exact", ["a100x", "a200x"], "a200x", True),
        ("exact", ["a100x", "a200x"], "a200", False),
        ("exact", [], "a200", True),
        ("exact", None, "a200", True),
        ("exact", ["a100x"], "", True),
        ("exact", [""], "a100x", True),
        ("prefix", ["a100"], "a100x", True),
        ("prefix", ["a100x"], "a100", False),
        ("prefix", ["", "a2"], "a100", False),
        ("same-major-minor-not-newer", ["1.2"], "1.2", True),
        ("same-major-minor-not-newer", ["1.2"], "1.10", True),
        ("same-major-minor-not-newer", ["1.4"], "1.2", False),
        ("same-major-minor-not-newer", ["1.2"], "2.2", False),
        ("same-major-minor-not-newer", ["a100", "1.2"], "2.2", False),
        ("same-major-minor-not-newer", ["a100"], "2.2", True),
        ("same-major-minor-not-newer", ["1.2"], "a100", True),
        ("any", ["a100"], "b200", True),
    ],
)
def test_an_architecture_rule_says_which_devices_a_build_runs_on(
    rule: json_schema.ArchRule, archs: list[str] | None, device: str, fits: bool
) -> None:
    backend = new(arch_rule=rule)
    reason = backend.arch_reason(archs, Device("acme", 3, "Acme One", device))
    assert (reason is None) == fits
    assert fits or (reason is not None and reason.startswith(f"{device} of device 3 (Acme One) "))
    assert rule_reason(rule, archs, None) is None


@pytest.mark.parametrize(
    ("rule", "text", "arch"),
    [
        ("exact", "a100x", "a100x"),
        ("exact", "A100-x_1.2", "A100-x_1.2"),
        ("exact", "a100 x", None),
        ("prefix", "", None),
        ("any", "9.0", "9.0"),
        ("same-major-minor-not-newer", "9.0", "9.0"),
        ("same-major-minor-not-newer", "a90", None),
    ],
)
def test_an_architecture_is_read_as_its_rule_can_compare_it(rule: str, text: str, arch: str | None) -> None:
    assert new(arch_rule=rule).parse_arch(text) == arch


@pytest.mark.parametrize(
    ("arch", "number"), [("9.0", 90), ("12.1", 121), ("a100x", 100), ("gfx942", 942), ("blackhole", None)]
)
def test_a_capability_is_the_number_in_an_architecture(arch: str, number: int | None) -> None:
    assert new().device_capability(Device("acme", 0, arch=arch)) == number


# What a machine answers


@pytest.mark.parametrize(
    ("output", "pattern", "version"),
    [
        ("Version 1.2.3", r"Version ([0-9.]+)", (1, 2)),
        ("driver 9.9\nruntime 1.2", r"^runtime ([0-9.]+)$", (1, 2)),
        ("major=3 minor=4", r"major=(\d+) minor=(\d+)", (3, 4)),
        ("1.2\n3.4", r"([0-9.]+)", (1, 2)),
    ],
)
def test_the_groups_of_a_pattern_are_the_version(output: str, pattern: str, version: tuple[int, int]) -> None:
    probe = new(version={"command": say(output), "pattern": pattern}).probe()
    assert (probe.version, probe.notes) == (version, ())


def test_every_match_of_a_pattern_is_a_device() -> None:
    probe = new(archs={"command": say("0: a1 \n1: a1\n2: b2"), "pattern": r"^\d+: (.+)$"}).probe()
    assert [(each.backend, each.index, each.arch) for each in probe.devices] == [
        ("acme", 0, "a1"), ("acme", 1, "a1"), ("acme", 2, "b2"),
    ]  # fmt: skip


HANGS = [sys.executable, "-c", "import time; time.sleep(300)"]
SHOUTS = [sys.executable, "-c", "while True: print('x' * 10_000)"]


@pytest.mark.parametrize(
    ("version", "note"),
    [
        (QUERY, "version: 'acme-smi --query' cannot be run: No such file or directory"),
        ({"command": say("1.2", 3), "pattern": "(.+)"}, "ended with exit status 3"),
        ({"command": SHOUTS, "pattern": "(.+)"}, "printed more than 65536 bytes"),
        ({"command": HANGS, "pattern": "(.+)"}, "did not answer within 0.5 seconds"),
        ({"command": say("none"), "pattern": "([0-9]+)"}, "printed 'none', where '([0-9]+)' finds nothing"),
        ({"command": say("a"), "pattern": "a(b)?"}, "printed 'a', where 'a(b)?' finds nothing"),
        ({"command": say("version 7"), "pattern": "([0-9]+)"}, "expected a version major.minor, got '7'"),
        ({"command": say("x" * 999), "pattern": "(x+)"}, "expected a version major.minor, got"),
        (
            {"command": say("a" * 99 + "!"), "pattern": "(a+)+$"},
            "the pattern '(a+)+$' takes longer than 0.5 seconds on the",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else json.dumps(value)[-40:],
)
def test_a_version_that_does_not_come_is_a_note(
    version: dict[str, Any], note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.support import command

    slow = version["command"] in (SHOUTS, HANGS)
    monkeypatch.setattr(command, "SECONDS", {id(HANGS): 0.5, id(SHOUTS): 300}.get(id(version["command"]), 60))
    monkeypatch.setattr(json_probe, "LOOK_SECONDS", 600)
    monkeypatch.setattr(json_probe, "PATTERN_SECONDS", 0.5 if "+)+" in version["pattern"] else 60)
    probe = new(version=version, archs=["a1"]).probe()
    assert probe.found
    assert probe.version is None
    assert len(probe.devices) == 1
    assert len(probe.notes) == 1
    assert note in probe.notes[0]
    assert len(probe.notes[0]) < (300 if slow else 1000)
    [failed] = probe.unanswered
    assert (failed.query, str(failed)) == ("version", probe.notes[0])
    assert failed.timed_out is (version["command"] is HANGS or "+)+" in version["pattern"])


def test_architectures_that_do_not_come_are_a_note() -> None:
    probe = new(archs=QUERY).probe()
    assert (probe.found, probe.devices) == (True, ())
    assert probe.notes == ("architectures: 'acme-smi --query' cannot be run: No such file or directory",)
    many = new(archs={"command": say("a" * 2000), "pattern": "(a)"}).probe()
    assert many.notes[0].endswith("answered more than 1024 architectures")


def test_a_device_with_a_senseless_architecture_keeps_its_number() -> None:
    probe = new(archs={"command": say("a1,?!,a2"), "pattern": "([^,\n]+)"}).probe()
    assert [(each.index, each.arch) for each in probe.devices] == [(0, "a1"), (1, ""), (2, "a2")]
    [note] = probe.notes
    assert note == (
        "architectures: expected letters, digits, dots, dashes and underscores, got '?!': narrow the pattern to that "
        "part"
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"arch_rule": "prefix"}, "expected letters, digits, dots, dashes and underscores, got"),
        ({"arch_rule": "same-major-minor-not-newer"}, "expected major.minor, such as 1.2, with the arch_rule same-"),
    ],
)
def test_an_architecture_that_a_pattern_takes_too_much_of_is_told_with_what_is_allowed(
    fields: dict[str, Any], said: str
) -> None:
    query = {"command": say("device 0: Zephyr Z100 (PCIe)"), "pattern": "^device [0-9]+: (.+)$"}
    [note] = new(archs=query, **fields).probe().notes
    assert note.endswith("got 'Zephyr Z100 (PCIe)': narrow the pattern to that part")
    assert said in note


def test_an_architecture_that_only_the_rule_cannot_read_is_told_with_the_rule() -> None:
    query = {"command": say("device 0: Z2"), "pattern": "^device [0-9]+: (.+)$"}
    [note] = new(archs=query, arch_rule="same-major-minor-not-newer").probe().notes
    assert note == (
        "architectures: expected major.minor, such as 1.2, with the arch_rule same-major-minor-not-newer, got 'Z2': "
        "choose another arch_rule, or a pattern that finds such a version"
    )


def test_a_pattern_that_finds_nothing_is_shown_with_the_first_lines_of_the_output() -> None:
    output = "\n".join(["=" * 60, "\x1b[1mAcme", "Driver 7.1", *["more"] * 20])
    [note] = new(version={"command": say(output), "pattern": "v([0-9.]+)"}, archs=["a1"]).probe().notes
    assert r"====\n\x1b[1mAcme\nDriver 7.1\nmore" in note
    assert note.count("more") == 7
    assert note.endswith("'…, where 'v([0-9.]+)' finds nothing")


def test_questions_share_the_time_of_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_probe, "LOOK_SECONDS", 0.0)
    probe = new(version={"command": say("1.2"), "pattern": "(.+)"}, archs=QUERY).probe()
    assert [note.partition(": ")[2] for note in probe.notes] == [
        "not asked, as the queries before it took 0 seconds"
    ] * 2


def test_an_application_without_an_interpreter_cannot_look_for_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    probe = new(version={"command": say("1.2"), "pattern": "(.+)"}).probe()
    assert "there is no interpreter to start" in probe.notes[0]


def test_an_interpreter_that_does_not_start_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(json_probe, "_python", lambda: str(tmp_path / "python"))
    probe = new(version={"command": say("1.2"), "pattern": "(.+)"}).probe()
    assert "the pattern '(.+)' cannot be looked for: " in probe.notes[0]


# Whether it is there


def test_a_module_tells_that_a_backend_is_there_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch_acme.py").write_text("raise RuntimeError('imported')")
    backend = new(detect={"import": "torch_acme"}, version="1.2", archs=["a1"])
    assert backend.probe() == BackendProbe(notes=("not there: no module 'torch_acme' is installed",))
    monkeypatch.syspath_prepend(tmp_path)
    assert backend.probe().found


def test_a_module_that_cannot_say_what_it_is_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: (_ for _ in ()).throw(ValueError("no spec")))
    assert not new(detect={"import": "torch_acme"}).probe().found


@pytest.mark.parametrize("name", ["libacmert.so", "libacmert.so.1.2", "libacmert.1.dylib", "acmert.dll"])
def test_a_library_tells_that_a_backend_is_there_without_being_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join([str(tmp_path / "none"), str(tmp_path)]))
    backend = new(detect={"library": "acmert"})
    assert backend.probe() == BackendProbe(notes=("not there: no library 'acmert' is found",))
    (tmp_path / name).write_text("no library at all")
    assert backend.probe().found
    assert new(detect={"library": str(tmp_path / name)}).probe().found
    assert new(detect={"library": name}).probe().found
    assert not new(detect={"library": "acmer"}).probe().found


@pytest.mark.parametrize(
    ("asked", "there", "found"),
    [
        ("libacmert.so", "libacmert.so.1.2", True),
        ("libacmert.so.1", "libacmert.so.1.2", True),
        ("libacmert.so.1", "libacmert.so.2", False),
        ("libacmert.so.1", "libacmert.so", False),
        ("libacmert.so.1", "libacmert.so.12", False),
    ],
)
@pytest.mark.parametrize("by_the_system", [False, True], ids=["in a folder", "by the system"])
def test_a_librarys_file_name_stands_for_every_version_unless_it_has_one(
    asked: str, there: str, found: bool, by_the_system: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr("ctypes.util.find_library", {"acmert": there if by_the_system else None}.get)
    if not by_the_system:
        (tmp_path / there).write_text("no library at all")
    assert new(detect={"library": asked}).probe().found is found


def test_a_library_that_the_system_fails_to_look_for_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.util.find_library", lambda name: (_ for _ in ()).throw(OSError("no ldconfig")))
    assert not new(detect={"library": "acmert"}).probe().found


def test_a_command_tells_that_a_backend_is_there() -> None:
    assert new(detect={"command": say("")}).probe() == BackendProbe(found=True)
    absent = new(detect={"command": say("", 1)}).probe()
    assert not absent.found
    assert absent.notes[0].endswith("ended with exit status 1")
    assert absent.unanswered == ()


def test_a_command_that_hangs_tells_neither_that_a_backend_is_there_nor_that_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kernels.support import command

    monkeypatch.setattr(command, "SECONDS", 0.2)
    probe = new(detect={"command": HANGS}, archs=["a1"]).probe()
    assert (probe.found, probe.devices) == (False, ())
    [failed] = probe.unanswered
    assert (failed.query, failed.timed_out, probe.notes) == ("detect", True, (str(failed),))


def test_nothing_more_is_asked_of_a_backend_that_is_not_there(tmp_path: Path) -> None:
    touch = [sys.executable, "-c", "import pathlib, sys; pathlib.Path(sys.argv[1]).touch()", str(tmp_path / "asked")]
    query = {"command": touch, "pattern": "(.+)"}
    assert not new(detect={"import": "torch_of_nobody"}, version=query, archs=query).probe().found
    assert not (tmp_path / "asked").exists()


# What Torch answers


class Properties(SimpleNamespace):
    name = "a100x"


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    def broken(*arguments: Any) -> None:
        raise OSError("no driver")

    acme = SimpleNamespace(
        get_device_properties=lambda index: Properties(),
        version=lambda: "2.3.1",
        pair=(4, 5),
        archs=["a1", "a2"],
        number=7,
        broken=broken,
        leave=sys.exit,
        is_available=lambda: True,
        is_initialized=lambda: True,
        current_device=lambda: 3,
    )
    module = fake_torch(acme=acme, os=os)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.mark.parametrize(
    ("path", "version", "note"),
    [
        ("acme.version()", (2, 3), None),
        ("acme.pair", (4, 5), None),
        ("acme.number", None, "version: torch.acme.number: expected a version major.minor, got '7'"),
        ("acme.none", None, "failed with AttributeError"),
        ("acme.broken(0)", None, "failed with OSError: 'no driver'"),
        ("acme.leave()", None, "failed with RuntimeError: 'SystemExit'"),
        ("os.getcwd()", None, "which is not Torch's"),
    ],
)
@pytest.mark.usefixtures("torch")
def test_torch_tells_the_version(path: str, version: tuple[int, int] | None, note: str | None) -> None:
    probe = new(version={"torch": path}).probe()
    assert probe.version == version
    assert probe.notes == () if note is None else note in probe.notes[0]


@pytest.mark.usefixtures("torch")
def test_torch_tells_the_architectures() -> None:
    def archs(path: str) -> list[str]:
        return [device.arch for device in new(archs={"torch": path}).probe().devices]

    assert archs("acme.get_device_properties(0).name") == ["a100x"]
    assert archs("acme.archs") == ["a1", "a2"]
    assert archs("acme.pair") == []


@pytest.mark.usefixtures("torch")
def test_torch_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    import threading

    from kernels.support import command

    monkeypatch.setattr(command, "SECONDS", 0.2)
    go_on = threading.Event()
    torch.acme.hang = go_on.wait
    probe = new(archs={"torch": "acme.hang()"}).probe()
    go_on.set()
    assert probe.notes == ("architectures: torch.acme.hang() did not answer within 0.2 seconds",)
    assert [(each.timed_out, each.of_torch) for each in probe.unanswered] == [(True, True)]


def test_torch_is_not_imported_to_be_asked(monkeypatch: pytest.MonkeyPatch, torch: ModuleType) -> None:
    backend = new(version={"torch": "acme.version()"})
    monkeypatch.delitem(sys.modules, "torch")
    assert backend.probe() == BackendProbe(
        True, notes=("version: torch.acme.version() is not known before torch is imported",), needs_torch=True
    )
    assert "torch" not in sys.modules
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert backend.torch_build(torch) == Found(MajorMinor(2, 3))


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("acme.__class__", "'__class__' is private"),
        ("torch.acme.name", "the path begins below torch; leave `torch.` out"),
        ("torch()", "the path begins below torch"),
        ("_C.x()", "'_C' is private"),
        ("acme[0]", "neither a name nor a call"),
        ("acme.f(g())", "'g()' is no literal argument"),
        ("acme.f(*[1])", "is no literal argument"),
        ("acme.f(**{})", "is no literal argument"),
        ("acme.f(**1)", "is no literal argument"),
        ("-" * 499 + "1", "neither a name nor a call"),
        ("(lambda: 1)()", "neither a name nor a call"),
        ("a := 1", "it is no path"),
        ("import os", "it is no path"),
        ("(" * 400 + ")" * 400, "it is no path"),
        ("a\0b", "it is no path"),
    ],
)
def test_a_path_below_torch_is_names_and_calls_and_nothing_else(path: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        torch_expression.parse_torch_path(path)


# What is kept


def test_a_version_is_asked_for_once_and_again_by_who_looks_anew(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import sys; f = open(sys.argv[1], 'a'); f.write('x'); f.close(); print(f'1.{len(open(sys.argv[1]).read())}')"
    )
    backend = new(version={"command": [sys.executable, "-c", code, str(log)], "pattern": "(.+)"})
    torch = fake_torch(acme=SimpleNamespace(is_available=lambda: True))
    assert [backend.torch_build(torch) for _ in range(3)] == [Found(MajorMinor(1, 1))] * 3
    assert backend.probe().version == (1, 1)  # what was asked a moment ago
    assert backend.probe().version == (1, 2)
    assert backend.torch_build(torch) == Found(MajorMinor(1, 2))


def test_what_is_kept_is_told_by_the_first_look() -> None:
    queries = json_probe.DeclaredQueries(msgspec.convert({"detect": {"import": "torch_of_nobody"}}, Declaration))
    kept = queries.cached()
    assert kept.absent == "no module 'torch_of_nobody' is installed"
    assert queries.ask(str, "text") is kept
    assert queries.ask(str, "text") is not kept
