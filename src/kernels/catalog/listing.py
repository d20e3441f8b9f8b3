"""The list of a mirror's kernels, in a file that the first page loads for its search, and that the next run continues.

`catalog/-/list.js` calls one function with the list: a script is loaded by pages that were opened as files, too. No
publisher is called `-`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from kernels.catalog.card import CardText
from kernels.catalog.shown import ShownKernel
from kernels.errors import KernelsError
from kernels.models.requirement import check_repo_id
from kernels.support.record_file import decode_json
from kernels.support.text import one_line

__all__ = ["LIST_FILE", "MAX_LIST_BYTES", "KernelEntry", "KernelList", "kernel_entry"]

LIST_FILE = "catalog/-/list.js"

#: The largest list that is read: some 300 bytes a kernel.
MAX_LIST_BYTES = 64 * 1024 * 1024
#: Names of functions and layers of a kernel that can be searched.
_MAX_NAMES = 40

_BEGIN, _END = b"kernelsCatalog(", b")\n"

_Short = Annotated[str, msgspec.Meta(max_length=200)]
_Names = Annotated[tuple[_Short, ...], msgspec.Meta(max_length=256)]


class KernelEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the list says of a kernel.

    Attributes:
        repo_id: Its name.
        number: The number of the index that its page was made from.
        trusted: Whether its publisher is trusted at the origin; None if that is not known.
        summary: The first paragraph of its card.
        backends: The backends it has builds for.
        versions: Its branches, the newest version first.
        builds: The builds of the newest version.
        names: Its functions and layers.
        license: Its license.
        date: When it was taken, or changed.
    """

    repo_id: _Short
    number: int
    trusted: bool | None
    summary: _Short
    backends: _Names
    versions: _Names
    builds: int
    names: _Names
    license: _Short
    date: _Short


class KernelList(msgspec.Struct, frozen=True):
    """The list.

    Attributes:
        made: What made the pages; other pages are made again.
        entries: The kernels, sorted by name.
    """

    made: _Short
    entries: tuple[KernelEntry, ...]

    def to_bytes(self) -> bytes:
        """The file's content."""
        rows = b",\n".join(msgspec.json.encode(each) for each in self.entries)
        return b'%s{"made":%s,"entries":[\n%s\n]}%s' % (_BEGIN, msgspec.json.encode(self.made), rows, _END)

    @staticmethod
    def parse(data: bytes) -> KernelList | None:
        """The list in a file; None if it is not one: then every page is made again.

        Example:
            >>> KernelList.parse(b"alert(1)") is None
            True
        """
        if not data.startswith(_BEGIN) or not data.endswith(_END):
            return None
        try:
            content = data[len(_BEGIN) : -len(_END)]
            found = decode_json(content, KernelList)
            for entry in found.entries:
                check_repo_id(entry.repo_id)
        except (msgspec.DecodeError, UnicodeDecodeError, KernelsError):
            return None
        return found


def kernel_entry(kernel: ShownKernel, card: CardText | None) -> KernelEntry:
    """The entry of a kernel.

    Args:
        kernel: What its page shows.
        card: The card of its newest version, if it has one.
    """
    newest = kernel.newest
    builds = () if newest is None else newest.builds
    backends = dict.fromkeys(each.variant.backend for each in builds if each.variant is not None)
    licenses = dict.fromkeys(each.metadata.license for each in builds if each.metadata and each.metadata.license)
    names = () if card is None else (*card.functions, *card.layers)
    return KernelEntry(
        repo_id=kernel.repo_id,
        number=kernel.number,
        trusted=kernel.trusted,
        summary=_short("" if card is None else card.summary),
        backends=tuple(backends),
        versions=tuple(_short(each.branch) for each in kernel.versions),
        builds=len(builds) + (0 if newest is None else newest.more),
        names=tuple(map(_short, names[:_MAX_NAMES])),
        license=_short(", ".join(licenses)),
        date=_short((newest.date if newest is not None else "") or kernel.time)[:10],
    )


def _short(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= 200 else line[:199] + "…"
