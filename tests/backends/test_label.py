"""A built-in backend is known by the label in its file, which says what the class says."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels import backends
from kernels.backends import Backend, BackendProbe, Found, MajorMinor, builtin
from kernels.backends.deferred import DeferredBackend
from kernels.backends.interface_check import validated
from kernels.backends.label import Label, Names, parsed_accelerator, read_label
from kernels.backends.registration import BackendEntry, Origin
from kernels.backends.traces import KINDS

FAMILIES = {family.label.names.name: family for family in builtin.families()}
#: What is told from a label alone, by the rule that a class must not change then.
USUAL = ("parse_accelerator", "format_accelerator", "device_names")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_built_in_backend_is_what_its_label_says(name: str) -> None:
    label, backend = FAMILIES[name].label, FAMILIES[name].get()
    assert Names.of(backend) == label.names
    assert backend is validated(backend)
    assert builtin.is_built_in(backend)
    assert set(label.traces or {}) <= KINDS
    for rule in USUAL:
        assert rule not in {member for kind in type(backend).__mro__[:-2] for member in vars(kind)}


def test_every_file_of_a_backend_has_a_label() -> None:
    folder = Path(builtin.__file__).parent
    with_class = {path.stem for path in folder.glob("*.py") if "(Backend" in path.read_text(encoding="utf-8")}
    assert with_class == set(FAMILIES) == {entry.name for entry in backends.entries()}


def test_no_two_built_in_backends_mean_the_same() -> None:
    from kernels.backends.conflicts import check_clashes

    every = [BackendEntry(family, Origin("built-in")) for family in FAMILIES.values()]
    for entry in every:
        check_clashes(entry, [other for other in every if other is not entry])


def test_a_label_is_read_from_the_text_of_a_file_that_is_not_run(tmp_path: Path) -> None:
    file = tmp_path / "acme.py"
    text = 'raise SystemExit\n\nLABEL = {\n    "name": "acme",\n    "device_type": "a}b",\n}\n\nrest = {\n}\n'
    for ending in ("\n", "\r\n"):
        file.write_bytes(text.replace("\n", ending).encode())
        assert read_label(file) == Label(Names("acme", "acme", "acme", "a}b", "acme"))
    file.write_text("label = 1\n")
    assert read_label(file) is None
    file.write_text('LABEL = {}\n\nLABEL = {\n    "name": __import__("os").getcwd(),\n}\n')
    with pytest.raises(ValueError, match="malformed"):
        read_label(file)


def test_a_class_with_other_names_than_its_label_is_refused() -> None:
    class Acme(Backend):
        name = device_type = "acme"

        def probe(self) -> BackendProbe:
            return BackendProbe()

    with pytest.raises(ValueError, match="label of backend 'other' differs from Acme"):
        DeferredBackend(Label.from_literals({"name": "other", "device_type": "acme"}), Acme).get()
    deferred = DeferredBackend(Label.from_literals({"name": "acme", "device_type": "acme"}), Acme)
    assert deferred.loaded is None
    assert deferred.get() is deferred.get() is deferred.loaded


@pytest.mark.parametrize(
    ("text", "version"),
    [("cu128", (12, 8)), ("cu01", (0, 1)), ("cu1234567", None), ("cu123456", (12345, 6))]
    + [(text, None) for text in ("cu", "cu1", "cu012", "cu12.8", "cu1２", "c128", "ccu128", "cuda128")],
)
def test_an_accelerator_is_read_by_a_token_and_digits(text: str, version: tuple[int, int] | None) -> None:
    names = FAMILIES["cuda"].label.names
    expected = None if version is None else Found(MajorMinor(*version))
    assert parsed_accelerator(names, text) == expected == FAMILIES["cuda"].get().parse_accelerator(text)
