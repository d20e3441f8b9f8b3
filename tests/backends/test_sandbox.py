"""A stranger's backend may fail, hang or answer nonsense: the others go on, and a note or a reason says so."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kernels import backends, has_kernel
from kernels.backends import Backend, BackendProbe, Device, Found, MajorMinor
from kernels.backends.sandbox import guarded_probe, guarded_torch_build
from kernels.models.metadata import Metadata
from kernels.resolver.selection import resolve
from kernels.resolver.target import Target


class Acme(Backend):
    name = device_type = "acme"
    versioned = checks_archs = True

    def probe(self) -> BackendProbe:
        return BackendProbe(True, MajorMinor(1, 2), (Device("acme", 0, "Acme One", "a100x"),))


@pytest.fixture
def registered() -> Iterator[Callable[..., Backend]]:
    before = backends.list_backends()

    def register(**members: object) -> Backend:
        backend = type("Vendor", (Acme,), members)()
        backends.register_backend(backend)
        return backend

    yield register
    if backends.known("acme"):
        backends.unregister_backend("acme")
    assert backends.list_backends() == before


def raising(error: BaseException) -> Callable[..., Any]:
    def member(*_: object) -> Any:
        raise error

    return member


def answering(answer: object) -> Callable[..., Any]:
    return lambda *_: answer


GOOD = Device("acme", 0)


@pytest.mark.parametrize(
    ("probe", "note"),
    [
        (raising(OSError("no such ioctl")), "OSError: no such ioctl"),
        (raising(SystemExit(3)), "SystemExit: 3"),
        (answering(None), "nonsense, None, which is no BackendProbe"),
        (answering({"found": True}), "no BackendProbe"),
        (answering(BackendProbe(found="yes")), "`found` is 'yes'"),  # type: ignore[arg-type]
        (answering(BackendProbe(True, "1.2")), "`version` is '1.2'"),  # type: ignore[arg-type]
        (answering(BackendProbe(True, (1, 2, 3))), r"`version` is \(1, 2, 3\)"),  # type: ignore[arg-type]
        (answering(BackendProbe(True, (1, -2))), r"`version` is \(1, -2\)"),  # type: ignore[arg-type]
        (answering(BackendProbe(True, notes="text")), "`notes` is 'text'"),  # type: ignore[arg-type]
        (answering(BackendProbe(True, devices=5)), "`devices` is 5"),  # type: ignore[arg-type]
        (answering(BackendProbe(True, devices=(GOOD,) * 5000)), "`devices` is"),
        (answering(BackendProbe(True, devices=("a",))), "a device is 'a', which is none of acme"),  # type: ignore[arg-type]
        (answering(BackendProbe(True, devices=(Device("cuda", 0),))), "none of acme"),
        (answering(BackendProbe(True, devices=(Device("acme", -1),))), "a device's index is -1"),
        (answering(BackendProbe(True, devices=(GOOD, GOOD))), "a device's index is 0"),
        (answering(BackendProbe(True, devices=(Device("acme", 0, arch=7),))), "of architecture 7"),  # type: ignore[arg-type]
        (answering(BackendProbe(True, devices=(Device("acme", 0, memory=-5),))), "memory -5"),
    ],
)  # fmt: skip
def test_a_probe_that_fails_or_makes_no_sense_is_a_note(
    registered: Callable[..., Backend], probe: Callable[..., Any], note: str
) -> None:
    backend = registered(probe=probe)
    answer = guarded_probe(backend)
    assert not answer.found
    assert answer.devices == ()
    with pytest.raises(AssertionError, match=note):
        raise AssertionError(answer.notes[0])
    target = Target.probe()
    assert "acme" not in target.backends
    assert any(each.startswith("acme: could not be probed") for each in target.notes)
    assert "cpu" in target.backends


def test_a_probe_that_hangs_is_given_up_and_not_asked_again_while_it_hangs(registered: Callable[..., Backend]) -> None:
    go_on, asked = threading.Event(), []

    def hang(self: Backend) -> BackendProbe:
        asked.append(1)
        go_on.wait(60)
        return BackendProbe(found=True)

    backend = registered(probe=hang)
    try:
        for _ in range(3):
            assert guarded_probe(backend, 0.05).notes == ("could not be probed: no answer within 0.05 seconds",)
        assert len(asked) == 1
    finally:
        go_on.set()


def test_long_notes_are_cut(registered: Callable[..., Backend]) -> None:
    backend = registered(probe=answering(BackendProbe(True, notes=("x" * 10_000,) * 100)))
    notes = guarded_probe(backend).notes
    assert (len(notes), {len(note) for note in notes}) == (32, {500})


@pytest.mark.parametrize("answer", [5, True, SimpleNamespace(version="1.2"), SimpleNamespace(version=(1, 2, 3))])
def test_nonsense_about_torch_counts_as_no_and_is_a_note(registered: Callable[..., Backend], answer: object) -> None:
    backend = registered(torch_build=answering(answer))
    with pytest.raises(ValueError, match=r"it answered .*; allowed is Found\(MajorMinor\(1, 2\)\), Found\(\) or None"):
        guarded_torch_build(backend, None)
    target = Target.probe()
    assert "acme" not in target.torch_backends
    assert any(note.startswith("acme: its torch_build failed: ValueError: it answered") for note in target.notes)


def test_a_question_about_torch_that_hangs_is_given_up(registered: Callable[..., Backend]) -> None:
    go_on, asked = threading.Event(), []

    def hang(self: Backend, torch: object) -> None:
        asked.append(1)
        go_on.wait(60)

    backend = registered(torch_build=hang)
    try:
        for _ in range(3):
            with pytest.raises(TimeoutError, match=r"no answer within 0\.05 seconds"):
                guarded_torch_build(backend, None, 0.05)
        assert len(asked) == 1
        assert "acme" not in Target.probe().torch_backends
    finally:
        go_on.set()


def test_a_backend_that_says_nothing_of_torch_is_there_where_an_extension_added_its_device(
    registered: Callable[..., Backend],
) -> None:
    backend = registered()
    acme = SimpleNamespace(__name__="torch_acme", is_available=lambda: True)
    assert backend.torch_build(SimpleNamespace(acme=acme)) == Found()
    assert backend.torch_build(SimpleNamespace(acme=SimpleNamespace(__name__="torch_acme"))) is None
    renamed = SimpleNamespace(_get_privateuse1_backend_name=lambda: "acme")
    assert backend.torch_build(SimpleNamespace(_C=renamed)) == Found()
    assert type("OnCPU", (Acme,), {"device_type": "cpu"})().torch_build(pytest.importorskip("torch")) is None


@pytest.mark.parametrize("member", ["torch_build", "current_device", "platform_reason", "format_accelerator"])
def test_a_backend_that_ends_the_process_does_not(registered: Callable[..., Backend], member: str) -> None:
    registered(**{member: raising(SystemExit(7))})
    target = Target.parse(MACHINE)
    assert "acme" in str(target)
    assert resolve(["torch29-cxx11-acme12-x86_64-linux"], target).backend == "acme"
    assert Target.current().default_backend == "cpu"


@pytest.mark.parametrize("answer", [-1, "0", None, True, raising(OSError())])
def test_a_current_device_that_is_none_is_the_first(
    registered: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    member = answer if callable(answer) else answering(answer)
    registered(torch_build=answering(Found(MajorMinor(1, 2))), current_device=member)
    monkeypatch.setenv("KERNELS_BACKEND", "acme")
    target = Target.current()
    assert (target.default_backend, target.current_device) == ("acme", 0)


MACHINE = "torch2.9-acme12-x86_64-linux+a100x"


@pytest.mark.parametrize(
    ("member", "broken", "reason"),
    [
        ("version_reason", raising(KeyError("x")), "could not judge it: KeyError: 'x'"),
        ("version_reason", answering(7), "could not judge it: it answered 7"),
        ("platform_reason", raising(OSError("gone")), "could not judge it: OSError: gone"),
        ("arch_reason", raising(ZeroDivisionError("by zero")), "could not judge it: ZeroDivisionError: by zero"),
        ("version_reason", raising(SystemExit(7)), "could not judge it: SystemExit: 7"),
    ],
)
def test_a_build_that_cannot_be_judged_is_turned_down_with_the_reason(
    registered: Callable[..., Backend], member: str, broken: Callable[..., Any], reason: str
) -> None:
    registered(**{member: broken})
    name = "torch29-cxx11-acme12-x86_64-linux"
    facts = Metadata.from_bytes(
        b'{"name": "relu", "id": "_relu_acme_1", "version": 1, "license": "mit", "python-depends": [], '
        b'"backend": {"type": "acme", "archs": ["a100x"]}}'
    )
    resolution = resolve([name, "torch-cpu"], Target.parse(MACHINE), metadata={name: facts})
    assert resolution.best is None
    assert f"backend acme {reason}" in resolution.rejected[0].reason


@pytest.mark.parametrize("member", ["format_accelerator", "format_arch"])
def test_a_name_that_a_backend_cannot_write_does_not_hide_the_message(
    registered: Callable[..., Backend], member: str
) -> None:
    target = Target.parse("torch2.9-acme12-x86_64-linux+a100x") if registered() else None
    backends.unregister_backend("acme")
    registered(**{member: raising(RuntimeError("no"))})
    assert "acme" in str(target)


def test_a_capability_that_is_no_number_is_none(registered: Callable[..., Backend]) -> None:
    registered(device_capability=answering("high"))
    assert Target.parse(MACHINE).devices[0].capability is None
    backends.unregister_backend("acme")
    registered(device_capability=raising(OSError()))
    assert Target.parse(MACHINE).devices[0].capability is None


def test_a_parser_that_fails_leaves_other_names_alone(registered: Callable[..., Backend]) -> None:
    registered(parse_accelerator=raising(RuntimeError("no")), order=1)
    assert backends.parse_accelerator("cu128") is not None


def test_an_experimental_backend_warns_once_and_says_where_it_is_from(
    registered: Callable[..., Backend], hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(experimental=True, torch_build=answering(Found(MajorMinor(1, 2))))
    hub.make_repo("acme/relu", variants=["torch-acme"])
    monkeypatch.setenv("KERNELS_BACKEND", "acme")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert has_kernel("acme/relu", version=1)
        assert has_kernel("acme/relu", version=1)
    said = [str(each.message) for each in caught if "experimental" in str(each.message)]
    assert len(said) == 1
    assert said[0].startswith("Backend 'acme' (registered by ")
    assert "test_guard.py" in said[0]
