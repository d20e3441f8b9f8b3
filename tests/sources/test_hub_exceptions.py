"""Errors that are also huggingface_hub's: caught by either name, with the Hub's answer, also after pickling."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from kernels import errors, get_kernel, has_kernel, install_kernel
from kernels.errors import KernelsError
from kernels.sources.hub_errors import of_hub

TOKEN = "hf_" + "t0ken" * 7


def gated(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    headers = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Ask for access\x1b[2J", "X-Request-Id": "Root=1-abc"}
    hub.fail("/refs", status=403, headers=headers, times=9)


def busy(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    hub.fail("/refs", status=503, times=99)


CASES: dict[str, tuple[Callable[[TestHub], object], str, type[KernelsError], type[Exception], int | None]] = {
    "repository": (lambda hub: None, "v1", errors.RepositoryNotFound, RepositoryNotFoundError, 404),
    "gated": (gated, "v1", errors.RepositoryNotFound, GatedRepoError, 403),
    "branch": (lambda hub: hub.make_repo(), "nothing", errors.RevisionNotFound, RevisionNotFoundError, None),
    "commit": (lambda hub: hub.make_repo(), "0" * 40, errors.RevisionNotFound, RevisionNotFoundError, 404),
    "builds": (lambda hub: hub.make_repo(variants=[]), "v1", errors.NoSuitableBuild, EntryNotFoundError, None),
    "file": (
        lambda hub: (hub.make_repo() / "build" / "torch-cpu" / "metadata.json").unlink(),
        "v1",
        errors.MissingMetadata,
        EntryNotFoundError,
        None,
    ),
    "busy": (busy, "v1", errors.HubUnavailable, HfHubHTTPError, 503),
    "away": (lambda hub: hub.down(), "v1", errors.HubUnavailable, HfHubHTTPError, None),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_hub_does_not_have_is_caught_by_either_name(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    prepare, revision, ours, theirs, status = CASES[case]
    monkeypatch.setenv("KERNELS_HUB_TOKEN", TOKEN)
    prepare(hub)
    with pytest.raises(theirs) as caught:
        get_kernel("acme/relu", revision=revision, trust_remote_code=True)
    error = caught.value
    assert isinstance(error, ours)
    assert isinstance(error, HfHubHTTPError)
    assert type(error).__name__ == ours.__name__
    for each in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(each) is type(error)
        assert str(each) == str(error)
        assert (None if each.response is None else each.response.status_code) == status
        assert TOKEN not in str(vars(each))
        assert each.response is None or TOKEN not in str(each.response.request.headers)
    if case == "repository":
        assert error.request.url == error.response.url


def test_a_version_that_is_not_there_is_a_value_error_too(hub: TestHub) -> None:
    hub.make_repo()
    with pytest.raises(ValueError, match="has no version 7") as caught:
        get_kernel("acme/relu", version=7)
    assert isinstance(caught.value, RevisionNotFoundError)


@pytest.mark.parametrize("request_of", [{"version": 1}, {"revision": "main"}, {"revision": "1" * 40}], ids=str)
def test_offline_what_is_not_cached_is_missing_and_a_wrong_value(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, request_of: dict[str, object]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for kind in (ValueError, FileNotFoundError, LocalEntryNotFoundError, errors.NotInCache):
        with pytest.raises(kind):
            get_kernel("acme/relu", **request_of)  # type: ignore[arg-type]
        with pytest.raises(kind):
            install_kernel("acme/relu", local_files_only=True, **request_of)  # type: ignore[arg-type]
    assert not has_kernel("acme/relu", version=1)


def test_a_folder_of_repositories_raises_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme" / "relu").mkdir(parents=True)
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path))
    with pytest.raises(RepositoryNotFoundError):
        get_kernel("acme/nothing", version=1)
    with pytest.raises(RevisionNotFoundError):
        get_kernel("acme/relu", version=1)


def fails(url: str) -> None:
    """What a worker does."""
    import os

    os.environ["KERNELS_HUB"] = url
    get_kernel("acme/nothing", version=1, trust_remote_code=True)


def test_a_workers_error_arrives_as_it_was_raised(hub: TestHub) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        error: Any = pool.submit(fails, hub.url).exception(timeout=120)
    assert isinstance(error, errors.RepositoryNotFound)
    assert isinstance(error, RepositoryNotFoundError)
    assert "acme/nothing" in str(error)
    assert error.response.status_code == 404


def test_the_message_can_be_completed_as_in_huggingface_hub() -> None:
    error: Any = of_hub(errors.RepositoryNotFound("no repository"))
    error.append_to_message(", really")
    assert str(error) == "no repository, really"
    assert str(error.reworded("another")) == "another"


def test_a_program_without_huggingface_hub_does_not_import_it_for_an_error(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "import kernels.errors\n"
        "from kernels.resolver.commit import pick_commit\n"
        "from kernels.sources.folder import FolderSource\n"
        "from kernels.models.requirement import Requirement\n"
        "try:\n"
        f"    pick_commit(Requirement('acme/relu', version=1), FolderSource(Path({str(tmp_path)!r})))\n"
        "except kernels.errors.KernelsError as error:\n"
        "    print(type(error).__name__, 'huggingface_hub' in sys.modules, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "RepositoryNotFound False False\n", done.stderr
