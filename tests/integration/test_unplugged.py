"""A project locks its kernels and downloads them; the network goes, and everything still works without one socket."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from forked import Interpreter, started
from hub import TestHub
from unplugged import HOOK

pytest.importorskip("sigstore", reason="an extra, with which the kernels here are signed")

from sigstore_root import OTHERS, SigstoreRoot

#: Torch alone is imported once, for all processes: what downloads is not.
PREAMBLE = "import torch"

#: Before anything of kernels is imported: what would reach for a network is noted, and fails.
UNPLUG = f"""
import atexit, sys
assert not {{"kernels", "huggingface_hub", "httpx", "requests", "urllib3", "sigstore"}} & set(sys.modules)
{HOOK}
def tell():
    sys.stdout.flush()
    print(f"sockets: {{len(reached)}} {{sorted(set(reached))}}", flush=True)
atexit.register(tell)
"""

BY_VERSION = """
from kernels import get_kernel
print("version", get_kernel("acme/relu", version=1).base.repo_id)
"""

BY_LOCK = """
from kernels import get_kernel, get_locked_kernel, load_kernel
kernels = [get_locked_kernel("acme/relu"), load_kernel("acme/relu"), get_kernel("acme/relu", version=1)]
print("lock", len(set(map(id, kernels))), kernels[0].base.repo_id)
"""

BY_MAPPING = """
import torch
from kernels import LayerRepository, Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping

@use_kernel_forward_from_hub("SiluAndMul")
class SiluAndMul(torch.nn.Module):
    def forward(self, input):
        raise AssertionError("not replaced")

model = torch.nn.Sequential(SiluAndMul())
repository = LayerRepository("acme/relu", layer_name="SiluAndMul", version=1)
with use_kernel_mapping({"SiluAndMul": {"cpu": repository}}):
    kernelize(model, mode=Mode.INFERENCE, device="cpu")
print("mapping", tuple(model(torch.ones(2, 8)).shape))
"""


def command(*arguments: object) -> str:
    """Code that runs a command of this package."""
    return f"import sys\nfrom kernels.cli import main\nsys.argv = {['kernels', *map(str, arguments)]!r}\nmain()\n"


@dataclass
class Unplugged:
    """A machine without a network: where the kernels are, and the project's lock."""

    lock: Path
    interpreter: Interpreter
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *code: str, **environment: str) -> tuple[int, str, str]:
        """Run code in a process that reaches nothing; its status, what it printed, and its errors."""
        done = self.interpreter.run(
            UNPLUG + "".join(code),
            self.lock.parent,
            cwd=self.lock.parents[1],  # no project: a lock counts where it is named
            **self.environment,
            **environment,
        )
        assert done.stdout.endswith("sockets: 0 []\n"), done.stdout + done.stderr
        return done.returncode, done.stdout.removesuffix("sockets: 0 []\n"), done.stderr


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    with started(PREAMBLE) as interpreter:
        yield interpreter


@pytest.fixture
def online(hub: TestHub, tmp_path: Path, isolated_env: Path, interpreter: Interpreter) -> Callable[[str], Unplugged]:
    """Lock and download, into the cache or into a folder that is carried elsewhere, and then unplug."""
    hub.make_repo("acme/base")
    code = "from kernels import get_kernel_dep\nrepo_id = 'acme/relu'\nbase = get_kernel_dep('acme/base')\n"
    builds = {"torch-cpu": {"__init__.py": code + "from . import layers\n"}}
    hub.make_repo("acme/relu", variants=builds, depends=[("acme/base", 1)], digest=True)
    hub.make_repo("acme/gelu", digest=True)
    root = SigstoreRoot()
    root.write(tmp_path / "trusted_root.json")
    for repo_id, workflow in (("relu", None), ("gelu", OTHERS["another workflow"])):
        build = hub.root / "acme" / repo_id / "v1" / "build" / "torch-cpu"
        metadata = (build / "metadata.json").read_bytes()
        signature = root.sign(metadata) if workflow is None else root.sign(metadata, workflow)
        (build / "metadata.json.sigstore").write_bytes(signature)
    project = tmp_path / "work" / "project"
    project.mkdir(parents=True)
    (project / "pyproject.toml").write_text('[tool.kernels.dependencies]\n"acme/relu" = 1\n"acme/gelu" = 1\n')

    def kernels(*arguments: object) -> None:
        done = interpreter.run(command(*arguments), tmp_path, cwd=project)
        assert done.returncode == 0, done.stderr

    def unplug(place: str) -> Unplugged:
        kernels("lock", "--hashes")
        if place == "cache":
            kernels("download")
            machine = Unplugged(project / "kernels.lock", interpreter, {"HF_HUB_OFFLINE": "1"})
        else:
            kernels("download", "--to", tmp_path / "filled")
            shutil.rmtree(isolated_env)
            with tarfile.open(tmp_path / "kernels.tar", "w") as tar:
                tar.add(tmp_path / "filled", "kernels")
            with tarfile.open(tmp_path / "kernels.tar") as tar:
                tar.extractall(tmp_path / "elsewhere")
            shutil.rmtree(tmp_path / "filled")
            elsewhere = str(tmp_path / "elsewhere" / "kernels")
            machine = Unplugged(project / "kernels.lock", interpreter, {"KERNELS_HUB": elsewhere})
        hub.down()
        return machine

    return unplug


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Who may sign `acme/relu` and `acme/gelu`."""
    path = tmp_path / "policy.toml"
    signers = """
issuer = "https://token.actions.githubusercontent.com"
source-repository = "https://github.com/acme/kernels"
workflows = [".github/workflows/build.yaml"]
ref = "refs/heads/main"
"""
    rules = "".join(
        f'[repositories."acme/{name}"]\nrequire-signature = true\n[[repositories."acme/{name}".signers]]{signers}'
        for name in ("relu", "gelu")
    )
    path.write_text(f'trusted-root = "trusted_root.json"\n{rules}')
    return path


@pytest.mark.parametrize("place", ["cache", "carried folder"])
def test_what_was_locked_and_downloaded_needs_no_network(
    online: Callable[[str], Unplugged], policy: Path, place: str
) -> None:
    machine = online(place)
    locked = {"KERNELS_LOCKFILE": str(machine.lock), "KERNELS_LOCKED": "1"}

    assert machine.run(BY_VERSION)[:2] == (0, "version acme/base\n")
    assert machine.run(BY_LOCK, BY_MAPPING, **locked)[:2] == (0, "lock 1 acme/base\nmapping (2, 4)\n")

    signed = {"KERNELS_POLICY": str(policy)}
    assert machine.run(BY_VERSION, **signed) == (0, "version acme/base\n", "")
    code = "from kernels import get_kernel\nget_kernel('acme/gelu', version=1)\n"
    assert machine.run(code)[0] == 0
    status, _, said = machine.run(code, **signed)
    assert status == 1
    assert "UntrustedSignature" in said
    assert f"the workflow {OTHERS['another workflow'].signer}" in said
    status, found, _ = machine.run(command("verify", "acme/gelu", "--offline", "--policy", policy))
    assert status == 1
    assert "another" in found or "workflow" in found


@pytest.mark.parametrize("size", ["same", "other"])
def test_without_a_network_a_file_that_was_changed_is_found(
    online: Callable[[str], Unplugged], policy: Path, isolated_env: Path, size: str
) -> None:
    machine = online("cache")
    verify = command("verify", "acme/relu", "--offline", "--policy", policy)
    assert machine.run(verify)[0] == 0
    assert machine.run(BY_VERSION)[0] == 0
    [path] = [each for each in isolated_env.rglob("layers.py") if "relu" in str(each)]
    path = path.resolve()
    path.write_bytes(b"#" + path.read_bytes()[size == "same" :])

    status, _, said = machine.run(BY_VERSION)
    assert status == 1
    assert "DigestMismatch" in said
    assert "layers.py" in said
    status, found, _ = machine.run(verify)
    assert status == 1
    assert "failed" in found
    assert machine.run(command("cache", "verify"))[0] == 1


def test_what_is_locked_needs_no_word_that_the_network_is_gone(online: Callable[[str], Unplugged]) -> None:
    machine = online("cache")
    machine.environment.clear()
    status, found, said = machine.run(BY_LOCK, BY_MAPPING, KERNELS_LOCKFILE=str(machine.lock))
    assert (status, found) == (0, "lock 1 acme/base\nmapping (2, 4)\n"), said
