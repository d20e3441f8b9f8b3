"""The registry is the only list of backends, and a stranger's object enters by the same door."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import msgspec
import pytest

from kernels import backends
from kernels.backends import Backend, BackendProbe, Device, Found, MajorMinor, PythonDependency
from kernels.errors import RequestError
from kernels.resolve import resolve
from kernels.target import Target
from kernels.variant import parse_variant


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
    backends.register(backend)
    yield backend
    backends.unregister(backend.name)


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
    with pytest.raises(RequestError, match=r"`backend` is 'gpu'; allowed is one of .*cuda.*npu"):
        backends.find("gpu")
    with pytest.raises(RequestError, match=r"'npu'.*allowed is one of cpu"):
        backends.find("npu", among=["cpu"])
    with pytest.raises(RequestError, match="'mps'"):
        backends.get("mps")
    with pytest.raises(TypeError, match="`backend` is 7, a int"):
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
    with pytest.raises(RequestError, match=r"`device_type` is 'meta'; allowed is one of cpu, cuda"):
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
    backends.register(Tenstorrent())
    assert "ttnn" in Target.current().backends
    backends.unregister("ttnn")
    assert "ttnn" not in Target.current().backends
    with pytest.raises(RequestError, match="'ttnn'"):
        backends.unregister("ttnn")


def test_a_plain_object_with_the_members_serves(stranger: Backend) -> None:
    backends.unregister(stranger.name)
    members = {name: getattr(stranger, name) for name in dir(stranger) if not name.startswith("_")}
    plain = SimpleNamespace(**members)
    backends.register(plain)  # type: ignore[arg-type]
    assert parse_variant("torch-stable-abi29-tt14-x86_64-linux").backend == "ttnn"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token": None}, "`backend.token` of Vendor is None"),
        ({"probe": "later"}, "`backend.probe` of Vendor is 'later'; allowed is a method"),
        ({"name": ""}, "`backend.name` of Vendor is ''"),
    ],
)
def test_an_object_with_a_wrong_member_is_refused(change: dict[str, object], message: str) -> None:
    vendor = type("Vendor", (Tenstorrent,), change)()
    with pytest.raises(TypeError, match=message):
        backends.register(vendor)


def test_an_object_without_the_members_is_refused_with_their_names() -> None:
    with pytest.raises(TypeError, match=r"SimpleNamespace without .*token.*probe"):
        backends.register(SimpleNamespace(name="x"))  # type: ignore[arg-type]


@pytest.mark.parametrize("member", ["name", "noarch_name", "token"])
def test_two_backends_cannot_share_a_name(member: str) -> None:
    vendor = type("Vendor", (Tenstorrent,), {member: getattr(backends.get("cuda"), member)})()
    with pytest.raises(ValueError, match=f"`{member}` is '.*', which backend 'cuda' already has"):
        backends.register(vendor)


def test_registering_the_same_object_again_changes_nothing() -> None:
    before = backends.generation()
    backends.register(backends.get("cpu"))
    assert backends.generation() == before


def test_backends_registered_by_many_threads_are_all_there() -> None:
    vendors = [
        type("V", (Tenstorrent,), {"name": f"v{n}", "noarch_name": f"v{n}", "token": f"v{n}x"})() for n in range(16)
    ]
    threads = [threading.Thread(target=backends.register, args=(vendor,)) for vendor in vendors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert {vendor.name for vendor in vendors} <= {each.name for each in backends.all_backends()}
    finally:
        for vendor in vendors:
            backends.unregister(vendor.name)


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
