"""Which file answers for an operator, on which hardware, and what is done with the answer."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hub import make_repo

from kernels import get_local_kernel, register_backend, unregister_backend
from kernels.backends import Backend, BackendProbe, Device
from kernels.errors import BackendUnavailable, KernelImportError, MissingPythonDependency, RequestError
from kernels.tuning import TuneEntry, get_configs, get_heuristics
from kernels.tuning.config_sources import file_identity

triton: Any = pytest.importorskip("triton")

# The modules of a process are shared by its tests, so each kernel gets an id that no other test has.
_numbers = itertools.count()


class Acme(Backend):
    """A vendor with two devices, whose architectures run what was built for older ones of their letter."""

    name = device_type = "tuned_acme"
    checks_archs = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def probe(self) -> BackendProbe:
        return BackendProbe(found=True, devices=tuple(Device(self.name, n, arch=f"a{n + 2}0") for n in range(2)))

    def arch_reason(self, archs: Sequence[str] | None, device: Device | None) -> str | None:
        if device is None or any(arch[0] == device.arch[0] and arch <= device.arch for arch in archs or ()):
            return None
        return f"built for {archs}"

    def parse_arch(self, text: str) -> str | None:
        text = text.removeprefix("acme-")
        return text if text[:1].isalpha() and text[1:].isdecimal() else None


@pytest.fixture
def acme(tmp_path: Path) -> Iterator[Acme]:
    folder = tmp_path / "vendor"
    folder.mkdir()
    backend = Acme(folder)
    register_backend(backend)
    yield backend
    unregister_backend("tuned_acme")


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that `KERNELS_TUNE_PATH` names."""
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.setenv("KERNELS_TUNE_PATH", str(folder))
    return folder


def tune(folder: Path, **blocks: int) -> Path:
    """Write a file with one configuration for each operator, which its block size tells from others."""
    path = folder / "tune_configs.yaml"
    path.write_text("".join(f"{op}:\n  - META: {{BLOCK: {block}}}\n" for op, block in blocks.items()))
    return path


def heuristics(folder: Path, **blocks: int) -> Path:
    path = folder / "heuristics_config_utils.py"
    entries = "".join(f"    {op!r}: {{'BLOCK': lambda args: {block} * args['n']}},\n" for op, block in blocks.items())
    path.write_text(f"HEURISTICS_CONFIGS = {{\n{entries}}}\n")
    return path


def kernel(tmp_path: Path, **files: str) -> ModuleType:
    """A kernel with these files, loaded; `__` in a keyword stands for a folder's separator, `init` for `__init__`."""
    number = next(_numbers)
    paths = {}
    for name, text in files.items():
        module, _, suffix = name.rpartition("_")
        paths["/".join("__init__" if part == "init" else part for part in module.split("__")) + f".{suffix}"] = text
    repo_id = f"acme/tuned{number}"
    return get_local_kernel(make_repo(tmp_path, repo_id, variants={"torch-cpu": paths}))


def blocks(configs: Sequence[Any]) -> list[int]:
    return [config.kwargs["BLOCK"] for config in configs]


ASKS = """
from kernels.tuning import get_configs, get_heuristics
configs = get_configs("mm", backend={backend!r}, default=[])
heuristics = get_heuristics("mm", backend={backend!r}, default={{}})
def later(op, **options):
    return get_configs(op, **options)
def heuristics_later(op, **options):
    return get_heuristics(op, **options)
"""


# Where an answer comes from


def test_the_user_goes_before_the_vendor_the_vendor_before_the_kernel_and_a_default_is_last(
    isolated_env: Path, tmp_path: Path, acme: Acme, user: Path
) -> None:
    files = [tune(user, mm=1), tune(acme.folder, mm=2)]
    module = kernel(tmp_path, init_py=ASKS.format(backend="tuned_acme"), tune_configs_yaml="mm: [{META: {BLOCK: 3}}]\n")
    own = Path(str(module.__file__)).with_name("tune_configs.yaml")
    assert (blocks(module.configs), module.configs.origin.kind) == ([1], "user")
    default = [TuneEntry({"BLOCK": 4})]
    answers = []
    for gone in [None, files[0], files[1], own]:
        if gone is not None:
            gone.unlink()
            user.joinpath("heuristics_config_utils.py").write_text("")  # the folder has something still
        configs = module.later("mm", backend="tuned_acme", default=default)
        answers.append((*blocks(configs), configs.origin.kind, configs.origin.path))
    assert answers == [(1, "user", files[0]), (2, "vendor", files[1]), (3, "kernel", own), (4, "default", None)]


def test_the_first_file_that_has_the_operator_gives_the_whole_answer(tmp_path: Path, acme: Acme, user: Path) -> None:
    tune(user, add=1)
    tune(acme.folder, add=2, mm=2)
    assert (blocks(get_configs("add", backend="tuned_acme")), blocks(get_configs("mm", backend="tuned_acme"))) == (
        [1],
        [2],
    )


def test_the_user_names_files_and_folders_the_first_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tmp_path / "mine.yaml"
    first.write_text("mm: [{META: {BLOCK: 1}}]\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    tune(folder, mm=2, add=2)
    heuristics(folder, mm=3)
    monkeypatch.setenv("KERNELS_TUNE_PATH", f"{first}{os.pathsep}{folder}")
    assert str(get_configs("mm").origin) == f"KERNELS_TUNE_PATH: {first}"
    assert str(get_configs("add").origin) == f"KERNELS_TUNE_PATH: {folder / 'tune_configs.yaml'}"
    assert get_heuristics("mm").origin.path == folder / "heuristics_config_utils.py"


@pytest.mark.parametrize("function", [get_configs, get_heuristics])
def test_a_path_of_the_user_that_is_not_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any
) -> None:
    monkeypatch.setenv("KERNELS_TUNE_PATH", str(tmp_path / "nowhere.yaml"))
    with pytest.raises(RequestError, match=r"`KERNELS_TUNE_PATH` has .*nowhere.yaml, which does not exist"):
        function("mm", default=None)
    monkeypatch.setenv("KERNELS_TUNE_PATH", str(tmp_path / ("x" * 5000)))
    with pytest.raises(RequestError, match="which does not exist"):
        function("mm", default=None)
    monkeypatch.setenv("KERNELS_TUNE_PATH", str(tmp_path))
    with pytest.raises(RequestError, match=r"a folder with neither tune_configs.yaml nor heuristics_config_utils.py"):
        function("mm", default=None)


def test_an_operator_that_no_file_has_is_an_error_that_says_where_was_looked(acme: Acme, user: Path) -> None:
    tune(user, add=1)
    acme.folder.joinpath("tune_configs.yaml").write_text("archs: {b10: {mm: []}}\n")
    with pytest.raises(RequestError) as missing:
        get_configs("mm", backend="tuned_acme", device=1)
    assert str(missing.value) == textwrap.dedent(f"""\
        `get_configs('mm')`: no file has that operator for tuned_acme, architecture a30. Searched:
        - KERNELS_TUNE_PATH: {user / "tune_configs.yaml"}
        - the vendor: {acme.folder / "tune_configs.yaml"}
        - {acme.folder / "tune_configs.yaml"} has it for b10 only
        The caller is not part of a kernel, so no kernel's own file was searched.
        Name a file in KERNELS_TUNE_PATH, or give `default=`.""")
    with pytest.raises(RequestError) as missing:
        get_heuristics("mm")
    assert "heuristics_config_utils.py (not found)\nBackend cpu has no vendor folder." in str(missing.value)


def test_without_any_file_the_error_says_so() -> None:
    with pytest.raises(RequestError, match=r"for cpu\. Searched:\n- no files\n"):
        get_configs("mm")


def test_a_file_that_breaks_its_form_is_an_error_and_not_passed_over(acme: Acme, user: Path) -> None:
    tune(user).write_text("mm:\n  - META: {}\n    num_warps: four\n")
    tune(acme.folder, mm=2)
    with pytest.raises(RequestError, match=r"tune_configs.yaml, mm\[0\]: `num_warps` is 'four'"):
        get_configs("mm", backend="tuned_acme")


def test_a_file_is_read_again_when_it_changes_and_not_before(monkeypatch: pytest.MonkeyPatch, user: Path) -> None:
    path = tune(user, mm=1)
    first = get_configs("mm")
    monkeypatch.setattr("kernels.tuning.config_sources.read_configs", lambda path: pytest.fail("it is read again"))
    assert get_configs("mm") == first
    assert get_configs("mm")[0] is not first[0], "a caller may change what it got"
    monkeypatch.undo()
    monkeypatch.setenv("KERNELS_TUNE_PATH", str(user))
    tune(user, mm=22)
    os.utime(path, ns=(1, 1))
    assert blocks(get_configs("mm")) == [22]


def test_many_files_do_not_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.tuning import config_sources

    monkeypatch.setattr(config_sources, "_KEPT", 2)
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.setenv("KERNELS_TUNE_PATH", str(tune(folder, mm=number)))
        assert blocks(get_configs("mm")) == [number]
    assert len(config_sources._read) <= 2


def test_a_file_that_goes_away_meanwhile_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read: No such file"):
        file_identity(tmp_path / "gone.yaml")


# Kernels


def test_a_kernel_that_asks_while_it_is_imported_gets_its_own_files(isolated_env: Path, tmp_path: Path) -> None:
    module = kernel(
        tmp_path,
        init_py="from .deep import *\n",
        deep_py=ASKS.format(backend=None),
        tune_configs_yaml="mm: [{META: {BLOCK: 7}}]\nadd: [{META: {BLOCK: 8}}]\n",
        heuristics_config_utils_py="from .sizes import SIZE\nHEURISTICS_CONFIGS = {'mm': {'B': lambda args: SIZE}}\n",
        sizes_py="SIZE = 9\n",
    )
    folder = Path(str(module.__file__)).parent
    assert blocks(module.configs) == [7]
    assert (module.configs.origin.kind, module.configs.origin.path) == ("kernel", folder / "tune_configs.yaml")
    assert module.heuristics["B"]({}) == 9
    assert module.heuristics.origin.path == folder / "heuristics_config_utils.py"
    assert blocks(module.later("add")) == [8]
    assert module.heuristics_later("mm") == module.heuristics


def test_two_kernels_get_each_their_own(isolated_env: Path, tmp_path: Path) -> None:
    texts = [f"mm: [{{META: {{BLOCK: {block}}}}}]\n" for block in (1, 2)]
    one, two = (kernel(tmp_path, init_py=ASKS.format(backend=None), tune_configs_yaml=text) for text in texts)
    assert (blocks(one.configs), blocks(two.configs), blocks(one.later("mm"))) == ([1], [2], [1])


def test_an_older_build_has_its_files_beside_its_package_or_in_it(isolated_env: Path, tmp_path: Path) -> None:
    repo = make_repo(
        tmp_path, "acme/older", variants={"torch-cpu": {"tune_configs.yaml": "mm: [{META: {BLOCK: 1}}]\n"}}
    )
    variant = repo / "build" / "torch-cpu"
    package = variant / "older"
    package.mkdir(exist_ok=True)
    for init in variant.glob("__init__.py"):
        init.unlink()
    (package / "__init__.py").write_text(ASKS.format(backend=None))
    heuristics(variant, mm=1)  # outside of the package: no module of it
    module = get_local_kernel(repo)
    assert blocks(module.configs) == [1]
    assert module.heuristics.origin.kind == "default"
    tune(package, mm=2)
    assert blocks(module.later("mm")) == [2]


def test_a_kernel_whose_heuristics_fail_is_not_loaded_or_says_so_later(isolated_env: Path, tmp_path: Path) -> None:
    bad = "raise RuntimeError('no such chip')\n"
    with pytest.raises(RuntimeError, match="no such chip"):
        kernel(tmp_path, init_py=ASKS.format(backend=None), heuristics_config_utils_py=bad)
    lazy = "def ask():\n    from kernels.tuning import get_heuristics\n    return get_heuristics('mm')\n"
    module = kernel(tmp_path, init_py=lazy, heuristics_config_utils_py=bad)
    with pytest.raises(RuntimeError, match="no such chip"):
        module.ask()


def test_a_kernel_without_files_gets_the_default(isolated_env: Path, tmp_path: Path) -> None:
    module = kernel(tmp_path, init_py=ASKS.format(backend=None))
    assert (module.configs, module.configs.origin.kind, module.heuristics) == ([], "default", {})
    with pytest.raises(RequestError, match=r"the kernel: .*tune_configs.yaml \(not found\)"):
        module.later("mm")


# Hardware

SECTIONS = """
archs:
  a10: {{mm: [{{META: {{BLOCK: 10}}}}], add: [{{META: {{BLOCK: 11}}}}]}}
  a20: {{mm: [{{META: {{BLOCK: 20}}}}]}}
  {acme_a30}: {{mm: [{{META: {{BLOCK: 30}}}}]}}
  b10: {{mm: [{{META: {{BLOCK: 99}}}}]}}
  something else: {{mm: [{{META: {{BLOCK: 98}}}}]}}
mm: [{{META: {{BLOCK: 1}}}}]
add: [{{META: {{BLOCK: 2}}}}]
mul: [{{META: {{BLOCK: 3}}}}]
"""


@pytest.mark.parametrize(
    ("op", "where", "block", "section"),
    [
        ("mm", {}, 20, "a20"),  # its own
        ("mm", {"device": 1}, 30, "acme-a30"),  # its own, spelled as a person does
        ("mm", {"device": "tuned_acme:1"}, 30, "acme-a30"),
        ("mm", {"arch": "a25"}, 20, "a20"),  # none of its own: of those that run there, the nearest
        ("mm", {"arch": "acme-a40"}, 30, "acme-a30"),
        ("mm", {"arch": "a15"}, 10, "a10"),
        ("mm", {"arch": "a05"}, 1, None),
        ("mm", {"arch": "c10"}, 1, None),
        ("add", {}, 11, "a10"),  # for each operator anew
        ("add", {"arch": "b10"}, 2, None),
        ("mul", {}, 3, None),
    ],
)
def test_the_section_of_the_architecture_goes_before_the_rest_for_each_operator(
    acme: Acme, op: str, where: dict[str, Any], block: int, section: str | None
) -> None:
    path = acme.folder / "tune_configs.yaml"
    path.write_text(SECTIONS.format(acme_a30="acme-a30"))
    backend = None if isinstance(where.get("device"), str) else "tuned_acme"
    configs = get_configs(op, backend=backend, **where)
    assert (blocks(configs), configs.origin.arch) == ([block], section)
    assert str(configs.origin) == f"the vendor: {path}" + (f", section {section}" if section else "")


@pytest.mark.parametrize(
    ("arch", "block"), [("9.0", 90), ("8.9", 86), ("8.6", 86), ("8.0", 80), ("12.0", 1), ("sm_90", 90), ("7.5", 1)]
)
def test_sections_for_cuda_follow_its_compute_capabilities(user: Path, arch: str, block: int) -> None:
    text = "".join(f"  {each}: {{mm: [{{META: {{BLOCK: {each * 10:.0f}}}}}]}}\n" for each in (8.0, 8.6, 9.0))
    tune(user).write_text(f"archs:\n{text}  hopper: {{mm: []}}\nmm: [{{META: {{BLOCK: 1}}}}]\n")
    assert blocks(get_configs("mm", backend="cuda", arch=arch)) == [block]


def test_the_nearest_section_of_a_file_of_the_user_goes_before_the_vendors_own(acme: Acme, user: Path) -> None:
    tune(user, mm=1)
    acme.folder.joinpath("tune_configs.yaml").write_text(SECTIONS.format(acme_a30="a30"))
    assert blocks(get_configs("mm", backend="tuned_acme")) == [1]


def test_a_backend_that_checks_no_architectures_takes_only_its_own_section(acme: Acme) -> None:
    acme.folder.joinpath("tune_configs.yaml").write_text(SECTIONS.format(acme_a30="a30"))
    acme.checks_archs = False
    chosen = {arch: blocks(get_configs("mm", backend="tuned_acme", arch=arch)) for arch in ("a20", "a25")}
    assert chosen == {"a20": [20], "a25": [1]}


def test_a_machine_without_a_device_takes_the_part_that_holds_for_all(user: Path) -> None:
    tune(user).write_text("archs: {x1: {mm: []}}\nmm: [{META: {BLOCK: 1}}]\n")
    assert blocks(get_configs("mm")) == [1]


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"backend": "nobody"}, RequestError, "`backend` is 'nobody'"),
        ({"backend": "neuron"}, BackendUnavailable, "`backend` is 'neuron'; this machine"),
        ({"backend": "tuned_acme", "device": 7}, RequestError, "`device` is 7; tuned_acme has 0, 1"),
        ({"backend": "tuned_acme", "device": "x y"}, RequestError, "`device`: .* got 'x y'"),
        ({"backend": "tuned_acme", "device": 0, "arch": "a10"}, RequestError, "give only one of them"),
        (
            {"backend": "tuned_acme", "arch": "??"},
            RequestError,
            "which is not an architecture of tuned",
        ),
        ({"backend": "nobody", "arch": "a10"}, RequestError, "got 'nobody'"),
        ({"device": 1.5}, TypeError, "`device`: .* got 1.5"),
        ({"arch": 90}, TypeError, "`arch`: expected an architecture's name, got 90"),
        ({"backend": 4, "arch": "a10"}, TypeError, "got 4"),
        ({"default": "BLOCK"}, TypeError, "`default`: expected a list .*, got 'BLOCK'"),
        ({"default": {"BLOCK": 1}}, TypeError, "expected a list of configurations or None, got {'BLOCK': 1}"),
    ],
)
def test_a_wrong_argument_is_named(acme: Acme, options: dict[str, Any], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        get_configs("mm", **options)


@pytest.mark.parametrize("function", [get_configs, get_heuristics])
def test_an_operator_that_is_no_text_is_named(function: Any) -> None:
    with pytest.raises(TypeError, match="`op`: expected an operator's name, got 4"):
        function(4)
    with pytest.raises(TypeError, match=r"`default`: expected .*, got 4"):
        function("mm", default=4)


# Triton


def test_the_answer_is_what_autotune_and_heuristics_take(user: Path) -> None:
    tune(user).write_text("mm: [{META: {BLOCK: 16}, num_warps: 8, num_stages: 3, num_ctas: 2, maxnreg: 128}]\n")
    heuristics(user, mm=2)

    @triton.autotune(configs=get_configs("mm"), key=["n"])
    @triton.heuristics(get_heuristics("mm"))
    @triton.jit
    def kernel(x, n, BLOCK: triton.language.constexpr) -> None:
        pass

    assert kernel.configs == [triton.Config({"BLOCK": 16}, num_warps=8, num_stages=3, num_ctas=2, maxnreg=128)]
    assert kernel.configs.origin.kind == "user"
    assert kernel.fn.values["BLOCK"]({"n": 21}) == 42


RUNS = """
import torch
import triton
import triton.language as tl

from kernels.tuning import get_configs, get_heuristics

tried = []

def bench(run, quantiles):
    run()
    tried.append(True)
    return [1.0] * len(quantiles)

@triton.autotune(configs=get_configs("double"), key=["n"], do_bench=bench)
@triton.heuristics(get_heuristics("double"))
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y + at, tl.load(x + at) * 2)
    else:
        tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

for n in (256, 300):
    x, y = torch.arange(n, dtype=torch.float32), torch.zeros(n)
    double[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
    assert torch.equal(y, 2 * x), y
print(len(tried), len(double.configs), double.best_config.kwargs["BLOCK"])
"""


def test_a_kernel_runs_with_what_was_found(user: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = "double: [{gen: true, param_map: {META: {BLOCK: b}, num_warps: [1, 4]}, b: [64, 128]}]\n"
    tune(user).write_text(text)
    (user / "heuristics_config_utils.py").write_text(
        "HEURISTICS_CONFIGS = {'double': {'EVEN': lambda args: args['n'] % args['BLOCK'] == 0}}\n"
    )
    script = tmp_path / "runs.py"  # Triton reads a kernel's source
    script.write_text(RUNS)
    env = {**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["8", "4", "64"]


def test_an_answer_can_be_copied_between_processes(user: Path) -> None:
    tune(user, mm=1)
    configs = get_configs("mm")
    again = pickle.loads(pickle.dumps(configs))
    assert (again, again.origin) == (configs, configs.origin)


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("num_warp: 4", "`num_warp` is 4, but a file may not set this argument"),
        ("num_ldmatrixes: 1", "it may set num_warps, num_stages, num_ctas, maxnreg"),
        ("pre_hook: print", "`pre_hook` is 'print'"),
        ("kwargs: 1", "`kwargs` is 1"),
        ("ir_override: /tmp/other.ttgir", "`ir_override` is '/tmp/other.ttgir'"),
    ],
)
def test_an_argument_that_triton_does_not_have_is_an_error_of_that_operator_alone(
    user: Path, option: str, why: str
) -> None:
    tune(user).write_text(f"add: [{{META: {{BLOCK: 1}}}}]\nmm:\n  - META: {{}}\n  - META: {{}}\n    {option}\n")
    with pytest.raises(RequestError, match=rf"tune_configs.yaml, mm\[1\]: .*{why}"):
        get_configs("mm")
    assert blocks(get_configs("add")) == [1]


def test_a_vendors_triton_decides_what_a_configuration_may_say(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Config:
        def __init__(self, kwargs: dict[str, Any], num_warps: int = 1, num_ldmatrixes: int = 0) -> None:
            self.said = (kwargs, num_warps, num_ldmatrixes)

    tune(user).write_text("mm: [{META: {BLOCK: 1}, num_warps: 8, num_ldmatrixes: 2}]\n")
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(Config=Config))  # type: ignore[misc]
    assert [config.said for config in get_configs("mm")] == [({"BLOCK": 1}, 8, 2)]


def test_without_triton_configurations_cannot_be_made_and_the_error_says_what_to_do(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(user, mm=1)
    heuristics(user, mm=1)
    monkeypatch.setitem(sys.modules, "triton", None)  # type: ignore[arg-type]
    with pytest.raises(MissingPythonDependency, match=r"pip install triton.*read_configs"):
        get_configs("mm")
    assert get_configs("add", default=[]) == []
    assert get_heuristics("mm")["BLOCK"]({"n": 5}) == 5


def test_a_default_may_be_tritons_own_objects_or_plain_data() -> None:
    given = triton.Config({"BLOCK": 1}, num_warps=2)
    configs = get_configs("mm", default=[given, TuneEntry({"BLOCK": 2}, others={"maxnreg": 64})])
    assert configs == [given, triton.Config({"BLOCK": 2}, num_stages=2, maxnreg=64)]
    assert configs[0] is given
    with pytest.raises(RequestError, match="`default`: `num_warp` is 4"):
        get_configs("mm", default=[TuneEntry({}, others={"num_warp": 4})])


# Heuristics


def test_heuristics_come_from_the_user_the_vendor_the_kernel_or_a_default(
    isolated_env: Path, tmp_path: Path, acme: Acme, user: Path
) -> None:
    files = [heuristics(user, mm=1), heuristics(acme.folder, mm=2, add=2)]
    tune(user)
    own = "HEURISTICS_CONFIGS = {'mm': {'BLOCK': lambda args: 3}, 'mul': {'BLOCK': lambda args: 3}}\n"
    module = kernel(tmp_path, init_py=ASKS.format(backend="tuned_acme"), heuristics_config_utils_py=own)
    asked = {op: module.heuristics_later(op, backend="tuned_acme", default={}) for op in ("mm", "add", "mul", "div")}
    assert {op: found.origin.kind for op, found in asked.items()} == {
        "mm": "user",
        "add": "vendor",
        "mul": "kernel",
        "div": "default",
    }
    assert [asked[op]["BLOCK"]({"n": 1}) for op in ("mm", "add", "mul")] == [1, 2, 3]
    assert [asked[op].origin.path for op in ("mm", "add")] == files


def test_a_file_of_the_users_is_imported_once_and_again_when_it_changes(user: Path) -> None:
    path = heuristics(user, mm=1)
    functions = get_heuristics("mm")
    assert get_heuristics("mm")["BLOCK"] is functions["BLOCK"]
    heuristics(user, mm=222)
    os.utime(path, ns=(1, 1))
    assert get_heuristics("mm")["BLOCK"]({"n": 1}) == 222
    path.write_text("raise RuntimeError('no such chip')\n")
    with pytest.raises(
        RequestError, match=r"heuristics_config_utils.py cannot be imported: RuntimeError: no such chip"
    ):
        get_heuristics("mm")


def test_a_file_of_the_users_may_define_classes(user: Path) -> None:
    text = """
        from __future__ import annotations
        from dataclasses import dataclass

        @dataclass
        class Size:
            block: int = 5

        HEURISTICS_CONFIGS = {"mm": {"BLOCK": lambda args: Size().block}}
    """
    (user / "heuristics_config_utils.py").write_text(textwrap.dedent(text))
    assert get_heuristics("mm")["BLOCK"]({}) == 5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "`HEURISTICS_CONFIGS` is None; expected a dictionary of operators"),
        ("HEURISTICS_CONFIGS = [1]", r"`HEURISTICS_CONFIGS` is \[1\]"),
        ("HEURISTICS_CONFIGS = {'mm': 4}", r"`HEURISTICS_CONFIGS\['mm'\]` is 4; expected a dictionary of functions"),
        ("HEURISTICS_CONFIGS = {'mm': {'BLOCK': 4}}", r"\['mm'\]\['BLOCK'\]` is 4; expected a function"),
        ("HEURISTICS_CONFIGS = {'mm': {4: print}}", r"\['mm'\]\[4\]` is "),
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("import sys; sys.exit(7)", r"heuristics_config_utils.* cannot be imported: SystemExit: 7"),
        ("x = (", "SyntaxError"),
    ],
)
@pytest.mark.parametrize("whose", ["user", "vendor"])
def test_heuristics_of_another_form_are_refused(acme: Acme, user: Path, whose: str, text: str, why: str) -> None:
    tune(user)
    folder = user if whose == "user" else acme.folder
    (folder / "heuristics_config_utils.py").write_text(text)
    with pytest.raises(RequestError, match=why):
        get_heuristics("mm", backend="tuned_acme")


MUTE = """
class Mute(BaseException):
    def __str__(self):
        raise SystemExit(7)
raise Mute
"""


@pytest.mark.parametrize(
    ("text", "error", "why"),
    [
        ("raise SystemExit(7)", RequestError, "SystemExit: 7"),
        (MUTE, RequestError, r"Mute, whose message raised SystemExit"),
        ("import sys; del sys.modules[__name__]; raise ValueError('gone')", RequestError, "ValueError: gone"),
        ("raise KeyboardInterrupt", KeyboardInterrupt, "^$"),
        ("raise ValueError(type('Asked', (), {'__repr__': lambda self: {}[KeyError]})())", RequestError, "ValueError"),
    ],
)
def test_a_file_of_the_users_that_ends_early_leaves_no_module(
    user: Path, text: str, error: type[BaseException], why: str
) -> None:
    path = user / "heuristics_config_utils.py"
    path.write_text(text)
    with pytest.raises(error, match=why):
        get_heuristics("mm")
    assert not [name for name in sys.modules if str(path) in name]
    heuristics(user, mm=1)
    assert get_heuristics("mm")["BLOCK"]({"n": 5}) == 5


@pytest.mark.parametrize(
    ("text", "error"), [("raise SystemExit(7)", KernelImportError), ("raise KeyboardInterrupt", KeyboardInterrupt)]
)
def test_a_kernels_heuristics_that_end_early_leave_no_module(
    isolated_env: Path, tmp_path: Path, text: str, error: type[BaseException]
) -> None:
    module = kernel(tmp_path, init_py=ASKS.format(backend="cpu"))
    own = Path(str(module.__file__)).with_name("heuristics_config_utils.py")
    own.write_text(text)
    with pytest.raises(error):
        module.heuristics_later("mm", default={})
    assert f"{module.__name__}.heuristics_config_utils" not in sys.modules
    own.write_text("HEURISTICS_CONFIGS = {'mm': {'BLOCK': lambda args: 3}}")
    assert module.heuristics_later("mm")["BLOCK"]({}) == 3


# Imports


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = "'torch', 'triton', 'yaml', 'huggingface_hub'"
    code = f"import sys, kernels.tuning; sys.exit(', '.join(m for m in ({heavy}) if m in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
