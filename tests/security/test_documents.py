"""Documents that cost more than they say, and what is no file in the place of one: refused at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hub import TestHub, make_repo

from kernels import get_kernel
from kernels.backends.plugins.json_schema import read_declarations
from kernels.backends.registration import DeclarationError
from kernels.errors import InvalidMetadata, InvalidRepository, KernelsError, LockError, RequestError
from kernels.models.kernel_status import MAX_STATUS_BYTES, destination
from kernels.models.lockfile import Lock
from kernels.models.metadata import Metadata
from kernels.models.requirement import Requirement
from kernels.resolver.target import Target

LIMITED = Path(__file__).with_name("limited.py")

#: Far beyond what any of it takes, and far below what it took.
SECONDS = 120

DEEP = b"[" * 10_000


# What a repository says of where it has moved


def test_a_large_status_file_is_not_fetched(hub: TestHub) -> None:
    hub.make_repo("acme/old", status="a." * 32_000 + "a = 1")
    with pytest.raises(InvalidRepository, match=r"kernel-status\.toml has 64005 bytes; more than 4096 are not read"):
        get_kernel("acme/old", version=1)
    assert hub.count("/resolve/") == 0


@pytest.mark.parametrize("listed", [MAX_STATUS_BYTES, 100])
def test_a_status_file_that_nests_is_not_parsed(hub: TestHub, listed: int) -> None:
    status = ".".join("a" * (listed // 2 - 2)) + "=1"
    assert len(status) <= listed
    hub.make_repo("acme/old", status=status)
    with pytest.raises(InvalidRepository, match=r"kernel-status\.toml is not valid TOML: it is nested too deep"):
        get_kernel("acme/old", version=1)


def test_a_status_file_is_bounded_wherever_it_comes_from() -> None:
    with pytest.raises(InvalidRepository, match="more than 4096 are not read"):
        destination(b"#" * 4097, Requirement("org/old"))


# What nests


def test_metadata_that_nests_is_refused_by_name(hub: TestHub) -> None:
    folder = hub.make_repo("acme/relu") / "build" / "torch-cpu"
    (folder / "metadata.json").write_bytes(b'{"z": ' + DEEP)
    with pytest.raises(KernelsError, match="nested too deep"):
        get_kernel("acme/relu", version=1)


def test_every_document_that_nests_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b'{"z": ' + DEEP)
    lock = tmp_path / "kernels.lock"
    lock.write_bytes(b"[]")
    (tmp_path / "kernels.hashes.json").write_bytes(path.read_bytes())
    reads: list[tuple[type[Exception], Callable[[], object]]] = [
        (InvalidMetadata, lambda: Metadata.read_from_file(path)),
        (LockError, lambda: Lock.read(path, hashes=False)),
        (LockError, lambda: Lock.read(lock)),
        (DeclarationError, lambda: read_declarations(path)),
        (RequestError, lambda: Target.from_json(path.read_bytes())),
    ]
    for error, read in reads:
        with pytest.raises(error, match="nested too deep"):
            read()


def test_a_bundle_that_nests_is_refused() -> None:
    pytest.importorskip("sigstore")
    from kernels.errors import UntrustedSignature
    from kernels.trust.policy import Policy
    from kernels.trust.sigstore import verify_bundle

    [rule] = Policy.community().all_rules()
    with pytest.raises(UntrustedSignature, match="is not a Sigstore bundle"):
        verify_bundle(b"{}", DEEP, [rule], offline=True)


def test_build_toml_that_nests_is_refused(tmp_path: Path) -> None:
    (tmp_path / "build.toml").write_text("[general]\nname = 'a'\n" + "a." * 32_000 + "a = 1\n")
    done = _kernels("build", str(tmp_path))
    assert done.returncode != 0
    assert "build.toml was not read: it is nested too deep: a key in line 3" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


# What costs


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limits are Linux's")
def test_no_document_takes_more_than_2_seconds_or_300_megabytes() -> None:
    done = subprocess.run([sys.executable, LIMITED], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.stdout.splitlines() == ['"done"'], done.stdout + done.stderr


# What is no file

_COMMAND = [sys.executable, "-m", "kernels"]


def _kernels(*arguments: str, folder: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
    )


PIPES: dict[str, tuple[str, str]] = {
    "metadata": ("build/torch-cpu/metadata.json", "Metadata.read_from_file(path)"),
    "a local kernel's metadata": ("build/torch-cpu/metadata.json", "get_local_kernel(root)"),
    "a local kernel's file": ("build/torch-cpu/layers.py", 'BuildContent(path.parent).digest("sha256")'),
    "a file that is hashed": ("file", "sha256_file(path)"),
    "a lock": ("kernels.lock", "Lock.read(path)"),
    "a lock in force": ("kernels.lock", "read_lock(path)"),
    "hashes": (
        "kernels.hashes.json",
        "Lock.read(root / 'a.lock') if 0 else Lock.read(root / 'kernels.lock')",
    ),
    "a project": ("pyproject.toml", "KernelProject.read(root)"),
    "a project's dependencies": ("pyproject.toml", "dependencies(path)"),
    "what ships": ("pyproject.toml", "wheel_files(root)"),
    "build.toml": ("build.toml", "read_source(root)"),
    "a policy": ("policy.toml", "Policy.read(path)"),
    "a trusted root": ("root.json", "Rule(trusted_root=path).key"),
    "a tune file": ("tune.yaml", "read_yaml(path)"),
    "a declaration": ("acme.json", "read_declarations(path)"),
    "a machine": ("machine.json", "parse_target(str(path))"),
    "a signature": ("build/torch-cpu/metadata.json.sigstore", "report_on_folder(path.parent, [Rule()])"),
    "signed metadata": ("build/torch-cpu/metadata.json", "report_on_folder(path.parent, [Rule()])"),
    "an audited source": ("build/torch-cpu/layers.py", "_checked(path).read('layers.py')"),
    "an audited library": ("build/torch-cpu/a.so", "_checked(path).start('a.so', 4)"),
    "a source": ("torch-ext/a.cpp", "[*hash_sources(root).hashes]"),
    "a Python source": ("a.py", "syntax_errors([(path, 'a.py')])"),
    "objects": ("made-from.json", "keep_objects(root, root, {}, [])"),
    "a stamp": ("a.stamp", "stamped_code(root, path)"),
    "a page": ("README.md", "page(path)"),
    "benchmark results": ("benchmarks/a.json", "read_results([root])"),
    "a package for its card": ("build/torch-cpu/__init__.py", "read_api(path.parent)"),
    "a benchmark": ("benchmark_a.py", "content(path)"),
    "a distribution's files": ("a.dist-info/RECORD", "_lists(str(path.parent), 'a/b.py')"),
    "a folder's status file": ("build/../kernel-status.toml", "status_file(root)"),
    "Torch's version": ("version.py", "_version_file(path)"),
    "Torch's library": ("libc10.so", "_library_abi(path)"),
}

PROGRAM = """
import sys
from pathlib import Path
from kernels import get_local_kernel
from kernels.authoring.check.checked_variant import CheckedVariant, VariantFiles
from kernels.backends.plugins.json_schema import read_declarations
from kernels.backends.torch_build import _library_abi, _version_file
from kernels.authoring.compile.sources.python_files import syntax_errors
from kernels.authoring.compile.sources.source_files import hash_sources
from kernels.authoring.compile.execution.objects import keep_objects
from kernels.authoring.compile.build_toml.reader import read_source
from kernels.authoring.compile.freshness import stamped_code
from kernels.cli._arguments import parse_target
from kernels.errors import KernelsError
from kernels.models.lockfile import Lock
from kernels.resolver.locks import read_lock
from kernels.resolver.find_lock import _lists
from kernels.authoring.bench.measured_kernel import _content as content
from kernels.models.metadata import Metadata
from kernels.models.project import KernelProject, dependencies
from kernels.authoring.publish.card.benchmarks import read_results
from kernels.authoring.publish.card.card import _read as page
from kernels.authoring.publish.card.python_api import read_api
from kernels.models.snapshot import RepoFile, Snapshot
from kernels.wheel_hooks import wheel_files
from kernels.trust.policy import Policy, Rule
from kernels.sources.folder import FolderSource
from kernels.support.files import NotRegularFile
from kernels.support.yaml import read_yaml
from kernels.operations.verify_report import report_on_folder
from kernels.trust.content import BuildContent
from kernels.trust.file_hashes import sha256_file

def status_file(root):
    source = FolderSource(root)
    return source.read(Snapshot("acme/relu", "v1", ()), RepoFile("kernel-status.toml", 1), 10)

def _checked(path):
    return CheckedVariant(path.parent, VariantFiles({}))

for line in sys.stdin:
    name, root, path, code = line.rstrip("\\n").split("\\t")
    root, path = Path(root), Path(path)
    print(name, end=": ", flush=True)
    try:
        print("ended", repr(eval(code))[:200], flush=True)
    except (KernelsError, NotRegularFile) as error:
        print("refused", type(error).__name__, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(isolated_env: Path, tmp_path: Path) -> None:
    lines = []
    for number, (name, (place, code)) in enumerate(PIPES.items()):
        root = tmp_path / str(number)
        make_repo(root, "acme/relu", version=1)
        [build] = (root / "acme" / "relu").glob("*/build/torch-cpu")
        folder = build.parents[1]
        (folder / "kernels.lock").write_text("[]")
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        lines.append("\t".join([name, str(folder), str(path), code]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert said.keys() == PIPES.keys(), done.stdout + done.stderr
    # What is passed over, or told in the answer; everything else is an error of this package.
    ended = {name for name, what in said.items() if what.startswith("ended")}
    assert ended == {
        "benchmark results",
        "a package for its card",
        "a signature",
        "signed metadata",
        "a source",
        "objects",
        "a stamp",
        "a distribution's files",
        "Torch's version",
        "Torch's library",
    }, said


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_commands_do_not_wait_for_pipes(isolated_env: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pyproject.toml")
    os.mkfifo(tmp_path / "build.toml")
    os.mkfifo(tmp_path / "policy.toml")
    os.mkfifo(tmp_path / "machine.json")
    for arguments in (
        ["lock"],
        ["build", "."],
        ["verify", ".", "--policy", "policy.toml"],
        ["explain", "acme/relu", "--target", "machine.json"],
    ):
        done = _kernels(*arguments, folder=tmp_path, HF_HUB_OFFLINE="1")
        assert done.returncode not in (0, None), arguments
        assert "Traceback" not in done.stderr, done.stderr


def test_the_attacks_are_valid_where_they_are_small(tmp_path: Path) -> None:
    """The parsers read what the table of attacks is made of: it is refused for what it costs, not for a slip."""
    text = {
        "repo-id": "a/1",
        "commit": "1" * 40,
        "variants": {"1": {"hash": "sha256-" + "1" * 64, "hash-type": "sha256sum"}},
    }
    (tmp_path / "kernels.lock").write_text(
        json.dumps([{"dependency": {"repo-id": "a/1", "version": 1}, "lock": {"commit": "1" * 40}}])
    )
    (tmp_path / "kernels.hashes.json").write_text(json.dumps({"format": 1, "kernels": [text]}))
    assert Lock.read(tmp_path / "kernels.lock").hashes
