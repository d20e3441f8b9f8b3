"""Kernels that are signed, by a Sigstore of the tests' own, and the policy that knows who may sign them."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from forked_loads import loading_forks, torch_process

if TYPE_CHECKING:
    from sigstore_root import SigstoreRoot

# sigstore is an extra: without it there is nothing to sign with. CI has it.
collect_ignore_glob = [] if find_spec("sigstore") else ["test_*.py"]

__all__ = ["loading_forks", "own_home", "policy", "root", "sign_builds", "torch_process", "unreachable", "write_policy"]


@pytest.fixture(scope="session")
def root() -> SigstoreRoot:
    """The Sigstore that the tests believe."""
    from sigstore_root import SigstoreRoot

    return SigstoreRoot()


@pytest.fixture
def write_policy(root: SigstoreRoot, tmp_path: Path) -> Callable[..., Path]:
    """Write a policy in which `acme`'s own workflow may sign, with the trusted root beside it; returns its path."""

    def write(*, require: bool = True, repositories: str = "acme/*", name: str = "policy.toml") -> Path:
        root.write(tmp_path / "trusted_root.json")
        path = tmp_path / name
        path.write_text(
            f"""\
require-signature = {str(require).lower()}
trusted-root = "trusted_root.json"

[[repositories."{repositories}".signers]]
issuer = "https://token.actions.githubusercontent.com"
source-repository = "https://github.com/acme/kernels"
workflows = [".github/workflows/build.yaml", ".github/workflows/build-mac.yaml"]
ref = "refs/heads/main"
"""
        )
        return path

    return write


@pytest.fixture
def policy(write_policy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy in force that requires a signature of every kernel."""
    path = write_policy()
    monkeypatch.setenv("KERNELS_POLICY", str(path))
    return path


@pytest.fixture
def sign_builds(root: SigstoreRoot) -> Callable[..., None]:
    """Sign the builds of a repository's folder, all or those named, as `SigstoreRoot.sign` is told."""

    def sign(folder: Path, *variants: str, by: SigstoreRoot = root, **how: Any) -> None:
        for build in sorted((folder / "build").iterdir()):
            if not variants or build.name in variants:
                metadata = (build / "metadata.json").read_bytes()
                assert json.loads(metadata)
                (build / "metadata.json.sigstore").write_bytes(by.sign(metadata, **how))

    return sign


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """sigstore keeps keys below the user's home; no verifier was made before."""
    home = tmp_path / "home"
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setattr("kernels.trust.sigstore._verifiers", {})
    return home


@pytest.fixture
def unreachable(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every request for the keys of the public Sigstore fails."""
    with socket.socket() as taken:  # bound and never listening: connecting is refused
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{taken.getsockname()[1]}")
        yield
