"""autotune keeps the kernels that are right and faster, and nothing else of a run stays."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from html_cells import ReadHtml
from layer_models import Gives
from torch import nn

from kernels import AutotuneReport, Mode, TunedRow, autotune, kernelize, kernelize_report, unkernelize
from kernels.errors import RequestError
from kernels.layer import timing


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)


class Clock:
    """A clock that only `work` moves on: no test depends on how busy the machine is."""

    now = 0.0
    #: When the device has done what it was given.
    done = 0.0

    @classmethod
    def read(cls, *, wait: bool = True) -> float:
        cls.now = max(cls.now, cls.done if wait else 0.0) + 1e-6
        return cls.now


def work(seconds: float = 1e-3, device: float = 0.0) -> None:
    """What a forward takes: the host's time, then the device's, for which only a reading that waits waits."""
    Clock.now += seconds
    Clock.done = max(Clock.now, Clock.done) + device


class Norm(nn.Module):
    """A norm whose own forward is slow."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        work()
        return normed(x, self.weight)


class OnDevice(Norm):
    """Its own forward gives a device work: 2 ms of the host, 9 ms of the device."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        work(2e-3, 9e-3)
        return normed(x, self.weight)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = Norm(), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.linear(x))
        return x + hidden  # the gradient of the sum is read by both


class Model(nn.Module):
    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def layer(forward: Any, **members: Any) -> Gives:
    """A repository whose kernel's layer has this forward."""
    return Gives(type("Kernel", (nn.Module,), {"forward": forward, **members}))


class _WritesGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return normed(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight = (each.detach().requires_grad_() for each in ctx.saved_tensors)
        with torch.enable_grad():
            found = torch.autograd.grad(normed(x, weight), (x, weight), gradients[0])
        gradients[0].mul_(12)
        return found


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return normed(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.zeros_like(gradients[0]), torch.ones_like(gradients[0]).sum(0)


def fast(self: Any, x: torch.Tensor) -> torch.Tensor:
    return normed(x, self.weight)


def slow(self: Any, x: torch.Tensor) -> torch.Tensor:
    work(4e-3)
    return normed(x, self.weight)


def only_large(self: Any, x: torch.Tensor) -> torch.Tensor:
    if x.numel() < 100:
        work(4e-3)
    return normed(x, self.weight)


def wrong(self: Any, x: torch.Tensor) -> torch.Tensor:
    return normed(x, self.weight, 1e-3)


def wrong_in_one_row(self: Any, x: torch.Tensor) -> torch.Tensor:
    result = normed(x, self.weight)
    result[-1] *= 1.01
    return result


def in_place(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x.copy_(normed(x.clone(), self.weight))


def fails(self: Any, x: torch.Tensor) -> torch.Tensor:
    raise ValueError("cos must have x's dtype")


def transposed(self: Any, x: torch.Tensor) -> torch.Tensor:
    return normed(x, self.weight).t().contiguous().t()


def changes_weight(self: Any, x: torch.Tensor) -> torch.Tensor:
    result = normed(x, self.weight)
    with torch.no_grad():
        self.weight.add_(1)
    return result


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "clock", Clock.read)
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")


LARGE, SMALL = torch.randn(16, 16), torch.randn(1, 16)
BY_CLASS = {"Norm": "Norm"}


def tuned(kernel: Any, *calls: Any, model: nn.Module | None = None, **how: Any) -> tuple[nn.Module, AutotuneReport]:
    model = Model().eval() if model is None else model
    mapping = {"Norm": {"cpu": kernel}}
    return model, autotune(model, *(calls or ((LARGE,), (SMALL,))), mapping=mapping, by_class=BY_CLASS, **how)


def took(module: nn.Module, x: torch.Tensor) -> float:
    before = Clock.now
    module(x)
    return Clock.now - before


def rows(report: AutotuneReport) -> list[tuple[str, bool, str | None]]:
    return [(row.inputs, row.chosen, row.reason) for row in report]


def kernelized_again(kernel: Any, **how: Any) -> Any:
    model = Model().train(how.pop("training", False))
    return model, kernelize(model, {"Norm": {"cpu": kernel}}, by_class=BY_CLASS, report=True, **how)


def test_a_kernel_that_is_faster_is_chosen_and_later_calls_use_it_without_measuring() -> None:
    kernel = layer(fast)
    model, report = tuned(kernel)
    assert rows(report) == [("fp32[1, 16]", True, None), ("fp32[16, 16]", True, None)]
    row = report.rows[0]
    assert (row.module, row.layer, row.kernel) == ("blocks.*.norm (2)", "Norm", "Gives")
    assert row.own_seconds is not None
    assert row.kernel_seconds is not None
    assert row.own_seconds > row.kernel_seconds
    assert row.difference == pytest.approx(0, abs=1e-6)
    assert len(report.calls) == 2
    assert all(call.gain > 1 for call in report.calls)
    # The smallest input has one row, so nothing has to be asked.
    assert model.blocks[0].norm.forward.__func__ is fast
    again, found = kernelized_again(kernel)
    assert again.blocks[1].norm.forward.__func__ is fast
    assert found.measured
    unkernelize(model)
    assert "forward" not in model.blocks[0].norm.__dict__


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (layer(slow), "not faster than its own forward"),
        (layer(wrong), "its result differs by"),
        (layer(wrong_in_one_row), "its result differs by"),
        (layer(in_place), "the kernel writes into its arguments"),
        (layer(fails), "the kernel fails: ValueError: cos must have x's dtype"),
        (
            layer(lambda self, x: normed(x, self.weight)[:1].clone()[:, :8]),
            "the kernel returns float32 of shape (1, 8)",
        ),
        (layer(lambda self, x: normed(x, self.weight).half()), "the kernel returns float16"),
        (layer(changes_weight), "the kernel writes into the layer's parameters"),
    ],
)
def test_a_kernel_that_does_not_pay_is_out_with_the_reason(kernel: Any, reason: str) -> None:
    plain = Model().eval()
    model, report = tuned(kernel)
    assert not any(row.chosen for row in report)
    assert all((row.reason or "").startswith(reason) for row in report)
    assert torch.equal(model(LARGE), plain(LARGE))
    assert reason in str(report)
    _, found = kernelized_again(kernel)
    assert all((row.reason or "").startswith(f"measured: {reason}") for row in found)


def test_strides_that_a_later_view_needs_are_compared() -> None:
    _, report = tuned(layer(transposed), (LARGE,))
    assert rows(report) == [("fp32[16, 16]", False, "the kernel's result has the strides (1, 16) in place of (16, 1)")]


def test_a_kernel_that_is_only_good_for_large_inputs_serves_those() -> None:
    kernel = layer(only_large)
    model, report = tuned(kernel)
    assert [row.chosen for row in report] == [False, True]
    assert report.rows[0].reason == "not faster than its own forward"
    [row, _] = kernelize_report(model)
    assert row.from_size == "from 256 elements"
    assert "from 256 elements" in str(kernelize_report(model))
    for each in (model, kernelized_again(kernel)[0]):
        assert took(each.blocks[0].norm, LARGE) == 0  # the kernel
        assert took(each.blocks[0].norm, SMALL) == pytest.approx(1e-3)  # its own forward
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.allclose(compiled(LARGE), model(LARGE))


@pytest.mark.parametrize(
    ("host", "device", "chosen"),
    [
        (7e-3, 2e-3, True),  # 10.5 ms on the slower host
        (8e-3, 1e-3, False),  # as fast here; 12 ms on the slower host
    ],
)
def test_a_kernel_that_only_a_fast_host_makes_faster_is_out(host: float, device: float, chosen: bool) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = OnDevice()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x)

    def kernel(self: Any, x: torch.Tensor) -> torch.Tensor:
        work(host, device)
        return normed(x, self.weight)

    mapping = {"OnDevice": {"cpu": layer(kernel)}}
    report = autotune(Whole().eval(), (LARGE,), mapping=mapping, by_class={"OnDevice": "OnDevice"})
    reason = None if chosen else "the whole call is not faster with it"
    assert rows(report) == [("fp32[16, 16]", chosen, reason)]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_WritesGradient, "the kernel's backward writes into the gradient that it is given"),
        (_NoGradient, "its gradient differs by"),
    ],
)
def test_a_kernel_whose_backward_is_wrong_is_out_in_training(function: Any, reason: str) -> None:
    kernel = layer(lambda self, x: function.apply(x, self.weight))
    model = Model().train()

    def step() -> None:
        model(LARGE).pow(2).sum().backward()

    wanted = copy.deepcopy(model)
    wanted(LARGE).pow(2).sum().backward()
    _, report = tuned(kernel, step, model=model)
    assert all(row.reason is not None and row.reason.startswith(reason) for row in report)
    step()
    for one, other in zip(model.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("function", [_WritesGradient, _NoGradient])
def test_a_kernel_whose_backward_is_wrong_serves_inference_and_computes_no_gradient(function: Any) -> None:
    kernel = layer(lambda self, x: function.apply(x, self.weight))
    model, report = tuned(kernel)
    assert all(row.chosen for row in report)
    assert all((row.reason or "").startswith("its own forward where a gradient is needed: ") for row in report)
    assert "chosen; its own forward where a gradient is needed: " in str(report)
    for each in (model, kernelized_again(kernel)[0]):
        with torch.no_grad():
            assert took(each, LARGE) == 0  # the kernel
        for training in (False, True):
            wanted = Model().train(training)
            for one in (each.train(training), wanted):
                one.zero_grad()
                one(LARGE).pow(2).sum().backward()
            for one, other in zip(each.parameters(), wanted.parameters(), strict=True):
                assert torch.equal(one.grad, other.grad)


def test_a_training_step_with_an_optimizer_leaves_model_optimizer_and_gradients_as_they_were() -> None:
    model = Model().train()
    optimizer = torch.optim.Adam(model.parameters())
    model.blocks[0].linear.bias.grad = kept = torch.ones(16)
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.dropout(model(LARGE)).sum().backward()
        optimizer.step()

    _, report = tuned(layer(fast), step, model=model)
    assert all(row.chosen for row in report)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert optimizer.state_dict()["state"] == {}
    assert model.blocks[0].linear.bias.grad is kept
    assert torch.equal(torch.get_rng_state(), random)


def test_of_two_candidates_the_faster_one_is_taken_and_without_records_the_first() -> None:
    first, second = layer(slow), layer(fast)
    model, report = tuned([first, second])
    assert [row.chosen for row in report] == [False, False, True, True]
    assert model.blocks[0].norm.forward.__func__ is fast
    again, _ = kernelized_again([first, second])
    assert again.blocks[0].norm.forward.__func__ is fast
    untuned, found = kernelized_again([first, second], autotuned=False)
    assert untuned.blocks[0].norm.forward.__func__ is slow
    assert not found.measured


def test_what_was_measured_holds_for_that_kernel_class_type_and_mode_only(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = layer(slow)
    tuned(kernel)

    def measured(report: Any) -> bool:
        return all((row.reason or "").startswith("measured") for row in report)

    assert measured(kernelized_again(kernel)[1])
    assert kernelized_again(layer(fast))[1].kernelized  # another kernel
    assert kernelized_again(kernel, mode=Mode.TRAINING)[1].kernelized
    half = Model().eval().half()
    assert kernelize(half, {"Norm": {"cpu": kernel}}, by_class=BY_CLASS, report=True).kernelized
    monkeypatch.setenv("KERNELS_AUTOTUNE", "off")
    assert kernelized_again(kernel)[1].kernelized
    monkeypatch.setenv("KERNELS_AUTOTUNE", "sometimes")
    with pytest.raises(RequestError, match="KERNELS_AUTOTUNE: expected 'on' or 'off', got 'sometimes'"):
        kernelized_again(kernel)


def test_without_records_the_report_says_that_nothing_was_measured() -> None:
    _, report = kernelized_again(layer(fast))
    assert len(report.kernelized) == 2
    assert not report.measured


def test_a_saved_file_decides_with_another_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = layer(slow)
    _, report = tuned(kernel)
    saved = tmp_path / "kernels.autotune.json"
    report.save(saved)
    assert json.loads(saved.read_text())["autotune"] == 1
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "other"))
    assert kernelized_again(kernel)[1].kernelized
    assert not kernelized_again(kernel, autotuned=saved)[1].kernelized
    assert not kernelized_again(kernel, autotuned=str(saved))[1].kernelized
    saved.write_text("{")
    with pytest.raises(RequestError, match="is not a file that a report of autotune saved"):
        kernelized_again(kernel, autotuned=saved)
    with pytest.raises(RequestError, match="cannot be read"):
        kernelized_again(kernel, autotuned=tmp_path / "absent.json")
    with pytest.raises(TypeError, match="`autotuned`: expected True, False, or the path"):
        kernelized_again(kernel, autotuned=3)


def test_an_error_or_an_interrupt_leaves_the_model_as_it_was() -> None:
    kernel = layer(fast)
    model = kernelize(Model().eval(), {"Norm": {"cpu": kernel}}, by_class=BY_CLASS)
    before = [dict(module.__dict__) for module in model.modules()]

    def interrupted() -> None:
        model(LARGE)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(kernel, interrupted, model=model)
    assert [dict(module.__dict__) for module in model.modules()] == before
    with pytest.raises(RequestError, match="`autotune` needs a call to measure"):
        autotune(model)
    with pytest.raises(TypeError, match="`calls`: expected a tuple of arguments"):
        autotune(model, LARGE)
    with pytest.raises(TypeError, match="`tolerance`: expected a positive number"):
        autotune(model, (LARGE,), tolerance=0)


def test_a_layer_that_no_call_reaches_keeps_its_own_forward() -> None:
    model = nn.Sequential(Norm(), nn.ModuleList([Norm(8)])[0:0]).eval()
    model.other = Norm(8)
    model.forward = lambda x: model[0](x)
    _, report = tuned(layer(fast), (LARGE,), model=model)
    assert [(row.module, row.chosen, row.reason) for row in report] == [
        ("0", True, None),
        ("other", False, "no call reaches it"),
    ]
    assert "forward" not in model.other.__dict__


def test_the_report_prints_as_a_table_of_text_and_of_html() -> None:
    row = TunedRow(module="a", layer="<b>", inputs="fp32[1]", kernel="org/a", own_seconds=2e-3, kernel_seconds=1e-3)
    report = AutotuneReport((row,), ())
    assert "<b>" not in report._repr_html_()
    assert ReadHtml(report._repr_html_()).cells[-8:-1] == ["a", "<b>", "fp32[1]", "org/a", "2 ms", "1 ms", "2.00"]
    assert str(AutotuneReport((), ())) == "No kernel is mapped to a layer of this model: nothing was measured."


_RANK = """
import sys, torch
sys.path[:0] = [{folder!r}]
import torch.distributed as distributed
rank = int(sys.argv[1])
distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
import test_autotune as case
case.timing.clock = case.Clock.read
model = case.Model().eval()
def forward(self, x):
    case.work(4e-3 if rank else 0)  # slow on the second rank alone
    return case.normed(x, self.weight)
_, report = case.tuned(case.layer(forward), model=model)
print([row.chosen for row in report], flush=True)
distributed.barrier()
"""


def test_ranks_of_a_job_agree(tmp_path: Path) -> None:
    code = _RANK.format(folder=str(Path(__file__).parent))
    environment = {"PYTHONPATH": ":".join(sys.path), "KERNELS_CACHE": str(tmp_path / "c"), "PATH": "/usr/bin:/bin"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=300)[0].strip() for rank in ranks]
    assert printed == ["[True, True]", "[True, True]"]


def test_a_model_that_will_be_compiled_is_compiled_for_the_whole_calls_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    model, x, compiled = Model().eval(), torch.rand(4, 16), set()

    def call() -> Any:
        compiled.add(model._compiled_call_impl is not None)
        return model(x)

    mapping = {"Norm": {"cpu": layer(fast, can_torch_compile=True)}}
    mode = Mode.INFERENCE | Mode.TORCH_COMPILE
    autotune(model, call, mapping=mapping, by_class={"Norm": "Norm"}, mode=mode)
    assert compiled == {True}
    assert model._compiled_call_impl is None
    assert "_compiled_call_impl" not in model.__dict__
