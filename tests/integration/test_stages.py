"""What a backend does before and after the import of a build."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hub import TestHub

from kernels import backends, get_kernel
from kernels.backends import Backend, BackendProbe, Device, Found, MajorMinor

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
