"""`kernels doctor`'s checks: each thing that is wrong is one line, with one about what to do; none of them raises."""

from __future__ import annotations

import datetime
import http.server
import os
import ssl
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hub import TestHub

from kernels import install_kernel, register_backend, unregister_backend
from kernels.backends import Backend, BackendProbe, Device, Unanswered
from kernels.backends.hindrance import Hindrance
from kernels.diagnosis import Finding, diagnose
from kernels.diagnosis.cache import check_cache
from kernels.diagnosis.finding import Findings
from kernels.diagnosis.hardware import check_backends, check_queries, check_system, check_torch, joined_backends
from kernels.diagnosis.hub import check_hubs
from kernels.diagnosis.in_time import ask_all
from kernels.diagnosis.lock import check_lock
from kernels.diagnosis.packages import check_packages
from kernels.diagnosis.variables import check_variables, shown_variables
from kernels.resolver.target import Target
from kernels.support.formatting import format_names

AS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
needs_root = pytest.mark.skipif(not AS_ROOT, reason="only root can give a file to another user")


def said(findings: Any) -> list[str]:
    return [each.message for each in findings.problems]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of installed packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr("kernels.diagnosis.packages.distributions", lambda: distributions(path=[str(folder)]))
    return folder


# The cache


def test_a_new_cache_is_no_problem_and_nothing_is_written(isolated_env: Path) -> None:
    report, found = check_cache()
    assert (said(found), report.note) == ([], "does not exist yet")
    assert not isolated_env.exists()
    isolated_env.mkdir()
    assert said(check_cache()[1]) == []
    assert list(isolated_env.iterdir()) == []


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = Path("/proc/kernels")
    if not AS_ROOT:
        folder = tmp_path / "cache"
        folder.mkdir(mode=0o500)
    monkeypatch.setenv("KERNELS_CACHE", str(folder))
    report, found = check_cache()
    assert report.note == "is not writable"
    assert len(said(found)) == 1
    assert str(folder) in said(found)[0]
    assert "KERNELS_CACHE" in found.problems[0].fix


def test_a_cache_below_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "home/hub"))
    assert said(check_cache()[1]) == [f"{tmp_path}/home/hub cannot be made: {tmp_path}/home is not a folder."]
    (tmp_path / "link").symlink_to("nowhere")
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "link"))
    assert said(check_cache()[1]) == [f"{tmp_path}/link leads to nothing."]


@needs_root
def test_a_cache_of_another_user(isolated_env: Path) -> None:
    isolated_env.mkdir()
    os.chown(isolated_env, 65534, 65534)
    report, found = check_cache()
    assert "65534" in said(found)[0]
    assert "65534" in (report.note or "")


def test_a_cache_with_an_endless_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / ("\udcff" * 10_000)))
    report, found = check_cache()
    assert said(found) == ["The path of the cache has a name that is longer than file systems allow."]
    assert len(report.path) <= 200


def test_a_disk_that_is_nearly_full(isolated_env: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 12_000_000})())
    assert said(check_cache()[1]) == [f"The disk of {isolated_env.parent} is nearly full: 12 MB are free."]


def test_records_that_are_ignored_are_counted(hub: TestHub, isolated_env: Path) -> None:
    hub.make_repo("acme/relu")
    install_kernel("acme/relu", version=1, trust_remote_code=True)
    assert said(check_cache()[1]) == []
    records = sorted((isolated_env / "kernels--acme--relu/index").glob("*.json"))
    damaged, writable = records[0], records[1]
    damaged.chmod(0o600)
    damaged.write_bytes(b"{")
    damaged.chmod(0o444)
    writable.chmod(0o644)
    assert said(check_cache()[1]) == [
        f"Ignored 1 record, which somebody may write, or another user owns: {name(writable)}.",
        f"Ignored 1 record, which cannot be read: {name(damaged)}.",
    ]


def name(path: Path) -> str:
    """A path as messages show it: at most 100 characters."""
    return format_names([path])


# The Hub


@pytest.mark.parametrize(
    ("status", "part"),
    [(401, "refuses"), (403, "refuses access"), (407, "refuses access"), (503, "answered with status 503")],
)
def test_a_hub_that_refuses(hub: TestHub, status: int, part: str) -> None:
    hub.fail(status=status)
    [report], found = check_hubs()
    assert report.answers is False
    assert part in said(found)[0]


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_is_refused(hub: TestHub, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setenv("KERNELS_HUB_TOKEN", "hf_" + "x" * 30)
    hub.fail("whoami", status=status)
    [report], found = check_hubs()
    assert report.answers is True
    assert f"does not accept the token (status {status})" in said(found)[0]
    assert "KERNELS_HUB_TOKEN" in found.problems[0].fix
    assert "xxxx" not in repr(found.problems)


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers as a login page, a moved Hub, or a Hub with another clock."""

    def do_GET(self) -> None:
        status, headers, body = self.server.answer  # type: ignore[attr-defined]
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(isolated_env: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    running = []

    def serve(status: int, headers: dict[str, str], body: bytes = b"[]", context: ssl.SSLContext | None = None) -> None:
        each: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        each.answer = status, headers, body
        if context is not None:
            each.socket = context.wrap_socket(each.socket, server_side=True)
        running.append(each)
        threading.Thread(target=each.serve_forever, daemon=True).start()
        scheme = "http" if context is None else "https"
        monkeypatch.setenv("KERNELS_HUB", f"{scheme}://127.0.0.1:{each.server_port}")

    yield serve
    for each in running:
        each.shutdown()
        each.server_close()


def test_what_is_no_hub_is_told(server: Callable[..., None]) -> None:
    server(200, {"Content-Type": "text/html"}, b"<html>log in</html>")
    assert "answered with a page" in said(check_hubs()[1])[0]
    server(302, {"Location": "https://login.example/?token=abcdef"})
    assert said(check_hubs()[1])[0].endswith("redirects to https://login.example/?token=(hidden)")
    server(401, {"Content-Type": "application/json"}, b'{"error": "Token has \\u001b[31mexpired"}')
    assert said(check_hubs()[1])[0].endswith("(status 401): Token has \\x1b[31mexpired.")


def test_a_server_that_answers_but_is_no_hub(
    hub: TestHub, server: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    [report], found = check_hubs()
    assert (report.answers, report.note, said(found)) == (True, None, [])
    monkeypatch.setenv("KERNELS_HUB", f"{hub.url}/x")
    [report], found = check_hubs()
    assert (report.answers, report.note) == (False, "answers, but not as a Hub (status 404)")
    assert said(found)[0].startswith(f"{hub.url}/x answers, but not as a Hub (status 404)")
    assert found.problems[0].fix.startswith("Check the URL in KERNELS_HUB")
    server(404, {"Content-Type": "text/html"}, b"<html>nothing here</html>")
    assert "answers, but not as a Hub (status 404)" in said(check_hubs()[1])[0]


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (404, {"X-Error-Code": "RepoNotFound"}),
        (401, {"X-Error-Code": "RepoNotFound"}),
        (401, {"X-Error-Message": "Invalid username or password."}),
    ],
)
def test_a_hub_without_a_list_is_known_by_what_it_says_of_a_repository(
    hub: TestHub, status: int, headers: dict[str, str]
) -> None:
    hub.fail("/refs$", status=status, headers=headers)
    [report], found = check_hubs()
    assert (report.answers, said(found)) == (True, [])


def test_a_clock_that_is_off(server: Callable[..., None]) -> None:
    server(200, {"Date": "Thu, 01 Jan 2015 00:00:00 GMT"})
    assert "minutes ahead of" in said(check_hubs()[1])[0]


def test_a_hub_that_sends_a_byte_now_and_then_costs_seconds(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.diagnosis.HUB_SECONDS", 0.5)
    monkeypatch.setattr("kernels.diagnosis.hub.HUB_SECONDS", 0.5)
    hub.drip("api", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000, every=0.2)
    [found] = [each for each in diagnose().problems if each.check == "hub"]
    assert found.message == f"{hub.url} did not answer within 0.5 seconds."


def test_a_certificate_that_is_not_trusted(server: Callable[..., None], tmp_path: Path) -> None:
    server(200, {}, context=certificate(tmp_path, days=1))
    [found] = check_hubs()[1].problems
    assert "has a certificate that is not trusted" in found.message
    assert "SSL_CERT_FILE" in found.fix


def certificate(folder: Path, *, days: int) -> ssl.SSLContext:
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.timezone.utc)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=9))
        .not_valid_after(now + datetime.timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.pem").write_bytes(plain + signed.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context


def test_a_hub_without_an_address_or_a_port(isolated_env: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB", "http://hub.invalid")
    assert "no address is known for this name" in said(check_hubs()[1])[0]
    monkeypatch.setenv("KERNELS_HUB", "http://127.0.0.1:9")
    assert "does not answer: ConnectionRefusedError" in said(check_hubs()[1])[0]


# The variables


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("KERNELS_CAHCE", "KERNELS_CACHE"),
        ("KERNEL_CACHE", "KERNELS_CACHE"),
        ("HF_KERNELS_CACHE", "KERNELS_CACHE"),
        ("KERNLES_HUB", "KERNELS_HUB"),
        ("KERNELS_DISABLE_BACKEND", "KERNELS_DISABLE_BACKENDS"),
        ("KERNELS_LOCK_FILE", "KERNELS_LOCKFILE"),
        ("kernels_backend", "KERNELS_BACKEND"),
        ("LOCAL_KERNEL", "LOCAL_KERNELS"),
        ("DISABLE_KERNELS_MAPPING", "DISABLE_KERNEL_MAPPING"),
        ("HF_HUB_OFLINE", "HF_HUB_OFFLINE"),
    ],
)
def test_a_misspelt_variable(monkeypatch: pytest.MonkeyPatch, isolated_env: Path, name: str, meant: str) -> None:
    monkeypatch.setenv(name, "1")
    assert check_variables().problems == [
        Finding("variables", f"{name} is set, which nothing reads.", f"Did you mean {meant}?")
    ]


@pytest.mark.parametrize(
    "name", ["KERNELS_SERVICE_HOST", "KERNELS_PORT_80_TCP_ADDR", "HF_HUB_DISABLE_XET", "HF_DATASETS_OFFLINE", "PATHS"]
)
def test_a_variable_of_others_is_no_problem(monkeypatch: pytest.MonkeyPatch, isolated_env: Path, name: str) -> None:
    monkeypatch.setenv(name, "1")
    found = check_variables()
    assert (found.problems, found.notes) == ([], [])


def test_an_unknown_variable_is_a_note(monkeypatch: pytest.MonkeyPatch, isolated_env: Path) -> None:
    monkeypatch.setenv("KERNELS_XYZZY", "1")
    found = check_variables()
    assert found.problems == []
    assert found.notes[0].message == "KERNELS_XYZZY is set, which this package does not read."


@pytest.mark.parametrize(
    ("token", "part"),
    [
        ("hf_abc\ndef", "a line break"),
        ("hf_äbc", "a character that no token has"),
        ("hf_abc def", "a character that no token has"),
        ('"hf_abcdef"', "quotation marks"),
        ("$HF_SECRET", "a variable that was not replaced"),
        ("Bearer:hf_abcdef", "a word before the token"),
        ("  ", "is blank"),
    ],
)
def test_a_malformed_token(monkeypatch: pytest.MonkeyPatch, isolated_env: Path, token: str, part: str) -> None:
    for name in ("HF_TOKEN", "KERNELS_HUB_TOKEN"):
        monkeypatch.setenv(name, token)
        messages = [each for each in said(check_variables()) if each.startswith(name)]
        assert [each for each in messages if part in each]
        assert "abc" not in repr(messages)
        monkeypatch.delenv(name)


def test_local_kernels_that_are_not_there(monkeypatch: pytest.MonkeyPatch, isolated_env: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "whole/build").mkdir(parents=True)
    entries = {name: tmp_path / name for name in ("nowhere", "empty", "whole")}
    monkeypatch.setenv("LOCAL_KERNELS", ":".join(f"acme/{name}={path}" for name, path in entries.items()))
    assert said(check_variables()) == [
        f"LOCAL_KERNELS has 'acme/nowhere' at '{tmp_path}/nowhere', which is no folder.",
        f"LOCAL_KERNELS has 'acme/empty' at '{tmp_path}/empty', which has no folder build/.",
    ]


def test_a_huge_value_is_cut(monkeypatch: pytest.MonkeyPatch, isolated_env: Path) -> None:
    monkeypatch.setenv("KERNELS_TRUSTED_PUBLISHERS", "\udcff" * 100_000)
    assert len(shown_variables()["KERNELS_TRUSTED_PUBLISHERS"]) < 400
    assert all(len(each.message) <= 1000 for each in check_variables().problems)


# The lock


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolated_env: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[tool.kernels.dependencies]\n"acme/relu" = 1\n')
    monkeypatch.chdir(folder)
    return folder


def test_a_project_without_a_lockfile_is_a_note(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (said(check_lock()), len(check_lock().notes)) == ([], 1)
    monkeypatch.setenv("KERNELS_LOCKED", "1")
    assert said(check_lock()) == ["KERNELS_LOCKED=1 allows locked kernels only, and there is no lockfile here."]


def test_a_lockfile_that_is_broken(project: Path) -> None:
    lock = project / "kernels.lock"
    lock.write_text("[")
    assert str(lock) in said(check_lock())[0]
    lock.unlink()
    lock.mkdir()
    assert said(check_lock()) == [f"Cannot read {lock}: it is not a file."]
    lock.rmdir()
    os.mkfifo(lock)
    assert said(check_lock()) == [f"Cannot read {lock}: it is not a file."]
    lock.unlink()
    lock.write_text("[]")
    assert said(check_lock()) == [f"{lock} does not pin acme/relu version 1 of pyproject.toml."]


def test_a_pyproject_that_is_broken(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.kernels.dependencies]\nrelu = 1\n")
    assert "relu" in said(check_lock())[0]


# The machine


def machine(**facts: Any) -> Target:
    return msgspec.structs.replace(Target.parse("torch2.9-cpu-x86_64-linux"), **facts)


GPU = Device("cuda", 0, "NVIDIA H200", "9.0", 90)


def test_a_gpu_that_torch_is_not_built_for() -> None:
    why = Hindrance("torch", "this Torch (2.9.0+cpu) is built for cpu", "install a Torch that is built for cuda")
    target = machine(devices=(GPU,), backends={"cuda": "12.8", "cpu": None}, hindrances={"cuda": (why,)})
    assert check_torch(target).problems == [
        Finding(
            "torch",
            "cuda: NVIDIA H200 is there, but this Torch (2.9.0+cpu) is built for cpu.",
            "Install a Torch that is built for cuda.",
        )
    ]


@pytest.mark.parametrize("kind", ["absent", "driver", "hidden", "failed"])
def test_what_keeps_torch_from_its_device_is_a_problem(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELS_BACKEND", raising=False)
    why = Hindrance(kind, "no NVIDIA driver", "install NVIDIA's driver")
    target = machine(torch_backends=("cuda", "cpu"), hindrances={"cuda": (why,)})
    assert said(check_torch(target)) == ["cuda: no NVIDIA driver."]


def test_a_device_that_is_not_there_is_a_note_where_another_backend_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    why = Hindrance("absent", "no NVIDIA driver", "install NVIDIA's driver")
    target = machine(torch_backends=("cuda", "cpu"), hindrances={"cuda": (why,)})
    monkeypatch.setenv("KERNELS_BACKEND", "cpu")
    found = check_torch(target)
    assert (said(found), [each.message for each in found.notes]) == ([], ["cuda: no NVIDIA driver."])


def test_hardware_that_is_not_there_is_no_problem() -> None:
    why = (Hindrance("absent", "no Intel GPU", "buy one"), Hindrance("torch", "it is built for cpu", "install another"))
    assert said(check_torch(machine(hindrances={"xpu": why}))) == []


def test_a_second_device_that_torch_does_not_serve_is_a_note() -> None:
    why = Hindrance("torch", "this Torch is built for cuda, cpu", "install another")
    target = machine(
        devices=(GPU, Device("xpu", 0)),
        backends={"cuda": "12.8", "xpu": None, "cpu": None},
        torch_backends=("cuda", "cpu"),
        hindrances={"xpu": (why,)},
    )
    assert (said(check_torch(target)), len(check_torch(target).notes)) == ([], 1)


def test_a_plugin_whose_probe_fails_is_a_problem() -> None:
    class Acme(Backend):
        name = device_type = "acme"

        def probe(self) -> BackendProbe:
            raise OSError("libacme.so: no such file")

    register_backend(Acme())
    try:
        [message] = [each for each in said(check_torch(Target.probe())) if each.startswith("acme")]
    finally:
        unregister_backend("acme")
    assert message == "acme: could not be probed: OSError: libacme.so: no such file."


def test_a_query_without_an_answer_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Unanswered("architectures", "'acme-smi' ended with exit status 3: 'Permission denied'")
    of_torch = Unanswered("version", "torch.acme.version() failed with AttributeError", of_torch=True)
    found = check_queries(machine(unanswered={"acme": (refused, of_torch)}))
    assert found.problems == [
        Finding(
            "backends",
            "acme: architectures: 'acme-smi' ended with exit status 3: 'Permission denied'. Builds for other "
            "architectures are not rejected.",
            "Correct `archs`, or what it runs; `kernels backends check acme` tries it again.",
        )
    ]
    assert [each.message for each in found.notes] == ["acme: version: torch.acme.version() failed with AttributeError."]
    extended = machine(torch_backends=("acme", "cpu"), unanswered={"acme": (of_torch,)})
    assert said(check_queries(extended)) == ["acme: version: torch.acme.version() failed with AttributeError."]
    monkeypatch.setattr("kernels.diagnosis.probed_target", lambda: (extended, Findings("variables")))
    assert extended.unanswered["acme"][0].reason in str(diagnose().problems)


def test_a_file_that_replaces_what_another_declares_is_a_note_and_a_field_that_is_not_known_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, other, notes = tmp_path / "one.json", tmp_path / "other.json", tmp_path / "notes.json"
    one.write_text('{"acme": {"device_string": "acme", "vendor": "Acme", "version": "1.2", "detct": {}}}')
    other.write_text('{"acme": {"device_string": "acme", "vendor": "Ajax", "archs": ["a1"], "colour": 1}}')
    notes.write_text('{"cuda": {"kernel_guidance": "Tiles."}}')
    monkeypatch.setenv("KERNELS_BACKENDS_JSON", os.pathsep.join(map(str, (one, other, notes))))
    found = check_backends()
    assert [(each.message, each.fix) for each in found.notes] == [
        (
            f"acme, declared in {other}, replaces fields of the one that is declared in {one}: vendor.",
            "If these are two chips, give one of them another name.",
        )
    ]
    assert [(each.message, each.fix) for each in found.problems] == [
        (
            f"acme, declared in {other}: 'colour' is no known field, and is ignored.",
            "Remove it, or update this package.",
        ),
        (f"acme, declared in {one}: 'detct' is no known field, and is ignored.", "Write 'detect', if that is meant."),
    ]
    assert joined_backends() == {
        "cuda": f"built in; declared in {notes}",
        "acme": f"declared in {one}; declared in {other}",
    }


def test_disabled_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_DISABLE_BACKENDS", "xpu, cdua")
    found = check_backends()
    assert said(found) == ["KERNELS_DISABLE_BACKENDS has 'cdua', which is no backend here."]
    assert found.problems[0].fix == "Did you mean 'cuda'?"
    assert [note.message for note in found.notes] == ["Backend 'xpu' is disabled by KERNELS_DISABLE_BACKENDS."]


def test_a_macos_that_is_too_old_for_compiled_builds() -> None:
    target = Target.parse("torch2.9-metal-aarch64-darwin15.1")
    assert said(check_system(target)) == ["Metal builds require macOS 26.0 or later, this machine has 15.1."]
    assert said(check_system(Target.parse("torch2.9-metal-aarch64-darwin26.1"))) == []


def test_a_clock_that_was_never_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 12345.0)
    assert "This machine's clock says 1970" in said(check_system(None))[0]


# The packages


def install(site: Path, name: str, version: str, *lines: str, files: tuple[str, ...] = ()) -> Path:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    text = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""])
    (info / "METADATA").write_text(text)
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))
    return info


def test_a_requirement_that_is_not_met(site: Path) -> None:
    install(
        site,
        "kernels",
        "0.18.2",
        "Requires-Dist: huggingface-hub<1,>=0.3",
        "Requires-Dist: nothing-of-the-kind>=1",
        'Requires-Dist: torch>=99; extra == "torch"',
        'Requires-Dist: pytest<2; extra == "dev"',
        files=("kernels/__init__.py",),
    )
    messages = said(check_packages())
    assert [each.split()[0] for each in messages] == ["huggingface-hub", "nothing-of-the-kind", "torch"]
    assert "but kernels 0.18.2 needs huggingface-hub<1,>=0.3." in messages[0]


def test_files_of_another_client(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "kernels").mkdir()
    for name in ("__init__.py", "api.py", "_rust.abi3.so"):
        (site / "kernels" / name).touch()
    install(site, "kernels", "0.18.2", files=("kernels/__init__.py", "kernels/api.py"))
    monkeypatch.setattr("kernels.diagnosis.packages.LOCATION", (site / "kernels").resolve())
    assert said(check_packages()) == [
        f"{site / 'kernels'} has files of another package or version: kernels/_rust.abi3.so."
    ]


def test_a_broken_lockfile_of_an_installed_package(site: Path) -> None:
    info = install(site, "acme-models", "1.0")
    (info / "kernels.lock").write_text("{")
    assert said(check_packages())[0].startswith("acme-models 1.0: ")


# Whatever is broken


def test_a_check_that_fails_is_a_problem_of_its_own(
    isolated_env: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("_machine", "check_variables", "check_cache", "check_hubs", "check_lock", "check_packages"):
        monkeypatch.setattr(f"kernels.diagnosis.{name}", lambda: 1 / 0)
    report = diagnose()
    assert sorted(each.check for each in report.problems) == ["cache", "hub", "lock", "packages", "torch", "variables"]
    assert all("ZeroDivisionError" in each.message for each in report.problems)
    assert report.target is None


def test_a_question_that_hangs_or_exits_is_left_alone() -> None:
    def leave() -> None:
        sys.exit(3)

    answers = ask_all({"slow": (0.05, lambda: time.sleep(5)), "exit": (1.0, leave), "fine": (1.0, lambda: 7)})
    assert isinstance(answers["slow"], TimeoutError)
    assert __file__ in str(answers["slow"])
    assert str(answers["exit"]) == "SystemExit: 3"
    assert answers["fine"] == 7


def test_a_plugin_that_hangs_is_named(
    isolated_env: Path, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang() -> None:
        time.sleep(5)

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("kernels.diagnosis._MACHINE_SECONDS", 0.2)
    monkeypatch.setattr("kernels.diagnosis._machine", hang)
    [found] = [each for each in diagnose().problems if each.check == "torch"]
    assert found.message.startswith(f"The check of torch did not end: no answer within 0.2 seconds, at {__file__}")


def test_a_deleted_current_folder_is_no_failure(
    isolated_env: Path, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert [each for each in diagnose().problems if "failed" in each.message] == []
    assert stat.S_ISDIR(os.stat(tmp_path).st_mode)
