"""The addresses of mirrors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernels.errors import MissingPythonDependency, RequestError
from kernels.mirror.stores import opening
from kernels.mirror.stores.folder import FolderStore
from kernels.mirror.stores.opening import open_store


@pytest.mark.parametrize(
    ("address", "root"),
    [
        ("/srv/mirror", "/srv/mirror"),
        ("/srv/mirror/", "/srv/mirror"),
        ("file:///srv/mirror", "/srv/mirror"),
        ("FILE://localhost/srv/a%20b", "/srv/a b"),
        ("mirror", "mirror"),
        ("~/mirror", "home/mirror"),
    ],
)
def test_a_folder_is_a_path_or_a_file_url(
    address: str, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    store = open_store(address)
    assert isinstance(store, FolderStore)
    assert store.root == tmp_path / root
    again = open_store(store.url)
    assert isinstance(again, FolderStore)
    assert again.root == store.root


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "The address of a mirror is ''"),
        ("s4://bucket", "'s4://bucket' is not the address of a mirror"),
        ("ftp://host/x", "expected a folder"),
        ("file://host/x", "three slashes"),
        ("file://", "three slashes"),
        ("https://mirror.example/kernels", "can be read as a mirror, but not written. To write, name a folder"),
    ],
)
def test_another_address_is_refused(address: str, message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        open_store(address)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://my.bucket/a/b c/", "s3://my.bucket/a/b c"),
        ("S3A://bucket/a", "s3://bucket/a"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("az://container/a", "az://container/a"),
    ],
)
def test_a_bucket_is_named_with_its_prefix_and_nothing_is_requested(address: str, url: str) -> None:
    assert open_store(address).url == url


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://host:9000/bucket", "names no bucket"),
        ("s3://bucket//prefix", "a prefix that no mirror can have"),
        ("s3://bucket/../other", "a prefix that no mirror can have"),
    ],
)
def test_an_address_without_a_bucket_is_refused(address: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        open_store(address)


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    with pytest.raises(MissingPythonDependency, match="pip install obstore"):
        open_store("s3://bucket")


@pytest.mark.parametrize(
    "address",
    [
        "s3://AKIAEXAMPLE:very-secret@bucket/prefix",
        "s3://very-secret@bucket",
        "s3://AKIAEXAMPLE:very-secret?x@bucket",
        "s3://bucket/prefix?X-Amz-Signature=very-secret",
        "https://bucket.s3.amazonaws.com/x?sig=very-secret",
        "https://user:very-secret@mirror.example",
        "s3://bucket/prefix#very-secret",
        "file:///srv/mirror?very-secret",
        "az://container/x?sv=1&sig=very-secret",
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(RequestError) as raised:
        open_store(address)
    assert "very-secret" not in str(raised.value) + repr(raised.value)
