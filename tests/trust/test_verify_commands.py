"""`kernels verify` and `kernels verify-signature` over a Hub, folders and a lock."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub, make_repo
from mirror_tree import MirrorTree
from opened_files import opened_below
from sigstore_root import ACME, OTHERS, SigstoreRoot
from typer.testing import CliRunner
from writable_hub import TOKEN, WritableHub

from kernels.cli import app
from kernels.models.lockfile import Lock, Pin, hashes_path
from kernels.models.requirement import Requirement
from kernels.trust.content import BuildContent

CPU, UNIVERSAL, CUDA = "torch-cpu", "torch-universal", "torch-cuda"

SIGNED = f"signed by {ACME.signer}"


def kernels(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="kernels")


def verdicts(*arguments: object) -> dict[str, str]:
    """What `kernels verify … --json` says: by build, the verdicts on digest, pinned content and signature."""
    result = kernels("verify", *arguments, "--json")
    assert result.stdout, result.stderr
    answer = json.loads(result.stdout)
    assert answer["failed"] is any(build["failed"] for build in answer["builds"])
    assert result.exit_code == answer["failed"]
    return {
        build["variant"]: " ".join(build[proof]["verdict"] for proof in ("digest", "pinned", "signature"))
        for build in answer["builds"]
    }


@pytest.fixture
def relu(hub: TestHub, sign_builds: Callable[..., None], write_policy: Callable[..., Path]) -> Path:
    """The folder of `acme/relu`: a signed build, one without digest and signature, one of another backend."""
    write_policy(require=False)
    folder = hub.make_repo("acme/relu", variants=[CPU, CUDA], digest=True)
    sign_builds(folder)
    hub.make_repo("acme/relu", variants=[UNIVERSAL])
    return folder


@pytest.fixture
def allowed(tmp_path: Path) -> tuple[str, Path]:
    """The arguments that name the policy."""
    return "--policy", tmp_path / "policy.toml"


def cached(hub: TestHub, cache: Path, variant: str = CPU, file: str = "__init__.py") -> Path:
    """A file of a build in the cache."""
    return (cache / "kernels--acme--relu" / "snapshots" / hub.commit() / "build" / variant / file).resolve()


def test_a_signed_build_is_downloaded_and_verified(relu: Path, hub: TestHub, allowed: Any) -> None:
    result = kernels("verify", "acme/relu", "--version", 1, *allowed)
    assert result.exit_code == 0, result.output
    assert [line.split(maxsplit=4) for line in result.stdout.splitlines()[1:2]] == [
        [CPU, "ok", "missing", "ok", SIGNED]
    ]
    assert result.stdout.splitlines()[-1] == "1 build: nothing failed."
    [build] = json.loads(kernels("verify", "acme/relu", "--version", 1, *allowed, "--json").stdout)["builds"]
    assert build["commit"] == hub.commit()
    assert build["digest"] == {"verdict": "ok", "reason": "sha256 of 2 files"}
    assert build["signer"] == {
        "issuer": ACME.issuer,
        "source_repository": ACME.repository,
        "workflow": ACME.signer,
    }


def test_all_builds_are_verified_and_what_a_build_lacks_is_no_failure(relu: Path, allowed: Any) -> None:
    assert verdicts("acme/relu", "--version", 1, "--all-variants", *allowed) == {
        CPU: "ok missing ok",
        CUDA: "ok missing ok",
        UNIVERSAL: "missing missing missing",
    }


def test_where_a_signature_is_required_an_unsigned_build_fails(
    relu: Path, policy: Path, allowed: Any, sign_builds: Callable[..., None]
) -> None:
    found = verdicts("acme/relu", "--version", 1, "--all-variants")  # the policy that KERNELS_POLICY names
    assert found == {CPU: "ok missing ok", CUDA: "ok missing ok", UNIVERSAL: "skipped missing failed"}
    sign_builds(relu, UNIVERSAL)
    result = kernels("verify", relu / "build" / UNIVERSAL, *allowed)
    assert "its metadata.json has no digest: the signature does not cover the files" in result.stdout
    assert result.exit_code == 1


def test_a_file_that_changed_in_the_cache_is_found(relu: Path, hub: TestHub, allowed: Any, isolated_env: Path) -> None:
    assert verdicts("acme/relu", "--version", 1, *allowed) == {CPU: "ok missing ok"}
    file = cached(hub, isolated_env)
    file.write_bytes(file.read_bytes().replace(b"return", b"retusn"))
    assert verdicts("acme/relu", "--version", 1, "--offline", *allowed) == {CPU: "failed missing ok"}
    result = kernels("verify", "acme/relu", "--version", 1, *allowed)
    assert "changed: '__init__.py'" in result.stdout
    assert "kernels cache verify --repo acme/relu --repair" in result.stdout
    assert result.stdout.splitlines()[-1] == "1 build: 1 failed."


def test_metadata_that_changed_in_the_cache_is_found_by_its_signature(
    relu: Path, hub: TestHub, allowed: Any, isolated_env: Path
) -> None:
    verdicts("acme/relu", "--version", 1, *allowed)
    file = cached(hub, isolated_env, file="metadata.json")
    file.write_bytes(file.read_bytes().replace(b"Apache-2.0", b"Apache-3.0"))
    result = kernels("verify", cached(hub, isolated_env, file="").parent / CPU, *allowed)
    assert result.exit_code == 1
    assert "its signature is not valid" in result.stdout
    folder = isolated_env / "kernels--acme--relu" / "snapshots" / hub.commit()
    assert verdicts(folder, *allowed)[CPU] == "skipped missing failed"


def test_a_signature_of_somebody_else_and_a_bundle_that_is_none_fail(
    relu: Path, allowed: Any, sign_builds: Callable[..., None]
) -> None:
    sign_builds(relu, CPU, workflow=OTHERS["another branch"])
    (relu / "build" / CUDA / "metadata.json.sigstore").write_bytes(b"garbage")
    result = kernels("verify", relu, *allowed)
    assert result.exit_code == 1
    assert "it is signed with the workflow" in result.stdout
    assert "its metadata.json.sigstore is not a Sigstore bundle" in result.stdout
    assert verdicts(relu, *allowed)[CPU] == "skipped missing failed"


def test_without_a_policy_only_the_known_publisher_may_sign(relu: Path, tmp_path: Path) -> None:
    root = ("--trusted-root", tmp_path / "trusted_root.json")
    result = kernels("verify", "acme/relu", "--version", 1, *root)
    assert f"it is signed by {ACME.signer}, and the policy of this package allows no signer" in result.stdout
    assert result.exit_code == 1


def test_the_known_publisher_is_known_without_a_policy(
    hub: TestHub, root: Any, tmp_path: Path, sign_builds: Callable[..., None]
) -> None:
    workflow = replace(ACME, repository="https://github.com/huggingface/kernels-community")
    sign_builds(hub.make_repo("kernels-community/relu", variants=[CPU], digest=True), workflow=workflow)
    trusted = ("--trusted-root", root.write(tmp_path / "trusted_root.json"))
    assert verdicts("kernels-community/relu", "--version", 1, *trusted) == {CPU: "ok missing ok"}


def test_a_folder_and_one_variant_are_verified_where_they_lie(relu: Path, allowed: Any) -> None:
    every = {CPU: "ok missing ok", CUDA: "ok missing ok", UNIVERSAL: "missing missing missing"}
    assert verdicts(relu, *allowed) == verdicts(relu / "build", "--offline", *allowed) == every
    assert verdicts(relu / "build" / CUDA, *allowed) == {CUDA: every[CUDA]}


def test_a_kernel_that_was_signed_before_it_was_published_is_verified_from_the_hub(
    isolated_env: Path,
    tmp_path: Path,
    allowed: Any,
    sign_builds: Callable[..., None],
    write_policy: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_policy()
    kernel = make_repo(tmp_path / "work", "acme/relu", variants=[CPU], digest=True)
    sign_builds(kernel)
    with WritableHub(tmp_path / "hub") as hub:
        monkeypatch.setenv("KERNELS_HUB", hub.url)
        monkeypatch.setenv("KERNELS_HUB_TOKEN", TOKEN)
        uploaded = kernels("upload", kernel, "--repo-id", "acme/relu")
        assert uploaded.exit_code == 0, uploaded.output
        assert verdicts("acme/relu", "--version", 1, *allowed) == {CPU: "ok missing ok"}


def test_an_answer_that_breaks_off_says_nothing_about_a_builds_content(relu: Path, hub: TestHub, allowed: Any) -> None:
    hub.truncate("acme/relu/resolve/.*layers")
    result = kernels("verify", "acme/relu", "--version", 1, *allowed)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")


# Offline


def test_offline_nothing_is_asked_and_what_is_here_is_verified(relu: Path, hub: TestHub, allowed: Any) -> None:
    assert verdicts("acme/relu", "--version", 1, *allowed) == {CPU: "ok missing ok"}
    hub.clear()
    hub.down()
    offline = ("acme/relu", "--version", 1, "--offline", *allowed)
    assert verdicts(*offline) == {CPU: "ok missing ok"}
    assert verdicts(*offline, "--all-variants") == {
        CPU: "ok missing ok",
        CUDA: "skipped skipped skipped",
        UNIVERSAL: "skipped skipped skipped",
    }
    assert verdicts(*offline, "--all-variants", "--require", "digest") == {
        CPU: "ok missing ok",
        CUDA: "failed skipped skipped",
        UNIVERSAL: "failed skipped skipped",
    }
    assert hub.requests == []


def test_offline_nothing_here_is_an_error(relu: Path, allowed: Any) -> None:
    result = kernels("verify", "acme/relu", "--version", 1, "--offline", *allowed)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "acme/relu is not in the cache" in result.stderr


# A lock


@pytest.fixture
def locked(relu: Path, hub: TestHub, tmp_path: Path) -> Path:
    """A lock of `acme/relu`, with its content pinned when it had no build but those for the processor."""
    commit = hub.commit()
    hashes = {name: BuildContent(relu / "build" / name).pinned_hash("sha256sum") for name in (CPU, UNIVERSAL)}
    lock = Lock((Pin(Requirement("acme/relu", version=1), commit),), {("acme/relu", commit): hashes})
    path = tmp_path / "kernels.lock"
    path.write_bytes(lock.to_bytes())
    hashes_path(path).write_bytes(lock.hashes_to_bytes())
    return path


def test_what_a_lock_pins_is_verified_at_its_commit(locked: Path, hub: TestHub, relu: Path, allowed: Any) -> None:
    assert verdicts("--lockfile", locked, *allowed) == {CPU: "ok ok ok"}
    assert verdicts("--lockfile", locked, "--all-variants", *allowed) == {
        CPU: "ok ok ok",
        CUDA: "ok failed ok",
        UNIVERSAL: "missing ok missing",
    }
    assert f"acme/relu   {hub.commit()[:12]}  torch-cpu" in kernels("verify", "--lockfile", locked, *allowed).stdout


def test_a_build_is_read_once_for_its_digest_and_its_pin(
    locked: Path, hub: TestHub, allowed: Any, isolated_env: Path
) -> None:
    verdicts("--lockfile", locked, *allowed)
    folder = isolated_env / "kernels--acme--relu" / "snapshots" / hub.commit() / "build" / CPU
    with opened_below(folder) as opened:
        assert verdicts("--lockfile", locked, *allowed) == {CPU: "ok ok ok"}
    assert sorted(name for name in opened if "metadata" not in name) == ["__init__.py", "layers.py"]


def test_what_is_required_and_missing_is_an_error(locked: Path, hub: TestHub, allowed: Any) -> None:
    given = ("--lockfile", locked, *allowed)
    assert verdicts(*given, "--require", "pinned", "--require", "signature") == {CPU: "ok ok ok"}
    hashes_path(locked).unlink()
    assert verdicts(*given) == {CPU: "ok missing ok"}
    assert verdicts(*given, "--require", "pinned") == {CPU: "ok failed ok"}
    result = kernels("verify", *given, "--require", "pinned")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (1, "1 build: 1 failed.")
    assert "no lockfile pins its content, and --require pinned" in result.stdout
    assert verdicts(*given, "--all-variants", "--require", "digest")[UNIVERSAL] == "failed missing missing"
    assert verdicts(*given, "--all-variants", "--require", "signature")[UNIVERSAL] == "missing missing failed"


def test_only_a_check_can_be_required() -> None:
    result = kernels("verify", "acme/relu", "--require", "pin")
    assert result.exit_code != 0
    assert "'pin' is not one of 'digest', 'pinned', 'signature'" in " ".join(result.output.split())


def test_content_that_a_lock_does_not_pin_is_found_without_digest_and_signature(
    locked: Path, hub: TestHub, allowed: Any, isolated_env: Path
) -> None:
    verdicts("--lockfile", locked, "--all-variants", *allowed)
    file = cached(hub, isolated_env, UNIVERSAL)
    file.write_bytes(file.read_bytes().replace(b"return", b"retusn"))
    offline = ("--lockfile", locked, "--all-variants", "--offline", *allowed)
    assert verdicts(*offline)[UNIVERSAL] == "missing failed missing"
    assert "expected the sha256sum hash" in kernels("verify", *offline).stdout


def test_a_repository_is_verified_at_the_commit_and_with_the_content_that_the_lock_in_force_pins(
    locked: Path, hub: TestHub, allowed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = hub.commit()
    asked = ("acme/relu", "--version", 1, "--all-variants", *allowed)
    verdicts(*asked)
    hub.make_repo("acme/relu", variants=[CPU], seed="newer")
    monkeypatch.setenv("KERNELS_LOCKFILE", str(locked))
    assert verdicts(*asked) == {CPU: "ok ok ok", CUDA: "ok failed ok", UNIVERSAL: "missing ok missing"}
    builds = json.loads(kernels("verify", *asked, "--json").stdout)["builds"]
    assert {build["commit"] for build in builds} == {pinned}


# verify-signature


@pytest.mark.parametrize(
    ("filters", "failing"),
    [
        ((), {UNIVERSAL, CUDA}),
        (("--filter-unsigned",), {CUDA}),
        (("--filter-no-digest",), {UNIVERSAL}),
        (("--filter-unsigned", "--filter-no-digest"), set()),
    ],
    ids=["none", "unsigned", "no digest", "both"],
)
def test_verify_signature_fails_for_what_is_unsigned_or_has_no_digest_unless_it_is_filtered(
    filters: tuple[str, ...],
    failing: set[str],
    relu: Path,
    hub: TestHub,
    write_policy: Callable[..., Path],
    sign_builds: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERNELS_POLICY", str(write_policy(require=False)))
    hub.make_repo("acme/relu", variants=[CUDA])
    sign_builds(relu, CUDA)
    result = kernels("verify-signature", "acme/relu", 1, "--all-variants", *filters)
    lines = [line.split(maxsplit=2) for line in result.stdout.splitlines()[1:]]
    assert {line[0] for line in lines if line[1] == "failed"} == failing
    assert [line for line in lines if line[1] == "ok"] == [[CPU, "ok", SIGNED]]
    assert result.exit_code == bool(failing)


def test_verify_signature_takes_a_policy_and_says_where_the_filters_leave_nothing(
    relu: Path, hub: TestHub, allowed: Any
) -> None:
    assert kernels("verify-signature", "acme/relu", 1, *allowed).exit_code == 0
    hub.make_repo("acme/gelu")
    result = kernels("verify-signature", "acme/gelu", 1, "--filter-unsigned", *allowed)
    assert (result.exit_code, result.stdout) == (0, "No build was verified: the filters skip all of them.\n")


# Arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Give either a repository or folder, or a lockfile (--lockfile FILE)."),
        (("acme/relu", "--lockfile", "kernels.lock"), "Give either a repository or folder"),
        (("--lockfile", "kernels.lock", "--version", "1"), "kernels.lock pins the versions; leave --version and"),
        ((".", "--revision", "v1"), ". is a folder, which has one version only; leave --version and --revision out."),
        (("--lockfile", "kernels.lock"), "kernels.lock: No such file or directory."),
        (("acme/relu", "--policy", "policy.toml"), "The policy policy.toml cannot be read: No such file or directory."),
        (("acme/relu", "--version", "1", "--revision", "v1"), "version"),
    ],
    ids=["nothing", "both", "version of a lock", "revision of a folder", "no lock", "no policy", "version, revision"],
)
def test_wrong_arguments_are_one_clear_line(
    arguments: tuple[str, ...], message: str, isolated_env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = kernels("verify", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("where", ["option", "policy"])
def test_a_trusted_root_that_is_not_there_is_said_though_nothing_is_signed(
    hub: TestHub, tmp_path: Path, where: str
) -> None:
    hub.make_repo("acme/gelu")
    (tmp_path / "policy.toml").write_text('trusted-root = "nope.json"\n')
    named = ("--trusted-root", tmp_path / "nope.json") if where == "option" else ("--policy", tmp_path / "policy.toml")
    result = kernels("verify", "acme/gelu", "--version", 1, *named)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nope.json cannot be read: No such file or directory" in result.stderr


def test_a_kernel_without_a_build_for_this_machine_names_the_way_to_verify_all(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants=[CUDA])
    result = kernels("verify", "acme/relu", "--version", 1)
    assert result.exit_code == 1
    assert "All builds are verified with --all-variants." in result.stderr
    assert kernels("verify", "acme/relu", "--version", 1, "--all-variants").exit_code == 0


def test_an_untrusted_publisher_is_mentioned_and_is_no_failure(hub: TestHub) -> None:
    hub.make_repo("eve/relu", digest=True)
    result = kernels("verify", "eve/relu", "--version", 1)
    assert result.exit_code == 0
    line = "The publisher or commit is not trusted: get_kernel needs trust_remote_code=['eve/relu'] to load it."
    assert result.stdout.splitlines()[-2:] == [line, "1 build: nothing failed."]
    [build] = json.loads(kernels("verify", "eve/relu", "--version", 1, "--json").stdout)["builds"]
    assert (build["failed"], build["untrusted"]) == (False, True)
    hub.make_repo("acme/gelu")
    assert "not trusted" not in kernels("verify", "acme/gelu", "--version", 1).stdout


@pytest.mark.usefixtures("unreachable")
def test_of_a_mirror_in_a_folder_the_keys_are_those_that_are_here(
    root: SigstoreRoot, isolated_env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MirrorTree(tmp_path / "mirror").add(variants={CPU: {"metadata.json.sigstore": root.sign(b"{}").decode()}})
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path / "mirror"))
    assert verdicts("acme/relu", "--version", 1)[CPU] == "skipped missing failed"
