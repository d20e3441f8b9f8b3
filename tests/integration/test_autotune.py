"""autotune over a Hub: which of its kernels a model keeps, and who uses what was measured."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timed_layers
import torch
from hub import TestHub
from timed_layers import BY_CLASS, KERNELS, LARGE, SMALL, Model, Norm, took
from torch import nn
from torch.utils.checkpoint import checkpoint

from kernels import LayerRepository, Mode, autotune, get_loaded_kernels, kernelize, unkernelize
from kernels.errors import RequestError


@pytest.fixture(autouse=True)
def _published(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(hub)
    monkeypatch.setattr(time, "perf_counter", time.perf_counter)  # given back after the test
    timed_layers.started_clock()


def publish(hub: TestHub, seed: str = "", layers: str = KERNELS) -> None:
    hub.make_repo("acme/norm", seed=seed, variants={"torch-cpu": {"__init__.py": INIT, "layers.py": layers}})


INIT = "from . import layers\n"


def layer(name: str) -> LayerRepository:
    return LayerRepository("acme/norm", layer_name=name, version=1)


def mapped(*names: str) -> Any:
    found = [layer(name) for name in names]
    return {"Norm": {"cpu": found if len(found) > 1 else found[0]}}


def tuned(*names: str, calls: Any = ((LARGE,), (SMALL,)), model: nn.Module | None = None) -> Any:
    model = Model().eval() if model is None else model
    return model, autotune(model, *calls, mapping=mapped(*names), by_class=BY_CLASS)


def served(*names: str, model: nn.Module | None = None, **how: Any) -> list[Any]:
    """The rows of a model that is kernelized without measuring."""
    model = Model().eval() if model is None else model
    return list(kernelize(model, mapped(*names), by_class=BY_CLASS, report=True, **how))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    model.zero_grad()
    model(LARGE).pow(2).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def close(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.allclose, one, other))


def test_a_kernel_that_is_right_and_faster_is_chosen() -> None:
    model, report = tuned("Fast")
    assert [(row.inputs, row.kernel, row.chosen, row.reason) for row in report] == [
        ("fp32[1, 16]", "acme/norm", True, None),
        ("fp32[16, 16]", "acme/norm", True, None),
    ]
    assert took(model, LARGE) == took(model, SMALL) == 0
    assert close([model(LARGE)], [Model()(LARGE)])
    assert all(call.gain > 1 for call in report.calls)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Slow", "not faster than its own forward"),
        ("Wrong", "its result differs by"),
        ("Fails", "the kernel fails: ValueError: cos must have x's dtype"),
        ("InPlace", "the kernel writes into its arguments"),
        ("OtherShape", "the kernel returns float32 of shape ("),
        ("OtherType", "the kernel returns float16 of shape ("),
    ],
)
def test_a_kernel_that_does_not_pay_is_out_with_the_reason_then_and_later(name: str, reason: str) -> None:
    model, report = tuned(name)
    assert not any(row.chosen for row in report)
    assert all((row.reason or "").startswith(reason) for row in report)
    assert torch.equal(model(LARGE), Model()(LARGE))
    later = Model().eval()
    assert all((row.reason or "").startswith(f"measured: {reason}") for row in served(name, model=later))
    assert torch.equal(later(LARGE), Model()(LARGE))


def test_a_kernel_whose_backward_writes_into_the_gradient_that_it_is_given_never_trains() -> None:
    wanted = gradients(Model().train())
    unmeasured = Model().train()
    served("InPlaceBackward", model=unmeasured)
    assert not close(gradients(unmeasured), wanted)  # what the residual reads is another gradient
    model, report = tuned("InPlaceBackward", calls=((LARGE,),), model=Model().train())
    [row] = report
    assert row.reason == "the kernel's backward writes into the gradient that it is given"
    later = Model().train()
    served("InPlaceBackward", model=later)
    assert close(gradients(model), wanted)
    assert close(gradients(later), wanted)


def test_a_kernel_that_was_measured_in_inference_computes_no_wrong_gradients_later() -> None:
    model, report = tuned("InPlaceBackward")
    assert all(row.chosen for row in report)
    later = Model().eval()
    served("InPlaceBackward", model=later)
    for each in (model, later):
        with torch.no_grad():
            assert took(each, LARGE) == 0  # the kernel
        assert close(gradients(each), gradients(Model().eval()))
        assert close(gradients(each.train()), gradients(Model().train()))


def test_a_kernel_that_pays_for_large_inputs_alone_serves_those() -> None:
    model, report = tuned("OnlyLarge")
    assert [row.chosen for row in report] == [False, True]
    later = Model().eval()
    served("OnlyLarge", model=later)
    for each in (model, later):
        assert took(each, LARGE) == 0  # the kernel
        assert took(each, SMALL) == pytest.approx(2e-3)  # the own forward of two layers
        unkernelize(each)
        assert took(each, LARGE) == pytest.approx(2e-3)
        assert "forward" not in each.blocks[0].norm.__dict__


def test_layers_that_compute_by_other_attributes_are_measured_apart() -> None:
    def model(*every: float) -> nn.Sequential:
        norms = nn.Sequential(*(Norm(eps=eps) for eps in every))
        return norms.eval()

    def call() -> None:  # without a result that could be compared
        with torch.no_grad():
            both(LARGE)

    both = model(1e-6, 1e-3)
    _, report = tuned("Fast", calls=(call,), model=both)
    assert [(row.module, row.chosen) for row in report] == [("0", True), ("1", False)]
    later = model(1e-3)
    assert not any(row.kernelized for row in served("Fast", model=later))
    assert served("Fast", model=model(1e-3, 1e-2))[1].kernelized  # which nothing was measured of


def test_a_layer_is_measured_with_the_strides_of_its_arguments() -> None:
    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = Norm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x.chunk(2, -1)[1])

    model = Fused().eval()

    def call() -> None:  # without a result that could be compared
        with torch.no_grad():
            model(LARGE)

    _, [row] = tuned("AssumesContiguous", calls=(call,), model=model)
    assert (row.reason or "").startswith("its result differs by")
    assert torch.equal(model(LARGE), Fused()(LARGE))


def test_a_cache_that_is_passed_stays_as_it_is() -> None:
    class Cached(Model):
        def forward(self, x: torch.Tensor, cache: Any) -> torch.Tensor:
            cache.rows = torch.cat((cache.rows, super().forward(x)))
            return cache.rows

    model, cache = Cached().eval(), SimpleNamespace(rows=LARGE[:0])
    model(LARGE, cache)  # with a graph: its tensors are no leaves
    before = cache.rows
    _, report = tuned("Fast", calls=((SMALL, cache),), model=model)
    assert cache.rows is before
    assert all(row.chosen for row in report)


@pytest.mark.parametrize("first", ["Slow", "Wrong", "Fails"])
def test_of_two_candidates_the_faster_one_that_is_right_serves_whatever_the_first_is(first: str) -> None:
    model, report = tuned(first, "Fast")
    assert [row.chosen for row in report] == [False, False, True, True]
    later = Model().eval()
    served(first, "Fast", model=later)
    for each in (model, later):
        assert type(each.blocks[0].norm.forward.__func__.__globals__["Fast"]) is type
        assert each.blocks[0].norm.forward.__func__.__qualname__ == "Fast.forward"
        assert close([each(LARGE)], [Model()(LARGE)])


def test_candidates_that_one_factory_makes_are_told_apart(hub: TestHub) -> None:
    made = """
        def made(eps):
            class Made(nn.Module):
                def forward(self, x):
                    return normed(x, self.weight, eps)

            return Made


        Off, On = made(1e-3), made(1e-6)
    """
    publish(hub, layers=KERNELS + textwrap.dedent(made))
    _, report = tuned("Off", "On")
    assert [row.chosen for row in report] == [False, False, True, True]
    later = Model().eval()
    assert all(row.kernelized for row in served("Off", "On", model=later))
    assert close([later(LARGE)], [Model()(LARGE)])


def test_a_kernel_that_fails_when_it_is_called_again_is_out(hub: TestHub) -> None:
    once = """
        class Once(nn.Module):
            def forward(self, x):
                if _called:
                    raise ValueError("the workspace is in use")
                _called.append(x)
                return normed(x, self.weight)


        _called = []
    """
    publish(hub, layers=KERNELS + textwrap.dedent(once))
    model, report = tuned("Once", "Fast", calls=((LARGE,),))
    assert [(row.chosen, row.reason) for row in report] == [
        (False, "the kernel fails: ValueError: the workspace is in use"),
        (True, None),
    ]
    assert close([model(LARGE)], [Model()(LARGE)])


def test_a_kernel_that_was_wrong_stays_out_where_the_one_that_served_is_mapped_no_more() -> None:
    tuned("Wrong", "Fast")
    assert [(row.reason or "")[:28] for row in served("Wrong")] == ["measured: its result differs"] * 2


def test_a_new_commit_is_not_served_by_what_was_measured_of_the_one_before(
    hub: TestHub, new_process: Callable[[], None]
) -> None:
    tuned("Slow")
    assert not any(row.kernelized for row in served("Slow"))
    branch = hub.root / "acme" / "norm" / "v1"
    shutil.copytree(branch, branch.with_name(hub.commit("acme/norm")))  # the Hub still has it
    publish(hub, seed="the second commit")
    new_process()
    model = Model().eval()
    report = kernelize(model, mapped("Slow"), by_class=BY_CLASS, report=True)
    assert [row.commit for row in report] == [hub.commit("acme/norm")] * 2
    assert not report.measured
    tuned("Slow")
    assert not any(row.kernelized for row in served("Slow"))


def test_what_was_measured_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned("Slow")
    assert all(row.kernelized for row in served("Slow", autotuned=False))
    monkeypatch.setenv("KERNELS_AUTOTUNE", "off")
    assert all(row.kernelized for row in served("Slow"))
    monkeypatch.delenv("KERNELS_AUTOTUNE")
    assert not any(row.kernelized for row in served("Slow"))


def test_a_saved_file_decides_in_another_process_with_another_cache(tmp_path: Path) -> None:
    _, report = tuned("OnlyLarge")
    saved = tmp_path / "kernels.autotune.json"
    report.save(saved)
    code = """
        model = Model().eval()
        report = kernelize(model, mapped("OnlyLarge"), by_class=BY_CLASS, report=True, autotuned=sys.argv[1])
        print(json.dumps([[row.from_size for row in report], [took(model, LARGE), took(model, SMALL)]]))
        kernelize(model, mapped("OnlyLarge"), by_class=BY_CLASS)
        print(json.dumps([row.from_size for row in kernelize_report(model)]))
    """
    with_file, without = in_new_process(code, saved, KERNELS_CACHE=str(tmp_path / "another"))
    assert with_file == [["from 256 elements"] * 2, [0, pytest.approx(2e-3)]]
    assert without == [None, None]


def test_a_new_process_uses_what_was_measured_without_measuring() -> None:
    tuned("OnlyLarge")
    code = """
        model = Model().eval()
        calls = []
        for block in model.blocks:
            block.register_forward_hook(lambda *given: calls.append(given))
        kernelize(model, mapped("OnlyLarge"), by_class=BY_CLASS)
        print(json.dumps([len(calls), took(model, LARGE), took(model, SMALL)]))
    """
    assert in_new_process(code) == [[0, 0, pytest.approx(2e-3)]]


def in_new_process(code: str, *arguments: object, **environment: str) -> list[Any]:
    """The lines that the code prints in a new process, as JSON; it sees this module's names."""
    [done] = processes(code, [list(map(str, arguments))], [environment])
    return done


def processes(code: str, arguments: list[list[str]], environments: list[dict[str, str]]) -> list[list[Any]]:
    """What each of several processes prints, side by side."""
    lines = [line.removeprefix("        ") for line in code.splitlines()]
    path = os.pathsep.join((str(Path(__file__).parent), *filter(None, sys.path)))
    running = [
        subprocess.Popen(
            [sys.executable, "-c", "\n".join([_NEW_PROCESS, *lines]), *own],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )
        for own, environment in zip(arguments, environments, strict=True)
    ]
    printed = [each.communicate(timeout=300)[0] for each in running]
    assert [each.returncode for each in running] == [0] * len(running)
    return [[json.loads(line) for line in each.splitlines()] for each in printed]


_NEW_PROCESS = """
import json, sys
from kernels import kernelize_report
from test_autotune import *
from test_autotune import mapped, served, tuned
timed_layers.started_clock()
"""


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
def test_transformers_uses_what_was_measured_by_its_own_switch(hub: TestHub) -> None:
    layers = KERNELS + "\nclass Llama(nn.Module):\n    def forward(self, hidden_states):\n        "
    layers += "work()\n        return normed(hidden_states, self.weight, self.variance_epsilon)\n"
    publish(hub, layers=layers)
    code = """
        from kernels import register_kernel_mapping
        from transformers import AutoModelForCausalLM, LlamaConfig

        sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=32)
        model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes)).eval()
        register_kernel_mapping({"RMSNorm": {"cpu": layer("Llama")}})
        if sys.argv[1:]:
            autotune(model, (torch.arange(8)[None],))
            unkernelize(model)
        model.set_use_kernels(True)
        print(json.dumps([row.reason for row in kernelize_report(model) if row.layer == "RMSNorm"]))
    """
    assert in_new_process(code) == [[None] * 3]
    in_new_process(code, "measure")
    assert in_new_process(code) == [["measured: not faster than its own forward"] * 3]


@pytest.mark.parametrize(("name", "chosen"), [("SlowOnSecondRank", True), ("WrongOnSecondRank", False)])
def test_ranks_of_a_job_agree(name: str, chosen: bool, tmp_path: Path, isolated_env: Path) -> None:
    # The first rank's times count for all, and what is wrong on one rank is wrong.
    code = """
        import torch.distributed as distributed
        rank = int(os.environ["RANK"])
        distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
        _, report = tuned(sys.argv[2])
        print(json.dumps([row.chosen for row in report]))
        distributed.destroy_process_group()
    """
    ranks = [{"RANK": str(rank)} for rank in range(2)]
    printed = processes(code, [[str(tmp_path / "store"), name]] * 2, ranks)
    assert printed == [[[chosen, chosen]]] * 2
    assert [row.kernelized for row in served(name)] == [chosen] * 2


def test_a_forward_only_kernel_is_never_reached_where_a_gradient_is_needed() -> None:
    wanted = gradients(Model().train())
    _, report = tuned("ForwardOnly")
    assert all(row.chosen for row in report)
    model = Model().eval()
    served("ForwardOnly", model=model)
    with torch.no_grad():
        assert took(model, LARGE) == 0
    assert close(gradients(model), wanted)  # in eval, as for a saliency map
    assert close(gradients(model.train()), wanted)
    student = Model().train()
    served("ForwardOnly", model=Model().eval())  # a teacher in the same process
    assert close(gradients(student), wanted)


_HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no JSON": lambda saved: "{",
    "deeply nested": lambda saved: "[" * 100_000,
    "a list": lambda saved: [],
    "another version": lambda saved: {**saved, "autotune": 2},
    "no segments": lambda saved: with_layer(saved, segments=[]),
    "a size that is no number": lambda saved: with_layer(saved, segments=[{"elements": "all"}]),
    "a negative size": lambda saved: with_layer(saved, segments=[{"elements": -1}]),
    "no facts": lambda saved: with_layer(saved, facts=None),
    "a negative place": lambda saved: with_layer(saved, argument=[-1, "x"]),
}


def with_layer(saved: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {**saved, "layers": [{**each, **changed} for each in saved["layers"]]}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A saved file, in which a kernel serves large inputs alone."""
    path = tmp_path / "kernels.autotune.json"
    tuned("OnlyLarge")[1].save(path)
    return path


@pytest.mark.parametrize("what", _HOSTILE)
def test_a_damaged_saved_file_is_an_error_and_changes_nothing(what: str, saved: Path) -> None:
    content = _HOSTILE[what](json.loads(saved.read_text()))
    saved.write_text(content if isinstance(content, str) else json.dumps(content))
    model = Model().eval()
    before = [dict(module.__dict__) for module in model.modules()]
    with pytest.raises(RequestError, match=r"kernels\.autotune\.json (is not a file|has version 2)"):
        served("OnlyLarge", model=model, autotuned=saved)
    assert [dict(module.__dict__) for module in model.modules()] == before


def test_a_huge_saved_file_is_an_error(saved: Path) -> None:
    with open(saved, "ab") as file:
        file.truncate(2**34)
    with pytest.raises(RequestError, match="cannot be read"):
        served("OnlyLarge", autotuned=saved)


@pytest.mark.parametrize(
    "argument", [[5, "x"], [0, "__class__"], [10**9, "other"], None], ids=["place", "name", "absent", "none"]
)
def test_a_saved_file_that_names_another_argument_breaks_no_call(argument: Any, saved: Path) -> None:
    saved.write_text(json.dumps(with_layer(json.loads(saved.read_text()), argument=argument)))
    model = Model().eval()
    served("OnlyLarge", model=model, autotuned=saved)
    norm = model.blocks[0].norm
    assert close([model(LARGE), norm(x=SMALL)], [Model()(LARGE), Norm()(SMALL)])


def test_a_record_chooses_only_what_is_mapped(saved: Path, hub: TestHub) -> None:
    hub.make_repo("acme/other", variants={"torch-cpu": {"__init__.py": "raise SystemExit('executed')"}})
    text = saved.read_text()
    for other in ("acme/other", "evil/other", str(saved.parent / "a-folder")):
        saved.write_text(text.replace("acme/norm", other))
        hub.clear()
        report = kernelize(Model().eval(), mapped("Fast"), by_class=BY_CLASS, report=True, autotuned=saved)
        assert {row.kernel for row in report.kernelized} == {"acme/norm"}
        assert not report.measured
        assert not hub.count("other")


def test_records_that_others_could_write_or_that_are_damaged_are_ignored(isolated_env: Path) -> None:
    tuned("Slow")
    [record] = (isolated_env / ".locks" / "kernels-autotune").iterdir()
    content = record.read_bytes()
    damaged = [b"", b"{", b"[" * 100_000, content[:-20], content.replace(b"acme/norm", b"evil/norm")]
    for bad in damaged:
        record.chmod(0o600)
        record.write_bytes(bad)
        record.chmod(0o444)
        assert all(row.kernelized for row in served("Slow")), bad[:40]
    record.chmod(0o600)
    record.write_bytes(content)
    record.chmod(0o666)
    assert all(row.kernelized for row in served("Slow"))
    record.chmod(0o444)
    assert not any(row.kernelized for row in served("Slow"))


class Trained:
    """A model in training with all that a run may change, and a step that is interrupted at some call of a layer."""

    def __init__(self) -> None:
        self.model = Model().train()
        self.model.register_buffer("steps", torch.zeros(1))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        gradients(self.model)
        self.optimizer.step()
        self.left = -1

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model.steps += 1
        nn.functional.dropout(self.model(LARGE)).sum().backward()
        self.optimizer.step()

    def state(self) -> Any:
        modules = [{name: each.__dict__.get(name) for name in ("forward", "training")} for each in self.model.modules()]
        tensors = [*self.model.parameters(), *self.model.buffers()]
        gradients = [each.grad for each in self.model.parameters()]
        states = [each for state in self.optimizer.state.values() for each in state.values()]
        return modules, [each.tolist() for each in (*tensors, *gradients, *states, torch.get_rng_state())]


@pytest.mark.parametrize("after", [0, 1, 7, 30, 100])
def test_an_interrupt_leaves_everything_as_it_was(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case, left = Trained(), [after]
    served("Fast", model=case.model)
    forward = nn.functional.rms_norm

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return forward(*args, **kwargs)

    before = case.state()
    with monkeypatch.context() as patched:
        patched.setattr(nn.functional, "rms_norm", interrupted)
        with pytest.raises(KeyboardInterrupt):
            autotune(case.model, case.step, mapping=mapped("Slow"), by_class=BY_CLASS)
    assert case.state() == before
    assert all(row.kernelized for row in served("Slow"))  # nothing was kept of what was measured


def test_a_training_step_leaves_everything_but_the_forwards_as_it_was() -> None:
    case = Trained()
    before = case.state()
    autotune(case.model, case.step, mapping=mapped("Slow"), by_class=BY_CLASS)
    assert case.state() == before
    autotune(case.model, case.step, mapping=mapped("Fast"), by_class=BY_CLASS)
    assert case.state()[1] == before[1]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_model_with_activation_checkpointing_is_measured_and_trains_right(reentrant: bool) -> None:
    class Checkpointed(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.clone().requires_grad_()
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return x

    wanted = gradients(Model().train())
    for name, chosen in (("Fast", True), ("InPlaceBackward", False)):
        model, [row] = tuned(name, calls=((LARGE,),), model=Checkpointed().train())
        assert row.chosen is chosen
        assert close(gradients(model), wanted)


def test_layers_of_a_model_that_will_be_compiled_are_timed_compiled_for_each_size(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    layers = """
        compiled = []
        class Compiled(nn.Module):
            can_torch_compile = True
            def forward(self, x):
                if torch.compiler.is_compiling():
                    compiled.append(x.shape[0])
                return torch.nn.functional.rms_norm(x, (16,), self.weight, 1e-6)
    """
    publish(hub, layers=KERNELS + textwrap.dedent(layers))
    calls = [(LARGE[:rows],) for rows in range(1, 13)]
    mode = Mode.INFERENCE | Mode.TORCH_COMPILE
    model = Model().eval()
    autotune(model, *calls, mapping=mapped("Compiled"), by_class=BY_CLASS, mode=mode)
    [kernel] = [each for each in get_loaded_kernels() if hasattr(getattr(each.module, "layers", None), "compiled")]
    assert set(kernel.module.layers.compiled) == set(range(1, 13))


class Buffered(Model):
    """A model with a layer that has a buffer, and is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.norm.register_buffer("scale", torch.ones(16))
        self.norm.register_forward_hook(lambda module, given, result: result * module.scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x)) + self.norm(x[:1])


def test_a_model_that_was_made_in_inference_mode_is_measured() -> None:
    with torch.inference_mode():
        model = Buffered().eval()
        wanted = model(LARGE)
    _, report = tuned("Fast", calls=((LARGE,),), model=model)
    assert all(row.chosen for row in report)
    with torch.inference_mode():
        assert close([model(LARGE)], [wanted])


def test_a_buffer_that_nothing_changes_is_not_written_to_between_a_forward_and_its_backward() -> None:
    _, report = tuned("Fast", calls=((LARGE,),), model=Buffered().train())
    assert all(row.chosen for row in report)


def test_the_inputs_of_one_kind_of_layer_are_kept_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(Norm(width) for width in range(8, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for norm in self.norms:
                x = norm(nn.functional.pad(x, (0, 1)))
            return x

    seen: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    width = [0]
    forward = nn.functional.rms_norm

    def widths() -> set[int]:
        return {tensor.shape[1] for each in seen if (tensor := each()) is not None}

    def watched(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        if width[0] != x.shape[1] and len(alive) < 8:  # the first of a kind: what is left of the one before?
            gc.collect()  # Torch's pytree leaves cycles
            alive.append(len(widths()))
            width[0] = x.shape[1]
        seen[:] = [each for each in seen if each() is not None]
        seen.append(weakref.ref(x))
        return forward(x, *rest)

    monkeypatch.setattr(nn.functional, "rms_norm", watched)
    _, report = tuned("Fast", calls=((torch.ones(4, 7),),), model=Rows().eval())
    assert len(report) == 8
    assert all(row.chosen for row in report)
    assert set(alive) == {0}
