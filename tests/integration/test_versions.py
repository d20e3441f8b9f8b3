"""Which commit is meant: versions, revisions, redirects, and the folders that stand in for a Hub."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hub import TestHub, make_repo
from logged import logged, warned

from kernels import (
    Target,
    get_kernel,
    get_kernel_variants,
    get_loaded_kernels,
    get_local_kernel,
    get_locked_kernel,
    has_kernel,
    install_kernel,
)
from kernels.errors import (
    BackendUnavailable,
    InvalidRepository,
    NoSuitableBuild,
    RepositoryNotFound,
    RequestError,
    RevisionNotFound,
    UnsupportedArch,
    UntrustedPublisher,
)
from kernels.operations.call import KernelRequest, context_for
from kernels.resolver.plan import plan_tree
from kernels.sources.folder import PathSource


def said(call: Callable[[], object]) -> list[str]:
    with logged() as records:
        call()
    return [each.getMessage() for each in records]


# Versions and revisions


def test_a_version_is_the_head_of_its_branch(hub: TestHub) -> None:
    hub.make_repo("acme/relu", version=1)
    hub.make_repo("acme/relu", version=2)
    assert get_kernel("acme/relu", version=2).version == 2


@pytest.mark.parametrize("revision", ["trial", "refs/heads/trial", "commit", "short commit"])
def test_a_revision_is_a_branch_or_a_commit(hub: TestHub, revision: str) -> None:
    hub.make_repo("acme/relu", revision="trial", version=7)
    commit = hub.commit("acme/relu", "trial")
    asked = {"commit": commit}.get(revision, revision)
    if revision == "short commit":
        with pytest.raises(RevisionNotFound, match="no branch, tag or commit"):
            get_kernel("acme/relu", revision=commit[:10])
        return
    assert get_kernel("acme/relu", revision=asked).version == 7


def test_a_version_and_a_revision_together_are_refused() -> None:
    with pytest.raises(ValueError, match="not both"):
        get_kernel("acme/relu", version=1, revision="main")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"repo_id": "relu"}, ValueError, ["repo_id", "relu", "org/name"]),
        ({"repo_id": 3}, TypeError, ["repo_id", "3", "org/name"]),
        ({"version": "1"}, TypeError, ["version", "'1'", "integer"]),
        ({"version": True}, TypeError, ["version", "True"]),
        ({"version": -1}, ValueError, ["version", "-1"]),
        ({"revision": "../v1"}, ValueError, ["revision", "../v1"]),
        ({"revision": 1}, TypeError, ["revision", "1"]),
        ({"version": 1, "backend": "abacus"}, ValueError, ["backend", "abacus", "cpu"]),
        ({"version": 1, "trust_remote_code": "acme/relu"}, TypeError, ["trust_remote_code", "list"]),
        ({"version": 1, "trust_remote_code": ["relu"]}, ValueError, ["relu", "org/name"]),
        ({"version": 1, "device": 1.5}, TypeError, ["device", "1.5"]),
        ({"version": 1, "user_agent": 5}, TypeError, ["user_agent", "5", "string"]),
        ({"version": 1, "check_arch": "no"}, TypeError, ["check_arch", "'no'"]),
        ({"revision": "\udc80"}, ValueError, ["revision"]),
    ],
)
def test_a_wrong_argument_is_named_with_its_value_and_what_is_allowed(
    hub: TestHub, arguments: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    hub.make_repo("acme/relu")
    with pytest.raises(error) as raised:
        get_kernel(**{"repo_id": "acme/relu", **arguments})
    for word in words:
        assert word in str(raised.value)


def test_without_a_version_the_newest_is_used_and_one_warning_says_how_to_pin_it(hub: TestHub) -> None:
    for version in (2, 10, 9):
        hub.make_repo("acme/relu", version=version)
    hub.make_repo("acme/relu", revision="main", version=99)
    messages = said(lambda: [get_kernel("acme/relu"), get_kernel("acme/relu")])
    assert get_kernel("acme/relu").version == 10
    assert len(messages) == 1
    assert "version=10" in messages[0]


def test_without_any_version_main_is_used_and_one_warning_says_how_to_pin_it(hub: TestHub) -> None:
    hub.make_repo("acme/relu", revision="main", version=5)
    messages = said(lambda: get_kernel("acme/relu"))
    assert get_kernel("acme/relu").version == 5
    assert len(messages) == 1
    assert hub.commit("acme/relu", "main") in messages[0]


def test_an_older_version_than_the_newest_warns_once(hub: TestHub) -> None:
    hub.make_repo("acme/relu", version=1)
    hub.make_repo("acme/relu", version=3)
    messages = said(lambda: [get_kernel("acme/relu", version=1), has_kernel("acme/relu", version=1)])
    assert len(messages) == 1
    assert "version 3" in messages[0]
    assert said(lambda: get_kernel("acme/relu", version=3)) == []


def test_a_version_that_does_not_exist_lists_those_that_do(hub: TestHub) -> None:
    hub.make_repo("acme/relu", version=1)
    hub.make_repo("acme/relu", version=4)
    with pytest.raises(RevisionNotFound, match="no version 2; it has 1, 4"):
        get_kernel("acme/relu", version=2)


def test_a_version_without_a_suitable_build_names_one_that_has_one(hub: TestHub) -> None:
    hub.make_repo("acme/relu", version=1, variants=["torch-cpu"])
    hub.make_repo("acme/relu", version=2, variants=["torch-cuda"])
    with pytest.raises(NoSuitableBuild, match="version=1") as raised:
        get_kernel("acme/relu", version=2)
    assert "torch-cuda: for cuda, not cpu" in str(raised.value)
    assert isinstance(raised.value, FileNotFoundError)


def test_a_repository_that_does_not_exist_is_named(hub: TestHub) -> None:
    with pytest.raises(RepositoryNotFound, match="acme/none"):
        get_kernel("acme/none", version=1)


def test_a_commit_that_does_not_exist_is_named(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    with pytest.raises(RevisionNotFound, match="0" * 40):
        get_kernel("acme/relu", revision="0" * 40)


def test_a_gated_repository_says_so(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    hub.gate("acme/relu")
    with pytest.raises(RepositoryNotFound, match="gated"):
        get_kernel("acme/relu", version=1)


def test_has_kernel_answers_without_downloading(hub: TestHub) -> None:
    hub.make_repo("acme/relu", version=1)
    hub.make_repo("acme/relu", version=2, variants=["torch-cuda"])
    assert has_kernel("acme/relu", version=1)
    assert not has_kernel("acme/relu", version=2)
    assert not has_kernel("acme/none", version=1)
    assert hub.count("layers.py") == 0


def test_variants_are_returned_as_decisions(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-universal", "torch-cuda"])
    decisions = get_kernel_variants("acme/relu", version=1)
    assert [each.variant.variant_str for each in decisions] == ["torch-cpu", "torch-universal", "torch-cuda"]
    assert [getattr(each, "reason", None) for each in decisions] == [None, None, "for cuda, not cpu"]


def test_archs_decide_and_the_next_best_build_is_taken(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.resolver.target import Target

    compiled = "torch29-cxx11-cu128-x86_64-linux"
    hub.make_repo("acme/relu", variants=[compiled], archs=["8.0", "9.0a"])
    hub.make_repo("acme/relu", variants=["torch-cuda"], archs=["10.0"])
    monkeypatch.setattr(Target, "current", staticmethod(lambda: Target.parse("torch2.9-cu128-x86_64-linux+sm_100")))
    assert install_kernel("acme/relu", version=1).name == "torch-cuda"
    assert install_kernel("acme/relu", version=1, check_arch=False).name == compiled
    monkeypatch.setattr(Target, "current", staticmethod(lambda: Target.parse("torch2.9-cu128-x86_64-linux+sm_86")))
    assert install_kernel("acme/relu", version=1).name == compiled
    monkeypatch.setattr(Target, "current", staticmethod(lambda: Target.parse("torch2.9-cu128-x86_64-linux+sm_75")))
    with pytest.raises(UnsupportedArch, match=r"7\.5") as raised:
        install_kernel("acme/relu", version=1)
    assert isinstance(raised.value, RuntimeError)
    assert isinstance(raised.value, FileNotFoundError)


def test_a_build_that_does_not_cover_every_visible_gpu_says_so_once(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.resolver.target import Target

    hub.make_repo("acme/relu", variants=["torch-cuda"], archs=["9.0"])
    target = Target.parse("torch2.9-cu128-x86_64-linux+sm_90+sm_75")
    monkeypatch.setattr(Target, "current", staticmethod(lambda: target))
    messages = said(lambda: [install_kernel("acme/relu", version=1), install_kernel("acme/relu", version=1)])
    assert len(messages) == 1
    assert "7.5" in messages[0]
    with pytest.raises(UnsupportedArch):
        install_kernel("acme/relu", version=1, device="cuda:1")


def test_a_kernel_can_be_downloaded_for_another_machine(hub: TestHub) -> None:
    from kernels.resolver.target import Target

    compiled = "torch29-cxx11-cu128-x86_64-linux"
    hub.make_repo("acme/relu", variants=["torch-cpu", compiled], python_depends=["tvm-ffi"])
    target = Target.parse("torch2.9-cu128-x86_64-linux+sm_90")
    assert install_kernel("acme/relu", version=1, target=target).name == compiled


@pytest.mark.parametrize(
    "needs",
    [{"python_depends": ["helion"]}, {"python_depends": ["left-pad"]}, {"metadata": {"kernels-minver": "99.0.0"}}],
)
def test_a_download_does_not_ask_for_what_a_kernel_needs_when_it_is_loaded(hub: TestHub, needs: Any) -> None:
    hub.make_repo("acme/relu", **needs)
    assert (install_kernel("acme/relu", version=1) / "__init__.py").is_file()


def test_a_loaded_kernel_tells_the_revision_that_was_asked_for(
    hub: TestHub, isolated_env: Path, write_lock: Callable[[str], Path]
) -> None:
    def revision_of(module: ModuleType) -> str | None:
        [info] = [each.repo_info for each in get_loaded_kernels() if each.module is module]
        return None if info is None else info.revision

    for name in ("version", "branch", "commit", "locked", "moved"):
        hub.make_repo(f"acme/{name}")
    hub.make_repo("acme/old", variants=[], status={"kind": "redirect", "destination": "acme/moved", "revision": "v1"})
    commit = hub.commit("acme/commit")

    assert revision_of(get_kernel("acme/version", version=1)) == hub.commit("acme/version")
    assert revision_of(get_kernel("acme/branch", revision="v1")) == "v1"
    assert revision_of(get_kernel("acme/commit", revision=commit)) == commit
    locked = get_locked_kernel("acme/locked", lockfile=write_lock("acme/locked"))
    assert revision_of(locked) == hub.commit("acme/locked")
    assert revision_of(get_kernel("acme/old", version=1)) == "v1"
    assert revision_of(get_local_kernel(hub.root / "acme" / "branch" / "v1")) is None


@pytest.fixture
def write_lock(hub: TestHub, tmp_path: Path) -> Callable[[str], Path]:
    def write(repo_id: str) -> Path:
        entry = {"dependency": {"repo-id": repo_id, "version": 1}, "lock": {"commit": hub.commit(repo_id)}}
        path = tmp_path / "kernels.lock"
        path.write_text(json.dumps([entry]))
        return path

    return write


def test_a_backend_that_this_machine_lacks_is_a_wrong_argument_and_a_missing_build(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants=["torch-tpu"])
    with pytest.raises(BackendUnavailable, match="`backend` is 'tpu'") as raised:
        get_kernel("acme/relu", version=1, backend="tpu")
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, FileNotFoundError)
    with pytest.raises(ValueError, match="tpu"):
        has_kernel("acme/relu", version=1, backend="tpu")


# Redirects


def test_a_redirect_is_followed_with_the_version_asked_for(hub: TestHub) -> None:
    hub.make_repo("acme/old", version=2, variants=[], redirect="acme/new")
    hub.make_repo("acme/new", version=2)
    assert get_kernel("acme/old", version=2).repo_id == "acme/new"


def test_a_redirect_may_name_a_revision(hub: TestHub) -> None:
    status = {"kind": "redirect", "destination": "acme/new", "revision": "stable"}
    hub.make_repo("acme/old", version=2, variants=[], status=status)
    hub.make_repo("acme/new", revision="stable", version=8)
    assert get_kernel("acme/old", version=2).version == 8


def test_five_redirects_are_followed_and_a_sixth_is_not(hub: TestHub) -> None:
    for number in range(6):
        hub.make_repo(f"acme/r{number}", variants=[], redirect=f"acme/r{number + 1}")
    hub.make_repo("acme/r6")
    assert get_kernel("acme/r1", version=1).repo_id == "acme/r6"
    with pytest.raises(InvalidRepository, match="more than 5"):
        get_kernel("acme/r0", version=1)


def test_a_redirect_loop_is_an_error_that_shows_it(hub: TestHub) -> None:
    hub.make_repo("acme/a", variants=[], redirect="acme/b")
    hub.make_repo("acme/b", variants=[], redirect="acme/a")
    with pytest.raises(InvalidRepository, match="acme/a version 1 -> acme/b version 1 -> acme/a version 1"):
        get_kernel("acme/a", version=1)


def test_a_redirect_to_an_untrusted_publisher_is_refused(hub: TestHub) -> None:
    hub.make_repo("acme/old", variants=[], redirect="mallory/new")
    hub.make_repo("mallory/new")
    with pytest.raises(UntrustedPublisher, match="mallory"):
        get_kernel("acme/old", version=1)
    assert hub.count("mallory/new/resolve") == 0
    assert get_kernel("acme/old", version=1, trust_remote_code=["mallory/new"]).repo_id == "mallory/new"


@pytest.mark.parametrize(
    "status",
    [
        "kind = ",
        'kind = "demolished"\n',
        'kind = "redirect"\n',
        'kind = "redirect"\ndestination = "../../etc"\n',
        'kind = "redirect"\ndestination = 3\n',
        'kind = "redirect"\ndestination = "acme/new"\nrevision = "../x"\n',
        "a = " + "[" * 20_000,
        "# " + "x" * 100_000,
    ],
)
def test_a_status_file_that_is_none_is_an_error(hub: TestHub, status: str) -> None:
    hub.make_repo("acme/old", status=status)
    with pytest.raises(InvalidRepository, match=r"kernel-status\.toml"):
        get_kernel("acme/old", version=1)


# Folders and overrides


def test_a_folder_stands_in_for_a_hub(isolated_env: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = tmp_path / "mirror"
    make_repo(root, "acme/relu", version=1)
    make_repo(root, "acme/relu", version=2, depends=[("acme/dep", 1)])
    make_repo(root, "acme/dep", version=1)
    make_repo(root, "acme/old", variants=[], redirect="acme/relu")
    monkeypatch.setenv("KERNELS_HUB", str(root))
    with warned("without a Hub's word"):
        assert get_kernel("acme/relu", version=2).version == 2
    monkeypatch.setenv("KERNELS_TRUSTED_PUBLISHERS", "acme")
    assert get_kernel("acme/old", version=1).version == 1
    assert install_kernel("acme/relu", version=1) == root / "acme/relu/v1/build/torch-cpu"
    with pytest.raises(RevisionNotFound, match="it has 1, 2"):
        get_kernel("acme/relu", version=3)
    with pytest.raises(RepositoryNotFound, match="acme/none"):
        get_kernel("acme/none", version=1)


def test_a_link_out_of_a_folder_of_repositories_is_refused(
    isolated_env: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / "mirror"
    folder = make_repo(root, "acme/relu")
    (tmp_path / "secret.py").write_text("secret = 1")
    (folder / "build/torch-cpu/secret.py").symlink_to(tmp_path / "secret.py")
    monkeypatch.setenv("KERNELS_HUB", str(root))
    with pytest.raises(InvalidRepository, match="outside"):
        get_kernel("acme/relu", version=1)


def test_a_hub_that_is_neither_a_url_nor_a_folder_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path / "nowhere"))
    with pytest.raises(RequestError, match="KERNELS_HUB"):
        get_kernel("acme/relu", version=1)


@pytest.mark.parametrize("part", ["", "build", "build/torch-cpu"])
def test_a_local_kernel_is_a_repository_its_build_folder_or_one_variant(
    isolated_env: Path, tmp_path: Path, part: str
) -> None:
    folder = make_repo(tmp_path, "acme/relu")
    assert get_local_kernel(folder / part).repo_id == "acme/relu"
    assert get_local_kernel(str(folder / part)).repo_id == "acme/relu"


@pytest.mark.parametrize("path", [5, None, b"/x"])
def test_a_path_that_is_none_is_named(path: Any) -> None:
    with pytest.raises(TypeError, match="`repo_path`"):
        get_local_kernel(path)


def test_a_folder_without_a_kernel_is_an_error_that_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(RepositoryNotFound, match="no 'build' folder"):
        get_local_kernel(tmp_path)
    with pytest.raises(RepositoryNotFound, match="does not exist"):
        get_local_kernel(tmp_path / "none")


@pytest.mark.parametrize(("variant", "name"), [("torch-cuda", "torch-cuda"), ("torch-cpu", "mine"), ("torch-npu", "x")])
def test_a_build_that_the_user_names_by_its_folder_is_loaded_whatever_its_name(
    tmp_path: Path, variant: str, name: str
) -> None:
    folder = make_repo(tmp_path, variants=[variant]) / "build"
    build = (folder / variant).rename(folder / name)
    mentions = said(lambda: get_local_kernel(build))
    assert any("may not run here: for cuda, not cpu" in each for each in mentions) == (name == "torch-cuda")
    assert get_local_kernel(build).variant == variant
    # From the folder around it, a build is chosen, and this one is none to choose.
    with pytest.raises(NoSuitableBuild):
        get_local_kernel(folder)


def test_a_build_that_the_user_names_must_suit_the_device(tmp_path: Path) -> None:
    folder = make_repo(tmp_path, variants=["torch29-cxx11-cu126-x86_64-linux"], archs=["8.0"]) / "build"
    (build,) = folder.iterdir()
    target = Target.parse("torch2.13-cu130-x86_64-linux+sm_90")
    request = KernelRequest("local/relu")
    with pytest.raises(NoSuitableBuild):
        plan_tree(context_for(request, target=target), request.requirement, PathSource(build))
    anyway = request.with_changes(check_arch=False)
    assert (
        plan_tree(context_for(anyway, target=target), request.requirement, PathSource(build)).root.variant == build.name
    )


def test_local_kernels_stand_in_for_repositories_whatever_version_is_asked_for(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.make_repo("acme/uses", depends=[("mallory/mine", 4)])
    mine = make_repo(tmp_path / "work", "mallory/mine", version=1)
    monkeypatch.setenv("LOCAL_KERNELS", f"mallory/mine={mine}:acme/other={tmp_path}")
    assert get_kernel("mallory/mine", version=9).__file__ == str(mine / "build/torch-cpu/__init__.py")
    assert get_kernel("acme/uses", version=1).repo_id == "acme/uses"
    assert hub.count("mallory") == 0
    with pytest.raises((RepositoryNotFound, UntrustedPublisher)):
        install_kernel("mallory/mine", version=9)
    monkeypatch.setenv("LOCAL_KERNELS", f"mallory/mine={tmp_path / 'none'}")
    with pytest.raises(RepositoryNotFound, match="`LOCAL_KERNELS` names"):
        get_kernel("mallory/mine", version=9)
