"""obstore's stores of S3, Google and Azure, with the credentials that each cloud's own tools would use."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
from kernels.support.formatting import error_on_one_line
from kernels.support.secrets import register

__all__ = ["azure_store", "google_store", "s3_store"]

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

        emulator = _is_true("AZURE_STORAGE_USE_EMULATOR")
        if not emulator and not os.environ.get("AZURE_STORAGE_ACCOUNT_NAME"):
            raise RequestError("`AZURE_STORAGE_ACCOUNT_NAME` is not set; az:// addresses need the storage account.")
        endpoint = _endpoint("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
        named: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        if _is_true("AZURE_SKIP_SIGNATURE") or not (emulator or _any_of(_AZURE) or has_azure_identity()):
            named["skip_signature"] = True
        requests = _requests(retries, "http://" if emulator and not endpoint else endpoint, None)
        return AzureStore(container, prefix=prefix or None, **named, **requests)

    return connect


def _requests(retries: int, endpoint: str, certificates: str | None) -> dict[str, Any]:
    """How requests are sent: timeouts, retries, TLS."""
    from huggingface_hub import constants

    register(*(os.environ.get(name) for name in _SECRETS))
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
            options["root_certificate"] = read_bounded(Path(bundle).expanduser(), _MAX_CERTIFICATES)
        except OSError as error:
            raise RequestError(f"`AWS_CA_BUNDLE` is {bundle!r}: {error.strerror or error}.") from None
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
    if not token or not token.isascii() or not token.isprintable():  # AWS's own tools refuse a line break as well
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
            raise RequestError(f"{asked}, which gave no credentials: {error_on_one_line(error)}.") from None
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


def _google_default() -> Path:
    """The file that `gcloud auth application-default login` writes."""
    folder = os.environ.get("CLOUDSDK_CONFIG") or os.path.join(os.environ.get("APPDATA", "~/.config"), "gcloud")
    return Path(folder).expanduser() / "application_default_credentials.json"


def _any_of(names: tuple[str, ...]) -> bool:
    return any(os.environ.get(name) for name in names)


def _is_true(name: str) -> bool:
    return os.environ.get(name, "").lower() in _TRUE
