"""An error of this package leaves a public function without this package's frames; `KERNELS_DEBUG=1` shows all."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from hub import TestHub
from typer.testing import CliRunner

import kernels
from kernels import LayerRepository, get_kernel, get_local_kernel, has_kernel, register_kernel_mapping
from kernels.cli import app
from kernels.errors import KernelsError, RepositoryNotFound, RequestError
from kernels.tracebacks import public


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


@pytest.mark.parametrize(
    "ask",
    [
        lambda: get_kernel("acme/nothing", version=1),
        lambda: get_kernel("acme"),
        lambda: has_kernel("acme/relu", device="cdua"),
        lambda: get_local_kernel("/nowhere"),
        lambda: register_kernel_mapping({"Norm": {"cdua": 3}}),  # type: ignore[dict-item]
        lambda: LayerRepository("acme/nothing", layer_name="Norm", version=1).load(),
        lambda: kernels.LockedLayerRepository("acme/relu", lockfile="/nowhere", layer_name="Norm"),
    ],
)
def test_an_error_shows_the_callers_frames_and_one_more(hub: TestHub, ask: Callable[[], object]) -> None:
    error = failing(ask)
    assert isinstance(error, KernelsError)
    assert frames(error) == ["failing", "<lambda>", "public_function"], shown(error)
    assert (error.__cause__, error.__context__) == (None, None)


def test_with_the_variable_everything_is_shown(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_DEBUG", "1")
    text = shown(failing(get_kernel, "acme/nothing", version=1))
    assert len(text.splitlines()) > 40
    assert "The above exception was the direct cause" in text


def test_an_error_of_a_kernel_shows_every_frame(isolated_env: Path, hub: TestHub) -> None:
    folder = hub.make_repo("acme/broken")
    for init in folder.rglob("__init__.py"):
        init.write_text("def broken():\n    raise RuntimeError('no device')\n\n\nbroken()\n")
    error = failing(get_local_kernel, folder)
    assert frames(error)[:2] == ["failing", "public_function"]
    assert frames(error)[-2:] == ["<module>", "broken"]


def test_the_frames_of_a_callback_stay() -> None:
    @public
    def inner() -> None:
        raise RequestError("no")

    @public
    def outer() -> None:
        inner()

    # `inner` and `outer` are in this file, so they stand for a kernel or a callback of the program.
    assert frames(failing(outer)) == ["failing", "public_function", "outer", "inner"]


def test_the_error_that_the_program_was_handling_is_still_shown(hub: TestHub) -> None:
    def ask() -> None:
        try:
            raise ZeroDivisionError("the program's own")
        except ZeroDivisionError:
            get_kernel("acme/nothing", version=1)

    error = failing(ask)
    assert isinstance(error.__context__, ZeroDivisionError)
    assert "the program's own" in shown(error)


def test_what_functions_are_asked_for_is_unchanged() -> None:
    assert get_kernel.__name__ == get_kernel.__qualname__ == "get_kernel"
    assert get_kernel.__module__ == "kernels.api"
    assert next(iter(inspect.signature(get_kernel).parameters)) == "repo_id"
    assert inspect.getsource(get_kernel).startswith("@public\ndef get_kernel(")
    assert pickle.loads(pickle.dumps(get_kernel)) is get_kernel
    assert copy.deepcopy(get_kernel) is get_kernel


def test_a_shortened_error_pickles(hub: TestHub) -> None:
    error = failing(get_kernel, "acme/nothing", version=1)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


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

    left = ask()
    gc.collect()
    assert left() is None


def test_pytest_shows_the_tests_line(hub: TestHub, tmp_path: Path) -> None:
    test = tmp_path / "test_it.py"
    test.write_text("from kernels import get_kernel\n\ndef test():\n    get_kernel('acme/nothing', version=1)\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    text = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout
    assert "test_it.py:4: RepositoryNotFound" in text
    assert "tracebacks.py" not in text


def test_the_command_line_shows_everything_with_debug(hub: TestHub) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "kernels", *arguments]
        return subprocess.run(command, capture_output=True, text=True).stderr

    assert "Traceback" not in run("versions", "acme/nothing")
    assert "http.py" in run("--debug", "versions", "acme/nothing")


def test_a_command_with_debug_changes_nothing_for_the_program_that_runs_it(hub: TestHub) -> None:
    result = CliRunner().invoke(app, ["--debug", "versions", "acme/nothing"])
    assert isinstance(result.exception, RepositoryNotFound)
    assert frames(failing(get_kernel, "acme/nothing", version=1)) == ["failing", "public_function"]
