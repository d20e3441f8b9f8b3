"""`kernels mirror`: what it prints, where it exits, and what it takes from where."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub

from kernels.models.mirror import index_path
from kernels.models.mirror_document import MirrorDocument

HOPPER = "torch2.9-cu128-x86_64-linux+sm_90"


@pytest.fixture
def relu(hub: TestHub) -> TestHub:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"])
    return hub


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.split("\n\n")[0].splitlines()[1:]]


def test_the_table_has_a_row_for_each_commit_and_a_second_run_does_nothing(
    kernels: Callable[..., Any], relu: TestHub, tmp_path: Path
) -> None:
    place = tmp_path / "mirror"
    done = kernels("mirror", place, "--repo", "acme/relu")
    assert (done.exit_code, done.stderr) == (0, "")
    assert [row[:5] for row in rows(done.stdout)] == [["acme/relu", "v1", relu.commit()[:12], "2", "2"]]
    assert done.stdout.splitlines()[-1].startswith(f"{place}: 1 commit changed, 2 new builds, ")
    again = kernels("mirror", place, "--repo", "acme/relu")
    assert again.stdout.splitlines()[-1] == f"Nothing to do: 2 builds in {place}."


def test_the_first_run_with_a_key_says_that_it_changed_what_it_signed(
    kernels: Callable[..., Any], relu: TestHub, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    place, key = tmp_path / "mirror", tmp_path / "key.pem"
    key.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    kernels("mirror", place, "--repo", "acme/relu")
    lines = [kernels("mirror", place, "--repo", "acme/relu", "--sign-key", key).stdout.splitlines() for _ in range(2)]
    assert lines[0][-1].startswith(f"{place}: 1 commit changed, 0 new builds, ")
    assert lines[1][-1] == f"Nothing to do: 2 builds in {place}."


def test_json_has_the_commits_with_their_builds(kernels: Callable[..., Any], relu: TestHub, tmp_path: Path) -> None:
    done = kernels("mirror", tmp_path / "mirror", "--repo", "acme/relu", "--json")
    found = json.loads(done.stdout)
    assert [(each["names"], each["changed"], len(each["builds"])) for each in found["commits"]] == [(["v1"], True, 2)]
    assert (found["origin"], found["dry_run"], found["failures"], found["left_out"]) == (relu.url, False, [], [])
    assert found["sent"] == sum(each["archive"] for each in found["commits"][0]["builds"])


def test_a_dry_run_shows_the_plan_with_sizes(kernels: Callable[..., Any], relu: TestHub, tmp_path: Path) -> None:
    done = kernels("mirror", tmp_path / "mirror", "--repo", "acme/relu", "--target", HOPPER, "--dry-run")
    assert done.exit_code == 0
    assert [row[:5] for row in rows(done.stdout)] == [["acme/relu", "v1", relu.commit()[:12], "1", "1"]]
    assert done.stdout.splitlines()[-1].startswith("1 new build, ")
    assert done.stdout.splitlines()[-1].endswith(", nothing written.")
    assert not (tmp_path / "mirror").exists()


def test_what_fails_is_a_line_each_and_the_rest_is_taken(
    kernels: Callable[..., Any], relu: TestHub, tmp_path: Path
) -> None:
    relu.make_repo("eve/relu")
    done = kernels("mirror", tmp_path / "mirror", "--repo", "eve/relu", "--repo", "acme/relu", "--repo", "acme/absent")
    assert done.exit_code == 1
    errors = sorted(done.stderr.splitlines())
    assert len(errors) == 2
    assert errors[0].startswith("Error: ")
    assert any("eve/relu is refused" in line for line in errors)
    assert any("acme/absent" in line for line in errors)
    assert [row[0] for row in rows(done.stdout)] == ["acme/relu"]
    assert done.stdout.splitlines()[-1].endswith("; 2 failed.")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mirror"], "Nothing to mirror: name repositories, lockfiles or publishers."),
        (["mirror", "--repo", "relu"], "expected 'org/name'"),
        (["mirror", "--publisher", "a/b"], "'a/b' is not the name of a publisher."),
        (["mirror", "--from-hub", "--repo", "acme/relu"], "includes the named repositories"),
        (["mirror", "--repo", "acme/relu", "--versions", "latest"], "expected all, newest:2, or versions such as 1,3."),
        (["mirror", "--repo", "acme/relu", "--versions", "1", "--revision", "v1"], "not both"),
        (["mirror", "--repo", "acme/relu", "--since", "yesterday"], "expected a date such as 2026-01-31"),
        (["mirror", "--repo", "acme/relu", "--since", "2999-01-01"], "in the future"),
        (["mirror", "--repo", "acme/relu", "--target", "torch2.9-cu128-linux"], "Expected torch<version>"),
        (["mirror", "--repo", "acme/relu", "--from", "nowhere"], "`--from` is 'nowhere'"),
        (["mirror", "--lockfile", "absent.lock"], "absent.lock"),
        (["https://mirror.example/kernels", "--repo", "acme/relu"], "can be read as a mirror, but not written"),
        (["s4://bucket", "--repo", "acme/relu"], "s4://bucket"),
        (["kept", "--repo", "acme/relu"], "is not empty, and has no mirror.json: 'notes'"),
        (["/proc/mirror", "--repo", "acme/relu"], "Cannot write /proc/mirror"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    said_of_bad_input: Callable[..., str], relu: TestHub, arguments: list[str], says: str
) -> None:
    assert says in said_of_bad_input("mirror", *arguments)


def test_from_names_another_hub(
    kernels: Callable[..., Any], relu: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERNELS_HUB")
    done = kernels("mirror", tmp_path / "mirror", "--publisher", "acme", "--from", relu.url, "--json")
    assert json.loads(done.stdout)["origin"] == relu.url


def test_several_addresses_need_the_one_to_take_from(
    kernels: Callable[..., Any], relu: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_HUB", f"{relu.url},hub")
    done = kernels("mirror", tmp_path / "mirror", "--repo", "acme/relu")
    assert "`KERNELS_HUB` has several addresses; name the one to take kernels from: --from ADDRESS" in done.stderr
    assert kernels("mirror", tmp_path / "mirror", "--repo", "acme/relu", "--from", relu.url).exit_code == 0


def test_an_address_that_cannot_be_written_is_an_error_before_anything_is_fetched(
    kernels: Callable[..., Any], relu: TestHub, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    done = kernels("mirror", tmp_path / "file" / "mirror", "--repo", "acme/relu")
    assert done.exit_code == 1
    assert str(tmp_path / "file") in done.stderr
    assert relu.count("/resolve/.*__init__") == 0


def test_processes_at_once_lose_nothing(kernels_process: Callable[..., Any], relu: TestHub, tmp_path: Path) -> None:
    relu.make_repo("acme/relu", version=2)
    place = tmp_path / "mirror"
    shares = [["acme/relu", "--versions", "1"], ["acme/relu", "--versions", "2"]]
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda share: kernels_process("mirror", place, "--repo", *share), shares))
    assert [each.stderr for each in done] == [""] * 2
    document = MirrorDocument.parse((place / index_path("acme/relu")).read_bytes(), "refs")
    assert list(document.repository("acme/relu", "refs").branches) == ["v1", "v2"]
    top = MirrorDocument.parse((place / "mirror.json").read_bytes(), "mirror.json").mirror("mirror.json")
    assert {name: each.versions for name, each in top.repositories.items()} == {"acme/relu": (2, 1)}


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_damaged_archive_is_found_and_repaired(
    kernels: Callable[..., Any], relu: TestHub, tmp_path: Path, damage: str
) -> None:
    place = tmp_path / "mirror"
    assert kernels("mirror", place, "--repo", "acme/relu").exit_code == 0
    archive = sorted(place.glob("archives/*/*"))[0]
    whole = archive.read_bytes()
    archive.unlink()
    if damage == "changed":
        archive.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    done = kernels("mirror", place, "--verify")
    assert done.exit_code == 1
    assert "acme/relu" in done.stderr
    assert f"kernels mirror {place} --repo REPO --repair" in " ".join(done.output.split())
    done = kernels("mirror", place, "--repo", "acme/relu", "--repair")
    assert done.exit_code == 0, done.output
    assert "1 new build, " in done.stdout
    assert archive.read_bytes() == whole
    assert kernels("mirror", place, "--verify").exit_code == 0
    assert "Nothing to do" in kernels("mirror", place, "--repo", "acme/relu", "--repair").stdout
