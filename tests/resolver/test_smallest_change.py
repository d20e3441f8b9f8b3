"""What would have to be different on a machine for a build to suit."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from kernels.errors import InvalidMetadata, KernelsError
from kernels.models.metadata import Metadata
from kernels.resolver.no_suitable_build import advice
from kernels.resolver.selection import resolve
from kernels.resolver.target import Target

CUDA = "torch2.9-cu128-x86_64-linux"


def metadata(backend: str, *archs: str) -> Metadata:
    return Metadata.from_fields({"name": "relu", "id": "_relu", "backend": {"type": backend, "archs": list(archs)}})


def said(
    target: Target | str,
    builds: list[str] | dict[str, Metadata | KernelsError | None],
    *,
    backend: str | None = None,
    read: bool = True,
) -> str:
    """The advice where no build suits; a build without metadata here has some without architectures."""
    machine = Target.parse(target) if isinstance(target, str) else target
    known = builds if isinstance(builds, dict) else {}
    facts = {name: each for name, each in known.items() if each is not None}
    resolution = resolve(builds, machine, backend=backend, metadata=facts)
    assert resolution.best is None
    asked: list[str] = []

    def reader(name: str) -> Metadata | KernelsError | None:
        asked.append(name)
        return known[name] if name in known else metadata("cuda")

    text = advice(resolution, read=reader if read else None)
    assert len(asked) <= 64
    return text


@pytest.mark.parametrize(
    ("target", "builds", "expected"),
    [
        # Torch's packages change their C++ ABI with the version.
        ("torch2.6-cu126-x86_64-linux+sm_90", ["torch213-cxx11-cu126-x86_64-linux"], "an environment with Torch 2.13"),
        ("torch2.13-metal-aarch64-darwin15.5", ["torch213-metal-aarch64-darwin", "torch-rocm"], "macOS 26"),
        ("torch2.9-metal-aarch64-darwin15.5", ["torch213-metal-aarch64-darwin"], "Torch 2.13 and macOS 26"),
        ("metal-aarch64-darwin26.0", ["torch213-metal-aarch64-darwin"], "an environment with Torch 2.13"),
        # The nearest first, and Torch before the toolkit.
        (CUDA, [f"torch2{minor}-cu128-x86_64-linux" for minor in (5, 6, 7, 8, 13)], "Torch 2.8 or Torch 2.7 or"),
        (CUDA, [f"torch29-cu{cuda}-x86_64-linux" for cuda in (131, 130, 118)], "cuda 13.0 or cuda 13.1 or cuda 11.8."),
        (CUDA, ["torch29-cu129-x86_64-linux", "torch28-cu126-x86_64-linux"], "with Torch 2.8; or cuda 12.9."),
        (CUDA, ["torch28-cu130-x86_64-linux", "torch29-cu130-x86_64-linux"], "with cuda 13.0."),
        ("torch2.9-py3.14t-cpu-x86_64-linux", ["torch29-cpu-x86_64-linux"], "a Python that is not free-threaded"),
        ("torch2.9-rocm7.10-x86_64-linux", ["torch29-cxx11-rocm72-x86_64-linux"], "an environment with rocm 7.2"),
        # Neither a system nor a processor is changed.
        (CUDA, ["torch29-cxx11-cu128-aarch64-linux"], "ask its publisher for a build that suits"),
        (CUDA, ["torch29-cxx98-cu128-x86_64-linux"], "ask its publisher for a build that suits"),
        ("torch2.13-metal-aarch64-darwin15.5", ["torch213-metal-x86_64-darwin", "torch-rocm"], "a machine with rocm."),
    ],
)
def test_the_smallest_change_is_named(target: str, builds: list[str], expected: str) -> None:
    assert expected in said(target, builds)


def test_no_change_is_named_with_which_the_architectures_do_not_suit() -> None:
    turing = "torch2.13-cu130-x86_64-linux+sm_75"
    builds: dict[str, Metadata | KernelsError | None] = {
        "torch213-cxx11-cu126-x86_64-linux": metadata("cuda", "8.0", "9.0")
    }
    assert said(turing, builds) == "Build the kernel yourself, or ask its publisher for a build that suits."
    assert said(turing, {**builds, "torch-rocm": metadata("rocm")}) == "Try a machine with rocm."
    # Without metadata, the name is all that is known.
    assert said(turing, builds, read=False) == "Try an environment with cuda 12.6."
    assert said(turing, dict.fromkeys(builds)) == "Try an environment with cuda 12.6."
    assert "ask its publisher" in said(turing, dict.fromkeys(builds, InvalidMetadata("it is broken")))


def test_another_toolkit_is_named_where_its_build_covers_the_device() -> None:
    assert said(
        "torch2.13-cu126-x86_64-linux+sm_100",
        {
            "torch213-cxx11-cu126-x86_64-linux": metadata("cuda", "9.0"),
            "torch213-cxx11-cu130-x86_64-linux": metadata("cuda", "10.0"),
        },
    ).startswith("Try an environment with cuda 13.0. If the declared architectures")


def test_another_device_is_named_only_if_a_build_covers_it() -> None:
    builds: dict[str, Metadata | KernelsError | None] = {"torch-cuda": metadata("cuda", "9.0")}
    assert "`device=`" in said(f"{CUDA}+sm_75+sm_90", builds)
    assert "`device=`" not in said(f"{CUDA}+sm_75+sm_80", builds)


def test_a_torch_for_the_backend_is_named_only_if_a_build_fits_then() -> None:
    target = replace(Target.parse(CUDA), torch_backends=("cpu",), default_backend="cpu")
    compiled = "torch29-cxx11-cu128-{}-linux"
    assert said(target, [compiled.format("x86_64")], backend="cuda") == (
        "Try a Torch that is built for cuda, or import the package that adds its device to this one; "
        "`kernels backends check cuda` says more."
    )
    assert "ask its publisher" in said(target, [compiled.format("aarch64")], backend="cuda")
    more = said(target, ["torch213-cxx11-cu130-x86_64-linux"], backend="cuda")
    assert more == "Try an environment with a Torch that is built for cuda and Torch 2.13 and cuda 13.0."


def test_a_version_that_no_name_can_carry_is_not_read_as_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "vulcan.json"
    file.write_text('{"vulcan": {"device_string": "vulcan", "version": "3.14"}}')
    monkeypatch.setenv("KERNELS_BACKENDS_JSON", str(file))
    builds = ["torch213-cxx11-vulcan314-x86_64-linux"]
    assert said("torch2.13-vulcan3.14-x86_64-linux", builds) == (
        "vulcan314 in a build's name is vulcan 31.4, not 3.14: the last digit is the minor version, so no build can be "
        "named for 3.14."
    )
    assert said("torch2.13-vulcan3.1-x86_64-linux", builds) == "Try an environment with vulcan 31.4."


def test_a_hostile_number_of_builds_is_no_slow_advice() -> None:
    names = [f"torch2{minor}-cxx11-cu1{cuda:02}-x86_64-linux" for minor in range(50) for cuda in range(31, 99)]
    assert said(f"{CUDA}+sm_90", names).startswith("Try an environment with ")
