"""A vendor's command is run without a shell, and neither its time nor its output is without end."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from kernels.support.command import (
    CommandFailed,
    CommandStatus,
    CommandTimeout,
    run_command,
)

POSIX = pytest.mark.skipif(os.name != "posix", reason="process groups and signals are POSIX's")


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def test_the_answer_is_what_it_prints() -> None:
    assert run_command(python("print('runtime 1.2')")).strip() == "runtime 1.2"


def test_no_shell_reads_its_arguments() -> None:
    argument = "$HOME; echo two | cat > three && `four` *"
    assert run_command(python("import sys; print(sys.argv[1])", argument)).strip() == argument


def test_it_has_nothing_to_read_unless_something_is_given() -> None:
    echo = python("import sys; print(repr(sys.stdin.read()))")
    assert run_command(echo).strip() == "''"
    assert run_command(echo, given=b"words").strip() == "'words'"


def test_it_speaks_the_language_that_patterns_are_written_for() -> None:
    assert run_command(python("import os; print(os.environ['LC_ALL'])")).strip() == "C"


def test_its_messages_are_no_answer_however_many() -> None:
    assert run_command(python("import sys; sys.stderr.write('x' * 300_000); print('1.2')")).strip() == "1.2"


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert run_command(python(r"import os; os.write(1, b'a\xffb')")) == "a\ufffdb"


def test_it_may_print_as_much_as_is_read_and_no_more() -> None:
    say = python("import sys; sys.stdout.write('x' * int(sys.argv[1]))", "100")
    assert len(run_command(say, max_output=100)) == 100
    with pytest.raises(CommandFailed, match="printed more than 99 bytes"):
        run_command(say, max_output=99)


def test_a_command_that_prints_without_end_is_ended() -> None:
    with pytest.raises(CommandFailed, match="printed more than 65536 bytes"):
        run_command(python("while True: print('x' * 10_000)"), seconds=300)


def test_a_command_that_hangs_is_ended() -> None:
    with pytest.raises(CommandTimeout, match=r"did not answer within 0\.2 seconds"):
        run_command(python("import time; time.sleep(300)"), seconds=0.2)


def test_a_command_that_closes_its_output_and_goes_on_is_ended() -> None:
    with pytest.raises(CommandTimeout, match="within 2 seconds"):
        run_command(python("import os, time; os.close(1); os.close(2); time.sleep(300)"), seconds=2)


@POSIX
def test_what_a_command_has_started_ends_with_it(tmp_path: Path) -> None:
    import fcntl

    lock = tmp_path / "lock"
    child = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(flush=True); time.sleep(300)"
    parent = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "while True: print('x' * 10_000)"
    )
    with pytest.raises(CommandFailed, match="printed more than"):
        run_command(python(parent, child, str(lock)), seconds=300)
    assert lock.exists()
    with lock.open("w") as file:
        for _ in range(2000):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
        else:
            pytest.fail("the command's child still runs")


@POSIX
def test_a_process_that_slipped_away_with_the_output_is_not_waited_for(tmp_path: Path) -> None:
    end = tmp_path / "end"
    stray = (
        "import os, sys, time\n"
        "for _ in range(600):\n"
        "    os.path.exists(sys.argv[1]) and sys.exit()\n"
        "    time.sleep(.05)"
    )
    leader = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], start_new_session=True)"
    try:
        with pytest.raises(CommandTimeout):
            run_command(python(leader, stray, str(end)), seconds=1)
    finally:
        end.touch()


def test_another_exit_status_than_0_is_no_answer() -> None:
    with pytest.raises(CommandStatus, match=r"ended with exit status 3$"):
        run_command(python("print('1.2'); raise SystemExit(3)"))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('loading\\nno driver\\n\\n', file=sys.stderr)", ": 'no driver'"),
        ("sys.stderr.write('\\x1b]0;owned\\x07 no')", r": '\x1b]0;owned\x07 no'"),
        ("sys.stderr.buffer.write(b'a\\xffb')", ": 'a\N{REPLACEMENT CHARACTER}b'"),
        ("sys.stderr.write('x' * 300_000)", f": '{'x' * 199}…'"),
        ("sys.stderr.write(' \\n')", ""),
    ],
    ids=["several lines", "control characters", "no text", "very long", "nothing"],
)
def test_a_command_that_fails_is_told_with_the_last_line_of_its_messages(code: str, said: str) -> None:
    with pytest.raises(CommandStatus) as caught:
        run_command(python(f"import sys; {code}; sys.exit(3)"))
    assert str(caught.value).partition("ended with exit status 3")[2] == said


@POSIX
def test_messages_that_another_process_holds_open_are_not_waited_for(tmp_path: Path) -> None:
    end = tmp_path / "end"
    stray = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(.05)"
    leader = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], stdout=subprocess.DEVNULL, start_new_session=True)\n"
        "sys.exit('no driver')"
    )
    try:
        with pytest.raises(CommandStatus, match=r"exit status 1: 'no driver'$"):
            run_command(python(leader, stray, str(end)))
    finally:
        end.touch()


@POSIX
def test_a_command_that_a_signal_ended_gives_no_answer() -> None:
    with pytest.raises(CommandStatus, match="ended by signal 9"):
        run_command(python("import os; os.kill(os.getpid(), 9)"))


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(CommandFailed, match=r"'acme-smi-of-nobody --query' cannot be run: No such file"):
        run_command(["acme-smi-of-nobody", "--query"])


def test_a_file_that_is_no_program_is_named(tmp_path: Path) -> None:
    file = tmp_path / "acme-smi"
    file.write_text("acme")
    with pytest.raises(CommandFailed, match="cannot be run"):
        run_command([str(file)])


def test_an_argument_that_no_program_can_have_is_an_error() -> None:
    with pytest.raises(CommandFailed, match="null byte"):
        run_command([sys.executable, "a\0b"])
