"""The picture of trust: what is checked before a kernel runs, in order."""

from __future__ import annotations

from dataclasses import dataclass

from drawing import SMALL, Box, Canvas, Gap, Marked, Part, Row, Stack, Words
from picture import Picture, branches, plain

from kernels import errors

__all__ = ["PICTURE"]


@dataclass(frozen=True)
class _Check:
    when: str
    what: str
    how: str
    error: str
    then: str


CHECKS = (
    _Check(
        "The commit is looked up",
        "Is the publisher trusted?",
        "By the Hub, by `KERNELS_TRUSTED_PUBLISHERS`, or by `trust_remote_code`. Asked again for each dependency and "
        "redirect.",
        errors.UntrustedPublisher.__name__,
        "No file is downloaded.",
    ),
    _Check(
        "",
        "Is it what the lockfile pins?",
        "Where a lockfile pins the repository, the pinned commit is used, also for a dependency.",
        errors.LockError.__name__,
        "Another version was requested.",
    ),
    _Check(
        "The files are listed",
        "Can these names be files of a build?",
        "No name leaves its folder, and each file has a size and a hash.",
        errors.InvalidRepository.__name__,
        "No file is downloaded.",
    ),
    _Check(
        "The build is chosen",
        "Did an allowed signer sign it?",
        "Only where `KERNELS_POLICY` requires a signature, and before the metadata is parsed.",
        errors.UntrustedSignature.__name__,
        "If no other build is left.",
    ),
    _Check(
        "The build is downloaded",
        "Is each file what was listed?",
        "Size and hash, while it arrives. Else it is downloaded again.",
        errors.HubUnavailable.__name__,
        "The file is never kept.",
    ),
    _Check(
        "The build is on disk",
        "Are these the files of the publisher?",
        "The digest in `metadata.json`, which the signature covers.",
        errors.DigestMismatch.__name__,
        "Nothing is run.",
    ),
    _Check(
        "",
        "Is this the content that was locked?",
        "Only with `kernels lock --hashes`: the hash of the whole build.",
        errors.DigestMismatch.__name__,
        "Nothing is run.",
    ),
    _Check(
        "The module is imported",
        "Is its name free?",
        "The listed files only, under a name that no other module has.",
        errors.KernelImportError.__name__,
        "No module of it stays.",
    ),
)


def _trust(narrow: bool) -> Part:
    parts: list[Part] = []
    for number, check in enumerate(CHECKS):
        if number:
            parts.append(Gap(22))
        when = Words(check.when, "soft", SMALL, bold=True)
        words: list[Part] = [Words(check.what, bold=True), Words(check.how, size=SMALL)]
        error = Box([Words(f"`{check.error}`", "bad", SMALL), Words(check.then, size=SMALL)], "bad", f"error {number}")
        own = Box([when, *words] if narrow and check.when else words, "main", f"check {number}")
        if narrow:
            parts.append(Stack([own, Gap(8), Stack([error], left=64)]))
        else:
            parts.append(Row([when, own, error], _TRUST_WIDTHS, gap=28))
    words = [Marked("tick", Words("The kernel runs, with your rights.", "good", bold=True))]
    done = Box(words, "good", f"check {len(CHECKS)}")
    return Stack([*parts, Gap(22), done if narrow else Row([Gap(0), done, Gap(0)], _TRUST_WIDTHS, gap=28)])


_TRUST_WIDTHS = (120, 330, 190)


def _trust_lines(canvas: Canvas, narrow: bool) -> None:
    branches(canvas, len(CHECKS), "check", "error", narrow)


def _trust_says() -> str:
    checks = " ".join(
        f"{number}. {check.when}{'. ' if check.when else ''}{check.what} {plain(check.how)} "
        f"If not: {check.error}. {check.then}"
        for number, check in enumerate(CHECKS, start=1)
    )
    return f"What is checked before a kernel runs, in this order. {checks}"


PICTURE = Picture("What is checked before a kernel runs", _trust_says(), _trust, _trust_lines)
