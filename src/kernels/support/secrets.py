"""Hide tokens and passwords in messages.

Code that reads a token registers it. It is then hidden in every message, also where a Hub or a library quotes it:
plain, escaped, percent-encoded, in base64, or truncated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["HIDDEN", "holds_secret", "redacted", "register"]

#: The text that replaces a secret.
HIDDEN = "(hidden)"

#: A shorter value is not hidden: it would be found in every text.
_SHORTEST = 4

#: A shorter value is hidden only as a separate word. Of one that is as long its first half is hidden too: a message may
#: be truncated.
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
#: Their spellings in a text, the longest first.
_forms: tuple[str, ...] = ()


def register(*secrets: object) -> None:
    """Hide secrets in every message from now on.

    Args:
        secrets: Tokens or passwords; values that are not strings, or too short, are ignored.

    Example:
        >>> register("example-of-a-token")
        >>> redacted("401 for 'example-of-a-token'")
        "401 for '(hidden)'"
    """
    global _registered, _forms
    new = {secret.strip() for secret in secrets if isinstance(secret, str) and len(secret.strip()) >= _SHORTEST}
    if not new <= _registered:
        _registered |= new
        found = {form for secret in _registered for form in _written(secret)}
        _forms = tuple(sorted(found, key=len, reverse=True))


def redacted(text: str) -> str:
    """`text` without registered secrets, and without those that have the form of one.

    Args:
        text: The text.

    Example:
        >>> redacted("https://user:password@hub.example/api?token=abc")
        'https://(hidden)@hub.example/api?token=(hidden)'
    """
    for known in _forms:
        text = _without(text, known)
    for needed, form, replacement in _FORMS:
        if needed in text or (needed.islower() and needed.upper() in text):
            text = re.sub(form, replacement, text)
    return text


def holds_secret(text: str | bytes) -> bool:
    """Whether a text has a registered secret that is too long to be found by chance.

    Args:
        text: The text, or its bytes in UTF-8: a large one is decoded only where there is a secret.

    Example:
        >>> holds_secret("nothing of the kind")
        False
    """
    forms = [known for known in _forms if len(known) >= _LONG]
    if not forms:
        return False
    whole = text.decode() if isinstance(text, bytes) else text
    return any(_without(whole, known) != whole for known in forms)


def _written(secret: str) -> Iterator[str]:
    # Imported only if there is a token.
    import json
    from urllib.parse import quote, quote_plus

    sent = secret.encode(errors="replace")
    yield secret
    for quoted in (repr(secret), ascii(secret), json.dumps(secret), repr(sent)[1:]):
        yield quoted[1:-1]
        yield repr(quoted)[2:-2]  # a text that quotes the quoted secret
    yield quote(sent, safe="")
    yield quote(sent)
    yield quote_plus(sent)
    if len(secret) >= _LONG:
        yield from _base64(sent)


def _without(text: str, form: str) -> str:
    length = len(form)
    least = length // 2 if length >= _LONG else length
    begin = form[:least]
    at = text.find(begin)
    if at < 0:
        return text
    kept, done = [], 0
    while at >= 0:
        end = at + least
        while end < at + length and text[end : end + 1] == form[end - at]:
            end += 1
        whole = end == at + length
        free = not text[end : end + 1].isalnum()
        if (whole or free) if length >= _LONG else (free and not (at and text[at - 1].isalnum())):
            kept += [text[done:at], HIDDEN]
            done = end
        at = text.find(begin, max(end if done == end else at + 1, done))
    return "".join([*kept, text[done:]])


def _base64(secret: bytes) -> Iterator[str]:
    """The parts of its base64 that do not depend on the text before and after it, such as the user of `Basic`."""
    import base64

    for offset in range(3):
        # Three bytes are four characters: characters that encode other bytes as well are left out.
        coded = base64.b64encode(b"\0" * offset + secret).rstrip(b"=").decode()
        inner = coded[-(-offset * 8 // 6) : (offset + len(secret)) * 8 // 6]
        yield inner
        yield inner.replace("+", "-").replace("/", "_")
