"""Installed packages, declared files and vendors' folders are found at the first question, and break nothing."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from logged import logged, warned
from vendor_folders import write_folder

from kernels import backends, get_backend, list_backends
from kernels.backends import registry
from kernels.diagnosis import diagnose
from kernels.errors import RequestError
from kernels.resolver.target import Target
from kernels.resolver.variant import parse_variant

PACKAGE = """
from kernels.backends import Backend, BackendProbe

class Acme(Backend):
    name = device_type = "acme"
    vendor = "Acme Corporation"

    def probe(self):
        return BackendProbe(found=True)

ready = Acme()

def make():
    return Acme()
"""


@pytest.fixture(autouse=True)
def _registry_as_before() -> Iterator[None]:
    before = [(entry.name, str(entry.origin)) for entry in list_backends()]
    yield
    # The environment is that of before only after the other fixtures: the next question looks again.
    assert [(name, origin) for name, origin in before if origin != "built in"] == []


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Lay out an installed package with entry points, and have it looked for."""
    installed: list[str] = []

    def lay_out(source: str = PACKAGE, *, module: str = "acme_kernels", **points: str) -> None:
        site = tmp_path / "site"
        info = site / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text(source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n")
        lines = "\n".join(f"{name} = {value}" for name, value in points.items())
        (info / "entry_points.txt").write_text(f"[kernels.backends]\n{lines}\n")
        monkeypatch.syspath_prepend(site)
        monkeypatch.setenv("KERNELS_DISABLE_BACKENDS", f"nobody,{len(installed)}")  # another answer: look again
        installed.append(module)

    yield lay_out
    for name in installed:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("value", ["acme_kernels:Acme", "acme_kernels:ready", "acme_kernels:make"])
def test_a_package_joins_by_being_installed(install: Callable[..., None], value: str) -> None:
    install(acme=value)
    entry = backends.entry_of("acme")
    assert str(entry.origin) == f"installed by acme-kernels 1.0 ({value})"
    assert entry.backend.vendor == "Acme Corporation"
    assert parse_variant("torch29-cxx11-acme-x86_64-linux").backend == "acme"
    assert "acme" in Target.current().backends
    assert diagnose().joined == {"acme": str(entry.origin)}


def offered_file(tmp_path: Path, declared: object) -> str:
    """The source of a package that offers a JSON file."""
    file = tmp_path / "acme.json"
    file.write_text(json.dumps(declared))
    return f"from pathlib import Path\nfile = Path({str(file)!r})\ndef find(): return file\n"


@pytest.mark.parametrize("value", ["acme_kernels:file", "acme_kernels:find"])
def test_a_package_offers_a_file_that_declares_backends(
    install: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    install(offered_file(tmp_path, {"acme": {"device_string": "acme", "archs": ["a100x"]}}), acme=value)
    entry = backends.entry_of("acme")
    assert str(entry.origin) == f"installed by acme-kernels 1.0 ({value})"
    assert [device.capability for device in Target.current().backend_devices("acme")] == [100]
    more = tmp_path / "more.json"
    more.write_text(json.dumps({"acme": {"vendor": "Acme"}}))
    monkeypatch.setenv("KERNELS_BACKENDS_JSON", str(more))
    assert backends.get("acme").vendor == "Acme"
    assert len(Target.current().backend_devices("acme")) == 1


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"acme": {"device_string": 7}}, "Expected `str | null`, got `int` - at `$.acme.device_string`"),
        ({"cuda": {"vendor": "Acme"}}, "which backend 'cuda' (built in) already has"),
    ],
)
def test_a_file_of_a_package_that_fails_is_told_of_by_the_doctor(
    install: Callable[..., None], tmp_path: Path, declared: object, said: str
) -> None:
    before = list_backends()
    install(offered_file(tmp_path, declared), acme="acme_kernels:file")
    assert list_backends() == before
    [problem] = [each for each in diagnose().problems if "acme-kernels 1.0" in each.message]
    assert said in problem.message
    assert str(tmp_path / "acme.json") in problem.message


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise OSError('libacme.so: no such file')", "OSError: libacme.so: no such file"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("", "AttributeError"),
        ("def Acme(): 1 / 0", "ZeroDivisionError"),
        ("Acme = 7", "has no name, device_type, probe"),
        (PACKAGE.replace('"acme"', '"cuda"'), "which backend 'cuda' (built in) already has"),
        (PACKAGE.replace('"acme"', '"Acme"'), "lower-case letters, digits and underscores, got 'Acme'"),
    ],
)
def test_a_package_that_fails_is_told_of_by_the_doctor_and_otherwise_ignored(
    install: Callable[..., None], source: str, said: str
) -> None:
    before = list_backends()
    install(source, acme="acme_kernels:Acme")
    with logged() as records:
        assert list_backends() == before
        assert Target.current().default_backend == "cpu"
    assert not records
    [problem] = [each for each in diagnose().problems if "acme-kernels 1.0" in each.message]
    assert said in problem.message


def test_the_call_that_needs_a_backend_that_failed_says_why(install: Callable[..., None]) -> None:
    install("raise OSError('no libacme')", acme="acme_kernels:Acme")
    with pytest.raises(RequestError, match=r"(?s)`backend`: expected one of .*, got 'acme'.*OSError: no libacme"):
        get_backend("acme")
    with pytest.raises(RequestError) as other:
        get_backend("zeta")
    assert "libacme" not in str(other.value)


def test_a_package_that_is_switched_off_is_not_even_imported(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("raise OSError('imported')", acme="acme_kernels:Acme")
    monkeypatch.setenv("KERNELS_DISABLE_BACKENDS", "acme, other")
    found = diagnose()
    messages = [each.message for each in (*found.problems, *found.notes)]
    assert [each for each in messages if "acme" in each] == ["Backend 'acme' is disabled by KERNELS_DISABLE_BACKENDS."]
    assert "acme_kernels" not in sys.modules
    with pytest.raises(RequestError, match="'acme' is disabled by KERNELS_DISABLE_BACKENDS"):
        get_backend("acme")


def test_a_built_in_backend_can_be_switched_off_and_the_one_that_is_always_there_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERNELS_DISABLE_BACKENDS", "cuda,cpu")
    names = [entry.name for entry in list_backends()]
    assert "cuda" not in names
    assert "cpu" in names
    assert backends.parse_accelerator("cu128") is None
    assert "KERNELS_DISABLE_BACKENDS: 'cpu' cannot be disabled." in [each.message for each in diagnose().problems]
    with pytest.raises(RequestError, match="disabled by KERNELS_DISABLE_BACKENDS"):
        get_backend("cuda")
    monkeypatch.delenv("KERNELS_DISABLE_BACKENDS")
    assert get_backend("cuda").token == "cu"


def declare(path: Path, **fields: object) -> Path:
    path.write_text(json.dumps({"acme": {"device_string": "acme", **fields}}))
    return path


def test_files_are_merged_in_order_and_the_later_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = declare(tmp_path / "a.json", vendor="First", version="1.2", kernel_guidance="Write short loops.")
    second = tmp_path / "b.json"
    second.write_text(json.dumps({"acme": {"vendor": "Second"}, "cuda": {"kernel_guidance": "Mind the warps."}}))
    monkeypatch.setenv("KERNELS_BACKENDS_JSON", f"{first}:{second}")
    acme, cuda = backends.entry_of("acme"), backends.entry_of("cuda")
    assert (acme.backend.vendor, acme.backend.kernel_guidance) == ("Second", "Write short loops.")
    assert parse_variant("torch29-cxx11-acme12-x86_64-linux").backend == "acme"
    assert str(acme.origin) == f"declared in {second}"
    assert cuda.backend.kernel_guidance == "Mind the warps."
    assert cuda.backend.token == "cu"
    monkeypatch.delenv("KERNELS_BACKENDS_JSON")
    assert backends.known("acme") is None
    assert backends.entry_of("cuda").origin.kind == "built-in"


def test_a_bad_file_warns_and_breaks_only_the_call_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = declare(tmp_path / "bad.json", arch_rule="nearest")
    monkeypatch.setenv("KERNELS_BACKENDS_JSON", str(bad))
    with warned("bad.json.*arch_rule"):
        assert Target.current().default_backend == "cpu"
    assert get_backend("cpu").name == "cpu"
    with pytest.raises(RequestError, match=r"(?s)got 'acme'.*bad.json.*nearest.*arch_rule"):
        get_backend("acme")
    assert any("bad.json" in each.message for each in diagnose().problems)


def test_a_bad_file_does_not_break_the_import(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    done = subprocess.run(
        [sys.executable, "-c", "import kernels, kernels.backends"],
        env={"KERNELS_BACKENDS_JSON": str(tmp_path / "bad.json"), "KERNELS_VENDOR_PATH": "/nowhere", "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_was_registered_at_run_time_stays_when_the_environment_changes(
    install: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(backends.Backend):
        name = device_type = "other"

        def probe(self) -> backends.BackendProbe:
            return backends.BackendProbe()

    backends.register_backend(Other())
    try:
        monkeypatch.setenv("KERNELS_BACKENDS_JSON", str(declare(tmp_path / "a.json")))
        assert [entry.name for entry in list_backends() if entry.origin.kind != "built-in"] == ["other", "acme"]
        monkeypatch.delenv("KERNELS_BACKENDS_JSON")
        assert [entry.name for entry in list_backends() if entry.origin.kind != "built-in"] == ["other"]
    finally:
        backends.unregister_backend("other")


def test_a_vendors_folder_joins_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "acme_vendor"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from kernels import VendorInfo\nvendor_info = VendorInfo(vendor_name='acme', device_name='acme')\n"
    )
    monkeypatch.setenv("KERNELS_VENDOR_PATH", str(folder))
    assert str(backends.entry_of("acme").origin) == f"from the vendor folder {folder}"
    assert backends.get("acme").folder == folder
    monkeypatch.setenv("KERNELS_VENDOR_PATH", str(tmp_path / "nowhere"))
    with warned("nowhere"):
        assert backends.known("acme") is None


def test_what_a_call_put_in_the_place_of_a_declared_backend_stays_there_when_the_environment_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ours(backends.Backend):
        name = device_type = "acme"
        vendor = "Ours"

        def probe(self) -> backends.BackendProbe:
            return backends.BackendProbe()

    monkeypatch.setenv("KERNELS_BACKENDS_JSON", str(declare(tmp_path / "a.json", vendor="Declared")))
    backends.register_backend(Ours(), override=True)
    monkeypatch.setenv("KERNELS_DISABLE_BACKENDS", "unrelated")
    assert get_backend("acme").vendor == "Ours"
    backends.unregister_backend("acme")
    assert get_backend("acme").vendor == "Declared"


@pytest.mark.parametrize(
    "source",
    [
        "class Acme:\n    device_type = 'acme'\n    name = property(lambda self: 1 / 0)\n    def probe(self): ...",
        PACKAGE + "\nAcme.token = property(lambda self: 1 / 0)",
        PACKAGE + "\nAcme.vendor = type('Bad', (), {'__repr__': lambda self: 1 / 0})()",
    ],
    ids=["name raises", "token raises", "repr raises"],
)
def test_an_object_that_fails_is_a_problem_and_nothing_else(install: Callable[..., None], source: str) -> None:
    before = list_backends()
    install(source, acme="acme_kernels:Acme")
    assert list_backends() == before
    assert Target.current().default_backend == "cpu"
    assert [each for each in diagnose().problems if "acme-kernels 1.0" in each.message]


SLOW = (
    """
import sys, threading
imported = sys.modules.setdefault("acme_meeting", type(sys)("acme_meeting"))
imported.begun.set()
imported.go_on.wait(20)
from kernels import list_backends
list_backends()
"""
    + PACKAGE
)


def test_a_package_whose_import_asks_in_one_thread_while_another_looks_does_not_stop_either(
    install: Callable[..., None],
) -> None:
    meeting = sys.modules["acme_meeting"] = ModuleType("acme_meeting")
    meeting.begun, meeting.go_on = threading.Event(), threading.Event()  # type: ignore[attr-defined]
    install(SLOW, acme="acme_kernels:Acme")
    names: list[list[str]] = []
    importing = threading.Thread(target=lambda: importlib.import_module("acme_kernels"), daemon=True)
    looking = threading.Thread(target=lambda: names.append([each.name for each in list_backends()]), daemon=True)
    importing.start()
    assert meeting.begun.wait(20)  # type: ignore[attr-defined]
    looking.start()
    meeting.go_on.set()  # type: ignore[attr-defined]
    importing.join(20)
    looking.join(20)
    del sys.modules["acme_meeting"]
    assert not importing.is_alive()
    assert not looking.is_alive()
    assert "acme" in [each.name for each in list_backends()]


def test_a_package_whose_own_import_asks_first_joins_when_it_is_done(install: Callable[..., None]) -> None:
    install("from kernels import list_backends\nlist_backends()\n" + PACKAGE, acme="acme_kernels:Acme")
    importlib.import_module("acme_kernels")
    assert backends.entry_of("acme").origin.kind == "installed"
    assert not [each for each in diagnose().problems if "acme" in each.message]


def test_a_thread_that_waited_too_long_for_backends_says_what_it_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    meeting = sys.modules["acme_meeting"] = ModuleType("acme_meeting")
    meeting.begun, meeting.go_on = threading.Event(), threading.Event()  # type: ignore[attr-defined]
    folder = tmp_path / "_slow"
    folder.mkdir()
    (folder / "__init__.py").write_text("import acme_meeting\nacme_meeting.begun.set()\nacme_meeting.go_on.wait(20)\n")
    monkeypatch.setenv("KERNELS_VENDOR_PATH", str(folder))
    monkeypatch.setattr(registry, "_WAIT_SECONDS", 0.1)
    looking = threading.Thread(target=list_backends, daemon=True)
    looking.start()
    assert meeting.begun.wait(20)  # type: ignore[attr-defined]
    list_backends()
    meeting.go_on.set()  # type: ignore[attr-defined]
    looking.join(20)
    del sys.modules["acme_meeting"]
    assert "Another thread has looked for backends for 0.1 seconds: this call knows only those" in caplog.text


def test_backends_are_looked_for_once_in_a_process(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    init = "from kernels import VendorInfo\nvendor_info = VendorInfo(vendor_name='acme', device_name='cpu')"
    ops = "__all__ = ['silu']\ndef silu(self): return self * 0 + 7"
    write_folder(tmp_path / "_acme", init=init, ops=ops)
    program = (
        "import os, torch\nfrom kernels import list_backends\n"
        "from kernels.operators import active_ops, enable_vendor_ops\n"
        "enabled = enable_vendor_ops('acme')\n"
        "names = [each.name for each in list_backends()]\n"
        "os.environ['KERNELS_DISABLE_BACKENDS'] = 'metal'\n"
        "print(names == [each.name for each in list_backends()], [each.operator for each in active_ops()])\n"
        "print(torch.nn.functional.silu(torch.ones(1)).item())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "KERNELS_VENDOR_PATH": str(tmp_path / "_acme")},
    )
    assert done.stdout == "True ['aten::silu']\n7.0\n", done.stderr
