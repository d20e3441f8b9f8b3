"""Settings: read when needed, checked, and listed once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels import settings
from kernels.diagnosis import variable_table
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
    assert settings.hub_folders() == ()


def test_without_another_hub_it_is_huggingface_hubs(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.delenv("KERNELS_HUB", raising=False)
    assert settings.endpoint() == constants.ENDPOINT
    assert [(each.kind, each.value) for each in settings.hub_addresses()] == [("hub", constants.ENDPOINT)]
    assert settings.hub_folders() == ()


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
    "http://a:b,secret@h",
    "http://a:b/x,secret@h",
    "http://a:b?secret@h",
    "https://mirror.example,http://ada:secret@h",
    "s3://ada:secret@h/prefix",
]


@pytest.mark.parametrize("value", [*PASSWORDS, "ada:secret@h", "ftp://ada:secret@h"])
def test_a_password_in_a_url_is_refused_and_never_repeated(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("KERNELS_HUB", value)
    with pytest.raises(RequestError) as refused:
        settings.hub_addresses()
    monkeypatch.setenv("HF_ENDPOINT", value)
    for shown in (str(refused.value), *variable_table.active_variables().values(), *variable_table.invalid_settings()):
        assert "secret" not in shown
        assert "cret" not in shown
    assert variable_table.active_variables()["HF_ENDPOINT"].endswith("(hidden)@" + value.rpartition("@")[2])


def test_who_puts_a_password_in_a_url_learns_where_a_token_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB", "http://ada:secret@h")
    with pytest.raises(RequestError, match="put a token in `KERNELS_HUB_TOKEN` instead"):
        settings.endpoint()


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("KERNELS_CACHE", "~no-such-user/x", settings.cache_dir),
        ("KERNELS_HUB", "~no-such-user/x", settings.hub_folders),
        ("LOCAL_KERNELS", "a/b=~no-such-user/x", settings.local_kernels),
    ],
)
def test_the_home_of_nobody_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, read: Callable[[], object]
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(RequestError, match=f"`{name}` has the path '~no-such-user/x'"):
        read()
    assert any(f"`{name}`" in problem for problem in variable_table.invalid_settings())


@pytest.mark.parametrize("name", ["HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"])
@pytest.mark.parametrize("value", ["abc", "1.5", "-3", ""])
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
    assert variable_table.invalid_settings() == []


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
    assert len([each for each in variable_table.invalid_settings() if f"`{name}`" in each]) == 1


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
    assert any("KERNELS_VERIFY" in problem for problem in variable_table.invalid_settings())


def test_active_variables_hide_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("KERNELS_REFRESH", "7")
    assert variable_table.active_variables()["HF_TOKEN"] == "(set)"
    assert variable_table.active_variables()["KERNELS_REFRESH"] == "7"


def test_every_variable_that_is_read_is_listed() -> None:
    source = Path(settings.__file__).read_text()
    read = set(re.findall(r'(?:environ\.get\(|_flag\()"([A-Z_]+)"', source))
    assert read <= {variable.name for variable in variable_table.VARIABLES}


#: What others define the variables of: vendors' tools, compilers, and clouds with their credentials. `command.py` hands
#: the whole environment to a command.
READS_OTHERS_VARIABLES = {"backends", "compile", "stores", "command.py"}


def test_no_other_module_reads_the_environment() -> None:
    package = Path(settings.__file__).parent
    for path in package.rglob("*.py"):
        if path.name != "settings.py" and READS_OTHERS_VARIABLES.isdisjoint(path.relative_to(package).parts):
            for line in path.read_text().splitlines():
                assert not re.search(r"os\.environ\b|os\.getenv\(", line), (path, line)


# Several addresses


@pytest.fixture
def hf_endpoint(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hf.example")
    return "https://hf.example"


def addresses(monkeypatch: pytest.MonkeyPatch, value: str) -> list[tuple[str, str]]:
    monkeypatch.setenv("KERNELS_HUB", value)
    return [(each.kind, each.value) for each in settings.hub_addresses()]


@pytest.mark.usefixtures("hf_endpoint")
def test_addresses_are_asked_in_their_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    value = f"https://mirror.example/kernels/, s3://bucket/prefix/,gs://b,az://c/p,file://{tmp_path},{tmp_path},hub,"
    assert addresses(monkeypatch, value) == [
        ("http", "https://mirror.example/kernels"),
        ("store", "s3://bucket/prefix"),
        ("store", "gs://b"),
        ("store", "az://c/p"),
        ("folder", str(tmp_path)),  # once
        ("hub", "https://hf.example"),
    ]
    assert settings.endpoint() == "https://mirror.example/kernels"
    assert settings.hub_folders() == (tmp_path,)


@pytest.mark.usefixtures("hf_endpoint")
def test_the_hub_may_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [kind for kind, _ in addresses(monkeypatch, "hub,https://h")] == ["hub", "http"]


def test_a_folder_may_have_a_comma_in_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "a,hub"
    folder.mkdir()
    assert addresses(monkeypatch, str(folder)) == [("folder", str(folder))]


@pytest.mark.usefixtures("hf_endpoint")
def test_hub_is_a_word_and_not_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    monkeypatch.chdir(tmp_path)
    assert addresses(monkeypatch, "hub") == [("hub", "https://hf.example")]
    assert addresses(monkeypatch, "./hub") == [("folder", str(tmp_path / "hub"))]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("https://h,hubb", r"'hubb'; expected .* Did you mean 'hub'\?"),
        ("htps://h", r"'htps://h'; expected .* Did you mean 'https'\?"),
        ("ftp://h/x", "'ftp://h/x'; expected"),
        ("https://h,/nowhere", "'/nowhere'; expected"),
        ("file:///nowhere", "a folder that exists"),
        ("file://host/x", "three slashes"),
        ("s3://", "s3://bucket/prefix"),
        ("s3://bucket/x y", "s3://bucket/prefix"),
        ("s3://[x", "s3://bucket/prefix"),
        (",", "has no address"),
        ("https://h?X-Amz-Signature=secret", "with a query"),
        ("az://c/p?sv=1&sig=secret", "with a query"),
        ("https://h,az://c/p#secret", "with a query"),
    ],
)
def test_an_address_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch, value: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        addresses(monkeypatch, value)
    assert str(refused.value).startswith("`KERNELS_HUB` ")
    assert "secret" not in str(refused.value)
    assert "secret" not in str(variable_table.active_variables())
    assert str(refused.value) in variable_table.invalid_settings()


@pytest.mark.usefixtures("hf_endpoint")
def test_a_token_goes_to_the_url_in_kernels_hub_and_to_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB_TOKEN", " token\n")
    monkeypatch.setenv("KERNELS_HUB", "s3://bucket,https://h:1/x,hub")
    assert settings.hub_token("https://h:1/x") == "token"
    for other in ("https://hf.example", "http://h:1/x", "https://h/x", "https://h:1/y", "s3://bucket"):
        assert settings.hub_token(other) is None
    monkeypatch.setenv("KERNELS_HUB", "https://h/x,https://h/y")
    assert settings.hub_token("https://h/y") == "token"


REFUSED = RequestError

#: `KERNELS_HUB`, `KERNELS_HUB_TOKEN`, and the token of each URL.
TOKENS: list[tuple[str, str, dict[str, str | None] | type[RequestError]]] = [
    ("https://h", "secret", {"https://h": "secret"}),
    ("https://h", "secret==", {"https://h": "secret=="}),
    ("https://h", "h=secret", {"https://h": "secret"}),
    ("https://h", "h=secret==", {"https://h": "secret=="}),
    ("https://h", "h=a=b", {"https://h": "a=b"}),
    ("https://h", "h=secret,k=other", {"https://h": "secret", "https://k": None}),
    ("https://h,s3://k", "k=other,h=secret", {"https://h": "secret", "s3://k": None}),
    ("https://h", "a=b", REFUSED),
    ("https://h", "k=secret", REFUSED),
    ("https://h", "h=", REFUSED),
    ("https://h", "h=secret,h=secret2", REFUSED),
    ("https://h", "h=secret,H=secret2", REFUSED),
    ("https://h", "secret,secret2", REFUSED),
    ("https://h", "h=secret,secret2", REFUSED),
    ("https://h", "https://h=secret", REFUSED),
    ("https://h", "user@h=secret", REFUSED),
    ("https://h", "=secret", REFUSED),
    ("https://h", "h=sec ret", REFUSED),
    ("https://h", "sec ret", REFUSED),
    ("https://h", " h = secret , \n k = other ,\n", {"https://h": "secret"}),
    ("https://H/x", "h=secret", {"https://H/x": "secret"}),
    ("https://h", "H=secret", {"https://h": "secret"}),
    ("https://h:1", "h:1=secret", {"https://h:1": "secret", "https://h": None}),
    ("https://h:1", "h=secret", REFUSED),
    ("http://[::1]:80/x", "[::1]:80=secret", {"http://[::1]:80/x": "secret"}),
    ("http://[::1]", "[::1]=secret,[::2]=other", {"http://[::1]": "secret", "http://[::2]": None}),
    ("https://h,hub", "secret", {"https://h": "secret", "https://hf.example": None}),
    ("https://h,hub", "hf.example=secret,h=own", {"https://h": "own", "https://hf.example": None}),
    ("hub", "h=secret", {"https://h": None, "https://hf.example": None}),
    ("https://h,https://h/x", "secret", {"https://h": "secret", "https://h/x": "secret"}),
    ("https://h,https://k:2", "h=one,K:2=of=k", {"https://h": "one", "https://k:2": "of=k"}),
    ("https://h,https://k:2", "k:2=secret", {"https://h": None, "https://k:2": "secret"}),
    ("https://h,https://k:2", "h=one,other=two", {"https://h": "one", "https://k:2": None}),
    ("https://h,https://k:2", "secret", REFUSED),
    ("https://h,https://k:2", "h=secret,secret-of-k", REFUSED),
    ("https://h,https://k:2", "h=", REFUSED),
    ("https://user@h", "h=secret", REFUSED),
]


@pytest.mark.usefixtures("hf_endpoint")
@pytest.mark.parametrize(("hub", "token", "expected"), TOKENS)
def test_a_host_gets_the_token_that_names_it_and_no_other(
    monkeypatch: pytest.MonkeyPatch, hub: str, token: str, expected: dict[str, str | None] | type[RequestError]
) -> None:
    monkeypatch.setenv("KERNELS_HUB", hub)
    monkeypatch.setenv("KERNELS_HUB_TOKEN", token)
    if isinstance(expected, dict):
        assert {url: settings.hub_token(url) for url in expected} == expected
        return
    with pytest.raises(RequestError) as refused:
        settings.hub_token("https://h:1" if ":1" in hub else "https://h")
    assert "sec" not in str(refused.value)
    assert "KERNELS_HUB" in str(refused.value)


def test_a_list_of_tokens_is_no_token_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB_TOKEN", "secret")
    assert settings.hub_token() == "secret"
    monkeypatch.setenv("KERNELS_HUB_TOKEN", "h=secret")
    with pytest.raises(RequestError, match="expected one token alone"):
        settings.hub_token()
