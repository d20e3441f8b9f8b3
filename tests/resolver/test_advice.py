"""What an error says where no build suits: every build with its reason, and the remedy of the check that failed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kernels.errors import InvalidMetadata, NoSuitableBuild, UnsupportedArch
from kernels.models.metadata import BackendInfo, KernelName, Metadata
from kernels.resolver.advice import advice, no_suitable_build
from kernels.resolver.choice import resolve
from kernels.resolver.target import Target

CUDA = "torch2.9-cu128-x86_64-linux"
COMPILED = "torch29-cxx11-cu128-x86_64-linux"
OLDER = "torch28-cu128-x86_64-linux"
ASK = "Build the kernel yourself, or ask its publisher for a build that suits."
CPU = 'the build for cpu with `backend="cpu"` (`--backend cpu`)'
# Torch is not built for the GPU of this machine.
UNBUILT = replace(Target.parse(CUDA), torch_backends=("cpu",))


def metadata(backend: str, *archs: str) -> Metadata:
    return Metadata("_relu", KernelName("relu"), BackendInfo(backend, archs or None))


@pytest.mark.parametrize(
    ("target", "names", "expected"),
    [
        (
            CUDA,
            ["torch28-cu128-x86_64-linux", "torch210-cu128-x86_64-linux"],
            "an environment with Torch 2.10 or Torch 2.8",
        ),
        (CUDA, ["torch-stable-abi210-cu128-x86_64-linux"], "an environment with Torch 2.10 or newer"),
        (CUDA, ["torch29-cu129-x86_64-linux"], "an environment with cuda 12.9"),
        (
            CUDA,
            ["torch29-cu129-x86_64-linux", OLDER],
            "an environment with cuda 12.9 or Torch 2.8",
        ),
        (CUDA, ["tvm-ffi01-cu128-x86_64-linux"], "an environment with tvm-ffi 0.1"),
        # Torch's packages change their C++ ABI with the version.
        ("torch2.6-cu126-x86_64-linux", ["torch213-cxx11-cu126-x86_64-linux"], "an environment with Torch 2.13"),
        ("torch2.13-metal-aarch64-darwin15.5", ["torch213-metal-aarch64-darwin"], "an environment with macOS 26"),
        ("cu128-x86_64-linux", ["torch29-cu128-x86_64-linux"], "an environment with Torch 2.9"),
        (
            "torch2.9-py3.14t-cpu-x86_64-linux",
            ["torch29-cpu-x86_64-linux"],
            "an environment with a Python that is not free-threaded",
        ),
        # A build that fails two checks has no remedy.
        (CUDA, ["torch28-cu130-x86_64-linux", "torch-rocm"], "a machine with rocm"),
        (CUDA, ["torch28-cu130-x86_64-linux", "torch29-cu130-x86_64-linux"], "an environment with cuda 13.0"),
        ("torch2.9-metal-aarch64-darwin15.5", ["torch213-metal-aarch64-darwin"], None),
        (CUDA, ["torch29-cu130-x86_64-windows"], None),
        (CUDA, ["torch29-cxx11-cu128-aarch64-linux"], None),
        (CUDA, ["torch29-cxx98-cu128-x86_64-linux"], None),
        (CUDA, ["rubbish"], None),
        # Another backend of this machine, if a build fits for that one; else another machine.
        (CUDA, ["torch-cpu", "torch-rocm"], f"{CPU}, or a machine with rocm"),
        (CUDA, ["torch28-cpu-x86_64-linux", "torch-rocm", "torch-xpu"], "a machine with rocm or xpu"),
        (CUDA, ["torch28-cpu-x86_64-linux"], None),
        # Another Torch brings the version of its backend.
        (UNBUILT, ["torch-cuda"], "an environment with a Torch that is built for cuda"),
        (UNBUILT, ["torch213-cu130-x86_64-linux"], "an environment with Torch 2.13 that is built for cuda 13.0"),
        (UNBUILT, ["torch29-cxx11-cu128-aarch64-linux"], None),
    ],
    ids=str,
)
def test_the_remedy_of_the_only_check_that_failed_is_named(
    target: Target | str, names: list[str], expected: str | None
) -> None:
    machine = Target.parse(target) if isinstance(target, str) else target
    said = advice(resolve(names, machine))
    assert said == (ASK if expected is None else f"Try {expected}.")


def test_a_message_names_the_machine_and_each_build() -> None:
    names = [OLDER, "torch-rocm"]
    lines = str(no_suitable_build("org/relu", resolve(names, Target.parse(CUDA)))).splitlines()
    assert lines[0] == f"No build of org/relu suits this machine ({CUDA}, backend cuda):"
    assert [line.split(":")[0] for line in lines[1:-1]] == [f"  {name}" for name in names]
    assert str(no_suitable_build("org/relu", resolve([], Target.parse(CUDA)))).startswith(
        "org/relu has no builds at all"
    )


def test_an_error_about_the_architecture_says_which_device_a_build_covers() -> None:
    known = {COMPILED: metadata("cuda", "8.0")}

    def error(*archs: str, here: bool = True) -> NoSuitableBuild:
        target = Target.parse("+".join([CUDA, *archs]))
        return no_suitable_build("org/relu", resolve([COMPILED, "torch-cpu"], target, metadata=known), here=here)

    alone = error("sm_90")
    assert isinstance(alone, UnsupportedArch)
    assert isinstance(alone, RuntimeError)
    assert "`check_arch=False`" in str(alone)
    assert "`device=`" not in str(alone)
    assert "Try another device with `device=`." in str(error("sm_90", "sm_80"))
    assert "`device=`" not in str(error("sm_90", "sm_75"))
    assert str(error("sm_90", "sm_80", here=False)).endswith("\n" + ASK.replace("suits", "covers it"))


def test_a_build_with_broken_metadata_is_no_reason_to_name_its_backend_or_a_device() -> None:
    broken = {COMPILED: InvalidMetadata("it is broken")}
    assert advice(resolve([COMPILED], Target.parse(CUDA), metadata=broken)) == ASK
    names = [COMPILED, OLDER]
    both = resolve(names, Target.parse(f"{CUDA}+sm_90"), metadata={COMPILED: metadata("cuda", "8.0")})
    assert "Torch" not in advice(both)
    assert "`device=`" not in advice(both)


def test_an_error_about_names_is_no_error_about_the_architecture() -> None:
    error = no_suitable_build("org/relu version 1", resolve(["torch-cpu"], Target.parse(CUDA)))
    assert type(error) is NoSuitableBuild
    assert isinstance(error, FileNotFoundError)


def test_a_long_or_hostile_list_makes_a_short_printable_message() -> None:
    names = [f"torch2{minor}-cu130-x86_64-linux" for minor in range(40)] + ["\x1b[31m" + "y" * 5000]
    text = str(no_suitable_build("org/relu", resolve(names, Target.parse(CUDA))))
    assert "… and 21 more" in text
    assert len(text.splitlines()) == 23
    text = str(no_suitable_build("org/relu", resolve(names[-1:], Target.parse(CUDA))))
    assert "\x1b" not in text
    assert len(text) < 600
    many = [f"torch2{minor}-cxx11-cu128-x86_64-linux" for minor in range(10, 5000)]
    assert advice(resolve(many, Target.parse(CUDA))).count("Torch") == 4
