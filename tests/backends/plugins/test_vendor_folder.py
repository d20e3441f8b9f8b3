"""A vendor's folder joins as a package of its own name, all or nothing."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from logged import warned
from vendor_folders import FolderBackend, write_folder

from kernels import backends
from kernels.backends.plugins.vendor_folder import register_vendor, vendor_module
from kernels.errors import RequestError

INFO = """
    from kernels.backends.plugins.vendor_folder import VendorInfo
    vendor_info = VendorInfo({})
"""
ACME = INFO.format("vendor_name='acme', device_name='acme'")


def traces() -> tuple[list[str], list[backends.BackendEntry]]:
    return sorted(name for name in sys.modules if name.startswith("kernels_vendor_")), backends.list_backends()


@pytest.fixture(autouse=True)
def no_trace() -> Iterator[None]:
    before = traces()
    yield
    for entry in backends.list_backends():
        while entry.origin.kind not in ("built-in", "installed") and entry.name in backends.reserved_names():
            backends.unregister_backend(entry.name)
            if backends.known(entry.name) is None or backends.entry_of(entry.name).origin.kind == "built-in":
                break
    assert traces() == before


def test_a_folder_becomes_a_backend(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "acme",
        init=INFO.format(
            "vendor_name='Acme', device_name='acme', device_query_cmd='true', dispatch_key='PrivateUse2', "
            "backend='acme_one', variant_token='ac', version='1.2', archs=('a100x',), arch_rule='prefix', "
            "python_depends={'acme-dsl': 'acme_dsl'}, experimental=True, guidance_block='Tiles.', "
            "kernel_guidance='64 by 64.', cuda_hacks_to_strip=('import pycuda',), triton_extra_name='acme'"
        ),
    )
    entry = register_vendor(folder)
    backend = entry.backend
    assert (entry.name, entry.origin.kind, entry.origin.place) == ("acme_one", "vendor", str(folder))
    assert str(entry.origin) == f"from the vendor folder {folder}"
    assert backends.entry_of("acme_one") is entry
    assert (backend.vendor, backend.device_type, backend.dispatch_key) == ("Acme", "acme", "PrivateUse2")
    assert (backend.token, backend.folder, backend.experimental) == ("ac", folder, True)
    assert (backend.guidance_block, backend.kernel_guidance) == ("Tiles.", "64 by 64.")
    assert list(backend.cuda_hacks_to_strip) == ["import pycuda"]
    assert backend.python_depends["acme-dsl"].module == "acme_dsl"
    probe = backend.probe()
    assert (probe.found, str(probe.version), [device.arch for device in probe.devices]) == (True, "1.2", ["a100x"])


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ("", True),
        ("device_query_cmd='true --really'", True),
        ("device_query_cmd=''", True),
        ("device_query_cmd=['true', 'a b']", True),
        ("device_query_cmd='false'", False),
        ("device_query_cmd='no-such-program-of-acme'", False),
        ("device_query_cmd='false', detect={'import': 'json'}", True),
        ("detect={'import': 'no_such_module_of_acme'}", False),
    ],
)
def test_a_vendors_device_is_there_when_its_command_succeeds(tmp_path: Path, members: str, found: bool) -> None:
    init = INFO.format(f"vendor_name='acme', device_name='acme', {members}")
    assert register_vendor(write_folder(tmp_path / "acme", init=init)).backend.probe().found is found


@pytest.mark.parametrize(("device", "key"), [("acme", "PrivateUse1"), ("cuda", "CUDA"), ("cpu", "CPU")])
def test_the_dispatch_key_is_that_of_the_device_type(tmp_path: Path, device: str, key: str) -> None:
    init = INFO.format(f"vendor_name='acme', device_name={device!r}")
    assert register_vendor(write_folder(tmp_path / "acme", init=init)).backend.dispatch_key == key


def test_a_folder_is_added_to_a_backend_that_is_there_and_taken_away_again(tmp_path: Path) -> None:
    before = backends.get("xpu")
    init = INFO.format("vendor_name='Ours', device_name='xpu', backend='xpu', device_query_cmd='false'")
    entry = register_vendor(write_folder(tmp_path / "ours", init=init, ops="__all__ = []"))
    assert backends.get("xpu") is entry.backend
    assert (entry.backend.vendor, entry.backend.folder) == ("Ours", tmp_path / "ours")
    assert entry.overrides is not None
    assert entry.overrides.backend is before
    assert before.folder is None
    assert (entry.backend.token, entry.backend.order) == (before.token, before.order)
    assert entry.backend.probe() == before.probe()
    assert entry.backend.python_depends == before.python_depends
    backends.unregister_backend("xpu")
    assert backends.get("xpu") is before


def test_a_file_that_declares_more_of_a_vendors_backend_leaves_it_its_folder(tmp_path: Path) -> None:
    from kernels.backends.plugins.json_backend import load_backends

    folder = write_folder(tmp_path / "acme", init=ACME)
    register_vendor(folder)
    (tmp_path / "more.json").write_text('{"acme": {"vendor": "Acme and Sons"}}')
    load_backends(tmp_path / "more.json")
    assert (backends.get("acme").vendor, backends.get("acme").folder) == ("Acme and Sons", folder)
    assert register_vendor(folder).origin.kind == "vendor"
    backends.unregister_backend("acme")
    assert backends.get("acme").vendor == "acme"


def test_a_folder_is_found_relative_to_the_working_folder_and_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "acme", init=ACME)
    monkeypatch.chdir(tmp_path)
    assert register_vendor("acme").backend.folder == folder
    backends.unregister_backend("acme")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert register_vendor("~/acme").backend.folder == folder


def test_a_package_that_is_imported_already_serves_under_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "acme_of_tests", init=ACME, ops="__all__ = []")
    monkeypatch.syspath_prepend(tmp_path)
    package = importlib.import_module("acme_of_tests")
    try:
        entry = register_vendor(package)
        assert entry.backend.folder == tmp_path / "acme_of_tests"
        ops = vendor_module(entry.backend, "ops")
        assert ops is sys.modules["acme_of_tests.ops"]
        backends.unregister_backend("acme")
        assert sys.modules["acme_of_tests"] is package
    finally:
        for name in ("acme_of_tests", "acme_of_tests.ops"):
            sys.modules.pop(name, None)


def test_a_folder_is_registered_once(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "acme", init=ACME)
    link = tmp_path / "link"
    link.symlink_to(folder)
    entry = register_vendor(folder)
    generation = backends.generation()
    assert register_vendor(str(folder)) is entry
    assert register_vendor(link) is entry
    assert backends.generation() == generation


def test_a_folder_registered_anew_is_read_anew(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "acme", init=ACME)
    register_vendor(folder)
    backends.unregister_backend("acme")
    write_folder(folder, init=INFO.format("vendor_name='Acme and Sons', device_name='acme', backend='acme'"))
    assert register_vendor(folder).backend.vendor == "Acme and Sons"


def test_one_folder_registered_by_threads_at_once_is_there_once(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "acme", init="import time\ntime.sleep(0.01)\n" + ACME.replace("\n    ", "\n"))
    start, found = threading.Barrier(4), []

    def register() -> None:
        start.wait()
        found.append(register_vendor(folder))

    threads = [threading.Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(entry) for entry in found}) == 1
    assert len([name for name in sys.modules if name.startswith("kernels_vendor_")]) == 1


def test_the_environment_names_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "one", init=INFO.format("vendor_name='one', device_name='one'"))
    write_folder(tmp_path / "two", init=INFO.format("vendor_name='two', device_name='two'"))
    monkeypatch.setenv("KERNELS_VENDOR_PATH", f"{tmp_path / 'one'}:{tmp_path / 'two'}")
    assert [entry.name for entry in backends.list_backends() if entry.origin.kind == "vendor"] == ["one", "two"]
    monkeypatch.setenv("KERNELS_DISABLE_BACKENDS", "two")
    assert [entry.name for entry in backends.list_backends() if entry.origin.kind == "vendor"] == ["one"]
    assert backends.problems() == ()
    monkeypatch.setenv("KERNELS_VENDOR_PATH", str(tmp_path / "three"))
    with warned("three: no such folder"):
        assert [entry for entry in backends.list_backends() if entry.origin.kind == "vendor"] == []
    assert [problem.origin.place for problem in backends.problems()] == [str(tmp_path / "three")]
    monkeypatch.delenv("KERNELS_VENDOR_PATH")


def test_relative_imports_work_within_a_folder_and_two_folders_of_one_name_are_apart(tmp_path: Path) -> None:
    found = []
    for vendor in ("one", "two"):
        folder = write_folder(
            tmp_path / vendor / "chip-folder 9",
            init="from .names import NAME\n"
            + INFO.format("vendor_name=NAME, device_name=NAME").replace("\n    ", "\n"),
            names=f"NAME = {vendor!r}",
            ops="from .. import vendor_info\nfrom .math import double\n__all__ = []",
            ops__math="def double(x): return 2 * x",
        )
        entry = register_vendor(folder)
        ops = vendor_module(entry.backend, "ops")
        assert ops is not None
        assert vendor_module(entry.backend, "ops") is ops
        assert ops.double(4) == 8
        found.append((entry.name, ops.vendor_info.vendor_name, ops.__name__.rpartition("_")[0]))
    name = "kernels_vendor_chip_folder_9"
    assert found == [("one", "one", name), ("two", "two", name)]


def test_flaggems_own_class_serves(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "acme",
        init="""
            from dataclasses import dataclass

            @dataclass
            class VendorInfoBase:
                vendor_name: str
                device_name: str
                device_query_cmd: str
                dispatch_key: str = None
                triton_extra_name: str = None

            vendor_info = VendorInfoBase("acme", "acme", "true", triton_extra_name="acme")
        """,
    )
    assert register_vendor(folder).backend.probe().found


# What cannot be


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ("", "its `__init__.py` has no `vendor_info`; expected vendor_info = VendorInfo"),
        ("vendor_info = 7", "`vendor_info`: expected a VendorInfo, got a int without vendor_name and device_name"),
        (
            INFO.format("vendor_name='acme', device_name='acme', dispach_key='PrivateUse1'"),
            r"VendorInfo has no `dispach_key`. Did you mean 'dispatch_key'\? Expected one of vendor_name, ",
        ),
        (INFO.format("vendor_name='acme', colour='red'"), "VendorInfo has no `colour`. Expected one of vendor_name, "),
        ("1 / 0", "its `__init__.py` cannot be imported: ZeroDivisionError: division by zero"),
        ("def broken(:", "its `__init__.py` cannot be imported: SyntaxError"),
        ("import sys; sys.exit(3)", "its `__init__.py` cannot be imported: SystemExit: 3"),
        ("from . import part\nimport no_such_module_of_acme", "cannot be imported: ModuleNotFoundError"),
        (
            "class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd",
            "its `__init__.py` cannot be imported: Odd, whose message raised",
        ),
        (INFO.format("vendor_name='acme'"), "cannot be imported: TypeError: .*device_name"),
        (INFO.format("vendor_name=7, device_name='acme'"), "`vendor_info`: expected a backend's name of .*, got '7'"),
        (INFO.format("vendor_name='acme', device_name=None"), "missing required field `device_name`"),
        (INFO.format("vendor_name='acme', device_name='a:0'"), r"at `\$.acme.device_name`"),
        (INFO.format("vendor_name='Acme Corp', device_name='acme'"), "a backend's name of .*, got 'acme corp'"),
        (INFO.format("vendor_name='a', device_name='b', backend='A B'"), "a backend's name of .*, got 'A B'"),
        (INFO.format("vendor_name='a', device_name='b', backend=3"), "a backend's name of .*, got '3'"),
        (INFO.format("vendor_name='x', device_name='b', device_query_cmd='a \"b'"), "device_query_cmd` .*No closing"),
        (INFO.format("vendor_name='x', device_name='b', device_query_cmd='./a'"), r"`command`: .*'\./a'"),
        (INFO.format("vendor_name='x', device_name='b', device_query_cmd=7"), r"got `int` - at `\$.x.detect.com"),
        (INFO.format("vendor_name='acme', device_name='b', version='new'"), r"at `\$.acme.version`"),
        (INFO.format("vendor_name='acme', device_name='b', archs=[1]"), r"got `int` - at `\$.acme.archs\[0\]`"),
        (INFO.format("vendor_name='acme', device_name='b', archs=object()"), r"at `\$.acme.archs`"),
        (INFO.format("vendor_name='acme', device_name='b', experimental='no'"), r"at `\$.acme.experimental`"),
        (INFO.format("vendor_name='acme', device_name='b', detect={'x': 1}"), r"`x` - at `\$.acme.detect`"),
        (
            INFO.format("vendor_name='acme', device_name='b', version={'command': ['a'], 'pattern': '('}"),
            "`pattern`: not a regular expression",
        ),
        (INFO.format("vendor_name='acme7', device_name='b', version='1.2'"), "`acme7` has no `variant_token`"),
        (INFO.format("vendor_name='a', device_name='b', backend='xpu'"), "is 'b', but backend 'xpu' has .*'xpu'"),
    ],
)  # fmt: skip
def test_a_folder_that_says_nothing_usable_is_refused_and_leaves_no_trace(
    tmp_path: Path, init: str, message: str
) -> None:
    folder = write_folder(tmp_path / "acme", init=init, part="VALUE = 1")
    before = traces()
    with pytest.raises(RequestError, match=f"^The vendor folder {folder}: .*{message}"):
        register_vendor(folder)
    assert traces() == before


def test_a_name_that_is_anothers_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    init = INFO.format("vendor_name='acme', device_name='acme', variant_token='cu'")
    before = traces()
    with pytest.raises(ValueError, match=r"from the vendor folder .*acme.* is 'cu', which backend 'cuda'"):
        register_vendor(write_folder(tmp_path / "acme", init=init))
    assert traces() == before


def test_what_is_no_vendors_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "file").touch()
    for path, message in [
        (tmp_path / "plain", "plain: no file `__init__.py`"),
        (tmp_path / "file", "file: no such folder"),
        (tmp_path / "none", "none: no such folder"),
        ("a\0b", "embedded null|no such folder"),
        (importlib.import_module("json.decoder"), "expected a package, got the module json.decoder"),
    ]:
        with pytest.raises(RequestError, match=message):
            register_vendor(path)
    with pytest.raises(TypeError, match=r"`path_or_module`: expected .*, got 7 \(int\)"):
        register_vendor(7)  # type: ignore[arg-type]


def test_ctrl_c_comes_through(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        register_vendor(write_folder(tmp_path / "acme", init="raise KeyboardInterrupt"))


# Parts


def test_a_part_that_fails_leaves_no_module_and_works_once_it_is_mended(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "acme", init=ACME, ops="from . import half\n1 / 0", ops__half="VALUE = 1")
    backend = register_vendor(folder).backend
    before = traces()
    with pytest.raises(RequestError, match=f"^The vendor folder {folder}: its `ops` cannot be imported: ZeroDivision"):
        vendor_module(backend, "ops")
    assert traces() == before
    write_folder(folder, ops="from . import half\nVALUE = half.VALUE + 10")
    ops = vendor_module(backend, "ops")
    assert ops is not None
    assert ops.VALUE == 11


def test_a_part_that_is_not_there_is_none(tmp_path: Path) -> None:
    backend = register_vendor(write_folder(tmp_path / "acme", init=ACME)).backend
    assert vendor_module(backend, "heuristics_config_utils") is None
    assert vendor_module(backends.get("cpu"), "ops") is None


def test_a_backend_registered_otherwise_has_its_folders_parts(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "parts", ops="VALUE = 1")
    (folder / "__init__.py").unlink()
    backends.register_backend(FolderBackend(folder))
    ops = vendor_module(backends.get("acme"), "ops")
    assert ops is not None
    assert ops.VALUE == 1
    backends.unregister_backend("acme")
    assert ops.__name__ not in sys.modules
