"""Where a policy requires a signature, nothing else is loaded: from a Hub, a folder, and when the Hub is away."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub, make_repo
from sigstore_root import OTHERS, SigstoreRoot

from kernels import (
    LayerRepository,
    Mode,
    api,
    get_kernel,
    get_local_kernel,
    has_kernel,
    install_kernel,
    kernelize,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
)
from kernels.authoring.bench.measured_kernel import prepare_kernel
from kernels.authoring.check.repository import audit_repository
from kernels.errors import DigestMismatch, InvalidMetadata, InvalidRepository, UntrustedSignature
from kernels.resolver.signature_check import _path as signature_record
from kernels.resolver.signature_check import signer_of
from kernels.settings import cache_dir
from kernels.trust.policy import Policy
from kernels.trust.sigstore import MAX_BUNDLE_BYTES

Sign = Callable[..., None]
WritePolicy = Callable[..., Path]
NewProcess = Callable[[], None]

#: Two builds that fit this machine, the preferred first.
CPU, UNIVERSAL = "torch-cpu", "torch-universal"


@pytest.fixture
def relu(hub: TestHub, policy: Path) -> Path:
    """The folder of `acme/relu`, unsigned, where a signature is required."""
    return hub.make_repo("acme/relu", variants=[CPU], digest=True)


def refused(repo_id: str = "acme/relu", version: int = 1) -> str:
    with pytest.raises(UntrustedSignature) as caught:
        get_kernel(repo_id, version=version)
    return str(caught.value)


def test_a_signed_build_loads(relu: Path, sign_builds: Sign) -> None:
    sign_builds(relu)
    assert get_kernel("acme/relu", version=1).variant == CPU
    assert has_kernel("acme/relu", version=1)
    assert (install_kernel("acme/relu", version=1) / "metadata.json.sigstore").is_file()


def test_a_signature_is_read_beside_the_metadata(relu: Path, hub: TestHub, sign_builds: Sign) -> None:
    sign_builds(relu)
    hub.latency = 0.25
    install_kernel("acme/relu", version=1)
    assert (len(hub.requests), hub.depth()) == (3 + 4, 3), hub.asked()


def test_an_unsigned_build_is_refused_before_anything_but_metadata_is_fetched(relu: Path, hub: TestHub) -> None:
    message = refused()
    assert message.startswith("acme/relu version 1 (commit ")
    assert "it has no signature (metadata.json.sigstore), and " in message
    assert "policy.toml requires one" in message
    assert [
        asked.path for asked in hub.requests if "/resolve/" in asked.path and "metadata.json" not in asked.path
    ] == []
    for refuse in (has_kernel, install_kernel):
        with pytest.raises(UntrustedSignature):
            refuse("acme/relu", version=1)


def test_a_build_that_somebody_else_signed_is_refused(relu: Path, sign_builds: Sign, new_process: NewProcess) -> None:
    sign_builds(relu, workflow=OTHERS["another branch"])
    assert "it is signed with the workflow" in refused()
    new_process()
    sign_builds(relu, by=SigstoreRoot())
    assert "its signature is not valid" in refused()


def test_metadata_is_parsed_only_as_it_was_signed(
    relu: Path, root: SigstoreRoot, sign_builds: Sign, new_process: NewProcess
) -> None:
    sign_builds(relu)
    (relu / "build" / CPU / "metadata.json").write_bytes(b"{}")
    assert "its signature is not valid" in refused()
    new_process()
    (relu / "build" / CPU / "metadata.json.sigstore").write_bytes(root.sign(b"{}"))
    with pytest.raises(InvalidMetadata):
        get_kernel("acme/relu", version=1)


@pytest.mark.parametrize("when", ["off", "install", "load"])
def test_what_must_be_signed_is_held_against_the_signed_digest_whatever_else_is_checked(
    when: str, relu: Path, sign_builds: Sign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_VERIFY", when)
    sign_builds(relu)
    (relu / "build" / CPU / "layers.py").write_text("raise SystemExit('run')")
    with pytest.raises(DigestMismatch, match=r"changed: 'layers\.py'"):
        get_kernel("acme/relu", version=1)


def test_a_signature_that_covers_no_files_is_refused(hub: TestHub, policy: Path, sign_builds: Sign) -> None:
    sign_builds(hub.make_repo("acme/relu", variants=[CPU], digest=False))
    assert "is signed, but has no digest, so the signature does not cover the build" in refused()


def test_an_older_version_that_was_signed_is_not_taken_for_a_newer_one(relu: Path, sign_builds: Sign) -> None:
    sign_builds(relu)
    shutil.copytree(relu, relu.with_name("v2"))
    assert "the signed metadata is version 1; expected version 2" in refused(version=2)
    assert get_kernel("acme/relu", version=1).variant == CPU


@pytest.mark.parametrize("asked", [{"version": 1}, {}, {"revision": "v1"}, {"revision": "refs/heads/v1"}], ids=str)
def test_a_signed_build_without_a_version_serves_for_none(
    hub: TestHub, policy: Path, sign_builds: Sign, asked: dict[str, Any]
) -> None:
    sign_builds(hub.make_repo("acme/relu", variants=[CPU], digest=True, metadata={"version": None}))
    with pytest.raises(UntrustedSignature, match="the signed metadata has no version; expected version 1"):
        get_kernel("acme/relu", **asked)
    commit = hub.commit("acme/relu")
    assert get_kernel("acme/relu", revision=commit).variant == CPU  # a commit says which build is meant


@pytest.mark.parametrize("revision", ["commit", "v1", "refs/heads/v1"])
@pytest.mark.parametrize("by_way_of", ["acme/relu", "acme/gelu"])
def test_a_redirect_to_an_older_signed_revision_is_no_way_around_the_version(
    hub: TestHub, policy: Path, sign_builds: Sign, revision: str, by_way_of: str
) -> None:
    sign_builds(hub.make_repo("acme/relu", variants=[CPU], digest=True))
    commit = hub.commit("acme/relu") if revision == "commit" else revision
    status = {"kind": "redirect", "destination": "acme/relu", "revision": commit}
    hub.make_repo(by_way_of, version=2, variants=[], status=status)
    with pytest.raises((UntrustedSignature, InvalidRepository), match=r"expected version 2|the same repository"):
        get_kernel(by_way_of, version=2)


def test_a_bundle_of_100_megabytes_is_neither_fetched_nor_read(relu: Path, hub: TestHub) -> None:
    with (relu / "build" / CPU / "metadata.json.sigstore").open("wb") as file:
        file.truncate(100_000_000)
    assert f"has 100000000 bytes; at most {MAX_BUNDLE_BYTES} are read" in refused()
    assert hub.count(r"sigstore$") == 0


def test_of_several_builds_the_best_signed_one_is_used_and_explain_says_why(
    hub: TestHub, policy: Path, sign_builds: Sign
) -> None:
    sign_builds(hub.make_repo("acme/relu", variants=[CPU, UNIVERSAL], digest=True), UNIVERSAL)
    assert get_kernel("acme/relu", version=1).variant == UNIVERSAL
    choice = api.explain("acme/relu", version=1)
    assert choice.best == UNIVERSAL
    [rejected] = choice.resolution.rejected
    assert "it has no signature (metadata.json.sigstore), and " in rejected.reason


def test_a_dependency_needs_its_own_signature(hub: TestHub, policy: Path, sign_builds: Sign) -> None:
    hub.make_repo("acme/base", variants=[CPU], digest=True)
    sign_builds(hub.make_repo("acme/relu", variants=[CPU], digest=True, depends=[("acme/base", 1)]))
    assert refused().startswith("acme/base version 1")


def test_a_redirect_is_no_way_out_of_having_to_be_signed(hub: TestHub, policy: Path, sign_builds: Sign) -> None:
    hub.make_repo("acme/relu", variants=[], redirect="acme/gelu")
    hub.make_repo("acme/gelu", variants=[CPU], digest=True)
    policy.write_text(f'{policy.read_text()}[repositories."acme/gelu"]\nrequire-signature = false\n')
    assert refused().startswith("acme/relu must be signed, as ")
    assert get_kernel("acme/gelu", version=1).variant == CPU
    policy.write_text(policy.read_text().replace("signature = false", "signature = true"))
    assert "it has no signature" in refused()


def test_kernelize_keeps_a_kernel_out_that_is_not_signed(
    hub: TestHub, policy: Path, sign_builds: Sign, new_process: NewProcess
) -> None:
    import torch

    @use_kernel_forward_from_hub("SiluAndMul")
    class SiluAndMul(torch.nn.Module):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return input

    relu = hub.make_repo("acme/relu", variants=[CPU], digest=True)
    repository = LayerRepository("acme/relu", layer_name="SiluAndMul", version=1)
    with use_kernel_mapping({"SiluAndMul": {"cpu": repository}}):
        with pytest.raises(UntrustedSignature, match="it has no signature"):
            kernelize(SiluAndMul(), device="cpu", mode=Mode.INFERENCE, use_fallback=False)
        sign_builds(relu)
        new_process()
        model = kernelize(SiluAndMul(), device="cpu", mode=Mode.INFERENCE, use_fallback=False)
    assert model(torch.zeros(1, 4)).shape == (1, 2)


def test_a_repository_that_no_rule_names_is_refused_where_all_must_be_signed(
    hub: TestHub, write_policy: WritePolicy, sign_builds: Sign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_POLICY", str(write_policy(repositories="acme/gelu")))
    sign_builds(hub.make_repo("acme/relu", variants=[CPU], digest=True))
    assert "allows no signer for this repository" in refused()


def test_without_a_demand_nothing_is_verified(
    hub: TestHub, write_policy: WritePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_POLICY", str(write_policy(require=False)))
    relu = hub.make_repo("acme/relu", variants=[CPU])
    (relu / "build" / CPU / "metadata.json.sigstore").write_bytes(b"garbage")
    assert get_kernel("acme/relu", version=1).variant == CPU
    assert hub.count(r"sigstore$") <= 1  # as a file of the build


def test_what_is_the_users_own_needs_no_signature(relu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_local_kernel(relu).variant == CPU
    monkeypatch.setenv("LOCAL_KERNELS", f"acme/relu={relu}")
    assert get_kernel("acme/relu", version=1).variant == CPU


def test_the_benchmarks_of_a_repository_are_signed_by_nobody(hub: TestHub, policy: Path, sign_builds: Sign) -> None:
    script = 'raise SystemExit("it ran")'
    folder = hub.make_repo("acme/relu", variants=[CPU], digest=True, files={"benchmarks/benchmark_relu.py": script})
    sign_builds(folder)
    with (
        pytest.raises(UntrustedSignature, match=r"policy\.toml says, and no signature covers its benchmarks"),
        prepare_kernel("acme/relu", version=1, revision=None, backend=None, device=None, trust_remote_code=False),
    ):
        pass
    assert hub.count("benchmark_relu") == 0


@pytest.mark.usefixtures("loading_forks")
def test_checking_a_repository_loads_nothing_that_is_not_signed(
    hub: TestHub, policy: Path, sign_builds: Sign, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    code = {"__init__.py": f"open({str(ran)!r}, 'w').close()\n"}
    folder = hub.make_repo("acme/relu", variants={CPU: {}, UNIVERSAL: code}, digest=True)
    sign_builds(folder, CPU)
    [found] = audit_repository("acme/relu", version=1)
    assert found.variant == CPU
    with pytest.raises(UntrustedSignature, match=r"acme/relu, build torch-universal: it has no signature.*--static"):
        audit_repository("acme/relu", version=1, all_variants=True)
    assert not ran.exists()
    assert len(audit_repository("acme/relu", version=1, all_variants=True, dynamic=False)) == 2


def test_checking_a_repository_loads_what_was_signed(
    hub: TestHub, policy: Path, sign_builds: Sign, tmp_path: Path
) -> None:
    folder = hub.make_repo("acme/relu", variants=[CPU], digest=True)
    sign_builds(folder)
    ran = tmp_path / "ran"
    (folder / "build" / CPU / "__init__.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    with pytest.raises(DigestMismatch):
        audit_repository("acme/relu", version=1)
    assert not ran.exists()


@pytest.mark.usefixtures("loading_forks")
def test_checking_all_variants_loads_none_that_was_signed_as_an_older_version(
    hub: TestHub, policy: Path, sign_builds: Sign, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    code = {"__init__.py": f"open({str(ran)!r}, 'w').close()\n"}
    older = hub.make_repo("acme/relu", variants={UNIVERSAL: code}, digest=True)
    newer = hub.make_repo("acme/relu", version=2, variants=[CPU], digest=True)
    sign_builds(older)
    sign_builds(newer)
    shutil.copytree(older / "build" / UNIVERSAL, newer / "build" / UNIVERSAL)
    assert [each.variant for each in audit_repository("acme/relu", version=2)] == [CPU]
    with pytest.raises(UntrustedSignature, match=f"build {UNIVERSAL}: the signed metadata is version 1; expected"):
        audit_repository("acme/relu", version=2, all_variants=True)
    assert not ran.exists()


def test_a_folder_of_repositories_needs_signatures_as_a_hub_does(
    isolated_env: Path, tmp_path: Path, policy: Path, sign_builds: Sign, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_repo(tmp_path / "mirror", "acme/relu", variants=[CPU], digest=True)
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path / "mirror"))
    monkeypatch.setenv("KERNELS_TRUSTED_PUBLISHERS", "acme")
    assert "it has no signature" in refused()
    sign_builds(folder)
    assert get_kernel("acme/relu", version=1).variant == CPU


# What was verified is remembered

_LOAD = """
import sys
sys.modules["sigstore"] = None  # importing it would fail
from kernels import get_kernel
print(get_kernel("acme/relu", version=1).variant)
"""


def in_a_new_process() -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", _LOAD], capture_output=True, text=True, timeout=120)


def test_a_verified_build_loads_again_without_sigstore_and_with_the_hub_down(
    relu: Path, hub: TestHub, sign_builds: Sign
) -> None:
    sign_builds(relu)
    assert "pip install sigstore (the extra `sign`)" in in_a_new_process().stderr
    install_kernel("acme/relu", version=1)
    hub.down()
    done = in_a_new_process()
    assert done.stdout.strip() == CPU, done.stderr


def records() -> list[Path]:
    return sorted((cache_dir() / ".locks" / "kernels-signatures").iterdir())


def test_what_is_remembered_holds_for_these_bytes_and_this_policy_alone(
    relu: Path,
    policy: Path,
    write_policy: WritePolicy,
    sign_builds: Sign,
    new_process: NewProcess,
) -> None:
    sign_builds(relu)
    install_kernel("acme/relu", version=1)
    assert len(records()) == 1
    policy.write_text(policy.read_text().replace("build.yaml", "release.yaml"))
    assert "it is signed with the workflow" in refused()
    write_policy()
    sign_builds(relu, workflow=OTHERS["another branch"])
    new_process()
    assert "it is signed with the workflow" in refused()
    assert len(records()) == 1


@pytest.mark.parametrize("how", ["renamed", "written"])
def test_a_record_of_another_build_or_one_that_others_can_write_stands_for_no_signature(
    how: str, relu: Path, policy: Path, sign_builds: Sign
) -> None:
    sign_builds(relu)
    install_kernel("acme/relu", version=1)
    [good] = records()
    build = relu / "build" / CPU
    sign_builds(relu, workflow=OTHERS["another branch"])
    contents = [(build / name).read_bytes() for name in ("metadata.json", "metadata.json.sigstore")]
    rule = Policy.read(policy).rule("acme/relu")
    path = signature_record(*contents, rule)
    about = json.loads(good.read_bytes())["about"].replace(good.name, path.name)
    if how == "renamed":
        good.rename(path)
    else:
        path.write_text(json.dumps({**json.loads(good.read_bytes()), "about": about}))
        path.chmod(0o664)
    with pytest.raises(UntrustedSignature, match="it is signed with the workflow"):
        signer_of(*contents, rule, offline=True)


@pytest.mark.parametrize(
    "content",
    [b"", b"true", b'{"issuer":"","source_repository":"","workflow":""}'],
    ids=["empty", "of another form", "of somebody else"],
)
def test_a_damaged_record_is_as_good_as_none(content: bytes, relu: Path, sign_builds: Sign) -> None:
    sign_builds(relu)
    install_kernel("acme/relu", version=1)
    [record] = records()
    before: Any = json.loads(record.read_bytes())
    record.write_bytes(content)
    install_kernel("acme/relu", version=1)
    assert json.loads(record.read_bytes()) == before


@pytest.mark.usefixtures("unreachable")
def test_a_mirror_in_a_folder_is_verified_with_the_keys_that_are_here(
    root: SigstoreRoot, isolated_env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mirror_tree import MirrorTree

    bundle = root.sign(b"{}").decode()
    MirrorTree(tmp_path / "mirror").add(variants={CPU: {"metadata.json.sigstore": bundle}})
    (tmp_path / "policy.toml").write_text("require-signature = true\n")
    monkeypatch.setenv("KERNELS_POLICY", str(tmp_path / "policy.toml"))
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path / "mirror"))
    assert "its signature is not valid" in refused()
