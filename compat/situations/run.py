"""What a client does in situations that code for it meets: what it returns or raises, logs and warns.

    python compat/situations/run.py SETTING.json [SITUATION...]

runs every situation with the client that this Python has, each in a process of its own, and prints a JSON object. The
setting names the Hub (`url`), its folder (`repositories`), an empty folder (`folder`), the heads of the repositories
(`commits`) and modules to import once (`preload`); `hub_content.py` writes that Hub.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setting import SITUATIONS, Setting

#: The modules that list situations, in the order of the table.
MODULES = ("get_kernel", "siblings", "data", "kernelize", "mappings", "commands")


def exception_names(kind: type) -> list[str]:
    """What catches an exception: built-in exceptions and those of huggingface_hub."""
    modules = ("builtins", "huggingface_hub")
    names = [each.__name__ for each in kind.__mro__ if each.__module__.partition(".")[0] in modules]
    return sorted(set(names) - {"object", "Exception", "BaseException"}) or ["Exception"]


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] == "kernels":
            self.found.append(record.levelname)


@contextmanager
def _noted(fact: dict[str, Any]) -> Any:
    """Note the log records and the warnings of a block; those of other packages are theirs."""
    records = _Records()
    logging.getLogger().addHandler(records)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        yield
    categories = [(type(each.message) if isinstance(each.message, Warning) else each.category) for each in given]
    builtin = [
        next(base.__name__ for base in kind.__mro__ if base.__module__ == "builtins")
        for kind, each in zip(categories, given, strict=True)
        if "site-packages" not in each.filename and not issubclass(kind, ResourceWarning)
    ]
    fact["logs"], fact["warnings"] = sorted(records.found), sorted(builtin)


def run_one(function: Callable[[Setting], object], setting: Setting) -> dict[str, Any]:
    """What a situation returns or raises, with what it logs and warns."""
    fact: dict[str, Any] = {}
    with _noted(fact):
        try:
            fact["returns"] = json.loads(json.dumps(function(setting)))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            fact["raises"] = exception_names(type(error))
            traceback.print_exc()
    return fact


def run_all(setting: Setting, only: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """Every situation, each in a process of its own, which has a cache of its own."""
    facts = {}
    for number, (name, function) in enumerate(SITUATIONS.items()):
        if only and name not in only:
            continue
        started = time.monotonic()
        setting.own = setting.folder / str(number)
        setting.own.mkdir(parents=True)
        answer, log = setting.own / "fact.json", setting.own / "output.txt"
        child = os.fork()
        if not child:
            status = 1
            try:
                output = os.open(log, os.O_WRONLY | os.O_CREAT)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.chdir(setting.own)
                os.environ["KERNELS_CACHE"] = str(setting.own / "cache")
                answer.write_text(json.dumps(run_one(function, setting)))
                status = 0
            except BaseException:  # noqa: BLE001 - the process ends here
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        os.waitpid(child, 0)
        if not answer.exists():
            raise RuntimeError(f"{name}: the process ended without an answer:\n{log.read_text(errors='replace')}")
        facts[name] = json.loads(answer.read_text())
        if os.environ.get("COMPAT_TIMES"):
            print(f"{time.monotonic() - started:.2f} {name}", file=sys.stderr)
    return facts


def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text())
    for name in MODULES:
        importlib.import_module(name)
    setting = Setting(given["url"], Path(given["folder"]), given["commits"], Path(given["repositories"]))
    # What takes long to import, once for all; not the existing client, which reads the environment when it is imported.
    import torch

    torch.set_num_threads(1)
    for name in ("huggingface_hub.hf_api", "huggingface_hub.file_download", "sigstore.verify", *given["preload"]):
        try:
            importlib.import_module(name)
        except ImportError:
            pass
    gc.freeze()  # what is not collected is not copied into each process
    print(json.dumps(run_all(setting, sys.argv[2:])))


if __name__ == "__main__":
    main()
