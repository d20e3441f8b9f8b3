"""A build's metadata is written as it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.authoring.compile import read_source
from kernels.authoring.compile.metadata import build_metadata
from kernels.errors import InvalidMetadata
from kernels.models.metadata import Digest, Metadata


def test_each_backends_metadata_has_its_own_architectures_and_no_others(write_source: Callable[..., Path]) -> None:
    source = read_source(write_source("noarch"))
    archs = {each: build_metadata(source, "_id", each).backend.archs for each in source.backends}
    assert archs == {"cpu": None, "cuda": ["8.0", "9.0+PTX"], "cann": None}


def test_metadata_is_written_as_it_is_read(write_source: Callable[..., Path]) -> None:
    source = read_source(write_source("noarch"))
    provenance = {
        "kernel-builder": {"version": "1.0", "commit": "a" * 40, "dirty": False},
        "kernel": {"commit": "b" * 40, "dirty": True},
    }
    digest = Digest("sha256", {"__init__.py": "AAAA"})
    metadata = build_metadata(source, "_id", "cuda", archs=("9.0",), digest=digest, provenance=provenance)
    assert Metadata.from_bytes(metadata.to_bytes()) == metadata
    assert metadata.backend.archs == ["9.0"]
    assert [str(each) for each in metadata.kernel_depends] == ["org/other version 1"]
    assert metadata.provenance is not None
    assert metadata.provenance.dirty


def test_metadata_that_a_reader_would_refuse_is_not_made(write_source: Callable[..., Path]) -> None:
    source = read_source(write_source("noarch"))
    with pytest.raises(InvalidMetadata, match="`id` is 'no id'; expected a Python identifier"):
        build_metadata(source, "no id", "cpu")
    with pytest.raises(InvalidMetadata, match=r"is not valid metadata: .*provenance"):
        build_metadata(source, "_id", "cpu", provenance={"kernel": 1})
