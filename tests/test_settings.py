"""Settings: read when needed, checked, and listed once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
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


@pytest.mark.parametrize(
    "value",
    ["http:///x", "http://", "http://[x", "http://h:99999", "http://h:0", "http://h:a", "http://a b/", "http://h\n"],
)
def test_a_url_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("KERNELS_HUB", value)
    with pytest.raises(RequestError, match="`KERNELS_HUB`"):
        settings.endpoint()


def test_huggingface_hubs_url_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELS_HUB", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "nonsense")
    with pytest.raises(RequestError, match="`HF_ENDPOINT` is 'nonsense'"):
        settings.endpoint()


PASSWORDS = [
    "http://ada:secret@h",
    "https://secret@h/x",
    "HTTP://a:secret@h",
    "http://a:b/secret@h",
    "http://a:se@cret@h",
]


@pytest.mark.parametrize("value", [*PASSWORDS, "ada:secret@h", "ftp://ada:secret@h"])
def test_a_password_in_a_url_is_refused_and_never_repeated(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("KERNELS_HUB", value)
    with pytest.raises(RequestError) as refused:
        settings.endpoint() if value in PASSWORDS else settings.hub_folder()
    monkeypatch.setenv("HF_ENDPOINT", value)
    for shown in (str(refused.value), *settings.active_variables().values(), *settings.invalid_settings()):
        assert "secret" not in shown
        assert "cret" not in shown
    assert settings.active_variables()["HF_ENDPOINT"].endswith("(hidden)@" + value.rpartition("@")[2])


def test_who_puts_a_password_in_a_url_learns_where_a_token_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB", "http://ada:secret@h")
    with pytest.raises(RequestError, match="put a token in `KERNELS_HUB_TOKEN` instead"):
        settings.endpoint()


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("KERNELS_CACHE", "~no-such-user/x", settings.cache_dir),
        ("KERNELS_HUB", "~no-such-user/x", settings.hub_folder),
        ("LOCAL_KERNELS", "a/b=~no-such-user/x", settings.local_kernels),
    ],
)
def test_the_home_of_nobody_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, read: Callable[[], object]
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(RequestError, match=f"`{name}` has the path '~no-such-user/x'"):
        read()
    assert any(f"`{name}`" in problem for problem in settings.invalid_settings())


@pytest.mark.parametrize("name", ["HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"])
@pytest.mark.parametrize("value", ["abc", "", "1.5", "-3"])
@pytest.mark.parametrize("read", [settings.endpoint, settings.cache_dir, settings.offline])
def test_a_number_that_huggingface_hub_would_fail_at_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, read: Callable[[], object]
) -> None:
    for other in ("KERNELS_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv("KERNELS_HUB", "http://hub.example")
    monkeypatch.setenv(name, value)
    with pytest.raises(RequestError, match=f"`{name}` is {value!r}"):
        read()


def test_a_sound_environment_has_nothing_wrong(isolated_env: Path) -> None:
    assert settings.invalid_settings() == []


@pytest.mark.parametrize(("value", "expected"), [("", set()), (" acme, other-org ,", {"acme", "other-org"})])
def test_trusted_publishers_are_names(monkeypatch: pytest.MonkeyPatch, value: str, expected: set[str]) -> None:
    monkeypatch.setenv("KERNELS_TRUSTED_PUBLISHERS", value)
    assert settings.trusted_publishers() == expected


@pytest.mark.parametrize("value", ["acme/relu", "*", "acme other", "acme,../x", "https://hub/acme"])
def test_a_publisher_that_none_can_be_is_an_error(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("KERNELS_TRUSTED_PUBLISHERS", value)
    with pytest.raises(RequestError, match="`KERNELS_TRUSTED_PUBLISHERS` has the entry"):
        settings.trusted_publishers()


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
        (" a/b =/x: c/d= /y : ", {"a/b": "/x", "c/d": "/y"}),
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


@pytest.mark.parametrize("value", ["a/b", "a/b=", "a/b= ", "=/x", "a/b=/x:c/d", "relu=/x", "a/b/c=/x", "a b/c=/x"])
def test_local_kernels_that_are_none_are_an_error_that_shows_the_entry(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("LOCAL_KERNELS", value)
    with pytest.raises(RequestError, match="org/name=/path"):
        settings.local_kernels()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", True), ("true", True), ("YES", True), ("On", True),
        ("0", False), ("", False), ("False", False), ("no", False), ("OFF", False),
    ],
)  # fmt: skip
def test_flags_are_set_as_huggingface_hub_sets_them(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: bool
) -> None:
    monkeypatch.setenv("DISABLE_KERNEL_MAPPING", value)
    assert settings.mapping_disabled() is expected


@pytest.mark.parametrize("value", ["ture", "2", "enabled", "Y", " 1"])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("KERNELS_LOCKED", settings.locked_only),
        ("DISABLE_KERNEL_MAPPING", settings.mapping_disabled),
        ("HF_HUB_OFFLINE", settings.offline),
        ("HF_HUB_DISABLE_TELEMETRY", settings.telemetry_disabled),
        ("HF_HUB_DISABLE_PROGRESS_BARS", settings.progress_disabled),
    ],
)
def test_a_flag_that_says_neither_yes_nor_no_is_an_error_that_doctor_lists(
    monkeypatch: pytest.MonkeyPatch, isolated_env: Path, name: str, read: Callable[[], bool], value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(RequestError, match=f"`{name}` is '{value}'; expected 1, true, yes or on, or 0"):
        read()
    assert len([each for each in settings.invalid_settings() if f"`{name}`" in each]) == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "install"), ("", "install"), ("0", "install"), ("false", "install"), ("install", "install"),
        ("1", "load"), ("true", "load"), ("LOAD", "load"), ("off", "off"), ("OFF", "off"),
    ],
)  # fmt: skip
def test_content_is_checked_when_the_variable_says_so_also_in_its_older_words(
    monkeypatch: pytest.MonkeyPatch, value: str | None, expected: str
) -> None:
    monkeypatch.delenv("KERNELS_VERIFY", raising=False)
    if value is not None:
        monkeypatch.setenv("KERNELS_VERIFY", value)
    assert settings.verify_when() == expected
    assert settings.verify_when("off") == "off"


def test_another_word_for_when_content_is_checked_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="`verify` is 'always'; expected 'off', 'install' or 'load'"):
        settings.verify_when("always")
    with pytest.raises(TypeError, match=r"`verify` is True \(bool\)"):
        settings.verify_when(True)
    monkeypatch.setenv("KERNELS_VERIFY", "sometimes")
    with pytest.raises(RequestError, match="`KERNELS_VERIFY` is 'sometimes'"):
        settings.verify_when()
    assert any("KERNELS_VERIFY" in problem for problem in settings.invalid_settings())


def test_active_variables_hide_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("KERNELS_REFRESH", "7")
    assert settings.active_variables()["HF_TOKEN"] == "(set)"
    assert settings.active_variables()["KERNELS_REFRESH"] == "7"


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
                    or "compile" in path.parts
                    or path.name == "command.py"
                ), (path, line)
