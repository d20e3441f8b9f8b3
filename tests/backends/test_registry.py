"""The registry is the only list of backends, and a stranger's object enters by the same door."""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import msgspec
import pytest

from kernels import backends
from kernels.backends import Backend, BackendProbe, Device, Found, MajorMinor, PythonDependency, builtin
from kernels.errors import RequestError
from kernels.resolver.choice import resolve
from kernels.resolver.target import Target
from kernels.resolver.variant import parse_variant


class Tenstorrent(Backend):
    name = noarch_name = device_type = mapping_device = "ttnn"
    token = "tt"
    dispatch_key = "PrivateUse1"
    versioned = True
    order = 5

    def torch_build(self, torch: object) -> Found | None:
        return Found(MajorMinor(1, 4))

    def probe(self) -> BackendProbe:
        return BackendProbe(found=True, version=MajorMinor(1, 4), devices=(Device(self.name, 0, "Blackhole"),))


@pytest.fixture
def stranger() -> Iterator[Backend]:
    backend = Tenstorrent()
    backends.register_backend(backend)
    yield backend
    backends.unregister_backend(backend.name)


def test_a_class_is_registered_like_an_instance_of_it() -> None:
    backends.register_backend(Tenstorrent)
    try:
        assert isinstance(backends.get("ttnn"), Tenstorrent)
        backends.register_backend(Tenstorrent)  # the same class again changes nothing
        assert backends.entry_of("ttnn").overrides is None
        with pytest.raises(ValueError, match="`name` of backend 'ttnn'"):
            backends.register_backend(Tenstorrent())
    finally:
        backends.unregister_backend("ttnn")
    assert backends.known("ttnn") is None


def test_a_plain_class_is_registered_too() -> None:
    class Plain:
        name = device_type = "plain"

        def probe(self) -> BackendProbe:
            return BackendProbe(found=True)

    backends.register_backend(Plain)
    try:
        assert backends.get("plain").probe().found
    finally:
        backends.unregister_backend("plain")


def test_a_class_that_needs_arguments_says_so() -> None:
    class Needy(Tenstorrent):
        def __init__(self, path: Path) -> None: ...

    with pytest.raises(
        TypeError, match=r"`backend` is the class Needy, and Needy\(\) fails: .*'path'.* Register an in"
    ):
        backends.register_backend(Needy)
    assert backends.known("ttnn") is None


def test_the_built_in_backends_are_in_the_order_in_which_torch_builds_are_recognised() -> None:
    assert [each.name for each in backends.all_backends()] == [
        "tpu", "neuron", "cuda", "rocm", "metal", "xpu", "cann", "cpu",
    ]  # fmt: skip


# Own name, noarch name, accelerator token, Torch device, name in mappings.
NAMES = [
    ("cuda", "cuda", "cu", "cuda", "cuda"),
    ("rocm", "rocm", "rocm", "cuda", "rocm"),
    ("metal", "metal", "metal", "mps", "mps"),
    ("xpu", "xpu", "xpu", "xpu", "xpu"),
    ("cann", "npu", "cann", "npu", "npu"),
    ("neuron", "neuron", "neuron", "neuron", "neuron"),
    ("tpu", "tpu", "tpu", "tpu", "tpu"),
    ("cpu", "cpu", "cpu", "cpu", "cpu"),
]


@pytest.mark.parametrize("names", NAMES, ids=lambda names: names[0])
def test_a_backend_has_the_names_of_the_formats(names: tuple[str, ...]) -> None:
    backend = backends.get(names[0])
    found = (backend.name, backend.noarch_name, backend.token, backend.device_type, backend.mapping_device)
    assert found == names


@pytest.mark.parametrize("names", NAMES, ids=lambda names: names[0])
def test_a_backend_is_found_by_each_of_its_names_among_those_of_one_machine(names: tuple[str, ...]) -> None:
    there = {names[0], "cpu"}
    assert {backends.find(name, among=there).name for name in names[:4]} == {names[0]}


def test_a_backends_own_name_wins_over_anothers_torch_device() -> None:
    assert backends.find("cuda").name == "cuda"
    assert backends.find("cuda", among=["rocm", "cuda"]).name == "cuda"


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(RequestError, match=r"`backend`: expected one of .*cuda.*npu.*, got 'gpu'"):
        backends.find("gpu")
    with pytest.raises(RequestError, match=r"expected one of cpu, got 'npu'"):
        backends.find("npu", among=["cpu"])
    with pytest.raises(RequestError, match="'mps'"):
        backends.get("mps")
    with pytest.raises(TypeError, match=r"`backend`: expected a backend's name, got 7 \(int\)"):
        backends.find(7)  # type: ignore[arg-type]


def test_a_torch_device_means_the_backend_that_torch_is_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.backends import torch_build

    rocm = SimpleNamespace(
        __version__="2.9.0+rocm6.4", version=SimpleNamespace(cuda=None, hip="6.4.4"), backends=SimpleNamespace()
    )
    monkeypatch.setattr(torch_build, "installed_torch", lambda: rocm)
    assert backends.for_device_type("cuda").name == "rocm"
    assert backends.for_torch() == "rocm"
    assert backends.for_device_type("npu").name == "cann"
    with pytest.raises(RequestError, match=r"`device_type`: expected one of cpu, cuda.*got 'meta'"):
        backends.for_device_type("meta")


def test_without_torch_a_device_is_the_backend_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.backends import torch_build

    monkeypatch.setattr(torch_build, "installed_torch", lambda: None)
    assert backends.for_torch() is None
    assert backends.for_device_type("cuda").name == "cuda"


def test_a_strangers_backend_is_parsed_probed_and_chosen_like_a_built_in_one(
    stranger: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERNELS_BACKEND")
    target = Target.current()
    assert target.backends["ttnn"] == "1.4"
    assert target.default_backend == "ttnn"
    assert target.backend_devices("ttnn")[0].name == "Blackhole"
    cpu, system = target.cpu, target.os
    name = f"torch-stable-abi29-tt14-{cpu}-{system}"
    assert parse_variant(name).accelerator_version == (1, 4)
    with_torch = msgspec.structs.replace(target, torch="2.9.0", torch_backends=("ttnn", "cpu"))
    best = resolve([name, "torch-ttnn", "torch-cpu"], with_torch).best
    assert best is not None
    assert best.name == name
    assert str(Target.parse("torch2.9-tt14-x86_64-linux+blackhole")) == "torch2.9-tt14-x86_64-linux+blackhole"


def test_a_target_forgets_a_backend_that_was_removed() -> None:
    backends.register_backend(Tenstorrent())
    assert "ttnn" in Target.current().backends
    backends.unregister_backend("ttnn")
    assert "ttnn" not in Target.current().backends
    with pytest.raises(RequestError, match="'ttnn'"):
        backends.unregister_backend("ttnn")


def test_a_plain_object_with_the_members_serves(stranger: Backend) -> None:
    backends.unregister_backend(stranger.name)
    members = {name: getattr(stranger, name) for name in dir(stranger) if not name.startswith("_")}
    plain = SimpleNamespace(**members)
    backends.register_backend(plain)  # type: ignore[arg-type]
    assert parse_variant("torch-stable-abi29-tt14-x86_64-linux").backend == "ttnn"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token": None}, r"`backend.token` \(Vendor\): expected a str, got None"),
        ({"probe": "later"}, r"`backend.probe` \(Vendor\): expected a method probe\(\)"),
        ({"experimental": "yes"}, r"`backend.experimental` \(Vendor\): expected a bool, got 'yes'"),
        ({"order": None, "vendor": 3}, "`backend.vendor` .*: expected a str, got 3.\n`backend.order` .* got None"),
        ({"version_reason": lambda self: None}, r"`backend.version_reason` .*version_reason\(build, target\)"),
        ({"python_depends": {"x": "x"}}, "`backend.python_depends` .* PythonDependency"),
        ({"probe": Backend.probe}, r"\(Vendor\) has no probe"),
        ({"probe": lambda: None}, r"`backend.probe` .* expected a method probe\(\)"),
    ],
)
def test_an_object_with_a_wrong_member_is_refused(change: dict[str, object], message: str) -> None:
    vendor = type("Vendor", (Tenstorrent,), change)()
    with pytest.raises(TypeError, match=message):
        backends.register_backend(vendor)


def test_an_object_without_the_members_is_refused_with_their_names() -> None:
    with pytest.raises(TypeError, match=r"\(SimpleNamespace\) has no device_type, probe"):
        backends.register_backend(SimpleNamespace(name="x"))  # type: ignore[arg-type]


@pytest.mark.parametrize("member", ["name", "noarch_name", "token", "mapping_device"])
def test_two_backends_cannot_share_a_name(member: str) -> None:
    before = backends.list_backends()
    vendor = type("Vendor", (Tenstorrent,), {member: getattr(backends.get("cuda"), member)})()
    with pytest.raises(ValueError, match=f"`{member}` .* is '.*', which backend 'cuda' \\(built in\\) already has"):
        backends.register_backend(vendor)
    assert backends.list_backends() == before


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"name": "Acme"}, "`backend.name` .* expected lower-case letters, .* got 'Acme'"),
        ({"name": ""}, "`backend.name` .* got ''"),
        ({"noarch_name": "universal"}, "means every backend"),
        ({"token": "tt-x"}, "`backend.token` .* expected lower-case letters, .* got 'tt-x'"),
        ({"token": "tt2"}, "`backend.token` .* without a digit at the end.* got 'tt2'"),
        ({"device_type": "tt:0"}, "`backend.device_type` .* got 'tt:0'"),
        ({"dispatch_key": "Private Use"}, "`backend.dispatch_key`"),
    ],
)
def test_a_name_that_no_build_folder_could_have_is_refused(members: dict[str, str], message: str) -> None:
    vendor = type("Vendor", (Tenstorrent,), members)()
    with pytest.raises(ValueError, match=message):
        backends.register_backend(vendor)


def greedy(self: Backend, text: str) -> Found | None:
    return Found() if text.startswith("c") else None


@pytest.mark.parametrize(
    ("members", "swallowed"),
    [({"token": "c"}, "cuda"), ({"token": "ro"}, "rocm"), ({"parse_accelerator": greedy}, "cu")],
    ids=["short", "shorter", "greedy"],
)
def test_a_token_that_swallows_anothers_names_is_refused(members: dict[str, object], swallowed: str) -> None:
    vendor = type("Vendor", (Tenstorrent,), members)()
    with pytest.raises(ValueError, match=f"so it also reads '{swallowed}.*built in"):
        backends.register_backend(vendor)


@pytest.mark.parametrize("order", [("tt", "ttx"), ("ttx", "tt")])
def test_a_token_that_begins_anothers_names_is_refused_whoever_comes_first(order: tuple[str, str]) -> None:
    def vendor(name: str) -> Backend:
        names = dict.fromkeys(("name", "noarch_name", "mapping_device", "device_type", "token"), name)
        return type("Vendor", (Tenstorrent,), names)()

    backends.register_backend(vendor(order[0]))
    try:
        with pytest.raises(ValueError, match="'tt', so it also reads 'ttx'"):
            backends.register_backend(vendor(order[1]))
    finally:
        backends.unregister_backend(order[0])


def test_a_parser_takes_no_name_that_has_anothers_token() -> None:
    taking = {"order": -1, "parse_accelerator": lambda self, text: Found() if text == "cu126" else None}
    backends.register_backend(type("Vendor", (Tenstorrent,), taking)())
    try:
        assert parse_variant("torch29-cxx11-cu126-x86_64-linux").backend == "cuda"
    finally:
        backends.unregister_backend("ttnn")


def test_the_backend_that_is_always_there_stays_that_when_another_stands_in_for_it() -> None:
    class First(type(backends.get("cpu"))):  # type: ignore[misc]
        order = -1

    backends.register_backend(First(), override=True)
    try:
        assert isinstance(backends.host(), First)
    finally:
        backends.unregister_backend("cpu")


def test_a_token_is_refused_that_a_backend_registered_before_would_swallow() -> None:
    backends.register_backend(
        type(
            "Vendor",
            (Tenstorrent,),
            {"parse_accelerator": lambda self, text: Found() if text.startswith("tt") else None},
        )()
    )
    names = dict.fromkeys(("name", "noarch_name", "mapping_device", "device_type"), "late")
    try:
        with pytest.raises(ValueError, match="'tt', so it also reads 'ttx' of backend 'late'"):
            backends.register_backend(type("Vendor", (Tenstorrent,), {**names, "token": "ttx"})())
    finally:
        backends.unregister_backend("ttnn")


def test_a_built_in_backend_is_overridden_only_when_asked_for_and_comes_back() -> None:
    built_in = backends.get("xpu")

    class Ours(type(built_in)):  # type: ignore[misc]
        vendor = "Ours"

    with pytest.raises(ValueError, match="which backend 'xpu' \\(built in\\) already has"):
        backends.register_backend(Ours())
    backends.register_backend(Ours(), override=True)
    assert backends.get("xpu").vendor == "Ours"
    assert backends.entry_of("xpu").origin.kind == "run-time"
    assert [entry.name for entry in backends.list_backends()].count("xpu") == 1
    backends.unregister_backend("xpu")
    assert backends.get("xpu") is built_in


def test_names_of_a_backend_that_another_stands_in_for_stay_its_own() -> None:
    names = dict.fromkeys(("name", "noarch_name", "mapping_device", "device_type"), "other")
    other = type("Other", (Tenstorrent,), {**names, "token": "zt"})
    backends.register_backend(type("First", (Tenstorrent,), {"token": "zt"})())
    backends.register_backend(type("Ours", (Tenstorrent,), {"token": "ours"})(), override=True)
    try:
        with pytest.raises(ValueError, match=r"'zt', which backend 'ttnn' .* already has"):
            backends.register_backend(other())
    finally:
        backends.unregister_backend("ttnn")
        backends.unregister_backend("ttnn")


def test_a_built_in_backend_cannot_be_unregistered() -> None:
    with pytest.raises(RequestError, match="'cpu', a built-in backend"):
        backends.unregister_backend("cpu")


def test_an_entry_says_where_a_backend_was_registered(stranger: Backend) -> None:
    origin = backends.entry_of("ttnn").origin
    assert (origin.kind, Path(origin.place.split(",")[0]).name) == ("run-time", "test_registry.py")


def test_questions_are_answered_across_all_backends(stranger: Backend) -> None:
    assert {"cu", "cann", "tt"} <= set(backends.variant_tokens())
    assert {"cuda", "mps", "npu", "ttnn"} <= set(backends.device_types())
    assert {"CUDA", "CPU", "PrivateUse1"} <= set(backends.dispatch_keys())
    assert {"metal", "mps", "tt", "ttnn"} <= set(backends.reserved_names())
    assert backends.host().name == "cpu"


def test_the_names_that_editors_complete_are_those_of_the_built_in_backends() -> None:
    every = [family.label.names for family in builtin.families()]
    for names in every:
        literal = importlib.import_module(f"{builtin.__name__}.{names.name}").Name
        assert set(get_args(literal)) >= {names.name, names.noarch_name}
        assert set(get_args(literal)) <= {names.name, names.noarch_name, names.device_type}
    union = Path(builtin.__file__).read_text(encoding="utf-8").partition("BuiltInName = ")[2].partition("\n")[0]
    assert set(re.findall(r"(\w+)\.Name", union)) == {names.name for names in every}


def test_one_backend_registered_by_two_threads_at_once_is_there_once() -> None:
    start, refused = threading.Barrier(2), []

    def register() -> None:
        start.wait()
        try:
            backends.register_backend(Tenstorrent())
        except ValueError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=register) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert [entry.name for entry in backends.list_backends()].count("ttnn") == 1
        assert len(refused) == 1
        assert refused[0].count("registered by") == 2
    finally:
        backends.unregister_backend("ttnn")


def test_registering_the_same_object_again_changes_nothing() -> None:
    before = backends.generation()
    backends.register_backend(backends.get("cpu"))
    assert backends.generation() == before


def test_backends_registered_by_many_threads_are_all_there() -> None:
    names = [dict.fromkeys(("name", "noarch_name", "mapping_device", "device_type"), f"v{n}") for n in range(16)]
    vendors = [type("V", (Tenstorrent,), {**each, "token": f"{each['name']}x"})() for each in names]
    threads = [threading.Thread(target=backends.register_backend, args=(vendor,)) for vendor in vendors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert {vendor.name for vendor in vendors} <= {each.name for each in backends.all_backends()}
    finally:
        for vendor in vendors:
            backends.unregister_backend(vendor.name)


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("cpu", {}),
        ("cuda", {"nvidia-cutlass-dsl": PythonDependency("nvidia-cutlass-dsl", "cutlass")}),
        ("neuron", {"nki": PythonDependency("nki", "nki")}),
        ("xpu", {"onednn": PythonDependency("onednn-devel", None)}),
    ],
)
def test_kernels_may_ask_for_the_general_dependencies_and_their_backends_own(
    backend: str, expected: dict[str, PythonDependency]
) -> None:
    allowed = backends.allowed_python_depends(backends.get(backend))
    general = {name: allowed.pop(name) for name in ("einops", "helion", "tvm-ffi")}
    assert general["tvm-ffi"] == PythonDependency("apache-tvm-ffi", "tvm_ffi")
    assert allowed == expected
