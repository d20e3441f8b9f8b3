"""Short tracebacks: an error that leaves a public function shows the caller's frames and a kernel's, not our own.

`KERNELS_DEBUG=1` shows all of them, and the errors that led to it.
"""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Literal, TypeVar

from kernels.errors import KernelsError, RequestError
from kernels.support import GENERATED

__all__ = ["all_shown", "public", "show_all", "shown_as_before"]

_Call = TypeVar("_Call", bound=Callable[..., Any])

#: Where this package is; its frames are hidden.
_OWN = str(Path(__file__).parent) + os.sep

#: What this package calls: frames in it are hidden unless a kernel or the program called it.
_LIBRARIES = frozenset(
    {
        *("anyio", "certifi", "filelock", "h11", "h2", "hf_xet", "httpcore", "httpcore2", "httpx", "httpx2"),
        *("huggingface_hub", "msgspec", "packaging", "requests", "sigstore", "socksio", "tomli", "urllib3", "yaml"),
    }
)
_STDLIB = os.path.dirname(os.__file__) + os.sep

#: Not their subclasses, which a kernel may define.
SYNTAX_ERRORS = (SyntaxError, IndentationError, TabError)

#: The most errors of a chain of causes.
_LONGEST_CHAIN = 32

#: Every node of it is put on one line, so that a frame can be given the line of the function that it stands for.
_BOUNDARY = """
def around(call, left):
    def boundary(*args, **kwargs):
        __tracebackhide__ = True
        try:
            return call(*args, **kwargs)
        except Exception as error:
            raise left(error)
    return boundary
"""

#: The code of every public function, by which the outermost one is found.
_codes: set[CodeType] = set()
_all_shown = False


def public(call: _Call) -> _Call:
    """Decorate a function that users call: of an error that leaves it, the frames of this package are hidden.

    Python shows every function that an error passes, so one frame is left, with the name of the function and no source.

    Args:
        call: The function or method.

    Example:
        >>> @public
        ... def name_of(repo_id):
        ...     return repo_id.partition("/")[2]
        >>> name_of("org/name")
        'name'
    """
    boundary = _around()(call, _left)
    own = call.__code__
    # Not the file's name: the whole signature would be shown from it.
    place = f"{GENERATED}{call.__module__.removeprefix('kernels.')}>"
    code = boundary.__code__.replace(co_filename=place, co_name=own.co_name, co_firstlineno=own.co_firstlineno + 1)
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=own.co_qualname)
    boundary.__code__ = code
    # Without any source, IPython says in that frame that it could not get it. An entry without a time is never checked.
    lines = max(len(linecache.getlines(place)), code.co_firstlineno)
    linecache.cache[place] = (1, None, ["\n"] * lines, place)
    _codes.add(code)
    functools.update_wrapper(boundary, call)
    return boundary  # type: ignore[no-any-return]


def show_all() -> None:
    """Hide nothing from now on, as with `KERNELS_DEBUG=1`, until the end of a block of `shown_as_before`."""
    global _all_shown
    _all_shown = True


@contextmanager
def shown_as_before() -> Iterator[None]:
    """At the end of the block, show what was shown before it: a program may run commands of its own in its process.

    Example:
        >>> with shown_as_before():
        ...     show_all()
        >>> all_shown()
        False
    """
    global _all_shown
    before = _all_shown
    try:
        yield
    finally:
        _all_shown = before


def all_shown() -> bool:
    """Whether `show_all` was called, or `KERNELS_DEBUG` is set (or cannot be read)."""
    from kernels import settings

    try:
        return _all_shown or settings.debug()
    except RequestError:
        return True


@functools.cache
def _around() -> Callable[..., Any]:
    tree = ast.parse(_BOUNDARY)
    for node in ast.walk(tree):
        if isinstance(node, (ast.expr, ast.stmt, ast.excepthandler, ast.arg)):
            node.lineno = node.end_lineno = 1
            node.col_offset = node.end_col_offset = -1  # unknown: nothing in that line is underlined
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(tree, __file__, "exec"), names)
    around: Callable[..., Any] = names["around"]
    return around


def _left(error: Exception) -> Exception:
    """The error that leaves a public function: shortened, unless another public function called this one."""
    below = error.__traceback__
    below = None if below is None else below.tb_next  # without the public function's frame, which Python adds again
    if not all_shown() and not _called_by_public():
        shown = _foreign(below)
        others = shown is not None and _raised_here(below) is None  # a mistake here may have a callback above it
        if others or isinstance(error, KernelsError) or _is_meant(error, below):
            _relink(error)
            below = shown
    return error.with_traceback(below)


def _raised_here(trace: TracebackType | None) -> TracebackType | None:
    """The innermost part of a traceback, if it is a frame of this package."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace if trace is not None and _kind(trace.tb_frame) == "own" else None


def _is_meant(error: Exception, trace: TracebackType | None) -> bool:
    """Whether the error is no mistake here: a `raise` of this package made it, or a kernel's source is not Python."""
    if type(error) in SYNTAX_ERRORS:
        file = error.filename  # type: ignore[attr-defined]
        return isinstance(file, str) and os.path.isabs(file) and not file.startswith(_OWN)
    trace = _raised_here(trace)
    if trace is None or isinstance(error, AssertionError):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _called_by_public() -> bool:
    frame = sys._getframe(2).f_back
    while frame is not None:
        if frame.f_code in _codes:
            return True
        frame = frame.f_back
    return False


def _foreign(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that a kernel or the program has: without this package and what it calls."""
    kept: list[TracebackType] = []
    ours = True
    while trace is not None:
        kind = _kind(trace.tb_frame)
        if kind == "own":
            ours = True
        elif not (ours and kind == "library"):
            ours = False
            kept.append(trace)
        trace = trace.tb_next
    shown: TracebackType | None = None
    for each in reversed(kept):
        shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return shown


def _kind(frame: FrameType) -> Literal["own", "library", "foreign"]:
    """Whose code a frame runs: this package's, that of what it calls, or a kernel's or the program's."""
    file = frame.f_code.co_filename
    if file.startswith(_OWN):
        return "own"
    if file.startswith("<"):
        # Generated, such as the constructor of a dataclass; and the import system ("<frozen importlib._bootstrap>").
        name = frame.f_globals.get("__name__")
        own = isinstance(name, str) and name.startswith("kernels.")
        return "own" if own else "library" if file.startswith("<frozen ") else "foreign"
    for site in _sites():
        if file.startswith(site):
            package = file[len(site) :].partition(os.sep)[0].removesuffix(".py")
            return "library" if package in _LIBRARIES else "foreign"
    return "library" if file.startswith(_STDLIB) else "foreign"


@functools.cache
def _sites() -> tuple[str, ...]:
    """The folders of installed packages."""
    import sysconfig

    return tuple(sorted({os.path.join(sysconfig.get_path(kind), "") for kind in ("purelib", "platlib")}))


def _relink(error: BaseException) -> None:
    """Let an error name another as its cause or context only if a kernel or the program has raised that one."""
    suppressed = error.__suppress_context__ and error.__cause__ is None
    cause = _first_foreign(error.__cause__)
    context = None if suppressed else _first_foreign(error.__context__)
    error.__cause__, error.__context__ = cause, cause or context
    # Setting a cause suppresses the context, as `raise … from` does.
    error.__suppress_context__ = cause is not None or context is None


def _first_foreign(error: BaseException | None) -> BaseException | None:
    """The first error of a chain of causes with a frame of a kernel or the program, shortened to these."""
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            return None
        shown = _foreign(error.__traceback__)
        if shown is not None:
            return error.with_traceback(shown)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None
