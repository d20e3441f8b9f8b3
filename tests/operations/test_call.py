"""What is requested is a value: equal by its arguments, hashable, and not to be changed."""

from __future__ import annotations

import copy
import pickle

import pytest

from kernels.api import KernelRequest

ONE = KernelRequest("acme/relu", version=1, device="cuda:1")


def test_requests_are_compared_by_their_arguments() -> None:
    same = KernelRequest("acme/relu", 1, device="cuda:1")
    assert same == ONE
    assert hash(ONE) == hash(same)
    assert KernelRequest("acme/relu", 2, device="cuda:1") != ONE
    assert ONE != ("acme/relu", 1)
    assert len({ONE, same, ONE.with_changes(version=2)}) == 2


def test_a_request_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        ONE.version = 2
    with pytest.raises(AttributeError):
        del ONE.version
    with pytest.raises(AttributeError):
        ONE.other = 2  # type: ignore[attr-defined]
    assert ONE.version == 1


def test_a_request_is_shown_without_its_lock() -> None:
    assert repr(ONE) == (
        "KernelRequest(repo_id='acme/relu', version=1, revision=None, backend=None, user_agent=None, "
        "trust_remote_code=False, check_arch=True, device='cuda:1', verify=None, local_files_only=False, "
        "local_kernels=True)"
    )


def test_a_request_is_copied_and_pickled_whole() -> None:
    assert [copy.copy(ONE), copy.deepcopy(ONE), pickle.loads(pickle.dumps(ONE))] == [ONE] * 3
