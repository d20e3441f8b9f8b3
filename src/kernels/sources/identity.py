"""What every request says of this client: the user agent, and the token where it belongs to the Hub."""

from __future__ import annotations

from collections.abc import Mapping

from kernels import settings
from kernels.errors import RequestError
from kernels.support import secrets
from kernels.support.logs import make_safe

__all__ = ["request_headers"]


def request_headers(endpoint: str, user_agent: str | Mapping[str, str] | None) -> dict[str, str]:
    """The headers of every request to a Hub.

    Args:
        endpoint: The Hub's URL.
        user_agent: What the caller adds to the `User-Agent` header.

    Raises:
        RequestError: The token has characters that a header cannot carry. The message does not show it.
    """
    from huggingface_hub.utils import build_hf_headers

    from kernels import __version__

    token = _token(endpoint)
    details: str | None = None
    if not settings.telemetry_disabled():
        details = "; ".join([*_machine(), *_callers(user_agent)])
    try:
        headers: dict[str, str] = build_hf_headers(
            token=token, library_name="kernels", library_version=__version__, user_agent=details
        )
    except (OSError, ValueError) as error:
        # A stored token that cannot be read. What the library says of it may quote it.
        raise RequestError(
            f"The token for {endpoint} cannot be used ({type(error).__name__}). Check "
            f"{settings.token_source(endpoint)}."
        ) from None
    make_safe("huggingface_hub")
    secrets.register(*(value.partition(" ")[2] for name, value in headers.items() if name.lower() == "authorization"))
    for name, value in headers.items():
        # The HTTP library would refuse it as well, and quote it.
        if not value.isascii() or not value.isprintable() or value != value.strip():
            where = f"the token ({settings.token_source(endpoint)})" if name.lower() == "authorization" else f"`{name}`"
            raise RequestError(
                f"No request was sent to {endpoint}: {where} has a character that an HTTP header cannot carry. "
                "Expected printable ASCII without spaces at either end."
            )
    return headers


def _token(endpoint: str) -> str | bool | None:
    from huggingface_hub import constants

    # huggingface_hub's token belongs to the Hub it was made for: another host never sees it.
    if endpoint == constants.ENDPOINT.rstrip("/"):
        return None
    return settings.hub_token() or False


def _machine() -> list[str]:
    from kernels import backends
    from kernels.resolver.target import Target

    target = Target.current()
    backend = backends.get(target.default_backend)
    try:
        accelerator = backend.format_accelerator(target.backend_version(backend.name))
    except ValueError:  # a version that no variant could carry
        accelerator = backend.name
    return [f"backend/{accelerator}", f"platform/{target.cpu}-{target.os}"]


def _callers(user_agent: str | Mapping[str, str] | None) -> list[str]:
    if user_agent is None:
        return []
    parts = [user_agent] if isinstance(user_agent, str) else [f"{key}/{value}" for key, value in user_agent.items()]
    # A header is one line of ASCII.
    return ["".join(c if " " <= c <= "~" else "?" for c in part) for part in parts if part]
