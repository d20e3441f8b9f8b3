"""A mirror that is read back: whatever is wrong with it is found and named."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from mirror_tree import MirrorTree

from kernels.errors import InvalidRepository, RequestError, UntrustedSignature
from kernels.mirror.signing import MirrorSigner
from kernels.mirror.stores.folder import FolderStore
from kernels.models.mirror import RepositoryIndex, archive_path, commit_path, index_path
from kernels.models.mirror_document import MirrorDocument
from kernels.operations.mirroring.verify import MirrorReport, verify_mirror

pytestmark = pytest.mark.skipif(find_spec("zstandard") is None, reason="zstandard is not installed")

KEY = "ed25519:" + "A" * 43 + "="


@pytest.fixture
def tree(tmp_path: Path) -> MirrorTree:
    """A mirror of two repositories, one with an older commit and a build that both of its commits have."""
    tree = MirrorTree(tmp_path / "mirror")
    tree.add("acme/relu", version=1, variants=["torch-cpu", "torch-cuda"], digest=True)
    tree.add("acme/relu", version=1, variants=["torch-cpu"], files={"README.md": b"# relu"}, digest=True)
    tree.add("acme/gelu", version=2, large=["__init__.py"])
    # Archives that the first commit alone has are still named: it is one of the older ones.
    return tree


def verify(tree: MirrorTree, *repositories: str) -> MirrorReport:
    store = FolderStore(tree.root)
    return verify_mirror(store, repositories, writable=store)


def test_a_mirror_is_as_it_was_written(tree: MirrorTree) -> None:
    report = verify(tree)
    assert report.problems == ()
    assert (report.repositories, report.commits, report.archives, report.unnamed) == (2, 3, 3, ())
    assert report.size == sum(path.stat().st_size for path in (tree.root / "archives").rglob("*.zst"))
    assert (report.signers, report.signatures, report.unchecked) == ((), 0, "")
    assert verify(tree, "acme/relu").commits == 2


def archives(tree: MirrorTree, repo_id: str) -> list[Path]:
    names = {build.archive.name for build in tree.indexes[repo_id].builds.values()}
    return [tree.root / name for name in sorted(names)]


def rewrite(tree: MirrorTree, change: Callable[[RepositoryIndex], RepositoryIndex]) -> None:
    """Replace the index of acme/relu alone."""
    document = MirrorDocument.of(change(tree.indexes["acme/relu"]))
    (tree.root / index_path("acme/relu")).write_bytes(document.to_bytes())


def break_archive(tree: MirrorTree) -> None:
    path = archives(tree, "acme/relu")[0]
    path.write_bytes(path.read_bytes()[:-9] + b"\0" * 9)


def cut_archive(tree: MirrorTree) -> None:
    path = archives(tree, "acme/relu")[0]
    path.write_bytes(path.read_bytes()[:-9])


def remove_archive(tree: MirrorTree) -> None:
    archives(tree, "acme/relu")[0].unlink()


def another_archive(tree: MirrorTree) -> None:
    """The archive of another repository, with its right name, size and hash."""
    other = next(iter(tree.indexes["acme/gelu"].builds.values())).archive

    def change(index: RepositoryIndex) -> RepositoryIndex:
        builds = {key: msgspec.structs.replace(each, archive=other) for key, each in index.builds.items()}
        return msgspec.structs.replace(index, builds=builds)

    rewrite(tree, change)


def another_hash(tree: MirrorTree) -> None:
    rewrite(
        tree,
        lambda index: msgspec.structs.replace(
            index,
            builds={f"sha256-{'0' * 64}": build for build in index.builds.values()},
            commits={
                commit: msgspec.structs.replace(entry, variants=dict.fromkeys(entry.variants, f"sha256-{'0' * 64}"))
                for commit, entry in index.commits.items()
            },
        ),
    )


def lost_commit(tree: MirrorTree) -> None:
    (tree.root / commit_path("acme/relu", tree.indexes["acme/relu"].older[0])).unlink()


def swapped_commit(tree: MirrorTree) -> None:
    index = tree.indexes["acme/relu"]
    head = tree.root / commit_path("acme/relu", index.branches["v1"])
    (tree.root / commit_path("acme/relu", index.older[0])).write_bytes(head.read_bytes())


def newer_index(tree: MirrorTree) -> None:
    rewrite(tree, lambda index: msgspec.structs.replace(index, number=9))


def cut_index(tree: MirrorTree) -> None:
    path = tree.root / index_path("acme/relu")
    path.write_bytes(path.read_bytes()[:-20])


def other_publisher(tree: MirrorTree) -> None:
    rewrite(
        tree,
        lambda index: msgspec.structs.replace(index, publisher=msgspec.structs.replace(index.publisher, name="evil")),
    )


def lost_head(tree: MirrorTree) -> None:
    rewrite(tree, lambda index: msgspec.structs.replace(index, branches={**index.branches, "v3": "9" * 40}))


def unlisted_repository(tree: MirrorTree) -> None:
    del tree.indexes["acme/relu"]
    tree.add("acme/gelu", version=2, large=["__init__.py"])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (break_archive, "is not the file that its index lists"),
        (cut_archive, "expected"),
        (remove_archive, "it is missing; named by api/kernels/acme/relu/"),
        (another_archive, "has the archive of another build|not the"),
        (another_hash, "is not the hash of the files of that build"),
        (lost_commit, "it is missing"),
        (swapped_commit, "it is the document of commit"),
        (newer_index, "it lists number 2 of acme/relu, and its index has number 9"),
        (cut_index, "is not a valid document of a mirror"),
        (other_publisher, "its publisher is 'evil'"),
        (lost_head, "'v3' is at commit 9999999999999999999999999999999999999999, which it does not list"),
        (unlisted_repository, "it does not list acme/relu, which has an index"),
    ],
)
def test_what_is_wrong_is_named(tree: MirrorTree, damage: Callable[[MirrorTree], None], says: str) -> None:
    import re

    damage(tree)
    report = verify(tree)
    text = "\n".join(f"{each.path}: {each.problem}" for each in report.problems)
    assert re.search(says, text), text
    assert not any(path.is_file() for path in tree.root.rglob("*.tmp"))


def test_only_the_repository_that_is_named_is_read(tree: MirrorTree) -> None:
    break_archive(tree)
    assert verify(tree, "acme/gelu").problems == ()
    with pytest.raises(RequestError, match=r"does not have acme/rel\. Did you mean 'acme/relu'"):
        verify(tree, "acme/rel")


def test_a_digest_that_is_wrong_is_found(tmp_path: Path) -> None:
    from hub import kernel_files

    tree = MirrorTree(tmp_path)
    content = kernel_files("acme/relu", "torch-cpu", version=1, digest=True)
    changed = {**content, "__init__.py": b"raise SystemExit\n"}
    tree.add("acme/relu", variants={"torch-cpu": changed})
    report = verify(tree)
    assert [each.problem for each in report.problems] == [
        f"'__init__.py' is not the file of the digest in metadata.json; named by {index_path('acme/relu')} and "
        f"{commit_path('acme/relu', tree.indexes['acme/relu'].branches['v1'])}"
    ]


def test_entries_that_nothing_names_are_listed(tree: MirrorTree) -> None:
    archive, document = archive_path("0" * 64), commit_path("acme/relu", "9" * 40)
    for path in (archive, document, "index.html"):
        (tree.root / path).parent.mkdir(parents=True, exist_ok=True)
        (tree.root / path).write_bytes(b"x")
    report = verify(tree)
    assert report.problems == ()
    assert report.unnamed == (document, archive)
    assert verify(tree, "acme/gelu").unnamed == ()
    assert verify_mirror(FolderStore(tree.root)).unnamed is None


def test_without_a_mirror_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"is not a mirror: it has no mirror\.json"):
        verify_mirror(FolderStore(tmp_path))
    (tmp_path / "mirror.json").write_text("{}")
    with pytest.raises(InvalidRepository, match="not a valid document of a mirror"):
        verify_mirror(FolderStore(tmp_path))


@pytest.mark.skipif(find_spec("cryptography") is None, reason="cryptography is not installed")
def test_every_document_must_be_signed_if_keys_are_named(tree: MirrorTree, monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    path = tree.root.parent / "key.pem"
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    signer = MirrorSigner(path)
    documents = [tree.root / "mirror.json", *(p for p in (tree.root / "api").rglob("*") if p.is_file())]
    for each in documents:
        each.write_bytes(signer.sign(MirrorDocument.parse(each.read_bytes(), "here")).to_bytes())
    monkeypatch.setenv("KERNELS_MIRROR_KEYS", signer.name)
    report = verify(tree)
    assert (report.problems, report.signers) == ((), (signer.name,))
    for each in documents[1:]:
        signed = each.read_bytes()
        each.write_bytes(MirrorDocument(MirrorDocument.parse(signed, "here").content).to_bytes())
        problems = verify(tree).problems
        assert [problem.path for problem in problems][:1] == [each.relative_to(tree.root).as_posix()]
        assert "it has no signature" in problems[0].problem
        each.write_bytes(signed)
    monkeypatch.setenv("KERNELS_MIRROR_KEYS", KEY)
    with pytest.raises(UntrustedSignature, match="it is signed with another key"):
        verify(tree)


@pytest.mark.skipif(find_spec("sigstore") is None, reason="sigstore is not installed")
def test_signatures_of_builds_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hub import kernel_files
    from sigstore_root import OTHERS, SigstoreRoot

    root = SigstoreRoot()
    root.write(tmp_path / "root.json")
    (tmp_path / "policy.toml").write_text(
        'require-signature = true\ntrusted-root = "root.json"\n[[repositories."acme/*".signers]]\n'
        'issuer = "https://token.actions.githubusercontent.com"\nref = "refs/heads/main"\n'
        'source-repository = "https://github.com/acme/kernels"\nworkflows = [".github/workflows/build.yaml"]\n'
    )
    monkeypatch.setenv("KERNELS_POLICY", str(tmp_path / "policy.toml"))
    tree = MirrorTree(tmp_path / "mirror")
    content = kernel_files("acme/relu", "torch-cpu", version=1, digest=True)
    good = {**content, "metadata.json.sigstore": root.sign(content["metadata.json"])}
    bad = {**good, "metadata.json.sigstore": root.sign(content["metadata.json"], OTHERS["another branch"])}
    tree.add("acme/relu", version=1, variants={"torch-cpu": good})
    assert (verify(tree).problems, verify(tree).signatures) == ((), 1)
    tree.add("acme/relu", version=2, variants={"torch-cpu": good})
    tree.add("acme/bad", variants={"torch-cpu": bad})
    tree.add("acme/none", variants={"torch-cpu": content})
    found = verify(tree).problems
    assert len(found) == 3  # each build once, though the index and the document of its commit both name it
    problems = {each.path.split("/")[3]: each.problem for each in found}
    assert "the signed metadata is version 1; expected version 2" in problems["relu"]
    assert "it is signed with the workflow https://github.com/acme" in problems["bad"]
    assert "it has no signature, and" in problems["none"]
