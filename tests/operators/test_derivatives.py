"""Autograd keeps working: a function that would lose a gradient does not run, one with a backward is derived by it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from kernels.errors import RequestError
from kernels.operators import enable_vendor_ops, use_vendor_ops

torch = pytest.importorskip("torch")

Vendor = Callable[..., str]

LINEAR = """
    import torch
    __all__ = ["linear"]
    called = []

    class linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, input, weight, bias=None):
            called.append("forward")
            ctx.save_for_backward(input, weight)
            ctx.biased = bias is not None
            result = input @ weight.t()
            return result if bias is None else result + bias

        @staticmethod
        def backward(ctx, grad):
            called.append("backward")
            input, weight = ctx.saved_tensors
            rows = grad.reshape(-1, grad.shape[-1])
            by_weight = rows.t() @ input.reshape(-1, input.shape[-1])
            return grad @ weight, by_weight, rows.sum(0) if ctx.biased else None
"""


def called() -> list[str]:
    from kernels.backends import get_backend
    from kernels.backends.plugins.vendor_folder import vendor_module

    module = vendor_module(get_backend("acme"), "ops")
    assert module is not None
    found: list[str] = list(module.called)
    module.called.clear()
    return found


def linear(*args: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(*args)


def doubles(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]


@pytest.mark.parametrize("sizes", [[(2, 3), (4, 3), (4,)], [(2, 3), (4, 3)], [(5, 2, 3), (4, 3), (4,)]])
def test_a_decomposed_operator_with_a_backward_is_derived_by_it(vendor: Vendor, sizes: list[tuple[int, ...]]) -> None:
    inputs = doubles(*sizes)
    wanted = linear(*inputs)
    wanted_grads = torch.autograd.grad(wanted.sum(), inputs)
    with use_vendor_ops(vendor(LINEAR)):
        found = linear(*inputs)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), inputs), wanted_grads)
        assert called() == ["forward", "backward"]
        assert torch.autograd.gradcheck(linear, inputs)
        assert torch.autograd.gradgradcheck(linear, inputs)
        called()
    torch.testing.assert_close(torch.autograd.grad(linear(*inputs).sum(), inputs), wanted_grads)
    assert called() == []


@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_it_runs_where_nothing_is_derived_as_well(vendor: Vendor, context: Callable[[], object]) -> None:
    torch.manual_seed(0)  # in bfloat16, some values are further from each other than the comparison allows
    layer = torch.nn.Linear(3, 4)
    x = torch.randn(2, 3)
    with context():  # type: ignore[attr-defined]
        wanted = layer(x)
        with use_vendor_ops(vendor(LINEAR)):
            found = layer(x)
            assert called() == ["forward"]
    torch.testing.assert_close(found, wanted)


def test_a_model_trains_with_it(vendor: Vendor) -> None:
    def losses() -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.SiLU(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, found = torch.randn(16, 4), []
        for _ in range(5):
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    wanted = losses()
    with use_vendor_ops(vendor(LINEAR)):
        assert losses() == pytest.approx(wanted)
        assert called().count("backward") == 10


def test_a_class_that_calls_the_operator_itself_gets_torchs(vendor: Vendor) -> None:
    inner = LINEAR.replace("input @ weight.t()", "torch.nn.functional.linear(input, weight)")
    inputs = doubles((2, 3), (4, 3), (4,))
    with use_vendor_ops(vendor(inner)):
        assert torch.autograd.gradcheck(linear, inputs)
        with torch.inference_mode():
            linear(*inputs)


def test_a_class_with_setup_context_serves(vendor: Vendor) -> None:
    with use_vendor_ops(
        vendor("""
        import torch
        __all__ = ["linear"]

        class linear(torch.autograd.Function):
            @staticmethod
            def forward(input, weight, bias):
                return input @ weight.t()

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_backward(*inputs[:2])

            @staticmethod
            def backward(ctx, grad):
                input, weight = ctx.saved_tensors
                return grad @ weight, grad.t() @ input, None
    """)
    ):
        assert torch.autograd.gradcheck(linear, doubles((2, 3), (4, 3)))


def test_of_two_classes_the_later_one_runs_and_the_earlier_one_returns(vendor: Vendor) -> None:
    vendor(LINEAR.replace("called", "others"), "below")
    vendor(LINEAR)
    inputs = doubles((2, 3), (4, 3), (4,))
    wanted = torch.autograd.grad(linear(*inputs).sum(), inputs)
    with use_vendor_ops("below"):
        with use_vendor_ops("acme"):
            torch.testing.assert_close(torch.autograd.grad(linear(*inputs).sum(), inputs), wanted)
            assert called() == ["forward", "backward"]
        torch.testing.assert_close(torch.autograd.grad(linear(*inputs).sum(), inputs), wanted)
        assert called() == []
        assert linear(*inputs).grad_fn.name() == "linearBackward"
    assert linear(*inputs).grad_fn.name() == "AddmmBackward0"


def test_what_was_compiled_while_a_class_stood_in_runs_without_it(vendor: Vendor) -> None:
    inputs = doubles((2, 3), (4, 3), (4,))
    torch.compiler.reset()
    compiled = torch.compile(linear, backend="aot_eager", fullgraph=True)
    with use_vendor_ops(vendor(LINEAR)):
        compiled(*inputs).sum().backward()
    torch.testing.assert_close(compiled(*inputs), linear(*inputs))
    torch.compiler.reset()
    torch.testing.assert_close(compiled(*inputs), linear(*inputs))


def test_transforms_see_what_the_operator_consists_of(vendor: Vendor) -> None:
    x, weight = (each.detach() for each in doubles((2, 3), (4, 3)))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return linear(x, weight).square().sum()

    wanted = torch.func.grad(loss)(x), torch.func.jacrev(loss)(x), torch.func.vmap(loss)(x)
    wanted_jvp = torch.func.jvp(loss, (x,), (x,))
    with use_vendor_ops(vendor(LINEAR)):
        torch.testing.assert_close(
            (torch.func.grad(loss)(x), torch.func.jacrev(loss)(x), torch.func.vmap(loss)(x)), wanted
        )
        torch.testing.assert_close(torch.func.jvp(loss, (x,), (x,)), wanted_jvp)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, x)
            assert torch.autograd.forward_ad.unpack_dual(linear(dual, weight)).tangent is not None


@pytest.mark.parametrize("ops", [LINEAR, "silu"], ids=["class", "function"])
def test_torch_compile_gives_the_same_results_and_gradients(vendor: Vendor, ops: str) -> None:
    if ops == "silu":
        ops = """
            import torch
            __all__ = ["silu"]
            called = []
            def silu(self):
                called.append("forward")
                return self * torch.sigmoid(self)
        """
    x, weight, bias = doubles((2, 3), (4, 3), (4,))

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(linear(x, weight, bias))

    wanted = model(x)
    wanted_grad = torch.autograd.grad(wanted.sum(), [x, weight, bias])
    with use_vendor_ops(vendor(ops)):
        torch.compiler.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        found = compiled(x)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), [x, weight, bias]), wanted_grad)
    torch.compiler.reset()


# What cannot be derived


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        (
            "class linear(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, a, b, c): ...",
            "`linear` of .* is a torch.autograd.Function without `backward`",
        ),
        (
            "class linear(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, a): ...\n"
            "    @staticmethod\n    def backward(ctx, grad): ...",
            r"`forward` of `linear` .*: too many positional .*\n  operator: aten::linear.*\n  function: \(ctx, a\)",
        ),
        (
            "class linear(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, a, b, c): ...\n"
            "    @staticmethod\n    def backward(ctx): ...",
            "`backward` of `linear` .*: too many positional arguments",
        ),
        (
            "class silu(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, a): ...\n"
            "    @staticmethod\n    def backward(ctx, grad): ...",
            "`silu` .* is a torch.autograd.Function, but Torch has a derivative of aten::silu",
        ),
        ("class reshape(torch.autograd.Function): ...", "aten::reshape, which returns views of its arguments"),
        ("class einsum(torch.autograd.Function): ...", "aten::einsum takes or returns lists"),
    ],
)
def test_a_class_that_cannot_derive_an_operator_is_not_used(vendor: Vendor, ops: str, message: str) -> None:
    name = ops.split(" ", 1)[1].split("(")[0]
    text = f"import torch\n__all__ = ['mm', {name!r}]\ndef mm(self, mat2): ...\n{ops}"
    with use_vendor_ops(vendor(text)) as enabled:
        assert enabled.operators == ("aten::mm",)
        assert re.search(message, enabled.unused[0].reason)
    with pytest.raises(RequestError, match=message):
        enable_vendor_ops("acme", include=[name])
    inputs = doubles((2, 3), (4, 3))
    assert torch.autograd.gradcheck(linear, inputs)


def test_a_plain_function_for_a_decomposed_operator_runs_where_no_gradient_is_needed(vendor: Vendor) -> None:
    inputs = doubles((2, 3), (4, 3))
    wanted = torch.autograd.grad(linear(*inputs).sum(), inputs)
    with use_vendor_ops(vendor("__all__ = ['linear']\ndef linear(input, weight, bias=None): return weight * 0 + 7")):
        torch.testing.assert_close(torch.autograd.grad(linear(*inputs).sum(), inputs), wanted)
        assert torch.autograd.gradcheck(linear, inputs)
        with torch.no_grad():
            assert linear(*inputs)[0, 0] == 7
        with torch.inference_mode():
            assert linear(*inputs)[0, 0] == 7
        assert linear(*(each.detach() for each in inputs))[0, 0] == 7
    with torch.no_grad():
        assert linear(*inputs)[0, 0] != 7
