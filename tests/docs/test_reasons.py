"""The page about the choice has every text with which a build is rejected, as the resolver prints it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from doc_pages import ROOT, tables
from memory_source import Files, MemorySource, commit_of, context, kernel
from msgspec.structs import replace

import kernels
from kernels.backends import Device
from kernels.backends.plugins.arch_rules import rule_reason
from kernels.errors import NotInCache, UntrustedSignature
from kernels.models.metadata import Metadata
from kernels.models.requirement import Requirement
from kernels.models.snapshot import RepoFile, Snapshot
from kernels.resolver.build_choice import choose_build
from kernels.resolver.choice import resolve
from kernels.resolver.decision import RejectionKind, VariantRejected
from kernels.resolver.found import FoundSnapshot
from kernels.resolver.requirements import unmet_prerequisite
from kernels.resolver.target import Target
from kernels.trust.policy import Identity, Policy, Rule
from kernels.trust.sigstore import allowed

PAGE = ROOT / "docs" / "which-build.md"

CUDA = "torch2.9-cu128-x86_64-linux"
FITS = "torch29-cxx11-cu128-x86_64-linux"

#: The kind of a rejection, and its text.
Rejected = tuple[RejectionKind, str]


def metadata_from(fields: dict[str, object]) -> Metadata:
    return Metadata.from_bytes(json.dumps(fields).encode())


def by_name(target: str, build: str, backend: str | None = None, torch: tuple[str, ...] | None = None) -> Rejected:
    machine = Target.parse(target)
    if torch is not None:
        machine = replace(machine, torch_backends=torch, backends={"cpu": None, **machine.backends})
    [decision] = resolve([build], machine, backend=backend).decisions
    assert isinstance(decision, VariantRejected)
    return decision.kind, decision.reason


def by_arch(target: str, build: str, backend: str, name: str, *archs: str) -> Rejected:
    machine = Target.parse(target)
    machine = replace(machine, devices=tuple(named(device, name) for device in machine.devices))
    metadata = metadata_from({"name": "relu", "id": "_relu", "backend": {"type": backend, "archs": list(archs)}})
    [decision] = resolve([build], machine, metadata={build: metadata}).decisions
    assert isinstance(decision, VariantRejected)
    return decision.kind, decision.reason


def named(device: Device, name: str) -> Device:
    return Device(device.backend, device.index, name, device.arch, device.capability)


def of_plugin(rule: str) -> Rejected:
    reason = rule_reason(rule, ["a100", "1.4"], Device("acme", 0, arch="1.2"))  # type: ignore[arg-type]
    assert reason is not None
    return RejectionKind.ARCH, reason


class Mirror(MemorySource):
    """A mirror that lacks a build of its origin."""

    name = authority = "the mirror at https://mirror.example"

    def snapshot(self, requirement: Requirement, commit: str) -> Snapshot:
        return replace(super().snapshot(requirement, commit), absent=("torch-cpu",))


class Uncached(MemorySource):
    """A source whose metadata is not in the cache."""

    def read(self, snapshot: Snapshot, file: RepoFile, limit: int) -> bytes:
        raise NotInCache("it is not there")


class Unsigned(MemorySource):
    """A source whose signatures are not in the cache."""

    def read(self, snapshot: Snapshot, file: RepoFile, limit: int) -> bytes:
        if file.path == BUNDLE:
            raise NotInCache("it is not there")
        return super().read(snapshot, file, limit)


def unknown_version(build: str) -> Rejected:
    machine = Target.parse(CUDA)
    [decision] = resolve([build], replace(machine, backends={"cuda": None})).decisions
    assert isinstance(decision, VariantRejected)
    return decision.kind, decision.reason


def explained(
    files: Files | None = None,
    *,
    rule: Rule | None = None,
    source: type[MemorySource] = MemorySource,
    offline: bool = False,
    most: int = 256,
) -> Rejected:
    """The first rejection of a kernel whose builds are looked at one by one."""
    hub = source({"acme/top": kernel() if files is None else files}, local=() if offline else None, offline=offline)
    asked = Requirement("acme/top", version=1)
    within = context(hub, signing=None if rule is None else Policy({"acme/top": rule}))
    found = FoundSnapshot(asked, asked, hub, hub.snapshot(asked, commit_of("acme/top")))
    rejected = choose_build(within, found, every=True, most=most).resolution.rejected[0]
    return rejected.kind, rejected.reason


def metadata(**fields: object) -> Mapping[str, bytes]:
    known: dict[str, object] = {"name": "relu", "id": "_relu", "version": 1, "backend": {"type": "cpu"}}
    return {"build/torch-cpu/metadata.json": json.dumps({**known, **fields}).encode()}


def signed(*, version: int = 1, digest: bool = True, by: bool = True, bundle: bytes | None = None) -> Rejected:
    """What is said of a build with a signature, which a Sigstore of the tests' own gives."""
    pytest.importorskip("sigstore")
    from sigstore_root import SigstoreRoot

    root = SigstoreRoot()
    facts = {"digest": {"algorithm": "sha256", "files": {}}} if digest else {}
    files = metadata(version=version, **facts)
    [(path, content)] = files.items()
    bundle = (root if by else SigstoreRoot()).sign(content) if bundle is None else bundle
    return explained({**files, f"{path}.sigstore": bundle}, rule=rule(ACME, root=root.write(Path("root.json"))))


def rule(*signers: Identity, root: Path | None = None) -> Rule:
    return Rule(signers, required=True, where="policy.toml", trusted_root=root)


def refused(signer: Identity, *signers: Identity) -> Rejected:
    with pytest.raises(UntrustedSignature) as caught:
        allowed(signer, rule(*signers))
    return RejectionKind.SIGNATURE, str(caught.value)


ACME = Identity(
    "https://token.actions.githubusercontent.com",
    "https://github.com/acme/kernels",
    "https://github.com/acme/kernels/.github/workflows/build.yaml@refs/heads/main",
)
OTHER = Identity(ACME.issuer, "https://github.com/other/fork", "https://github.com/other/fork/a.yaml@refs/heads/main")
BUNDLE = "build/torch-cpu/metadata.json.sigstore"

#: A case for each text; it is made as it is made for a user.
CASES: list[Callable[[], Rejected]] = [
    lambda: by_name(CUDA, "torch-rocm"),
    lambda: by_name("torch2.9-cann82-aarch64-linux", "torch-cann"),
    lambda: by_name(CUDA, "torch29-cu128-x86_64-windows"),
    lambda: by_name(CUDA, "torch29-cxx11-cu128-aarch64-linux"),
    lambda: by_name("torch2.9-metal-aarch64-darwin15.5", "torch29-metal-aarch64-darwin"),
    lambda: by_name("torch2.9-metal-aarch64-linux", "torch29-metal-aarch64-linux"),
    lambda: by_name("torch2.9-py3.14t-cpu-x86_64-linux", "torch29-cpu-x86_64-linux"),
    lambda: by_name(CUDA, FITS, backend="cuda", torch=("cpu",)),
    lambda: by_name(CUDA, "torch28-cxx11-cu128-x86_64-linux"),
    lambda: by_name(CUDA, "torch-stable-abi210-cu128-x86_64-linux"),
    lambda: by_name(CUDA, "tvm-ffi01-cu128-x86_64-linux"),
    lambda: by_name(CUDA, "torch29-cxx98-cu128-x86_64-linux"),
    lambda: by_name(CUDA, "torch29-cxx11-cu130-x86_64-linux"),
    lambda: by_name(CUDA, "torch29-cxx11-cu129-x86_64-linux"),
    lambda: unknown_version("torch29-cxx11-cu128-x86_64-linux"),
    lambda: by_name("torch2.9-rocm6.4-x86_64-linux", "torch29-cxx11-rocm63-x86_64-linux"),
    lambda: by_name(CUDA, "my-build"),
    lambda: by_name(CUDA, "torch29-cxx11-gpu12-x86_64-linux"),
    lambda: by_name(CUDA, "torch-" + "x" * 130),
    lambda: by_arch(f"{CUDA}+sm_90", FITS, "cuda", "NVIDIA H100", "8.0"),
    lambda: by_arch("torch2.9-rocm6.4-x86_64-linux+gfx90a", "torch-rocm", "rocm", "AMD gfx90a", "gfx942"),
    lambda: of_plugin("exact"),
    lambda: of_plugin("prefix"),
    lambda: of_plugin("same-major-minor-not-newer"),
    lambda: explained(metadata(backend={"type": "cuda"})),
    lambda: explained({"build/torch-cpu/__init__.py": b""}),
    lambda: explained(metadata(license="x" * 5_000_000)),
    lambda: explained({"build/torch-cpu/metadata.json": b"{"}),
    lambda: explained({"build/torch-cpu/metadata.json": b"[" * 100}),
    lambda: explained(metadata(id="not an id")),
    lambda: explained(metadata(**{"kernel-depends": [{"repo-id": "relu", "version": 1}]})),
    lambda: explained(source=Uncached),
    lambda: explained(kernel(builds=("torch-cpu", "torch-universal")), most=1),
    lambda: explained(rule=rule(ACME)),
    lambda: explained({**metadata(), BUNDLE: b"x" * 2_000_000}, rule=rule(ACME)),
    lambda: signed(bundle=b"{}"),
    lambda: explained({**metadata(), BUNDLE: b"{}"}, rule=rule(ACME), source=Unsigned),
    lambda: refused(OTHER, ACME),
    lambda: refused(ACME),
    lambda: refused(replace(ACME, workflow=OTHER.workflow), ACME, replace(OTHER, source_repository="x")),
    lambda: signed(by=False),
    lambda: signed(digest=False),
    lambda: signed(version=2),
    lambda: explained(offline=True),
    lambda: explained({"build/torch-universal/metadata.json": b"{}"}, source=Mirror),
]


def needing(**fields: object) -> Metadata:
    return metadata_from({"name": "relu", "id": "_relu", "backend": {"type": "cpu"}, **fields})


#: Builds that fit and cannot be loaded.
NEEDS = [
    needing(**{"python-depends": ["helion"]}),
    needing(**{"python-depends": ["requests"]}),
    needing(**{"kernels-minver": "99.0.0"}),
]

#: Where the texts are made: a file, and functions of it. What they return, raise or say of a build is a reason.
MADE_BY = {
    "resolver/name_checks.py": r"_.*_check|_same",
    "resolver/choice.py": r"rejection",
    "resolver/variant.py": r"parse_variant",
    "resolver/metadata_of.py": r"read_metadata|check_signed_version",
    "resolver/requirements.py": r"unmet_prerequisite",
    "resolver/signature_check.py": r"read_signed|read_bundle",
    "resolver/build_choice.py": r"_choose_listed|_too_many|read",
    "models/metadata.py": r"from_bytes|_check|require",
    "trust/sigstore.py": r"parse_bundle|check_signature|allowed|check_size",
    "backends/base.py": r"(version|platform|arch)_reason",
    "backends/builtin/*.py": r"(version|platform|arch)_reason",
    "backends/plugins/arch_rules.py": r"rule_reason",
}

#: What is raised, or kept in the place of a build's metadata, for a reason.
ERRORS = {"InvalidMetadata", "InvalidRepository", "InvalidVariant", "MissingMetadata", "NotInCache", "NotInMirror"}
ERRORS |= {"UntrustedSignature"}
ERRORS |= {"IncompatibleClient", "MissingPythonDependency", "UnsupportedPythonDependency"}


def texts() -> Iterator[str]:
    """The texts in the code, as regular expressions that match what is printed."""
    source = Path(kernels.__file__).parent
    for pattern, functions in MADE_BY.items():
        for file in source.glob(pattern):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef) and re.fullmatch(functions, node.name):
                    for inner in node.body:
                        yield from (_pattern(text) for text in _texts(inner))


def _texts(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.FunctionDef):
        return  # it is looked at on its own
    if isinstance(node, ast.Return) and node.value is not None:
        value = node.value.elts[0] if isinstance(node.value, ast.Tuple) else node.value  # with its remedy
        branches = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
        yield from (each for each in branches if _is_text(each))
    if isinstance(node, ast.Assign) and [each.id for each in node.targets if isinstance(each, ast.Name)] == ["why"]:
        yield from [node.value] if _is_text(node.value) else []
    if isinstance(node, ast.Call):
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        yield from (each for each in node.args[:1] if called in ERRORS and _is_text(each))
    for child in ast.iter_child_nodes(node):
        yield from _texts(child)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _pattern(node: ast.expr) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(re.escape(each.value) if isinstance(each, ast.Constant) else "(.*)" for each in parts)


#: The reasons on the page; `…` stands for any text.
SHOWN = [row[0].strip("`") for rows in tables(PAGE) for row in rows if len(row) == 3 and row[0].startswith("`")]


def test_every_reason_on_the_page_is_one_that_is_printed_and_every_case_is_on_the_page(
    isolated_env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = [case() for case in CASES]
    printed = [text for _, text in made] + [str(unmet_prerequisite(each)) for each in NEEDS]
    patterns = {text: re.compile(re.escape(text).replace("…", ".*"), re.DOTALL) for text in SHOWN}
    assert [text for text, pattern in patterns.items() if not any(map(pattern.fullmatch, printed))] == []
    assert [each for each in printed if not any(pattern.fullmatch(each) for pattern in patterns.values())] == []
    assert {kind for kind, _ in made} == set(RejectionKind)


def test_every_reason_in_the_code_is_on_the_page() -> None:
    found = list(texts())
    assert len(found) > 30
    assert [each for each in found if not any(re.fullmatch(each, text) for text in SHOWN)] == []
