"""What a backend does before and after the import of a build."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hub import TestHub

from kernels import backends, get_kernel
from kernels.backends import Backend, BackendProbe, Device, Found, MajorMinor
from kernels.errors import KernelImportError
from kernels.loader.stages import stages_of

DEVICE = Device("acme", 0, "Acme One", "a100x")


class Acme(Backend):
    """Notes its stages."""

    name = device_type = "acme"
    versioned = True

    def __init__(self) -> None:
        self.calls: list[str] = []

    def torch_build(self, torch: object) -> Found | None:
        return Found(MajorMinor(1, 2))

    def probe(self) -> BackendProbe:
        return BackendProbe(True, MajorMinor(1, 2), (DEVICE,))

    def before_import(self, variant_dir: Path, metadata: Any) -> None:
        self.calls.append(f"before {metadata.name}")

    def after_import(self, module: ModuleType, variant_dir: Path, metadata: Any) -> None:
        self.calls.append(f"after {module.variant}")


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> Iterator[Acme]:
    monkeypatch.setenv("KERNELS_BACKEND", "acme")
    backend = Acme()
    backends.register_backend(backend)
    yield backend
    backends.unregister_backend("acme")


def test_a_build_is_imported_once_between_the_stages(hub: TestHub, acme: Acme) -> None:
    hub.make_repo("acme/relu", variants=["torch-acme"])
    module = get_kernel("acme/relu", version=1)
    assert get_kernel("acme/relu", version=1) is module
    assert acme.calls == ["before relu", "after torch-acme"]


def test_a_vendor_drops_or_replaces_a_stage_for_its_device(hub: TestHub, acme: Acme) -> None:
    class Picky(Acme):
        def stages(self, device: Device | None) -> Mapping[str, Any]:
            stages = dict(super().stages(device))
            del stages["after_import"]
            if device is not None and device.arch == "a100x":
                stages["before_import"] = lambda path, metadata: self.calls.append(f"replaced for {device.arch}")
            return stages

    picky = Picky()
    backends.register_backend(picky, override=True)
    try:
        hub.make_repo("acme/relu", variants=["torch-acme"])
        get_kernel("acme/relu", version=1)
    finally:
        backends.unregister_backend("acme")
    assert picky.calls == ["replaced for a100x"]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (lambda device: None, "expected `stages` to return a dictionary, got None"),
        (lambda device: {"compile": print}, "functions called before_import, after_import.*got 'compile'"),
        (lambda device: {"before_import": 3}, "got 'before_import': 3"),
        (lambda device: 1 / 0, "its `stages` raised ZeroDivisionError"),
        (lambda device: sys.exit(7), "its `stages` raised SystemExit: 7"),
        (lambda device: Mute(), "expected `stages` to return a dictionary, got a Mute, whose repr raised"),
    ],
)
def test_stages_that_are_none_are_refused(acme: Acme, stages: Any, message: str) -> None:
    acme.stages = stages  # type: ignore[method-assign]
    with pytest.raises(KernelImportError, match=message):
        stages_of(acme, DEVICE)


class Mute(Exception):
    """An error, or anything else, that fails when it is asked what it says."""

    def __str__(self) -> str:
        sys.exit(7)

    __repr__ = __str__


def test_an_interrupt_passes_through(acme: Acme) -> None:
    def stages(device: Any) -> Any:
        raise KeyboardInterrupt

    acme.stages = stages  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        stages_of(acme, DEVICE)


def test_a_build_of_no_known_backend_has_no_stages() -> None:
    assert stages_of(None, None) == {}
