"""A registration holds for the process, an overlay for its context; the narrowest range wins, then the mode."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest
from held_locks import fork_while_held

from kernels.errors import RequestError
from kernels.layer import CUDAProperties, Device, KernelizeFallback, Mode, register_kernel_mapping, use_kernel_mapping
from kernels.layer.device import ModuleDevice
from kernels.layer.mapping import NoKernel, SelectedKernel, current_mapping, select
from kernels.resolver.target import Target

CPU = ModuleDevice("cpu")


class Kernel:
    """Something with `load()`, told apart by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def load(self) -> type[Any]:
        raise AssertionError("a mapping is looked up without loading anything")


A, B, C = Kernel("a"), Kernel("b"), Kernel("c")


def chosen(layer: str = "Norm", device: ModuleDevice = CPU, mode: Mode = Mode.INFERENCE) -> str | KernelizeFallback:
    choice = select(current_mapping(), layer, device, mode)
    if isinstance(choice, NoKernel):
        return choice.flag
    assert isinstance(choice.repository, Kernel)
    return choice.repository.name


@pytest.fixture
def capability(monkeypatch: pytest.MonkeyPatch) -> Any:
    def of_first_gpu(arch: str) -> None:
        target = Target.parse(f"torch2.13-cu130-x86_64-linux+{arch}")
        monkeypatch.setattr(Target, "current", staticmethod(lambda: target))

    return of_first_gpu


def test_what_is_registered_is_seen_by_every_thread() -> None:
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: register_kernel_mapping({"Norm": {"cpu": A}}))
    thread.start()
    thread.join()
    other = threading.Thread(target=lambda: seen.append(chosen()))
    other.start()
    other.join()
    assert [chosen(), *seen] == ["a", "a"]


def test_registrations_of_many_threads_all_count() -> None:
    names = [f"Layer{number}" for number in range(40)]
    threads = [threading.Thread(target=register_kernel_mapping, args=({name: {"cpu": A}},)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [chosen(name) for name in names] == ["a"] * 40


def test_an_overlay_holds_in_its_own_context_alone() -> None:
    register_kernel_mapping({"Norm": {"cpu": A}})
    seen: list[Any] = []

    async def within() -> None:
        with use_kernel_mapping({"Norm": {"cpu": B}}):
            await asyncio.sleep(0)
            seen.append(chosen())

    async def beside() -> None:
        seen.append(chosen())

    async def both() -> None:
        await asyncio.gather(within(), beside())

    with use_kernel_mapping({"Norm": {"cpu": C}}):
        thread = threading.Thread(target=lambda: seen.append(chosen()))
        thread.start()
        thread.join()
        assert chosen() == "c"
    asyncio.run(both())
    assert seen == ["a", "a", "b"]
    assert chosen() == "a"


def test_overlays_stack_and_end_even_after_an_error() -> None:
    register_kernel_mapping({"Norm": {"cpu": A}})

    def fail() -> None:
        with use_kernel_mapping({"Norm": {"cpu": B}}), use_kernel_mapping({"Act": {"cpu": C}}):
            assert (chosen("Norm"), chosen("Act")) == ("b", "c")
            raise KeyError("out")

    with pytest.raises(KeyError):
        fail()
    assert (chosen("Norm"), chosen("Act")) == ("a", KernelizeFallback.NO_LAYER)


def test_one_overlay_can_be_entered_again() -> None:
    overlay = use_kernel_mapping({"Norm": {"cpu": B}})
    with overlay, overlay:
        assert chosen() == "b"
    with overlay:
        assert chosen() == "b"
    assert chosen() == KernelizeFallback.NO_LAYER


def test_one_overlay_can_be_entered_by_threads_and_tasks_at_once() -> None:
    overlay = use_kernel_mapping({"Norm": {"cpu": B}})
    entered, left = threading.Barrier(2), threading.Event()
    seen: list[Any] = []

    def first_in_first_out() -> None:
        with overlay:
            entered.wait(30)
        seen.append(chosen())
        left.set()

    def last_out() -> None:
        with overlay:
            entered.wait(30)
            left.wait(30)
            seen.append(chosen())
        seen.append(chosen())

    threads = [threading.Thread(target=work) for work in (first_in_first_out, last_out)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [KernelizeFallback.NO_LAYER, "b", KernelizeFallback.NO_LAYER]

    async def task(steps: int) -> None:
        with overlay:
            for _ in range(steps):
                await asyncio.sleep(0)
            assert chosen() == "b"
        assert chosen() == KernelizeFallback.NO_LAYER

    async def tasks() -> None:
        await asyncio.gather(task(1), task(3), task(2))

    asyncio.run(tasks())


def test_overlays_left_in_another_order_than_entered_each_take_only_themselves_away() -> None:
    outer, inner = use_kernel_mapping({"Norm": {"cpu": A}}), use_kernel_mapping({"Act": {"cpu": B}})
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert (chosen("Norm"), chosen("Act")) == (KernelizeFallback.NO_LAYER, "b")
    with pytest.raises(RequestError, match="exits twice"):
        outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    assert chosen("Act") == KernelizeFallback.NO_LAYER


def test_without_inheriting_nothing_else_is_seen() -> None:
    register_kernel_mapping({"Norm": {"cpu": A}, "Act": {"cpu": A}})
    with use_kernel_mapping({"Act": {"cpu": B}}, inherit_mapping=False):
        assert (chosen("Norm"), chosen("Act")) == (KernelizeFallback.NO_LAYER, "b")
        with use_kernel_mapping({"Norm": {"cpu": C}}):
            assert (chosen("Norm"), chosen("Act")) == ("c", "b")
    register_kernel_mapping({"Act": {"cpu": C}}, inherit_mapping=False)
    assert (chosen("Norm"), chosen("Act")) == (KernelizeFallback.NO_LAYER, "c")


def test_a_registration_during_an_overlay_reaches_it_and_outlives_it() -> None:
    with use_kernel_mapping({"Norm": {"cpu": B}}):
        register_kernel_mapping({"Norm": {"cpu": A}, "Act": {"cpu": A}})
        assert (chosen("Norm"), chosen("Act")) == ("b", "a")
    assert chosen("Norm") == "a"


def test_a_view_is_not_changed_by_what_is_registered_later() -> None:
    view = current_mapping()
    register_kernel_mapping({"Norm": {"cpu": A}})
    assert isinstance(select(view, "Norm", CPU, Mode.INFERENCE), NoKernel)


def test_devices_of_a_layer_are_added_and_the_same_one_is_replaced() -> None:
    register_kernel_mapping({"Norm": {"cpu": {Mode.INFERENCE: A}}})
    register_kernel_mapping({"Norm": {"mps": B}})
    assert (chosen(), chosen(device=ModuleDevice("mps"))) == ("a", "b")
    register_kernel_mapping({"Norm": {"cpu": {Mode.TRAINING | Mode.TORCH_COMPILE: C}}})
    assert chosen() == "c"


def test_the_callers_dictionary_may_change_afterwards() -> None:
    modes = {Mode.INFERENCE: A}
    register_kernel_mapping({"Norm": {"cpu": modes}})
    modes[Mode.INFERENCE] = B
    assert chosen() == "a"


@pytest.mark.parametrize(
    ("registered", "asked", "serves"),
    [
        ([Mode.INFERENCE, Mode.TRAINING], Mode.TRAINING, Mode.TRAINING),
        ([Mode.TRAINING, Mode.FALLBACK], Mode.INFERENCE, Mode.TRAINING),
        ([Mode.INFERENCE, Mode.FALLBACK], Mode.INFERENCE | Mode.TORCH_COMPILE, Mode.FALLBACK),
        ([Mode.INFERENCE], Mode.TRAINING, None),
        ([Mode.TRAINING], Mode.TRAINING | Mode.TORCH_COMPILE, None),
    ],
)
def test_the_first_mode_that_serves_is_taken(registered: list[Mode], asked: Mode, serves: Mode | None) -> None:
    register_kernel_mapping({"Norm": {"cpu": {mode: Kernel(str(mode)) for mode in registered}}})
    choice = select(current_mapping(), "Norm", CPU, asked)
    if serves is None:
        assert isinstance(choice, NoKernel)
        assert choice.flag is KernelizeFallback.NO_COMPATIBLE_MODE
    else:
        assert isinstance(choice, SelectedKernel)
        assert choice.mode == serves


@pytest.mark.parametrize(
    ("arch", "name"),
    [("sm_75", "wide"), ("sm_80", "narrow"), ("sm_90", "later"), ("sm_120", "any")],
)
def test_the_narrowest_range_that_holds_the_capability_wins(capability: Any, arch: str, name: str) -> None:
    capability(arch)
    register_kernel_mapping(
        {
            "Norm": {
                "cuda": Kernel("any"),
                Device("cuda", CUDAProperties(70, 100)): Kernel("wide"),
                Device("cuda", CUDAProperties(80, 89)): Kernel("narrow"),
                Device("cuda", CUDAProperties(90, 99)): Kernel("earlier"),
            }
        }
    )
    register_kernel_mapping({"Norm": {Device("cuda", CUDAProperties(90, 99)): Kernel("later")}})
    assert chosen(device=ModuleDevice("cuda", 0)) == name


def test_of_two_ranges_of_one_width_the_later_one_wins(capability: Any) -> None:
    capability("sm_80")
    register_kernel_mapping({"Norm": {Device("cuda", CUDAProperties(75, 85)): A}})
    register_kernel_mapping({"Norm": {Device("cuda", CUDAProperties(76, 86)): B}})
    assert chosen(device=ModuleDevice("cuda")) == "b"
    with use_kernel_mapping({"Norm": {Device("cuda", CUDAProperties(75, 85)): C}}):
        assert chosen(device=ModuleDevice("cuda")) == "c"


def test_a_wider_range_serves_where_the_narrowest_has_no_kernel_for_the_mode(capability: Any) -> None:
    capability("sm_80")
    register_kernel_mapping({"Norm": {Device("cuda", CUDAProperties(80, 89)): {Mode.INFERENCE: A}, "cuda": B}})
    assert chosen(device=ModuleDevice("cuda")) == "a"
    choice = select(current_mapping(), "Norm", ModuleDevice("cuda"), Mode.TRAINING)
    assert isinstance(choice, SelectedKernel)
    assert choice.repository is B


def test_a_device_outside_every_range_has_no_compatible_properties(capability: Any) -> None:
    capability("sm_80")
    register_kernel_mapping({"Norm": {Device("cuda", CUDAProperties(90, 99)): A}})
    missing = select(current_mapping(), "Norm", ModuleDevice("cuda"), Mode.INFERENCE)
    assert isinstance(missing, NoKernel)
    assert missing.flag is KernelizeFallback.NO_COMPATIBLE_PROPERTIES
    assert "(80), only for 90 to 99" in missing.reason


def test_a_device_whose_capability_nobody_knows_gets_the_kernel_for_any() -> None:
    register_kernel_mapping({"Norm": {Device("cuda", CUDAProperties(1, 999)): A}})
    assert chosen(device=ModuleDevice("cuda", 31)) == KernelizeFallback.NO_COMPATIBLE_PROPERTIES
    register_kernel_mapping({"Norm": {"cuda": B}})
    assert chosen(device=ModuleDevice("cuda", 31)) == "b"


def test_a_device_without_modes_has_no_kernel() -> None:
    register_kernel_mapping({"Norm": {"cpu": {}}})
    missing = select(current_mapping(), "Norm", CPU, Mode.INFERENCE)
    assert missing == NoKernel(KernelizeFallback.NO_COMPATIBLE_MODE, "no kernel serves mode INFERENCE")


def test_a_layer_without_an_entry_for_the_device_says_which_there_are() -> None:
    register_kernel_mapping({"Norm": {"cuda": A, "mps": A}})
    missing = select(current_mapping(), "Norm", CPU, Mode.INFERENCE)
    assert isinstance(missing, NoKernel)
    assert missing.flag is KernelizeFallback.NO_DEVICE
    assert "'cpu', only for cuda, mps" in missing.reason


@pytest.mark.parametrize(
    ("mapping", "error", "says"),
    [
        ([], TypeError, r"`mapping`: expected a dictionary .*, got \[\] \(list\)"),
        ({1: {"cpu": A}}, TypeError, "`mapping`: expected layer names as keys, got 1"),
        ({"Norm": A}, TypeError, r"`mapping\['Norm'\]`: expected a dictionary .*\(Kernel\)"),
        ({"Norm": {"gpu": A}}, RequestError, "one of the device types cpu, cuda, .*, got 'gpu'"),
        ({"Norm": {0: A}}, TypeError, "expected device types or Devices as keys, got 0"),
        (
            {"Norm": {"cpu": {"INFERENCE": A}}},
            TypeError,
            r"Modes as keys \(did you mean Mode.INFERENCE\?\), got 'INFER",
        ),
        ({"Norm": {"cpu": {Mode(6): A}}}, RequestError, r"one of the modes INFERENCE, .*, got TRAINING \| INFERENCE"),
        ({"Norm": {"cpu": {Mode(0): A}}}, RequestError, "one of the modes .* FALLBACK, got NONE"),
        ({"Norm": {"cpu": {Mode.TORCH_COMPILE: A}}}, RequestError, "one of the modes .*, got TORCH_COMPILE"),
        ({"Norm": {"cpu": {~Mode.TRAINING: A}}}, RequestError, "one of the modes"),
        ({"Norm": {"cpu": "org/repo"}}, TypeError, "expected a LayerRepository, or .*, got 'org/repo'"),
        ({"Norm": {"cpu": Kernel}}, TypeError, r"expected a LayerRepository, .* \(type\)"),
    ],
)
def test_a_wrong_entry_is_named_and_nothing_is_registered(mapping: Any, error: type[Exception], says: str) -> None:
    register_kernel_mapping({"Norm": {"cpu": A}})
    with pytest.raises(error, match=says):
        register_kernel_mapping(mapping)
    with pytest.raises(error, match=says):
        use_kernel_mapping(mapping)
    assert chosen() == "a"


@pytest.mark.parametrize("value", ["no", None, 0])
@pytest.mark.parametrize("enter", [register_kernel_mapping, use_kernel_mapping])
def test_whether_to_inherit_is_a_bool(enter: Any, value: Any) -> None:
    register_kernel_mapping({"Norm": {"cpu": A}})
    with pytest.raises(TypeError, match=f"`inherit_mapping`: expected True or False, got {value!r}"):
        enter({}, inherit_mapping=value)
    assert chosen() == "a"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_forked_while_another_thread_registers_can_register() -> None:
    work = "mapping.register_kernel_mapping({})"
    assert fork_while_held("mapping._lock", work, imports="from kernels.layer import mapping") == ("0", "")
