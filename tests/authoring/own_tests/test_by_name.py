"""Tests that import the kernel by the name of its sources get its build, in every process that they start."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.authoring.own_tests import by_name
from kernels.authoring.own_tests.run import run_tests
from kernels.errors import RequestError

Write = Callable[..., Path]

QUIET = ("-q", "-p", "no:cacheprovider")

#: Shapes of published kernels' tests, in one suite.
SUITE = {
    "__init__.py": "",
    # As of a suite that runs on the sources without a build.
    "conftest.py": """
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "torch-ext"))

import pytest
import real_one


@pytest.fixture
def kernel():
    return real_one
""",
    "utils.py": "SIZE = 3\n",
    "test_names.py": """
import importlib
import sys
from unittest import mock

import pytest
import real_one as ops
import torch
from real_one import late
from real_one.layers import Twice
from real_one.nested.deep import Deep

import kernels
from tests.utils import SIZE

from .utils import SIZE as size


@pytest.mark.kernels_ci
def test_it_is_the_build_and_not_the_sources(kernel):
    assert "/build/torch-cpu/" in ops.__file__
    assert ops is kernel is sys.modules[ops.__name__]
    assert ops.__name__.startswith("_real_one_cpu_")
    assert ops.__spec__.name == ops.__name__
    assert ops.add_op_namespace_prefix("x") == f"{ops.__name__}::x"
    torch.testing.assert_close(ops.twice(torch.ones(SIZE)), Twice()(torch.ones(size)))


def test_get_kernel_gives_the_same_module():
    assert kernels.get_kernel("org/real-one", version=1) is ops
    assert kernels.get_kernel("local/real-one", version=1) is ops
    assert kernels.get_kernel("org/real-one", version=1).layers.Twice is Twice
    assert len(kernels.get_loaded_kernels()) == 1


def test_submodules_are_the_builds_own():
    assert importlib.import_module("real_one.nested.deep") is sys.modules[f"{ops.__name__}.nested.deep"]
    assert late.DEEP.__class__ is Deep is ops.late.DEEP.__class__
    with pytest.raises(ModuleNotFoundError, match="No module named 'real_one.nothing'"):
        importlib.import_module("real_one.nothing")
    assert importlib.util.find_spec("real_one.nothing") is None
    with mock.patch("real_one.layers.Twice.forward", lambda self, x: x):
        assert Twice()(7) == 7
""",
    "test_processes.py": """
import multiprocessing
import pickle
import subprocess
import sys

import real_one
from real_one.nested.deep import Deep


def name_of(deep):
    assert type(deep) is Deep
    return real_one.__file__


def test_a_spawned_process_imports_it_and_gets_its_objects():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(name_of, [Deep()]) == [real_one.__file__]


def test_a_script_imports_it(tmp_path):
    (tmp_path / "pickled").write_bytes(pickle.dumps(Deep()))
    script = "import pickle, sys; got = pickle.load(open('pickled', 'rb')); import real_one.late as late; "
    script += "assert type(late.DEEP) is type(got); print(got.__module__)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == Deep.__module__
""",
}


def test_the_tests_of_authors_run_on_the_build(
    write_kernel: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = write_kernel(SUITE, files={"pytest.ini": "[pytest]\naddopts = --strict-markers\n"})
    monkeypatch.chdir(tmp_path)
    assert run_tests(folder, ["-p", "no:cacheprovider", "-n", "1"]) == 0
    out = capfd.readouterr().out
    assert "kernel: torch-cpu, imported as real_one" in out
    assert "5 passed" in out
    assert "instead of the build" not in out


def test_an_installed_package_of_that_name_gives_way(write_kernel: Write, capfd: pytest.CaptureFixture[str]) -> None:
    test = "import jedi\n\n\ndef test_it():\n    assert '_jedi_cpu_' in jedi.__name__\n    assert jedi.twice(2) == 4\n"
    assert run_tests(write_kernel({"test_it.py": test}, name="jedi"), QUIET) == 0


def test_a_module_of_python_is_not_hidden(write_kernel: Write) -> None:
    folder = write_kernel({"test_it.py": ""}, name="queue")
    with pytest.raises(RequestError, match="`import queue` gives a module of Python's standard library"):
        run_tests(folder, QUIET)


def test_a_kernel_that_imports_itself_by_that_name_fails_as_for_its_users(
    write_kernel: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    package = {"layers.py": "import real_one\n"}
    assert run_tests(write_kernel({"test_it.py": "import real_one\n"}, package=package), QUIET) == 2
    out = capfd.readouterr().out
    assert "its own code imports it by the name of its sources" in out
    assert "relative imports" in out


def test_a_repository_of_its_name_that_the_tests_mention_is_the_folder(write_kernel: Write) -> None:
    test = """
import kernels
import real_one


def test_it():
    assert kernels.get_kernel("another-org/real-one", version=1) is real_one
    assert kernels.get_kernel('another-org/real_one', version=1) is real_one
"""
    assert run_tests(write_kernel({"nested/test_it.py": test}), QUIET) == 0


def test_sources_that_tests_import_by_their_path_are_mentioned(
    write_kernel: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    test = """
import importlib.util
import sys
from pathlib import Path

spec = importlib.util.spec_from_file_location("own", Path(__file__).parents[1] / "torch-ext/real_one/nested/deep.py")
module = sys.modules["own"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)


def test_it():
    assert module.DEEP
"""
    assert run_tests(write_kernel({"test_it.py": test}), QUIET) == 0
    out = capfd.readouterr().out
    assert "the tests imported sources instead of the build: " in out
    assert "deep.py. Import the kernel by its name." in out


def test_a_folder_of_tests_can_be_called_kernels(write_kernel: Write) -> None:
    tests = {
        "kernels/__init__.py": "",
        "kernels/conftest.py": "import kernels\n\nops = kernels.get_kernel('org/real-one', version=1)\n",
        "kernels/utils.py": "SIZE = 3\n",
        "kernels/test_it.py": (
            "import subprocess, sys\n\nimport real_one\n\nfrom .utils import SIZE\n\n\ndef test_it():\n"
            "    assert real_one.twice(SIZE) == 6\n"
            "    # As a spawned process, which gets this one's `sys.path`.\n"
            "    script = f'import sys; sys.path[:] = {sys.path}; import kernels.api; from kernels.utils import SIZE'\n"
            "    subprocess.run([sys.executable, '-c', script], check=True)\n"
        ),
    }
    assert run_tests(write_kernel(tests), QUIET) == 0


def test_another_sitecustomize_runs_too(write_kernel: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = True\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=":")
    test = "import real_one\n\n\ndef test_it():\n    assert customized\n"
    assert run_tests(write_kernel({"test_it.py": test}), QUIET) == 0


def test_threads_that_load_it_in_each_way_get_one_module(write_kernel: Write) -> None:
    test = """
import importlib
from concurrent.futures import ThreadPoolExecutor

import kernels

WAYS = [lambda: importlib.import_module("real_one"), lambda: kernels.get_kernel("org/real-one", version=1)]


def test_it():
    with ThreadPoolExecutor(8) as pool:
        modules = list(pool.map(lambda number: WAYS[number % 2](), range(40)))
    assert len(set(map(id, modules))) == 1
    assert len(kernels.get_loaded_kernels()) == 1
"""
    assert run_tests(write_kernel({"test_it.py": test}), QUIET) == 0


def test_the_finder_leaves_other_modules_alone() -> None:
    finder = by_name.BuildFinder("real_one", "/nowhere", "_real_one_cpu_1a2b3c4", "nothing is built")
    assert finder.find_spec("real_one_more") is None
    assert finder.find_spec("json") is None
    with pytest.raises(ModuleNotFoundError, match="nothing is built"):
        finder.find_spec("real_one")
    assert "real_one" not in sys.modules
