"""`metadata.json` is parsed strictly: what is published is read whole, everything else is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernels.errors import InvalidMetadata, RequestError
from kernels.models.metadata import MAX_KERNEL_DEPENDS, MAX_METADATA_BYTES, Digest, GitState, KernelName, Metadata
from kernels.models.requirement import Requirement

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def encoded(**changes: Any) -> bytes:
    """The least that is valid, with changes; a keyword's `_` stands for the field's `-`."""
    least = {"name": "rms-norm", "id": "_rms_norm_cpu_1a2b3c4", "backend": {"type": "cpu"}}
    return json.dumps(least | {key.replace("_", "-"): value for key, value in changes.items()}).encode()


def parsed(**changes: Any) -> Metadata:
    return Metadata.from_bytes(encoded(**changes))


def test_the_least_that_is_valid_leaves_the_rest_empty() -> None:
    metadata = parsed()
    assert (metadata.name, metadata.name.python_name, metadata.backend.backend_type) == ("rms-norm", "rms_norm", "cpu")
    assert (metadata.version, metadata.kernels_minver, metadata.digest, metadata.provenance) == (None,) * 4
    assert (metadata.python_depends, metadata.kernel_depends, metadata.backend.archs) == ([], [], None)


def test_every_field_is_read_and_an_unknown_one_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "metadata.json"
    file.write_bytes(
        encoded(
            version=3,
            license="Apache-2.0",
            upstream="https://example.org/upstream",
            source="https://example.org/source",
            backend={"type": "cuda", "archs": ["8.0", "9.0+PTX"]},
            python_depends=["einops"],
            kernel_depends=[{"repo-id": "org/relu", "version": 1}, {"repo-id": "org/gelu", "revision": "main"}],
            kernels_minver="0.12.10",
            digest={"algorithm": "sha256", "files": {"__init__.py": "AAAA"}},
            provenance={
                "kernel-builder": {"sha": COMMIT, "version": "0.9"},
                "kernel": {"commit": "abc", "dirty": True},
            },
            later={"anything": 1},
        )
    )
    metadata = Metadata.read_from_file(file)
    assert (metadata.version, metadata.license) == (3, "Apache-2.0")
    assert (metadata.upstream, metadata.source) == ("https://example.org/upstream", "https://example.org/source")
    assert (metadata.backend.type, metadata.backend.archs) == ("cuda", ["8.0", "9.0+PTX"])
    assert metadata.python_depends == ["einops"]
    assert metadata.kernel_depends == [Requirement("org/relu", version=1), Requirement("org/gelu", revision="main")]
    assert str(metadata.kernels_minver) == "0.12.10"
    assert metadata.digest == Digest("sha256", {"__init__.py": "AAAA"})
    assert metadata.provenance is not None
    assert (metadata.provenance.builder, metadata.provenance.builder_version) == (GitState(COMMIT), "0.9")
    builder = metadata.provenance.kernel_builder
    assert (builder.version, builder.git) == ("0.9", GitState(COMMIT))
    assert (metadata.provenance.kernel, metadata.provenance.dirty) == (GitState("abc", dirty=True), True)


@pytest.mark.parametrize("provenance", [{}, {"kernel": {}}, {"kernel": {"dirty": True}}])
def test_provenance_without_a_commit_names_none(provenance: Any) -> None:
    found = parsed(provenance=provenance).provenance
    assert found is not None
    assert (found.kernel, found.builder, found.dirty) == (None, None, False)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "Relu"}, "`name` is 'Relu'; expected lower-case"),
        ({"name": "r" * 256}, r"length <= 255 - at `\$\.name`"),
        ({"id": "a-b"}, "`id` is 'a-b'; expected a Python identifier"),
        ({"id": "\u00e9"}, "`id` is '\u00e9'"),
        ({"id": "x" * 5000}, r"length <= 255 - at `\$\.id`"),
        ({"version": -1}, "`version` is -1; expected 0"),
        ({"version": "1"}, r"Expected `int \| null`, got `str` - at `\$\.version`"),
        ({"license": "x" * 3000}, r"length <= 2048 - at `\$\.license`"),
        ({"source": "x" * 3000}, r"at `\$\.source`"),
        ({"backend": {}}, "missing required field `type`"),
        ({"backend": {"type": "cu da"}}, "`backend.type` is 'cu da'; expected a backend's name"),
        ({"backend": {"type": "c" * 256}}, r"at `\$\.backend\.type`"),
        ({"backend": {"type": "cuda", "archs": ["9.0"] * 1001}}, r"length <= 1000 - at `\$\.backend\.archs`"),
        ({"backend": {"type": "cuda", "archs": ["9" * 256]}}, r"length <= 255 - at `\$\.backend\.archs\["),
        ({"python_depends": ["x" * 256]}, r"at `\$\.python-depends\["),
        ({"kernels_minver": "1.2"}, "`kernels-minver` is '1.2'; expected X.Y.Z"),
        ({"kernels_minver": "\u0661.\u0662.\u0663"}, "`kernels-minver` is .*; expected X.Y.Z"),
        ({"kernels_minver": "1.2.3\n"}, "`kernels-minver` is"),
        ({"kernel_depends": [{"repo-id": "org/relu"}]}, "either a version or a revision"),
        (
            {"kernel_depends": [{"repo-id": "org/relu", "version": 1, "revision": "v1"}]},
            "Either `version` \\(1\\) or `revision` \\(.v1.\\) can be given",
        ),
        (
            {"kernel_depends": [{"repo-id": "relu", "version": 1}]},
            r"`repo_id` is .relu.; expected .*`\$\.kernel-depends\[0\]`",
        ),
        ({"kernel_depends": [{"repo-id": "org/relu", "version": 1, "extra": 1}]}, "unknown field `extra`"),
        (
            {"kernel_depends": [{"repo-id": "org/relu", "version": 1}, {"repo-id": "org/relu", "version": 2}]},
            "`kernel-depends` is 'org/relu'; expected each repository once",
        ),
        (
            {"kernel_depends": [{"repo-id": f"org/k{n}", "version": 1} for n in range(MAX_KERNEL_DEPENDS + 1)]},
            r"length <= 256 - at `\$\.kernel-depends`",
        ),
        ({"digest": {"algorithm": "md5", "files": {}}}, "`digest.algorithm` is 'md5'; expected sha256 or sha512"),
        ({"digest": {"algorithm": "sha256", "files": {"x" * 5000: "AAAA"}}}, r"length <= 4096"),
    ],
)
def test_a_field_that_is_wrong_is_named_with_its_value_and_what_is_allowed(changes: Any, says: str) -> None:
    with pytest.raises(InvalidMetadata, match=says) as caught:
        parsed(**changes)
    assert len(str(caught.value)) < 500


def test_as_many_dependencies_as_a_kernel_may_have_are_read() -> None:
    depends = [{"repo-id": f"org/k{number}", "version": 1} for number in range(MAX_KERNEL_DEPENDS)]
    assert len(parsed(kernel_depends=depends).kernel_depends) == MAX_KERNEL_DEPENDS


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not valid metadata"),
        (b"[]", "not valid metadata: Expected `object`"),
        (b"\xff", "not valid metadata"),
        (b"{} {}", "not valid metadata"),
        (b'{"x": ' * 100_000, "nested too deep"),
        (b" " * (MAX_METADATA_BYTES + 1), "larger than 4 MiB"),
    ],
    ids=["empty", "list", "bytes", "two", "deep", "large"],
)
def test_bytes_that_are_no_metadata_are_refused_under_the_name_of_the_file(data: bytes, says: str) -> None:
    with pytest.raises(InvalidMetadata, match=f"^some/where .*{says}"):
        Metadata.from_bytes(data, where="some/where")


@pytest.mark.parametrize("data", [5, None, "{}", Path("metadata.json")])
def test_what_is_not_bytes_is_a_type_error_that_names_the_argument(data: Any) -> None:
    with pytest.raises(TypeError, match=r"`bytes` is .*; expected bytes\."):
        Metadata.from_bytes(data)


def test_a_file_that_cannot_be_read_is_invalid_metadata(tmp_path: Path) -> None:
    with pytest.raises(InvalidMetadata, match=r"Cannot read .*nothing"):
        Metadata.read_from_file(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["My-Kernel", "1kernel", "-kernel", "kernel-", "k", "", "rms_norm"])
def test_a_name_that_no_kernel_can_have_is_refused(name: str) -> None:
    assert not KernelName.allows(name)
    with pytest.raises(RequestError, match=f"got '{name}'"):
        KernelName(name)
