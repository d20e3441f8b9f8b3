"""Every parser takes any bytes, and documents that are nearly valid, and raises nothing but what it says it raises."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.authoring.bench.messages import decode
from kernels.authoring.compile.build_toml.reader import read_source
from kernels.authoring.python_syntax import syntax_error
from kernels.authoring.spdx import license_problem
from kernels.backends.plugins.json_schema import read_declarations
from kernels.backends.plugins.torch_expression import parse_torch_path
from kernels.errors import KernelsError, LockError, UntrustedSignature
from kernels.models.kernel_status import destination
from kernels.models.lockfile import Lock
from kernels.models.metadata import Metadata
from kernels.models.project import dependencies
from kernels.models.requirement import Requirement
from kernels.resolver.target import Target
from kernels.resolver.variant import parse_variant
from kernels.support.toml import parse_toml
from kernels.support.yaml import read_yaml
from kernels.trust.policy import Policy
from kernels.tuning.entries import read_configs

settings.register_profile(
    "security",
    derandomize=True,
    max_examples=75,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
quick = settings(settings.get_profile("security"))

ONE = "1" * 40
HASH = {"hash": "sha256-" + "1" * 64, "hash-type": "sha256sum"}

METADATA: dict[str, Any] = {
    "id": "_relu_cpu_1234567",
    "name": "relu",
    "version": 1,
    "license": "MIT",
    "python-depends": ["einops"],
    "kernel-depends": [{"repo-id": "org/a", "version": 1}, {"repo-id": "org/b", "revision": "main"}],
    "kernels-minver": "0.1.0",
    "backend": {"type": "cuda", "archs": ["9.0"]},
    "digest": {"algorithm": "sha256", "files": {"__init__.py": "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="}},
    "provenance": {"kernel-builder": {"version": "1", "sha": ONE, "dirty": True}, "kernel": {"commit": ONE}},
}
LOCK: list[Any] = [
    {"dependency": {"repo-id": "org/a", "version": 1}, "lock": {"commit": ONE}},
    {"dependency": {"repo-id": "org/b", "revision": "main"}, "lock": {"commit": ONE}},
]
OLDER: list[Any] = [
    {"repo_id": "org/a", "sha": ONE, "variants": {"torch-cpu": {"hash": HASH["hash"], "hash_type": "git_lfs_concat"}}}
]
HASHES = {"format": 1, "kernels": [{"repo-id": "org/a", "commit": ONE, "variants": {"torch-cpu": HASH}}]}
DECLARED = {
    "acme": {
        "device_string": "acme",
        "variant_token": "acme",
        "version": {"command": ["acme-smi"], "pattern": "([0-9]+)\\.([0-9]+)"},
        "archs": {"torch": "acme.get_device_name(0)"},
        "detect": {"library": "libacme.so"},
        "arch_rule": "prefix",
        "python_depends": {"triton": {"package": "triton", "module": None}},
        "experimental": False,
    },
    "other": {"device_string": "cpu", "version": "1.2", "archs": ["1.2"], "detect": {"import": "acme"}},
}
TARGET = json.loads(Target.parse("torch2.9-py3.11-cu128-x86_64-linux+2xsm_90").to_json())
MESSAGE = {"type": "Started", "key": ["a", "b", "c"]}

BUILD = """
[general]
name = "relu"
version = 1
license = "MIT"
edition = 5
backends = ["cpu", "cuda"]
python-depends = ["einops"]
[[general.kernel-depends]]
repo-id = "org/a"
version = 1
[general.cuda]
minver = "12.4"
[general.hub]
repo-id = "org/relu"
branch = 'v1'
[torch]
src = ["torch-ext/a.cpp"]
minver = "2.7"
[kernel.relu]
backend = "cuda"
depends = ["torch"]
src = [ "a.cu", "b.cu" ] # two
cuda-flags = ["-O3"]
include = ["."]
"""
PROJECT = '[tool.kernels.dependencies]\n"org/a" = 1\n"org/b" = { version = 1 }\n"org/c" = {revision = "main"}\n'
POLICY = """
require-signature = true
trusted-root = "root.json"
[repositories."org/*"]
[[repositories."org/*".signers]]
issuer = "https://issuer"
source-repository = "https://github.com/org/name"
ref = "refs/heads/main"
workflows = [".github/workflows/build.yaml"]
"""
STATUS = 'kind = "redirect"\ndestination = "org/new"\nrevision = "main"\n'
YAML = """
mm: &mm
  - META: {BLOCK: 64, ratio: 1.5, flag: yes}
    num_warps: 4
    num_stages: 0x2
other:
  <<: {a: 1}
  b: [1, 1_000, 1:30, .inf, -.nan, ~, 2001-01-01, 'text', "\\u00e9", *mm]
"""

# Values that parsers stumble over.
ODD: list[Any] = [
    None,
    True,
    -1,
    2**31,
    2**63,
    2**64,
    10**500,
    1.5,
    -0.0,
    1e308,
    "",
    "a",
    "\0",
    "\ud800",
    "\x1b[31m",
    "\u202e",
]
ODD += ["é" * 300, "a/b", "../x", "/", "9" * 400, "1.2", "inf", [], {}, [[]], {"": None}, ["a", 1], {"a": {"a": 1}}]
TEXTS = [
    "",
    "\0",
    "\n",
    "\t",
    "\r",
    "\x1b",
    "\u202e",
    "\ud800",
    "'",
    '"',
    '"""',
    "'''",
    "\\",
    "#",
    "[",
    "]",
    "{",
    "}",
    ",",
]
TEXTS += [
    "=",
    ".",
    ":",
    "- ",
    "? ",
    "&a ",
    "*a",
    "!!int ",
    "|\n",
    "%",
    "---\n",
    "<<",
    "0x",
    "9" * 50,
    "1e999",
    "nan",
    "-",
    "é",
]


def mutated(draw: st.DrawFn, value: Any) -> Any:
    """A value in which a part is another, is gone, or stands elsewhere."""
    if isinstance(value, (dict, list)) and value and draw(st.integers(0, 3)):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key, made = draw(st.sampled_from(keys)), value.copy()
        what = draw(st.sampled_from(["into", "into", "into", "gone", "more"]))
        if what == "into":
            made[key] = mutated(draw, value[key])
        elif what == "gone":
            del made[key]
        elif isinstance(made, dict):
            made[draw(st.sampled_from(["", "x", "a" * 300, "\0", "torch-cpu", *keys]))] = draw(st.sampled_from(ODD))
        else:
            made.append(draw(st.sampled_from([*made, *ODD])))
        return made
    return draw(st.sampled_from(ODD))


@st.composite
def near_json(draw: st.DrawFn, valid: Any) -> bytes:
    """JSON that is nearly a valid document."""
    for _ in range(draw(st.integers(1, 3))):
        valid = mutated(draw, valid)
    text = json.dumps(valid, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    return _cut(draw, text) if draw(st.integers(0, 4)) == 0 else text


@st.composite
def near_text(draw: st.DrawFn, valid: str) -> bytes:
    """Text that is nearly a valid document: parts of it are others, gone or doubled."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(valid)))
        end = min(len(valid), start + draw(st.integers(0, 12)))
        valid = valid[:start] + draw(st.sampled_from([*TEXTS, valid[start:end] * 2])) + valid[end:]
    return valid.encode("utf-8", "surrogatepass")


def _cut(draw: st.DrawFn, data: bytes) -> bytes:
    start = draw(st.integers(0, len(data)))
    return data[:start] + draw(st.binary(max_size=4)) + data[draw(st.integers(start, len(data))) :]


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    def write_and_read(data: bytes, folder: Path) -> object:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return write_and_read


def _text(read: Callable[[str], object]) -> Callable[[bytes, Path], object]:
    return lambda data, folder: read(data.decode("utf-8", "surrogateescape"))


def _lock_with_hashes(path: Path) -> object:
    path.with_name("kernels.lock").write_bytes(b"[]")
    return Lock.read(path.with_name("kernels.lock"))


def _toml(text: str) -> object:
    return parse_toml(text, Path("a.toml"))


def _target(text: str) -> object:
    target = Target.parse(text)
    return _used(target), Target.from_json(target.to_json())


def _used(target: Target) -> object:
    return str(target), [target.backend_version(name) for name in target.backends], target.backend_devices("cuda")


def _source(path: Path) -> object:
    for name in ("torch-ext/a.cpp", "torch-ext/relu/__init__.py", "a.cu", "b.cu"):
        (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / name).touch()
    return read_source(path.parent)


#: A strategy for what is nearly valid, and what reads it.
PARSERS: dict[str, tuple[st.SearchStrategy[bytes], Callable[[bytes, Path], object]]] = {
    "metadata": (near_json(METADATA), lambda data, folder: Metadata.from_bytes(data).to_bytes()),
    "metadata file": (near_json(METADATA), _file("metadata.json", Metadata.read_from_file)),
    "lock": (near_json(LOCK), lambda data, folder: Lock.from_bytes(data).to_bytes()),
    "older lock": (near_json(OLDER), lambda data, folder: Lock.from_bytes(data).hashes_to_bytes()),
    "hashes": (near_json(HASHES), _file("kernels.hashes.json", _lock_with_hashes)),
    "declaration": (near_json(DECLARED), _file("acme.json", read_declarations)),
    "target's JSON": (near_json(TARGET), lambda data, folder: _used(Target.from_json(data))),
    "message": (near_json(MESSAGE), lambda data, folder: decode(data)),
    "status": (near_text(STATUS), lambda data, folder: destination(data, Requirement("org/old"))),
    "TOML": (near_text(BUILD), _text(_toml)),
    "build.toml": (near_text(BUILD), _file("build.toml", _source)),
    "project": (near_text(PROJECT), _file("pyproject.toml", dependencies)),
    "policy": (near_text(POLICY), _file("policy.toml", Policy.read)),
    "YAML": (near_text(YAML), _file("a.yaml", read_yaml)),
    "tune file": (near_text(YAML), _file("a.yaml", read_configs)),
    "license": (near_text("Apache-2.0 WITH LLVM-exception OR (MIT AND LicenseRef-a)"), _text(license_problem)),
    "target": (near_text("torch2.9-cxx11-py3.11t-cu128-x86_64-linux+2xsm_90"), _text(_target)),
    "variant": (near_text("torch213-cxx11-cu130-x86_64-linux"), _text(parse_variant)),
    "noarch variant": (near_text("torch-cuda"), _text(parse_variant)),
    "repository": (near_text("kernels-community/relu_1.x"), _text(Requirement)),
    "revision": (near_text("refs/heads/a-b.c"), _text(lambda text: Requirement("org/a", revision=text))),
    "torch path": (near_text("acme.get_device_name(0, a='b').x"), _text(parse_torch_path)),
    "Python": (
        near_text("class A:\n    def f(self, a=1): return f'{a}'\n"),
        lambda data, folder: syntax_error(data, "a"),
    ),
}


def _only_errors_of_this_package(read: Callable[[bytes, Path], object], data: bytes, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read(data, folder)
        except KernelsError as error:
            str(error).encode("utf-8", "surrogateescape")
        except (ValueError, TypeError) as error:
            # What says so in its docstring: a message that is none, a path below torch that is none.
            if read not in (PARSERS["message"][1], PARSERS["torch path"][1]):
                pytest.fail(repr(error))


@pytest.mark.parametrize(
    "data", [b'["\\ud800"]', b'"\\ud800"', b'[{"dependency": {"repo-id": "\\udfff", "version": 1}}]']
)
def test_half_a_character_is_no_lock(data: bytes, tmp_path: Path) -> None:
    for read in (
        Lock.from_bytes,
        lambda data: _file("kernels.hashes.json", _lock_with_hashes)(data, tmp_path),
    ):
        with pytest.raises(LockError, match=r"is not (JSON|valid)"):
            read(data)


@pytest.mark.parametrize("name", PARSERS)
def test_what_is_nearly_valid_raises_only_errors_of_this_package(name: str, tmp_path: Path) -> None:
    strategy, read = PARSERS[name]

    @quick
    @given(strategy)
    def fuzz(data: bytes) -> None:
        _only_errors_of_this_package(read, data, tmp_path)

    fuzz()


@pytest.mark.parametrize("name", PARSERS)
def test_any_bytes_raise_only_errors_of_this_package(name: str, tmp_path: Path) -> None:
    _, read = PARSERS[name]

    @settings(quick, max_examples=50)
    @given(
        st.binary(max_size=60)
        | st.text(max_size=40).map(lambda text: text.encode())
        | st.sampled_from(TEXTS).map(lambda text: (text * 5).encode("utf-8", "surrogatepass"))
    )
    def fuzz(data: bytes) -> None:
        _only_errors_of_this_package(read, data, tmp_path)

    fuzz()


@quick
@given(
    near_json(
        {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": "MA=="},
                "tlogEntries": [{"logIndex": "1", "logId": {"keyId": "MA=="}, "kindVersion": {"kind": "a"}}],
            },
            "messageSignature": {"messageDigest": {"algorithm": "SHA2_256", "digest": "MA=="}, "signature": "MA=="},
        }
    )
)
def test_a_bundle_that_is_nearly_valid_is_refused(data: bytes) -> None:
    pytest.importorskip("sigstore")
    from kernels.trust.sigstore import verify_bundle

    [rule] = Policy.community().all_rules()
    with pytest.raises(UntrustedSignature):
        verify_bundle(b"{}", data, [rule], offline=True)
