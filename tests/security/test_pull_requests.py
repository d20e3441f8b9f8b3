"""A pull request in the repository of a trusted publisher: anyone can open one, and none of its code runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from logged import logged
from mirror_tree import StaticServer
from writable_hub import TOKEN, WritableHub

from kernels import download_kernels, get_kernel, has_kernel, install_kernel
from kernels.api import KernelRequest, get_kernels
from kernels.authoring.check.repository import audit_repository
from kernels.errors import KernelsError, PublisherUnknown, UntrustedPublisher
from kernels.models.lockfile import Lock, Pin
from kernels.models.project import KernelProject
from kernels.models.requirement import Requirement
from kernels.operations.explain import repository_info
from kernels.operations.lock import lock_project
from kernels.operations.verify import verify_repository

REPO = "acme/relu"
INIT = "build/torch-cpu/__init__.py"
EVIL = b"import os, pathlib\npathlib.Path(os.environ['RAN']).touch()\n"


class Attack:
    """A Hub with version 1 of a trusted publisher, a branch that has moved on, and a pull request of someone else."""

    def __init__(self, hub: WritableHub, ran: Path) -> None:
        self.hub, self.ran = hub, ran
        self.api = HfApi(endpoint=hub.url, token=TOKEN)
        hub.make_repo(REPO)
        self.first = hub.commit(REPO)
        self.commit(seed="second")
        self.second = hub.commit(REPO)
        self.pull = self.commit(content=EVIL, create_pr=True)

    def commit(self, seed: str = "", content: bytes = b"", **options: object) -> str:
        content = content or f"def double(x):\n    return x + x\n\n# {seed}\n".encode()
        answer = self.api.create_commit(
            REPO,
            [CommitOperationAdd(INIT, content)],
            commit_message="a change",
            repo_type="kernel",
            **{"revision": "v1", **options},  # type: ignore[arg-type]
        )
        return answer.oid

    def refused(self, call: Callable[[], object], match: str = "in the history of no branch or tag") -> None:
        with pytest.raises(UntrustedPublisher, match=match):
            call()
        assert not self.ran.exists()


@pytest.fixture
def attack(writable_hub: WritableHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attack]:
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    found = Attack(writable_hub, tmp_path / "ran")
    writable_hub.clear()
    yield found
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def checkout(attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a clone with nothing but a lockfile that pins the pull request's commit."""
    folder = tmp_path / "checkout"
    (folder / ".git").mkdir(parents=True)
    (folder / "kernels.lock").write_bytes(Lock((Pin(Requirement(REPO, version=1), attack.pull),)).to_bytes())
    monkeypatch.chdir(folder)
    return folder


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=os.environ.copy(), capture_output=True, text=True, timeout=120
    )


SPELLINGS = {
    "the commit": lambda attack: attack.pull,
    "its name": lambda attack: "refs/pr/1",
    "upper case": lambda attack: attack.pull.upper(),
    "below heads": lambda attack: "refs/heads/refs/pr/1",
    "below tags": lambda attack: "refs/tags/refs/pr/1",
    "percent-encoded": lambda attack: quote("refs/pr/1", safe=""),
    "the commit below heads": lambda attack: f"refs/heads/{attack.pull}",
    "shortened": lambda attack: attack.pull[:12],
    "with a slash at the end": lambda attack: "refs/pr/1/",
}

CALLS: dict[str, Callable[[str], object]] = {
    "get_kernel": lambda revision: get_kernel(REPO, revision=revision),
    "install_kernel": lambda revision: install_kernel(REPO, revision=revision),
    "download_kernels": lambda revision: download_kernels([REPO], revision=revision),
    "download --all-variants": lambda revision: download_kernels([REPO], revision=revision, all_variants=True),
    "check": lambda revision: audit_repository(REPO, revision=revision),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("setting", [False, True])
def test_however_a_pull_request_is_spelled_nothing_of_it_is_loaded(
    attack: Attack, monkeypatch: pytest.MonkeyPatch, spelling: str, setting: bool
) -> None:
    if setting:  # it names a publisher, and anyone may open a pull request there
        monkeypatch.setenv("KERNELS_TRUSTED_PUBLISHERS", "acme")
    revision = SPELLINGS[spelling](attack)
    with pytest.raises((UntrustedPublisher, ValueError)):
        get_kernel(REPO, revision=revision)
    assert attack.hub.count("/resolve/") == 0


@pytest.mark.parametrize("revision", ["refs/pr/1", "commit"])
@pytest.mark.parametrize("call", CALLS)
def test_no_call_takes_code_of_a_pull_request(attack: Attack, call: str, revision: str) -> None:
    attack.refused(lambda: CALLS[call](attack.pull if revision == "commit" else revision))
    assert attack.hub.count("/resolve/") == 0


def test_a_caller_who_allows_the_repository_gets_any_commit_and_nothing_is_asked_for(
    attack: Attack, tmp_path: Path
) -> None:
    for revision in ("refs/pr/1", attack.pull):
        assert install_kernel(REPO, revision=revision, trust_remote_code=[REPO]).is_dir()
    assert attack.hub.count("/commits/") == 0
    attack.hub.clear()
    install_kernel(REPO, revision=attack.first, trust_remote_code=True)
    assert attack.hub.count("refs|/commits/") == 0
    get_kernel(REPO, revision=attack.pull, trust_remote_code=True)
    (tmp_path / "ran").unlink()
    attack.refused(lambda: get_kernel(REPO, revision=attack.pull))  # that was allowed once, not for ever


def test_several_are_refused_one_by_one(attack: Attack) -> None:
    good, bad = get_kernels([KernelRequest(REPO, version=1), KernelRequest(REPO, revision=attack.pull)])
    assert good.double(2) == 4
    assert isinstance(bad, UntrustedPublisher)


@pytest.mark.parametrize("locked", ["", "1"])
def test_a_lockfile_in_the_current_folder_selects_no_pull_request(
    attack: Attack, checkout: Path, monkeypatch: pytest.MonkeyPatch, locked: str
) -> None:
    if locked:
        monkeypatch.setenv("KERNELS_LOCKED", locked)
    for arguments in (
        ["-c", f"from kernels import get_kernel; get_kernel('{REPO}', version=1)"],
        ["-m", "kernels", "check", REPO, "--version", "1"],
        ["-m", "kernels", "benchmark", REPO, "--version", "1"],
        ["-m", "kernels", "download", REPO, "--version", "1"],
    ):
        ended = run(*arguments)
        assert ended.returncode != 0
        said = " ".join((ended.stdout + ended.stderr).split())
        assert "in the history of no branch or tag" in said, said
        assert "kernels.lock pins it: check where that lockfile comes from" in said, said
        assert not attack.ran.exists()
    assert attack.hub.count("/resolve/") == 0


def test_neither_kernels_lock_nor_a_mirror_takes_it_from_a_project_or_a_lockfile(
    attack: Attack, checkout: Path, tmp_path: Path
) -> None:
    (checkout / "pyproject.toml").write_text(f'[tool.kernels.dependencies]\n"{REPO}" = 1\n')
    attack.refused(lambda: lock_project(KernelProject.read(checkout)))
    (checkout / "pyproject.toml").write_text(f'[tool.kernels.dependencies]\n"{REPO}" = {{ revision = "refs/pr/1" }}\n')
    (checkout / "kernels.lock").unlink()
    attack.refused(lambda: lock_project(KernelProject.read(checkout)))
    for revision in (attack.pull, "refs/pr/1"):
        ended = run("-m", "kernels", "mirror", str(tmp_path / "mirror"), "--repo", REPO, "--revision", revision)
        assert ended.returncode != 0
        assert "in the history of no branch or tag" in " ".join((ended.stdout + ended.stderr).split())
    assert attack.hub.count("/resolve/") == 0


@pytest.mark.parametrize("revision", ["refs/pr/1", "commit"])
def test_a_redirect_and_a_dependency_lead_to_no_pull_request(attack: Attack, revision: str) -> None:
    revision = attack.pull if revision == "commit" else revision
    status = {"kind": "redirect", "destination": REPO, "revision": revision}
    attack.hub.make_repo("acme/old", variants=[], status=status)
    attack.hub.make_repo("acme/user", depends=[(REPO, revision)])
    attack.refused(lambda: get_kernel("acme/old", version=1))
    attack.refused(lambda: get_kernel("acme/user", version=1))


def test_layers_and_functions_take_no_code_of_a_pull_request(attack: Attack) -> None:
    import torch

    from kernels import (
        FuncRepository,
        LayerRepository,
        Mode,
        kernelize,
        use_kernel_forward_from_hub,
        use_kernel_mapping,
    )

    @use_kernel_forward_from_hub("SiluAndMul")
    class SiluAndMul(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    for repository in (
        LayerRepository(REPO, layer_name="SiluAndMul", revision=attack.pull),
        LayerRepository(REPO, layer_name="SiluAndMul", revision="refs/pr/1"),
        FuncRepository(REPO, func_name="double", revision=attack.pull),
    ):
        attack.refused(repository.load)
    repository = LayerRepository(REPO, layer_name="SiluAndMul", revision=attack.pull)
    with use_kernel_mapping({"SiluAndMul": {"cpu": repository}}), pytest.raises(UntrustedPublisher):
        kernelize(SiluAndMul(), mode=Mode.INFERENCE, device="cpu", use_fallback=False)


def test_what_a_command_without_trust_fetched_of_it_is_not_loaded_later(
    attack: Attack, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    get_kernel(REPO, version=1)  # the publisher's verdict is known
    [report] = verify_repository(REPO, revision=attack.pull)
    assert report.untrusted
    repository_info(REPO, revision="refs/pr/1")
    for silence in (
        lambda: monkeypatch.setenv("HF_HUB_OFFLINE", "1"),
        lambda: monkeypatch.delenv("HF_HUB_OFFLINE"),
        lambda: attack.hub.fail("/commits/"),
        lambda: attack.hub.fail("/refs"),
        lambda: attack.hub.down(),
    ):
        new_process()
        silence()
        with pytest.raises(UntrustedPublisher):
            get_kernel(REPO, revision=attack.pull)
        assert not attack.ran.exists()


def test_a_name_of_another_tool_makes_no_branch_of_it(
    attack: Attack, isolated_env: Path, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    verify_repository(REPO, revision=attack.pull)
    for path in isolated_env.glob("kernels--acme--relu/index/heads-*"):
        path.unlink()
    refs = isolated_env / "kernels--acme--relu" / "refs"
    refs.mkdir(exist_ok=True)
    (refs / "v1").write_text(attack.pull)
    new_process()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("KERNELS_TRUSTED_PUBLISHERS", "acme")
    for asked in ({"version": 1}, {"revision": attack.pull}):
        with pytest.raises(UntrustedPublisher):
            get_kernel(REPO, **asked)  # type: ignore[arg-type]


def test_a_later_commit_of_the_pull_request_and_the_one_before_are_both_its_own(attack: Attack) -> None:
    later = attack.commit(content=EVIL + b"# more\n", revision="refs/pr/1")
    for commit in (attack.pull, later):
        attack.refused(lambda commit=commit: get_kernel(REPO, revision=commit))


def test_a_commit_that_a_branch_has_moved_on_from_is_asked_for_once(
    attack: Attack, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert get_kernel(REPO, revision=attack.first).double(2) == 4
    assert (attack.hub.count("refs"), attack.hub.count("/commits/")) == (1, 1)
    attack.hub.clear()
    new_process()
    get_kernel(REPO, revision=attack.first)
    assert attack.hub.requests == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    new_process()
    with logged() as caught:
        get_kernel(REPO, revision=attack.first)
    assert not [each for each in caught if "Hub's word" in each.getMessage()]


def test_a_head_stays_the_publishers_when_the_branch_moves_on(
    attack: Attack, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    get_kernel(REPO, version=1)
    attack.commit(seed="third")
    new_process()
    attack.hub.clear()
    get_kernel(REPO, revision=attack.second)
    assert attack.hub.requests == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    new_process()
    get_kernel(REPO, revision=attack.second)


def test_a_tags_commit_is_the_publishers(attack: Attack) -> None:
    refs = (
        b'{"branches": [{"name": "v1", "targetCommit": "%s"}], "tags": [{"name": "stable", "targetCommit": "%s"}]}'
        % (attack.second.encode(), attack.first.encode())
    )
    attack.hub.fail("/refs$", status=200, body=refs)
    get_kernel(REPO, revision=attack.first)
    get_kernel(REPO, revision="stable")
    assert attack.hub.count("/commits/") == 0


def test_once_it_is_merged_it_is_the_publishers(attack: Attack, new_process: Callable[[], None]) -> None:
    harmless = attack.commit(seed="harmless", create_pr=True)
    attack.refused(lambda: get_kernel(REPO, revision=harmless))
    attack.commit(seed="harmless")  # what a merge does here
    assert attack.hub.commit(REPO) == harmless
    new_process()  # a no is not stored
    assert get_kernel(REPO, revision=harmless).double(2) == 4
    assert get_kernel(REPO, revision="refs/pr/2").double(2) == 4


def test_a_long_history_is_read_up_to_a_limit(attack: Attack) -> None:
    link = {"Link": f'<{attack.hub.url}/api/kernels/{REPO}/commits/v1?p=%d>; rel="next"'}
    for number in range(20):
        head = f"HTTP/1.1 200 OK\r\nLink: {link['Link'] % (number + 1)}\r\n"
        body = f'[{{"id": "{number:040d}"}}]'
        attack.hub.send_raw("/commits/", f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode(), times=1)
    attack.refused(lambda: get_kernel(REPO, revision=attack.first))
    assert attack.hub.count("/commits/") == 11


def test_an_old_commit_of_the_oldest_of_many_branches_is_found(attack: Attack) -> None:
    for version in range(2, 20):
        attack.hub.make_repo(REPO, version=version, seed=str(version))
    history = b'[{"id": "%s"}]' % (b"1" * 40)
    attack.hub.fail("/commits/v1[0-9]|/commits/v[2-9]", status=200, body=history)
    assert get_kernel(REPO, revision=attack.first).double(2) == 4
    assert attack.hub.count("/commits/") == 19


@pytest.mark.parametrize("path", ["/refs$", "/commits/"])
def test_a_hub_that_does_not_answer_about_the_history_admits_nothing(attack: Attack, path: str) -> None:
    attack.hub.fail(path)
    with pytest.raises(PublisherUnknown, match="could not be asked"):
        get_kernel(REPO, revision=attack.pull)
    assert attack.hub.count("/resolve/") == 0


def test_a_cache_that_another_program_filled_keeps_working_offline(
    attack: Attack, isolated_env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(REPO, repo_type="kernel", revision=attack.first, cache_dir=isolated_env, endpoint=attack.hub.url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert get_kernel(REPO, revision=attack.first).double(2) == 4
    monkeypatch.setenv("KERNELS_TRUSTED_PUBLISHERS", "acme")
    assert get_kernel(REPO, revision=attack.first).double(2) == 4


def test_an_untrusted_publisher_stays_the_first_reason(attack: Attack) -> None:
    attack.hub.trusted.clear()
    attack.refused(lambda: get_kernel(REPO, revision=attack.pull), "is not one that .* marks as a trusted publisher")


def test_the_clients_history_has_what_branches_had_and_no_pull_request(attack: Attack) -> None:
    attack.commit(content=EVIL + b"# more\n", revision="refs/pr/1")
    listed = attack.api.list_repo_commits(REPO, repo_type="kernel", revision="v1")
    assert [each.commit_id for each in listed] == [attack.second, attack.first]
    for seed in range(60):
        attack.commit(seed=str(seed))
    listed = attack.api.list_repo_commits(REPO, repo_type="kernel", revision="v1")  # several pages
    assert len({each.commit_id for each in listed}) == len(listed) == 62
    assert attack.pull not in {each.commit_id for each in listed}
    assert has_kernel(REPO, revision=attack.first)
    with pytest.raises(KernelsError):
        get_kernel(REPO, revision=attack.pull)
    pulled = attack.api.list_repo_commits(REPO, repo_type="kernel", revision="refs/pr/1")
    assert [each.commit_id for each in pulled] != [attack.second]


def test_what_a_mirror_lists_was_judged_by_its_writer(
    attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    ended = run("-m", "kernels", "mirror", str(tmp_path / "mirror"), "--repo", REPO, "--revision", attack.first)
    assert ended.returncode == 0, ended.stderr
    with StaticServer(tmp_path / "mirror") as server:
        monkeypatch.setenv("KERNELS_HUB", server.url)
        new_process()
        assert get_kernel(REPO, revision=attack.first).double(2) == 4
