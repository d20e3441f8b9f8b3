"""DER (X.690), as much of it as certificates and timestamps of tests need."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["der", "integer", "octets", "oid", "sequence", "set_of", "text"]


def der(tag: int, content: bytes) -> bytes:
    """A value: its tag, its length, its content."""
    size = len(content)
    if size < 128:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def sequence(*parts: bytes) -> bytes:
    """SEQUENCE."""
    return der(0x30, b"".join(parts))


def set_of(parts: Iterable[bytes], tag: int = 0x31) -> bytes:
    """SET OF, in the order that DER wants."""
    return der(tag, b"".join(sorted(parts)))


def integer(number: int) -> bytes:
    """INTEGER, not negative."""
    return der(0x02, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def octets(content: bytes) -> bytes:
    """OCTET STRING."""
    return der(0x04, content)


def text(content: str) -> bytes:
    """UTF8String."""
    return der(0x0C, content.encode())


def oid(dotted: str) -> bytes:
    """OBJECT IDENTIFIER."""
    first, second, *rest = map(int, dotted.split("."))
    encoded = bytearray()
    for arc in (first * 40 + second, *rest):
        groups = [arc & 0x7F]
        while arc := arc >> 7:
            groups.append(arc & 0x7F | 0x80)
        encoded += bytes(reversed(groups))
    return der(0x06, bytes(encoded))
