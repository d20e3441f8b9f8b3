"""An error that leaves a public function shows the caller's frames and a kernel's; `KERNELS_DEBUG=1` shows all."""

from __future__ import annotations

import copy
import gc
import inspect
import logging
import pickle
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from hub import TestHub
from typer.testing import CliRunner

import kernels
from kernels import LayerRepository, get_kernel, get_local_kernel, has_kernel, register_kernel_mapping
from kernels.cli import app
from kernels.errors import KernelImportError, RepositoryNotFound, RequestError
from kernels.layer.compare import LayerComparison
from kernels.server import HubServer
from kernels.tracebacks import public

PACKAGE = str(Path(kernels.__file__).parent)
HERE = __file__


def frames(error: BaseException) -> list[str]:
    """The functions of a traceback, innermost last."""
    return [each.name for each in traceback.extract_tb(error.__traceback__)]


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def failing(ask: Callable[..., object], *args: object, **named: object) -> Exception:
    try:
        ask(*args, **named)
    except Exception as error:  # noqa: BLE001 - whichever
        return error
    raise AssertionError


def test_a_mistyped_repository_is_a_short_traceback(hub: TestHub) -> None:
    error = failing(get_kernel, "acme/nothing", version=1)
    assert isinstance(error, RepositoryNotFound)
    assert frames(error) == ["failing", "get_kernel"]
    text = shown(error)
    assert len([line for line in text.splitlines() if line.strip(" ~^")]) == 5
    assert 'File "<kernels.api>"' in text
    assert "The above exception" not in text


def test_with_the_variable_everything_is_shown(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_DEBUG", "1")
    text = shown(failing(get_kernel, "acme/nothing", version=1))
    assert len(text.splitlines()) > 40
    assert "The above exception was the direct cause" in text


@pytest.mark.parametrize(
    "ask",
    [
        lambda: get_kernel(3),  # type: ignore[arg-type]
        lambda: get_kernel("acme"),
        lambda: has_kernel("acme/relu", device="cdua"),
        lambda: get_local_kernel("/nowhere"),
        lambda: register_kernel_mapping({"Norm": {"cdua": 3}}),  # type: ignore[dict-item]
        lambda: LayerRepository("acme/nothing", layer_name="Norm", version=1).load(),
        lambda: LayerRepository("acme", layer_name="Norm"),
        lambda: kernels.LockedLayerRepository("acme/relu", lockfile="/nowhere", layer_name="Norm"),
        lambda: kernels.LocalLayerRepository(3, layer_name="Norm"),  # type: ignore[arg-type]
        lambda: kernels.Device(3),  # type: ignore[arg-type]
        lambda: kernels.Device("cpu", kernels.CUDAProperties(1, 2)),
        lambda: kernels.CUDAProperties(90, 80),
        lambda: kernels.use_kernel_forward_from_hub(object),  # type: ignore[arg-type]
        lambda: kernels.replace_kernel_forward_from_hub(kernels, "Norm"),  # type: ignore[arg-type]
        lambda: kernels.unkernelize("x"),  # type: ignore[type-var]
        lambda: kernels.kernelize_report(3),  # type: ignore[arg-type]
        lambda: LayerComparison(()).agrees("x"),  # type: ignore[arg-type]
        lambda: HubServer("nowhere"),
    ],
)
def test_an_argument_that_is_wrong_shows_no_frame_of_the_package(hub: TestHub, ask: Callable[[], object]) -> None:
    error = failing(ask)
    assert len(frames(error)) == 3, shown(error)
    assert error.__cause__ is None


def test_an_error_of_a_kernel_keeps_the_kernels_frames(isolated_env: Path, hub: TestHub) -> None:
    source = "def broken():\n    raise RuntimeError('no device')\n\n\nbroken()\n"
    folder = hub.make_repo("acme/broken")
    for init in folder.rglob("__init__.py"):
        init.write_text(source)
    error = failing(get_local_kernel, folder)
    text = shown(error)
    assert "raise RuntimeError('no device')" in text
    chain = [error, error.__cause__, error.__context__]
    found = {name for each in chain if each is not None for name in frames(each)}
    assert {"broken", "<module>"} <= found
    assert PACKAGE not in text


def test_a_kernel_that_is_no_python_shows_its_line_alone(isolated_env: Path, hub: TestHub) -> None:
    folder = hub.make_repo("acme/broken")
    for init in folder.rglob("__init__.py"):
        init.write_text("one = 1\ndef broken(:\n")
    error = failing(get_local_kernel, folder)
    assert type(error) is SyntaxError
    assert frames(error) == ["failing", "get_local_kernel"]
    text = shown(error)
    assert "def broken(:" in text
    assert PACKAGE not in text
    if sys.version_info >= (3, 11):
        assert "cannot be imported (__init__.py, line 2)." in text


def test_source_of_this_package_that_is_no_python_shows_every_frame() -> None:
    @public
    def ask() -> None:
        compile("one = 1\ndef broken(:\n", f"{PACKAGE}/api.py", "exec")

    @public
    def generate() -> None:
        exec("def broken(:")

    assert frames(failing(ask)) == ["failing", "ask", "ask"]
    assert frames(failing(generate)) == ["failing", "generate", "generate"]


def test_a_mistake_of_this_package_below_a_callback_shows_every_frame(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.operations import load

    def callback() -> object:
        return get_kernel("acme/relu", version=1)

    @public
    def ask() -> None:
        callback()

    hub.make_repo("acme/relu")
    monkeypatch.setattr(load, "plan_tree", None)
    error = failing(ask)
    assert type(error) is TypeError
    assert PACKAGE in shown(error)


def test_the_error_that_the_program_was_handling_is_still_shown(hub: TestHub) -> None:
    def ask() -> None:
        try:
            raise ZeroDivisionError("the program's own")
        except ZeroDivisionError:
            get_kernel("acme/nothing", version=1)

    error = failing(ask)
    assert isinstance(error.__context__, ZeroDivisionError)
    assert "the program's own" in shown(error)


def test_a_program_may_name_a_cause(hub: TestHub) -> None:
    def ask() -> None:
        try:
            get_kernel("acme/nothing", version=1)
        except FileNotFoundError as error:
            raise LookupError("mine") from error

    error = failing(ask)
    assert isinstance(error.__cause__, RepositoryNotFound)
    assert frames(error.__cause__) == ["ask", "get_kernel"]


def test_only_the_outermost_public_function_shortens() -> None:
    inner_frames: list[str] = []

    @public
    def inner() -> None:
        raise RequestError("no")

    @public
    def outer() -> None:
        try:
            inner()
        except RequestError as error:
            inner_frames[:] = frames(error)
            raise

    # These stand in this file, so they are the program's to the rule; what counts is who shortens.
    error = failing(outer)
    assert inner_frames == ["outer", "inner", "inner"]
    assert frames(error)[:2] == ["failing", "outer"]


def test_a_mistake_in_the_package_is_shown_whole(isolated_env: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.operations.load.load_requested", None)
    error = failing(get_kernel, "acme/relu", version=1)
    assert isinstance(error, TypeError)
    assert frames(error) == ["failing", "get_kernel", "get_kernel"]


def test_what_functions_are_asked_for_is_unchanged() -> None:
    assert get_kernel.__name__ == get_kernel.__qualname__ == "get_kernel"
    assert get_kernel.__module__ == "kernels.api"
    assert next(iter(inspect.signature(get_kernel).parameters)) == "repo_id"
    assert inspect.getsource(get_kernel).startswith("@public\ndef get_kernel(")
    assert pickle.loads(pickle.dumps(get_kernel)) is get_kernel
    assert copy.deepcopy(get_kernel) is get_kernel


def test_a_shortened_error_pickles_and_is_logged(hub: TestHub, caplog: pytest.LogCaptureFixture) -> None:
    error = failing(get_kernel, "acme/nothing", version=1)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    logging.getLogger("program").error("failed", exc_info=error)
    assert "in get_kernel" in caplog.text
    assert "sources/wire" not in caplog.text


def test_nothing_of_a_failed_call_is_kept_alive(hub: TestHub) -> None:
    class Agent(str):
        pass

    def ask() -> weakref.ref[Agent]:
        agent = Agent("program/1")
        try:
            get_kernel("acme/nothing", version=1, user_agent=agent)
        except FileNotFoundError:
            pass
        return weakref.ref(agent)

    ask()
    gc.collect()
    gc.disable()
    try:
        left = ask()
        error = failing(get_kernel, "acme/nothing", version=1)
        assert own_frames(error) == []
        del error
        assert left() is None or gc.collect() >= 0
    finally:
        gc.enable()


def own_frames(error: BaseException) -> list[FrameType]:
    trace, found = error.__traceback__, []
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(PACKAGE) and trace.tb_frame.f_code.co_name != "get_kernel":
            found.append(trace.tb_frame)
        trace = trace.tb_next
    return found


def test_pytest_shows_the_tests_line(hub: TestHub, tmp_path: Path) -> None:
    test = tmp_path / "test_it.py"
    test.write_text("from kernels import get_kernel\n\ndef test():\n    get_kernel('acme/nothing', version=1)\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    text = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout
    assert "test_it.py:4: RepositoryNotFound" in text
    assert "api.py" not in text


def test_ipython_shows_the_cell(hub: TestHub) -> None:
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell.instance()
    with capture_output() as captured:
        shell.run_cell("from kernels import get_kernel\nget_kernel('acme/nothing', version=1)", store_history=False)
    InteractiveShell.clear_instance()
    text = captured.stdout
    assert "RepositoryNotFound" in text
    assert "sources/wire" not in text
    assert len(text.splitlines()) < 15, text


def test_the_command_line_shows_everything_with_debug(hub: TestHub) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "kernels", *arguments]
        return subprocess.run(command, capture_output=True, text=True).stderr

    assert "Traceback" not in run("versions", "acme/nothing")
    assert "sources/wire" not in run("versions", "acme/nothing")
    assert "hub_remote.py" in run("--debug", "versions", "acme/nothing")


def test_a_command_with_debug_changes_nothing_for_the_program_that_runs_it(hub: TestHub) -> None:
    result = CliRunner().invoke(app, ["--debug", "versions", "acme/nothing"])
    assert isinstance(result.exception, RepositoryNotFound)
    assert frames(failing(get_kernel, "acme/nothing", version=1)) == ["failing", "get_kernel"]


def test_errors_of_both_kinds_stay_what_callers_catch(hub: TestHub) -> None:
    assert isinstance(failing(get_kernel, "acme/nothing", version=1), FileNotFoundError)
    assert not isinstance(failing(get_kernel, "acme/nothing", version=1), KernelImportError)
