"""Vendors' packages for Triton are backends; Triton's own entry points, and names that are taken, are not."""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kernels import backends
from kernels.backends.plugins.entry_points import triton_points
from kernels.backends.plugins.triton_backends import TritonBackend, TritonTarget, ask_driver, triton_backends
from kernels.backends.registration import Problem

DRIVER = """
from triton.backends.driver import DriverBase

class Driver(DriverBase):
    active = True

    @staticmethod
    def is_active():
        return Driver.active

    def get_current_target(self):
        from types import SimpleNamespace
        return SimpleNamespace(backend="acme", arch=90, warp_size=64)

    def get_active_torch_device(self):
        import torch
        return torch.device("chip", 0)
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Lay out an installed package for Triton; removed again, and its modules with it."""
    backends.list_backends()  # looked for before, so that the registry never sees these packages
    site = tmp_path / "site"
    packages: list[str] = []

    def install(point: str, *, package: str = "triton_acme_of_tests", record: str = "", **files: str) -> None:
        info = site / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nAuthor: Acme\n")
        (info / "entry_points.txt").write_text(f"[triton.backends]\n{point}\n")
        (info / "RECORD").write_text(record)
        (site / package).mkdir()
        packages.append(package)
        for name, text in {"__init__": "", "compiler": "", "driver": DRIVER, **files}.items():
            if text is not None:
                (site / package / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(site)

    yield install
    for name in [each for each in [*sys.modules] if each.partition(".")[0] in packages]:
        del sys.modules[name]


def found(disabled: frozenset[str] = frozenset()) -> list[Any]:
    return list(triton_backends(triton_points(), disabled))


def test_a_package_is_a_backend_with_the_device_of_its_driver(install: Install) -> None:
    install("Acme-One = triton_acme_of_tests")
    [(backend, origin)] = found()
    assert (backend.name, backend.device_type, backend.dispatch_key, backend.vendor) == (
        "acme_one", "chip", "PrivateUse1", "Acme",
    )  # fmt: skip
    assert str(origin) == "installed by triton_acme_of_tests 1.0 (triton_acme_of_tests)"
    assert "triton_acme_of_tests" not in sys.modules


def test_without_a_device_in_its_source_the_name_is_the_device(install: Install) -> None:
    install("acme = triton_acme_of_tests", driver="")
    [(backend, _)] = found()
    assert backend.device_type == "acme"


@pytest.mark.parametrize(
    ("point", "record"),
    [
        ("amd = triton.backends.amd", "triton/__init__.py,sha256=x,1\n"),
        ("acme = triton.backends.acme", "triton/backends/acme/driver.py,,\ntriton/__init__.py,sha256=x,1\n"),
        ("cuda = triton_acme_of_tests", ""),
        ("npu = triton_acme_of_tests", ""),
        ("cu = triton_acme_of_tests", ""),
    ],
)
def test_what_is_tritons_own_or_has_another_backends_name_is_none(install: Install, point: str, record: str) -> None:
    install(point, record=record)
    assert found() == []


def test_a_package_that_adds_itself_to_tritons_folder_is_a_vendors(install: Install) -> None:
    install("acme = triton.backends.acme_of_tests", record="triton/backends/acme_of_tests/driver.py,,\n")
    [problem] = found()
    assert isinstance(problem, Problem)
    assert "No module named 'triton.backends.acme_of_tests'" in problem.message or "'triton" in problem.message


def test_a_disabled_name_is_passed_over(install: Install) -> None:
    install("acme = triton_acme_of_tests")
    assert found(frozenset({"acme"})) == []


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"driver": None}, "the package triton_acme_of_tests has no driver.py"),
        ({"compiler": None}, "the package triton_acme_of_tests has no compiler.py"),
    ],
)
def test_a_package_without_a_part_is_a_problem(install: Install, files: dict[str, Any], says: str) -> None:
    install("acme = triton_acme_of_tests", **files)
    [problem] = found()
    assert isinstance(problem, Problem)
    assert says in problem.message
    assert problem.names == ("acme",)


def test_a_package_that_is_not_there_is_a_problem(install: Install) -> None:
    install("acme = nowhere_of_tests")
    [problem] = found()
    assert problem.message.endswith("ModuleNotFoundError: No module named 'nowhere_of_tests'.")


class DriverBase(ABC):
    @staticmethod
    @abstractmethod
    def is_active() -> bool: ...


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for Triton: the module from which drivers take their base class."""
    driver = ModuleType("triton.backends.driver")
    driver.DriverBase = DriverBase  # type: ignore[attr-defined]
    for name in ("triton", "triton.backends"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "triton.backends.driver", driver)
    torch = SimpleNamespace(device=lambda kind, index: SimpleNamespace(type=kind), chip=SimpleNamespace())
    torch.chip.device_count = lambda: 2
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]


@pytest.mark.usefixtures("triton")
def test_the_driver_tells_target_and_devices(install: Install) -> None:
    install("acme = triton_acme_of_tests")
    assert ask_driver("triton_acme_of_tests") == TritonTarget(True, "acme", "90", 64, "chip", 2)
    [(backend, _)] = found()
    probe = backend.probe()
    assert probe.found
    assert [(each.index, each.name, each.arch, each.capability) for each in probe.devices] == [
        (0, "acme 90", "90", 90), (1, "acme 90", "90", 90),
    ]  # fmt: skip
    importlib.import_module("triton_acme_of_tests.driver").Driver.active = False
    [(backend, _)] = found()
    assert backend.probe().notes == ("its driver triton_acme_of_tests.driver is not active",)


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(
    ("driver", "says"),
    [
        ("", "expected one concrete subclass of DriverBase, found 0"),
        (DRIVER + "\nclass Second(Driver): ...", "found 2"),
        ("raise OSError('no firmware')", "OSError: no firmware"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_driver_that_cannot_be_asked_is_a_note(install: Install, driver: str, says: str) -> None:
    install("acme = triton_acme_of_tests", driver=driver)
    [(backend, _)] = found()
    probe = backend.probe()
    assert (probe.found, probe.needs_torch) == (False, True)
    assert says in probe.notes[0]


@pytest.mark.usefixtures("triton")
def test_on_a_device_of_another_backend_only_an_active_driver_counts(install: Install) -> None:
    install("acme = triton_acme_of_tests", driver=DRIVER.replace('"chip"', '"cpu"'))
    torch = SimpleNamespace(cpu=SimpleNamespace())
    backend = TritonBackend("acme", "triton_acme_of_tests", "cpu")
    names = [each.name for each in backends.all_backends()]
    assert backend.order > backends.get(names[-1]).order
    for active in (True, False):
        backend = TritonBackend("acme", "triton_acme_of_tests", "cpu")
        importlib.import_module("triton_acme_of_tests.driver").Driver.active = active
        assert (backend.torch_build(torch) is not None) is active
