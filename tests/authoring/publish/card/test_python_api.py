"""What a package offers is read from its sources, through its own imports; none of it is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.authoring.publish.card.operators import operator_schemas, schemas_in
from kernels.authoring.publish.card.python_api import KernelApi, LayerOffer, Offer, read_api


def _api(folder: Path, **files: str) -> KernelApi:
    for name, text in files.items():
        path = folder.joinpath(*name.split("__in__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_api(folder)


def _names(api: KernelApi) -> list[str]:
    return [offer.name for offer in api.functions]


def test_names_come_from_all_in_its_order_and_are_followed_through_imports(tmp_path: Path) -> None:
    api = _api(
        tmp_path,
        __init__='''"""Norms."""
import torch
from . import layers
from ._ops import ops
from .impl.rms import rms as rms_norm, missing
from .impl import *
__all__ = ["rms_norm", "layers", "ops", "softmax", "Norm", "missing", "torch", "impl"]
__all__ += ["extra"]
class Norm:
    """A norm."""
    def __init__(self, eps: float = 1e-6) -> None: ...
if True:
    def extra(*args, flag=False, **options): "Extra."
''',
        impl__in____init__="from .soft import softmax\n__all__ = ['softmax']",
        impl__in__soft="def softmax(x, /, dim: int = -1, *, out=None) -> 'Tensor':\n    'Softmax.'\nraise SystemExit",
        impl__in__rms="from .deep import rms",
        impl__in__deep="async def rms(x): ...",
        layers="",
        _ops="ops = None",
    )
    assert api.doc == "Norms."
    assert api.functions == (
        Offer("rms_norm", "function", "rms_norm(x)"),
        Offer("softmax", "function", "softmax(x, /, dim: int = -1, *, out=None) -> 'Tensor'", "Softmax."),
        Offer("Norm", "class", "Norm(eps: float = 1e-06)", "A norm."),
        Offer("missing", "object"),
        Offer("extra", "function", "extra(*args, flag=False, **options)", "Extra."),
    )


def test_without_all_public_definitions_and_own_imports_are_offered(tmp_path: Path) -> None:
    text = "import os\nfrom torch import nn\nfrom .a import f, _g\nfrom .b import *\ndef h(): ...\ndef _i(): ...\nX = 1"
    api = _api(tmp_path, __init__=text, a="def f(): ...\ndef _g(): ...", b="def j(): ...\ndef _k(): ...")
    assert _names(api) == ["f", "h", "j"]


def test_a_long_signature_has_a_line_for_each_parameter(tmp_path: Path) -> None:
    api = _api(tmp_path, __init__=f"def f({', '.join(f'parameter_{index}: int = 0' for index in range(6))}): ...")
    assert api.functions[0].signature.splitlines()[:2] == ["f(", "    parameter_0: int = 0,"]


def test_layers_are_the_modules_that_layers_offers_with_their_marks(tmp_path: Path) -> None:
    api = _api(
        tmp_path,
        __init__="from . import layers",
        layers__in____init__="from .norm import RMSNorm, helper\nfrom .norm import Fast, Config",
        layers__in__norm='''
import torch
from torch import nn
class _Base(nn.Module):
    has_backward = False
    def forward(self, x: torch.Tensor) -> torch.Tensor: ...
class RMSNorm(_Base):
    """A norm.

    More."""
    can_torch_compile: bool = True
class Fast(torch.nn.Module):
    has_backward = compute()
class Config: ...
def helper(): ...
''',
    )
    forward = "forward(x: torch.Tensor) -> torch.Tensor"
    assert api.layers == (LayerOffer("RMSNorm", forward, "A norm.\n\nMore.", False, True), LayerOffer("Fast"))
    assert api.functions == ()


@pytest.mark.parametrize(
    "text",
    [
        "def f(:",
        "x = " + "(" * 5000,
        "\0",
        "from . import *\nfrom .a import *",
        "from .a import f",
        "from ....a import f",
    ],
)
def test_what_cannot_be_read_offers_nothing_or_a_name(tmp_path: Path, text: str) -> None:
    assert set(_names(_api(tmp_path, __init__=text, a="from . import *\nfrom . import f"))) <= {"f"}


def test_names_that_are_imported_in_circles_and_in_masses_are_looked_up_once(tmp_path: Path) -> None:
    stars = "\n".join(f"from .m{number} import *" for number in range(30))
    modules = {f"m{number}": f"{stars}\ndef f{number}(): ..." for number in range(30)}
    api = _api(tmp_path, __init__=stars, **modules)
    assert sorted(_names(api)) == sorted(f"f{number}" for number in range(30))


def test_old_builds_have_their_package_in_a_folder(tmp_path: Path) -> None:
    assert _names(_api(tmp_path, relu__in____init__="def relu(x): ...")) == ["relu"]
    assert read_api(tmp_path / "absent") == KernelApi()


def test_schemas_are_read_from_all_forms_of_literals() -> None:
    source = r"""
    // ops.def("comment(Tensor x) -> ()");
    TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
      ops.def("two(Tensor! out, Tensor x,"
              "    float eps=1e-6) -> ()");
      ops.def(R"(raw(Tensor x) -> Tensor)", &raw);
      ops . def ( "ns::scoped.out(Tensor x) -> Tensor(a!)" );
      ops.def("inferred", &inferred);  /* ops.def("other(Tensor x) -> ()") */
      ops.def(name + "(Tensor x) -> ()");
      ops.impl("two", torch::kCUDA, &two);
    }"""
    assert schemas_in(source) == {
        "two": "two(Tensor! out, Tensor x, float eps=1e-6) -> ()",
        "raw": "raw(Tensor x) -> Tensor",
        "scoped.out": "scoped.out(Tensor x) -> Tensor(a!)",
    }
    assert schemas_in('m.def("pybind(Tensor x) -> ()")') == {}


@pytest.mark.parametrize("part", ['.def(R"(', "/*", '.def("', "//", '"', '.def("f(', '.def("' + "(" * 500, ". " * 100])
def test_a_source_of_fragments_takes_no_time(part: str) -> None:
    assert schemas_in("TORCH_LIBRARY" + part * (300_000 // len(part))) == {}


def test_a_kernels_operators_are_those_of_its_sources() -> None:
    from example_kernels import SOURCES

    from kernels.authoring.compile.build_toml.reader import read_source

    source = read_source(SOURCES / "silu-and-mul" / "compiled")
    assert sorted(operator_schemas(source)) == [
        "silu_mul(Tensor gate, Tensor up) -> Tensor",
        "silu_mul_backward(Tensor grad, Tensor gate, Tensor up) -> (Tensor, Tensor)",
        "silu_mul_inference(Tensor gate, Tensor up) -> Tensor",
    ]
