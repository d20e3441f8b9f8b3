"""The picture of the cache: its files, by how long they are valid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drawing import SMALL, Box, Gap, Part, Row, Stack, Words
from picture import Picture, plain

__all__ = ["PICTURE", "RECORDS"]


@dataclass(frozen=True)
class _Record:
    path: str
    what: str
    writer: str
    until: str = ""


_REPO = "kernels--org--name/"
RECORDS: Mapping[str, tuple[str, str, Sequence[_Record]]] = {
    "Never changes": (
        "good",
        "Kept until you remove the commit: `kernels cache prune`.",
        (
            _Record("blobs/<hash>", "the content of a file, once for all commits", "written by the download"),
            _Record(
                "snapshots/<commit>/…", "the files of a commit: links to their contents", "written by the download"
            ),
            _Record("index/<commit>-<Hub>.json", "the list of the files of a commit", "from the Hub"),
            _Record("index/<commit>-fetched", "a mark: this client downloaded files of it", "written by the download"),
            _Record("index/<commit>-<Hub>.allowed", "a mark: `trust_remote_code` allowed it", "written by the load"),
            _Record("index/<commit>-<Hub>.published", "a mark: a branch or tag leads to it", "from the Hub"),
        ),
    ),
    "Has an age": (
        "hub",
        "Asked again when it is too old. Used at any age while the Hub does not answer.",
        (
            _Record(
                "index/heads-<Hub>.json",
                "branches and tags; of a mirror also its verdict",
                "from the Hub or mirror",
                "asked again in each process, or after `KERNELS_REFRESH` seconds",
            ),
            _Record(
                ".locks/kernels-verdicts/…",
                "whether a publisher is trusted",
                "from the Hub",
                "“trusted” for a day; “not trusted” is asked again each time",
            ),
        ),
    ),
    "Is valid while nothing changes": (
        "main",
        "Results of checks on this machine. After a change, the check is done again.",
        (
            _Record(
                "index/<commit>-<Hub>-<variant>.checked",
                "the content of a build was compared",
                "written by the check",
                "until a file has another size, time or inode",
            ),
            _Record(
                ".locks/kernels-signatures/…",
                "who signed a build",
                "written by the check",
                "until the metadata, the signature or the policy changes",
            ),
        ),
    ),
    "Is temporary": (
        "plain",
        "Left by a process that was killed, it is removed by `kernels cache prune` after a day.",
        (
            _Record(
                "blobs/<hash>.*.incomplete",
                "a part of a large file; the next download goes on from there",
                "written by the download",
            ),
            _Record(".locks/…", "locks: one process downloads a build, the others wait", "written by each process"),
        ),
    ),
}


def _cache(narrow: bool) -> Part:
    groups: list[Part] = []
    for title, (kind, rule, records) in RECORDS.items():
        look = "soft" if kind == "plain" else kind
        lines: list[Part] = [Words(title, look, 14, bold=True), Words(rule, size=SMALL), Gap(4)]
        for record in records:
            path = (_REPO if not record.path.startswith(".locks") else "") + record.path
            if narrow:
                own = [Words(f"`{path}`", size=SMALL), Words(f"{record.what}, {record.writer}", size=SMALL)]
                if record.until:
                    own.append(Words(record.until, look, SMALL))
                lines += [Stack(own), Gap(6)]
            else:
                right: list[Part] = [Words(f"{record.what}", size=SMALL)]
                if record.until:
                    right.append(Words(record.until, look, SMALL))
                lines += [
                    Row(
                        [
                            Words(f"`{record.path}`", size=SMALL),
                            Stack(right),
                            Words(record.writer, "soft", SMALL),
                        ],
                        (294, 234, 120),
                    ),
                    Gap(4),
                ]
        groups.append(Box(lines[:-1], kind))
    where = f"`.locks` is in the folder of the cache, all else in `{_REPO}`, which each repository has."
    return Stack([*([] if narrow else [Words(where, "soft", SMALL)]), *groups], gap=12)


def _cache_says() -> str:
    groups = []
    for title, (_, rule, records) in RECORDS.items():
        listed = "; ".join(
            f"{record.path} ({', '.join(filter(None, (plain(record.what), record.writer, plain(record.until))))})"
            for record in records
        )
        groups.append(f"{title}. {plain(rule)} {listed}.")
    return "The files of the cache, by how long they are valid. " + " ".join(groups)


PICTURE = Picture("What the cache contains, and for how long", _cache_says(), _cache)
