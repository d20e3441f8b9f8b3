"""A check runs a registration through every step, names what is missing, and leaves the registry as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernels import backends
from kernels.backends import Backend, BackendProbe, Device, Found, MajorMinor, PythonDependency
from kernels.backends.checkup import STEPS, Checkup, check_entry, checkup
from kernels.backends.checkup.arrival import as_before
from kernels.backends.checkup.finding import run_step
from kernels.errors import RequestError


class Acme(Backend):
    """A backend with everything that a vendor may give, for a device that Torch has."""

    name = device_type = mapping_device = "acme"
    versioned = checks_archs = True
    vendor = "Acme"
    guidance_block = "Vectors of 256 bits."
    kernel_guidance = "Keep tiles below 64 kB.\nUse the block loads."
    cuda_hacks_to_strip = ("import pycuda", "torch.cuda.synchronize()")
    prepare_key = "acmec 3"
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

    def prepare(self, variant_dir: Path) -> None:
        pass


@pytest.fixture
def found_in() -> Iterator[Callable[..., Checkup]]:
    """What a check finds of a backend with those members in place of Acme's."""
    with as_before():

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
        ("probe", "ok: found, version 1.2, 1 device"),
        ("build names", "ok: torch29-acme12-x86_64-linux is acme 1.2"),
        ("build names", "ok: torch-acme is acme"),
        (
            "architectures",
            "ok: a100x (short: a100x); a build for another is turned down: device 0 is a100x, the build is",
        ),
        ("capability", "ok: 100: a mapping entry is used when its range holds that"),
        (
            "Torch",
            "missing: torch_build is not given, so beside a Torch no build of it is chosen: return Found() where",
        ),
        ("Torch", "missing: this Torch has no device 'acme': import the package that adds it"),
        ("Torch", "ok: dispatch key 'PrivateUse1' is known to Torch"),
        ("choosing", "ok: torch-tpu is turned down: for tpu, not acme"),
        ("mappings", "ok: Device('acme') is acme"),
        ("Python packages", "ok: torch: torch, installed"),
        ("Python packages", "missing: acme-dsl: not installed here; pip install acme-dsl"),
        ("Python packages", "ok: acme-headers: acme-headers, of which no module is looked for"),
        ("stages", "ok: prepare: its own"),
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
    assert other == "ok: torch-tpu is turned down: for tpu, not acme"
    assert version.endswith("is turned down: built for acme 1.0, this machine has 1.2")
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
    with as_before():
        backends.register_backend(plain)
        found = checkup("acme")
    assert lines(found, "members")[0] == "ok: given: name, device_type, probe"
    assert not found.failed


def test_what_a_backend_stands_in_for_is_told() -> None:
    class Ours(type(backends.get("cuda"))):  # type: ignore[misc]
        pass

    with as_before():
        backends.register_backend(Ours(), override=True)
        assert "ok: stands in for cuda, built in" in lines(checkup("cuda"), "names")
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
    monkeypatch.setattr("kernels.backends.checkup.machine.installed_torch", lambda: None)
    assert lines(found_in(), "Torch") == ["skipped: Torch is not installed"]


# What is wrong: members in place of Acme's, the step that fails, and what it says.

DEVICE = Device("acme", 0, "Acme One", "a100x", 100)
WRONG: list[tuple[dict[str, object], str, str]] = [
    ({"probe": raising(RuntimeError("no licence"))}, "probe", "RuntimeError: no licence"),
    ({"probe": raising(SystemExit(3))}, "probe", "SystemExit: 3"),
    ({"probe": answering(None)}, "probe", "None, which is no BackendProbe"),
    ({"probe": answering(BackendProbe(True, "1.2"))}, "probe", "`version` is '1.2'"),  # type: ignore[arg-type]
    ({"probe": answering(BackendProbe(True, None, (Device("cuda", 0),)))}, "probe", "which is none of acme"),
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
    ({"torch_build": raising(AttributeError("torch.acme"))}, "Torch", "AttributeError: torch.acme"),
    ({"dispatch_key": "Acme"}, "Torch", "Torch has no dispatch key 'Acme'"),
    ({"device_type": "mps", "dispatch_key": "CUDA"}, "Torch", "but Torch's device 'mps' has 'MPS'"),
    ({"version_reason": answering("never")}, "choosing", "is not chosen of torch-tpu, torch-acme, torch29-acme12-"),
    ({"platform_reason": raising(OSError("no sysctl"))}, "choosing", "OSError: no sysctl"),
    ({"python_depends": {"a": PythonDependency("-r evil", "a")}}, "Python packages", "package is '-r evil'; allowed"),
    ({"python_depends": {"a": PythonDependency("a", "a b")}}, "Python packages", "module is 'a b'; allowed"),
    ({"stages": answering({"link": print})}, "stages", "stages has link; allowed is prepare, before_import, after_im"),
    ({"stages": answering({"prepare": 3})}, "stages", "prepare is 3; allowed is a function prepare(variant_dir)"),
    ({"stages": answering({"prepare": lambda: None})}, "stages", "prepare cannot be called as prepare(variant_dir)"),
    ({"stages": answering(None)}, "stages", "stages is None; allowed is a mapping"),
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


def test_a_member_that_became_wrong_after_registration_fails(found_in: Callable[..., Checkup]) -> None:
    assert not found_in().failed
    backend: Any = backends.get("acme")
    backend.order = "first"
    assert lines(checkup("acme"), "members") == [
        "failed: TypeError: `backend.order` of Vendor is 'first'; allowed is a whole number."
    ]


@pytest.mark.parametrize(
    ("members", "step", "said"),
    [
        ({"device_capability": answering(None)}, "capability", "mappings ask device_capability, which answers None"),
        ({"version_reason": answering(None)}, "choosing", "version_reason accepts every version: torch29-acme10-"),
        ({"platform_reason": answering("for no machine")}, "choosing", "no compiled build can fit"),
        ({"torch_build": answering(None)}, "Torch", "is neither built for it nor extended with it"),
        ({"prepare_key": ""}, "stages", "optional: prepare_key"),
        ({"probe": answering(BackendProbe(True, None, (DEVICE,)))}, "probe", "no version, and its token carries one"),
        (
            {"probe": answering(BackendProbe(True, MajorMinor(7, 10), (DEVICE,)))},
            "build names",
            "version, 7.10: no com",
        ),
        ({"probe": answering(BackendProbe(True, None, (Device("acme", 0),)))}, "probe", "device 0 has no arch"),
        ({"stages": answering({})}, "stages", "prepare: left out"),
        ({"stages": answering({"prepare": dict.fromkeys})}, "stages", "prepare: its own"),
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
        with as_before():
            backends.register_backend(Slow())
            # Torch is imported, and the machine probed, before the clock runs.
            said = [each for each in check_entry(backends.entry_of("acme"), seconds=2.0) if each.verdict == "failed"]
    finally:
        release.set()
    assert {"probe": "no answer within 1 seconds", "stages": "no answer within 2 seconds"}.items() <= {
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
    with pytest.raises(RequestError, match=r"(?s)`what` is 'abacus'; allowed is one of .*cuda, cu, .*file or folder"):
        checkup("abacus")


@pytest.mark.parametrize("path", ["no/such", "acme.json", "\0"])
def test_a_path_that_is_not_there_is_refused(path: str) -> None:
    with pytest.raises(RequestError, match=r"(?s)`what` is .*(there is no such file or folder|none is called so)"):
        checkup(path)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="`what` is 3, a int"):
        checkup(3)  # type: ignore[arg-type]


def test_every_registration_that_is_made_meanwhile_is_taken_back() -> None:
    before = backends.list_backends()

    class Ours(type(backends.get("cuda"))):  # type: ignore[misc]
        pass

    with pytest.raises(RuntimeError, match="in the middle"), as_before():  # noqa: PT012
        backends.register_backend(Acme())
        backends.register_backend(Ours(), override=True)
        backends.register_backend(Ours(), override=True)
        raise RuntimeError("in the middle")
    assert backends.list_backends() == before
