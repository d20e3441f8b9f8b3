"""What a page is told about backends, the targets it offers, and the matrix of builds."""

from __future__ import annotations

import base64
import datetime
import json

import pytest

from kernels.catalog.matrix import build_matrix
from kernels.catalog.rules import backend_rules, common_targets
from kernels.catalog.shown import ShownBuild, in_order, newest_first
from kernels.catalog.signer import read_signer
from kernels.resolver.target import Target


def build(name: str, *archs: str, backend: str = "cuda") -> ShownBuild:
    metadata = {"name": "relu", "id": "_relu", "backend": {"type": backend, "archs": list(archs) or None}}
    return ShownBuild.of(name, size=1, files=1, metadata=json.dumps(metadata), signature=None)


def test_the_rules_are_those_of_the_backends() -> None:
    rules = backend_rules()
    assert {name: rule["version"] for name, rule in rules.items() if rule["version"] != "equal"} == {"cuda": "minor"}
    archs = {name: rule["arch"] for name, rule in rules.items() if rule["arch"] != "none"}
    assert archs == {"cuda": "capability", "rocm": "equal"}
    assert {name: rule["macos"] for name, rule in rules.items() if rule["macos"]} == {"metal": 26}


def test_targets_are_offered_for_the_systems_that_builds_are_for() -> None:
    builds = [
        build("torch29-cxx11-cu126-x86_64-linux"),
        build("torch210-cxx11-cu128-x86_64-linux", "8.0", "9.0a", "10.0+PTX"),
        build("torch210-metal-aarch64-darwin", backend="metal"),
        build("torch210-cxx11-rocm70-x86_64-linux", "gfx942", backend="rocm"),
        build("not a variant"),
    ]
    offered = dict(common_targets(builds))
    assert offered["CUDA 12.8, Torch 2.10, Linux x86_64, sm_90a"] == "torch2.10-cu128-x86_64-linux+sm_90a"
    assert offered["CUDA 12.8, Torch 2.10, Linux x86_64, sm_100"] == "torch2.10-cu128-x86_64-linux+sm_100"
    assert offered["Metal, Torch 2.10, macOS aarch64"] == "torch2.10-metal-aarch64-darwin26"
    assert offered["ROCm 7.0, Torch 2.10, Linux x86_64, gfx942"] == "torch2.10-rocm70-x86_64-linux+gfx942"
    assert all(Target.parse(text) for text in offered.values())


def test_a_kernel_of_noarch_builds_alone_is_offered_its_backends() -> None:
    assert common_targets([build("torch-cuda")]) == [("CUDA, Linux x86_64", "cu-x86_64-linux")]


def test_few_targets_are_offered_of_many_builds() -> None:
    archs = [f"{number}.0" for number in range(1, 90)]
    many = [build(f"torch2{n}-cxx11-cu128-p{c}-linux", *archs) for n in range(9) for c in range(40)]
    assert len(common_targets(many)) == 40


def test_the_matrix_has_backends_down_and_frameworks_across() -> None:
    names = [
        "torch29-cxx11-cu126-x86_64-linux",
        "torch29-cxx11-cu126-aarch64-linux",
        "torch210-cxx11-cu128-x86_64-linux",
        "torch-stable-abi29-cu128-x86_64-linux",
        "torch-cuda",
        "torch-universal",
        "nonsense",
    ]
    matrix = build_matrix([build(name) for name in names])
    assert matrix is not None
    assert matrix.columns == (("Torch", "2.10"), ("Torch", "2.9"), ("Stable ABI", "2.9+"), ("Any", "Torch"))
    assert [row.label for row in matrix.rows] == ["CUDA 12.8", "CUDA 12.6", "CUDA", "Any backend"]
    assert [cell.label for cell in matrix.rows[1].cells[1]] == ["Linux aarch64", "Linux x86_64"]


def test_the_abi_is_named_only_where_both_are_there() -> None:
    both = build_matrix([build(f"torch29-{abi}-cu126-x86_64-linux") for abi in ("cxx11", "cxx98")])
    assert both is not None
    assert [cell.label for cell in both.rows[0].cells[0]] == ["Linux x86_64 cxx11", "Linux x86_64 cxx98"]


def test_too_many_columns_are_no_matrix() -> None:
    assert build_matrix([build(f"torch9{number}-cu128-x86_64-linux") for number in range(100)]) is None


def test_builds_and_branches_stand_newest_first() -> None:
    names = ["x", "torch-cpu", "torch29-cu126-x86_64-linux", "torch-cuda", "torch210-cu128-x86_64-linux"]
    ordered = [each.name for each in in_order(map(build, names))]
    assert ordered == ["torch210-cu128-x86_64-linux", "torch29-cu126-x86_64-linux", "torch-cuda", "torch-cpu", "x"]
    assert newest_first(["b", "v1", "main", "v12", "v01"]) == ["v12", "v1", "main", "b", "v01"]


def test_the_signer_is_the_workflow_in_the_certificate() -> None:
    x509 = pytest.importorskip("cryptography.x509")
    asn1 = pytest.importorskip("cryptography.hazmat.asn1")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([])
    day = datetime.datetime(2026, 1, 1)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, day, day + datetime.timedelta(days=1))
    workflow = "https://github.com/acme/relu/.github/workflows/build.yaml@refs/heads/main"
    for number, value in ((8, "https://issuer"), (12, "https://github.com/acme/relu"), (9, workflow)):
        oid = x509.ObjectIdentifier(f"1.3.6.1.4.1.57264.1.{number}")
        made = made.add_extension(x509.UnrecognizedExtension(oid, asn1.encode_der(value)), critical=False)
    der = made.sign(key, None).public_bytes(serialization.Encoding.DER)
    bundle = {"verificationMaterial": {"certificate": {"rawBytes": base64.b64encode(der).decode()}}}
    assert read_signer(json.dumps(bundle)) == workflow


UNREADABLE = [
    "",
    "[]",
    '{"verificationMaterial":{}}',
    '{"verificationMaterial":{"certificate":{"rawBytes":"AAAA"}}}',
    "[" * 9999,
]


@pytest.mark.parametrize("bundle", UNREADABLE)
def test_a_signer_that_cannot_be_read_is_not_named(bundle: str) -> None:
    assert read_signer(bundle) == ""
