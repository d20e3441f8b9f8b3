"""The names, rules and examples of the page of variants are those of the resolver."""

from __future__ import annotations

import re

import pytest
from doc_pages import ROOT, names, table

from kernels import backends
from kernels.backends import Device
from kernels.errors import InvalidVariant
from kernels.resolver.choice import resolve
from kernels.resolver.decision import RejectionKind
from kernels.resolver.target import Target
from kernels.resolver.variant import parse_variant

PAGE = "variants.md"
TEXT = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")


def test_every_name_on_the_page_is_a_variants_name() -> None:
    kinds = {names(row[1])[0] for row in table(PAGE, "`torch-<backend>`")}
    # Neither a form nor a machine: these have other characters.
    shown = set(re.findall(r"`((?:torch|tvm-ffi)[0-9]*-[a-z0-9_-]+)`", TEXT)) - kinds
    assert len(shown) > 20
    assert {parse_variant(name).name for name in shown} == shown
    assert kinds == {parse_variant(name).kind for name in shown}


def test_a_name_of_another_spelling_is_not_a_variants() -> None:
    for name in ("Torch-cuda", "torch2013-cu130-x86_64-linux", "torch213-cxx11-cu130-x86_64-linux".ljust(129, "x")):
        with pytest.raises(InvalidVariant):
            parse_variant(name)


def test_the_names_of_backends_are_those_of_the_registry() -> None:
    rows = table(PAGE, "`cuda`")
    assert [row[:3] for row in rows] == [
        [f"`{each.name}`", f"`torch-{each.noarch_name}`", f"`{each.token}{'<version>' if each.versioned else ''}`"]
        for each in backends.all_backends()
    ]
    assert [parse_variant(names(row[3])[0]).backend for row in rows] == [names(row[0])[0] for row in rows]


def test_the_checks_are_made_in_the_order_of_the_page() -> None:
    assert [names(row[0])[0] for row in table(PAGE, "`backend`")] == [kind.value for kind in RejectionKind]


def test_the_order_of_preference_is_the_resolvers() -> None:
    [machine] = re.findall(r"All of these fit the machine `([^`]+)`", TEXT)
    shown = [names(row[0])[0] for row in table(PAGE, "`torch-stable-abi212-cu130-x86_64-linux`")]
    assert [each.name for each in resolve(sorted(shown), Target.parse(machine)).accepted] == shown
    both = ["torch29-cu126-x86_64-linux", "torch29-cu128-x86_64-linux"]
    best = resolve(both, Target.parse("torch2.9-cu128-x86_64-linux"), check_arch=False).best
    assert best is not None
    assert best.name == both[1]


@pytest.mark.parametrize(
    ("listed", "covered", "missed"),
    [(row[0], names(row[2]), names(row[3])) for row in table(PAGE, "CUDA `8.0`")],
)
def test_an_architecture_covers_the_devices_on_the_page(listed: str, covered: list[str], missed: list[str]) -> None:
    backend = backends.get(listed.partition(" ")[0].lower())
    for arch in names(listed):
        fits = {
            each for each in covered + missed if backend.arch_reason([arch], Device(backend.name, 0, arch=each)) is None
        }
        assert fits == set(covered)
