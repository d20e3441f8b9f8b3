"""What the files of the AWS command line say of a profile: `~/.aws/credentials` and `~/.aws/config`.

https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernels.errors import RequestError
from kernels.support.files import read_bounded
from kernels.support.formatting import did_you_mean, format_value
from kernels.support.secrets import register

__all__ = ["AwsProfile", "read_aws_profile"]

_MAX_BYTES = 1024 * 1024

#: Settings of a profile whose credentials a program or another service gives: botocore knows how.
_INDIRECT = (
    *("role_arn", "credential_process", "sso_session", "sso_start_url", "credential_source", "login_session"),
    "web_identity_token_file",
)


@dataclass(frozen=True)
class AwsProfile:
    """A profile.

    Attributes:
        name: Its name.
        values: Its settings; those of the credentials file first.
        s3: Those below `s3 =`, and the S3 part of its `services`.
    """

    name: str
    values: Mapping[str, str]
    s3: Mapping[str, str]

    @property
    def keys(self) -> dict[str, str]:
        """The access key, as obstore's settings are named; empty if the profile has none.

        Raises:
            RequestError: It has a half, or one that cannot be sent.
        """
        key, secret = self.values.get("aws_access_key_id"), self.values.get("aws_secret_access_key")
        if not key and not secret:
            return {}
        token = self.values.get("aws_session_token")
        register(secret, token)
        if not key or not secret:
            has, lacks = ("aws_access_key_id", "aws_secret_access_key")[:: 1 if key else -1]
            raise RequestError(f"The AWS profile {self.name} has {has} without {lacks}; expected both, or neither.")
        if not all(value.isascii() and value.isprintable() for value in (key, secret, token or "")):
            raise RequestError(
                f"The keys of the AWS profile {self.name} have a line break, or another character that is not "
                "printable ASCII."
            )
        return {"access_key_id": key, "secret_access_key": secret, **({"session_token": token} if token else {})}

    @property
    def indirect(self) -> str | None:
        """The setting that says how credentials are requested, or None."""
        return next((name for name in _INDIRECT if self.values.get(name)), None)


def read_aws_profile() -> AwsProfile:
    """The profile that `AWS_PROFILE` names, or the default one; empty if there is none.

    Raises:
        RequestError: `AWS_PROFILE` names one that does not exist, or a file cannot be read. The message shows nothing
            of the file.
    """
    named = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    name = named or "default"
    credentials = _sections(_path("AWS_SHARED_CREDENTIALS_FILE", "credentials"))
    config = _sections(_path("AWS_CONFIG_FILE", "config"))
    profiles = {
        section.removeprefix("profile ").strip(): values
        for section, values in config.items()
        if section == "default" or section.startswith("profile ")
    }
    if named and name not in profiles and name not in credentials:
        known = sorted({*profiles, *credentials})
        raise RequestError(
            f"`AWS_PROFILE` is {format_value(name)}, and the files in ~/.aws have no such profile."
            f"{did_you_mean(name, known)}"
        )
    values = {**profiles.get(name, {}), **credentials.get(name, {})}
    services = config.get(f"services {values.get('services', '')}", {})
    return AwsProfile(name, values, {**_nested(services.get("s3", "")), **_nested(values.get("s3", ""))})


def _path(variable: str, name: str) -> Path:
    return Path(os.environ.get(variable) or Path("~") / ".aws" / name).expanduser()


def _sections(path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(default_section="\0", strict=False)
    try:
        parser.read_string(read_bounded(path, _MAX_BYTES).decode())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (configparser.Error, UnicodeDecodeError) as error:
        # The text of the error has lines of the file.
        line = getattr(error, "lineno", None) or next((number for number, _ in getattr(error, "errors", ())), None)
        raise RequestError(f"{path} is not a file of AWS settings{f': line {line}' if line else ''}.") from None
    return {section: dict(parser.items(section)) for section in parser.sections()}


def _nested(text: str) -> dict[str, str]:
    """The settings below `s3 =`, one a line."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}
