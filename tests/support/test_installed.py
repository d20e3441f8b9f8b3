"""Installed distributions are found as `importlib.metadata` finds them, each file read once."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from pathlib import Path

import pytest

from kernels.support.installed import (
    entry_points,
    installed_from,
    installed_version,
    metadata_folders,
)


def install(site: Path, project: str, version: str, points: str = "") -> Path:
    info = site / f"{project}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project}\nSummary: Version: 9\nVersion: {version}\n\nVersion: 8\n"
    )
    if points:
        (info / "entry_points.txt").write_text(points)
    return info


def told(points: object) -> list[tuple[str, str, str]]:
    return sorted((point.name, point.value, point.dist.version) for point in points)  # type: ignore[attr-defined]


@pytest.mark.parametrize("group", ["console_scripts", "pytest11", "kernels.backends", "torch.backends"])
def test_what_is_installed_here_is_found_as_importlib_finds_it(group: str) -> None:
    assert told(entry_points(group)) == told(importlib.metadata.entry_points(group=group))


def test_the_first_of_two_distributions_of_a_project_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "one", "Acme_Kernels", "1.0", "[acme.group]\nacme = one\n")
    install(tmp_path / "two", "acme.kernels", "2.0", "[acme.group]\nacme = two\n[acme.groups]\nx = y\n")
    install(tmp_path / "two", "other", "3.0", "[acme.group]\nother = three\n")
    for name in ("two", "one"):
        monkeypatch.syspath_prepend(tmp_path / name)
    expected = [("acme", "one", "1.0"), ("other", "three", "3.0")]
    assert told(entry_points("acme.group")) == expected == told(importlib.metadata.entry_points(group="acme.group"))
    assert entry_points("acme") == ()
    assert (installed_version("acme-kernels"), installed_version("other")) == ("1.0", "3.0")


def test_entry_points_are_read_again_when_a_folder_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "acme", "1.0", "[acme.group]\nacme = one\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "gone"), str(Path(__file__))])
    assert told(entry_points("acme.group")) == [("acme", "one", "1.0")]
    install(tmp_path, "other", "2.0", "[acme.group]\nother = two\n")
    os.utime(tmp_path, (1, 1))
    assert told(entry_points("acme.group")) == [("acme", "one", "1.0"), ("other", "two", "2.0")]


def test_folders_of_metadata_are_listed_again_when_there_is_another(tmp_path: Path) -> None:
    assert metadata_folders(str(tmp_path / "gone")) == ()
    install(tmp_path, "acme", "1.0")
    (tmp_path / "acme").mkdir()
    assert metadata_folders(str(tmp_path)) == ("acme-1.0.dist-info",)
    install(tmp_path, "other", "1.0")
    os.utime(tmp_path, (1, 1))
    assert metadata_folders(str(tmp_path)) == ("acme-1.0.dist-info", "other-1.0.dist-info")


@pytest.mark.parametrize(
    ("record", "origin"),
    [
        (
            {"url": "https://example.com/kernels", "vcs_info": {"vcs": "git", "commit_id": "0" * 40}},
            f"git+https://example.com/kernels@{'0' * 40}",
        ),
        (
            {"url": "https://ada:secret@example.com/kernels", "vcs_info": {"vcs": "git", "commit_id": "main"}},
            "git+https://(hidden)@example.com/kernels@main",
        ),
        (
            {"url": "https://example.com/kernels-1-py3-none-any.whl", "archive_info": {}},
            "https://example.com/kernels-1-py3-none-any.whl",
        ),
        (
            {"url": "https://ada:se/cret@example.com/kernels", "vcs_info": {"vcs": "git", "commit_id": "v1"}},
            "git+https://(hidden)@example.com/kernels@v1",
        ),
        ({"url": "https://example.com/a.whl?private_token=secret"}, "https://example.com/a.whl?private_token=(hidden)"),
        ({"url": "https://example.com/a\nAll is well"}, "https://example.com/a\\nAll is well"),
        ({"url": "file:///src/a%0Ab", "dir_info": {}}, "/src/a\\nb"),
        ({"url": "file:///src/a%20b", "dir_info": {}}, "/src/a b"),
        ({"url": "file:///src/\u001b[31m", "dir_info": {}}, None),
        ({"url": "file:///elsewhere", "dir_info": {"editable": True}}, None),
        ({"url": 5}, None),
        ({}, None),
        ([], None),
        (None, None),
        ("nothing", None),
    ],
)
def test_the_origin_is_what_the_installer_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: object, origin: str | None
) -> None:
    info = install(tmp_path, "acme_tool", "1.0")
    if record is not None:
        (info / "direct_url.json").write_text(json.dumps(record))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = installed_from("acme-tool", str(tmp_path / "acme_tool"))
    if origin is None and found is not None:
        assert "\x1b" not in found
    else:
        assert found == origin


def test_an_editable_installation_names_its_sources_and_another_copy_has_no_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, sources = tmp_path / "site", tmp_path / "sources"
    info = install(site, "acme_tool", "1.0")
    (info / "direct_url.json").write_text(json.dumps({"url": sources.as_uri(), "dir_info": {"editable": True}}))
    monkeypatch.syspath_prepend(str(site))
    assert installed_from("acme-tool", str(sources / "src" / "acme_tool")) == f"{sources} (editable)"
    assert installed_from("acme-tool", str(tmp_path / "copy" / "acme_tool")) is None
