"""What `kernels doctor` says of a mirror: its age, and whether it is signed as required."""

from __future__ import annotations

from pathlib import Path

import pytest
from mirror_tree import MirrorTree, StaticServer

from kernels import settings
from kernels.diagnosis.hub import check_address
from kernels.models.address import HubAddress

pytest.importorskip("zstandard")

KEY = "ed25519:" + "A" * 43 + "="


def test_the_age_of_a_mirror_is_shown(tmp_path: Path, isolated_env: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = MirrorTree(tmp_path / "mirror")
    tree.add("acme/relu")
    with StaticServer(tree.root) as server:
        monkeypatch.setenv("KERNELS_HUB", server.url)
        (address,) = settings.hub_addresses()
        report, found = check_address(address)
        assert (report.answers, found.problems) == (True, [])
        assert report.note is not None
        assert report.note.startswith("answers: a mirror of 2026-01-02T03:04:05Z, ")
        monkeypatch.setenv("KERNELS_MIRROR_KEYS", KEY)
        report, found = check_address(address)
        assert (report.answers, report.note) == (False, "a mirror that is not valid, or not signed as required")
        assert "mirror.json is refused: it has no signature" in str(found.problems[0])


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (301, {"Location": "/api/kernels/?limit=1"}),  # a folder
        (200, {"Content-Type": "text/html"}),  # its listing
        (403, {}),  # none, or a bucket that may not be listed
    ],
)
def test_a_web_server_has_its_own_answers_for_folders(
    tmp_path: Path, isolated_env: Path, status: int, headers: dict[str, str]
) -> None:
    tree = MirrorTree(tmp_path / "mirror")
    tree.add("acme/relu")
    with StaticServer(tree.root) as server:
        server.answer("kernels$", status, b"<html></html>", headers)
        report, found = check_address(HubAddress("http", server.url))
        assert (report.answers, found.problems) == (True, []), report
        (tree.root / "mirror.json").unlink()
        report, found = check_address(HubAddress("http", server.url))
        assert report.answers is not True
        assert len(found.problems) == 1
