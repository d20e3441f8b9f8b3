"""Write a wheel's file: a ZIP with a `RECORD` of its files, the same bytes each time.

The format: https://packaging.python.org/en/latest/specifications/binary-distribution-format/.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from kernels.errors import BuildError

__all__ = ["write_wheel"]

#: ZIP knows no time before 1980.
_EARLIEST = 315_532_800


def write_wheel(path: Path, files: Mapping[str, bytes | Path], date: int) -> None:
    """Write a wheel; it replaces one at the same path when it is complete.

    Args:
        path: Its path.
        files: The files by path in it: the content, or a file on disk. The folder `*.dist-info` is among them.
        date: The time of all files, in seconds since 1970.

    Raises:
        BuildError: It cannot be written.
    """
    info = next(name.partition("/")[0] for name in files if name.partition("/")[0].endswith(".dist-info"))
    record = f"{info}/RECORD"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix=".wheel-", delete=False) as target:
            try:
                with ZipFile(target, "w", ZIP_DEFLATED) as archive:
                    rows = [_add(archive, name, files[name], date) for name in sorted(files, key=_order)]
                    lines = io.StringIO()
                    csv.writer(lines, lineterminator="\n").writerows([*rows, (record, "", "")])
                    _add(archive, record, lines.getvalue().encode(), date)
                os.chmod(target.name, 0o644)
                os.replace(target.name, path)
            except BaseException:
                os.unlink(target.name)
                raise
    except OSError as error:
        raise BuildError(f"{path} could not be written: {error}") from error


def _order(name: str) -> tuple[bool, str]:
    # Readers of the end of a file find the metadata there: "the .dist-info files physically at the end of the archive".
    return ".dist-info/" in name, name


def _add(archive: ZipFile, name: str, content: bytes | Path, date: int) -> tuple[str, str, str]:
    entry = ZipInfo(name, time.gmtime(max(date, _EARLIEST))[:6])
    entry.compress_type, entry.create_system = ZIP_DEFLATED, 3
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    digest, size = hashlib.sha256(), 0
    with (
        io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source,
        archive.open(entry, "w", force_zip64=not isinstance(content, bytes) and content.stat().st_size >= 2**31) as to,
    ):
        while chunk := source.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
            to.write(chunk)
    text = base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")
    return name, f"sha256={text}", str(size)
