"""An error about a name that is not found says which one was meant, where it is one of a known few."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub import TestHub

from kernels import get_kernel
from kernels.errors import RepositoryNotFound, RequestError, RevisionNotFound


def test_a_mistyped_branch(hub: TestHub) -> None:
    hub.make_repo("acme/activation")
    with pytest.raises(RevisionNotFound, match=r"Did you mean 'v1'\?"):
        get_kernel("acme/activation", revision="v11")


def test_a_repository_that_is_not_there(hub: TestHub) -> None:
    with pytest.raises(RepositoryNotFound) as caught:
        get_kernel("acme/x", version=1, trust_remote_code=True)
    assert str(caught.value).startswith(f"{hub.url} has no repository acme/x. Check the name; a private repository ")
    assert str(caught.value).count("TOKEN") == 1


def test_a_path_or_a_url_is_told_apart_from_a_name(
    hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme").mkdir()
    monkeypatch.chdir(tmp_path)
    for path in ("./mine", "../x", "acme", str(tmp_path)):
        with pytest.raises(RequestError, match="get_local_kernel"):
            get_kernel(path, version=1)
    with pytest.raises(RequestError, match="expected 'org/name' alone, without the URL"):
        get_kernel("https://huggingface.co/acme/mine", version=1)
    with pytest.raises(RequestError, match="expected 'org/name', each part"):
        get_kernel("mine\0", version=1)
