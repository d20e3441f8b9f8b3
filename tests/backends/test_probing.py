"""A plugin may fail or hang: it is reported and passed over, and every other backend works."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from logged import logged

from kernels import backends, has_kernel
from kernels.backends import Backend, BackendProbe, Device, Found, MajorMinor, Unanswered
from kernels.backends.probing import checked_probe, probe_backend, probe_backend_once
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
        (answering(None), "expected a BackendProbe, got None"),
        (answering(BackendProbe(found="yes")), r"Expected `bool`, got `str` - at `\$.found`"),  # type: ignore[arg-type]
        (answering(BackendProbe(True, "1.2")), r"got `str` - at `\$.version`"),  # type: ignore[arg-type]
        (answering(BackendProbe(True, devices=(Device("acme", 0, arch=7),))), r"got `int` - at `\$.devices\[0\].arch`"),  # type: ignore[arg-type]
        (answering(BackendProbe(True, devices=(GOOD, Device("cuda", 0)))), "expected devices of acme, got"),
    ],
)  # fmt: skip
def test_a_probe_that_fails_or_returns_something_else_is_reported_in_a_note(
    registered: Callable[..., Backend], probe: Callable[..., Any], note: str
) -> None:
    answer = probe_backend(registered(probe=probe))
    assert not answer.found
    assert answer.devices == ()
    assert re.search(note, answer.notes[0])
    target = Target.probe()
    assert "acme" not in target.backends
    assert any(each.startswith("acme: could not be probed") for each in target.notes)
    assert "cpu" in target.backends


def test_a_probe_that_hangs_is_given_up_and_not_started_again_while_it_hangs(
    registered: Callable[..., Backend],
) -> None:
    go_on, asked = threading.Event(), []

    def hang(self: Backend) -> BackendProbe:
        asked.append(1)
        go_on.wait(60)
        return BackendProbe(found=True)

    backend = registered(probe=hang)
    try:
        for reason in ("no answer within 0.05 seconds", "the previous probe has not returned"):
            with pytest.raises(TimeoutError, match=reason):
                checked_probe(backend, 0.05)
        assert len(asked) == 1
    finally:
        go_on.set()


@pytest.mark.parametrize("timed_out", [False, True])
def test_a_probe_with_a_query_that_failed_is_not_repeated_and_one_that_hung_is_told(
    registered: Callable[..., Backend], timed_out: bool
) -> None:
    asked: list[Backend] = []
    failed = Unanswered("version", "'acme-smi' said nothing", timed_out)

    def probe(self: Backend) -> BackendProbe:
        asked.append(self)
        return BackendProbe(True, notes=(str(failed),), unanswered=(failed,))

    backend = registered(probe=probe)
    with logged() as caught:
        first, again = probe_backend_once(backend), probe_backend_once(backend)
    assert (first, len(asked)) == (again, 1)
    said = [each.getMessage().partition(". ")[0] for each in caught]
    assert said == ["Backend 'acme': version: 'acme-smi' said nothing"] * timed_out
    assert Target.probe().unanswered == {"acme": (failed,)}
    assert len(asked) == 2


def test_a_probe_that_torch_can_add_to_or_in_which_all_answered_is_repeated(
    registered: Callable[..., Backend],
) -> None:
    asked: list[Backend] = []
    failed = Unanswered("version", "no")
    answers = [BackendProbe(True, unanswered=(failed,), needs_torch=True), BackendProbe(True), BackendProbe(True)]

    def probe(self: Backend) -> BackendProbe:
        asked.append(self)
        return answers[len(asked) - 1]

    backend = registered(probe=probe)
    assert [probe_backend_once(backend) for _ in answers] == answers


@pytest.mark.parametrize(
    ("torch_build", "note"),
    [
        (answering(5), "TypeError: expected Found(MajorMinor(1, 2)), Found() or None, got 5"),
        (raising(OSError("no driver")), "OSError: no driver"),
    ],
)
def test_a_torch_build_that_fails_or_returns_something_else_is_reported_in_a_note(
    registered: Callable[..., Backend], torch_build: Callable[..., Any], note: str
) -> None:
    registered(torch_build=torch_build)
    target = Target.probe()
    assert "acme" not in target.torch_backends
    assert f"acme: its torch_build failed: {note}" in target.notes


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


def test_a_parser_that_fails_leaves_other_names_alone(registered: Callable[..., Backend]) -> None:
    registered(parse_accelerator=raising(RuntimeError("no")), order=1)
    assert backends.parse_accelerator("cu128") is not None


def test_an_experimental_backend_warns_once_and_says_where_it_is_from(
    registered: Callable[..., Backend], hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(experimental=True, torch_build=answering(Found(MajorMinor(1, 2))))
    hub.make_repo("acme/relu", variants=["torch-acme"])
    monkeypatch.setenv("KERNELS_BACKEND", "acme")
    with logged() as caught:
        for _ in range(2):
            assert has_kernel("acme/relu", version=1)
    said = [each.getMessage() for each in caught if "experimental" in each.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("Backend 'acme' (registered by ")
    assert "test_probing.py" in said[0]
