"""Credentials and endpoints, where each cloud's own tools have them."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from s3_server import S3Server

from kernels.errors import HubUnavailable, KernelsError, MissingPythonDependency, RequestError, StoreError
from kernels.mirror.stores import instance_roles
from kernels.mirror.stores.clouds import azure_store, google_store, s3_store
from kernels.mirror.stores.opening import open_store
from kernels.support.secrets import redacted

SECRET = "very-secret-key-0123456789"


@pytest.fixture(autouse=True)
def bare(isolated_env: Path, s3_environment: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No credentials, no endpoint, no metadata service."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(instance_roles, "_LINK_LOCAL", "http://127.0.0.1:1")
    caches = (instance_roles._has_aws_role, instance_roles._has_google_account, instance_roles.has_azure_identity)
    for each in caches:
        each.cache_clear()
    yield
    for each in caches:
        each.cache_clear()


@pytest.fixture
def aws(tmp_path: Path) -> Any:
    """Writes a file of `~/.aws`."""

    def write(name: str, text: str) -> None:
        folder = tmp_path / "s3-home" / ".aws"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    return write


def s3_config(bucket: str = "bucket") -> dict[str, Any]:
    config = dict(s3_store(bucket, "prefix")(0).config)
    return {name: {"true": True, "false": False}.get(str(value), value) for name, value in config.items()}


def read(address: str) -> None:
    open_store(address).read("mirror.json", 10)


def write(address: str) -> None:
    open_store(address).write("mirror.json", b"{}", expect="new")


OWN = {"AWS_ACCESS_KEY_ID": "own", "AWS_SECRET_ACCESS_KEY": "own-secret-0123456789"}
ACCOUNT = {"AZURE_STORAGE_ACCOUNT_NAME": "account"}
KEYS = f"aws_access_key_id = AKIAEXAMPLE\naws_secret_access_key = {SECRET}\n"


def test_keys_of_the_environment_come_before_those_of_a_profile(monkeypatch: pytest.MonkeyPatch, aws: Any) -> None:
    aws("credentials", f"[default]\n{KEYS}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own-secret-0123456789")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "own-token-0123456789")
    assert not {"access_key_id", "skip_signature"} & s3_config().keys()  # obstore reads the variables itself
    assert redacted("own-secret-0123456789 own-token-0123456789") == "(hidden) (hidden)"


ENDPOINT_OF_SERVICES = "services = own\n[services own]\ns3 =\n  endpoint_url = https://s3.example\n"
VIRTUAL = "endpoint_url = https://s3.example\ns3 =\n  addressing_style = virtual\n"


@pytest.mark.parametrize(
    ("credentials", "config", "profile", "expected"),
    [
        (f"[default]\n{KEYS}", "", "", {}),
        (f"[default]\n{KEYS}aws_session_token = a-token-0123456789\n", "", "", {"session_token": "a-token-0123456789"}),
        (f"[prod]\n{KEYS}", "[profile prod]\nregion = eu-west-1\n", "prod", {"region": "eu-west-1"}),
        ("", f"[default]\n{KEYS}region = eu-west-1\n", "", {"region": "eu-west-1"}),
        ("", f"[default]\n{KEYS}endpoint_url = http://ceph:7480\n", "", {"endpoint": "http://ceph:7480"}),
        ("", f"[default]\n{KEYS}{ENDPOINT_OF_SERVICES}", "", {"endpoint": "https://s3.example"}),
        ("", f"[default]\n{KEYS}{VIRTUAL}", "", {"endpoint": "https://bucket.s3.example"}),
        ("", f"[default]\n{KEYS}s3 =\n  addressing_style = path\n", "", {"virtual_hosted_style_request": False}),
    ],
)
def test_a_profile_gives_keys_region_and_endpoint(
    monkeypatch: pytest.MonkeyPatch, aws: Any, credentials: str, config: str, profile: str, expected: dict[str, Any]
) -> None:
    aws("credentials", credentials)
    aws("config", config)
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    found = s3_config()
    assert found["access_key_id"] == "AKIAEXAMPLE"
    assert found["secret_access_key"] == SECRET
    assert {name: found.get(name) for name in expected} == expected
    assert redacted(SECRET) == "(hidden)"


@pytest.mark.parametrize(
    ("variables", "bucket", "expected"),
    [
        ({}, "bucket", {"virtual_hosted_style_request": True}),
        ({}, "my.bucket", {"virtual_hosted_style_request": False}),
        ({"AWS_ENDPOINT_URL": "http://ceph:7480/"}, "bucket", {"endpoint": "http://ceph:7480"}),
        ({"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "http://b"}, "bucket", {"endpoint": "http://b"}),
        ({"AWS_ENDPOINT_URL": "http://a:1", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}, "bucket",
         {"endpoint": "http://bucket.a:1", "virtual_hosted_style_request": True}),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "x"}, "bucket", {"region": "eu-west-1"}),
        ({"AWS_DEFAULT_REGION": "eu-west-2"}, "bucket", {"region": "eu-west-2"}),
    ],
)  # fmt: skip
def test_the_environment_names_endpoint_addressing_and_region(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], bucket: str, expected: dict[str, Any]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config = s3_config(bucket)
    assert {name: config.get(name) for name in expected} == expected
    assert config["skip_signature"] is True  # nothing gives credentials


def test_plain_http_only_where_the_endpoint_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for endpoint, allowed in {"http://ceph:7480": True, "https://ceph": False, "": False}.items():
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        assert s3_store("bucket", "")(0).client_options["allow_http"] == str(allowed).lower()


@pytest.mark.parametrize(
    ("files", "variables", "message"),
    [
        ({"config": "[profile prod]\n"}, {"AWS_PROFILE": "prdo"}, "no such profile. Did you mean 'prod'?"),
        ({"credentials": f"[default]\n{KEYS}{SECRET}\n"}, {}, "credentials is not a file of AWS settings: line 4."),
        ({"credentials": f"{SECRET}\n"}, {}, "credentials is not a file of AWS settings: line 1."),
        ({}, {"AWS_ENDPOINT_URL": f"http://user:{SECRET}@ceph"}, "with a user or a password"),
        ({}, {"AWS_ENDPOINT_URL": "ceph:7480"}, "`AWS_ENDPOINT_URL` is 'ceph:7480'; expected an http(s) URL"),
        ({}, {"AWS_CA_BUNDLE": "/no/such/file"}, "`AWS_CA_BUNDLE` is '/no/such/file': No such file"),
        ({}, {"AWS_CA_BUNDLE": __file__}, "which has no certificate; expected a file of PEM."),
        ({}, {"AWS_ACCESS_KEY_ID": "own"}, "`AWS_ACCESS_KEY_ID` is set without `AWS_SECRET_ACCESS_KEY`; expected both"),
        ({}, {"AWS_SECRET_ACCESS_KEY": SECRET}, "`AWS_SECRET_ACCESS_KEY` is set without `AWS_ACCESS_KEY_ID`"),
        ({}, {"AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ACCESS_KEY_ID": ""}, "is set without `AWS_ACCESS_KEY_ID`"),
        (
            {"credentials": "[default]\naws_access_key_id = x\n"},
            {},
            "profile default has aws_access_key_id without aws_s",
        ),
        ({"credentials": f"[default]\n{KEYS}  more\n"}, {}, "The keys of the AWS profile default have a line break"),
        ({"credentials": f"[default]\n{KEYS}"}, {"AWS_SESSION_TOKEN": SECRET}, "is set without `AWS_ACCESS_KEY_ID`"),
        ({}, {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}, "`AWS_WEB_IDENTITY_TOKEN_FILE` is set without `AWS_ROLE_ARN`"),
        ({}, {**OWN, "AWS_SESSION_TOKEN": f"{SECRET}\nx"}, "`AWS_SESSION_TOKEN` has a line break"),
        ({}, {**OWN, "AWS_SECRET_ACCESS_KEY": f"{SECRET}\n"}, "`AWS_SECRET_ACCESS_KEY` has a line break"),
        ({}, {**OWN, "AWS_REGION": "eu-west-1\n"}, "`AWS_REGION` has a line break"),
        ({}, {**OWN, "AWS_SERVER_SIDE_ENCRYPTION": "x"}, "s3://bucket cannot be used: 'Invalid encryption type: x."),
        ({}, {**OWN, "AWS_S3_EXPRESS": "perhaps"}, "AWS_ACCESS_KEY_ID, AWS_EC2_METADATA_DISABLED, AWS_S3_EXPRESS"),
    ],
)
def test_a_wrong_setting_is_named_without_its_secret(
    monkeypatch: pytest.MonkeyPatch, aws: Any, files: dict[str, str], variables: dict[str, str], message: str
) -> None:
    for name, text in files.items():
        aws(name, text)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for use in (read, write):
        with pytest.raises(RequestError) as raised:
            use("s3://bucket")
        assert message in str(raised.value)
        assert SECRET not in str(raised.value) + repr(raised.value.__cause__)


def test_a_profile_is_used_with_a_real_server(s3_server: S3Server, aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    aws("config", f"[profile own]\nendpoint_url = {s3_server.url}\nregion = us-east-1\n")
    aws("credentials", f"[own]\n{KEYS}")
    monkeypatch.setenv("AWS_PROFILE", "own")
    store = open_store(f"s3://{s3_server.bucket()}")
    store.write("mirror.json", b"{}", expect="new")
    assert store.size("mirror.json") == 2


def test_a_program_of_the_profile_gives_credentials(
    s3_server: S3Server, aws: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "credentials.py"
    keys = {"Version": 1, "AccessKeyId": "AKIAPROGRAM", "SecretAccessKey": SECRET}
    program.write_text(f"print({json.dumps(json.dumps(keys))})")
    aws("config", f"[default]\ncredential_process = {sys.executable} {program}\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    store = open_store(f"s3://{s3_server.bucket()}")
    store.write("mirror.json", b"{}")
    assert store.size("mirror.json") == 2
    assert redacted(SECRET) == "(hidden)"


def test_a_failing_program_and_a_missing_package_are_said(aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    aws("config", "[default]\ncredential_process = /no/such/program\n")
    with pytest.raises(KernelsError, match="The AWS profile default has credential_process, which gave no credentials"):
        open_store("s3://bucket").read("x", 10)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingPythonDependency, match="pip install boto3"):
        open_store("s3://bucket").read("x", 10)


class Metadata:
    """A metadata service of AWS, with a role."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        service = self

        class Answers(BaseHTTPRequestHandler):
            def answer(self) -> None:
                service.seen.append(f"{self.command} {self.path}")
                role = "/latest/meta-data/iam/security-credentials/"
                keys = {
                    "AccessKeyId": "AKIAROLE", "SecretAccessKey": SECRET, "Token": "role-token-0123456789",
                    "Expiration": "2100-01-01T00:00:00Z", "Code": "Success", "Type": "AWS-HMAC",
                    "LastUpdated": "2026-01-01T00:00:00Z",
                }  # fmt: skip
                answers = {"/latest/api/token": "token", role: "role", f"{role}role": json.dumps(keys)}
                body = answers.get(self.path, "").encode()
                self.send_response(200 if body else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = answer

            def log_message(self, *arguments: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    served = Metadata()
    yield served
    served.server.shutdown()
    served.server.server_close()


def test_the_role_of_the_instance_gives_credentials(
    s3_server: S3Server, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{metadata.url}/")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    store = open_store(f"s3://{s3_server.bucket()}")
    store.write("mirror.json", b"{}")
    assert store.size("mirror.json") == 2
    assert metadata.seen[-1] == "GET /latest/meta-data/iam/security-credentials/role"
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert s3_config()["skip_signature"] is True


@pytest.fixture
def pod(metadata: Metadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the token of a container, which has a role."""
    role = "/latest/meta-data/iam/security-credentials/role"
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", metadata.url + role)
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    (tmp_path / "token").write_text(SECRET)
    return tmp_path / "token"


def test_the_role_of_a_container_gives_credentials_unless_a_profile_has_keys(
    s3_server: S3Server, metadata: Metadata, pod: Path, aws: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    aws("config", "[default]\nrole_arn = arn:aws:iam::1:role/other\n")
    open_store(f"s3://{s3_server.bucket()}").write("mirror.json", b"{}")
    assert metadata.seen == ["GET /latest/meta-data/iam/security-credentials/role"]
    aws("credentials", f"[default]\n{KEYS}")
    assert s3_config()["access_key_id"] == "AKIAEXAMPLE"
    aws("credentials", "")
    aws("config", "")
    monkeypatch.delenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    assert s3_config()["skip_signature"] is True  # obstore does not use the URL without it


@pytest.mark.parametrize("content", [f"{SECRET}\n".encode(), b"", b"\xff"])
def test_a_token_that_cannot_be_sent_is_said(pod: Path, content: bytes) -> None:
    pod.write_bytes(content)
    with pytest.raises(RequestError, match=r"`AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE` .* without a line break") as said:
        open_store("s3://bucket").read("mirror.json", 10)
    assert SECRET not in str(said.value)
    pod.unlink()
    with pytest.raises(RequestError, match=r"`AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE` is .*: No such file"):
        open_store("s3://bucket").read("mirror.json", 10)


def test_a_failure_inside_obstore_is_an_error_of_this_package(
    s3_server: S3Server, pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    store = open_store(f"s3://{s3_server.bucket()}")
    store._reading()  # type: ignore[attr-defined]
    pod.write_text(f"{SECRET}\n")  # renewed meanwhile
    with pytest.raises(HubUnavailable, match=r"cannot be used: obstore failed for mirror\.json\. Check the files"):
        store.read("mirror.json", 10)


def test_a_metadata_service_that_does_not_answer_costs_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    asked: list[float] = []
    monkeypatch.setattr(instance_roles, "_SECONDS", 0.05)
    silent = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # it accepts, and nobody answers
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{silent.server_port}")
    for _ in range(2):
        assert not instance_roles.has_aws_role()
        asked.append(instance_roles._has_aws_role.cache_info().misses)
    silent.server_close()
    assert asked == [1, 1]  # once a process


class Refusing:
    """A server that refuses all requests, and keeps what they had."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        server = self

        class Answers(BaseHTTPRequestHandler):
            def answer(self) -> None:
                server.seen.append((self.command, self.path, {name.lower(): v for name, v in self.headers.items()}))
                self.send_response(403)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_PUT = answer

            def log_message(self, *arguments: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Refusing]:
    """The server, as a store of each cloud."""
    served = Refusing()
    monkeypatch.setenv("AWS_ENDPOINT_URL", served.url)
    monkeypatch.setenv("GOOGLE_BASE_URL", served.url)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{served.url}/account")
    yield served
    served.server.shutdown()
    served.server.server_close()


def refused(address: str) -> str:
    with pytest.raises(HubUnavailable) as raised:
        read(address)
    return str(raised.value)


def sas(end: datetime) -> str:
    return f"sv=2024-08-04&se={end:%Y-%m-%dT%H%%3A%M%%3A%SZ}&sr=c&sp=r&sig=c2lnbmF0dXJlLW9mLXRoZS10b2tlbg%3D%3D"


def test_an_empty_variable_is_as_one_that_is_not_set(refusing: Refusing, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "s3://bucket": {**OWN, **dict.fromkeys(("AWS_SESSION_TOKEN", "AWS_SKIP_SIGNATURE", "AWS_S3_EXPRESS"), "")},
        "az://bucket": {
            "AZURE_STORAGE_SAS_TOKEN": sas(datetime.now(timezone.utc) + timedelta(days=1)),
            **dict.fromkeys(("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_TOKEN", "AZURE_STORAGE_USE_EMULATOR"), ""),
        },
        "gs://bucket": {"GOOGLE_BEARER_TOKEN": SECRET, "GOOGLE_SERVICE_ACCOUNT": "", "GOOGLE_SERVICE_ACCOUNT_KEY": ""},
    }
    for address, values in variables.items():
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        assert "answered 403" in refused(address)
    (_, _, s3), (_, azure, headers), (_, _, google) = refusing.seen
    assert s3["authorization"].startswith("AWS4-HMAC-SHA256 Credential=own/")
    assert "x-amz-security-token" not in s3
    assert "sig=" in azure
    assert "authorization" not in headers
    assert google["authorization"] == f"Bearer {SECRET}"


def test_an_expired_token_of_azure_is_said(refusing: Refusing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", sas(datetime.now(timezone.utc) + timedelta(days=1)))
    assert "expired" not in refused("az://container")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "?" + sas(datetime(2026, 1, 2, 3, 4, 5)))
    said = refused("az://container")
    assert "The token in `AZURE_STORAGE_SAS_TOKEN` expired: its `se` is '2026-01-02T03:04:05Z'." in said
    assert "c2lnbmF0dXJl" not in said


def test_google_gets_no_unsigned_write(refusing: Refusing, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        StoreError, match=r"Cannot write gs://bucket: .* no credentials were found\. Looked at: GOOGLE_"
    ):
        write("gs://bucket")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    with pytest.raises(StoreError, match=r"Cannot write gs://bucket: .*`GOOGLE_SKIP_SIGNATURE` is set\."):
        write("gs://bucket")
    assert refusing.seen == []


def test_a_service_without_credentials_is_not_a_mirror_without_entries(
    refusing: Refusing, metadata: Metadata, pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url, status in ((f"{metadata.url}/no-such-role", 404), (f"{refusing.url}/role", 403)):
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
        said = refused("s3://bucket")
        assert said.startswith("s3://bucket was not asked for mirror.json.")
        assert f"its credentials answered {status}" in said
    monkeypatch.setenv("AZURE_USE_AZURE_CLI", "true")
    monkeypatch.setenv("PATH", "")
    assert "az://container was not asked" in refused("az://container")


def test_google_and_azure_without_credentials_are_public(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    for make in (google_store, azure_store):
        assert str(make("bucket", "prefix")(0).config["skip_signature"]).lower() == "true"


def test_google_and_azure_use_what_their_tools_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "YWNjb3VudC1rZXktMDEyMzQ1Njc4")
    assert "skip_signature" not in azure_store("container", "")(0).config
    assert redacted("YWNjb3VudC1rZXktMDEyMzQ1Njc4") == "(hidden)"
    stored = tmp_path / "s3-home" / ".config" / "gcloud" / "application_default_credentials.json"
    stored.parent.mkdir(parents=True)
    credentials = {"type": "authorized_user", "client_id": "x", "client_secret": "y", "refresh_token": "z"}
    stored.write_text(json.dumps(credentials))
    assert "skip_signature" not in google_store("bucket", "")(0).config


@pytest.mark.parametrize(
    ("address", "variables", "message"),
    [
        ("az://container", {}, "`AZURE_STORAGE_ACCOUNT_NAME` is not set"),
        ("gs://bucket", {"GOOGLE_APPLICATION_CREDENTIALS": "/no/such"}, "expected a file that exists"),
        ("gs://bucket", {"GOOGLE_APPLICATION_CREDENTIALS": __file__}, "Check GOOGLE_APPLICATION_CREDENTIALS; docs/"),
        ("gs://bucket", {"GOOGLE_BEARER_TOKEN": "a\nb"}, "`GOOGLE_BEARER_TOKEN` has a line break"),
        ("az://container", {**ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": "###"}, "Check AZURE_STORAGE_ACCOUNT_KEY, AZURE"),
        ("az://container", {**ACCOUNT, "AZURE_STORAGE_SAS_TOKEN": "hello"}, "ACCOUNT_NAME, AZURE_STORAGE_SAS_TOKEN;"),
        ("az://container", {**ACCOUNT, "AZURE_CLIENT_SECRET": SECRET}, "is set without `AZURE_CLIENT_ID`"),
        ("az://container", {**ACCOUNT, "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:1"}, "in its path: .*:1/account"),
        ("az://container", {**ACCOUNT, "AZURE_STORAGE_ENDPOINT": "http://azurite:1/"}, "in its path: .*:1/account"),
    ],
)
def test_what_google_and_azure_need_is_said(
    monkeypatch: pytest.MonkeyPatch, address: str, variables: dict[str, str], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for use in (read, write):
        with pytest.raises(RequestError, match=message) as raised:
            use(address)
        assert "Debug source" not in str(raised.value)
