"""A vendor's modules are imported once, with no lock in their way, and are gone with the last backend that has them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from vendor_folders import FolderBackend, write_folder

from kernels import backends
from kernels.backends.plugins import vendor_folder
from kernels.backends.plugins.vendor_folder import register_vendor, vendor_module
from kernels.errors import RequestError

ACME = """
    from kernels import VendorInfo
    vendor_info = VendorInfo(vendor_name="acme", device_name="acme")
"""

#: Registers and removes a backend on another thread, and tells whether that one was done in time.
ASK = """
import threading
from kernels import backends
from vendor_folders import FolderBackend

def ask():
    backends.register_backend(FolderBackend(None, name="beside", device_type="beside"))
    backends.unregister_backend("beside")

thread = threading.Thread(target=ask, daemon=True)
thread.start()
thread.join(20)
ANSWERED = not thread.is_alive()
"""


def ours() -> list[str]:
    return sorted(name for name in sys.modules if name.startswith("kernels_vendor_"))


@pytest.fixture(autouse=True)
def no_module_stays() -> Iterator[None]:
    before = ours()
    yield
    if backends.known("acme") is not None:
        backends.unregister_backend("acme")
    assert ours() == before


class Gate(ModuleType):
    """What a vendor's module waits for while it is imported."""

    def __init__(self) -> None:
        super().__init__("gate_of_tests")
        self.reached, self.opened = threading.Event(), threading.Event()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    found = Gate()
    monkeypatch.setitem(sys.modules, "gate_of_tests", found)
    return found


WAITING = "import gate_of_tests as gate\ngate.reached.set()\nassert gate.opened.wait(20)\n{rest}"


def at_once(gate: Gate, call: Callable[[], object]) -> list[object]:
    """What two threads get, of which the second one calls while the first one is importing."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001
            found.append(error)

    first, second = threading.Thread(target=run), threading.Thread(target=run)
    first.start()
    assert gate.reached.wait(20)
    second.start()
    second.join(0.1)
    gate.opened.set()
    first.join()
    second.join()
    return found


def test_a_module_that_another_thread_imports_is_waited_for(tmp_path: Path, gate: Gate) -> None:
    backend = register_vendor(write_folder(tmp_path / "acme", init=ACME, ops=WAITING.format(rest="VALUE = 1"))).backend

    def ask() -> tuple[ModuleType | None, bool]:
        module = vendor_module(backend, "ops")
        return module, hasattr(module, "VALUE")

    one, other = at_once(gate, ask)
    assert one == other == (sys.modules[f"{ours()[0]}.ops"], True)


def test_a_folder_that_another_thread_registers_is_waited_for(tmp_path: Path, gate: Gate) -> None:
    rest = "from kernels import VendorInfo\nvendor_info = VendorInfo(vendor_name='acme', device_name='acme')"
    folder = write_folder(tmp_path / "acme", init=WAITING.format(rest=rest))
    one, other = at_once(gate, lambda: register_vendor(folder))
    assert one is other
    assert len(ours()) == 1
    assert backends.entry_of("acme").overrides is None


@pytest.mark.parametrize("part", ["init", "ops"])
def test_code_that_fails_fails_for_each_thread_and_leaves_no_module(tmp_path: Path, gate: Gate, part: str) -> None:
    failing = WAITING.format(rest="from . import half\n1 / 0")
    files = {"init": ACME, "half": "", "ops__half": ""} | {part: failing}
    folder = write_folder(tmp_path / "acme", **files)
    if part == "ops":
        backend = register_vendor(folder).backend
    before = ours()
    found = at_once(gate, lambda: register_vendor(folder) if part == "init" else vendor_module(backend, "ops"))
    assert [type(each) for each in found] == [RequestError, RequestError]
    assert all("ZeroDivisionError" in str(each) for each in found)
    assert ours() == before


def test_a_module_that_another_thread_is_importing_stays_when_one_beside_it_fails(tmp_path: Path, gate: Gate) -> None:
    files = {"ops": WAITING.format(rest="VALUE = 1"), "heuristics_config_utils": "1 / 0"}
    backend = register_vendor(write_folder(tmp_path / "acme", init=ACME, **files)).backend
    found: list[ModuleType | None] = []
    thread = threading.Thread(target=lambda: found.append(vendor_module(backend, "ops")))
    thread.start()
    assert gate.reached.wait(20)
    with pytest.raises(RequestError, match="`heuristics_config_utils` cannot be imported: ZeroDivision"):
        vendor_module(backend, "heuristics_config_utils")
    gate.opened.set()
    thread.join()
    assert found == [vendor_module(backend, "ops")]
    assert found != [None]


def test_other_threads_may_ask_for_backends_while_a_folder_is_imported(tmp_path: Path) -> None:
    rest = "from kernels import VendorInfo\nvendor_info = VendorInfo(vendor_name='acme', device_name='acme')"
    folder = write_folder(tmp_path / "acme", init=ASK + rest, ops=ASK)
    backend = register_vendor(folder).backend
    package = sys.modules[ours()[0]]
    ops = vendor_module(backend, "ops")
    assert ops is not None
    assert (package.ANSWERED, ops.ANSWERED) == (True, True)


def test_threads_that_make_a_backend_of_one_folder_agree_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor_folder, "_registered_from", lambda folder: None)
    folder = write_folder(tmp_path / "acme", init=ACME)
    assert register_vendor(folder) is register_vendor(folder)


def test_a_folder_that_two_backends_have_stays_until_both_have_left(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "acme", init=ACME, ops="")
    both = [FolderBackend(folder, name=name, device_type=name) for name in ("one", "two")]
    for backend in both:
        backends.register_backend(backend)
    module = vendor_module(both[0], "ops")
    assert vendor_module(both[1], "ops") is module
    backends.unregister_backend("one")
    assert vendor_module(both[1], "ops") is module
    backends.unregister_backend("two")


# FlagGems' folders

INFO_BASE = """
    from dataclasses import dataclass

    @dataclass
    class VendorInfoBase:
        vendor_name: str
        device_name: str
        device_query_cmd: str
        dispatch_key: str = None
        triton_extra_name: str = None
"""

ARM = """
    from backend_utils import VendorInfoBase  # noqa: E402

    vendor_info = VendorInfoBase(vendor_name="acme", device_name="cpu", device_query_cmd="cat /proc/cpuinfo")
    CUSTOMIZED_UNUSED_OPS = ("cos",)
    __all__ = ["*"]
"""


@pytest.mark.parametrize("beside", [True, False], ids=["in FlagGems", "alone"])
def test_a_folder_of_flaggems_finds_the_class_of_its_vendor_info(tmp_path: Path, beside: bool) -> None:
    if beside:
        write_folder(tmp_path / "backend", backend_utils=INFO_BASE)
    ops = "from backend_utils import VendorInfoBase\nfrom .add import add\n__all__ = ['add']"
    folder = write_folder(
        tmp_path / "backend" / "_acme", init=ARM, ops=ops, ops__add="def add(A, B, *, alpha=1): return A"
    )
    entry = register_vendor(folder)
    assert (entry.name, entry.backend.device_type, entry.backend.dispatch_key) == ("acme", "cpu", "CPU")
    module = vendor_module(entry.backend, "ops")
    assert module is not None
    assert module.__all__ == ["add"]
    assert (module.VendorInfoBase is vendor_folder.VendorInfo) is not beside
    assert "backend_utils" not in sys.modules


def test_a_module_of_the_program_that_has_the_name_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = ModuleType("backend_utils")
    mine.VendorInfoBase = vendor_folder.VendorInfo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "backend_utils", mine)
    register_vendor(write_folder(tmp_path / "_acme", init=ARM))
    assert sys.modules["backend_utils"] is mine
