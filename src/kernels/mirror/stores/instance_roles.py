"""Whether this machine has a role: credentials from the metadata service of its cloud.

obstore waits long for a service that is not there. So it is asked here first, briefly, as the tools of the clouds do
(one second, one try; `AWS_METADATA_SERVICE_TIMEOUT`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

__all__ = ["aws_metadata_endpoint", "has_aws_role", "has_azure_identity", "has_google_account"]

_SECONDS = 1.0
_LINK_LOCAL = "http://169.254.169.254"


def aws_metadata_endpoint() -> str:
    """The address of the metadata service of AWS, as its tools and obstore take it from the environment."""
    named = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or os.environ.get("AWS_METADATA_ENDPOINT")
    return (named or _LINK_LOCAL).rstrip("/")


def has_aws_role() -> bool:
    """Whether an instance of AWS has a role."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return False
    return _has_aws_role(aws_metadata_endpoint())


@cache
def _has_aws_role(endpoint: str) -> bool:
    token = _answer("PUT", f"{endpoint}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    path = "/latest/meta-data/iam/security-credentials/"
    return bool(token and _answer("GET", endpoint + path, {"X-aws-ec2-metadata-token": token}))


def has_google_account() -> bool:
    """Whether a machine of Google has a service account."""
    return _has_google_account(os.environ.get("GCE_METADATA_HOST", ""))


@cache
def _has_google_account(host: str) -> bool:
    path = "/computeMetadata/v1/instance/service-accounts/"
    return bool(_answer("GET", (f"http://{host}" if host else _LINK_LOCAL) + path, {"Metadata-Flavor": "Google"}))


@cache
def has_azure_identity() -> bool:
    """Whether a machine of Azure has a metadata service, which gives the token of a managed identity."""
    path = "/metadata/instance/compute/azEnvironment?api-version=2021-02-01&format=text"
    return bool(_answer("GET", _LINK_LOCAL + path, {"Metadata": "true"}))


def _answer(method: str, url: str, headers: Mapping[str, str]) -> str:
    """The text of an answer of the metadata service; empty without a good one."""
    from urllib.request import ProxyHandler, Request, build_opener

    request = Request(url, headers=dict(headers), method=method)
    direct = build_opener(ProxyHandler({}))
    try:
        with direct.open(request, timeout=_SECONDS) as response:
            content: bytes = response.read(4096)
    except (OSError, ValueError):  # HTTP errors are an OSError too
        return ""
    return content.decode(errors="replace").strip()
