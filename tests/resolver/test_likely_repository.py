"""An error about a repository that is not found names the likely one: of the cache, the lock, or a local folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub import TestHub

from kernels import get_kernel, has_kernel, install_kernel
from kernels.errors import KernelsError, NotInCache, NotLocked, RepositoryNotFound, RequestError, RevisionNotFound


def test_a_kernel_in_the_cache_is_suggested(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.make_repo("acme/activation")
    install_kernel("acme/activation", version=1)
    for name in ("acme/activaton", "acme/Activation2", "acm/activation"):
        with pytest.raises((RepositoryNotFound, KernelsError), match=r"Did you mean 'acme/activation'\?"):
            get_kernel(name, version=1)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NotInCache, match=r"Did you mean 'acme/activation'\?"):
        get_kernel("acme/activaton", version=1)
    assert not has_kernel("acme/activaton", version=1)


def test_a_name_that_is_like_no_other_has_no_suggestion(hub: TestHub) -> None:
    hub.make_repo("acme/activation")
    install_kernel("acme/activation", version=1)
    with pytest.raises(RepositoryNotFound) as caught:
        get_kernel("acme/x", version=1)
    assert "Did you mean" not in str(caught.value)


def test_a_kernel_in_the_lock_or_a_local_folder_is_suggested(
    hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "kernels.lock"
    lock.write_text('[{"repo_id": "acme/rotary", "sha": "%s", "variants": {}}]' % ("1" * 40))
    monkeypatch.setenv("KERNELS_LOCKFILE", str(lock))
    with pytest.raises(RepositoryNotFound, match=r"Did you mean 'acme/rotary'\?"):
        get_kernel("acme/rottary", version=1)
    monkeypatch.setenv("KERNELS_LOCKED", "1")
    with pytest.raises(NotLocked, match=r"Did you mean 'acme/rotary'\?"):
        get_kernel("acme/rottary", version=1)
    monkeypatch.delenv("KERNELS_LOCKED")
    monkeypatch.delenv("KERNELS_LOCKFILE")
    monkeypatch.setenv("LOCAL_KERNELS", f"acme/mine={tmp_path}")
    with pytest.raises(RepositoryNotFound, match=r"Did you mean 'acme/mine'\?"):
        get_kernel("acme/minne", version=1)


def test_a_mistyped_branch(hub: TestHub) -> None:
    hub.make_repo("acme/activation")
    with pytest.raises(RevisionNotFound, match=r"Did you mean 'v1'\?"):
        get_kernel("acme/activation", revision="v11")


def test_hostile_names_in_a_cache_are_not_suggested(hub: TestHub, isolated_env: Path) -> None:
    isolated_env.mkdir(exist_ok=True)
    (isolated_env / "kernels--acme--relu\x1b[31m").mkdir()
    (isolated_env / ("kernels--acme--" + "x" * 200)).mkdir()
    with pytest.raises(RepositoryNotFound) as caught:
        get_kernel("acme/relu2", version=1)
    assert "Did you mean" not in str(caught.value)


def test_a_likely_name_follows_the_first_sentence_and_replaces_the_advice(hub: TestHub) -> None:
    hub.make_repo("acme/activation")
    install_kernel("acme/activation", version=1)
    with pytest.raises(RepositoryNotFound) as caught:
        get_kernel("acme/activaton", version=1, trust_remote_code=True)
    assert str(caught.value) == f"{hub.url} has no repository acme/activaton. Did you mean 'acme/activation'?"
    with pytest.raises(RepositoryNotFound) as caught:
        get_kernel("acme/x", version=1, trust_remote_code=True)
    assert str(caught.value).startswith(f"{hub.url} has no repository acme/x. Check the name; a private repository ")
    assert str(caught.value).count("TOKEN") == 1


def test_a_path_or_a_url_is_told_apart_from_a_name(
    hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for path in ("./mine", "../x", "acme", str(tmp_path)):
        with pytest.raises(RequestError, match="get_local_kernel"):
            get_kernel(path, version=1)
    with pytest.raises(RepositoryNotFound, match=r"get_local_kernel\('acme/mine'\)"):
        get_kernel("acme/mine", version=1, trust_remote_code=True)
    with pytest.raises(RequestError, match="expected 'org/name' alone, without the URL"):
        get_kernel("https://huggingface.co/acme/mine", version=1)
    with pytest.raises(RequestError, match="expected 'org/name', each part"):
        get_kernel("mine\0", version=1)
