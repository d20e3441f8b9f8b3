"""Hide tokens and passwords in messages.

Code that reads a token registers it. It is then hidden in every message, also where a Hub or a library quotes it: as it
is, and as a URL has it. Secrets that are known by their form, such as `user:password@`, are hidden in any case.
"""

from __future__ import annotations

import functools
import re

__all__ = ["HIDDEN", "holds_secret", "redacted", "register"]

#: The text that replaces a secret.
HIDDEN = "(hidden)"

#: A shorter value is not hidden: it would be found in every text.
_SHORTEST = 4

#: A shorter value is hidden only as a separate word.
_LONG = 12

#: Patterns of secrets, each with a text that its matches contain.
_FORMS: tuple[tuple[str, str, str], ...] = (
    # Credentials of HTTP (RFC 9110, 11.6.2), but not the scheme alone, as in "Bearer token".
    ("earer", r"(?i)\b(bearer[ \t:]+)[A-Za-z0-9._~+/=-]{16,}", rf"\1{HIDDEN}"),
    ("asic", r"(?i)\b(basic[ \t:]+)[A-Za-z0-9+/_-]{16,}={0,2}", rf"\1{HIDDEN}"),
    # A Hub's tokens (https://huggingface.co/docs/hub/security-tokens).
    ("hf_", r"\bhf_(?:(?:oauth|jwt)_[A-Za-z0-9._-]{16,}|[A-Za-z0-9]{20,})", HIDDEN),
    # `user:password@` of a URL (RFC 3986, 3.2.1), also with what a URL would have to encode, such as a slash; not
    # `host:port/path@`.
    ("@", r"(?<!/)//(?:[^\s/'\"<>]*|[^\s/@:]*:(?!\d+(?:[/?#]|$))[^\s@]*)@", f"//{HIDDEN}@"),
    # Signed URLs, such as those of an object store.
    (
        "=",
        r"(?i)([?&](?:x-(?:amz|goog)-(?:signature|credential|security-token)|signature|sig|policy|(?:[a-z]+[_-])?token"
        r"|auth|api_?key|password)=)[^&\s'\"<>#]+",
        rf"\1{HIDDEN}",
    ),
)

_registered: frozenset[str] = frozenset()


def register(*secrets: object) -> None:
    """Hide secrets in every message from now on.

    Args:
        secrets: Tokens or passwords; values that are not strings, or too short, are ignored.

    Example:
        >>> register("example-of-a-token")
        >>> redacted("401 for 'example-of-a-token'")
        "401 for '(hidden)'"
    """
    global _registered
    _registered |= {each.strip() for each in secrets if isinstance(each, str) and len(each.strip()) >= _SHORTEST}


def redacted(text: str) -> str:
    """`text` without registered secrets, and without those that have the form of one.

    Args:
        text: The text.

    Example:
        >>> redacted("https://user:password@hub.example/api?token=abc")
        'https://(hidden)@hub.example/api?token=(hidden)'
    """
    if _registered:
        text = _pattern(_registered).sub(HIDDEN, text)
    for needed, form, replacement in _FORMS:
        if needed in text or (needed.islower() and needed.upper() in text):
            text = re.sub(form, replacement, text)
    return text


def holds_secret(content: bytes) -> bool:
    """Whether a text has a registered secret that is too long to be found by chance.

    Args:
        content: The text in UTF-8.

    Example:
        >>> holds_secret(b"nothing of the kind")
        False
    """
    return any(form.encode(errors="replace") in content for form in _spellings(_registered) if len(form) >= _LONG)


@functools.cache
def _spellings(secrets: frozenset[str]) -> list[str]:
    """How messages have secrets, the longest first."""
    from urllib.parse import quote  # where there is a token

    found = {quote(each, safe, errors="replace") for each in secrets for safe in ("/", "")}
    return sorted(secrets | found, key=len, reverse=True)


@functools.cache
def _pattern(secrets: frozenset[str]) -> re.Pattern[str]:
    words = (
        re.escape(each) if len(each) >= _LONG else rf"(?<![^\W_]){re.escape(each)}(?![^\W_])"
        for each in _spellings(secrets)
    )
    return re.compile("|".join(words))
