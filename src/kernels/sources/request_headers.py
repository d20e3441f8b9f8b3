"""The headers of every request: the user agent, and the token of the Hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kernels import settings
from kernels._version import __version__
from kernels.errors import RequestError

__all__ = ["api_timeout", "certain_authorization", "of_caller", "packed", "plain_headers", "request_headers"]

#: The `Accept-Encoding` of JSON requests; files are requested unpacked.
_ACCEPTED_ENCODINGS = "gzip"


def request_headers(endpoint: str, describe: Callable[[], Iterable[str]]) -> dict[str, str]:
    """The headers of every request to a Hub.

    Args:
        endpoint: The Hub's URL.
        describe: Gives what is added to the `User-Agent` header, such as `backend/cu128`; not called where telemetry is
            disabled.

    Raises:
        RequestError: The token has characters that a header cannot carry. The message does not show it.
    """
    from kernels.support.logs import make_safe

    plain = plain_headers(endpoint, describe)
    if plain is not None:
        make_safe("huggingface_hub")
        return plain
    from huggingface_hub.utils import build_hf_headers

    token = _token(endpoint)
    details = None if settings.telemetry_disabled() else "; ".join(map(_in_ascii, filter(None, describe()))) or None
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
    return _checked(endpoint, headers)


def plain_headers(endpoint: str, describe: Callable[[], Iterable[str]]) -> dict[str, str] | None:
    """The headers of every request, without huggingface_hub's code for tokens and user agents, which is slow to import.

    The user agent is as with it, but for the AI agent that runs the process: to name it huggingface_hub requests a list
    of agents from the Hub.

    Args:
        endpoint: The Hub's URL.
        describe: As for `request_headers`.

    Returns:
        The headers; None where only huggingface_hub can tell the token.

    Raises:
        RequestError: As `request_headers`.
    """
    import sys

    import huggingface_hub
    import huggingface_hub.constants

    authorization = certain_authorization(endpoint)
    if authorization is None:
        return None
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    parts = [f"kernels/{__version__}", f"hf_hub/{huggingface_hub.__version__}", f"python/{python}"]
    if not settings.telemetry_disabled():
        torch = getattr(sys.modules.get("torch"), "__version__", None)
        parts += [*(() if torch is None else (f"torch/{torch}",)), *describe()]
    origin = getattr(huggingface_hub.constants, "HF_HUB_USER_AGENT_ORIGIN", None)
    parts += () if origin is None else (f"origin/{origin}",)
    agent = "; ".join(map(_in_ascii, filter(None, dict.fromkeys(parts))))
    return _checked(endpoint, {"user-agent": agent} | authorization)


def certain_authorization(endpoint: str) -> dict[str, str] | None:
    """The header with the token for a Hub, empty without one; None where only huggingface_hub can tell.

    Args:
        endpoint: The Hub's URL.
    """
    token = settings.hub_token(endpoint)
    if token is None and _is_own(endpoint):
        token = settings.plain_hf_token()
        if token is None:
            return None
    return {"authorization": f"Bearer {token}"} if token else {}


def of_caller(user_agent: str | Mapping[str, str] | None) -> list[str]:
    """What a caller adds to the user agent.

    Example:
        >>> of_caller({"framework": "transformers"})
        ['framework/transformers']
    """
    if user_agent is None or isinstance(user_agent, str):
        return [user_agent or ""]
    return [f"{key}/{value}" for key, value in user_agent.items()]


def packed() -> dict[str, str]:
    """The header of a request whose answer may be compressed."""
    return {"Accept-Encoding": _ACCEPTED_ENCODINGS}


def api_timeout() -> float:
    """Seconds to wait for the next bytes of an answer about a file or repository (`HF_HUB_ETAG_TIMEOUT`)."""
    from huggingface_hub import constants

    return float(constants.HF_HUB_ETAG_TIMEOUT)


def _in_ascii(text: str) -> str:
    """A header is one line of ASCII."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)


def _checked(endpoint: str, headers: dict[str, str]) -> dict[str, str]:
    """Headers that can be sent, with their token registered as a secret."""
    for name, value in headers.items():
        if name.lower() == "authorization":
            from kernels.support import secrets  # where there is one

            secrets.register(value.partition(" ")[2])
        # The HTTP library would refuse it too, and quote it.
        if not value.isascii() or not value.isprintable() or value != value.strip():
            where = f"the token ({settings.token_source(endpoint)})" if name.lower() == "authorization" else f"`{name}`"
            raise RequestError(
                f"No request was sent to {endpoint}: {where} has a character that an HTTP header cannot carry. "
                "Expected printable ASCII without spaces at either end."
            )
    return headers


def _token(endpoint: str) -> str | bool | None:
    return settings.hub_token(endpoint) or (None if _is_own(endpoint) else False)


def _is_own(endpoint: str) -> bool:
    """Whether huggingface_hub's token is for a Hub: it is for its own endpoint, and never sent to another host."""
    from huggingface_hub import constants

    return endpoint == str(constants.ENDPOINT).rstrip("/")
