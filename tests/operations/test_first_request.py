"""The first request of a call leaves before the rest is imported, and nothing else changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub

from kernels import get_kernel, has_kernel, install_kernel
from kernels.api import KernelRequest, get_kernels
from kernels.operations import first_request
from kernels.sources import wire

#: Every module that is imported before the thread begins that makes the first connection, but Python's own.
COUNT = """
import json, sys, threading
if sys.argv[1] == "session":
    from huggingface_hub.utils import get_session
    get_session()
before, modules, start = set(sys.modules), {}, threading.Thread.start

def begin(thread):
    found = set(sys.modules) - before
    others = [each for each in found if each.partition(".")[0] not in sys.stdlib_module_names]
    modules.setdefault(thread.name, others)
    start(thread)

def note(event, arguments):
    if event == "socket.connect":
        connecting.append(threading.current_thread().name)

threading.Thread.start, connecting = begin, []
sys.addaudithook(note)
from kernels import get_kernel
get_kernel("acme/relu", version=1)
print(json.dumps(sorted(modules[connecting[0]])))
"""


def _modules_before_the_first_connection(tmp_path: Path, session: str) -> list[str]:
    script = tmp_path / "program.py"
    script.write_text(COUNT)
    done = subprocess.run(
        [sys.executable, str(script), session], capture_output=True, text=True, env=os.environ.copy(), check=False
    )
    assert done.returncode == 0, done.stderr
    modules: list[str] = json.loads(done.stdout)
    return modules


@pytest.mark.parametrize("kind", ["hub", "http"])
def test_few_modules_are_imported_before_the_first_connection(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    hub.make_repo("acme/relu")
    if kind == "hub":
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.delenv("KERNELS_HUB")
        monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    modules = _modules_before_the_first_connection(tmp_path, "session")
    assert {each.partition(".")[0] for each in modules} == {"kernels"}
    # With two of Python's, for the name of the host, no more than 25. Of another address the cache is asked as well.
    assert len(modules) <= (23 if kind == "hub" else 24), modules
    assert hub.count("/refs") == 1


def test_nothing_else_is_imported_while_the_session_is_made(hub: TestHub, tmp_path: Path) -> None:
    hub.make_repo("acme/relu")
    modules = _modules_before_the_first_connection(tmp_path, "no session")
    own = [each for each in modules if each.partition(".")[0] == "kernels"]
    assert own != modules  # the session's
    assert len(own) <= 25, own
    assert hub.count("/refs") == 1


class Early(list[str]):
    """The URLs of the first requests that were sent early; files follow later."""

    def __init__(self) -> None:
        self.endings: list[threading.Event] = []

    def wait(self) -> None:
        """Wait until each has an answer, also one that the call did not wait for."""
        assert all(ending.wait(60) for ending in self.endings)


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> Early:
    sent, entering = Early(), threading.local()

    class Noted(wire.Sending):
        def __init__(self, url: str, *others: Any) -> None:
            self.ending = threading.Event()
            if getattr(entering, "early", False):
                sent.append(url)
                sent.endings.append(self.ending)
            super().__init__(url, *others)

        def _work(self, session: Any) -> Any:
            try:
                return super()._work(session)
            finally:
                self.ending.set()

    @contextmanager
    def noted(requests: Iterable[wire.EarlyRequest]) -> Iterator[None]:
        entering.early = True
        with wire.sent_early(requests):
            entering.early = False
            yield

    monkeypatch.setattr(wire, "Sending", Noted)
    monkeypatch.setattr(first_request, "sent_early", noted)
    return sent


Case = Callable[[TestHub, pytest.MonkeyPatch, Path], dict[str, Any]]


def _as_it_is(hub: TestHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    return {"version": 1}


def _with(**arguments: Any) -> Case:
    return lambda hub, monkeypatch, tmp_path: {"version": 1, **arguments}


def _set(name: str, value: str) -> Case:
    def prepare(hub: TestHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
        monkeypatch.setenv(name, value.format(folder=tmp_path / "hub" / "acme" / "relu", url=hub.url))
        return {"version": 1}

    return prepare


def _faulty(**fault: Any) -> Case:
    def prepare(hub: TestHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
        hub.fail("/refs", **fault)
        return {"version": 1}

    return prepare


def _commit(hub: TestHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    return {"revision": hub.commit("acme/relu")}


def _own_endpoint(hub: TestHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setenv("KERNELS_HUB", "hub")
    return {"version": 1}


def _locked(hub: TestHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    lock = [{"dependency": {"repo-id": "acme/relu", "version": 1}, "lock": {"commit": hub.commit("acme/relu")}}]
    (tmp_path / "kernels.lock").write_text(json.dumps(lock))
    monkeypatch.setenv("KERNELS_LOCKFILE", str(tmp_path / "kernels.lock"))
    return {"version": 1}


#: What is asked, and how many requests leave early.
CASES: dict[str, tuple[Case, int]] = {
    "a version": (_as_it_is, 1),
    "a Hub in HF_ENDPOINT": (_own_endpoint, 1),
    "a branch": (lambda hub, monkeypatch, tmp_path: {"revision": "main"}, 1),
    "no version": (lambda hub, monkeypatch, tmp_path: {}, 1),
    "a token": (_set("KERNELS_HUB_TOKEN", "token-of-a-test"), 1),
    "an allowed repository": (_with(trust_remote_code=["acme/relu"]), 1),
    "a user agent": (_with(user_agent={"framework": "tests"}), 1),
    "no such version": (_with(version=7), 1),
    "no repository": (_with(repo_id="acme/none"), 1),
    "an untrusted publisher": (_with(repo_id="other/relu"), 1),
    "refused": (_faulty(status=401), 1),
    "forbidden": (_faulty(status=403), 1),
    "unavailable for a moment": (_faulty(status=503, times=1), 1),
    "unavailable": (_faulty(status=503), 1),
    "moved": (_faulty(status=307, headers={"Location": "/api/kernels/acme/gelu/refs"}), 1),
    "another backend": (_with(backend="xpu"), 1),
    "a commit": (_commit, 0),
    "locked": (_locked, 0),
    "only locked": (_set("KERNELS_LOCKED", "1"), 0),
    "no lockfile there": (_set("KERNELS_LOCKFILE", "/nowhere/kernels.lock"), 0),
    "a local kernel": (_set("LOCAL_KERNELS", "acme/relu={folder}"), 0),
    "offline": (_set("HF_HUB_OFFLINE", "1"), 0),
    "a folder": (_set("KERNELS_HUB", "/tmp"), 0),
    "several addresses": (_set("KERNELS_HUB", "{url},{url}/other"), 0),
    "a setting that is not valid": (_set("KERNELS_REFRESH", "soon"), 0),
    "an address that is not valid": (_set("KERNELS_HUB", "https://user:password@hub.example"), 0),
    "a name that is not valid": (_with(repo_id="acme/../relu"), 0),
    "a path": (_with(repo_id="./relu"), 0),
    "a version that is not valid": (_with(version="1"), 0),
    "a version and a revision": (_with(revision="main"), 0),
    "a flag of the wrong type": (_with(check_arch="no"), 0),
    "a user agent of the wrong type": (_with(user_agent=7), 0),
    "a user agent with a name of the wrong type": (_with(user_agent={1: "x"}), 0),
    "a list that is not valid": (_with(trust_remote_code=["relu"]), 0),
}


def outcome(
    hub: TestHub, early: Early, folder: Path, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, ...]:
    monkeypatch.setenv("KERNELS_CACHE", str(folder))
    hub.clear()
    try:
        result: Any = get_kernel(**{"repo_id": "acme/relu", **arguments}).variant
    except Exception as error:  # noqa: BLE001 - it is compared
        result = type(error).__mro__[1:], str(error).replace(str(folder), "<cache>")
    early.wait()
    asked = hub.requests
    return result, sorted(each.path for each in asked), [each.headers.get("authorization") for each in asked]


@pytest.mark.parametrize("name", CASES)
def test_results_errors_and_requests_are_as_without(
    hub: TestHub,
    early: Early,
    new_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
) -> None:
    for repo_id in ("acme/relu", "acme/gelu", "other/relu"):
        hub.make_repo(repo_id)
    prepare, expected = CASES[name]
    arguments = prepare(hub, monkeypatch, tmp_path)
    found = outcome(hub, early, tmp_path / "one", arguments, monkeypatch)
    assert len(early) == expected
    assert wire._early == {}
    new_process()
    arguments = prepare(hub, monkeypatch, tmp_path)
    monkeypatch.setattr(first_request, "_early_request", lambda request: None)
    without = outcome(hub, early, tmp_path / "two", arguments, monkeypatch)
    assert len(early) == expected
    if name == "another backend":  # refused when this machine is known, with the first request on its way
        assert (found[0], found[1][1:], without[1]) == (without[0], [], [])
    else:
        assert found == without


def test_what_this_process_knows_is_not_asked_early(
    hub: TestHub, early: Early, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu")
    get_kernel("acme/relu", version=1)
    assert len(early) == 1
    get_kernel("acme/relu", version=1)
    assert len(early) == 1
    new_process()
    monkeypatch.setenv("KERNELS_REFRESH", "3600")
    get_kernel("acme/relu", version=1)
    assert len(early) == 1
    monkeypatch.setenv("KERNELS_REFRESH", "0")
    new_process()
    hub.down()
    get_kernel("acme/relu", version=1)  # from the cache, and the Hub rests
    assert len(early) == 2
    get_kernel("acme/relu", version=1)
    assert len(early) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: has_kernel("acme/relu", version=1),
        lambda: install_kernel("acme/relu", version=1),
        lambda: get_kernels([KernelRequest("acme/relu", version=1), KernelRequest("acme/gelu", version=1)]),
    ],
)
def test_other_calls_send_their_first_requests_early(hub: TestHub, early: Early, call: Callable[[], object]) -> None:
    hub.make_repo("acme/relu")
    hub.make_repo("acme/gelu")
    call()
    assert len(early) == hub.count("/refs") >= 1


def test_threads_that_call_at_once_share_the_request(hub: TestHub, early: Early) -> None:
    hub.make_repo("acme/relu")
    hub.latency = 0.05
    threads = [threading.Thread(target=get_kernel, args=("acme/relu",), kwargs={"version": 1}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(early) == hub.count("/refs") == 1


def test_an_answer_that_nobody_takes_is_closed(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.make_repo("acme/relu")
    hub.latency = 0.2
    responses: list[Any] = []
    ended = threading.Event()

    class Noted(wire.Sending):
        def _ask(self, session: Any) -> Any:
            responses.append(super()._ask(session))
            return responses[-1]

        def _work(self, session: Any) -> Any:
            try:
                return super()._work(session)
            finally:
                ended.set()

    monkeypatch.setattr(wire, "Sending", Noted)
    with pytest.raises(ValueError, match="xpu"):
        get_kernel("acme/relu", version=1, backend="xpu")
    assert ended.wait(30)
    assert [each.is_closed for each in responses] == [True]
    assert wire._early == {}


def test_a_request_with_another_token_is_not_taken_over(
    hub: TestHub, early: Early, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu")
    before = wire.sent_early

    def then_another_token(requests: Any) -> Any:
        monkeypatch.setenv("KERNELS_HUB_TOKEN", "another-token")
        return before(requests)

    monkeypatch.setattr(first_request, "sent_early", then_another_token)
    get_kernel("acme/relu", version=1)
    tokens = [each.headers.get("authorization") for each in hub.requests if each.path.endswith("/refs")]
    assert sorted(map(str, tokens)) == ["Bearer another-token", "None"]


def test_the_token_of_an_early_request_is_hidden(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.support.secrets import redacted

    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setenv("KERNELS_HUB", "hub")
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setenv("HF_TOKEN", "the-token-of-this-test")
    hub.make_repo("acme/relu")
    get_kernel("acme/relu", version=1)
    assert {each.headers.get("authorization") for each in hub.requests} == {"Bearer the-token-of-this-test"}
    assert hub.count("/refs") == 1
    assert redacted("the-token-of-this-test") == "(hidden)"


FORK = """
import os
from kernels.sources.wire import EarlyRequest, _early, sent_early, take_early

wanted = EarlyRequest(os.environ["KERNELS_HUB"] + "/api/kernels/acme/relu/refs", {}, lambda: True)
with sent_early([wanted]):
    assert list(_early) == [wanted.url]
    child = os.fork()
    if not child:
        with sent_early([]):
            os._exit(len(_early) + (take_early(wanted.url, {}) is not None))
    assert os.waitpid(child, 0)[1] == 0
    assert take_early(wanted.url, {}).response().status_code == 200
    assert take_early(wanted.url, {}) is None
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_takes_no_request_of_its_parent_over(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    hub.latency = 0.2
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert hub.count("/refs") == 1


def test_no_token_leaves_early_where_the_library_was_told_so_when_it_was_imported(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setenv("KERNELS_HUB", "hub")
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")  # a program has set it for its imports only
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    monkeypatch.setenv("HF_TOKEN", "the-token-of-this-test")
    hub.make_repo("acme/relu")
    get_kernel("acme/relu", version=1)
    assert {each.headers.get("authorization") for each in hub.requests} == {None}
    assert hub.count("/refs") == 1


def test_a_module_that_another_thread_is_importing_does_not_matter(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu")
    wanted = wire.EarlyRequest

    def while_another_thread_imports(*given: Any) -> Any:
        found = wanted(*given)
        return found._replace(needed=lambda: exec("raise AttributeError('memory_of')"))

    monkeypatch.setattr(first_request, "EarlyRequest", while_another_thread_imports)
    assert get_kernel("acme/relu", version=1).variant == "torch-cpu"
