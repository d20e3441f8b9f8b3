"""obstore's stores of S3, Google and Azure, with the credentials that each cloud's own tools would use."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kernels._version import __version__
from kernels.errors import MissingPythonDependency, RequestError
from kernels.mirror.stores.aws_profile import AwsProfile, read_aws_profile
from kernels.mirror.stores.instance_roles import (
    aws_metadata_endpoint,
    has_aws_role,
    has_azure_identity,
    has_google_account,
)
from kernels.support.env_values import url_in, without_password
from kernels.support.files import read_bounded
from kernels.support.formatting import format_error, format_value
from kernels.support.secrets import register

__all__ = ["about_credentials", "azure_store", "google_store", "is_unsigned", "s3_store", "what_is_set"]

#: Before the second try of a write; it doubles up to 8.
_WAIT_SECONDS = 0.5

_MAX_CERTIFICATES = 4 * 1024 * 1024

_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})

#: Variables that have secrets, which obstore reads itself.
_SECRETS = (
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_TOKEN", "AWS_SSE_CUSTOMER_KEY_BASE64"),
    *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY", "AZURE_STORAGE_SAS_KEY"),
    *("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_TOKEN", "AZURE_CLIENT_SECRET", "AZURE_STORAGE_CLIENT_SECRET"),
    *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BEARER_TOKEN"),
)

#: Variables that obstore puts into a header or signs with. Another character than printable ASCII makes it fail.
_SIGNED = (*_SECRETS, "AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_DEFAULT_REGION", "AZURE_STORAGE_ACCOUNT_NAME")

#: Variables that are of use only beside others, with the spellings of each of those.
_TOGETHER = {
    "AWS_ACCESS_KEY_ID": (("AWS_SECRET_ACCESS_KEY",),),
    "AWS_SECRET_ACCESS_KEY": (("AWS_ACCESS_KEY_ID",),),
    "AWS_SESSION_TOKEN": (("AWS_ACCESS_KEY_ID",),),  # obstore would send it with the keys of a profile
    "AWS_WEB_IDENTITY_TOKEN_FILE": (("AWS_ROLE_ARN",),),
    "AZURE_CLIENT_SECRET": (
        ("AZURE_CLIENT_ID", "AZURE_STORAGE_CLIENT_ID"),
        ("AZURE_TENANT_ID", "AZURE_STORAGE_TENANT_ID", "AZURE_STORAGE_AUTHORITY_ID", "AZURE_AUTHORITY_ID"),
    ),
}

#: Of each kind of address: the beginning of its variables, the variable for unsigned requests, and where else
#: credentials are looked for.
_KINDS = {
    "s3": (
        "AWS_",
        "AWS_SKIP_SIGNATURE",
        "AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, the profile in ~/.aws, the roles of the container and of the "
        "instance",
    ),
    "gs": (
        "GOOGLE_",
        "GOOGLE_SKIP_SIGNATURE",
        "GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT, GOOGLE_SERVICE_ACCOUNT_KEY, `gcloud auth "
        "application-default login`, the account of the machine",
    ),
    "az": (
        "AZURE_",
        "AZURE_SKIP_SIGNATURE",
        "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_SECRET, AZURE_FEDERATED_TOKEN_FILE, "
        "AZURE_USE_AZURE_CLI, the identity of the machine",
    ),
}

#: The most bytes of a file with a token.
_MAX_TOKEN = 64 * 1024

_GOOGLE = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BEARER_TOKEN")
_AZURE = (
    *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY", "AZURE_STORAGE_SAS_KEY"),
    *("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_TOKEN", "AZURE_CLIENT_SECRET", "AZURE_STORAGE_CLIENT_SECRET"),
    *("AZURE_FEDERATED_TOKEN_FILE", "AZURE_MSI_ENDPOINT", "AZURE_IDENTITY_ENDPOINT", "AZURE_USE_AZURE_CLI"),
    "AZURE_FABRIC_SESSION_TOKEN",
)


def s3_store(bucket: str, prefix: str) -> Callable[[int], Any]:
    """Makes obstore's store of a bucket of S3, or of another server with its interface.

    Args:
        bucket: The bucket.
        prefix: The path of the mirror's root in it; may be empty.
    """

    def connect(retries: int) -> Any:
        from obstore.store import S3Store

        _check_environment("s3")
        profile = read_aws_profile()
        endpoint = _s3_endpoint(profile)
        named: dict[str, Any] = _s3_region(profile) | _s3_addressing(profile, bucket, endpoint)
        provider = None
        if _is_true("AWS_SKIP_SIGNATURE"):
            named["skip_signature"] = True
        elif not (os.environ.get("AWS_ACCESS_KEY_ID") and os.environ.get("AWS_SECRET_ACCESS_KEY")):
            if profile.keys:
                named |= profile.keys
            elif _has_container_role():
                pass  # obstore asks for its credentials
            elif profile.indirect:
                provider = _boto3_provider(profile)
            else:
                if has_aws_role():
                    named["metadata_endpoint"] = aws_metadata_endpoint()
                else:
                    named["skip_signature"] = True
        return S3Store(
            bucket,
            prefix=prefix or None,
            credential_provider=provider,
            **named,
            **_requests(retries, endpoint, profile.values.get("ca_bundle")),
        )

    return connect


def google_store(bucket: str, prefix: str) -> Callable[[int], Any]:
    """Makes obstore's store of a bucket of Google Cloud Storage; arguments as of `s3_store`."""

    def connect(retries: int) -> Any:
        from obstore.store import GCSStore

        _check_environment("gs")
        endpoint = _endpoint("GOOGLE_BASE_URL", "STORAGE_EMULATOR_HOST")
        named: dict[str, Any] = {"base_url": endpoint} if endpoint else {}
        credentials = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        if credentials and not os.path.isfile(credentials):
            raise RequestError(f"`GOOGLE_APPLICATION_CREDENTIALS` is {credentials!r}; expected a file that exists.")
        has_some = _any_of(_GOOGLE) or credentials or _google_default().is_file()
        if _is_true("GOOGLE_SKIP_SIGNATURE") or not (has_some or has_google_account()):
            named["skip_signature"] = True
        return GCSStore(bucket, prefix=prefix or None, **named, **_requests(retries, endpoint, None))

    return connect


def azure_store(container: str, prefix: str) -> Callable[[int], Any]:
    """Makes obstore's store of a container of Azure Blob Storage; arguments as of `s3_store`."""

    def connect(retries: int) -> Any:
        from obstore.store import AzureStore

        _check_environment("az")
        emulator = _is_true("AZURE_STORAGE_USE_EMULATOR")
        if not emulator and not os.environ.get("AZURE_STORAGE_ACCOUNT_NAME"):
            raise RequestError("`AZURE_STORAGE_ACCOUNT_NAME` is not set; az:// addresses need the storage account.")
        endpoint = _endpoint("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
        if not emulator:
            _check_account_in(endpoint)
        named: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        if _is_true("AZURE_SKIP_SIGNATURE") or not (emulator or _any_of(_AZURE) or has_azure_identity()):
            named["skip_signature"] = True
        requests = _requests(retries, "http://" if emulator and not endpoint else endpoint, None)
        return AzureStore(container, prefix=prefix or None, **named, **requests)

    return connect


def about_credentials(url: str, store: Any) -> str:
    """What is known of the credentials of requests that a store refused, in a sentence; may be empty.

    Args:
        url: The address of the mirror.
        store: obstore's store.
    """
    kind = url.partition(":")[0]
    _, unsigned, places = _KINDS[kind]
    if is_unsigned(store):
        if _is_true(unsigned):
            return f"Requests are not signed: `{unsigned}` is set."
        return f"Requests are not signed, because no credentials were found. Looked at: {places}."
    if kind == "az" and not _any_of(("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY")):
        for name in ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"):
            for end in parse_qs(os.environ.get(name, "").lstrip("?")).get("se", ()):
                if _is_past(end):
                    return f"The token in `{name}` expired: its `se` is {format_value(end, 40)}."
    return ""


def is_unsigned(store: Any) -> bool:
    """Whether requests of obstore's store are sent without credentials."""
    return str(store.config.get("skip_signature", "")).lower() == "true"


def what_is_set(url: str) -> str:
    """Which variables could be wrong where obstore refuses its settings, in a sentence."""
    begin = _KINDS[url.partition(":")[0]][0]
    names = ", ".join(sorted(name for name in os.environ if name.startswith(begin)))
    return f"Check {names or 'the files with its credentials'}; docs/mirrors.md says what each is for."


def _check_environment(kind: str) -> None:
    """Hide the secrets in variables, and check what obstore does not.

    Raises:
        RequestError: A variable has what cannot be sent, or is of use only beside another one.
    """
    begin = _KINDS[kind][0]
    for name in [name for name, value in os.environ.items() if not value and name.startswith(begin)]:
        # obstore, which reads variables itself, would sign with the empty value. For AWS's tools it is none, too.
        os.environ.pop(name, None)
    register(*(os.environ.get(name) for name in _SECRETS))
    for name in _SIGNED:
        value = os.environ.get(name, "")
        if name.startswith(begin) and name != "GOOGLE_SERVICE_ACCOUNT_KEY" and not _is_line(value):
            raise RequestError(f"`{name}` has a line break, or another character that is not printable ASCII.")
    if _is_true(_KINDS[kind][1]):
        return
    for name, others in _TOGETHER.items():
        for spellings in others:
            if name.startswith(begin) and os.environ.get(name) and not _any_of(spellings):
                raise RequestError(f"`{name}` is set without `{spellings[0]}`; expected both, or neither.")


def _is_line(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _is_past(when: str) -> bool:
    try:
        # Before Python 3.11, `fromisoformat` knows no Z. A date alone is its midnight.
        end = datetime.fromisoformat(when.replace("Z", "+00:00"))
    except ValueError:
        return False
    return end.replace(tzinfo=end.tzinfo or timezone.utc) < datetime.now(timezone.utc)


def _requests(retries: int, endpoint: str, certificates: str | None) -> dict[str, Any]:
    """How requests are sent: timeouts, retries, TLS."""
    from huggingface_hub import constants

    options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=max(constants.HF_HUB_ETAG_TIMEOUT, 1)),
        "read_timeout": timedelta(seconds=max(constants.HF_HUB_DOWNLOAD_TIMEOUT, 1)),
        # The caller, which waits for the whole answer, has a limit by its size.
        "timeout": timedelta(days=1),
        "user_agent": f"kernels/{__version__}",
        # HTTP without TLS only where the endpoint says so.
        "allow_http": endpoint.lower().startswith("http://"),
    }
    bundle = os.environ.get("AWS_CA_BUNDLE") or certificates
    if bundle:
        try:
            found = read_bounded(Path(bundle).expanduser(), _MAX_CERTIFICATES)
        except OSError as error:
            raise RequestError(f"`AWS_CA_BUNDLE` is {bundle!r}: {error.strerror or error}.") from None
        if b"-----BEGIN CERTIFICATE-----" not in found:
            raise RequestError(f"`AWS_CA_BUNDLE` is {bundle!r}, which has no certificate; expected a file of PEM.")
        options["root_certificate"] = found
    backoff = {"init_backoff": timedelta(seconds=_WAIT_SECONDS), "max_backoff": timedelta(seconds=8), "base": 2}
    return {
        "client_options": options,
        "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=240), "backoff": backoff},
    }


def _s3_endpoint(profile: AwsProfile) -> str:
    if _is_true("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"):
        return ""
    named = _endpoint("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    found = named or profile.s3.get("endpoint_url") or profile.values.get("endpoint_url", "")
    return _checked(f"endpoint_url of the profile {profile.name}", found) if found and not named else named


def _s3_region(profile: AwsProfile) -> dict[str, str]:
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or profile.values.get("region")
    return {"region": region} if region else {}


def _s3_addressing(profile: AwsProfile, bucket: str, endpoint: str) -> dict[str, Any]:
    """The endpoint, and whether the bucket is part of the host's name or of the path."""
    asked = os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
    style = profile.s3.get("addressing_style", "auto").lower()
    if asked is not None:
        virtual = asked.lower() in _TRUE
    elif style in ("path", "virtual"):
        virtual = style == "virtual"
    else:
        # As AWS's own tools do: a certificate for *.s3.… does not cover a bucket with dots.
        virtual = not endpoint and "." not in bucket
    if not endpoint:
        return {"virtual_hosted_style_request": virtual}
    if virtual:
        parts = urlsplit(endpoint)
        endpoint = parts._replace(netloc=f"{bucket}.{parts.netloc}").geturl()
    return {"virtual_hosted_style_request": virtual, "aws_endpoint_url_s3": endpoint, "endpoint": endpoint}


def _has_container_role() -> bool:
    """Whether the environment has the role of a container or of a service account of Kubernetes.

    Raises:
        RequestError: The token that asks for its credentials cannot be sent.
    """
    get = os.environ.get
    if get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") or get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return True
    variable = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
    path = get(variable)
    if not path or not get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        return False
    try:
        token = read_bounded(Path(path), _MAX_TOKEN).decode()
    except UnicodeDecodeError:
        token = "\0"
    except OSError as error:
        raise RequestError(f"`{variable}` is {path!r}: {error.strerror or error}.") from None
    if not token or not _is_line(token):  # AWS's own tools refuse a line break as well
        raise RequestError(
            f"`{variable}` is {path!r}, whose text is no token: expected one line of printable ASCII, without a line "
            "break at its end."
        )
    register(token)
    return True


def _boto3_provider(profile: AwsProfile) -> Any:
    """Asks boto3 for the credentials of a profile that has a role, a single sign-on or a program."""
    asked = f"The AWS profile {profile.name} has {profile.indirect}"
    try:
        import boto3
    except ImportError as error:
        raise MissingPythonDependency(f"{asked}, which needs the package boto3: pip install boto3") from error
    from botocore.exceptions import BotoCoreError, ClientError

    def credentials() -> Mapping[str, Any]:
        try:
            found = boto3.Session(profile_name=profile.name).get_credentials()
            frozen = None if found is None else found.get_frozen_credentials()
        except (BotoCoreError, ClientError, OSError) as error:
            raise RequestError(f"{asked}, which gave no credentials: {format_error(error)}.") from None
        if frozen is None:
            raise RequestError(f"{asked}, which gave no credentials.")
        register(frozen.secret_key, frozen.token)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            # boto3 renews them in time; it is asked again after that.
            "expires_at": datetime.now(timezone.utc) + timedelta(minutes=10),
        }

    credentials()  # what is wrong is said here, and not in an error of obstore
    return credentials


def _endpoint(*names: str) -> str:
    """The URL in the first of the variables that is set."""
    return next((_checked(name, value) for name in names if (value := os.environ.get(name))), "")


def _checked(name: str, value: str) -> str:
    if "@" in value:
        raise RequestError(
            f"`{name}` is {without_password(value)!r}, with a user or a password. Credentials are read where the tools "
            "of the cloud have them; docs/mirrors.md lists the places."
        )
    return url_in(name, value, "an http(s) URL with a host", token="")


def _check_account_in(endpoint: str) -> None:
    """At Azure the host names the account; a server that is named by one word or an IP address has it in the path."""
    parts = urlsplit(endpoint)
    host, account = parts.hostname or "", os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "devstoreaccount1")
    if endpoint and ("." not in host or host.replace(".", "").isdigit()) and not parts.path.strip("/"):
        expected = f"{endpoint.rstrip('/')}/{account}"
        raise RequestError(f"`AZURE_STORAGE_ENDPOINT` is {endpoint!r}; expected the account in its path: {expected}")


def _google_default() -> Path:
    """The file that `gcloud auth application-default login` writes."""
    folder = os.environ.get("CLOUDSDK_CONFIG") or os.path.join(os.environ.get("APPDATA", "~/.config"), "gcloud")
    return Path(folder).expanduser() / "application_default_credentials.json"


def _any_of(names: tuple[str, ...]) -> bool:
    return any(os.environ.get(name) for name in names)


def _is_true(name: str) -> bool:
    return os.environ.get(name, "").lower() in _TRUE
