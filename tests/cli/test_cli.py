"""The command line: commands are found, imported one at a time, and fail in one line."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hub import TestHub

import kernels.cli
from kernels import __version__, register_backend, unregister_backend
from kernels.backends import Backend, BackendProbe
from kernels.cli import _output
from kernels.errors import NoSuitableBuild

FOLDER = Path(kernels.cli.__file__).parent
COMMANDS = sorted(path.stem.replace("_", "-") for path in FOLDER.glob("[!_]*.py"))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Let `kernels info` raise an exception."""
    from kernels.operations import explain

    def fail(error: BaseException) -> None:
        def raises(*args: Any, **kwargs: Any) -> None:
            raise error

        monkeypatch.setattr(explain, "repository_info", raises)

    return fail


def test_every_file_of_the_folder_is_a_command_with_a_help_text(kernels: Callable[..., Any]) -> None:
    listed = kernels("--help").stdout
    for command in COMMANDS:
        assert f"\n  {command}  " in listed
        result = kernels(command, "--help")
        assert result.exit_code == 0
        assert f"Usage: kernels {command}" in result.stdout


@pytest.mark.parametrize("command", [[], *([command] for command in COMMANDS)], ids=lambda command: "".join(command))
def test_h_is_short_for_help(kernels: Callable[..., Any], command: list[str]) -> None:
    short, long = kernels(*command, "-h"), kernels(*command, "--help")
    assert (short.exit_code, short.stdout) == (0, long.stdout)
    assert "-h, --help" in short.stdout


def test_an_argument_that_may_be_repeated_is_named_without_its_brackets(kernels: Callable[..., Any]) -> None:
    shown = kernels("skills", "--help").stdout
    assert "[NAME…]" in shown.split("Arguments:")[0]
    assert "[NAME" not in shown.split("Arguments:")[1]


def test_no_arguments_show_the_help(kernels: Callable[..., Any]) -> None:
    result = kernels()
    assert result.exit_code == 0
    assert result.stdout == kernels("--help").stdout


_HELP_OF_EACH = """
import contextlib, io, json, sys
from kernels.cli import main

imported = {}
for command in sys.argv[1:]:
    before = set(sys.modules)
    sys.argv = ["kernels", command, "--help"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main()
    imported[command] = sorted(set(sys.modules) - before)
print(json.dumps([imported, sorted(sys.modules)]))
"""


def test_help_imports_one_command_and_neither_torch_nor_huggingface_hub() -> None:
    commands = [command for command in COMMANDS if command != "doctor"]
    run = subprocess.run([sys.executable, "-c", _HELP_OF_EACH, *commands], capture_output=True, text=True, timeout=120)
    imported, loaded = json.loads(run.stdout)
    for command, modules in imported.items():
        shown = [name for name in modules if name.startswith("kernels.cli.") and "._" not in name]
        assert shown == [f"kernels.cli.{command.replace('-', '_')}"]
    assert not set(loaded) & {"torch", "huggingface_hub", "kernels.api", "kernels.resolver.target"}


def test_the_version_is_that_of_the_package(kernels: Callable[..., Any]) -> None:
    first, where, which = kernels("--version").stdout.splitlines()
    assert first == f"kernels {__version__}"
    assert where.startswith(f"in {FOLDER.parent}, installed from ")
    assert which == "This is not the client that package indexes have under the name kernels."


@pytest.mark.parametrize(
    ("command", "suggested"),
    [("versions", "kernels info {}"), ("download", "kernels lock {}"), ("serve", "--directory {} ")],
)
def test_a_command_that_an_error_suggests_has_a_path_as_one_word(
    kernels: Callable[..., Any], tmp_path: Path, command: str, suggested: str
) -> None:
    folder = tmp_path / "a $(touch x);b'"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    (folder / "mirror.json").touch()
    done = kernels(command, folder)
    assert done.exit_code == 1
    assert suggested.format(shlex.quote(str(folder))) in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["inof"], "No such command 'inof'. Did you mean 'info'? See:"),
        (["_output"], "No such command '_output'. See:"),
        (["info"], "Missing argument 'KERNEL'."),
        (["info", "a/b", "--nope"], "No such option: --nope"),
        (["test", ".", "-q"], "Put arguments for pytest after --: kernels test … -- -q. See: kernels test --help"),
        (["test", "--buidl"], "--build"),  # the likely one, in typer's own words
        (["upload", "--token", "x"], "Set KERNELS_HUB_TOKEN for the Hub in KERNELS_HUB"),
        (["serve", ".", "--token", "x"], "No such option: --token. Set KERNELS_HUB_TOKEN"),
        (["info", "a/b", "c/d"], "unexpected extra argument"),
        (["info", "a/b", "--version", "one"], "Invalid value for '--version': expected an integer, got 'one'."),
        (["info", "a/b", "--version", "1.5"], "expected an integer, got '1.5'."),
        (["info", "a/b", "--version"], "Option '--version' requires an argument."),
        (["verify-signature", "a/b", "x"], "Invalid value for 'VERSION': expected an integer, got 'x'."),
        (["verify-signature", "a/b"], "Missing argument 'VERSION'."),
        (["serve", ".", "--port", "99999"], "'--port': expected an integer from 0 to 65535, got '99999'."),
        (["build", "--jobs", "0"], "'--jobs': expected an integer of at least 1, got '0'."),
        (["cache", "prune", "--older-than", "nan"], "'--older-than': expected a number of at least 0, got 'nan'."),
        (["cache", "lst"], "'lst' is not one of 'list', 'size', 'prune', 'verify', 'autotune'. Did you mean 'list'?"),
        (["cache", "prune", "--repair"], "--repair is an option of `verify`, not of `prune`."),
        (["--nope"], "No such option: --nope"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help_and_status_2(
    kernels: Callable[..., Any], arguments: list[str], says: str
) -> None:
    result = kernels(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert says.rstrip(".") in line
    assert line.endswith("--help")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("`version` is -1; expected 0 or more."), "`version` is -1; expected 0 or more."),
        (FileNotFoundError(2, "No such file", "x.json"), "[Errno 2] No such file: 'x.json'"),
        (NoSuitableBuild("No build suits:\n  torch-cuda: for cuda\nTry another."), None),
        (KeyError("x"), "KeyError: 'x' (--debug shows where)"),
        (ValueError(), "ValueError (--debug shows where)"),
        (RuntimeError("\x1b[2Jcleared"), "RuntimeError: \\x1b[2Jcleared (--debug shows where)"),
        (ValueError("[bold]not markup[/nor this]"), "[bold]not markup[/nor this]"),
    ],
)
def test_an_error_is_one_line_and_status_1(
    kernels: Callable[..., Any], failing: Callable[[BaseException], None], error: Exception, line: str | None
) -> None:
    failing(error)
    result = kernels("info", "acme/relu")
    expected = line or "No build suits: torch-cuda: for cuda. Try another."
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {expected}\n")


@pytest.mark.parametrize("arguments", [["--debug", "info", "a/b"], ["info", "a/b", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(
    kernels: Callable[..., Any], failing: Callable[[BaseException], None], arguments: list[str]
) -> None:
    failing(ValueError("told"))
    result = kernels(*arguments)
    assert result.exit_code == 1
    assert repr(result.exception) == "ValueError('told')"


def test_debug_after_a_double_dash_is_an_argument_like_any_other(kernels: Callable[..., Any]) -> None:
    result = kernels("info", "--", "--debug")
    assert result.exit_code == 1
    assert "`repo_id` is '--debug'" in result.stderr


def test_a_traceback_is_shown_on_standard_error(kernels_process: Callable[..., Any]) -> None:
    done = kernels_process("info", "no-repository", "--debug")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
        (typer.Exit(3), 3, ""),
        (typer.Abort(), 1, ""),
        (BrokenPipeError(32, ""), 1, ""),
    ],
    ids=["interrupt", "exit", "abort", "pipe"],
)
def test_interrupts_and_exits_end_with_their_status_and_without_an_error(
    kernels: Callable[..., Any], failing: Callable[[BaseException], None], error: BaseException, status: int, said: str
) -> None:
    failing(error)
    result = kernels("info", "acme/relu")
    assert (result.exit_code, result.stdout, result.stderr) == (status, "", said)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_ctrl_c_at_a_question_ends_with_status_130(isolated_env: Path) -> None:
    from kernels.cache.store import RepoStore

    store = RepoStore(isolated_env, "acme/relu")
    for commit in ("a" * 40, "b" * 40):
        store.snapshot(commit).mkdir(parents=True)
        (store.snapshot(commit) / "file").write_text("content")
    main, side = pty.openpty()
    command = [sys.executable, "-m", "kernels", "cache", "prune", "--all"]
    environment = {**os.environ, "KERNELS_CACHE": str(isolated_env)}
    process = subprocess.Popen(
        command, stdin=side, stdout=side, stderr=side, env=environment, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(side)
    shown = b""
    while b"Remove them?" not in shown:
        shown += os.read(main, 10_000)
    os.write(main, b"\x03")
    assert process.wait(timeout=120) == 130
    with contextlib.suppress(OSError):
        while more := os.read(main, 10_000):
            shown += more
    os.close(main)
    assert shown.rstrip().endswith(b"Interrupted.")
    assert store.snapshot("a" * 40).is_dir()


def test_a_caller_may_take_the_exceptions(failing: Callable[[BaseException], None]) -> None:
    failing(typer.Exit(4))
    command = typer.main.get_command(kernels.cli.app)
    assert command.main(["info", "acme/relu"], prog_name="kernels", standalone_mode=False) == 4


def test_completion_offers_commands_and_backends(kernels_process: Callable[..., Any]) -> None:
    complete = {"_KERNELS_COMPLETE": "complete_bash", "COMP_CWORD": "1", "COMP_WORDS": "kernels in"}
    assert kernels_process(**complete).stdout.split() == ["info", "init"]
    complete = {"_KERNELS_COMPLETE": "complete_bash", "COMP_CWORD": "3", "COMP_WORDS": "kernels explain --backend r"}
    assert kernels_process(**complete).stdout.split() == ["rocm"]


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour_is_for_terminals_and_never_with_no_color(env: dict[str, str], coloured: bool) -> None:
    main, side = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment |= {"TERM": "xterm-256color", **env}
    command = [sys.executable, "-m", "kernels", "info", "no-repository"]
    process = subprocess.Popen(command, stderr=side, stdout=side, stdin=side, env=environment)
    os.close(side)
    assert process.wait(timeout=120) == 1
    shown = os.read(main, 10_000).decode()
    os.close(main)
    assert ("\x1b[1;31m" in shown, "\x1b" in shown) == (coloured, coloured)
    assert "Error:" in shown


def test_tables_are_not_folded_where_nobody_reads_them_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _output.print_table(("Name", ">Size"), [("long " * 60, "1 B"), ("[red]plain[/]", "22 B")], title="a\x07b\nc")
    title, second, _, head, *rows = capsys.readouterr().out.splitlines()
    assert (title, second) == ("a\\x07b", "c")
    assert head.split() == ["Name", "Size"]
    assert rows[0].startswith("long " * 60)
    assert rows[1].startswith("[red]plain[/]")
    assert rows[0].endswith("  1 B")


def test_fields_leave_out_what_is_empty_and_list_what_is_many(capsys: pytest.CaptureFixture[str]) -> None:
    _output.print_fields({"One": "1", "None": "", "Two": ["a", "b"]})
    # Without spaces at the ends of lines, which only a terminal's colours would need.
    assert capsys.readouterr().out == "One  1\nTwo  a\n     b\n"


def test_json_takes_paths_and_refuses_what_it_cannot_hold(capsys: pytest.CaptureFixture[str]) -> None:
    _output.print_json({"path": Path("a/b")})
    assert capsys.readouterr().out == '{\n  "path": "a/b"\n}\n'
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        _output.print_json(object())


def test_json_of_bytes_in_no_encoding_is_json_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    _output.print_json({"name": "\udcff\u6838"})
    assert capsys.readouterr().out == '{\n  "name": "?\u6838"\n}\n'


def test_json_goes_to_a_stream_of_text_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    _output.print_json("\u6838")
    assert sys.stdout.getvalue() == '"\u6838"\n'  # type: ignore[attr-defined]


class Greeter(Backend):
    """A vendor whose every answer comes with a greeting."""

    name = device_type = "greeting_acme"

    def probe(self) -> BackendProbe:
        print("greetings from the probe")
        return BackendProbe(True)

    @property
    def guidance_block(self) -> str:  # type: ignore[override]
        print("greetings from the notes")
        return "Hardware."


@pytest.fixture
def greeter() -> Iterator[None]:
    register_backend(Greeter())
    yield
    unregister_backend("greeting_acme")


@pytest.mark.parametrize("command", ["backends list", "backends show greeting_acme", "doctor", "versions acme/relu"])
def test_what_a_vendor_prints_is_no_part_of_the_answer(
    kernels: Callable[..., Any], hub: TestHub, greeter: None, command: str
) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu"])
    result = kernels(*command.split(), "--json")
    assert result.exit_code in (0, 1)  # doctor finds faults with the machine
    assert isinstance(json.loads(result.stdout), (dict, list))
    assert "greetings" in result.stderr
    assert "greetings" not in kernels(*command.split()).stdout


def test_standard_output_is_the_callers_again_after_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    for fails in (False, True):
        with contextlib.suppress(ValueError), _output.reserve_stdout():
            print("a greeting")
            _output.print_line("a line")
            _output.console().print("a paragraph")
            _output.print_json(1)
            if fails:
                raise ValueError
        assert sys.stdout is before
    assert capsys.readouterr() == ("a line\na paragraph\n1\n" * 2, "a greeting\n" * 2)


_LOUD = """
import ctypes
import os
import sys
from kernels.backends.plugins.vendor_folder import VendorInfo

print("greetings from Python")
sys.__stdout__.write("greetings from a stream that was kept\\n")
os.write(1, b"greetings from the system\\n")
os.system("echo greetings from a process")
if os.name == "posix":
    ctypes.CDLL(None).printf(b"greetings from C\\n")
vendor_info = VendorInfo(vendor_name="Acme", device_name="acme")
"""


def test_what_a_vendors_libraries_and_processes_print_is_no_part_of_the_answer(
    kernels_process: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "acme"
    folder.mkdir()
    (folder / "__init__.py").write_text(_LOUD)
    done = kernels_process("doctor", "--json", KERNELS_VENDOR_PATH=str(folder))
    assert isinstance(json.loads(done.stdout), dict)
    greetings = {line for line in done.stderr.splitlines() if line.startswith("greetings")}
    assert len(greetings) == (5 if os.name == "posix" else 4)
    complete = {"_KERNELS_COMPLETE": "complete_bash", "COMP_CWORD": "3", "COMP_WORDS": "kernels explain --backend ac"}
    assert kernels_process(KERNELS_VENDOR_PATH=str(folder), **complete).stdout.split() == ["acme"]


def test_a_reader_that_leaves_ends_a_command_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "kernels", "backends", "--json"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no such device")
@pytest.mark.parametrize("arguments", [["-h"], ["--version"], ["backends"], ["backends", "--json"]], ids=" ".join)
def test_a_full_disk_under_standard_output_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "kernels", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (1, "Error: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(("columns", "width"), [(123, 123), (0, 80)])
def test_a_terminals_width_is_that_of_standard_output(columns: int, width: int) -> None:
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", columns and 10, columns, 0, 0))
    code = (
        "from kernels.cli._output import console, print_line, reserve_stdout\n"
        "with reserve_stdout():\n    print_line(str(console().size.width))"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=side, stderr=subprocess.PIPE, env=environment,
        timeout=120, check=True,
    )  # fmt: skip
    os.close(side)
    assert os.read(main, 1000).split() == [b"%d" % width]
    os.close(main)


def test_a_closed_standard_output_stays_closed_in_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with _output.reserve_stdout():
        _output.print_line("not printed")
        with pytest.raises(typer.Exit):
            _output.print_json(1)
        with pytest.raises(typer.Exit):
            _output.console()
    assert sys.stdout is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"), (10**13, "10.0 TB")],
)
def test_sizes_are_in_powers_of_1000(size: int, text: str) -> None:
    assert _output.format_size(size) == text


def test_an_error_of_many_lines_reads_as_sentences() -> None:
    assert _output.describe_error(ValueError("First.\n  Second\n\nthird")) == "First. Second; third"
    assert _output.describe_error(ValueError("Did you mean 'cuda'?\nA note")) == "Did you mean 'cuda'? A note"
