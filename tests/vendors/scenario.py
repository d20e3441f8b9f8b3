"""What a chip must be able to do that this source does not know, in a process of its own.

    python scenario.py FORM

Each step is a sentence; its name is printed when it held. How the chip joins is the only difference between the forms.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import kernels
from kernels import CapabilityRange, Device, LayerRepository, Mode, Target, backends, get_kernel
from kernels.api import explain
from kernels.backends import registry
from kernels.backends.plugins.vendor_folder import register_vendor
from kernels.errors import KernelsError, UnsupportedArch
from kernels.resolver.variant import parse_variant

HERE = Path(__file__).parent

#: A build's name that means something only where the chip is known.
BUILD = "torch213-cxx11-acme12-x86_64-linux"


# How it joins


def by_subclass() -> None:
    from acme_kernels import Acme

    kernels.register_backend(Acme())


def by_plain_object() -> None:
    from acme_kernels import Acme

    acme = Acme()
    members = {name: getattr(acme, name) for name in dir(acme) if not name.startswith("_")}
    kernels.register_backend(types.SimpleNamespace(**members))


def by_package() -> None:
    # It was installed all the time, and left out.
    del os.environ["KERNELS_DISABLE_BACKENDS"]
    look_as_a_new_process()


def by_json() -> None:
    os.environ["KERNELS_BACKENDS_JSON"] = str(HERE / "acme.json")
    look_as_a_new_process()


def by_vendor_folder() -> None:
    os.environ["KERNELS_VENDOR_PATH"] = str(HERE / "acme_vendor")
    look_as_a_new_process()


def look_as_a_new_process() -> None:
    """Look for the environment's backends again: a process does it once."""
    registry._looked = False


class Form(NamedTuple):
    join: Callable[[], None]
    kind: str
    place: str
    has_folder: bool = True


FORMS = {
    "subclass": Form(by_subclass, "run-time", "scenario.py"),
    "plain-object": Form(by_plain_object, "run-time", "scenario.py"),
    "package": Form(by_package, "installed", "acme-kernels 1.0"),
    "json": Form(by_json, "declared", "acme.json", has_folder=False),
    "vendor-folder": Form(by_vendor_folder, "vendor", "acme_vendor"),
}


# What it must be able to do


class World:
    """What one step hands to the next."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.before: Any = None


def refusal(ask: Callable[[], object], kind: type[Exception] = KernelsError) -> str | None:
    """The error's message, or None where there was none."""
    try:
        ask()
    except kind as error:
        return str(error)
    return None


def traces() -> dict[str, object]:
    """Everything in which a registered backend shows."""

    def first(ask: Callable[[], object]) -> str | None:
        # Further lines say why a name that is not known is not, such as that it is left out.
        return (refusal(ask) or "").partition("\n")[0] or None

    return {
        "backends": [(entry.name, entry.origin) for entry in kernels.list_backends()],
        "names": (backends.variant_tokens(), backends.device_types(), backends.reserved_names()),
        "target": Target.current().to_json(),
        "find": first(lambda: kernels.get_backend("acme")),
        "variant": first(lambda: parse_variant(BUILD)),
        "parsed target": first(lambda: Target.parse("torch2.13-acme12-x86_64-linux+a100x")),
        "get_kernel": first(lambda: get_kernel("acme/activation", version=1, backend="acme")),
        "mapping": first(lambda: kernels.use_kernel_mapping({"SiluAndMul": {"acme": Repository()}})),
        "kernelize": first(lambda: kernels.kernelize(Model(), mode=Mode.INFERENCE, device="acme")),
        "operators": first(lambda: use_vendor_ops("acme").__enter__()),
    }


def it_is_not_known_before(world: World) -> None:
    world.before = traces()
    assert None not in (world.before[key] for key in ("find", "variant", "parsed target", "mapping", "kernelize"))


def it_joins_and_says_how(world: World) -> None:
    world.form.join()
    if torch.version.cuda or torch.version.hip:
        # A Torch that was built for another accelerator uses that one where none is named.
        os.environ["KERNELS_BACKEND"] = "acme"
    origin = backends.entry_of("acme").origin
    assert (origin.kind, world.form.place in origin.place) == (world.form.kind, True), origin
    assert kernels.get_backend("acme").device_type == "acme"


def every_part_knows_it_at_once(world: World) -> None:
    assert (parse_variant(BUILD).backend, parse_variant(BUILD).accelerator_version) == ("acme", (1, 2))
    assert parse_variant("torch-acme").backend == "acme"
    assert "acme" in backends.variant_tokens()
    assert "acme" in backends.device_types()
    text = "torch2.13-acme12-x86_64-linux+a100x"
    assert str(Target.parse(text)) == text


def this_machine_has_it(world: World) -> None:
    target = Target.current()
    assert target.default_backend == "acme", target
    assert target.backends["acme"] == "1.2"
    assert "acme" in target.torch_backends
    assert [(device.index, device.arch) for device in target.backend_devices("acme")] == [(0, "a100x")]


def the_compiled_build_for_its_runtime_is_chosen(world: World) -> None:
    kernel = get_kernel("acme/activation", version=1)
    assert "-acme12-" in kernel.variant
    rejected = explain("acme/activation", version=1).resolution.rejected
    (newer,) = [each.reason for each in rejected if "-acme20-" in each.variant.variant_str]
    assert "2.0" in newer, newer
    assert "1.2" in newer, newer


def a_build_that_is_not_compiled_is_chosen_where_there_is_no_other(world: World) -> None:
    assert get_kernel("acme/portable", version=1).variant == "torch-acme"
    assert get_kernel("acme/portable", version=1, backend="cpu").variant == "torch-cpu"


def a_build_for_another_architecture_is_refused_with_the_reason(world: World) -> None:
    reason = refusal(lambda: get_kernel("acme/other", version=1), UnsupportedArch)
    assert reason is not None
    assert "a100x" in reason, reason
    assert "b200y" in reason, reason
    assert get_kernel("acme/other", version=1, check_arch=False).variant


def a_model_runs_on_it_through_the_kernel(world: World) -> None:
    model, x = Model(), torch.randn(3, 8)
    expected = model(x)
    model = model.to("acme")
    torch.testing.assert_close(model(x.to("acme")).cpu(), expected)
    assert launched() == []
    with kernels.use_kernel_mapping(mapping(0, 1_000_000)):
        report = kernels.kernelize(model, mode=Mode.INFERENCE, report=True)
    (row,) = report.kernelized
    assert (row.layer, row.kernel) == ("SiluAndMul", "acme/activation"), report
    assert "-acme12-" in row.variant
    y = model(x.to("acme"))
    assert y.device.type == "acme"
    torch.testing.assert_close(y.cpu(), expected)
    assert launched() == ["kernel's silu_and_mul"]


def a_model_on_the_processor_keeps_its_own_layers(world: World) -> None:
    with kernels.use_kernel_mapping(mapping(0, 1_000_000), inherit_mapping=False):
        report = kernels.kernelize(Model(), mode=Mode.INFERENCE, report=True)
    assert not report.kernelized
    assert "no kernel for device type 'cpu'" in str(report)


def a_range_of_capabilities_without_it_leaves_the_layer_alone(world: World) -> None:
    capability = Target.current().backend_devices("acme")[0].capability
    assert capability is not None
    with kernels.use_kernel_mapping(mapping(capability + 1, capability + 2)):
        report = kernels.kernelize(Model().to("acme"), mode=Mode.INFERENCE, report=True)
    assert not report.kernelized
    assert f"({capability})" in str(report), report
    with kernels.use_kernel_mapping(mapping(capability, capability)):
        assert kernels.kernelize(Model().to("acme"), mode=Mode.INFERENCE, report=True).kernelized


def a_kernels_function_stands_in_for_an_operator_on_it_alone(world: World) -> None:
    x = torch.randn(5)
    spec = FuncSpec("acme/activation", "silu", version=1)
    with use_kernel_ops({"aten::silu": spec}):
        check_silu(x, "kernel's silu")
    check_silu(x)


def a_vendors_functions_stand_in_for_operators_on_it_alone(world: World) -> None:
    x = torch.randn(5)
    if not world.form.has_folder:
        reason = refusal(lambda: use_vendor_ops("acme").__enter__())
        assert reason is not None
        assert "no vendor folder" in reason, reason
        register_vendor(HERE / "acme_vendor")
    with use_vendor_ops("acme") as enabled:
        assert enabled.operators == ("aten::silu",)
        check_silu(x, "vendor's silu")
        with use_kernel_ops({"aten::silu": FuncSpec("acme/activation", "silu", version=1)}):
            check_silu(x, "kernel's silu")
        check_silu(x, "vendor's silu")
    check_silu(x)


def the_vendors_tune_configurations_are_those_for_its_architecture(world: World) -> None:
    if importlib.util.find_spec("triton") is None or world.form.kind in ("run-time", "installed"):
        return  # the package has none
    configs, heuristics = get_configs("mm"), get_heuristics("mm")
    assert (configs.origin.kind, configs.origin.arch, heuristics.origin.kind) == ("vendor", "a100x", "vendor")
    assert [config.kwargs["BLOCK_M"] for config in configs] == [128]
    assert sorted({config.kwargs["BLOCK_M"] for config in get_configs("mm", arch="b200y")}) == [64, 128]
    assert heuristics["EVEN_K"]({"K": 96, "BLOCK_K": 64}) is False


def a_folder_that_was_added_to_it_can_be_taken_away(world: World) -> None:
    if not world.form.has_folder:
        kernels.unregister_backend("acme")
    assert backends.entry_of("acme").origin.kind == world.form.kind


def check_silu(x: torch.Tensor, *launches: str) -> None:
    """What runs when the operator is called on the chip and on the processor, with and without a derivative."""
    expected = x.sigmoid() * x
    torch.testing.assert_close(torch.nn.functional.silu(x), expected)
    assert launched() == []
    torch.testing.assert_close(torch.nn.functional.silu(x.to("acme")).cpu(), expected)
    leaf, other = x.to("acme").requires_grad_(), x.clone().requires_grad_()
    torch.nn.functional.silu(leaf).sum().backward()
    assert launched() == [*launches, *launches]
    torch.nn.functional.silu(other).sum().backward()
    torch.testing.assert_close(leaf.grad.cpu(), other.grad)
    assert launched() == []


def nothing_is_left_of_it_afterwards(world: World) -> None:
    kernels.unregister_backend("acme")
    os.environ.pop("KERNELS_BACKEND", None)
    after = traces()
    for key, before in world.before.items():
        assert after[key] == before, f"{key}: {before!r} before, {after[key]!r} after"
    assert active_ops() == []


STEPS = (
    it_is_not_known_before,
    it_joins_and_says_how,
    every_part_knows_it_at_once,
    this_machine_has_it,
    the_compiled_build_for_its_runtime_is_chosen,
    a_build_that_is_not_compiled_is_chosen_where_there_is_no_other,
    a_build_for_another_architecture_is_refused_with_the_reason,
    a_model_runs_on_it_through_the_kernel,
    a_model_on_the_processor_keeps_its_own_layers,
    a_range_of_capabilities_without_it_leaves_the_layer_alone,
    a_kernels_function_stands_in_for_an_operator_on_it_alone,
    a_vendors_functions_stand_in_for_operators_on_it_alone,
    the_vendors_tune_configurations_are_those_for_its_architecture,
    a_folder_that_was_added_to_it_can_be_taken_away,
    nothing_is_left_of_it_afterwards,
)


if __name__ == "__main__":
    import torch
    from acme_model import Model

    from kernels.operators import FuncSpec, active_ops, use_kernel_ops, use_vendor_ops
    from kernels.tuning import get_configs, get_heuristics

    class Repository:
        def load(self) -> None: ...

    def launched() -> list[str]:
        """What was launched since it was last asked."""
        launches = list(torch.acme.launches)
        torch.acme.launches.clear()
        return launches

    def mapping(low: int, high: int) -> Any:
        layer = LayerRepository("acme/activation", layer_name="SiluAndMul", version=1)
        return {"SiluAndMul": {Device("acme", CapabilityRange(low, high)): layer}}

    torch.manual_seed(0)
    if not hasattr(torch, "acme"):  # an installed extension comes with Torch
        from acme_device import install

        install()
    warnings.simplefilter("error")
    world = World(FORMS[sys.argv[1]])
    for step in STEPS:
        step(world)
        print(step.__name__, flush=True)
