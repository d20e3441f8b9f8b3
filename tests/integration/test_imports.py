"""How much a call imports, and a library that marks its layers: every process pays for it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
from hub import TestHub

from kernels import install_kernel

#: What a call needs none of that finds its kernel in the cache: an error's text, a lockfile, a policy, a mirror, a page
#: of a notebook, a download.
RARE = frozenset(
    {
        *("configparser", "filecmp", "filelock", "html", "huggingface_hub.utils._auth", "tomllib", "tomli", "yaml"),
        "kernels.cache.writing",
        *("kernels.mirror", "kernels.models.kernel_status", "kernels.models.lockfile", "kernels.models.mirror"),
        *("kernels.models.mirror_document", "kernels.models.project"),
        *("kernels.resolver.content_hash", "kernels.resolver.advice"),
        *(
            "kernels.resolver.signature_check",
            "kernels.sources.ahead",
            "kernels.sources.download",
            "kernels.sources.folder",
        ),
        *("kernels.sources.mirror_api", "kernels.sources.progress"),
        *("kernels.support.toml", "kernels.support.yaml", "kernels.trust.sigstore"),
    }
)

#: Modules of this package that such a call imports: some more than today.
MOST = 120

_CALL = """
import json, sys
try:
    import torch
except ImportError:
    pass
from huggingface_hub.utils import get_session
get_session()
before = set(sys.modules)
import kernels
own = set(sys.modules) - before
kernels.get_kernel("acme/relu", version=1)
print(json.dumps([sorted(own), sorted(set(sys.modules) - before)]))
"""


def test_a_call_that_finds_its_kernel_in_the_cache_imports_what_it_needs(hub: TestHub) -> None:
    hub.make_repo("acme/relu", digest=True)
    install_kernel("acme/relu", version=1)
    child = subprocess.run([sys.executable, "-c", _CALL], capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr
    first, whole = json.loads(child.stdout.splitlines()[-1])
    assert first == ["kernels", "kernels._version"]
    assert all(importlib.util.find_spec(name) for name in RARE if name.startswith("kernels.")), "renamed: RARE as well"
    rare = sorted(RARE.intersection(whole))
    assert not rare, f"import these in the functions that need them: {', '.join(rare)}"
    ours = [name for name in whole if name.partition(".")[0] == "kernels"]
    assert len(ours) <= MOST, (
        f"a warm call imports {len(ours)} modules of this package, more than {MOST}: import what is new where it is "
        f"used, or raise the number. {' '.join(ours)}"
    )


#: What libraries do when they are imported, and how many modules of this package that needs at most.
AT_IMPORT = {
    "from kernels import use_kernel_forward_from_hub": 13,
    "from kernels import use_kernelized_func, replace_kernel_forward_from_hub, use_kernel_func_from_hub": 13,
    "from kernels.layer import kernelize, unkernelize; from kernels import use_kernel_mapping": 13,
    "from kernels import Mode, LayerRepository; LayerRepository('acme/relu', layer_name='ReLU', version=1)": 20,
    "from kernels import register_kernel_mapping; register_kernel_mapping({'ReLU': {}})": 42,
}


@pytest.mark.parametrize("code", AT_IMPORT)
def test_a_library_that_marks_its_layers_imports_what_marks_need(code: str) -> None:
    program = f"import sys; {code}; print(*sys.modules)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr
    ours = sorted(name for name in child.stdout.split() if name.partition(".")[0] == "kernels")
    assert len(ours) <= AT_IMPORT[code], ours
    assert not any(name.startswith("kernels.backends.builtin.") for name in ours)


def test_a_call_that_downloads_imports_none_of_what_is_slow_to_import(hub: TestHub) -> None:
    hub.make_repo("acme/relu", digest=True)
    child = subprocess.run([sys.executable, "-c", _CALL], capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr
    _, whole = json.loads(child.stdout.splitlines()[-1])
    # Waits for a lock, and what huggingface_hub reads stored logins with.
    assert not {"configparser", "filelock", "huggingface_hub.utils._auth", "secrets", "yaml"}.intersection(whole)


def test_kernelize_is_the_function_whatever_was_imported_before() -> None:
    program = """
import kernels.layer.kernelize
from kernels.layer import *
from kernels.layer import __all__ as names, kernelize as by_path
import kernels.layer.mapping
assert kernelize is by_path is kernels.kernelize is kernels.layer.kernelize
assert {*names} <= {*globals()} and {*names} <= {*dir(kernels.layer)}
from kernels.layer.kernelize import register_kernel_mapping as by_old_path
assert by_old_path is register_kernel_mapping
"""
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr


BESIDE = """
import importlib.machinery, sys, threading

import kernels

class Loader(importlib.machinery.SourceFileLoader):
    def create_module(self, spec):
        threads.append(threading.Thread(target=use))
        threads[0].start()
        # Until that thread waits for this one's import.
        while threads[0].is_alive() and sys._current_frames()[threads[0].ident].f_code.co_name != "acquire":
            pass
        return None

class Finder:
    def find_spec(self, name, path, target=None):
        if name != "kernels.layer":
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        found.loader = Loader(name, found.origin)
        return found

def use():
    used.append(kernels.kernelize)

threads, used = [], []
sys.meta_path.insert(0, Finder())
import kernels.layer
threads[0].join()
assert used == [kernels.layer.kernelize]
"""


def test_a_thread_may_import_the_package_of_a_name_that_another_thread_uses() -> None:
    done = subprocess.run([sys.executable, "-c", BESIDE], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
