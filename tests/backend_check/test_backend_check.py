"""A check runs a registration through every step, names what is missing, and leaves the registry as it was."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kernels import backends, list_backends
from kernels.backend_check import STEPS, Checkup, check_entry, checkup
from kernels.backend_check.checked_backend import CheckedBackend
from kernels.backend_check.machine import probe
from kernels.backend_check.temporary_registration import TemporaryRegistrations
from kernels.backends import Backend, BackendProbe, Device, Found, MajorMinor, PythonDependency
from kernels.backends.deferred import DeferredBackend
from kernels.backends.plugins.json_backend import declare
from kernels.backends.plugins.json_schema import read_declarations
from kernels.backends.registration import BackendEntry, Origin
from kernels.errors import RequestError
from kernels.support.checks import run_step


class Acme(Backend):
    """A backend with everything that a vendor may give, for a device that Torch has."""

    name = device_type = mapping_device = "acme"
    versioned = checks_archs = True
    vendor = "Acme"
    guidance_block = "Vectors of 256 bits."
    kernel_guidance = "Keep tiles below 64 kB.\nUse the block loads."
    cuda_hacks_to_strip = ("import pycuda", "torch.cuda.synchronize()")
    python_depends: Mapping[str, PythonDependency] = {
        "torch": PythonDependency("torch", "torch"),
        "acme-dsl": PythonDependency("acme-dsl", "acme_dsl_that_is_not_here"),
        "acme-headers": PythonDependency("acme-headers", None),
    }

    def probe(self) -> BackendProbe:
        return BackendProbe(True, MajorMinor(1, 2), (Device("acme", 0, "Acme One", "a100x", 100),))

    def arch_reason(self, archs: Any, device: Device | None) -> str | None:
        if device is None or not archs or device.arch in archs:
            return None
        return f"device {device.index} is {device.arch}, the build is for {', '.join(archs)}"

    def device_capability(self, device: Device) -> int | None:
        return 100

    def before_import(self, variant_dir: Path, metadata: object) -> None:
        pass


@pytest.fixture
def found_in() -> Iterator[Callable[..., Checkup]]:
    """What a check finds of a backend with those members in place of Acme's."""
    with TemporaryRegistrations():

        def check(**members: object) -> Checkup:
            backends.register_backend(type("Vendor", (Acme,), members)())
            return checkup("acme", seconds=10)

        yield check


def lines(found: Checkup, step: str) -> list[str]:
    return [f"{each.verdict}: {each.what}" for each in found.findings if each.step == step]


def raising(error: BaseException) -> Callable[..., Any]:
    def member(*_: object) -> Any:
        raise error

    return member


def answering(answer: object) -> Callable[..., Any]:
    return lambda *_: answer


def declaration(folder: Path, **fields: object) -> Path:
    """A file that declares `acme` with those fields beside the ones it needs."""
    file = folder / "acme.json"
    known = {"device_string": "acme", "version": "1.2", "archs": ["a100x"], "detect": {"import": "json"}}
    file.write_text(json.dumps({"acme": {**known, **fields}}))
    return file


def vendor(folder: Path, **files: str) -> Path:
    """A vendor's folder; the files by name, with `__` for a `/`."""
    place = folder / "acme"
    (place / "ops").mkdir(parents=True)
    (place / "__init__.py").write_text(
        "from kernels.backends.plugins.vendor_folder import VendorInfo\n"
        "vendor_info = VendorInfo(vendor_name='Acme', device_name='acme', dispatch_key='PrivateUse1')\n"
    )
    for name, text in {"ops/__init__.py": "__all__ = []", **files}.items():
        (place / name).write_text(text)
    return place


# What is right


def test_each_step_says_something_of_a_complete_backend_and_nothing_failed(found_in: Callable[..., Checkup]) -> None:
    found = found_in()
    assert not found.failed, [each for each in found.findings if each.verdict == "failed"]
    assert list(dict.fromkeys(each.step for each in found.findings)) == ["registration", *(name for name, _ in STEPS)]
    assert set(found.origins) == {"acme"}
    assert {each.backend for each in found.findings[1:]} == {"acme"}


@pytest.mark.parametrize(
    ("step", "line"),
    [
        ("members", "ok: given: name, device_type, mapping_device, versioned, checks_archs, python_depends, vendor,"),
        ("members", "ok: as the base class has them: noarch_name, token, dispatch_key, order,"),
        (
            "names",
            "ok: name acme, noarch_name acme, token acme, device_type acme, mapping_device acme, dispatch_key Pri",
        ),
        ("probe", "ok: found, version 1.2, 1 device: a100x"),
        ("build names", "ok: torch29-acme12-x86_64-linux is acme 1.2"),
        ("build names", "ok: torch-acme is acme"),
        (
            "architectures",
            "ok: a100x; a build for another is rejected: device 0 is a100x, the build is",
        ),
        ("capability", "ok: 100: a mapping entry with a range of capabilities is used if the range contains 100"),
        (
            "Torch",
            "missing: torch_build is not given, and no extension gives Torch",
        ),
        ("Torch", "missing: this Torch has no device 'acme': import the package that adds it"),
        ("Torch", "ok: dispatch key 'PrivateUse1' is known to Torch"),
        ("choosing", "ok: torch-tpu is rejected: for tpu, not acme"),
        ("mappings", "ok: Device('acme') is acme"),
        ("Python packages", "ok: torch: torch, installed"),
        ("Python packages", "missing: acme-dsl: not installed here; pip install acme-dsl"),
        ("Python packages", "ok: acme-headers: acme-headers, of which no module is looked for"),
        ("stages", "ok: before_import: its own"),
        ("stages", "ok: after_import: nothing is done"),
        ("notes", "ok: vendor: Acme"),
        ("notes", "ok: kernel_guidance: 2 lines"),
        ("notes", "ok: cuda_hacks_to_strip: 2 source lines"),
    ],
)
def test_a_step_says_what_it_found(found_in: Callable[..., Checkup], step: str, line: str) -> None:
    pytest.importorskip("torch")
    said = lines(found_in(), step)
    assert [each for each in said if each.startswith(line)], said


def test_the_compiled_build_is_chosen_then_the_noarch_one_and_none_for_another_version_or_architecture(
    found_in: Callable[..., Checkup],
) -> None:
    compiled, noarch, other, version, arch = lines(found_in(), "choosing")
    assert "torch29-acme12-" in compiled.partition(" is chosen of ")[0]
    assert noarch.partition(" is chosen of ")[0].endswith(", torch-acme")
    assert other == "ok: torch-tpu is rejected: for tpu, not acme"
    assert version.endswith("is rejected: built for acme 1.0, this machine has 1.2")
    assert arch.startswith("ok: torch29-acme12-")
    assert "the build is for a200x" in arch


@pytest.mark.parametrize("name", [backend.name for backend in backends.all_backends()])
def test_no_built_in_backend_fails(name: str) -> None:
    found = checkup(name)
    assert [each for each in found.findings if each.verdict == "failed"] == []


def test_a_backend_is_checked_by_any_of_its_names() -> None:
    assert list(checkup("npu").origins) == ["cann"]


def test_a_backend_without_versions_has_one_build_name(found_in: Callable[..., Checkup]) -> None:
    found = found_in(versioned=False)
    assert lines(found, "build names") == ["ok: torch29-acme-x86_64-linux is acme", "ok: torch-acme is acme"]
    assert "missing: version 1.2 is not compared, as versioned is False: name builds without one" in lines(
        found, "probe"
    )
    assert not found.failed


def test_a_plain_object_is_checked_like_a_subclass() -> None:
    plain = SimpleNamespace(name="acme", device_type="acme", probe=lambda: BackendProbe())
    with TemporaryRegistrations():
        backends.register_backend(plain)
        found = checkup("acme")
    assert lines(found, "members")[0] == "ok: given: name, device_type, probe"
    assert not found.failed


def test_what_a_backend_stands_in_for_is_told() -> None:
    class Ours(type(backends.get("cuda"))):  # type: ignore[misc]
        pass

    with TemporaryRegistrations():
        backends.register_backend(Ours(), override=True)
        assert "ok: overrides cuda, built in" in lines(checkup("cuda"), "names")
    assert backends.entry_of("cuda").overrides is None


def test_what_is_optional_is_missing_and_not_wrong(found_in: Callable[..., Checkup]) -> None:
    found = found_in(vendor="", guidance_block="", kernel_guidance="", cuda_hacks_to_strip=(), checks_archs=False)
    assert lines(found, "notes") == [
        "missing: optional: vendor",
        "missing: optional: guidance_block",
        "missing: optional: kernel_guidance",
        "missing: optional: cuda_hacks_to_strip",
    ]
    assert lines(found, "architectures")[-1].startswith("missing: optional: checks_archs is False")
    assert not found.failed


def test_that_it_is_experimental_is_told(found_in: Callable[..., Checkup]) -> None:
    assert "ok: experimental: using it warns, once" in lines(found_in(experimental=True), "notes")


def test_without_a_device_there_is_nothing_to_compare(found_in: Callable[..., Checkup]) -> None:
    found = found_in(probe=answering(BackendProbe(notes=("no driver",))))
    assert lines(found, "probe") == [
        "missing: no driver", "missing: not found on this machine; where it is, run this check again",
    ]  # fmt: skip
    assert lines(found, "architectures") == ["skipped: no device with an architecture is visible here"]
    assert lines(found, "capability") == ["skipped: no device is visible here"]
    assert not found.failed


def test_without_torch_its_step_is_skipped(found_in: Callable[..., Checkup], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.backend_check.machine.installed_torch", lambda: None)
    assert lines(found_in(), "Torch") == ["skipped: Torch is not installed"]


def test_a_short_form_of_an_architecture_is_told_where_there_is_one(found_in: Callable[..., Checkup]) -> None:
    found = found_in(format_arch=answering("a1"), parse_arch=answering("a100x"))
    assert lines(found, "architectures")[0].startswith("ok: a100x, a1 for short; a build for another is rejected")


def test_one_line_is_told_as_one(found_in: Callable[..., Checkup]) -> None:
    said = lines(found_in(kernel_guidance="Keep tiles small.", cuda_hacks_to_strip=("import pycuda",)), "notes")
    assert {"ok: kernel_guidance: 1 line", "ok: cuda_hacks_to_strip: 1 source line"} <= set(said)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"torch_biuld": answering(None)}, ["`torch_biuld` is no member of a backend; did you mean `torch_build`?"]),
        ({"verson_reason": answering(None)}, ["`verson_reason` is no member of a backend; did you mean `version_r"]),
        ({"experimentall": True}, ["`experimentall` is no member of a backend; did you mean `experimental`?"]),
        ({"colour": "red", "_torch_biuld": 1}, []),
        # One that it has is no typo of another that it has, too.
        ({"probes": 3, "device_types": ("acme",)}, []),
    ],
)
def test_a_member_that_is_spelled_almost_like_another_is_told(
    found_in: Callable[..., Checkup], members: dict[str, object], said: list[str]
) -> None:
    found = found_in(**members)
    told = [line for line in lines(found, "members") if "is no member" in line]
    assert len(told) == len(said)
    assert all(line.startswith(f"missing: {each}") for line, each in zip(told, said, strict=True))
    assert not found.failed


def test_a_member_of_a_plain_object_that_is_spelled_almost_like_another_is_told() -> None:
    plain = SimpleNamespace(name="acme", device_type="acme", probe=lambda: BackendProbe(), versoned=True)
    with TemporaryRegistrations():
        backends.register_backend(plain)
        found = checkup("acme")
    assert lines(found, "members")[-1] == ("missing: `versoned` is no member of a backend; did you mean `versioned`?")


@pytest.mark.parametrize("name", [backend.name for backend in backends.all_backends()])
def test_no_built_in_backend_is_taken_for_misspelled(name: str) -> None:
    assert [line for line in lines(checkup(name), "members") if line.startswith("missing: ")] == []


def test_a_probe_that_imports_torch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Eager(Acme):
        def probe(self) -> BackendProbe:
            sys.modules["torch"] = torch  # as importing it does
            return super().probe()

    torch: Any = pytest.importorskip("torch")
    with TemporaryRegistrations():
        backends.register_backend(Eager())
        checked = CheckedBackend(backends.entry_of("acme"))
        assert [what for _, what in probe(checked)] == ["found, version 1.2, 1 device: a100x"]
        monkeypatch.delitem(sys.modules, "torch")
        said = list(probe(checked))
    assert said[0][0] == "missing"
    assert said[0][1].startswith("the probe imports torch; it must work without")


# What Torch is asked


def test_what_a_plain_object_says_of_torch_is_its_own_again_after_a_check() -> None:
    def torch_build(torch: Any) -> None:
        return None

    plain = SimpleNamespace(name="acme", device_type="acme", probe=lambda: BackendProbe(), torch_build=torch_build)
    with TemporaryRegistrations():
        backends.register_backend(plain)
        assert "torch_build" in lines(checkup("acme"), "members")[0]
        assert backends.get("acme").torch_build is torch_build


def test_a_backend_that_lets_nobody_set_anything_is_asked_each_time(found_in: Callable[..., Checkup]) -> None:
    def refuse(self: Backend, name: str, value: object) -> None:
        raise TypeError("frozen")

    assert not found_in(__setattr__=refuse).failed


# What is wrong: members in place of Acme's, the step that fails, and what it says.

DEVICE = Device("acme", 0, "Acme One", "a100x", 100)
WRONG: list[tuple[dict[str, object], str, str]] = [
    ({"probe": raising(RuntimeError("no licence"))}, "probe", "RuntimeError: no licence"),
    ({"probe": raising(SystemExit(3))}, "probe", "SystemExit: 3"),
    ({"probe": answering(None)}, "probe", "expected a BackendProbe, got None"),
    ({"probe": answering(BackendProbe(True, "1.2"))}, "probe", "got `str` - at `$.version`"),  # type: ignore[arg-type]
    ({"probe": answering(BackendProbe(True, None, (Device("cuda", 0),)))}, "probe", "expected devices of acme"),
    ({"probe": answering(BackendProbe(True, MajorMinor(1, 2), (Device("acme", 1, "", "a100x"),)))}, "probe", "[1]"),
    ({"format_accelerator": answering("acme-12")}, "build names", "parse_accelerator reads as nothing"),
    ({"format_accelerator": answering(12)}, "build names", "returned 12; it must return text"),
    ({"format_accelerator": raising(ValueError("no"))}, "build names", "has no name for any of 1.0, 12.8, 2025.3"),
    ({"format_accelerator": raising(KeyError("v"))}, "build names", "KeyError: 'v' (in member, "),
    ({"parse_accelerator": answering(None)}, "build names", "reads as nothing; the two must be each other's reverse"),
    ({"parse_arch": answering(None)}, "architectures", "parse_arch('a100x') is None, not that"),
    ({"format_arch": answering("cuda!")}, "architectures", "parse_arch('cuda!') is None"),
    ({"arch_reason": answering("never")}, "architectures", "must be None, it is a build for it: 'never'"),
    ({"arch_reason": answering(None)}, "architectures", "turns no other architecture down for device 0 (a100x)"),
    ({"arch_reason": raising(ZeroDivisionError())}, "architectures", "ZeroDivisionError"),
    ({"device_capability": answering("9.0")}, "capability", "is '9.0'; it must be a whole number"),
    ({"device_capability": answering(True)}, "capability", "is True; it must be a whole number"),
    ({"device_capability": answering(90)}, "capability", "is 90, but its probe says capability=100"),
    ({"torch_build": answering(Found())}, "Torch", "this Torch has no device 'acme'"),
    ({"torch_build": answering(True)}, "Torch", "expected Found(MajorMinor(1, 2)), Found() or None, got True"),
    ({"torch_build": answering("1.2")}, "Torch", "Found() or None, got '1.2'"),
    ({"torch_build": answering(Found("1.2"))}, "Torch", "Found() or None, got Found(version='1.2')"),  # type: ignore[arg-type]
    ({"torch_build": raising(SystemExit(3))}, "Torch", "SystemExit: 3 (in member, "),
    ({"torch_build": raising(AttributeError("torch.acme"))}, "Torch", "AttributeError: torch.acme"),
    ({"dispatch_key": "Acme"}, "Torch", "Torch has no dispatch key 'Acme'"),
    ({"device_type": "mps", "dispatch_key": "CUDA"}, "Torch", "but Torch's device 'mps' has 'MPS'"),
    ({"version_reason": answering("never")}, "choosing", "is not chosen of torch-tpu, torch-acme, torch29-acme12-"),
    ({"platform_reason": raising(OSError("no sysctl"))}, "choosing", "OSError: no sysctl"),
    ({"python_depends": {"a": PythonDependency("-r evil", "a")}}, "Python packages", "got '-r evil'"),
    ({"python_depends": {"a": PythonDependency("a", "a b")}}, "Python packages", "got 'a b'"),
    ({"stages": answering({"link": print})}, "stages", "expected before_import, after_import, got link"),
    ({"stages": answering({"before_import": 3})}, "stages", "before_import(variant_dir, metadata), got 3"),
    ({"stages": answering({"before_import": lambda: None})}, "stages", "before_import cannot be called as "),
    ({"stages": answering(None)}, "stages", "stages: expected a mapping"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "step", "message"), WRONG, ids=[f"{step}: {said}" for _, step, said in WRONG])
def test_what_is_wrong_fails_its_step_and_says_what_to_write(
    found_in: Callable[..., Checkup], members: dict[str, object], step: str, message: str
) -> None:
    pytest.importorskip("torch")
    found = found_in(**members)
    assert found.failed
    failed = [line for line in lines(found, step) if line.startswith("failed: ")]
    assert [line for line in failed if message in line], lines(found, step)


def test_a_version_that_no_folder_can_be_named_for_fails(found_in: Callable[..., Checkup]) -> None:
    found = found_in(
        format_accelerator=lambda self, version: f"acme {version.major}.{version.minor}",
        parse_accelerator=lambda self, text: (
            Found(MajorMinor.parse(text.removeprefix("acme "))) if text.startswith("acme ") else None
        ),
    )
    assert lines(found, "build names")[0].startswith("failed: a folder cannot be called so: 'torch29-acme 1.2-")


def test_an_entry_that_another_stands_in_for_is_not_what_a_mapping_means() -> None:
    class Ours(type(backends.get("cuda"))):  # type: ignore[misc]
        pass

    beneath = backends.entry_of("cuda")
    with TemporaryRegistrations():
        backends.register_backend(Ours(), override=True)
        said = [each.what for each in check_entry(beneath) if each.step == "mappings"]
    assert said[0].startswith(f"Device('cuda') is another backend, cuda (registered by {__file__}, line ")


def test_a_member_that_became_wrong_after_registration_fails(found_in: Callable[..., Checkup]) -> None:
    assert not found_in().failed
    backend: Any = backends.get("acme")
    backend.order = "first"
    assert lines(checkup("acme"), "members") == [
        "failed: TypeError: `backend.order` (Vendor): expected an int, got 'first'."
    ]


@pytest.mark.parametrize(
    ("members", "step", "said"),
    [
        ({"device_capability": answering(None)}, "capability", "mappings ask device_capability, which answers None"),
        ({"version_reason": answering(None)}, "choosing", "version_reason accepts every version: torch29-acme10-"),
        ({"platform_reason": answering("for no machine")}, "choosing", "no compiled build can fit"),
        ({"torch_build": answering(None)}, "Torch", "is neither built for it nor extended with it"),
        ({"probe": answering(BackendProbe(True, None, (DEVICE,)))}, "probe", "no version, and names of compiled"),
        (
            {"probe": answering(BackendProbe(True, MajorMinor(7, 10), (DEVICE,)))},
            "build names",
            "version, 7.10, as the last digit is the minor: no compiled build fits here; declare no version",
        ),
        ({"probe": answering(BackendProbe(True, None, (Device("acme", 0),)))}, "probe", "device 0 has no arch"),
        ({"stages": answering({})}, "stages", "before_import: left out"),
        ({"stages": answering({"before_import": dict.fromkeys})}, "stages", "before_import: its own"),
        ({"python_depends": {}}, "Python packages", "its kernels may ask for einops, helion, tvm-ffi"),
    ],
)
def test_what_may_be_so_is_told_and_is_not_wrong(
    found_in: Callable[..., Checkup], members: dict[str, object], step: str, said: str
) -> None:
    pytest.importorskip("torch")
    found = found_in(**members)
    assert [line for line in lines(found, step) if said in line], lines(found, step)
    assert not found.failed, [each for each in found.findings if each.verdict == "failed"]


def test_a_package_that_fails_while_its_module_is_looked_for_is_told(
    found_in: Callable[..., Checkup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_broken.py").write_text("raise RuntimeError('half installed')")
    monkeypatch.syspath_prepend(str(tmp_path))
    depends = {
        "broken": PythonDependency("acme-broken", "acme_broken.part"),
        "absent": PythonDependency("acme-absent", "acme_absent.part"),
    }
    assert lines(found_in(python_depends=depends), "Python packages") == [
        "failed: broken: looking for its module acme_broken.part raised RuntimeError: half installed",
        "missing: absent: not installed here; pip install acme-absent",
    ]


def test_a_step_that_never_comes_back_fails_and_the_others_run() -> None:
    release = threading.Event()

    class Slow(Acme):
        def probe(self) -> BackendProbe:
            release.wait(60)
            return BackendProbe()

        def format_arch(self, arch: str) -> str:
            release.wait(60)
            return arch

        def stages(self, device: Device | None) -> Any:
            release.wait(60)
            return {}

    try:
        with TemporaryRegistrations():
            backends.register_backend(Slow())
            # Torch is imported, and the machine probed, before the clock runs.
            said = [each for each in check_entry(backends.entry_of("acme"), seconds=2.0) if each.verdict == "failed"]
    finally:
        release.set()
    assert {"probe": "TimeoutError: no answer within 1 seconds", "stages": "no answer within 2 seconds"}.items() <= {
        each.step: each.what.partition(";")[0] for each in said
    }.items()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unprintable(), "Unprintable"),
        (ValueError("a\n  b\tc"), "ValueError: a b c"),
        (ValueError("x" * 100_000), "ValueError: x"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
    ids=["unprintable", "several lines", "very long", "not an Exception"],
)
def test_an_error_is_a_line_of_bounded_length(error: BaseException, said: str) -> None:
    [finding] = run_step("probe", raising(error), "acme")
    assert (finding.verdict, finding.backend) == ("failed", "acme")
    assert finding.what.startswith(said)
    assert "\n" not in finding.what
    assert len(finding.what) <= 1000


# Where it comes from


def test_a_name_that_nobody_knows_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(RequestError, match=r"(?s)expected one of .*cuda, cu, .*got 'abacus'.*file or folder"):
        checkup("abacus")


@pytest.mark.parametrize("path", ["no/such", "acme.json", "\0"])
def test_a_path_that_is_not_there_is_refused(path: str) -> None:
    with pytest.raises(RequestError, match=r"[Nn]o (such )?file or folder"):
        checkup(path)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`what`: expected .*, got 3 \(int\)"):
        checkup(3)  # type: ignore[arg-type]


def test_every_registration_that_is_made_meanwhile_is_taken_back() -> None:
    before = backends.list_backends()

    class Ours(type(backends.get("cuda"))):  # type: ignore[misc]
        pass

    with pytest.raises(RuntimeError, match="in the middle"), TemporaryRegistrations():  # noqa: PT012
        backends.register_backend(Acme())
        backends.register_backend(Ours(), override=True)
        backends.register_backend(Ours(), override=True)
        raise RuntimeError("in the middle")
    assert backends.list_backends() == before


# A file that declares backends


def test_a_file_is_registered_for_the_check_alone(tmp_path: Path) -> None:
    before = backends.list_backends()
    file = declaration(tmp_path)
    found = checkup(str(file))
    assert not found.failed, [each for each in found.findings if each.verdict == "failed"]
    assert found.origins == {"acme": f"declared in {file}"}
    assert lines(found, "members") == ["ok: declared: device_string, version, archs, detect"]
    assert backends.list_backends() == before


def test_each_backend_of_a_file_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "two.json"
    file.write_text('{"acme": {"device_string": "acme"}, "cuda": {"vendor": "Nobody"}}')
    found = checkup(str(file))
    assert set(found.origins) == {"acme", "cuda"}
    assert "ok: adds to cuda, built in" in lines(found, "names")
    assert {each.step for each in found.findings if each.backend == "cuda"} == {name for name, _ in STEPS}
    assert backends.get("cuda").vendor != "Nobody"


def test_a_file_that_the_environment_names_is_checked_as_it_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = declaration(tmp_path)
    monkeypatch.setenv("KERNELS_BACKENDS_JSON", str(file))
    before = backends.list_backends()
    assert "acme" in [entry.name for entry in before]
    found = checkup(str(file))
    assert [line for line in lines(found, "names") if "overrides" in line] == []
    assert backends.list_backends() == before


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("{", ["not JSON"]),
        ("[]", ["expected an object"]),
        (
            '{"acme": {"device_string": 3}, "ajax": {"vendor": 3}}',
            ["got `int` - at `$.acme.device_string`", "got `int` - at `$.ajax.vendor`"],
        ),
        ('{"acme": {"version": "1.2"}}', ["has no `device_string`"]),
        ('{"acme": {"device_string": "acme", "variant_token": "npu"}}', ["'npu'"]),
    ],
    ids=["not JSON", "a list", "two wrong values", "something missing", "a clash"],
)
def test_a_file_that_cannot_be_registered_is_a_failed_step_with_every_fault(
    tmp_path: Path, text: str, faults: list[str]
) -> None:
    before = backends.list_backends()
    file = tmp_path / "acme.json"
    file.write_text(text)
    found = checkup(str(file))
    assert (found.failed, found.origins) == (True, {})
    assert {each.step for each in found.findings} == {"registration"}
    said = lines(found, "registration")
    assert all(any(fault in line for line in said) for fault in faults), said
    assert all(str(file) in line for line in said)
    assert backends.list_backends() == before


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"version": {"command": [sys.executable, "-c", "print('no number')"], "pattern": "v([0-9.]+)"}}, "version: "),
        ({"archs": {"command": [sys.executable, "-c", "raise SystemExit(3)"], "pattern": "(.*)"}}, "architectures: "),
        ({"archs": {"torch": "acme.get_device_properties(0).name"}}, "architectures: "),
    ],
    ids=["a pattern that finds nothing", "a command that fails", "a Torch without the module"],
)
def test_a_question_of_a_file_that_gets_no_answer_fails(tmp_path: Path, fields: dict[str, Any], fault: str) -> None:
    found = checkup(str(declaration(tmp_path, **fields)))
    assert [line for line in lines(found, "probe") if line.startswith(f"failed: {fault}")], lines(found, "probe")


def test_the_check_shows_the_architecture_of_each_device_in_order(tmp_path: Path) -> None:
    query = {"command": ["printf", "a1,?!,b2"], "pattern": "([^,]+)"}
    assert "ok: found, version 1.2, 3 devices: a1, unknown, b2" in lines(
        checkup(str(declaration(tmp_path, archs=query))), "probe"
    )


def test_a_field_of_a_file_that_is_not_known_fails(tmp_path: Path) -> None:
    found = checkup(str(declaration(tmp_path, detct={"import": "acme"}, colour="red")))
    assert lines(found, "members")[:2] == [
        "failed: 'detct' is no known field, and is ignored; did you mean `detect`?",
        "failed: 'colour' is no known field, and is ignored",
    ]
    added = tmp_path / "npu.json"
    added.write_text('{"npu": {"vendr": "Nobody"}}')
    assert lines(checkup(str(added)), "members")[0].startswith("failed: 'vendr' is no known field")


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("privateuse1", "missing: this Torch has no device 'privateuse1': as a device, PrivateUse1 is called 'privat"),
        ("privateuseone", "extended with it: its extension calls torch._register_device_module('privateuseone', …)"),
    ],
)
def test_a_device_of_torch_that_is_not_renamed_is_told_with_how_torch_has_it(
    tmp_path: Path, device: str, says: str
) -> None:
    pytest.importorskip("torch")
    found = checkup(str(declaration(tmp_path, device_string=device)))
    assert [line for line in lines(found, "Torch") if says in line]


def test_a_declared_backend_that_is_not_here_is_not_wrong(tmp_path: Path) -> None:
    found = checkup(str(declaration(tmp_path, detect={"import": "acme_that_is_not_here"})))
    assert lines(found, "probe")[-1] == "missing: not found on this machine; where it is, run this check again"
    assert not found.failed


@pytest.fixture
def extended_torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A Torch that has `torch.acme`, installed and not imported yet."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "acme", SimpleNamespace(arch="a100x", version="1.2"), raising=False)
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr("kernels.backend_check.machine.import_module", lambda name: sys.modules.setdefault(name, torch))
    return torch


def asking_torch(folder: Path) -> CheckedBackend:
    """A declared backend that asks Torch for everything, to be checked."""
    file = declaration(folder, archs={"torch": "acme.arch"}, version={"torch": "acme.version"})
    backend = declare("acme", read_declarations(file)["acme"], None)
    return CheckedBackend(BackendEntry(DeferredBackend.there(backend), Origin("declared", str(folder))))


@pytest.mark.usefixtures("extended_torch")
def test_torch_is_imported_for_the_questions_that_a_file_has_for_it(tmp_path: Path) -> None:
    checked = asking_torch(tmp_path)
    assert list(probe(checked)) == [("ok", "found, version 1.2, 1 device: a100x")]
    assert (checked.device and checked.device.arch) == "a100x"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "Torch is not installed"),
        (ModuleNotFoundError("No module named 'mpi'", name="mpi"), "Torch cannot be imported: ModuleNotFoundError: No"),
        (OSError("libacme.so"), "Torch cannot be imported: OSError: libacme.so"),
    ],
)
@pytest.mark.usefixtures("extended_torch")
def test_what_a_file_asks_of_a_torch_that_is_not_here_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    monkeypatch.setattr("kernels.backend_check.machine.import_module", raising(error))
    said = list(probe(asking_torch(tmp_path)))
    assert {verdict for verdict, _ in said} == {"missing", "ok"}
    assert [what for _, what in said][1:3] == [
        "version: torch.acme.version is not known before torch is imported",
        "architectures: torch.acme.arch is not known before torch is imported",
    ]
    assert why in said[0][1]


def test_of_a_declared_backend_only_its_fields_are_named(tmp_path: Path) -> None:
    found = checkup(str(declaration(tmp_path, archs=["blackhole"], arch_rule="any", kernel_guidance="One line.")))
    said = " ".join(each.what for each in found.findings)
    assert "device_string acme" in lines(found, "names")[0]
    assert "missing: optional: arch_rule is any, so a build for one architecture is tried on every device" in lines(
        found, "architectures"
    )
    for member in ("torch_build", "checks_archs", "mapping_device", "device_capability", "device_type", "noarch_name"):
        assert member not in said


# A vendor's folder


def test_a_folder_is_registered_for_the_check_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    before = backends.list_backends()
    place = vendor(
        tmp_path,
        **{
            "ops/__init__.py": "__all__ = ['silu', 'add_Tensor']\ndef silu(x): return x\n"
            "def add_Tensor(a, b, *, alpha=1): return a\n",
            "tune_configs.yaml": "mm:\n  - META: {BLOCK_M: 64}\narchs:\n  a100x: {mm: [META: {BLOCK_M: 32}]}\n",
            "heuristics_config_utils.py": "HEURISTICS_CONFIGS = {'mm': {'EVEN': lambda args: True}}\n",
        },
    )
    found = checkup(str(place))
    assert not found.failed, [each for each in found.findings if each.verdict == "failed"]
    assert found.origins == {"acme": f"from the vendor folder {place}"}
    assert lines(found, "operators") == ["ok: 2: aten::silu, aten::add.Tensor"]
    assert lines(found, "tuning") == ["ok: tune_configs.yaml: mm 1; a100x: mm 1", "ok: heuristics_config_utils.py: mm"]
    assert backends.list_backends() == before


def test_fields_that_a_folder_replaces_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "acme.json"
    fields = {"device_string": "acme", "vendor": "Acme Corporation", "archs": ["a100x", "a100x"], "version": "1.2"}
    file.write_text(json.dumps({"acme": fields}))
    monkeypatch.setenv("KERNELS_BACKENDS_JSON", str(file))
    said = {}
    for name, more in {"ours": "archs=['a100x'], version='1.2'", "plain": ""}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text(
            "from kernels import VendorInfo\n"
            f"vendor_info = VendorInfo(vendor_name='acme', device_name='acme', {more})\n"
        )
        said[name] = [line for line in lines(checkup(str(folder)), "names") if "replaces" in line]
    assert said == {"ours": ["ok: replaces its archs"], "plain": []}
    assert backends.get("acme").vendor == "Acme Corporation"


def test_fields_that_a_file_replaces_in_a_class_are_named(tmp_path: Path) -> None:
    file = tmp_path / "more.json"
    file.write_text(json.dumps({"cuda": {"archs": ["9.0"], "kernel_guidance": "Tiles."}}))
    assert "ok: replaces its archs" in lines(checkup(str(file)), "names")


def test_what_a_folder_may_have_is_optional(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    place = vendor(tmp_path)
    found = checkup(str(place))
    assert lines(found, "operators")[0].startswith(f"missing: optional: ops, a package in {place}")
    assert lines(found, "tuning") == [
        f"missing: optional: tune_configs.yaml in {place}", f"missing: optional: heuristics_config_utils.py in {place}",
    ]  # fmt: skip
    assert not found.failed


@pytest.mark.parametrize(
    ("file", "text", "step", "faults"),
    [
        ("__init__.py", "vendor = 1", "registration", ["vendor_info"]),
        ("__init__.py", "raise RuntimeError('no licence')", "registration", ["no licence"]),
        ("__init__.py", "import sys; sys.exit(3)", "registration", ["3"]),
        ("ops/__init__.py", "__all__ = 3", "operators", ["`__all__` of `ops`"]),
        (
            "ops/__init__.py",
            "",
            "operators",
            ['has no `__all__`: a list of the functions\' names, such as __all__ = ["silu"]'],
        ),
        ("ops/__init__.py", "import acme_that_is_not_here", "operators", ["acme_that_is_not_here"]),
        (
            "ops/__init__.py",
            "__all__ = ['silu']\ndef silu(): ...",
            "operators",
            ["cannot take the arguments of aten::silu"],
        ),
        ("tune_configs.yaml", "mm: 3", "tuning", ["tune_configs.yaml"]),
        ("heuristics_config_utils.py", "HEURISTICS_CONFIGS = 3", "tuning", ["`HEURISTICS_CONFIGS` is"]),
        ("heuristics_config_utils.py", "HEURISTICS_CONFIGS = {'mm': {'EVEN': 3}}", "tuning", ["['mm']['EVEN']"]),
    ],
)
def test_what_is_wrong_with_a_folder_fails_its_step(
    tmp_path: Path, file: str, text: str, step: str, faults: list[str]
) -> None:
    pytest.importorskip("torch")
    before = backends.list_backends()
    found = checkup(str(vendor(tmp_path, **{file: text})))
    failed = [line for line in lines(found, step) if line.startswith("failed: ")]
    assert len(failed) == len(faults), lines(found, step)
    assert all(any(fault in line for line in failed) for fault in faults), failed
    assert backends.list_backends() == before


def test_functions_that_replace_no_operator_are_listed_and_fail_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from kernels.operators import active_ops

    text = "__all__ = ['add', 'silu', 'silu', 'hadamard_transform', 'gelu', 'relu']\ndef silu(x): ...\n"
    text += "def add(a, b, *, alpha=1): ...\ndef hadamard_transform(x): ...\ndef relu(): ...\n"
    found = checkup(str(vendor(tmp_path, **{"ops/__init__.py": text})))
    operators = lines(found, "operators")
    assert operators[0] == "ok: 2: aten::add.Tensor, aten::silu"
    assert all(line.startswith("missing: not used: ") for line in operators[1:])
    said = " ".join(operators[1:])
    for reason in (
        "'hadamard_transform', which is not in Torch's ATen",
        "'gelu', which does not",
        "aten::relu: too many",
    ):
        assert reason in said
    assert not found.failed
    assert active_ops() == []


def test_without_torch_operators_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.backend_check.folder.installed_torch", lambda: None)
    assert lines(checkup(str(vendor(tmp_path))), "operators") == ["skipped: Torch is not installed"]


def test_a_registration_that_comes_too_late_is_taken_back(tmp_path: Path) -> None:
    folder = tmp_path / "late"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import sys\nsys.modules['acme_late'].go_on.wait(20)\n"
        "from kernels import VendorInfo\nvendor_info = VendorInfo(vendor_name='acme', device_name='acme')\n"
    )
    late = sys.modules["acme_late"] = ModuleType("acme_late")
    late.go_on = threading.Event()  # type: ignore[attr-defined]
    before = list_backends()
    try:
        found = checkup(str(folder), seconds=0.2)
        assert (found.failed, found.findings[0].what) == (True, "no answer within 0.2 seconds")
        late.go_on.set()  # type: ignore[attr-defined]
        for thread in threading.enumerate():
            if thread.name.startswith("kernels-check-"):
                thread.join(20)
    finally:
        del sys.modules["acme_late"]
    assert list_backends() == before


def test_what_is_left_out_cannot_be_checked_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, file = tmp_path / "vendor", tmp_path / "acme.json"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from kernels import VendorInfo\nvendor_info = VendorInfo(vendor_name='acme', device_name='acme')\n"
    )
    file.write_text('{"acme": {"device_string": "acme"}}')
    monkeypatch.setenv("KERNELS_DISABLE_BACKENDS", "acme")
    for what in (folder, file):
        assert "disabled by KERNELS_DISABLE_BACKENDS" in checkup(str(what)).findings[0].what
    monkeypatch.delenv("KERNELS_DISABLE_BACKENDS")
    assert "acme" not in [entry.name for entry in list_backends()]
