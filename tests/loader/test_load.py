"""A variant directory becomes a module: once, whole or not at all, under a name of its own."""

from __future__ import annotations

import itertools
import os
import pickle
import py_compile
import shutil
import subprocess
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from held_locks import fork_while_held
from logged import warned

from kernels.errors import DependencyOutsideLoad, KernelImportError, NoModule, RequestError
from kernels.loader.load import (
    LoadedKernel,
    get_kernel_dep,
    get_loaded_kernels,
    kernel_attribute,
    kernel_layers,
    load_variant,
)
from kernels.models.metadata import BackendInfo, KernelName, Metadata
from kernels.models.requirement import RepoInfo

# The modules of a process are shared by its tests, so each kernel gets an id that no other test has.
_numbers = itertools.count()


@pytest.fixture
def kernel_id() -> str:
    return f"_loader_test_cpu_{next(_numbers)}"


def metadata(kernel_id: str, name: str = "loader-test") -> Metadata:
    return Metadata(id=kernel_id, name=KernelName(name), backend=BackendInfo("cpu"))


def write(folder: Path, **files: str) -> Path:
    """Write Python files; `__` in a keyword stands for a folder's separator, `init` for `__init__`."""
    for name, text in files.items():
        parts = ["__init__" if part == "init" else part for part in name.split("__")]
        file = folder.joinpath(*parts).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def run_threads(*work: Callable[[], object]) -> list[object]:
    """What each returned or raised; a thread that hangs fails the test."""
    results: list[object] = [None] * len(work)

    def run(index: int) -> None:
        try:
            results[index] = work[index]()
        except Exception as error:  # noqa: BLE001 -- handed to the test
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return results


# What loads


def test_the_module_is_named_after_the_id_and_stays_in_sys_modules(tmp_path: Path, kernel_id: str) -> None:
    folder = write(tmp_path, init="from . import layers", layers="class Relu: ...")
    module = load_variant(folder, metadata(kernel_id))
    assert module.__name__ == kernel_id
    assert sys.modules[kernel_id] is module
    assert sys.modules[module.layers.Relu.__module__] is module.layers


@pytest.mark.parametrize("layout", ["", "loader_test"])
def test_both_layouts_load_with_every_way_to_import_from_oneself(tmp_path: Path, kernel_id: str, layout: str) -> None:
    write(
        tmp_path / layout,
        init=f"""
            from . import layers
            from ._ops import ops
            from .inner.deep import value
            import {kernel_id}._ops
            import {kernel_id}.inner as inner
            from {kernel_id}.inner.deep import value as again
            same = {kernel_id}._ops is layers._ops
        """.replace("    ", ""),
        layers="from . import _ops",
        _ops="ops = 'ops'",
        inner__init="",
        inner__deep="from .. import _ops\nfrom ..namespace.leaf import value",
        namespace__leaf="value = 42",
    )
    module = load_variant(tmp_path, metadata(kernel_id))
    assert (module.ops, module.value, module.again, module.same) == ("ops", 42, 42, True)
    assert module.__path__ == [str(tmp_path / layout)]


def test_a_directory_without_a_module_is_a_clear_error(tmp_path: Path, kernel_id: str) -> None:
    with pytest.raises(NoModule, match=r"'loader-test' has no module: neither .*__init__\.py nor .*loader_test"):
        load_variant(tmp_path, metadata(kernel_id))


def test_the_same_path_gives_the_same_module_however_it_is_spelt(
    tmp_path: Path, kernel_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "v", init="count = []")
    module = load_variant(folder, metadata(kernel_id))
    monkeypatch.chdir(tmp_path)
    assert load_variant("v", metadata(kernel_id)) is module
    assert load_variant(str(tmp_path / "x" / ".." / "v"), metadata(kernel_id)) is module
    monkeypatch.delitem(sys.modules, kernel_id)
    assert load_variant(folder, metadata(kernel_id)) is module


def test_loaded_kernels_are_listed_once_with_where_they_came_from_in_a_list_of_ones_own(
    tmp_path: Path, kernel_id: str
) -> None:
    folder = write(tmp_path, init="")
    info = RepoInfo("org/name", "0" * 40)
    module = load_variant(folder, metadata(kernel_id), repo_info=info)
    load_variant(folder, metadata(kernel_id))
    mine = [kernel for kernel in get_loaded_kernels() if kernel.module is module]
    assert mine == [LoadedKernel(metadata(kernel_id), module, info)]
    assert mine[0].path == folder.resolve()
    get_loaded_kernels().clear()
    assert mine[0] in get_loaded_kernels()


def test_a_loaded_kernel_can_be_made_of_the_existing_clients_fields_alone() -> None:
    kernel = LoadedKernel(metadata=metadata("_x"), module=ModuleType("_x"), repo_info=None)
    assert kernel.path is None


# Two at once


def test_the_same_id_from_another_path_loads_beside_it_under_a_numbered_name(tmp_path: Path, kernel_id: str) -> None:
    folders = [write(tmp_path / str(n), init=f"from . import _ops\nvalue = {n}", _ops="") for n in range(3)]
    modules = [load_variant(folder, metadata(kernel_id)) for folder in folders]
    assert [module.__name__ for module in modules] == [kernel_id, f"{kernel_id}_2", f"{kernel_id}_3"]
    assert [module.value for module in modules] == [0, 1, 2]
    assert len({module._ops for module in modules}) == 3


def test_a_kernel_under_a_numbered_name_imports_itself_and_not_the_first(tmp_path: Path, kernel_id: str) -> None:
    for number in range(2):
        write(
            tmp_path / str(number),
            init=f"""
                import {kernel_id}
                import {kernel_id}.inner.leaf, os.path
                import {kernel_id}.inner as renamed
                from {kernel_id} import inner as taken
                from {kernel_id}.inner.leaf import value
                import sys
                whole = {kernel_id}
                line = sys._getframe().f_lineno
                through = {kernel_id}.inner.leaf.value
            """.replace("    ", ""),
            inner__init="",
            inner__leaf=f"value = {number}",
        )
    modules = [load_variant(tmp_path / str(number), metadata(kernel_id)) for number in range(2)]
    for number, module in enumerate(modules):
        assert module.whole is module
        assert module.renamed is module.taken is sys.modules[f"{module.__name__}.inner"]
        assert module.value == module.through == number
        assert module.os.path is os.path
    assert modules[0].line == modules[1].line


def test_a_numbered_name_that_something_else_has_is_passed_over(
    tmp_path: Path, kernel_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, f"{kernel_id}_2", ModuleType("stranger"))
    load_variant(write(tmp_path / "a", init=""), metadata(kernel_id))
    assert load_variant(write(tmp_path / "b", init=""), metadata(kernel_id)).__name__ == f"{kernel_id}_3"


def test_many_threads_get_one_module_that_ran_once(tmp_path: Path, kernel_id: str) -> None:
    runs = tmp_path / "runs"
    folder = write(
        tmp_path / "v", init=f"import time\ntime.sleep(0.05)\nopen({str(runs)!r}, 'a').write('x')\nfinished = True"
    )
    start = threading.Barrier(16)

    def load() -> ModuleType:
        start.wait(30)
        module = load_variant(folder, metadata(kernel_id))
        assert module.finished
        return module

    modules = run_threads(*[load] * 16)
    assert modules == [sys.modules[kernel_id]] * 16
    assert runs.read_text() == "x"


def test_threads_that_load_one_id_from_different_paths_get_a_module_each(tmp_path: Path, kernel_id: str) -> None:
    folders = [write(tmp_path / str(n), init=f"value = {n}") for n in range(8)]
    start = threading.Barrier(8)

    def load(index: int) -> Callable[[], object]:
        def work() -> object:
            start.wait(30)
            return load_variant(folders[index], metadata(kernel_id)).value

        return work

    assert run_threads(*[load(index) for index in range(8)]) == list(range(8))


def test_a_failure_is_every_waiting_threads_failure(tmp_path: Path, kernel_id: str) -> None:
    folder = write(tmp_path, init="import time\ntime.sleep(0.05)\nraise ValueError('no')")
    start = threading.Barrier(6)

    def load() -> object:
        start.wait(30)
        return load_variant(folder, metadata(kernel_id))

    assert [type(result) for result in run_threads(*[load] * 6)] == [ValueError] * 6
    assert kernel_id not in sys.modules


# Loads within loads


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A module that kernels of a test import to reach the test's own functions."""
    module = ModuleType("loader_test_meeting")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module  # type: ignore[return-value]


def test_different_kernels_are_imported_at_the_same_time(
    tmp_path: Path, kernel_id: str, meeting: SimpleNamespace
) -> None:
    meeting.barrier = threading.Barrier(2)
    text = "import loader_test_meeting\nloader_test_meeting.barrier.wait(30)"
    folders = [write(tmp_path / name, init=text) for name in "ab"]
    results = run_threads(
        *[
            lambda n=n, folder=folder: load_variant(folder, metadata(f"{kernel_id}_{n}"))
            for n, folder in zip("ab", folders, strict=True)
        ]
    )
    assert all(isinstance(result, ModuleType) for result in results), results


def test_a_diamond_loaded_from_within_imports_meets_in_one_module(
    tmp_path: Path, kernel_id: str, meeting: SimpleNamespace
) -> None:
    def load(name: str) -> ModuleType:
        return load_variant(tmp_path / name, metadata(f"{kernel_id}_{name}"))

    meeting.load = load
    meeting.barrier = threading.Barrier(2)
    head = "from loader_test_meeting import load, barrier\n"
    write(tmp_path / "bottom", init="import time\ntime.sleep(0.02)")
    write(tmp_path / "left", init=head + "barrier.wait(30)\nbottom = load('bottom')")
    write(tmp_path / "right", init=head + "barrier.wait(30)\nbottom = load('bottom')")
    left, right = run_threads(lambda: load("left"), lambda: load("right"))
    assert left.bottom is right.bottom  # type: ignore[attr-defined]


def test_kernels_that_load_each_other_do_not_hang(tmp_path: Path, kernel_id: str, meeting: SimpleNamespace) -> None:
    meeting.load = lambda name: load_variant(tmp_path / name, metadata(f"{kernel_id}_{name}"))
    meeting.barrier = threading.Barrier(2)
    head = "from loader_test_meeting import load, barrier\nbarrier.wait(30)\n"
    write(tmp_path / "a", init=head + "other = load('b')")
    write(tmp_path / "b", init=head + "other = load('a')")
    a, b = run_threads(lambda: meeting.load("a"), lambda: meeting.load("b"))
    assert a.other is b  # type: ignore[attr-defined]
    assert b.other is a  # type: ignore[attr-defined]


def test_a_kernel_that_loads_itself_gets_its_unfinished_module(
    tmp_path: Path, kernel_id: str, meeting: SimpleNamespace
) -> None:
    meeting.load = lambda: load_variant(tmp_path, metadata(kernel_id))
    write(tmp_path, init="from loader_test_meeting import load\nme = load()")
    module = load_variant(tmp_path, metadata(kernel_id))
    assert module.me is module


# Names that are refused


@pytest.mark.parametrize(
    ("identifier", "reason"),
    [
        ("os", "standard library"),
        ("sys", "standard library"),
        ("turtledemo", "standard library"),
        ("kernels", "loaded already"),
        ("__main__", "loaded already"),
        ("pytest", "loaded already"),
        ("hatchling", "an installed module"),
        ("not-a-name", "not a Python identifier"),
        ("a.b", "not a Python identifier"),
        ("", "not a Python identifier"),
        ("class", "not a Python identifier"),
    ],
)
def test_an_id_that_is_no_identifier_or_names_another_module_is_refused(
    tmp_path: Path, identifier: str, reason: str
) -> None:
    folder = write(tmp_path, init="raise AssertionError('it ran')")
    before = sys.modules.get(identifier)
    with pytest.raises(KernelImportError, match=reason) as caught:
        load_variant(folder, metadata(identifier), repo_info=RepoInfo("org/name", "main"))
    assert "of org/name at main" in str(caught.value)
    assert repr(identifier) in str(caught.value)
    assert sys.modules.get(identifier) is before


def test_an_id_that_names_an_object_that_is_no_module_is_refused(
    tmp_path: Path, kernel_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, init="raise AssertionError('it ran')")
    monkeypatch.setitem(sys.modules, kernel_id, SimpleNamespace(__spec__=object()))
    with pytest.raises(KernelImportError, match="loaded already"):
        load_variant(folder, metadata(kernel_id))


@pytest.mark.parametrize("content", ["module", "package", "namespace", "broken"])
def test_an_id_that_names_a_module_on_the_path_is_refused_before_it_is_loaded(
    tmp_path: Path, kernel_id: str, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    file = {"module": f"{kernel_id}.py", "package": f"{kernel_id}/__init__.py", "namespace": f"{kernel_id}/leaf.py"}
    (site / kernel_id).mkdir(parents=True)
    (site / file.get(content, "other.py")).touch()
    monkeypatch.syspath_prepend(str(site))
    if content == "broken":

        class Broken:
            @staticmethod
            def find_spec(name: str, path: object = None, target: object = None) -> None:
                if name == kernel_id:
                    raise ImportError("broken finder")

        monkeypatch.setattr(sys, "meta_path", [Broken, *sys.meta_path])
    with pytest.raises(KernelImportError, match="an installed module"):
        load_variant(write(tmp_path / "v", init=""), metadata(kernel_id))


def test_a_variant_that_is_itself_on_the_path_is_not_taken_for_another_module(
    tmp_path: Path, kernel_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, init="value = 1")
    (folder / f"{kernel_id}.py").write_text("value = 2")
    monkeypatch.syspath_prepend(str(folder))
    assert load_variant(folder, metadata(kernel_id)).value == 1


# Failures


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("raise ValueError('bad day')", ValueError, "bad day"),
        ("import absent_module_of_loader_test", ModuleNotFoundError, "No module named 'absent_module_of_loader_test'"),
        ("from . import absent", ImportError, "cannot import name 'absent'"),
        ("from .absent import x", ModuleNotFoundError, "No module named"),
        ("def f(:", SyntaxError, "invalid syntax"),
        ("def f(): f()\nf()", RecursionError, "maximum recursion depth"),
        ("import sys; sys.exit()", KernelImportError, r"its code called `sys\.exit\(\)`"),
        ("import sys; sys.exit(3)", KernelImportError, r"its code called `sys\.exit\(3\)`"),
        ("exit('bye')", KernelImportError, r"its code called `sys\.exit\('bye'\)`"),
        ("class End(BaseException): pass\nraise End('of all')", KernelImportError, "End: of all"),
        ("import sys; del sys.modules[__name__]", KernelImportError, "It removed or replaced itself"),
        ("import sys, types; sys.modules[__name__] = types.ModuleType('x')", KernelImportError, "removed or replaced"),
    ],
)
def test_a_failed_import_leaves_no_trace_and_keeps_the_kernels_error(
    tmp_path: Path, kernel_id: str, text: str, error: type[BaseException], message: str
) -> None:
    folder = write(
        tmp_path / "torch-cpu",
        init=f"from . import _ops\nimport {kernel_id}.inner.leaf\n" + text,
        _ops="",
        inner__init="",
        inner__leaf="",
    )
    before = len(get_loaded_kernels())
    with pytest.raises(error, match=message) as caught:
        load_variant(folder, metadata(kernel_id), repo_info=RepoInfo("org/name", "abc"))
    assert type(caught.value) is error or error is KernelImportError
    if error is KernelImportError:
        assert traceback.format_exception_only(caught.value)[0].startswith("kernels.errors.KernelImportError: ")
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    said = [str(caught.value), *getattr(caught.value, "__notes__", ())]
    assert any("kernel 'loader-test', variant torch-cpu, of org/name at abc" in each for each in said)
    assert not [name for name in sys.modules if name.startswith(kernel_id)]
    assert len(get_loaded_kernels()) == before

    (folder / "__init__.py").write_text("value = 1")
    assert load_variant(folder, metadata(kernel_id)).value == 1
    assert sys.modules[kernel_id].__name__ == kernel_id


@pytest.mark.parametrize(
    ("raised", "method"),
    [
        ("Bad()", "def __str__(self): raise ValueError"),
        ("Bad()", "def __str__(self): raise SystemExit(3)"),
        ("Bad()", "def __str__(self): return 5"),
        ("Bad('no')", "def add_note(self, note): raise SystemExit"),
        ("Bad('no')", "__notes__ = 5"),
        ("SystemExit(Bad())", "def __repr__(self): raise ValueError"),
    ],
)
def test_an_error_that_cannot_say_what_it_is_is_raised_all_the_same(
    tmp_path: Path, kernel_id: str, raised: str, method: str
) -> None:
    folder = write(tmp_path, init=f"class Bad(Exception):\n    {method}\nraise {raised}")
    with pytest.raises(Exception) as caught:  # noqa: PT011
        load_variant(folder, metadata(kernel_id))
    assert type(caught.value).__name__ == ("KernelImportError" if "Exit(" in raised else "Bad")
    if "Exit(" in raised:
        assert "a Bad, whose repr raised ValueError" in str(caught.value)


def test_a_note_names_the_kernel_whatever_runs_it(tmp_path: Path, kernel_id: str) -> None:
    """The kernel's own error class is gone with its module, and the error still tells where it came from."""
    folder = write(tmp_path, init="class Own(RuntimeError): pass\nraise Own('no card')")
    with pytest.raises(RuntimeError, match="no card") as caught:
        load_variant(folder, metadata(kernel_id), repo_info=RepoInfo("org/name", "abc"))
    note = f"The kernel 'loader-test', variant {folder.name}, of org/name at abc cannot be imported"
    assert caught.value.__notes__ == [f"{note}."]
    assert kernel_id not in sys.modules
    shown = "".join(traceback.format_exception(caught.value))
    assert sys.version_info < (3, 11) or note in shown


@pytest.mark.skipif(sys.version_info >= (3, 11), reason="a traceback shows notes")
def test_where_a_traceback_shows_no_notes_the_note_is_logged(tmp_path: Path, kernel_id: str) -> None:
    with warned("cannot be imported"), pytest.raises(ZeroDivisionError):
        load_variant(write(tmp_path, init="1 / 0"), metadata(kernel_id))


def test_an_exit_names_the_line_of_the_kernels_code(tmp_path: Path, kernel_id: str) -> None:
    folder = write(tmp_path, init="from . import layers", layers="import sys\n\nsys.exit(3)\n")
    with pytest.raises(KernelImportError, match=r"`sys\.exit\(3\)` \(layers\.py, line 3\)$"):
        load_variant(folder, metadata(kernel_id))


def test_an_interrupt_passes_through_and_leaves_no_trace(tmp_path: Path, kernel_id: str) -> None:
    folder = write(tmp_path, init="from . import _ops\nraise KeyboardInterrupt", _ops="")
    with pytest.raises(KeyboardInterrupt) as caught:
        load_variant(folder, metadata(kernel_id))
    assert "kernel 'loader-test'" in caught.value.__notes__[0]
    assert not [name for name in sys.modules if name.startswith(kernel_id)]


def test_the_name_of_a_failed_kernel_is_free_again(tmp_path: Path, kernel_id: str) -> None:
    with pytest.raises(ZeroDivisionError):
        load_variant(write(tmp_path / "a", init="1 / 0"), metadata(kernel_id))
    assert load_variant(write(tmp_path / "b", init=""), metadata(kernel_id)).__name__ == kernel_id


def test_a_failure_beside_a_loaded_kernel_of_that_id_leaves_the_loaded_one(tmp_path: Path, kernel_id: str) -> None:
    good = load_variant(write(tmp_path / "a", init="from . import _ops", _ops=""), metadata(kernel_id))
    with pytest.raises(ZeroDivisionError):
        load_variant(write(tmp_path / "b", init="from . import _ops\n1 / 0", _ops=""), metadata(kernel_id))
    assert sys.modules[kernel_id] is good
    assert {name for name in sys.modules if name.startswith(kernel_id)} == {kernel_id, f"{kernel_id}._ops"}


# Hooks of the backend


def test_a_backends_hooks_run_around_the_import(tmp_path: Path, kernel_id: str) -> None:
    calls: list[tuple[object, ...]] = []
    stages = {
        "before_import": lambda path, metadata: calls.append((path, metadata.id, kernel_id in sys.modules)),
        "after_import": lambda module, path, metadata: calls.append((module.value, path, metadata.id)),
    }
    load_variant(write(tmp_path, init="value = 1"), metadata(kernel_id), stages=stages)
    assert calls == [(tmp_path, kernel_id, True), (1, tmp_path, kernel_id)]


@pytest.mark.parametrize("hook", ["before_import", "after_import"])
def test_a_hook_that_fails_fails_the_load(tmp_path: Path, kernel_id: str, hook: str) -> None:
    def fail(*args: object) -> None:
        raise OSError("no driver")

    with pytest.raises(KernelImportError, match="OSError: no driver"):
        load_variant(write(tmp_path, init=""), metadata(kernel_id), stages={hook: fail})
    assert kernel_id not in sys.modules


# Dependencies of a kernel


def test_a_kernel_gets_its_dependencies_in_any_of_its_modules(tmp_path: Path, kernel_id: str) -> None:
    text = "from kernels import get_kernel_dep\ndep = get_kernel_dep('org/dep')\n"
    folder = write(tmp_path, init=text + "from . import layers", layers=text)
    dep = ModuleType("dep")
    module = load_variant(folder, metadata(kernel_id), deps={"org/dep": dep})
    assert module.dep is module.layers.dep is dep


def test_each_kernel_gets_its_own_dependencies_also_when_another_kernel_calls_it(
    tmp_path: Path, kernel_id: str, meeting: SimpleNamespace
) -> None:
    inner, outer = ModuleType("inner"), ModuleType("outer")
    text = "from kernels import get_kernel_dep\n"
    write(tmp_path / "b", init=text + "dep = get_kernel_dep('org/dep')\ndef late(): return get_kernel_dep('org/dep')")
    meeting.load = lambda: load_variant(tmp_path / "b", metadata(f"{kernel_id}_b"), deps={"org/dep": inner})
    write(
        tmp_path / "a",
        init=text
        + "import loader_test_meeting\nfirst = get_kernel_dep('org/dep')\nb = loader_test_meeting.load()\n"
        + "second = get_kernel_dep('org/dep')\n"
        + "try:\n    b.late()\nexcept RuntimeError as error:\n    refused = error",
    )
    a = load_variant(tmp_path / "a", metadata(f"{kernel_id}_a"), deps={"org/dep": outer})
    assert a.first is a.second is outer
    assert a.b.dep is inner
    assert isinstance(a.refused, DependencyOutsideLoad)


def test_a_thread_that_a_kernels_import_starts_gets_that_kernels_dependencies(tmp_path: Path, kernel_id: str) -> None:
    text = """
        import threading
        from kernels import get_kernel_dep
        found = []
        thread = threading.Thread(target=lambda: found.append(get_kernel_dep('org/dep')))
        thread.start()
        thread.join(30)
    """.replace("    ", "")
    dep = ModuleType("dep")
    assert load_variant(write(tmp_path, init=text), metadata(kernel_id), deps={"org/dep": dep}).found == [dep]


def test_code_that_a_kernels_import_calls_outside_of_it_gets_its_dependencies(
    tmp_path: Path, kernel_id: str, meeting: SimpleNamespace
) -> None:
    meeting.find = lambda: get_kernel_dep("org/dep")
    dep = ModuleType("dep")
    folder = write(tmp_path, init="import loader_test_meeting\ndep = loader_test_meeting.find()")
    assert load_variant(folder, metadata(kernel_id), deps={"org/dep": dep}).dep is dep
    with pytest.raises(DependencyOutsideLoad):
        meeting.find()


def test_a_dependency_outside_of_a_load_or_undeclared_is_a_runtime_error(tmp_path: Path, kernel_id: str) -> None:
    with pytest.raises(RuntimeError, match=r"`get_kernel_dep\('org/dep'\)` was called outside of the import"):
        get_kernel_dep("org/dep")
    text = "from kernels import get_kernel_dep\ndef late(): return get_kernel_dep('org/b')"
    module = load_variant(write(tmp_path / "late", init=text), metadata(kernel_id), deps={"org/b": ModuleType("b")})
    with pytest.raises(DependencyOutsideLoad, match="outside of the import"):
        module.late()
    text = "from kernels import get_kernel_dep\nget_kernel_dep('org/a')"
    deps = {"org/b": ModuleType("b"), "org/c": ModuleType("c")}
    with pytest.raises(DependencyOutsideLoad, match=r"declared dependencies are: org/b, org/c\."):
        load_variant(write(tmp_path / "undeclared", init=text), metadata(kernel_id), deps=deps)
    with pytest.raises(RequestError, match="`repo_id`"):
        get_kernel_dep("nonsense")


# Layers


def test_layers_are_the_attribute_or_the_submodule_that_is_imported_when_asked_for(
    tmp_path: Path, kernel_id: str
) -> None:
    eager = load_variant(write(tmp_path / "a", init="layers = 'mine'", layers="1 / 0"), metadata(kernel_id))
    assert kernel_layers(eager) == "mine"
    lazy = load_variant(
        write(tmp_path / "b", init="", layers="from kernels import get_kernel_dep\ndep = get_kernel_dep('org/dep')"),
        metadata(kernel_id),
        deps={"org/dep": eager},
    )
    assert not hasattr(lazy, "layers")
    assert kernel_layers(lazy) is sys.modules[f"{kernel_id}_2.layers"] is lazy.layers
    assert kernel_layers(lazy).dep is eager  # type: ignore[union-attr]
    assert kernel_layers(load_variant(write(tmp_path / "c", init=""), metadata(kernel_id))) is None
    assert kernel_layers(ModuleType("no_kernel")) is None


def test_layers_that_fail_to_import_leave_the_kernel_as_it_was(tmp_path: Path, kernel_id: str) -> None:
    folder = write(tmp_path, init="", layers__init="from . import one\nraise ValueError('no')", layers__one="")
    module = load_variant(folder, metadata(kernel_id))
    with pytest.raises(ValueError, match="no"):
        kernel_layers(module)
    assert [name for name in sys.modules if name.startswith(kernel_id)] == [kernel_id]
    (folder / "layers" / "__init__.py").write_text("from . import one")
    assert kernel_layers(module) is sys.modules[f"{kernel_id}.layers"]


LAZY = """
def __getattr__(name):
    import importlib
    if name in ("layers", "nested"):
        return importlib.import_module("." + name, __name__)
    raise AttributeError(name)
"""


def test_layers_that_the_kernel_imports_itself_when_asked_may_ask_for_their_dependencies(
    tmp_path: Path, kernel_id: str
) -> None:
    dep = ModuleType("dep")
    layers = "from kernels import get_kernel_dep\ndep = get_kernel_dep('org/dep')\n"
    lazy = load_variant(write(tmp_path, init=LAZY, layers=layers), metadata(kernel_id), deps={"org/dep": dep})
    assert kernel_layers(lazy).dep is dep  # type: ignore[union-attr]


@pytest.mark.parametrize("init", [LAZY, ""], ids=["by the kernel", "by us"])
@pytest.mark.parametrize(
    ("layers", "error", "says"),
    [
        ("import sys; sys.exit(3)", KernelImportError, r"its code called `sys\.exit\(3\)`"),
        ("raise ValueError('no')", ValueError, "no"),
        ("raise AttributeError('no')", AttributeError, "no"),
    ],
)
def test_layers_that_fail_keep_their_error_whoever_imports_them(
    tmp_path: Path, kernel_id: str, init: str, layers: str, error: type[Exception], says: str
) -> None:
    lazy = load_variant(write(tmp_path, init=init, layers=layers), metadata(kernel_id))
    with pytest.raises(error, match=says):
        kernel_layers(lazy)
    assert [name for name in sys.modules if name.startswith(kernel_id)] == [kernel_id]


def test_an_attribute_that_the_kernels_code_makes_fails_as_an_import_does(tmp_path: Path, kernel_id: str) -> None:
    lazy = "def __getattr__(name):\n    if name == 'exit': raise SystemExit\n    raise AttributeError\nhere = 1"
    kernel = load_variant(write(tmp_path, init=lazy, layers=lazy), metadata(kernel_id))
    for owner in (None, kernel_layers(kernel)):
        assert kernel_attribute(kernel, "here", of=owner) == 1
        assert kernel_attribute(kernel, "absent", of=owner) is None
        with pytest.raises(KernelImportError, match=r"its code called `sys\.exit\(\)`"):
            kernel_attribute(kernel, "exit", of=owner)


# Forks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_forked_while_another_thread_holds_the_lock_can_load(tmp_path: Path, kernel_id: str) -> None:
    write(tmp_path, init="value = 1")
    imports = """
from kernels.loader import load, registry
from kernels.models.metadata import BackendInfo, KernelName, Metadata
"""
    work = f"""
metadata = Metadata(id={kernel_id!r}, name=KernelName("forked"), backend=BackendInfo("cpu"))
assert load.load_variant({str(tmp_path)!r}, metadata).value == 1
"""
    assert fork_while_held("registry.mutex", work, imports=imports) == ("0", "")


# Bytecode


def test_bytecode_is_neither_written_nor_read(tmp_path: Path, kernel_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    folder = write(tmp_path / "v", init="from . import _ops\nvalue = _ops.value", _ops="value = 'source'")
    evil = write(tmp_path / "evil", _ops="value = 'planted'")
    # Planted where Python looks, marked as never to be checked against the source.
    for name in ("_ops", "__init__"):
        py_compile.compile(
            str(evil / "_ops.py"),
            cfile=str(folder / "__pycache__" / f"{name}.{sys.implementation.cache_tag}.pyc"),
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    planted = sorted((folder / "__pycache__").iterdir())
    assert load_variant(folder, metadata(kernel_id)).value == "source"
    assert sorted((folder / "__pycache__").iterdir()) == planted
    shutil.rmtree(folder / "__pycache__")
    assert load_variant(shutil.copytree(folder, tmp_path / "copy"), metadata(kernel_id)).value == "source"
    assert not list(tmp_path.rglob("v/**/*.pyc"))
    assert not list(tmp_path.rglob("copy/**/*.pyc"))


def test_bytecode_without_its_source_is_not_a_module(tmp_path: Path, kernel_id: str) -> None:
    folder = write(tmp_path, init="from . import hidden", hidden="")
    py_compile.compile(str(folder / "hidden.py"), cfile=str(folder / "hidden.pyc"))
    (folder / "hidden.py").unlink()
    with pytest.raises(ImportError, match="cannot import name 'hidden'"):
        load_variant(folder, metadata(kernel_id))


# Native code

EXTENSION = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "NAME", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_NAME(void) { return PyModule_Create(&module); }
"""


@pytest.fixture(scope="module")
def compile_extension(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], None]:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if compiler is None or not header.exists():
        pytest.skip("needs a C compiler and Python's headers")

    def compile_one(name: str, target: Path) -> None:
        source = tmp_path_factory.mktemp("extension") / f"{name}.c"
        source.write_text(EXTENSION.replace("NAME", name))
        flags = ["-shared", "-fPIC", *(["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else [])]
        subprocess.run([compiler, *flags, f"-I{header.parent}", str(source), "-o", str(target)], check=True)

    return compile_one


@pytest.mark.compiler
def test_a_taken_torch_namespace_is_the_error_before_torch_ends_the_process(
    tmp_path: Path, kernel_id: str, compile_extension: Callable[[str, Path], None]
) -> None:
    folders = [write(tmp_path / name, init=f"from . import {kernel_id}") for name in "abc"]
    compile_extension(kernel_id, folders[0] / f"{kernel_id}.abi3.so")
    shutil.copy(folders[0] / f"{kernel_id}.abi3.so", folders[1] / f"{kernel_id}.abi3.so")
    (folders[2] / f"{kernel_id}.abi3.so").symlink_to(folders[0] / f"{kernel_id}.abi3.so")

    load_variant(folders[0], metadata(kernel_id))
    with pytest.raises(
        KernelImportError, match=f"registers the Torch namespace '{kernel_id}', which .* has registered"
    ):
        load_variant(folders[1], metadata(kernel_id))
    assert f"{kernel_id}_2" not in sys.modules
    # One file of the cache, shared by two revisions, registers once.
    assert load_variant(folders[2], metadata(kernel_id)).__name__ == f"{kernel_id}_2"


@pytest.mark.compiler
def test_other_extensions_may_share_their_names_across_kernels(
    tmp_path: Path, kernel_id: str, compile_extension: Callable[[str, Path], None]
) -> None:
    folders = [write(tmp_path / name, init="from . import _C") for name in "ab"]
    for number, folder in enumerate(folders):
        compile_extension("_C", folder / "_C.abi3.so")
        load_variant(folder, metadata(f"{kernel_id}_{number}"))
    assert sys.modules[f"{kernel_id}_0._C"].__file__ != sys.modules[f"{kernel_id}_1._C"].__file__
