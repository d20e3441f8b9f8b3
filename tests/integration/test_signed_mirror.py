"""A mirror's life: written and signed from a Hub into S3, read, brought up to date, verified and pruned."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from hub import TestHub
from s3_server import S3Server
from typer.testing import CliRunner

from kernels import get_kernel
from kernels.cli import app
from kernels.mirror.signing import MirrorSigner

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("cryptography", "zstandard", "obstore", "moto")),
    reason="the extra `mirror`, or moto, is not installed",
)


def run(*arguments: object, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["mirror", *map(str, arguments)], prog_name="kernels")
    assert done.exit_code == status, done.output
    return done.output


def test_a_signed_mirror_in_s3(
    hub: TestHub,
    s3_environment: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_process: Callable[[], None],
) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = tmp_path / "key.pem"
    key.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    monkeypatch.setenv("KERNELS_MIRROR_KEYS", MirrorSigner(key).name)
    hub.make_repo("acme/relu", variants=["torch-cpu"], digest=True)
    old = hub.commit()
    url = f"s3://{s3_environment.bucket()}/kernels"
    # The Hub is named as one: whatever else answers must be a signed mirror.
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setenv("KERNELS_HUB", "hub")
    assert "name the key (--sign-key FILE)" in run(url, "--repo", "acme/relu", status=1)
    run(url, "--repo", "acme/relu", "--sign-key", key)
    assert "Everything is as it was written." in run(url, "--verify")
    # A new commit at the origin is taken over.
    hub.make_repo("acme/relu", variants={"torch-cpu": {"more.py": "x = 1\n"}}, digest=True)
    new_process()
    run(url, "--repo", "acme/relu", "--sign-key", key)
    new_process()
    monkeypatch.setenv("KERNELS_HUB", url)
    module = get_kernel("acme/relu", version=1)
    assert module.__file__ is not None
    assert (Path(module.__file__).parent / "more.py").exists()
    assert get_kernel("acme/relu", revision=old).__file__
    assert old[:12] in run(url, "--prune", "--dry-run")
    assert "name the key (--sign-key FILE)" in run(url, "--prune", "--yes", status=1)
    assert "Removed 1 commit and 1 archive" in run(url, "--prune", "--yes", "--sign-key", key)
    assert "1 repository, 1 commit, 1 archive (" in run(url, "--verify")
