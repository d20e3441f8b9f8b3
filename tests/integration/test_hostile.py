"""Repositories that attack or are broken: never run, never crash, always a clear error."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from html_cells import ReadHtml
from hub import TestHub, kernel_files
from logged import warned
from opened_files import opened_below

from kernels import get_kernel, get_kernel_variants, get_loaded_kernels, install_kernel
from kernels.api import explain
from kernels.errors import (
    DependencyCycle,
    DependencyOutsideLoad,
    DigestMismatch,
    HubUnavailable,
    IncompatibleClient,
    InvalidMetadata,
    InvalidRepository,
    KernelImportError,
    KernelsError,
    MissingPythonDependency,
    NoSuitableBuild,
    UntrustedPublisher,
)

METADATA: dict[str, Any] = {
    "id": "_relu_cpu_1234567",
    "name": "relu",
    "version": 1,
    "python-depends": [],
    "backend": {"type": "cpu"},
}


def publish(hub: TestHub, metadata: bytes | None, repo_id: str = "acme/relu") -> None:
    """A repository with one build, whose `metadata.json` is the given bytes."""
    folder = hub.make_repo(repo_id) / "build" / "torch-cpu"
    (folder / "metadata.json").unlink()
    if metadata is not None:
        (folder / "metadata.json").write_bytes(metadata)


def code_in(cache: Path) -> list[Path]:
    """The files in the cache, under whatever name, that have a kernel's code."""
    return [path for path in cache.rglob("*") if path.is_file() and b"def double" in path.read_bytes()]


# Names


@pytest.mark.parametrize(
    "path",
    [
        "build/torch-cpu/../../../../evil.py",
        "build/../../evil.py",
        "/etc/evil.py",
        "build/torch-cpu/C:\\evil.py",
        "build/torch-cpu/..\\..\\evil.py",
        "build/torch-cpu//evil.py",
        "build/torch-cpu/./evil.py",
        "build/torch-cpu/nul\x00.py",
        "build/torch-cpu/new\nline.py",
        "build/torch-cpu/" + "x" * 300,
        "build/torch-cpu/" + "d/" * 600 + "x",
        "../evil.py",
        "",
    ],
)
def test_a_file_name_that_leaves_its_folder_is_refused(hub: TestHub, isolated_env: Path, path: str) -> None:
    hub.make_repo("acme/relu")
    entry = {"type": "file", "path": path, "size": 16, "oid": "0" * 40}
    hub.replace("/tree/", lambda body: json.dumps([*json.loads(body), entry]).encode())
    with pytest.raises(InvalidRepository, match="could leave its folder"):
        get_kernel("acme/relu", version=1)
    assert hub.count("/resolve/") == 0
    assert not list(isolated_env.rglob("evil.py"))


def test_a_listed_object_id_that_is_a_path_is_refused(hub: TestHub, isolated_env: Path) -> None:
    listing = json.dumps(
        [{"type": "file", "path": "build/torch-cpu/metadata.json", "size": 2, "oid": "../../../../evil"}]
    )
    hub.make_repo("acme/relu")
    hub.replace("/tree/", lambda body: listing.encode())
    with pytest.raises(InvalidRepository, match="object id"):
        get_kernel("acme/relu", version=1)


@pytest.mark.parametrize("name", ["torch-cpu ", "torch--cpu", "TORCH-CPU", "torch-cpu\u202e", "-" * 200, "torch-çpu"])
def test_a_build_with_a_name_that_is_none_is_rejected_with_a_reason(hub: TestHub, name: str) -> None:
    hub.list_files("acme/relu", [f"build/{name}/metadata.json"])
    [decision] = get_kernel_variants("acme/relu", version=1)
    assert decision.reason  # type: ignore[union-attr]
    with pytest.raises(NoSuitableBuild):
        get_kernel("acme/relu", version=1)


@pytest.mark.parametrize("name", ["<script>alert(1)<", "<img src=x onerror=alert(1)>", '"><b onclick="x'])
def test_a_build_with_markup_in_its_name_is_text_in_a_notebook(hub: TestHub, name: str) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu"])
    hub.list_files("acme/relu", ["build/torch-cpu/metadata.json", f"build/{name}/metadata.json"])
    for shown in (explain("acme/relu", version=1), get_kernel_variants("acme/relu", version=1)):
        read = ReadHtml(shown._repr_html_())
        assert read.tags <= {"table", "div", "thead", "tbody", "tr", "th", "td"}
        assert read.attributes == {"class", "style"}
        assert name in read.cells


# Metadata


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not valid metadata"),
        (b"no json", "not valid metadata"),
        (b"\xff\xfe{}", "not valid metadata"),
        (b"[]", "not valid metadata"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "nested too deep"),
        (b"[" * 10_000, "metadata"),
        (b"{}", "missing required field"),
        *[
            (json.dumps({key: value for key, value in METADATA.items() if key != missing}).encode(), missing)
            for missing in ("id", "name", "backend")
        ],
        *[
            (json.dumps({**METADATA, **change}).encode(), next(iter(change)))
            for change in (
                {"id": "not an identifier"},
                {"id": "../evil"},
                {"id": ""},
                {"id": "ünïcode"},
                {"id": 3},
                {"name": "Relu"},
                {"name": "../evil"},
                {"version": "1"},
                {"version": -1},
                {"version": 1e400},
                {"python-depends": "einops"},
                {"backend": "cpu"},
                {"backend": {"type": "../cpu"}},
                {"backend": {"type": "cpu", "archs": "9.0"}},
                {"kernel-depends": [{"repo-id": "acme/x"}]},
                {"kernel-depends": [{"repo-id": "acme/x", "version": 1, "revision": "main"}]},
                {"kernel-depends": [{"repo-id": "acme/x", "version": 1, "more": 1}]},
                {"kernel-depends": [{"repo-id": "../x", "version": 1}]},
                {"kernels-minver": "latest"},
                {"digest": {"algorithm": "md5", "files": {}}},
                {"digest": {"algorithm": "sha256", "files": []}},
            )
        ],
    ],
)
def test_metadata_that_is_none_is_an_error_and_nothing_is_run(
    hub: TestHub, isolated_env: Path, content: bytes, words: str
) -> None:
    publish(hub, content)
    with pytest.raises(InvalidMetadata) as raised:
        get_kernel("acme/relu", version=1)
    assert words.split("-")[0] in str(raised.value)
    assert len(str(raised.value)) < 1000
    assert code_in(isolated_env) == []


def test_metadata_of_100_megabytes_is_not_even_read(hub: TestHub) -> None:
    listing = [
        {"type": "file", "path": "build/torch-cpu/metadata.json", "size": 100_000_000, "oid": "0" * 40},
        {"type": "file", "path": "build/torch-cpu/__init__.py", "size": 0, "oid": "0" * 40},
    ]
    hub.make_repo("acme/relu")
    hub.replace("/tree/", lambda body: json.dumps(listing).encode())
    with pytest.raises(InvalidMetadata, match="100000000 bytes"):
        get_kernel("acme/relu", version=1)
    assert hub.count("/resolve/") == 0


def test_a_build_without_metadata_is_refused_saying_so(hub: TestHub) -> None:
    publish(hub, None)
    with pytest.raises(InvalidMetadata, match=r"no metadata\.json"):
        get_kernel("acme/relu", version=1)


def test_a_broken_build_does_not_stand_in_the_way_of_a_sound_one(hub: TestHub) -> None:
    publish(hub, b"no json")
    hub.make_repo("acme/relu", variants=["torch-universal"])
    assert get_kernel("acme/relu", version=1).variant == "torch-universal"
    decisions = {each.variant.variant_str: each for each in get_kernel_variants("acme/relu", version=1)}
    assert "not valid metadata" in decisions["torch-cpu"].reason  # type: ignore[union-attr]


def test_metadata_that_contradicts_the_builds_name_is_rejected(hub: TestHub) -> None:
    hub.make_repo("acme/relu", metadata={"backend": {"type": "cuda"}})
    with pytest.raises(NoSuitableBuild, match="cuda"):
        get_kernel("acme/relu", version=1)


# Digests


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_a_digest_that_does_not_match_is_an_error_and_nothing_is_run(hub: TestHub, algorithm: str) -> None:
    files = {"__init__.py": "raise SystemExit('it ran')", "layers.py": ""}
    digests = {name: base64.b64encode(hashlib.new(algorithm, b"other").digest()).decode() for name in files}
    metadata = {"digest": {"algorithm": algorithm, "files": digests}}
    hub.make_repo("acme/relu", variants={"torch-cpu": files}, metadata=metadata)
    for _ in range(2):
        with pytest.raises(DigestMismatch, match=r"__init__\.py"):
            get_kernel("acme/relu", version=1)


@pytest.mark.parametrize("change", ["missing", "unknown"])
def test_a_digest_covers_every_file_and_no_other(hub: TestHub, change: str) -> None:
    folder = hub.make_repo("acme/relu", digest=True) / "build" / "torch-cpu"
    if change == "missing":
        (folder / "layers.py").unlink()
    else:
        (folder / "more.py").write_text("value = 1")
    with pytest.raises(DigestMismatch, match="layers.py" if change == "missing" else "more.py"):
        get_kernel("acme/relu", version=1)


# Identifiers


@pytest.mark.parametrize("name", ["os", "torch", "kernels", "json", "__main__", "msgspec", "class"])
def test_an_id_that_names_a_module_of_someone_else_is_refused(hub: TestHub, name: str) -> None:
    before = sys.modules.get(name)
    hub.make_repo("acme/relu", metadata={"id": name})
    with pytest.raises(KernelsError, match=name):
        get_kernel("acme/relu", version=1)
    assert sys.modules.get(name) is before


# Modules


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise ValueError('broken')", ValueError),
        ("import sys; sys.exit(3)", KernelImportError),
        ("import sys; del sys.modules[__name__]; raise KeyError", KeyError),
        ("from . import missing", ImportError),
        ("this is no python", SyntaxError),
        ("raise BaseException('rude')", KernelImportError),
        ("def f(): return f()\nf()", RecursionError),
    ],
)
def test_a_module_that_fails_on_import_keeps_its_error_and_leaves_no_trace(
    hub: TestHub, code: str, error: type[Exception]
) -> None:
    before = set(sys.modules)
    files = {"__init__.py": f"from . import part\n{code}\n", "part.py": "value = 1"}
    hub.make_repo("acme/relu", variants={"torch-cpu": files})
    with pytest.raises(error) as caught:
        get_kernel("acme/relu", version=1)
    said = " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert f"kernel 'relu', variant torch-cpu, of acme/relu at {hub.commit()}" in said
    assert not [name for name in set(sys.modules) - before if "relu" in name]
    assert not [kernel for kernel in get_loaded_kernels() if kernel.metadata.name == "relu" and not kernel.module]


def test_planted_bytecode_is_neither_downloaded_nor_run(hub: TestHub) -> None:
    import py_compile

    folder = hub.make_repo("acme/relu", variants={"torch-cpu": {"part.py": "value = 'source'\n"}}) / "build/torch-cpu"
    (folder / "__init__.py").write_text("from .part import value\n")
    (folder / "evil.py").write_text("value = 'bytecode'\n")
    cached = folder / "__pycache__" / f"part.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(
        str(folder / "evil.py"), cfile=str(cached), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    assert get_kernel("acme/relu", version=1).value == "source"
    assert hub.count("pyc") == 0


# Dependencies


def test_kernel_dependencies_are_shared_and_handed_out_inside_the_kernel(hub: TestHub) -> None:
    code = "from kernels import get_kernel_dep\ndep = get_kernel_dep('acme/base')\n"
    hub.make_repo("acme/base")
    hub.make_repo("acme/left", variants={"torch-cpu": {"__init__.py": code}}, depends=[("acme/base", 1)])
    hub.make_repo("acme/right", variants={"torch-cpu": {"__init__.py": code}}, depends=[("acme/base", "v1")])
    top = (
        "from kernels import get_kernel_dep\n"
        "left, right = get_kernel_dep('acme/left').dep, get_kernel_dep('acme/right').dep\n"
    )
    hub.make_repo(
        "acme/top", variants={"torch-cpu": {"__init__.py": top}}, depends=[("acme/left", 1), ("acme/right", 1)]
    )
    module = get_kernel("acme/top", version=1)
    assert module.left is module.right
    assert module.left.repo_id == "acme/base"


def test_a_dependency_that_was_not_declared_is_refused(hub: TestHub) -> None:
    code = "from kernels import get_kernel_dep\nget_kernel_dep('acme/base')\n"
    hub.make_repo("acme/base")
    hub.make_repo("acme/top", variants={"torch-cpu": {"__init__.py": code}})
    with pytest.raises(DependencyOutsideLoad, match=r"acme/base.* of acme/top at "):
        get_kernel("acme/top", version=1)


def test_a_dependency_cycle_is_refused_with_its_path_before_anything_is_on_disk(
    hub: TestHub, isolated_env: Path
) -> None:
    for name, following in (("ka", "kb"), ("kb", "kc"), ("kc", "ka")):
        hub.make_repo(f"acme/{name}", depends=[(f"acme/{following}", 1)])
    with pytest.raises(DependencyCycle, match="acme/ka -> acme/kb -> acme/kc -> acme/ka"):
        get_kernel("acme/ka", version=1)
    assert code_in(isolated_env) == []


def test_a_chain_of_1000_dependencies_is_refused(hub: TestHub, isolated_env: Path) -> None:
    for number in range(1000):
        hub.make_repo(f"acme/k{number}", depends=[(f"acme/k{number + 1}", 1)], variants={"torch-cpu": {}})
    with pytest.raises(DependencyCycle, match="nest more than"):
        get_kernel("acme/k0", version=1)
    assert code_in(isolated_env) == []


def test_a_newer_client_is_asked_for_before_anything_is_on_disk(hub: TestHub, isolated_env: Path) -> None:
    hub.make_repo("acme/relu", metadata={"kernels-minver": "99.0.0"})
    with pytest.raises(IncompatibleClient, match=r"99\.0\.0") as raised:
        get_kernel("acme/relu", version=1)
    assert isinstance(raised.value, RuntimeError)
    assert code_in(isolated_env) == []


@pytest.mark.parametrize(
    ("depend", "words"),
    [("left-pad", "may depend"), ("helion", "pip install helion"), ("nki", "may depend")],
)
def test_a_python_dependency_that_is_missing_or_not_allowed_is_an_error_before_anything_is_on_disk(
    hub: TestHub, isolated_env: Path, depend: str, words: str
) -> None:
    hub.make_repo("acme/relu", python_depends=[depend])
    with pytest.raises(MissingPythonDependency, match=words) as raised:
        get_kernel("acme/relu", version=1)
    assert isinstance(raised.value, ImportError)
    assert code_in(isolated_env) == []


@pytest.mark.parametrize(
    ("dirty", "named"),
    [
        (["kernel"], "dirty git tree: the kernel's sources had"),
        (["kernel-builder"], "dirty git tree: kernel-builder had"),
        (["kernel", "kernel-builder"], "the kernel's sources and kernel-builder had uncommitted changes"),
    ],
)
def test_a_build_from_uncommitted_sources_is_mentioned(hub: TestHub, dirty: list[str], named: str) -> None:
    hub.make_repo("acme/relu", metadata={"provenance": {each: {"sha": "0" * 40, "dirty": True} for each in dirty}})
    with warned(named):
        get_kernel("acme/relu", version=1)


# Links and size


def test_a_link_out_of_the_repositorys_folder_in_the_cache_is_refused(
    hub: TestHub, new_process: Callable[[], None], isolated_env: Path, tmp_path: Path
) -> None:
    hub.make_repo("acme/relu")
    path = install_kernel("acme/relu", version=1) / "layers.py"
    blob = path.resolve()
    outside = tmp_path / "outside" / blob.name
    outside.parent.mkdir()
    outside.write_bytes(blob.read_bytes())
    path.unlink()
    path.symlink_to(outside)
    new_process()
    with pytest.raises(InvalidRepository, match="outside"):
        get_kernel("acme/relu", version=1)


def test_a_folder_of_the_cache_that_is_a_link_elsewhere_is_refused(
    hub: TestHub, new_process: Callable[[], None], tmp_path: Path
) -> None:
    hub.make_repo("acme/relu")
    folder = install_kernel("acme/relu", version=1)
    os.rename(folder, tmp_path / "moved")
    for path in (tmp_path / "moved").iterdir():
        content = (folder.parent.parent.parent.parent / "blobs" / path.readlink().name).read_bytes()
        path.unlink()
        path.write_bytes(content)
    folder.symlink_to(tmp_path / "moved")
    new_process()
    with pytest.raises(InvalidRepository, match="outside"):
        get_kernel("acme/relu", version=1)


def test_10_000_builds_are_judged(hub: TestHub) -> None:
    files: dict[str, bytes] = {}
    for number in range(10_000):
        files[f"build/torch{20 + number % 80}-cxx11-cu{100 + number // 80}-x86_64-linux/metadata.json"] = b"{}"
    for name, data in kernel_files("acme/relu", "torch-cpu").items():
        files[f"build/torch-cpu/{name}"] = data
    hub.list_files("acme/relu", files)
    assert get_kernel("acme/relu", version=1).variant == "torch-cpu"
    assert len(get_kernel_variants("acme/relu", version=1)) == 10_001


def test_100_000_files_are_listed(hub: TestHub) -> None:
    files = {f"build/torch-cuda/f{number}.py": b"" for number in range(100_000)}
    for name, data in kernel_files("acme/relu", "torch-cpu").items():
        files[f"build/torch-cpu/{name}"] = data
    hub.list_files("acme/relu", files)
    assert get_kernel("acme/relu", version=1).variant == "torch-cpu"


def test_a_listing_without_end_is_an_error(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.models import snapshot
    from kernels.sources import hub_api

    monkeypatch.setattr(hub_api, "MAX_FILES", 3000)
    monkeypatch.setattr(snapshot, "MAX_FILES", 3000)
    hub.list_files("acme/relu", [f"build/torch-cpu/f{number}.py" for number in range(10_000)])
    with pytest.raises(InvalidRepository, match="more than 3000 files"):
        get_kernel("acme/relu", version=1)
    assert hub.count("/tree/") == 4


def test_a_listing_that_leads_back_to_itself_is_an_error(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    link = f'<{hub.url}/api/kernels/acme/relu/tree/x>; rel="next"'
    hub.fail("/tree/", status=200, body=b'[{"type": "directory", "path": "x"}]', headers={"Link": link})
    with pytest.raises(InvalidRepository, match="leads back"):
        get_kernel("acme/relu", version=1)


def test_a_link_out_of_the_cache_that_no_listing_names_is_refused(
    hub: TestHub, new_process: Callable[[], None], tmp_path: Path
) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": {"__init__.py": "from . import extra\n"}})
    folder = install_kernel("acme/relu", version=1)
    (tmp_path / "extra.py").write_text("raise SystemExit('it ran')")
    (folder / "extra.py").symlink_to(tmp_path / "extra.py")
    new_process()
    with pytest.raises(InvalidRepository, match="outside"):
        get_kernel("acme/relu", version=1)


def test_the_hooks_of_a_backend_run_around_the_import(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels import backends

    seen: list[str] = []
    cpu = backends.get("cpu")
    monkeypatch.setattr(cpu, "before_import", lambda path, metadata: seen.append(path.name), raising=False)
    monkeypatch.setattr(cpu, "after_import", lambda module, *_: seen.append(module.repo_id), raising=False)
    hub.make_repo("acme/relu")
    get_kernel("acme/relu", version=1)
    assert seen == ["torch-cpu", "acme/relu"]


@pytest.mark.parametrize("entry", [3, None, "x", [], {"type": "file"}, {"type": "file", "path": "a", "size": "x"}])
def test_a_listing_with_an_entry_that_is_no_file_is_an_error(hub: TestHub, entry: object) -> None:
    hub.make_repo("acme/relu")
    hub.replace("/tree/", lambda body: json.dumps([*json.loads(body), entry]).encode())
    with pytest.raises(HubUnavailable, match=r"not of the expected form|without a size"):
        get_kernel("acme/relu", version=1)


@pytest.mark.parametrize(
    ("paths", "words"),
    [(["build/x", "build/x/y.py"], "both as a file and as a folder"), (["build/x/y.py"] * 2, "twice")],
)
def test_a_listing_that_no_file_system_could_hold_is_refused(hub: TestHub, paths: list[str], words: str) -> None:
    hub.make_repo("acme/relu")
    entries = [{"type": "file", "path": path, "size": 1, "oid": "0" * 40} for path in paths]
    hub.replace("/tree/", lambda body: json.dumps(entries).encode())
    with pytest.raises(InvalidRepository, match=words):
        get_kernel("acme/relu", version=1)


@pytest.mark.parametrize("link", ["<http://[x>; rel=next", "<?cursor=1>; rel=next"])
def test_a_listing_that_goes_on_nowhere_is_an_error(hub: TestHub, link: str) -> None:
    hub.make_repo("acme/relu")
    hub.fail("/tree/", status=200, body=b"[]", headers={"Link": link})
    with pytest.raises(HubUnavailable, match=r"/tree/"):
        get_kernel("acme/relu", version=1)


def test_a_repository_that_the_hub_hands_to_someone_else_is_trusted_or_refused_on_its_own(hub: TestHub) -> None:
    hub.make_repo("mallory/relu")
    moved = {"Location": f"{hub.url}/api/kernels/mallory/relu/refs"}
    hub.fail("/api/kernels/acme/relu/refs", status=307, headers=moved)
    with pytest.raises(UntrustedPublisher, match="mallory"):
        get_kernel("acme/relu", version=1)
    assert hub.count("/resolve/") == 0
    with warned("acme/relu has moved to mallory/relu"):
        module = get_kernel("acme/relu", version=1, trust_remote_code=["mallory/relu"])
    assert module.repo_id == "mallory/relu"


def test_a_redirect_within_a_repository_is_followed(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    here = {"Location": f"{hub.url}/api/kernels/acme/relu/refs?again"}
    hub.fail("/api/kernels/acme/relu/refs", times=1, status=307, headers=here)
    assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"


def test_an_answer_about_another_publisher_is_no_verdict(hub: TestHub) -> None:
    hub.make_repo("mallory/relu")
    answer = json.dumps({"name": "acme", "trustedKernelPublisher": True}).encode()
    hub.fail("organizations/mallory", status=200, body=answer)
    with pytest.raises(UntrustedPublisher):
        get_kernel("mallory/relu", version=1)


def test_what_one_hub_lists_under_a_commit_is_no_evidence_for_another(
    hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu", seed="the real one")
    commit = hub.commit("acme/relu")
    with TestHub(tmp_path / "other") as other:
        other.make_repo("acme/relu", variants={"torch-cpu": {"__init__.py": "repo_id = 'poisoned'"}})
        heads = {"branches": [{"name": "v1", "targetCommit": commit}], "tags": []}
        other.fail("/refs$", status=200, body=json.dumps(heads).encode())
        theirs = other.commit("acme/relu")
        listing = json.dumps(
            [
                {"type": "file", "path": file.path, "size": file.size, "oid": file.oid}
                for file in other.catalog.commit("acme/relu", theirs).files.values()
            ]
        )
        other.fail("/tree/", status=200, body=listing.encode())
        monkeypatch.setenv("KERNELS_HUB", other.url)
        with pytest.raises(KernelsError):
            install_kernel("acme/relu", version=1)
    monkeypatch.setenv("KERNELS_HUB", hub.url)
    assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"


def test_content_that_was_compared_for_one_hub_is_compared_anew_for_another(
    hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu", digest=True)
    path = install_kernel("acme/relu", version=1)
    with TestHub(tmp_path / "mirror") as mirror:
        mirror.make_repo("acme/relu", digest=True)
        assert mirror.commit("acme/relu") == hub.commit("acme/relu")
        monkeypatch.setenv("KERNELS_HUB", mirror.url)
        with opened_below(path) as opened:
            assert install_kernel("acme/relu", version=1) == path
    assert {"__init__.py", "layers.py"} <= set(opened)


def test_more_dependencies_than_a_tree_may_have_are_refused_at_once(hub: TestHub) -> None:
    hub.make_repo("acme/relu", depends=[(f"acme/k{number}", 1) for number in range(300)])
    with pytest.raises(ValueError, match="256"):
        get_kernel("acme/relu", version=1)
    assert len(hub.requests) < 10


def test_dependencies_are_planned_side_by_side(hub: TestHub) -> None:
    for number in range(8):
        hub.make_repo(f"acme/k{number}")
    hub.make_repo("acme/top", depends=[(f"acme/k{number}", 1) for number in range(8)])
    hub.latency = 0.25
    install_kernel("acme/top", version=1)
    assert hub.depth() <= 9, hub.asked()


def test_a_fork_in_the_middle_of_a_request_leaves_a_child_that_works(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    hub.make_repo("acme/other")
    code = """
import multiprocessing, threading, time
from kernels import has_kernel

def child(queue):
    queue.put(has_kernel("acme/relu", version=1))

if __name__ == "__main__":
    has_kernel("acme/other", version=1)  # imports all that is needed: no fork survives a lock of an import
    thread = threading.Thread(target=lambda: has_kernel("acme/relu", version=1))
    thread.start()
    time.sleep(0.7)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=60))
    process.join()
    thread.join()
"""
    hub.delay("acme/relu/refs", seconds=2.0, times=1)
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert output.stdout.strip() == "True"
