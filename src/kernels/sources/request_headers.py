"""The headers of every request: the user agent, and the token of the Hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kernels import settings
from kernels._version import __version__
from kernels.errors import RequestError
from kernels.support import secrets
from kernels.support.logs import make_safe

__all__ = ["request_headers"]


def request_headers(endpoint: str, describe: Callable[[], Iterable[str]]) -> dict[str, str]:
    """The headers of every request to a Hub.

    Args:
        endpoint: The Hub's URL.
        describe: Gives what is added to the `User-Agent` header, such as `backend/cu128`; not called where telemetry is
            disabled.

    Raises:
        RequestError: The token has characters that a header cannot carry. The message does not show it.
    """
    from huggingface_hub.utils import build_hf_headers

    token = _token(endpoint)
    details: str | None = None
    if not settings.telemetry_disabled():
        # A header is one line of ASCII.
        details = "; ".join("".join(c if " " <= c <= "~" else "?" for c in part) for part in describe() if part) or None
    try:
        headers: dict[str, str] = build_hf_headers(
            token=token, library_name="kernels", library_version=__version__, user_agent=details
        )
    except (OSError, ValueError) as error:
        # A stored token that cannot be read. The library's message may quote it.
        raise RequestError(
            f"The token for {endpoint} cannot be used ({type(error).__name__}). Check "
            f"{settings.token_source(endpoint)}."
        ) from None
    make_safe("huggingface_hub")
    secrets.register(*(value.partition(" ")[2] for name, value in headers.items() if name.lower() == "authorization"))
    for name, value in headers.items():
        # The HTTP library would refuse it too, and quote it.
        if not value.isascii() or not value.isprintable() or value != value.strip():
            where = f"the token ({settings.token_source(endpoint)})" if name.lower() == "authorization" else f"`{name}`"
            raise RequestError(
                f"No request was sent to {endpoint}: {where} has a character that an HTTP header cannot carry. "
                "Expected printable ASCII without spaces at either end."
            )
    return headers


def _token(endpoint: str) -> str | bool | None:
    from huggingface_hub import constants

    # huggingface_hub's token is for its own endpoint: it is never sent to another host.
    if endpoint == constants.ENDPOINT.rstrip("/"):
        return None
    return settings.hub_token(endpoint) or False
