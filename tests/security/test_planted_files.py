"""Files that somebody put beside a build's own: none of them is imported in the place of one that is listed."""

from __future__ import annotations

import _ctypes
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hub import TestHub, make_repo

from kernels import get_kernel, get_local_kernel, install_kernel
from kernels.loader.load import kernel_layers
from kernels.settings import Verify

EVIL = 'raise SystemExit("planted code ran")\n'
NATIVE = Path(_ctypes.__file__).read_bytes()  # an extension that fails under another module's name
OWN_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")

FILES = {
    "__init__.py": "from . import sub, ops\nvalue = sub.value + ops.value\n",
    "ops.py": "value = 1\n",
    "sub/__init__.py": "from . import inner\nvalue = inner.value\n",
    "sub/inner.py": "value = 1\n",
    "data/plain/table.py": "value = 5\n",  # a folder without an `__init__.py`
    "layers.py": "value = 'layers'\n",
}

PLANTED = [
    "ops.abi3.so",
    "ops.so",
    f"ops{OWN_SUFFIX}",
    "ops/__init__.py",
    f"ops/__init__{OWN_SUFFIX}",
    "ops/__init__.abi3.so",
    "layers.abi3.so",
    "layers/__init__.py",
    "__init__.abi3.so",
    f"__init__{OWN_SUFFIX}",
    "__init__.pyc",
    "sub.abi3.so",
    "sub.py",
    "sub/__init__.abi3.so",
    f"sub/__init__{OWN_SUFFIX}",
    "sub/inner.abi3.so",
    "sub/inner/__init__.py",
    "sub/__pycache__/inner.cpython-311.pyc",
    "data/__init__.py",
    "data/plain.py",
    "data/plain/__init__.abi3.so",
    "data/plain/table.so",
]


def plant(folder: Path, name: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(EVIL.encode() if name.endswith(".py") else NATIVE)


def check(module: ModuleType) -> None:
    import importlib

    assert module.value == 2
    layers = kernel_layers(module)
    assert layers is not None
    assert layers.value == "layers"
    assert importlib.import_module(f"{module.__name__}.data.plain.table").value == 5
    for name, loaded in list(sys.modules.items()):
        if name.split(".")[0] == module.__name__:
            assert str(loaded.__file__ or "x.py").endswith(".py")


@pytest.mark.parametrize("verify", ["install", "load"])
@pytest.mark.parametrize("name", PLANTED)
def test_what_lies_beside_a_builds_files_is_not_imported(
    hub: TestHub, new_process: Callable[[], None], name: str, verify: Verify
) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": FILES})
    plant(install_kernel("acme/relu", version=1), name)
    new_process()
    check(get_kernel("acme/relu", version=1, verify=verify))


def test_a_folder_or_a_link_to_one_without_an_init_is_no_package(hub: TestHub) -> None:
    import importlib

    hub.make_repo("acme/relu", variants={"torch-cpu": FILES})
    folder = install_kernel("acme/relu", version=1)
    plant(folder, "bare/evil.py")
    plant(folder.parents[1], "elsewhere/evil.py")
    (folder / "linked").symlink_to(folder.parents[1] / "elsewhere")
    module = get_kernel("acme/relu", version=1)
    for name in ("bare", "bare.evil", "linked", "linked.evil", "Ops", "OPS"):
        with pytest.raises(ModuleNotFoundError, match="No module named"):
            importlib.import_module(f"{module.__name__}.{name}")


def test_a_planted_init_in_the_root_of_an_older_build_is_not_its_module(
    hub: TestHub, new_process: Callable[[], None]
) -> None:
    files = {f"relu/{name}": text for name, text in FILES.items()}
    hub.make_repo("acme/relu", variants={"torch-cpu": files})
    # The tests' Hub writes one of its own into each build.
    for path in ("__init__.py", "layers.py"):
        (hub.root / "acme" / "relu" / "v1" / "build" / "torch-cpu" / path).unlink()
    folder = install_kernel("acme/relu", version=1)
    plant(folder, "__init__.py")
    plant(folder, "relu.abi3.so")
    new_process()
    check(get_kernel("acme/relu", version=1))


def test_what_a_kernel_wrote_beside_itself_it_still_loads_by_path(hub: TestHub) -> None:
    """Caches of compiled code: by name only what is listed is found, by path whatever the kernel's own code names."""
    init = (
        "import ctypes, importlib.util, os, shutil\n"
        "here = os.path.dirname(__file__)\n"
        "os.makedirs(os.path.join(here, 'cache'), exist_ok=True)\n"
        "with open(os.path.join(here, 'cache', 'generated.py'), 'w') as file:\n"
        "    file.write('value = 7')\n"
        "with open(os.path.join(here, 'tuned.json'), 'w') as file:\n"
        "    file.write('{}')\n"
        "spec = importlib.util.spec_from_file_location('generated', os.path.join(here, 'cache', 'generated.py'))\n"
        "generated = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(generated)\n"
        "import _ctypes\n"
        "shutil.copy(_ctypes.__file__, os.path.join(here, 'made.so'))\n"
        "library = ctypes.CDLL(os.path.join(here, 'made.so'))\n"
        "value = generated.value\n"
    )
    hub.make_repo("acme/relu", variants={"torch-cpu": {"__init__.py": init}})
    assert get_kernel("acme/relu", version=1).value == 7


def test_a_planted_file_of_tune_configurations_does_not_count(hub: TestHub) -> None:
    init = "from kernels.tuning import get_heuristics\nheuristics = get_heuristics('op', backend='cpu', default={})\n"
    hub.make_repo("acme/relu", variants={"torch-cpu": {"__init__.py": init}})
    folder = install_kernel("acme/relu", version=1)
    plant(folder, "heuristics_config_utils.py")
    module = get_kernel("acme/relu", version=1)
    assert module.heuristics.origin.kind == "default"


def test_in_a_folder_of_the_users_own_everything_counts(tmp_path: Path) -> None:
    path = make_repo(tmp_path, "acme/relu", variants={"torch-cpu": FILES})
    [build] = path.glob("**/torch-cpu")
    (build / "more.py").write_text("value = 9")
    (build / "__init__.py").write_text("from . import more\nvalue = more.value\n")
    assert get_local_kernel(path).value == 9
