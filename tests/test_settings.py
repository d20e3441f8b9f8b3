"""Settings: read when needed, checked, and listed once."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from kernels import settings
from kernels.errors import RequestError


def test_the_cache_is_kernels_cache_else_huggingface_hubs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path))
    assert settings.cache_dir() == tmp_path
    monkeypatch.delenv("KERNELS_CACHE")
    assert settings.cache_dir() == Path(constants.HF_HUB_CACHE)


@pytest.mark.parametrize(
    ("value", "expected"), [("http://hub.example/", "http://hub.example"), ("https://h:1/x", "https://h:1/x")]
)
def test_another_hub_is_named_by_its_url(monkeypatch: pytest.MonkeyPatch, value: str, expected: str) -> None:
    monkeypatch.setenv("KERNELS_HUB", value)
    assert settings.endpoint() == expected
    assert settings.hub_folder() is None


def test_without_another_hub_it_is_huggingface_hubs(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.delenv("KERNELS_HUB", raising=False)
    assert settings.endpoint() == constants.ENDPOINT
    assert settings.hub_folder() is None


def test_a_url_without_a_host_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB", "http:///x")
    with pytest.raises(RequestError, match="KERNELS_HUB"):
        settings.endpoint()


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "1h"])
def test_a_refresh_time_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("KERNELS_REFRESH", value)
    with pytest.raises(RequestError, match="KERNELS_REFRESH"):
        settings.refresh_seconds()


@pytest.mark.parametrize(("value", "expected"), [("", 0.0), ("0", 0.0), ("1.5", 1.5), ("inf", float("inf"))])
def test_a_refresh_time_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch, value: str, expected: float) -> None:
    monkeypatch.setenv("KERNELS_REFRESH", value)
    assert settings.refresh_seconds() == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", {}),
        ("a/b=/x", {"a/b": "/x"}),
        ("a/b=/x:c/d=/y", {"a/b": "/x", "c/d": "/y"}),
        ("a/b=/x:", {"a/b": "/x"}),
    ],
)
def test_local_kernels_are_repositories_with_paths(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: dict[str, str]
) -> None:
    monkeypatch.setenv("LOCAL_KERNELS", value)
    assert settings.local_kernels() == {repo_id: Path(path) for repo_id, path in expected.items()}


@pytest.mark.skipif(os.name == "nt", reason="there these are absolute")
def test_local_kernels_on_windows_have_a_colon_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_KERNELS", r"a/b=C:\kernels:c/d=D:/more")
    assert [path.name for path in settings.local_kernels().values()] == [r"C:\kernels", "more"]


@pytest.mark.parametrize("value", ["a/b", "a/b=", "=/x", "a/b=/x:c/d"])
def test_local_kernels_that_are_none_are_an_error_that_shows_the_entry(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("LOCAL_KERNELS", value)
    with pytest.raises(RequestError, match="org/name=/path"):
        settings.local_kernels()


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("true", True), ("YES", True), ("0", False), ("", False)])
def test_flags_are_set_as_huggingface_hub_sets_them(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: bool
) -> None:
    for name, read in (
        ("DISABLE_KERNEL_MAPPING", settings.mapping_disabled),
        ("KERNELS_VERIFY", settings.verify_on_load),
    ):
        monkeypatch.setenv(name, value)
        assert read() is expected


def test_variables_in_force_hide_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("KERNELS_REFRESH", "7")
    assert settings.variables_in_force()["HF_TOKEN"] == "(set)"
    assert settings.variables_in_force()["KERNELS_REFRESH"] == "7"


def test_every_variable_that_is_read_is_listed() -> None:
    source = Path(settings.__file__).read_text()
    read = set(re.findall(r'(?:environ\.get\(|_flag\()"([A-Z_]+)"', source))
    assert read <= {variable.name for variable in settings.VARIABLES}


def test_no_other_module_reads_the_environment() -> None:
    package = Path(settings.__file__).parent
    for path in package.rglob("*.py"):
        if path.name != "settings.py":
            for line in path.read_text().splitlines():
                assert (
                    not re.search(r"os\.environ\b|os\.getenv\(", line)
                    or "backends" in path.parts
                    or "build" in path.parts
                ), (path, line)
