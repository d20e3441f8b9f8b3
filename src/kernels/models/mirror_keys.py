"""Who may sign the documents of mirrors: Ed25519 public keys."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

from kernels.errors import RequestError
from kernels.support.env_values import folder_in
from kernels.support.files import read_bounded
from kernels.support.formatting import format_value

__all__ = ["MirrorKey", "mirror_keys_in"]

#: The DER of an Ed25519 public key before its 32 bytes (RFC 8410, section 4).
_PREFIX = bytes.fromhex("302a300506032b6570032100")

#: The most bytes of a file with public keys.
_MAX_FILE_BYTES = 1024 * 1024

_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_FORMS = "ed25519:<base64 of 32 bytes>, or a file of such lines or of PEM public keys"


@dataclass(frozen=True)
class MirrorKey:
    """An Ed25519 public key.

    Attributes:
        value: Its 32 bytes in base64.
    """

    value: str

    def __str__(self) -> str:
        return f"ed25519:{self.value}"


def mirror_keys_in(name: str, value: str) -> tuple[MirrorKey, ...]:
    """The keys in a variable: keys `ed25519:…`, and files of keys, separated by commas.

    A file has PEM public keys, or a key in each line; `#` starts a comment.

    Args:
        name: The variable, for messages.
        value: Its value.

    Raises:
        RequestError: An entry is neither.

    Example:
        >>> [str(each)[:12] for each in mirror_keys_in("KERNELS_MIRROR_KEYS", "ed25519:" + "A" * 43 + "=")]
        ['ed25519:AAAA']
    """
    found: list[MirrorKey] = []
    for entry in (part.strip() for part in value.split(",")):
        try:
            if entry.startswith("ed25519:"):
                found.append(_key(entry))
            else:
                found += _keys(read_bounded(folder_in(name, entry), _MAX_FILE_BYTES).decode())
        except OSError as error:
            why = error.strerror or error
            raise RequestError(f"`{name}` has the entry {entry[:200]!r}; expected {_FORMS}: {why}.") from None
        except ValueError as error:  # also what is not UTF-8
            raise RequestError(f"`{name}` has the entry {entry[:200]!r}, which is not valid: {error}.") from None
    return tuple(dict.fromkeys(found))


def _key(text: str) -> MirrorKey:
    kind, _, value = text.partition(":")
    raw = _decoded(value)
    if kind != "ed25519" or len(raw) != 32:
        raise ValueError(f"expected {_FORMS}, got {format_value(text)}")
    return MirrorKey(base64.b64encode(raw).decode())


def _keys(text: str) -> list[MirrorKey]:
    """The keys in a file; the message of each `ValueError` is a clause."""
    found: list[MirrorKey] = []
    for label, body in _PEM.findall(text):
        if label != "PUBLIC KEY":
            # Its content is not shown: it may be a private key.
            raise ValueError(f"expected public keys, got the PEM of a {label.lower()}")
        der = _decoded("".join(body.split()))
        if not der.startswith(_PREFIX) or len(der) != len(_PREFIX) + 32:
            raise ValueError("expected an Ed25519 public key, got another key")
        found.append(MirrorKey(base64.b64encode(der[len(_PREFIX) :]).decode()))
    if not found and "-----" in text:
        raise ValueError("expected PEM public keys, got something damaged")
    lines = [] if found else [line.partition("#")[0].strip() for line in text.splitlines()]
    found += [_key(line) for line in lines if line]
    if not found:
        raise ValueError(f"expected {_FORMS}, got a file without a key")
    return found


def _decoded(text: str) -> bytes:
    """The bytes in a base64 text, empty if it is none."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""
