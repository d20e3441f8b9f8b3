"""One zstd frame: compressed, and decompressed within bounds.

A few bytes of a frame can become 128 KiB. So its blocks are counted before they are decompressed (RFC 8878, 3.1.1):
each call of the library has a bounded output, and what follows the frame is seen.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from kernels.errors import MissingPythonDependency
from kernels.support.text import CleanError

__all__ = ["MAX_WINDOW", "CutFrame", "InvalidFrame", "compressor", "decompressed", "frame_bound"]

#: What a reader holds of the content at most: the limit of the command `zstd` if it is not given another one.
MAX_WINDOW = 128 * 1024 * 1024

# Chosen by measuring: docs/mirror-archives.md, "Level and window".
_LEVEL = 9
#: The window of 64 MiB, and the search for matches far back, make large builds a third smaller: their device code is
#: there once for each architecture.
_WINDOW_LOG = 26
_LARGE = 16 * 1024 * 1024

_MAGIC = b"\x28\xb5\x2f\xfd"
_MAX_BLOCK = 128 * 1024
_HEADER_BYTES = 14
_CHECKSUM_BYTES = 4

#: Blocks that are decompressed at once: at most 1 MiB.
_BLOCKS = 8


class InvalidFrame(CleanError):
    """The bytes are not such a frame; the text says why."""


class CutFrame(CleanError):
    """The bytes end before the frame does."""


def compressor(size: int) -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    """The functions that compress a content: one for its pieces, and one for the end of the frame.

    The frame has the content's size and checksum. The same pieces give the same bytes with the same version of the
    library: it uses one thread.

    Args:
        size: Bytes of the whole content.

    Raises:
        MissingPythonDependency: There is no library for zstd.
    """
    library = _library()
    large = size > _LARGE
    if library.__name__ == "zstandard":
        far = {"window_log": _WINDOW_LOG, "enable_ldm": True} if large else {}
        parameters = library.ZstdCompressionParameters.from_level(
            _LEVEL, source_size=size, write_checksum=True, write_content_size=True, **far
        )
        own = library.ZstdCompressor(compression_params=parameters).compressobj(size=size)
        return own.compress, own.flush
    key = library.CompressionParameter
    options = {key.compression_level: _LEVEL, key.checksum_flag: 1, key.content_size_flag: 1}
    if large:
        options |= {key.window_log: _WINDOW_LOG, key.enable_long_distance_matching: 1}
    own = library.ZstdCompressor(options=options)
    own.set_pledged_input_size(size)
    return own.compress, own.flush


def decompressed(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The content of a frame, in pieces of at most 1 MiB.

    Args:
        chunks: The frame's bytes, and no others.
        size: Bytes of the content, which the frame must state.

    Raises:
        InvalidFrame: The bytes are not exactly one such frame.
        CutFrame: They end before the frame does.
        MissingPythonDependency: There is no library for zstd.
    """
    library = _library()
    if library.__name__ == "zstandard":
        own = library.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj(write_size=_BLOCKS * _MAX_BLOCK)
    else:
        limits = {library.DecompressionParameter.window_log_max: MAX_WINDOW.bit_length() - 1}
        own = library.ZstdDecompressor(options=limits)
    for batch in _batches(chunks, size):
        try:
            piece = own.decompress(batch)
        except library.ZstdError:
            raise InvalidFrame("its compressed data is damaged") from None
        if piece:
            yield piece


def frame_bound(size: int) -> int:
    """The most bytes of a frame with a content of `size` bytes.

    Example:
        >>> frame_bound(0) < 4096
        True
    """
    return size + size // 128 + 1024


def _batches(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The bytes of a frame, each time of at most `_BLOCKS` whole blocks."""
    begun = ended = False
    rest = b""
    for chunk in chunks:
        if ended and chunk:
            raise InvalidFrame("it has more bytes after its frame")
        rest = rest + chunk if rest else chunk
        if not begun:
            if len(rest) < _HEADER_BYTES:
                # The smallest frame has fewer bytes only if its content has none, which no tar is.
                continue
            batch = _after_header(rest, size)
            begun = True
            yield rest[:batch]
            rest = rest[batch:]
        position = 0
        while not ended:
            stop, ended = _whole_blocks(rest, position)
            if stop == position:
                break
            yield rest[position:stop]
            position = stop
        rest = rest[position:]
        if ended and rest:
            raise InvalidFrame("it has more bytes after its frame")
    if not ended:
        raise CutFrame("it ends before its frame does")


def _after_header(data: bytes, size: int) -> int:
    """The length of the header (RFC 8878, 3.1.1.1), which must be of the kind that `compressor` gives."""
    if data[:4] != _MAGIC:
        raise InvalidFrame("it does not begin with a zstd frame")
    descriptor = data[4]
    single = bool(descriptor & 0b0010_0000)
    if descriptor & 0b0001_1011:
        raise InvalidFrame("its frame needs a dictionary, or has a reserved bit")
    if not descriptor & 0b0000_0100:
        raise InvalidFrame("its frame has no checksum")
    position = 5 if single else 6
    flag = descriptor >> 6
    length = 1 << flag if flag or single else 0
    stated = int.from_bytes(data[position : position + length], "little") + (256 if flag == 1 else 0)
    if not length or stated != size:
        raise InvalidFrame(f"its frame states {f'{stated} bytes' if length else 'no size'}, and the list {size} bytes")
    base = 1 << 10 + (data[5] >> 3)
    window = size if single else base + base // 8 * (data[5] & 7)
    if window > MAX_WINDOW:
        raise InvalidFrame(f"its frame needs a window of {window} bytes; the most is {MAX_WINDOW}")
    return position + length


def _whole_blocks(data: bytes, position: int) -> tuple[int, bool]:
    """The end of the next whole blocks, and whether the frame ends there, with its checksum."""
    for _ in range(_BLOCKS):
        if len(data) - position < 3:
            break
        header = int.from_bytes(data[position : position + 3], "little")
        kind, length = header >> 1 & 3, header >> 3
        if kind == 3 or length > _MAX_BLOCK:
            raise InvalidFrame("its frame has an invalid block")
        end = position + 3 + (1 if kind == 1 else length)
        if header & 1:
            end += _CHECKSUM_BYTES
        if end > len(data):
            break
        position = end
        if header & 1:
            return position, True
    return position, False


def _library() -> Any:
    """Python's own library for zstd, which it has from 3.14 on, or the package zstandard."""
    if sys.version_info >= (3, 14):
        with suppress(ImportError):  # a Python that was built without it
            return importlib.import_module("compression.zstd")
    try:
        import zstandard
    except ImportError as error:
        raise MissingPythonDependency(
            "The archives of a mirror need the package zstandard, which is not installed: "
            "pip install zstandard (the extra `mirror`)"
        ) from error
    return zstandard
