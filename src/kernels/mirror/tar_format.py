"""The tar of a build, of which every byte follows from the list of its files.

A reader therefore does not interpret a header: it computes the one that must be there, and compares.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernels.errors import InvalidRepository
from kernels.models.mirror import MirrorFile
from kernels.support.formatting import format_value

__all__ = ["END", "padding", "tar_header", "tar_size"]

_BLOCK = 512

#: The end of a tar: two blocks of zeros (POSIX.1-2017, pax, "ustar Interchange Format").
END = bytes(2 * _BLOCK)

_NAME_BYTES = 100
_PREFIX_BYTES = 155

#: The size field has eleven octal digits; a larger file has its size in an extended header.
_MAX_SIZE = 8**11 - 1


def tar_header(file: MirrorFile) -> bytes:
    """The blocks before the content of a file: a ustar header, preceded by a pax header for what does not fit in it.

    Args:
        file: The file.

    Raises:
        InvalidRepository: Its name is not Unicode.

    Example:
        >>> header = tar_header(MirrorFile("layers/__init__.py", 3))
        >>> len(header), header[:18], header[100:108], header[257:263]
        (512, b'layers/__init__.py', b'0000644\\x00', b'ustar\\x00')
    """
    try:
        path = file.path.encode()
    except UnicodeEncodeError:
        raise InvalidRepository(f"The name of {format_value(file.path)} is not Unicode.") from None
    split = _split(path)
    records = b""
    if split is None:
        records += _record(b"path", path)
        split = b"", path[:_NAME_BYTES].decode("ascii", "replace").encode("ascii", "replace")[:_NAME_BYTES]
    if file.size > _MAX_SIZE:
        records += _record(b"size", b"%d" % file.size)
    header = _ustar(*split, min(file.size, _MAX_SIZE), b"0")
    if not records:
        return header
    return _ustar(b"", b"PaxHeaders/file", len(records), b"x") + records + padding(len(records)) + header


def padding(size: int) -> bytes:
    """The zeros after a content of `size` bytes, up to the next block.

    Example:
        >>> len(padding(500)), len(padding(512))
        (12, 0)
    """
    return bytes(-size % _BLOCK)


def tar_size(files: Iterable[MirrorFile]) -> int:
    """The bytes of the tar of these files.

    Example:
        >>> tar_size([MirrorFile("__init__.py", 3)])
        2048
    """
    return sum(len(tar_header(file)) + file.size + -file.size % _BLOCK for file in files) + len(END)


def _split(path: bytes) -> tuple[bytes, bytes] | None:
    """The prefix and the name of a path in a ustar header; None if it does not fit, or is not ASCII."""
    if not path.isascii():
        return None
    if len(path) <= _NAME_BYTES:
        return b"", path
    cut = path.rfind(b"/", 0, _PREFIX_BYTES + 1)
    if cut <= 0 or len(path) - cut - 1 > _NAME_BYTES:
        return None
    return path[:cut], path[cut + 1 :]


def _record(key: bytes, value: bytes) -> bytes:
    """A record of a pax header; its length counts its own digits."""
    rest = b" %s=%s\n" % (key, value)
    length = len(rest)
    while len(b"%d" % length) + len(rest) != length:
        length = len(b"%d" % length) + len(rest)
    return b"%d%s" % (length, rest)


def _ustar(prefix: bytes, name: bytes, size: int, kind: bytes) -> bytes:
    fields = (
        name.ljust(_NAME_BYTES, b"\0"),
        b"0000644\0",  # mode
        b"0000000\0",  # user
        b"0000000\0",  # group
        b"%011o\0" % size,
        b"%011o\0" % 0,  # modification time
        b" " * 8,  # checksum
        kind,
        bytes(100),  # target of a link
        b"ustar\00000",
        bytes(64),  # names of the user and the group
        b"0000000\0",  # device, major
        b"0000000\0",  # device, minor
        prefix.ljust(_PREFIX_BYTES, b"\0"),
    )
    block = b"".join(fields).ljust(_BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]
