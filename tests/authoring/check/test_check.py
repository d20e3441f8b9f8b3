"""What a check finds in a variant: where files lie, what they say, and what they do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernels.authoring.check.checked_variant as checked_variant
from kernels.authoring.check.audit import VariantAudit, audit
from kernels.errors import InvalidRepository, RepositoryNotFound
from kernels.operations.explain import is_path, repository_info
from kernels.support.checks import CheckResult

ID = "_add_one_cpu_1a2b3c4"
Write = Callable[..., Path]


def said(found: VariantAudit, step: str) -> list[tuple[str, str]]:
    return [(each.verdict, each.what) for each in found.findings if each.step == step]


def static(folder: Path) -> VariantAudit:
    [found] = audit(folder, dynamic=False)
    return found


def loaded(folder: Path) -> VariantAudit:
    pytest.importorskip("torch")
    [found] = audit(folder)
    return found


def test_a_good_variant_passes_every_step(write_variant: Write) -> None:
    found = loaded(write_variant())
    assert [(each.step, each.verdict) for each in found.findings] == [
        ("layout", "ok"),
        ("metadata", "ok"),
        ("digest", "ok"),
        ("namespaces", "ok"),
        ("source lines", "skipped"),
        ("layers", "ok"),
        ("native files", "skipped"),
        ("loading", "ok"),
        ("operators", "ok"),
        ("loaded layers", "ok"),
    ]
    assert not found.failed
    assert {each.backend for each in found.findings} == {"cpu"}


@pytest.mark.usefixtures("loading_forks")
def test_the_example_kernels_pass_but_for_what_their_system_gives_them(example_hub: Path) -> None:
    for kernel in sorted((example_hub / "kernels-examples").iterdir()):
        for found in audit(kernel / "v1", dynamic=False):
            failed = [each for each in found.findings if each.verdict == "failed"]
            # The compiler of a newer system than manylinux_2_28 gives an extension symbols of that system.
            assert [each for each in failed if "systems of manylinux_2_28 do not have" not in each.what] == []
        cpu = [each for each in audit(kernel / "v1" / "build" / "torch-cpu") if not each.failed]
        assert said(cpu[0], "operators")[0][0] == "ok"


@pytest.mark.parametrize("part", ["", "build", "build/torch-cpu"])
def test_a_repository_its_builds_and_one_variant_are_found(write_variant: Write, part: str) -> None:
    repository = write_variant().parents[1]
    assert [found.variant for found in audit(repository / part, dynamic=False)] == ["torch-cpu"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no builds"),
        ({"docs/page.md": ""}, "has no builds"),
    ],
)
def test_a_folder_without_builds_is_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(RepositoryNotFound, match=message):
        audit(tmp_path)


def test_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(RepositoryNotFound, match="does not exist"):
        audit(tmp_path / "nowhere")
    with pytest.raises(TypeError, match="`dynamic` is 1"):
        audit(tmp_path, dynamic=1)  # type: ignore[arg-type]


def test_more_folders_than_a_kernel_has_builds_are_refused(
    write_variant: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = write_variant().parents[1]
    (repository / "build" / "torch-cuda").mkdir()
    monkeypatch.setattr(checked_variant, "MAX_VARIANTS", 1)
    with pytest.raises(InvalidRepository, match="more than 1 folders"):
        audit(repository)


@pytest.mark.parametrize(
    ("files", "name", "what"),
    [
        ({}, "torch_cpu", "torch_cpu"),
        ({"__init__.py": None}, "torch-cpu", "__init__.py, the kernel's module, is missing"),
        ({"__pycache__/a.cpython-311.pyc": "x"}, "torch-cpu", "__pycache__/a.cpython-311.pyc: bytecode"),
        ({".env": "SECRET=1"}, "torch-cpu", ".env: a hidden file"),
        ({".git/config": ""}, "torch-cpu", ".git/config: a hidden file"),
        ({"a\nb.txt": ""}, "torch-cpu", "a name that is invalid on some systems"),
        ({"kernel.so": b"\x7fELF"}, "torch-cpu", "native code; a noarch variant"),
    ],
)
def test_files_that_do_not_belong_are_named(write_variant: Write, files: Any, name: str, what: str) -> None:
    found = static(write_variant(files, name=name))
    assert any(each.verdict == "failed" and what in each.what for each in found.findings)


def test_a_module_in_a_folder_of_its_own_is_the_older_layout(write_variant: Write) -> None:
    found = static(write_variant({"__init__.py": None, "add_one/__init__.py": ""}))
    assert said(found, "layout")[0][0] == "missing"
    assert not found.failed


def test_a_missing_metadata_leaves_what_needs_it_out(write_variant: Write) -> None:
    folder = write_variant()
    (folder / "metadata.json").unlink()
    found = loaded(folder)
    assert said(found, "layout") == [("failed", "metadata.json is missing")]
    for step in ("metadata", "digest", "namespaces", "loading"):
        assert said(found, step)[0][0] == "skipped"


def _outside(folder: Path) -> None:
    secret = folder.parents[2] / "secret.txt"
    secret.write_text("secret")
    (folder / "data.txt").symlink_to(secret)


def _folder_link(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "other").symlink_to("inner")


def _metadata_link(folder: Path) -> None:
    (folder / "metadata.json").unlink()
    (folder / "metadata.json").symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("attack", "what"),
    [
        (_outside, "a link to"),
        (_folder_link, "a link to a folder"),
        (_metadata_link, "a link to /dev/zero"),
        (lambda folder: (folder / "gone").symlink_to("nothing"), "a broken link"),
        (lambda folder: os.mkfifo(folder / "pipe.py"), "neither a file nor a folder"),
    ],
)
def test_nothing_is_read_where_a_file_leads_elsewhere(
    write_variant: Write, attack: Callable[[Path], None], what: str
) -> None:
    folder = write_variant()
    attack(folder)
    [found] = audit(folder)
    assert what in said(found, "layout")[0][1]
    assert {each.verdict for each in found.findings if each.step != "layout"} == {"skipped"}


def test_a_variant_that_is_a_link_is_refused(write_variant: Write) -> None:
    folder = write_variant()
    (folder.parent / "torch-cuda").symlink_to(folder)
    found = {each.variant: each for each in audit(folder.parent, dynamic=False)}
    assert "it is a link to" in said(found["torch-cuda"], "layout")[0][1]
    assert not found["torch-cpu"].failed


def test_a_link_that_stays_inside_is_a_file(write_variant: Write) -> None:
    folder = write_variant(digest=False)
    (folder / "more.py").symlink_to("layers.py")
    assert not static(folder).failed


@pytest.mark.parametrize(("limit", "value"), [("MAX_FILES", 2), ("MAX_VARIANT_BYTES", 10)])
def test_too_many_or_too_large_files_are_not_read(
    write_variant: Write, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(checked_variant, limit, value)
    found = static(write_variant())
    assert found.failed
    assert said(found, "digest") == [("skipped", "the files cannot be read safely")]


def test_a_huge_sparse_file_is_not_hashed(write_variant: Write) -> None:
    folder = write_variant()
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(10**13)
    assert "bytes; the limit" in said(static(folder), "layout")[0][1]


def test_only_the_first_faults_are_listed(write_variant: Write) -> None:
    found = static(write_variant({f".hidden{number}": "" for number in range(50)}))
    assert len(said(found, "layout")) == 21
    assert said(found, "layout")[-1] == ("failed", "and 30 more")


@pytest.mark.parametrize(
    ("metadata", "verdict", "what"),
    [
        ({"version": None}, "failed", "`version` is missing"),
        ({"version": -1}, "failed", "`version` is -1"),
        ({"name": "Add One"}, "failed", "`name` is 'Add One'"),
        ({"license": None}, "missing", "`license` is missing"),
        ({"license": "Apache"}, "missing", "`license` is 'Apache', which is no SPDX expression"),
        ({"id": "whatever"}, "missing", "by convention it is _add_one_cpu_"),
        ({"backend": {"type": "cuda", "archs": ["8.0"]}}, "failed", "is a variant for cpu"),
        ({"backend": {"type": "acmecorp"}}, "missing", "which is not registered here"),
        ({"backend": {"type": "cuda"}}, "missing", "`backend.archs` is missing"),
        ({"backend": {"type": "cuda", "archs": ["sm-eighty"]}}, "missing", "has sm-eighty, which cuda does not know"),
        ({"python-depends": ["einops", "requests"]}, "failed", "`python-depends` has requests"),
        ({"provenance": {"kernel": {"commit": "0" * 40, "dirty": True}}}, "missing", "uncommitted changes"),
    ],
)
def test_metadata_is_judged(write_variant: Write, metadata: dict[str, Any], verdict: str, what: str) -> None:
    answers = said(static(write_variant(metadata=metadata)), "metadata")
    assert any(each[0] == verdict and what in each[1] for each in answers), answers


@pytest.mark.parametrize(
    ("source", "depends", "says"),
    [
        ("import einops", [], "layers.py, line 1: imports einops, which `python-depends` does not list; add 'einops'"),
        ("import os, einops.layers as e", [], "layers.py, line 1: imports einops"),
        (
            "from requests import get",
            [],
            "imports requests, which `python-depends` does not list; a cpu kernel may ask",
        ),
        ("import einops", ["einops"], None),
        ("import tvm_ffi", [], "add 'tvm-ffi' in build.toml"),
        ("import triton.language as tl, numpy as np, torch_npu\nfrom . import other", [], None),
        ("try:\n    import einops\nexcept ImportError:\n    pass\nif 0:\n    import requests", [], None),
        ("def f():\n    import einops", [], None),
    ],
)
def test_a_package_that_a_load_imports_and_the_metadata_does_not_list_is_a_hint(
    write_variant: Write, source: str, depends: list[str], says: str | None
) -> None:
    files = {"layers.py": source, "other.py": "", "unused.py": "import requests"}
    found = said(static(write_variant(files, metadata={"python-depends": depends})), "metadata")
    hints = [what for verdict, what in found if verdict == "hint"]
    assert [says in hint for hint in hints] == ([] if says is None else [True])
    assert found[-1][0] == "ok"


@pytest.mark.parametrize("archs", [["8.0", "9.0a", "10.0f", "9.0+PTX", "10.0f+PTX"]])
def test_published_spellings_of_architectures_are_known(write_variant: Write, archs: list[str]) -> None:
    folder = write_variant(
        name="torch-cuda", metadata={"id": "_add_one_cuda_1a2b3c4", "backend": {"type": "cuda", "archs": archs}}
    )
    assert [verdict for verdict, _ in said(static(folder), "metadata")] == ["ok"]


def test_metadata_that_is_too_large_is_not_parsed(write_variant: Write) -> None:
    folder = write_variant()
    (folder / "metadata.json").write_bytes(b" " * (5 * 2**20))
    assert "metadata.json has more than" in said(static(folder), "metadata")[0][1]


def test_a_digest_is_compared_with_the_files(write_variant: Write) -> None:
    folder = write_variant()
    (folder / "layers.py").write_text("import os\n")
    [(verdict, what)] = said(static(folder), "digest")
    assert verdict == "failed"
    assert "changed: 'layers.py'" in what
    assert said(static(write_variant(digest=False)), "digest")[0][0] == "missing"


@pytest.mark.parametrize(
    ("source", "called"),
    [
        ("import torch\ntorch.library.Library('aten', 'IMPL')", "torch.library.Library('aten', …)"),
        (
            "import torch as t\nt.library.define('other::x', '(Tensor x) -> Tensor')",
            "torch.library.define('other::x', …)",
        ),
        ("from torch.library import custom_op as op\n@op('other::x', mutates_args=())\ndef f(x): ...", "custom_op"),
        ("from torch import library\nlibrary.impl('aten::relu', 'CPU')", "torch.library.impl"),
        ("import torch.library as l\nl.register_fake('other::x')", "register_fake"),
        (
            "from torch.library import triton_op\n@triton_op(name='other::x', mutates_args={})\ndef f(x): ...",
            "triton_op",
        ),
        ("import torch\nNS = 'aten'\ntorch.library.Library(NS, 'FRAGMENT')", "Library('aten'"),
        ("import torch\nNS = 'aten'\ntorch.library.impl(f'{NS}::{1 + 1}', 'CPU')", "impl('aten::'"),
        ("import torch\ndef later():\n    torch.library.Library(ns='aten', kind='IMPL')", "Library('aten'"),
    ],
)
def test_a_foreign_namespace_in_the_sources_is_refused_with_its_line(
    write_variant: Write, source: str, called: str
) -> None:
    files = {"more.py": source, "__init__.py": "from . import layers, more\nfrom ._ops import ops\n"}
    [(verdict, what)] = said(static(write_variant(files)), "namespaces")
    assert verdict == "failed"
    assert called in what
    assert what.startswith("more.py, line ")


@pytest.mark.parametrize(
    ("namespace", "verdict"), [("other", "hint"), ("aten", "failed"), ("prims", "failed"), ("torchvision", "failed")]
)
def test_a_foreign_namespace_in_a_file_that_a_load_does_not_import(
    write_variant: Write, namespace: str, verdict: str
) -> None:
    source = f"import torch\n\n\n@torch.library.custom_op('{namespace}::x', mutates_args=())\ndef x(): ...\n"
    lazy = "from ._ops import ops\n\n\ndef late():\n    from .inner import more\n"
    found = static(write_variant({"inner/__init__.py": "", "inner/more.py": source, "__init__.py": lazy}))
    [(said_, what)] = said(found, "namespaces")
    assert said_ == verdict
    assert what.startswith("inner/more.py, line 4: torch.library.custom_op(")
    assert said(found.strict(), "namespaces")[0][0] == "failed"


@pytest.mark.parametrize(
    "imports",
    [
        {"__init__.py": "from .inner import more\n"},
        {"__init__.py": "from .inner.more import x\n"},
        {"__init__.py": "from .inner import *\n", "inner/__init__.py": "from . import more\n"},
        {"__init__.py": "from . import inner\n", "inner/__init__.py": "from .more import x as y\n"},
        {"__init__.py": "if True:\n    try:\n        from .inner import more\n    except ImportError: ...\n"},
        {"__init__.py": "", "layers.py": "from .inner.more import x\n"},
        {"__init__.py": "from .inner.deep import z\n", "inner/__init__.py": "from .more import x\n"},
    ],
)
def test_what_a_load_imports_is_known(write_variant: Write, imports: dict[str, str]) -> None:
    source = "import torch\ntorch.library.custom_op('other::x', mutates_args=())\n"
    files = {"inner/__init__.py": "", "inner/more.py": source, "inner/deep.py": "z = 1\n", "layers.py": None}
    [(verdict, _)] = said(static(write_variant({**files, **imports})), "namespaces")
    assert verdict == "failed"


@pytest.mark.parametrize(
    "source",
    [
        f"import torch\ntorch.library.Library('{ID}', 'FRAGMENT')",
        f"import torch\ntorch.library.custom_op('{ID}::x', mutates_args=())",
        "import torch\ntorch.library.Library('_add_one_cuda_1a2b3c4', 'FRAGMENT')",
        "import torch\nfrom . import _ops\ntorch.library.custom_op(_ops.prefixed('x'), mutates_args=())",
        "import torch\ntorch.library.opcheck('aten::relu')",
        "class library:\n    Library = print\nlibrary.Library('aten', 'IMPL')",
        "import torch\ntorch.library.register_fake(name, f)\n(lambda: 1)()",
    ],
)
def test_the_own_namespace_and_what_registers_nothing_are_allowed(write_variant: Write, source: str) -> None:
    assert said(static(write_variant({"more.py": source})), "namespaces") == [
        ("ok", "4 Python files without foreign registrations")
    ]


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (b"def f(:\n", "line 1"),
        (b"x = 1\0", "null bytes"),
        (b"-" * 200_000 + b"1", "cannot be parsed"),
        (b"#" * (2 * 2**20 + 1), "it has more than"),
    ],
)
def test_sources_that_cannot_be_read_are_a_fault(write_variant: Write, source: bytes, what: str) -> None:
    [(verdict, said_)] = said(static(write_variant({"more.py": source})), "namespaces")
    assert verdict == "failed"
    assert what in said_ or "cannot be parsed" in said_


ROCM = {"id": "_add_one_rocm_1a2b3c4", "backend": {"type": "rocm", "archs": ["gfx942"]}}


def test_forbidden_source_lines_are_shown_with_their_place(write_variant: Write) -> None:
    files = {"more.py": "x = 1  # nvcuda::wmma\ny = 'nvcuda::wmma'\n", "data.bin": b"\0nvcuda::wmma", "bad.py": "'''"}
    folder = write_variant(files, name="torch-rocm", metadata=ROCM)
    found = static(folder)
    assert said(found, "source lines")[0][0] == "hint"  # the line may never run there
    [(verdict, what)] = said(found.strict(), "source lines")
    assert verdict == "failed"
    assert what.startswith("more.py, line 2: \"y = 'nvcuda::wmma'\" has 'nvcuda::wmma'")


def test_a_clean_kernel_has_no_forbidden_lines(write_variant: Write) -> None:
    assert said(static(write_variant(name="torch-rocm", metadata=ROCM)), "source lines")[0][0] == "ok"
    assert said(static(write_variant(name="torch-universal")), "source lines")[0][0] == "skipped"


LAYER = "from torch import nn\n\n\nclass Bad(nn.Module):\n"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (LAYER + "    def __init__(self):\n        super().__init__()\n", "line 5: Bad has a constructor"),
        (LAYER + "    scale: float = 2.0\n", "line 5: Bad has the member 'scale'"),
        (LAYER + "    scale = 2.0\n", "line 5: Bad has the member 'scale'"),
        (LAYER + "    scale = 1\n\n\nclass Worse(Bad):\n    scale = 1\n", "Bad has the member 'scale'"),
        ("__all__ = ['_Bad']\n" + LAYER.replace("Bad", "_Bad") + "    scale = 1\n", "_Bad has the member"),
    ],
)
def test_layers_with_members_of_their_own_are_refused(write_variant: Write, source: str, what: str) -> None:
    answers = said(static(write_variant({"layers.py": source})), "layers")
    assert {verdict for verdict, _ in answers} == {"failed"}
    assert what in answers[0][1]


def test_a_layer_that_is_refused_beside_one_that_is_not_is_a_hint(write_variant: Write) -> None:
    found = static(write_variant({"layers.py": LAYER + "    pass\n\n\nclass Worse(Bad):\n    scale = 1\n"}))
    assert not found.failed
    assert [verdict for verdict, _ in said(found, "layers")] == ["hint", "ok"]
    strict = found.strict()
    assert strict.failed
    assert "Worse has the member 'scale'" in said(strict, "layers")[0][1]


@pytest.mark.parametrize(
    "source",
    [
        LAYER + "    '''Doc.'''\n    has_backward = False\n    weight: object\n    def extra_repr(self): return ''\n",
        LAYER.replace("Bad", "_Own") + "    scale = 1\n",
        "__all__ = []\n" + LAYER + "    scale = 1\n",
        "class Table:\n    scale = 1\n",
        "import enum\nfrom dataclasses import dataclass\n\n\n@dataclass\nclass Output:\n    loss: float = 0.0\n\n\n"
        "class Kind(enum.Enum):\n    A = 1\n",
        "import flax.linen as nn\n\n\nclass Dense(nn.Module):\n    sizes: dict = None\n",
        "class Module:\n    pass\n\n\nclass Own(Module):\n    scale = 1\n",
    ],
)
def test_what_the_rules_allow_passes(write_variant: Write, source: str) -> None:
    assert said(static(write_variant({"layers.py": source})), "layers")[0][0] == "ok"


CONSTRUCTED = LAYER + "    def __init__(self):\n        super().__init__()\n"


@pytest.mark.parametrize(
    ("files", "answers"),
    [
        # As in a package that has layers for several frameworks: `layers` itself exports none of them.
        (
            {
                "layers/__init__.py": "class Mixin:\n    scale = 1\n",
                "layers/torch.py": "import torch\n\n\nclass Own(torch.nn.Module):\n    scale = 1\n",
                "layers/flax.py": "import flax.linen as nn\n\n\nclass Own(nn.Module):\n    scale: int = 1\n",
                "layers/broken.py": "import nothing.of.this.name\n",
            },
            [("ok", "0 layers")],
        ),
        (
            {"layers/__init__.py": "from .torch import Bad\n", "layers/torch.py": CONSTRUCTED},
            [("failed", "layers/torch.py, line 5: Bad has a constructor")],
        ),
        (
            {"layers/__init__.py": "from .torch import *\n", "layers/torch.py": CONSTRUCTED},
            [("failed", "layers/torch.py, line 5: Bad has a constructor")],
        ),
        (
            {"layers/__init__.py": "from .torch import Bad as _Bad\n", "layers/torch.py": CONSTRUCTED},
            [("ok", "0 layers")],
        ),
        (
            {
                "layers.py": "from ._bases import base\n\n\nclass Good(base.Bad):\n    pass\n",
                "_bases/__init__.py": "",
                "_bases/base.py": CONSTRUCTED,
            },
            [("failed", "_bases/base.py, line 5: Bad has a constructor")],
        ),
        (
            {"__init__.py": "from .models import own as layers\n", "models/own.py": CONSTRUCTED, "layers.py": None},
            [("failed", "models/own.py, line 5: Bad has a constructor")],
        ),
        (
            {"layers.py": "try:\n    from .a import Bad\nexcept ImportError:\n    Bad = None\n", "a.py": CONSTRUCTED},
            [("failed", "a.py, line 5: Bad has a constructor")],
        ),
        (
            {"layers.py": CONSTRUCTED.replace("Bad", "_Bad") + "\n\nBad = _Bad\n"},
            [("failed", "_Bad has a constructor")],
        ),
        ({"layers.py": "from .layers import *\nfrom . import layers\nfrom .layers import A\nA = A\n"}, [("ok", "0")]),
        ({"layers.py": "from ...outside import A\n"}, [("ok", "0 layers")]),
        ({"layers.py": "class A(B):\n    x = 1\n\n\nclass B(A):\n    pass\n"}, [("ok", "0 layers")]),
    ],
)
def test_the_rules_hold_for_what_layers_exports(
    write_variant: Write, files: dict[str, str | None], answers: list[tuple[str, str]]
) -> None:
    files = {"__init__.py": "", "layers.py": None, **files}
    found = said(static(write_variant(files)), "layers")
    assert [verdict for verdict, _ in found] == [verdict for verdict, _ in answers], found
    assert all(what in said_ for (_, said_), (_, what) in zip(found, answers, strict=True)), found


def test_imports_of_layers_that_take_too_long_to_follow_are_a_fault(write_variant: Write) -> None:
    files = {f"a{number}.py": "".join(f"from .a{to} import *\n" for to in range(20)) for number in range(20)}
    [(verdict, what)] = said(static(write_variant({**files, "layers.py": "from .a0 import *\n"})), "layers")
    assert verdict == "failed"
    assert "steps to follow" in what


def test_a_kernel_without_layers_has_none_to_check(write_variant: Write) -> None:
    found = static(write_variant({"layers.py": None, "__init__.py": ""}))
    assert said(found, "layers") == [("skipped", "the kernel has no layers")]


@pytest.mark.usefixtures("loading_forks")
def test_operators_registered_elsewhere_are_found_in_a_separate_process(write_variant: Write) -> None:
    init = """
import torch

changed = torch.library.Library("at" + "en", "IMPL")
changed.impl("relu", lambda x: x, "CPU")
stolen = torch.library.Library("sto" + "len", "DEF")
for number in range(30):
    stolen.define(f"x{number}(Tensor x) -> Tensor")
"""
    answers = said(loaded(write_variant({"__init__.py": init})), "operators")
    assert {verdict for verdict, _ in answers} == {"failed"}
    assert answers[0][1].startswith("changes the operator aten::relu outside of its namespace (")
    assert answers[1][1].startswith("registers the operator stolen::x0 outside of its namespace (")
    assert len(answers) == 21
    assert answers[-1] == ("failed", "and 11 more operators")


@pytest.mark.parametrize(
    ("init", "what"),
    [
        ("import os\nos._exit(0)", "ended early"),
        ("import os, sys\nsys.stderr.write('gone\\n')\nsys.stderr.flush()\nos._exit(7)", "exit status 7: 'gone'"),
    ],
)
def test_a_load_that_fails_is_said(write_variant: Write, init: str, what: str) -> None:
    [(verdict, said_)] = said(loaded(write_variant({"__init__.py": init})), "loading")
    assert verdict == "failed"
    assert what in said_


def test_what_a_kernel_prints_and_leaves_running_is_no_answer(write_variant: Write) -> None:
    init = "import os, threading, time\nprint('hello')\nos.system('echo hello')\n"
    init += "threading.Thread(target=time.sleep, args=(600,)).start()\n"
    assert said(loaded(write_variant({"__init__.py": init})), "loading")[0][0] == "ok"


def test_a_load_that_never_ends_is_ended(write_variant: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from kernels.authoring.check.checked_variant import CheckedVariant
    from kernels.authoring.check.loading import load_findings
    from kernels.models.metadata import Metadata

    folder = write_variant({"__init__.py": "import time\ntime.sleep(600)"})
    checked = CheckedVariant.of(folder)
    checked.metadata = Metadata.read_from_file(folder / "metadata.json")
    [finding] = load_findings(checked, seconds=2)
    assert finding.verdict == "failed"
    assert "within 2 seconds" in finding.what


@pytest.mark.parametrize(
    ("name", "metadata", "what"),
    [
        ("torch-cuda", {"backend": {"type": "cuda"}}, "does not fit this machine: for cuda, not cpu"),
    ],
)
def test_a_variant_that_cannot_be_loaded_here_is_skipped(
    write_variant: Write, name: str, metadata: dict[str, Any], what: str
) -> None:
    [(verdict, said_)] = said(loaded(write_variant(name=name, metadata=metadata)), "loading")
    assert verdict == "skipped"
    assert what in said_


def test_without_torch_nothing_is_loaded(write_variant: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest))
    [found] = audit(write_variant())
    assert found.findings[-1] == CheckResult("loading", "skipped", "Torch is not installed", "cpu")


INSIDE = "_add_one_cpu_1n51d3"
REGISTERS = f"""
import torch

own = torch.library.Library({INSIDE!r}, "DEF")
own.define("add_one(Tensor x) -> Tensor")
other = torch.library.Library("stolen_" + "inside", "DEF")
other.define("x(Tensor x) -> Tensor")
"""
LAYERS = """
from torch import nn


class Good(nn.Module):
    pass


class Bad(nn.Module):
    scale = 1

    def helper(self):
        return 1


class _Hidden(nn.Module):
    scale = 1
"""


def test_the_process_looks_at_what_a_load_registers_and_at_the_layers(write_variant: Write) -> None:
    pytest.importorskip("torch")
    from kernels.authoring.check.load_process import load_and_look

    files = {"__init__.py": REGISTERS, "_ops.py": None, "layers.py": LAYERS}
    found = load_and_look(str(write_variant(files, metadata={"id": INSIDE})))
    assert [(each.step, each.verdict) for each in found] == [
        ("loading", "ok"),
        ("operators", "failed"),
        ("loaded layers", "hint"),
        ("loaded layers", "ok"),
    ]
    assert "stolen_inside::x" in found[1].what
    assert "has helper, scale" in found[2].what
    assert found[3].what == "1 layer"
    audited = VariantAudit("torch-cpu", "torch-cpu", tuple(found)).strict()
    assert [each.verdict for each in audited.findings if each.step == "loaded layers"] == ["failed", "ok"]


@pytest.mark.parametrize(
    ("init", "metadata", "verdict", "what"),
    [
        ("1 / 0", {}, "failed", "ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(0)", {}, "failed", "sys.exit"),
        ("import nothing.of_this_name", {}, "failed", "No module named 'nothing'"),
        ("raise ModuleNotFoundError('No module named triton', name='triton')", {}, "skipped", "No module named triton"),
        ("", {"kernels-minver": "99.0.0"}, "skipped", "needs kernels>=99.0.0"),
        ("", {"python-depends": ["helion"]}, "skipped", "helion"),
    ],
)
def test_the_process_says_why_nothing_was_loaded(
    write_variant: Write, init: str, metadata: dict[str, Any], verdict: str, what: str
) -> None:
    pytest.importorskip("torch")
    from kernels.authoring.check.load_process import load_and_look

    folder = write_variant({"__init__.py": init}, metadata={"id": "_add_one_cpu_n0t1ng", **metadata})
    [found] = load_and_look(str(folder))
    assert (found.step, found.verdict) == ("loading", verdict)
    assert what in found.what


@pytest.mark.usefixtures("loading_forks")
def test_what_torch_itself_registers_when_it_is_used_is_not_the_kernels(write_variant: Write) -> None:
    # `triton_op` imports parts of Torch that register operators, wherever Torch is installed.
    source = f"""
import torch
from torch.library import triton_op

@triton_op("{ID}::add_one", mutates_args=())
def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1
"""
    found = loaded(write_variant({"__init__.py": source, "_ops.py": None, "layers.py": None}))
    assert said(found, "operators") == [("ok", "1 operator in the kernel's own namespace, none elsewhere")]


@pytest.mark.parametrize(
    ("layers", "verdict"),
    [
        (None, "skipped"),
        ("raise ValueError('no')", "failed"),
        ("__all__ = []", "ok"),
        ("import nothing.of_this_name", "hint"),
        ("from . import nothing_of_its_own", "failed"),
        ("from .nothing import of_its_own", "failed"),
    ],
)
def test_the_process_says_what_became_of_the_layers(write_variant: Write, layers: str | None, verdict: str) -> None:
    pytest.importorskip("torch")
    from kernels.authoring.check.load_process import load_and_look

    files = {"__init__.py": "", "_ops.py": None, "layers.py": layers}
    found = load_and_look(str(write_variant(files, metadata={"id": "_add_one_cpu_l4yers"})))
    assert [each.verdict for each in found if each.step == "loaded layers"] == [verdict]


def test_a_file_is_no_folder_of_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("relu").mkdir()
    Path("relu/build.toml").touch()
    assert is_path("relu/build.toml"), "also without ./ before it"
    for look in (audit, repository_info):
        with pytest.raises(RepositoryNotFound, match=r"build\.toml is a file; expected the folder of a kernel"):
            look("./relu/build.toml")
