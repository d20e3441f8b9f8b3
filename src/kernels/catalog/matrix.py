"""The builds of a version as a matrix: backends and their versions down, Torch versions across."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels import backends
from kernels.catalog.rules import backend_label
from kernels.catalog.shown import ShownBuild
from kernels.resolver.variant import UNIVERSAL, Variant
from kernels.support.version import MajorMinor

__all__ = ["BuildMatrix", "MatrixCell", "MatrixRow", "build_matrix"]

#: The widest matrix; a repository with more columns has its builds in the list alone.
_MAX_COLUMNS = 40

_SYSTEMS = {"linux": "Linux", "darwin": "macOS", "windows": "Windows"}
_KINDS = {"torch": 0, "torch-stable-abi": 1, "tvm-ffi": 2, "torch-noarch": 3}

_Column = tuple[int, MajorMinor]


@dataclass(frozen=True)
class MatrixCell:
    """A build in the matrix: its number in the version's list, and the system it is for."""

    number: int
    label: str


@dataclass(frozen=True)
class MatrixRow:
    """A backend at one version: its label, whether another backend's rows end above it, and its cells by column."""

    label: str
    first: bool
    cells: tuple[tuple[MatrixCell, ...], ...]


@dataclass(frozen=True)
class BuildMatrix:
    """The labels of the columns, as two lines, and the rows."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[MatrixRow, ...]


def build_matrix(builds: Sequence[ShownBuild]) -> BuildMatrix | None:
    """The matrix of builds; None if there is nothing to arrange, or too much.

    Args:
        builds: The builds of a version.

    Example:
        >>> build = ShownBuild.of("torch29-cxx11-cu128-x86_64-linux", size=1, files=1, metadata=None, signature=None)
        >>> matrix = build_matrix([build])
        >>> matrix.columns, matrix.rows[0].label, matrix.rows[0].cells[0][0].label
        ((('Torch', '2.9'),), 'CUDA 12.8', 'Linux x86_64')
    """
    known = [(number, each.variant) for number, each in enumerate(builds) if each.variant is not None]
    columns = sorted({_column(variant) for _, variant in known}, key=_column_order)
    if not columns or len(columns) > _MAX_COLUMNS:
        return None
    with_abi = {variant.abi for _, variant in known} >= {"cxx11", "cxx98"}
    cells: dict[tuple[int, str, MajorMinor, str], dict[_Column, list[MatrixCell]]] = {}
    for number, variant in known:
        row = cells.setdefault(_row(variant), {})
        row.setdefault(_column(variant), []).append(MatrixCell(number, _system(variant, with_abi=with_abi)))
    rows: list[MatrixRow] = []
    before = ""
    for key in sorted(cells, key=lambda key: (key[0], key[1], (-key[2].major, -key[2].minor), key[3])):
        across = (tuple(sorted(cells[key].get(column, ()), key=_label)) for column in columns)
        rows.append(MatrixRow(key[3], key[1] != before and bool(rows), tuple(across)))
        before = key[1]
    return BuildMatrix(tuple(map(_heading, columns)), tuple(rows))


def _label(cell: MatrixCell) -> str:
    return cell.label


def _column(variant: Variant) -> _Column:
    return _KINDS[variant.kind], variant.framework_version or MajorMinor(0, 0)


def _column_order(column: _Column) -> tuple[int, int, int]:
    kind, version = column
    return kind, -version.major, -version.minor


def _heading(column: _Column) -> tuple[str, str]:
    kind, version = column
    return [("Torch", f"{version}"), ("Stable ABI", f"{version}+"), ("tvm-ffi", f"{version}"), ("Any", "Torch")][kind]


def _row(variant: Variant) -> tuple[int, str, MajorMinor, str]:
    backend = backends.known(variant.backend)
    order = 10**6 if backend is None else backend.order
    version = variant.accelerator_version
    label = backend_label(variant.backend) + (f" {version}" if version is not None else "")
    return order + (variant.backend == UNIVERSAL), variant.backend, version or MajorMinor(0, 0), label


def _system(variant: Variant, *, with_abi: bool) -> str:
    if variant.os is None:
        return "Any system"
    abi = f" {variant.abi}" if with_abi and variant.abi else ""
    return f"{_SYSTEMS.get(variant.os, variant.os)} {variant.cpu}{abi}"
