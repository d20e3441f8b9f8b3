"""The marked model classes of one module of transformers, each in a forked process; prints a line of JSON for each.

python compat/one_model.py llama.modeling_llama SECONDS FOLDER
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")
os.environ["TRANSFORMERS_VERBOSITY"] = "critical"

import torch  # noqa: E402
from tiny_models import inputs_for, tiny_config  # noqa: E402
from torch import nn  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

import kernels  # noqa: E402

#: What the kernels compute that are written here; the others call the forward that they replace, and count.
_COMPUTED = {
    "RMSNorm": """
        wide = {0}.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to({0}.dtype)""",
    "RMSNormZeroCentered": """
        wide = {0}.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return ((1.0 + self.weight.float()) * wide).to({0}.dtype)""",
    "rotary_pos_emb": """
        half = {0}.shape[-1] // 2  # the angles may be there once or twice
        cos, sin = {2}[..., :half].unsqueeze({4}), {3}[..., :half].unsqueeze({4})
        return tuple(
            torch.cat((x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin), dim=-1)
            for x in ({0}, {1})
        )""",
    "SiLU": """
        return {0} * torch.sigmoid({0})""",
    "GeLU": """
        return {0} * 0.5 * (1.0 + torch.erf({0} / 2.0**0.5))""",
    "GeluTanh": """
        return F.gelu({0}, approximate="tanh")""",
    "NewGELU": """
        return F.gelu({0}, approximate="tanh")""",
    "FastGELU": """
        return 0.5 * {0} * (1.0 + torch.tanh({0} * 0.7978845608 * (1.0 + 0.044715 * {0} * {0})))""",
    "QuickGELU": """
        return {0} * torch.sigmoid(1.702 * {0})""",
}

_HEADER = '''"""Stand-ins: they compute the same as what they replace, and count their calls."""

import torch
import torch.nn.functional as F
from torch import nn

calls = {}
'''

_CLASS = """

class {name}(nn.Module):
    can_torch_compile = True

    def forward({parameters}):
        calls["{name}"] = calls.get("{name}", 0) + 1{body}
"""


def marked(model: nn.Module) -> dict[str, list[type]]:
    """The names of marked layers, with the classes that carry them: layers and functions."""
    found: dict[str, list[type]] = {}
    for module in model.modules():
        functions = module.__dict__.get("_kernel_funcs") or {}
        for each in [module, *functions.values()]:
            name = getattr(each, "kernel_layer_name", None)
            if name is not None and type(each) not in found.setdefault(name, []):
                found[name].append(type(each))
    return found


def write_kernel(folder: Path, layers: dict[str, list[type]]) -> None:
    """Write a kernel with a stand-in for each of the layers."""
    build = folder / "build" / "torch-cpu"
    build.mkdir(parents=True, exist_ok=True)
    metadata = {
        "id": "_stand_ins_cpu_0a1b2c3",
        "name": "stand-ins",
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cpu"},
    }
    code = _HEADER + "".join(_stand_in(name, classes[0]) for name, classes in sorted(layers.items()))
    (build / "metadata.json").write_text(json.dumps(metadata))
    (build / "__init__.py").write_text("from . import layers\n")
    (build / "layers.py").write_text(code)


def _stand_in(name: str, cls: type) -> str:
    parameters = list(inspect.signature(cls.forward).parameters.values())
    names = [parameter.name for parameter in parameters if parameter.name not in ("self", "_self")]
    written = [parameters[0].name]
    passed = []
    starred = False
    for each in parameters[1:]:
        default = "" if each.default is each.empty else f"={_default(each.default)}"
        if each.kind is each.VAR_POSITIONAL:
            written.append(f"*{each.name}")
            passed.append(f"*{each.name}")
            starred = True
        elif each.kind is each.VAR_KEYWORD:
            written.append(f"**{each.name}")
            passed.append(f"**{each.name}")
        elif each.kind is each.KEYWORD_ONLY:
            if not starred:
                written.append("*")
                starred = True
            written.append(f"{each.name}{default}")
            passed.append(f"{each.name}={each.name}")
        else:
            written.append(f"{each.name}{default}")
            passed.append(each.name if not starred else f"{each.name}={each.name}")
    body = _COMPUTED.get(name)
    if body is not None:
        body = body.format(*names, *["1"] * 5)
    else:
        body = f"\n        return type(self).forward(self, {', '.join(passed)})"
    return _CLASS.format(name=name, parameters=", ".join(written), body=body)


def _default(value: Any) -> str:
    return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else "None"


# ---------------------------------------------------------------------------------------------------------------------


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The floating tensors of an output, in order."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_of(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_of(each)
    elif hasattr(value, "__dict__") and not isinstance(value, nn.Module):
        yield from tensors_of(vars(value))


def run(model: nn.Module, inputs: dict[str, Any]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    with torch.no_grad():
        given = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
        return [each.detach().clone() for each in tensors_of(model(**given))]


def difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """The largest difference, relative to the largest value of each tensor."""
    if [each.shape for each in one] != [each.shape for each in other]:
        return float("inf")
    largest = 0.0
    for left, right in zip(one, other, strict=True):
        if left.numel() == 0:
            continue
        same = torch.nan_to_num(left.double()), torch.nan_to_num(right.double())
        if not torch.equal(left.isnan(), right.isnan()):
            return float("inf")
        largest = max(largest, float((same[0] - same[1]).abs().max() / same[0].abs().max().clamp(min=1.0)))
    return largest


def try_class(cls: type, folder: Path) -> dict[str, Any]:
    """Make, run, kernelize, compare, unkernelize and compare one class."""
    first: dict[str, Any] = {}
    for shapes in (True, False):
        result = _try_class(cls, folder, shapes)
        if "failed" not in result or result["failed"] == "no marked layer":
            return result
        if first:
            first["wider"] = result["failed"]  # with the widths of the published model
        first = first or result
    return first


def _make(cls: type, shapes: bool) -> nn.Module:
    sections = "mrope_section" in inspect.getsource(sys.modules[cls.__module__])
    if not shapes:
        with torch.device("meta"):
            size = sum(each.numel() for each in cls(_tiny(cls, shapes, sections)).parameters())
        if size > 4.5e8:
            raise MemoryError(f"{size} parameters")
    return cls(_tiny(cls, shapes, sections)).eval()


def _tiny(cls: type, shapes: bool, sections: bool) -> Any:
    return tiny_config(cls.config_class, shapes=shapes, sections=sections)


def _try_class(cls: type, folder: Path, shapes: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    try:
        model = _make(cls, shapes)
    except Exception as error:  # noqa: BLE001 - whatever a model raises that cannot be made
        return {"failed": f"cannot be made tiny: {_say(error)}"}
    layers = marked(model)
    if not layers:
        return {"failed": "no marked layer"}
    try:
        torch.manual_seed(2)
        inputs = inputs_for(model)
        before = run(model, inputs)
        noise = difference(before, run(model, inputs))
    except Exception as error:  # noqa: BLE001
        return {"marks": sorted(layers), "failed": f"does not run tiny: {_say(error)}"}
    write_kernel(folder / "hub" / "stand-ins" / "all" / "v1", layers)
    os.environ["KERNELS_HUB"] = str(folder / "hub")
    repository = {name: kernels.LayerRepository("stand-ins/all", layer_name=name, version=1) for name in layers}
    mapping = {name: {"cpu": each} for name, each in repository.items()}
    forwards = {
        name: module.forward.__func__ for name, module in model.named_modules() if hasattr(module.forward, "__func__")
    }
    result: dict[str, Any] = {"marks": sorted(layers)}
    from transformers.integrations.hub_kernels import kernelize

    with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
        model.kernel_config = None
        kernelize(model, mode=kernels.Mode.INFERENCE)
        report = kernels.kernelize_report(model)
    result["kernelized"] = dict(sorted(Counter(row.layer for row in report.kernelized).items()))
    skipped = Counter(f"{row.layer}: {row.reason}" for row in report.rows if row not in report.kernelized)
    if skipped:
        result["skipped"] = {str(key)[:300]: count for key, count in skipped.items()}
    after = run(model, inputs)
    [loaded] = [each for each in kernels.get_loaded_kernels() if each.metadata.name == "stand-ins"]
    result["calls"] = dict(sorted(loaded.module.layers.calls.items()))
    result["difference"] = float(f"{difference(before, after):.1e}")
    kernels.unkernelize(model)
    result["after"] = float(f"{difference(before, run(model, inputs)):.1e}")
    if noise:
        result["noise"] = float(f"{noise:.1e}")
    now = {
        name: module.forward.__func__ for name, module in model.named_modules() if hasattr(module.forward, "__func__")
    }
    good = result["difference"] <= max(2e-5, 2 * noise) and result["after"] <= noise and now == forwards
    result["outcome"] = ("same" if not skipped else "same, some skipped") if good else "DIFFERENT"
    return result


def _say(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error).strip() else ''}{place}"


def classes_in(name: str) -> list[type]:
    """The model classes of a module that are no base classes."""
    module = importlib.import_module(f"transformers.models.{name}")
    return [
        each
        for each in vars(module).values()
        if inspect.isclass(each)
        and issubclass(each, PreTrainedModel)
        and each.__module__ == module.__name__
        and not each.__name__.endswith("PreTrainedModel")
        and getattr(each, "config_class", None) is not None
    ]


def main() -> None:
    limit, folder, names = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    for name in names:
        try:
            results = {cls.__name__: _apart(cls, folder / name / cls.__name__, limit) for cls in classes_in(name)}
        except Exception as error:  # noqa: BLE001 - whatever a module raises that cannot be imported
            results = {"": {"failed": f"cannot be imported: {_say(error)}"}}
        print(json.dumps([name, results]), flush=True)


def _apart(cls: type, folder: Path, limit: int) -> dict[str, Any]:
    """The result of one class, from a forked process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return _wait(child, reader, limit)
    os.close(reader)
    try:
        result = try_class(cls, folder)
    except BaseException as error:  # noqa: BLE001 - the parent reports it
        result = {"failed": f"FAILED: {_say(error)}", "trace": traceback.format_exc()[-3000:]}
    with os.fdopen(writer, "w") as out:
        out.write(json.dumps(result))
    os._exit(0)


def _wait(child: int, reader: int, limit: int) -> dict[str, Any]:
    import select

    text, end = b"", time.monotonic() + limit
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([reader], [], [], left)
        if not ready:
            break
        part = os.read(reader, 65536)
        if not part:
            break
        text += part
    else:
        left = 0
    if not text:
        os.kill(child, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if not text:
        return {"failed": "takes too long" if left <= 0 or os.WTERMSIG(status) == 9 else f"ended with {status}"}
    return json.loads(text)


if __name__ == "__main__":
    main()
