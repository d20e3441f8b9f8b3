"""A backend declared in a JSON file joins with no line of code, or stands in for parts of one that there is."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from declared_backends import FIVE, QUERY, fake_torch, new, say

from kernels import backends
from kernels.backends import Backend, BackendProbe, Device, Found, MajorMinor, PythonDependency, interface_check
from kernels.backends.plugins.json_backend import (
    Declaration,
    declare,
    load_backends,
    read_declarations,
)
from kernels.backends.registration import DeclarationError
from kernels.errors import RequestError
from kernels.models.metadata import Metadata
from kernels.resolver.choice import resolve
from kernels.resolver.target import Target


@pytest.fixture
def write(tmp_path: Path) -> Callable[[object], Path]:
    def write(content: object) -> Path:
        file = tmp_path / "acme.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return file

    return write


@pytest.fixture
def load(write: Callable[[object], Path]) -> Iterator[Callable[[object], list[backends.BackendEntry]]]:
    before = backends.list_backends()
    names: list[str] = []

    def load(content: object) -> list[backends.BackendEntry]:
        entries = load_backends(write(content))
        names.extend(entry.name for entry in entries)
        return entries

    yield load
    for name in reversed(names):
        backends.unregister_backend(name)
    assert backends.list_backends() == before


# End to end


def test_a_file_of_a_few_lines_is_a_backend_everywhere_at_once(load: Any) -> None:
    [entry] = load(
        {
            "acme": {
                "device_string": "acme",
                "variant_token": "ac",
                "version": {"command": say("Runtime version: 1.4.22"), "pattern": r"version: (\d+)\.(\d+)"},
                "archs": {"command": say("device 0: a100x\ndevice 1: a200x"), "pattern": r"^device \d+: (.+)$"},
                "arch_rule": "prefix",
                "vendor": "Acme",
            }
        }
    )
    assert re.fullmatch(r"declared in .*acme\.json", str(entry.origin))
    probed = Target.probe()
    assert probed.backends["acme"] == "1.4"
    assert [(each.index, each.arch, each.capability) for each in probed.backend_devices("acme")] == [
        (0, "a100x", 100),
        (1, "a200x", 200),
    ]

    target = Target.parse("torch2.13-ac14-x86_64-linux+a100x")
    assert target.default_backend == "acme"
    assert str(target) == "torch2.13-ac14-x86_64-linux+a100x"

    def metadata(variant: str) -> Metadata:
        archs = {"torch-stable-abi29-ac14-x86_64-linux": ["a2"], "torch-acme": ["a1"]}[variant]
        fields = {"name": "relu", "id": "_relu", "version": 1, "backend": {"type": "acme", "archs": archs}}
        return Metadata.from_bytes(json.dumps(fields).encode())

    names = ["torch-stable-abi29-ac14-x86_64-linux", "torch-acme"]
    resolution = resolve(names, target, metadata={name: metadata(name) for name in names})
    assert resolution.best is not None
    assert resolution.best.name == "torch-acme"
    reasons = [getattr(decision, "reason", None) for decision in resolution.decisions]
    assert "a100x of device 0 does not begin with any of the build's a2" in reasons


def test_leaving_leaves_the_registry_as_it_was(write: Any) -> None:
    before = backends.list_backends()
    entries = load_backends(write({"acme": {"device_string": "acme"}, "cuda": {"experimental": True}}))
    assert [entry.name for entry in entries] == ["acme", "cuda"]
    assert backends.get("cuda").experimental
    for name in ("cuda", "acme"):
        backends.unregister_backend(name)
    assert backends.list_backends() == before
    assert "acme" not in Target.probe().backends


def test_a_path_may_be_text_and_nothing_else_than_a_path(write: Any) -> None:
    assert list(read_declarations(str(write({"acme": {}})))) == ["acme"]
    with pytest.raises(TypeError, match=r"`path`: expected the path of a JSON file, got 7 \(int\)"):
        load_backends(7)  # type: ignore[arg-type]


def test_all_of_a_file_or_none_of_it_is_registered(write: Any) -> None:
    before = backends.list_backends()
    file = write({"acme": {"device_string": "acme"}, "other": {"device_string": "other", "variant_token": "cu"}})
    with pytest.raises(DeclarationError, match=r"acme\.json: `token` of backend 'other' .*'cu'.* 'cuda'") as caught:
        load_backends(file)
    assert caught.value.names == ("acme", "other")
    assert backends.list_backends() == before


def test_a_backend_that_is_switched_off_is_not_declared(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_DISABLE_BACKENDS", "acme")
    assert [each.name for each in load({"acme": {"device_string": "a"}, "cpu": {}})] == ["cpu"]


# A new backend


def test_a_new_backend_has_the_declared_members_and_sensible_others() -> None:
    backend = new(version="1.2", archs=["a100x"], vendor="Acme", experimental=True, cuda_hacks_to_strip=["x = 1"])
    assert (backend.name, backend.noarch_name, backend.token, backend.device_type) == ("acme",) * 4
    assert (backend.mapping_device, backend.dispatch_key, backend.order) == ("acme", "PrivateUse1", 1000)
    assert (backend.versioned, backend.checks_archs, backend.experimental) == (True, True, True)
    assert (backend.vendor, backend.cuda_hacks_to_strip) == ("Acme", ("x = 1",))
    assert interface_check.validated(backend) is backend


def test_a_new_backend_without_version_and_architectures_checks_neither() -> None:
    backend = new()
    assert (backend.versioned, backend.checks_archs) == (False, False)
    assert backend.probe() == BackendProbe(found=True)
    assert not new(archs=["a1"], arch_rule="any").checks_archs


def test_kernels_may_ask_for_the_declared_dependencies() -> None:
    depends = {"a": None, "b": "c", "d": {"package": "e", "module": "f"}, "g": {"package": "h"}}
    assert new(python_depends=depends).python_depends == {
        "a": PythonDependency("a", None),
        "b": PythonDependency("b", "c"),
        "d": PythonDependency("e", "f"),
        "g": PythonDependency("h", None),
    }


def test_a_backend_on_a_known_device_stands_right_behind_those_that_have_it(load: Any) -> None:
    load({"emulator": {"device_string": "cpu", "archs": ["e1"]}})
    order = [each.name for each in backends.all_backends()]
    assert order.index("emulator") == order.index("cpu") + 1
    emulator = backends.get("emulator")
    assert (emulator.mapping_device, emulator.dispatch_key) == ("emulator", "CPU")
    target = Target.probe()
    assert target.default_backend != "emulator"
    assert [device.arch for device in target.backend_devices("emulator")] == ["e1"]


def test_a_device_that_no_backend_is_called_is_the_name_in_mappings() -> None:
    assert new("acme", device_string="acmechip").mapping_device == "acmechip"
    assert new("acme", device_string="npu").mapping_device == "acme"
    assert new("acme", device_string="ACME").mapping_device == "acme"


def test_two_backends_of_one_file_may_share_a_device(load: Any) -> None:
    load(
        {
            "acme": {"device_string": "chip"},
            "acme_two": {"device_string": "chip"},
            "ajax": {"device_string": "ajax_two"},
            "ajax_two": {"device_string": "ajax_two"},
        }
    )
    names = ("acme", "acme_two", "ajax", "ajax_two")
    assert [backends.get(name).mapping_device for name in names] == ["chip", "acme_two", "ajax", "ajax_two"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            {"acme": {"vendor": "Acme"}},
            "`acme` has no `device_string`, .* its name: cann, cpu, cuda",
        ),
        (
            {"acme2": {"device_string": "acme", "version": "1.2"}},
            "`acme2` has no `variant_token`, and its name ends with a digit",
        ),
        ({"cpu": {"version": "1.2"}}, "`cpu.version` is declared, but build names of cpu carry no version"),
        ({"universal": {"device_string": "acme"}}, "means every backend, got 'universal'"),
        ({"npu": {"device_string": "acme"}}, "`npu` is another name of backend 'cann', whose device is 'npu', but its"),
    ],
)
def test_a_backend_that_cannot_be_is_refused_with_file_and_path(content: Any, says: str, write: Any) -> None:
    before = backends.list_backends()
    with pytest.raises(DeclarationError, match=rf"acme\.json: .*{says}") as caught:
        load_backends(write(content))
    assert caught.value.names == tuple(content)
    assert backends.list_backends() == before


# Parts of a backend that there is


def test_a_known_backend_keeps_what_is_not_declared(load: Any) -> None:
    own = backends.get("cuda")
    before = copy.copy(vars(own))
    load({"cuda": {**FIVE, "name": "cuda", "device_string": "cuda", "python_depends": {"acme-dsl": "acme_dsl"}}})
    standing_in = backends.get("cuda")
    assert standing_in is not own
    assert vars(own) == before
    assert standing_in.guidance_block == "Tiles."
    assert list(standing_in.python_depends) == ["acme-dsl"]
    assert (standing_in.token, standing_in.order, standing_in.versioned) == (own.token, own.order, own.versioned)
    assert standing_in.version_reason(MajorMinor(12, 1), MajorMinor(12, 8)) is None
    assert Target.parse("torch2.9-cu128-x86_64-linux+sm_90").devices[0].capability == 90


@pytest.mark.parametrize(
    ("key", "device", "owner"),
    [("npu", "npu", "cann"), ("mps", "mps", "metal"), ("cu", "cuda", "cuda"), ("cu", "cu", "cuda")],
)
def test_another_name_of_a_backend_adds_to_it(
    key: str, device: str, owner: str, load: Any, caplog: pytest.LogCaptureFixture
) -> None:
    own = backends.get(owner)
    with caplog.at_level("INFO", "kernels"):
        load({key: {**FIVE, "name": key, "device_string": device}})
    assert f"{key!r} is another name of backend {owner!r}, to which its fields are added." in caplog.text
    added = backends.get(owner)
    assert (added.guidance_block, added.kernel_guidance) == ("Tiles.", "Use them.")
    assert list(added.cuda_hacks_to_strip) == FIVE["cuda_hacks_to_strip"]
    for member in ("name", "noarch_name", "token", "device_type", "mapping_device", "dispatch_key", "vendor", "order"):
        assert getattr(added, member) == getattr(own, member)
    assert backends.find(key) is added
    assert str(backends.entry_of(owner).origin).startswith("declared in ")


def test_two_names_of_one_backend_in_a_file_add_up(load: Any) -> None:
    load({"cann": {"vendor": "Acme", "guidance_block": "first"}, "npu": {"guidance_block": "second"}})
    assert (backends.get("cann").vendor, backends.get("cann").guidance_block) == ("Acme", "second")


def test_another_name_of_a_disabled_backend_is_passed_over(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("KERNELS_DISABLE_BACKENDS", "cann")
        load({"npu": {**FIVE, "name": "npu", "device_string": "npu"}, "acme": FIVE})
        assert "cann" not in [each.name for each in backends.all_backends()]
        assert backends.get("acme").guidance_block == "Tiles."
    assert backends.get("cann").guidance_block != "Tiles."


def test_platforms_of_kernelagent_are_backends_as_they_are(load: Any) -> None:
    """Its registry's kinds of entries: the device of another backend, a digit at the end, texts that are empty."""
    empty = {"guidance_block": "", "kernel_guidance": "", "cuda_hacks_to_strip": []}
    load(
        {
            "cuda": {"name": "cuda", "device_string": "cuda", **empty},
            "cutedsl": {"name": "cutedsl", "device_string": "cuda", **empty, "kernel_guidance": "Two functions."},
            "cuda_gb10": {"name": "cuda_gb10", "device_string": "cuda", **empty},
            "xpu": {**FIVE, "name": "xpu", "device_string": "xpu"},
            "tx81": {"name": "tx81", "device_string": "txda"},
        }
    )
    assert backends.get("cuda").guidance_block == ""
    assert (backends.get("cutedsl").device_type, backends.get("cutedsl").dispatch_key) == ("cuda", "CUDA")
    assert backends.get("tx81").token == "tx81_"
    assert backends.get("xpu").kernel_guidance == "Use them."
    target = Target.parse("torch2.9-cu128-x86_64-linux+sm_90")
    assert target.default_backend == "cuda"
    assert backends.parse_accelerator("tx81_") == (backends.get("tx81"), None)


class Chip(Backend):
    name = device_type = "chip"
    versioned = True

    def parse_arch(self, text: str) -> str | None:
        return text if re.fullmatch("[ab][0-9]", text) else None

    def torch_build(self, torch: object) -> Found | None:
        return Found(MajorMinor(1, 0))

    def probe(self) -> BackendProbe:
        devices = (Device(self.name, 0, "Chip One", "a1", memory=8), Device(self.name, 1, "Chip One", "a1", memory=8))
        return BackendProbe(True, MajorMinor(1, 0), devices, ("a fact",))


def standing_in(**fields: Any) -> Backend:
    return declare("chip", msgspec.convert(fields, Declaration), Chip())


def test_declared_answers_stand_in_for_a_backends_own() -> None:
    backend = standing_in(version="2.3", archs=["b2", "b3", "b4"], detect={"import": "json"})
    probe = backend.probe()
    assert (probe.found, probe.version, probe.notes) == (True, (2, 3), ("a fact",))
    assert [(each.name, each.arch, each.memory) for each in probe.devices] == [
        ("Chip One", "b2", 8), ("Chip One", "b3", 8), ("", "b4", None),
    ]  # fmt: skip
    assert backend.torch_build(None) == Found(MajorMinor(2, 3))


def test_its_own_answers_stand_where_the_declared_ones_do_not_come() -> None:
    backend = standing_in(version=QUERY, archs=QUERY)
    probe = backend.probe()
    assert (probe.version, len(probe.devices)) == ((1, 0), 2)
    assert [note.split(":")[0] for note in probe.notes] == ["a fact", "version", "architectures"]
    assert backend.torch_build(None) == Found(MajorMinor(1, 0))


def test_a_known_backend_may_be_declared_absent_and_may_have_another_rule() -> None:
    absent = standing_in(detect={"import": "torch_of_nobody"}).probe()
    assert (absent.found, absent.devices) == (False, ())
    backend = standing_in(arch_rule="prefix", variant_token="ch")
    assert backend.checks_archs
    assert (
        backend.arch_reason(["b"], Device("chip", 0, arch="a1"))
        == "a1 of device 0 does not begin with any of the build's b"
    )
    assert backend.format_accelerator(MajorMinor(1, 0)) == "ch10"
    assert backend.probe() == Chip().probe()
    assert not standing_in(arch_rule="any").checks_archs


def test_a_backend_whose_parts_are_fixed_is_left_alone() -> None:
    class Fixed(Chip):
        @property
        def vendor(self) -> str:  # type: ignore[override]
            return "Fixed"

    with pytest.raises(RequestError, match="`chip` cannot be changed by a declaration"):
        declare("chip", Declaration(vendor="Acme"), Fixed())


def test_of_two_files_the_later_wins_field_by_field(load: Any, write: Any) -> None:
    load({"acme": {"device_string": "acme", "vendor": "Acme", "version": "1.2"}})
    load_backends(write({"acme": {"vendor": "Ajax", "archs": ["a1"]}}))
    backend = backends.get("acme")
    assert (backend.vendor, backend.probe().version, backend.checks_archs) == ("Ajax", (1, 2), True)
    backends.unregister_backend("acme")
    assert backends.get("acme").vendor == "Acme"
    load({"acme": {"vendor": "Ajax", "version": "1.3"}})
    assert (backends.get("acme").vendor, backends.get("acme").probe().version) == ("Ajax", (1, 3))


# Whether Torch can drive it


def test_a_stand_in_for_torch_does_not_drive_a_strangers_device() -> None:
    stand_in = SimpleNamespace(
        __version__="2.13", version=SimpleNamespace(cuda=None, hip=None), backends=SimpleNamespace(), cxx11_abi=True
    )
    assert new(version="1.2").torch_build(stand_in) is None
    assert new(version="1.2", device_string="cpu").torch_build(stand_in) == Found(MajorMinor(1, 2))
    assert new(version="1.2", device_string="cuda").torch_build(stand_in) is None


@pytest.mark.parametrize(
    ("members", "drives"),
    [
        ({"_C": SimpleNamespace(_get_privateuse1_backend_name=lambda: "acme")}, True),
        ({"_C": SimpleNamespace(_get_privateuse1_backend_name=lambda: "ajax")}, False),
        ({"acme": SimpleNamespace(is_available=lambda: True)}, True),
        ({"acme": SimpleNamespace(is_available=lambda: False)}, False),
        ({"acme": SimpleNamespace(is_available=lambda: 1 / 0)}, False),
        ({"acme": SimpleNamespace()}, False),
        ({}, False),
    ],
)
def test_torch_drives_a_device_that_an_extension_gave_it(members: dict[str, Any], drives: bool) -> None:
    assert new().torch_build(fake_torch(**members)) == (Found() if drives else None)


def test_a_device_that_nobody_named_is_nobodys() -> None:
    unnamed = fake_torch(_C=SimpleNamespace(_get_privateuse1_backend_name=lambda: "privateuseone"))
    assert new(device_string="privateuseone").torch_build(unnamed) is None


def test_on_anothers_device_a_backend_is_there_only_where_it_is_found() -> None:
    assert new(device_string="cpu", detect={"import": "torch_of_nobody"}).torch_build(fake_torch()) is None
    assert new(device_string="cpu", detect={"import": "json"}).torch_build(fake_torch()) == Found()


def test_backends_that_share_a_device_do_not_ask_each_other_for_ever(load: Any) -> None:
    load({f"acme_{letter}": {"device_string": "chip"} for letter in "abcdefgh"})
    torch = fake_torch(chip=SimpleNamespace(is_available=lambda: True))
    assert backends.get("acme_a").torch_build(torch) == Found()
    assert backends.get("acme_a").torch_build(fake_torch()) is None


def test_another_backend_that_fails_is_passed_over_and_one_that_wants_more_of_torch_is_heard() -> None:
    class Broken(Chip):
        error: type[Exception] = OSError

        def torch_build(self, torch: object) -> Found | None:
            raise self.error("no driver")

    broken = Broken()
    backends.register_backend(broken)
    try:
        backend = new(device_string="chip")
        assert backend.torch_build(fake_torch()) is None
        broken.error = AttributeError
        with pytest.raises(AttributeError):
            backend.torch_build(fake_torch())
    finally:
        backends.unregister_backend("chip")


def test_the_current_device_is_torchs_where_it_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = fake_torch(acme=SimpleNamespace(is_initialized=lambda: True, current_device=lambda: 3))
    monkeypatch.setitem(sys.modules, "torch", torch)
    backend = new()
    assert backend.current_device() == 3
    torch.acme.is_initialized = lambda: False
    assert backend.current_device() == 0
    torch.acme = SimpleNamespace(is_initialized=lambda: True, current_device=lambda: "acme")
    assert backend.current_device() == 0
    monkeypatch.delitem(sys.modules, "torch")
    assert backend.current_device() == 0
