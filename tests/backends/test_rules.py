"""What each backend says about versions, architectures and platforms (the rules of the formats)."""

from __future__ import annotations

import pytest

from kernels import backends
from kernels.backends import Device, Found, MajorMinor
from kernels.resolver.target import Target


@pytest.mark.parametrize(
    ("backend", "text", "version"),
    [
        ("cuda", "cu128", (12, 8)),
        ("cuda", "cu130", (13, 0)),
        ("cuda", "cu92", (9, 2)),
        ("rocm", "rocm63", (6, 3)),
        ("xpu", "xpu20253", (2025, 3)),
        ("cann", "cann82", (8, 2)),
        ("cpu", "cpu", None),
        ("metal", "metal", None),
        ("neuron", "neuron", None),
        ("tpu", "tpu", None),
    ],
)
def test_accelerators_parse_and_print_exactly(backend: str, text: str, version: tuple[int, int] | None) -> None:
    found = backends.get(backend).parse_accelerator(text)
    assert found == Found(None if version is None else MajorMinor(*version))
    assert backends.get(backend).format_accelerator(found.version) == text


@pytest.mark.parametrize(
    "text", ["cu", "cu8", "cu0128", "cu12.8", "cuda128", "cu１２8", "cu128 ", "rocm128", "", "cpu1"]
)
def test_cuda_does_not_take_what_is_not_its_own(text: str) -> None:
    assert backends.get("cuda").parse_accelerator(text) is None


@pytest.mark.parametrize(("backend", "version"), [("cuda", None), ("cpu", (1, 0)), ("rocm", (7, 10))])
def test_a_version_that_no_name_can_carry_is_refused(backend: str, version: tuple[int, int] | None) -> None:
    with pytest.raises(ValueError, match=f"no {backend} build can be named"):
        backends.get(backend).format_accelerator(None if version is None else MajorMinor(*version))


@pytest.mark.parametrize(
    ("backend", "build", "machine", "reason"),
    [
        ("cuda", (12, 8), (12, 8), None),
        ("cuda", (12, 6), (12, 8), None),
        ("cuda", (12, 9), (12, 8), "has only CUDA 12.8"),
        ("cuda", (13, 0), (12, 8), "another major"),
        ("cuda", (11, 8), (12, 8), "another major"),
        ("cuda", (12, 8), None, "an unknown version"),
        ("rocm", (6, 3), (6, 3), None),
        ("rocm", (6, 3), (6, 4), "built for rocm 6.3, this machine has 6.4"),
        ("xpu", (2025, 1), (2025, 3), "has 2025.3"),
        ("cann", (8, 2), None, "an unknown version"),
        ("cpu", None, None, None),
    ],
)
def test_versions_fit_by_each_backends_rule(
    backend: str, build: tuple[int, int] | None, machine: tuple[int, int] | None, reason: str | None
) -> None:
    built = None if build is None else MajorMinor(*build)
    found = backends.get(backend).version_reason(built, None if machine is None else MajorMinor(*machine))
    assert (found is None) == (reason is None)
    assert reason is None or reason in (found or "")


@pytest.mark.parametrize(
    ("archs", "device", "fits"),
    [
        (["8.0"], "8.0", True),
        (["8.0"], "8.9", True),
        (["8.6"], "8.0", False),
        (["8.0"], "9.0", False),
        (["8.0+PTX"], "9.0", True),
        (["8.0+PTX"], "12.0", True),
        (["9.0+PTX"], "8.9", False),
        (["9.0a"], "9.0", True),
        (["9.0a"], "9.1", False),
        (["9.0a+PTX"], "10.0", False),
        (["9.0a+PTX"], "9.0", True),
        (["10.0f"], "10.3", True),
        (["10.0f"], "11.0", False),
        (["10.3f"], "10.0", False),
        (["10.0f+PTX"], "12.0", False),
        (["10.0f+PTX"], "10.3", True),
        (["7.5", "8.0", "9.0a"], "9.0", True),
        (["7.5", "8.0"], "9.0", False),
        (["sm_90"], "8.0", True),  # no known spelling: nothing to check
        (["sm_90", "9.0"], "8.0", False),  # one is known, and decides
        ([], "8.0", True),
        (None, "8.0", True),
        (["9.0"], "", True),
        (["9.0"], None, True),
    ],
)
def test_cuda_architectures_cover_devices(archs: list[str] | None, device: str | None, fits: bool) -> None:
    on = None if device is None else Device("cuda", 0, "NVIDIA GPU", arch=device)
    reason = backends.get("cuda").arch_reason(archs, on)
    assert (reason is None) == fits
    assert fits or f"capability {device} of device 0 (NVIDIA GPU)" in (reason or "")


@pytest.mark.parametrize(
    ("archs", "device", "fits"),
    [
        (["gfx942"], "gfx942", True),
        (["gfx90a"], "gfx90a:sramecc+:xnack-", True),
        (["gfx90a", "gfx1100"], "gfx942", False),
        (["mi300"], "gfx942", True),
        (None, "gfx942", True),
        (["gfx942"], None, True),
    ],
)
def test_rocm_architectures_are_listed_by_name(archs: list[str] | None, device: str | None, fits: bool) -> None:
    on = None if device is None else Device("rocm", 1, arch=device)
    reason = backends.get("rocm").arch_reason(archs, on)
    assert (reason is None) == fits
    assert fits or "of device 1 is not among" in (reason or "")


@pytest.mark.parametrize(("backend", "arch", "other"), [("cuda", "9.0", "8.6"), ("rocm", "gfx942", "gfx90a")])
def test_a_reason_names_ten_architectures_and_counts_the_others(backend: str, arch: str, other: str) -> None:
    reason = backends.get(backend).arch_reason([other] * 250_000, Device(backend, 0, arch=arch)) or ""
    assert reason.endswith("and 249990 more")
    assert reason.count(other) == 10


@pytest.mark.parametrize(
    ("backend", "arch", "capability"),
    [
        ("cuda", "7.5", 75),
        ("cuda", "9.0", 90),
        ("cuda", "12.0", 120),
        ("cuda", "", None),
        ("rocm", "gfx942", 94),
        ("rocm", "gfx90a", 90),
        ("rocm", "gfx1100:sramecc+", 110),
        ("rocm", "", None),
        ("cpu", "9.0", None),
    ],
)
def test_capabilities_count_as_mapping_properties_do(backend: str, arch: str, capability: int | None) -> None:
    assert backends.get(backend).device_capability(Device(backend, 0, arch=arch)) == capability


@pytest.mark.parametrize(
    ("backend", "text", "arch", "short"),
    [
        ("cuda", "sm_90", "9.0", "sm_90"),
        ("cuda", "sm_90a", "9.0", "sm_90"),
        ("cuda", "8.6", "8.6", "sm_86"),
        ("cuda", "compute_120", "12.0", "sm_120"),
        ("rocm", "gfx90a", "gfx90a", "gfx90a"),
        ("xpu", "bmg-g21", "bmg-g21", "bmg-g21"),
    ],
)
def test_architectures_are_read_as_people_and_compilers_write_them(
    backend: str, text: str, arch: str, short: str
) -> None:
    assert backends.get(backend).parse_arch(text) == arch
    assert backends.get(backend).format_arch(arch) == short


@pytest.mark.parametrize(("backend", "text"), [("cuda", "hopper"), ("cuda", "sm_9"), ("rocm", "sm_90"), ("cpu", "9 0")])
def test_what_is_no_architecture_is_none(backend: str, text: str) -> None:
    assert backends.get(backend).parse_arch(text) is None


@pytest.mark.parametrize(
    ("version", "fits"), [("26.0", True), ("27.1", True), ("15.5", False), (None, False), ("x", False)]
)
def test_metal_builds_need_macos_26(version: str | None, fits: bool) -> None:
    target = Target(os="darwin", cpu="aarch64", os_version=version, default_backend="metal")
    reason = backends.get("metal").platform_reason(target)
    assert (reason is None) == fits
    assert fits or "require macOS 26.0 or later" in (reason or "")
