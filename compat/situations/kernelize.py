"""What `kernelize` and the marks do."""

from __future__ import annotations

import os
from typing import Any

from get_kernel import get
from setting import Setting, situation


def marked_model() -> Any:
    import torch

    from kernels import use_kernel_forward_from_hub

    @use_kernel_forward_from_hub("SiluAndMul")
    class SiluAndMul(torch.nn.Module):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            d = input.shape[-1] // 2
            return torch.nn.functional.silu(input[..., :d]) * input[..., d:]

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = SiluAndMul()
            self.linear = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(self.linear(x))

    return Model()


def _kernelize(repo_id: str = "acme/relu", *, layer: str = "SiluAndMul", repository: Any = None, **options: Any) -> Any:
    """Whether the model's layer runs a kernel."""
    from kernels import LayerRepository, Mode, kernelize, use_kernel_mapping

    model = marked_model()
    if repository is None:
        repository = LayerRepository(repo_id, layer_name=layer, version=1)
    with use_kernel_mapping({"SiluAndMul": {"cpu": repository}}, inherit_mapping=False):
        same = kernelize(model, **({"mode": Mode.INFERENCE, "device": "cpu"} | options)) is model
    return [same, model.act.forward.__func__ is not type(model.act).forward]


@situation("kernelize: a mapped layer")
def _(setting: Setting) -> object:
    return _kernelize()


@situation("kernelize: a Torch device")
def _(setting: Setting) -> object:
    import torch

    return _kernelize(device=torch.device("cpu"))


@situation("kernelize: no device")
def _(setting: Setting) -> object:
    return _kernelize(device=None)


@situation("kernelize: a device of no known type")
def _(setting: Setting) -> object:
    return _kernelize(device="abacus")


@situation("kernelize: no device, and a model without parameters")
def _(setting: Setting) -> object:
    from kernels import Mode, kernelize

    return kernelize(marked_model().act, mode=Mode.INFERENCE) is None


@situation("kernelize: no mode")
def _(setting: Setting) -> object:
    from kernels import kernelize

    return kernelize(marked_model())


@situation("kernelize: Mode.FALLBACK")
def _(setting: Setting) -> object:
    from kernels import Mode

    return _kernelize(mode=Mode.FALLBACK)


@situation("kernelize: Mode.TORCH_COMPILE alone")
def _(setting: Setting) -> object:
    from kernels import Mode

    return _kernelize(mode=Mode.TORCH_COMPILE)


@situation("kernelize: a layer that nothing is mapped to")
def _(setting: Setting) -> object:
    from kernels import Mode, kernelize, use_kernel_mapping

    model = marked_model()
    with use_kernel_mapping({}, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    return model.act.forward.__func__ is type(model.act).forward


@situation("kernelize: a layer that nothing is mapped to, use_fallback=False")
def _(setting: Setting) -> object:
    from kernels import Mode, kernelize, use_kernel_mapping

    with use_kernel_mapping({}, inherit_mapping=False):
        return kernelize(marked_model(), mode=Mode.INFERENCE, device="cpu", use_fallback=False)


@situation("kernelize: a device that the mapping does not have, use_fallback=False")
def _(setting: Setting) -> object:
    from kernels import LayerRepository, Mode, kernelize, use_kernel_mapping

    repository = LayerRepository("acme/relu", layer_name="SiluAndMul", version=1)
    with use_kernel_mapping({"SiluAndMul": {"cuda": repository}}, inherit_mapping=False):
        return kernelize(marked_model(), mode=Mode.INFERENCE, device="cpu", use_fallback=False)


@situation("kernelize: a mode that the mapping does not have, use_fallback=False")
def _(setting: Setting) -> object:
    from kernels import LayerRepository, Mode, kernelize, use_kernel_mapping

    repository = LayerRepository("acme/relu", layer_name="SiluAndMul", version=1)
    mapping = {"SiluAndMul": {"cpu": {Mode.INFERENCE: repository}}}
    with use_kernel_mapping(mapping, inherit_mapping=False):
        return kernelize(marked_model(), mode=Mode.TRAINING, device="cpu", use_fallback=False)


@situation("kernelize: no such layer in the kernel")
def _(setting: Setting) -> object:
    return _kernelize(layer="Missing")


@situation("kernelize: a kernel without layers")
def _(setting: Setting) -> object:
    return _kernelize("acme/no-layers")


@situation("kernelize: a kernel's layer with a constructor")
def _(setting: Setting) -> object:
    return _kernelize("acme/bad-layers", layer="Constructed")


@situation("kernelize: a kernel's layer with members of its own")
def _(setting: Setting) -> object:
    return _kernelize("acme/bad-layers", layer="Members")


@situation("kernelize: a kernel's layer whose forward takes something else")
def _(setting: Setting) -> object:
    return _kernelize("acme/bad-layers", layer="Signature")


@situation("kernelize: a kernel's layer that is no module")
def _(setting: Setting) -> object:
    return _kernelize("acme/bad-layers", layer="NoModule")


@situation("kernelize: a kernel's layer without a backward, for training")
def _(setting: Setting) -> object:
    from kernels import Mode

    return _kernelize("acme/bad-layers", layer="ForwardOnly", mode=Mode.TRAINING)


@situation("kernelize: a kernel's layer without a backward, for training, use_fallback=False")
def _(setting: Setting) -> object:
    from kernels import Mode

    return _kernelize("acme/bad-layers", layer="ForwardOnly", mode=Mode.TRAINING, use_fallback=False)


@situation("kernelize: a kernel that is not there")
def _(setting: Setting) -> object:
    return _kernelize("acme/missing")


@situation("kernelize: a kernel without a build for this machine")
def _(setting: Setting) -> object:
    return _kernelize("acme/gpu-only")


@situation("kernelize: a kernel without a build for this machine, CANNOT_LOAD falls back")
def _(setting: Setting) -> object:
    from kernels import KernelizeFallback

    return _kernelize("acme/gpu-only", use_fallback=KernelizeFallback.ALL)


@situation("kernelize: a kernel of an untrusted publisher")
def _(setting: Setting) -> object:
    return _kernelize("stranger/relu")


@situation("kernelize: DISABLE_KERNEL_MAPPING=1")
def _(setting: Setting) -> object:
    os.environ["DISABLE_KERNEL_MAPPING"] = "1"
    return _kernelize()


@situation("kernelize: a repository object of one's own")
def _(setting: Setting) -> object:
    class Own:
        def load(self) -> Any:
            return get().layers.SiluAndMul

    return _kernelize(repository=Own())


@situation("kernelize: a subclass of LayerRepository with its own load")
def _(setting: Setting) -> object:
    import torch

    from kernels import LayerRepository, Mode, kernelize, use_kernel_mapping

    class Zero(torch.nn.Module):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return torch.zeros(1)

    class Mine(LayerRepository):
        def load(self) -> Any:
            return Zero

    model = marked_model()
    mapping = {"SiluAndMul": {"cpu": Mine("acme/relu", layer_name="SiluAndMul", version=1)}}
    with use_kernel_mapping(mapping, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    return model(torch.ones(2)).tolist()


@situation("kernelize: LocalLayerRepository")
def _(setting: Setting) -> object:
    from kernels import LocalLayerRepository

    return _kernelize(repository=LocalLayerRepository(setting.local("acme/relu"), layer_name="SiluAndMul"))


@situation("kernelize: LockedLayerRepository")
def _(setting: Setting) -> object:
    from kernels import LockedLayerRepository

    return _kernelize(repository=LockedLayerRepository("acme/relu", lockfile=setting.lock(), layer_name="SiluAndMul"))


def _kernelize_function(repository: Any) -> object:
    import torch

    from kernels import Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping, use_kernelized_func

    @use_kernel_forward_from_hub("double")
    def double(x: Any) -> Any:
        return 2 * x

    @use_kernelized_func(double)
    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return double(x)

    model = Layer()
    with use_kernel_mapping({"double": {"cpu": repository}}, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    function = model._kernel_funcs["double"]
    return [model(torch.ones(1)).tolist(), function.forward.__func__ is not type(function).forward]


@situation("kernelize: FuncRepository")
def _(setting: Setting) -> object:
    from kernels import FuncRepository

    return _kernelize_function(FuncRepository("acme/relu", func_name="double", version=1))


@situation("kernelize: LocalFuncRepository")
def _(setting: Setting) -> object:
    from kernels import LocalFuncRepository

    return _kernelize_function(LocalFuncRepository(setting.local("acme/relu"), func_name="double"))


@situation("kernelize: LockedFuncRepository")
def _(setting: Setting) -> object:
    from kernels import LockedFuncRepository

    return _kernelize_function(LockedFuncRepository("acme/relu", lockfile=setting.lock(), func_name="double"))


@situation("kernelize: no such function in the kernel")
def _(setting: Setting) -> object:
    from kernels import FuncRepository

    return _kernelize_function(FuncRepository("acme/relu", func_name="missing", version=1))


@situation("use_kernel_func_from_hub: a function becomes a layer")
def _(setting: Setting) -> object:
    from kernels import use_kernel_func_from_hub

    @use_kernel_func_from_hub("double")
    def double(x: Any) -> Any:
        return 2 * x

    return [double(2), type(double).kernel_layer_name]


@situation("use_kernelized_func: several functions")
def _(setting: Setting) -> object:
    import torch

    from kernels import use_kernel_forward_from_hub, use_kernelized_func

    first = use_kernel_forward_from_hub("first")(lambda x: x)
    second = use_kernel_forward_from_hub("second")(lambda x: x)

    @use_kernelized_func(first, second)
    class Layer(torch.nn.Module):
        pass

    return sorted(Layer()._kernel_funcs)


@situation("use_kernelized_func: no functions")
def _(setting: Setting) -> object:
    import torch

    from kernels import use_kernelized_func

    @use_kernelized_func()
    class Layer(torch.nn.Module):
        pass

    return isinstance(Layer(), torch.nn.Module)


@situation("use_kernelized_func: a function that is not marked")
def _(setting: Setting) -> object:
    import torch

    from kernels import use_kernelized_func

    @use_kernelized_func(len)
    class Layer(torch.nn.Module):
        pass

    return sorted(getattr(Layer(), "_kernel_funcs", {}))


@situation("replace_kernel_forward_from_hub: the marks")
def _(setting: Setting) -> object:
    import torch

    from kernels import replace_kernel_forward_from_hub

    class Norm(torch.nn.LayerNorm):
        pass

    returned = replace_kernel_forward_from_hub(Norm, "Norm")
    return [returned, Norm.kernel_layer_name, callable(Norm.kernel_condition)]


@situation("use_kernel_forward_from_hub: a condition")
def _(setting: Setting) -> object:
    from kernels import LayerRepository, Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping

    model = marked_model()
    use_kernel_forward_from_hub("SiluAndMul", condition=lambda module: False)(type(model.act))
    mapping = {"SiluAndMul": {"cpu": LayerRepository("acme/relu", layer_name="SiluAndMul", version=1)}}
    with use_kernel_mapping(mapping, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    return model.act.forward.__func__ is type(model.act).forward
