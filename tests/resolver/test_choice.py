"""Which build suits a machine: every rule, every reason, and the order of preference."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import msgspec
import pytest
from html_cells import HOSTILE, ReadHtml
from hypothesis import given
from hypothesis import strategies as st

from kernels import backends
from kernels.errors import InvalidMetadata, RequestError
from kernels.models.metadata import BackendInfo, KernelName, Metadata
from kernels.resolver.choice import Resolution, rank, resolve
from kernels.resolver.decision import RejectionKind, VariantAccepted, VariantList, VariantRejected
from kernels.resolver.target import Target
from kernels.resolver.variant import UnparsedVariant, Variant, parse_variant

CUDA = "torch2.9-cu128-x86_64-linux"
CPU = Target.parse("torch2.9-cpu-x86_64-linux")


def metadata(backend: str = "cuda", *archs: str) -> Metadata:
    return Metadata("_relu_cuda_1234567", KernelName("relu"), BackendInfo(backend, archs or None))


def reason(resolution: Resolution, name: str) -> str:
    return next(each.reason for each in resolution.rejected if each.variant.variant_str == name)


# target, variant, a part of the reason (None: it fits)
FITS = [
    (CUDA, "torch29-cxx11-cu128-x86_64-linux", None),
    (CUDA, "torch29-cu128-x86_64-linux", None),
    (CUDA, "torch29-cxx11-cu126-x86_64-linux", None),
    (CUDA, "torch29-cxx11-cu129-x86_64-linux", "built for CUDA 12.9, this machine has only CUDA 12.8"),
    (CUDA, "torch29-cxx11-cu130-x86_64-linux", "another major version"),
    (CUDA, "torch29-cxx98-cu128-x86_64-linux", "built with the C++ ABI cxx98, this Torch has cxx11"),
    (CUDA, "torch28-cxx11-cu128-x86_64-linux", "needs Torch 2.8, this machine has 2.9"),
    (CUDA, "torch29-cxx11-cu128-aarch64-linux", "for aarch64 processors, this machine has x86_64"),
    (CUDA, "torch29-cu128-x86_64-windows", "for windows, this machine runs linux"),
    (CUDA, "torch29-cxx11-cpu-x86_64-linux", "for cpu, not cuda"),
    (CUDA, "torch29-cxx11-rocm64-x86_64-linux", "for rocm, not cuda"),
    (CUDA, "torch-stable-abi28-cu128-x86_64-linux", None),
    (CUDA, "torch-stable-abi29-cu128-x86_64-linux", None),
    (CUDA, "torch-stable-abi210-cu128-x86_64-linux", "needs Torch 2.10 or newer, this machine has 2.9"),
    (CUDA, "tvm-ffi01-cu128-x86_64-linux", "needs tvm-ffi 0.1, this machine has none"),
    ("torch2.9-tvm-ffi0.1-cu128-x86_64-linux", "tvm-ffi01-cu128-x86_64-linux", None),
    ("tvm-ffi0.2-cu128-x86_64-linux", "tvm-ffi01-cu128-x86_64-linux", "needs tvm-ffi 0.1, this machine has 0.2"),
    ("tvm-ffi0.1-cu128-x86_64-linux", "tvm-ffi01-cu128-x86_64-linux", None),
    ("cu128-x86_64-linux", "torch29-cu128-x86_64-linux", "needs Torch 2.9, this machine has none"),
    ("cu128-x86_64-linux", "torch-stable-abi29-cu128-x86_64-linux", "needs Torch 2.9 or newer, this machine has none"),
    (CUDA, "torch-cuda", None),
    (CUDA, "torch-universal", None),
    (CUDA, "torch-rocm", "for rocm, not cuda"),
    (CUDA, "torch-ttnn", "for ttnn, not cuda"),
    ("torch2.9-cann82-aarch64-linux", "torch-npu", None),
    ("torch2.9-cann82-aarch64-linux", "torch-cann", "a noarch build for cann is called torch-npu"),
    ("torch2.9-cann82-aarch64-linux", "torch29-cxx11-cann82-aarch64-linux", None),
    ("torch2.9-cann82-aarch64-linux", "torch29-cxx11-cann83-aarch64-linux", "built for cann 8.3, this machine has 8.2"),
    ("torch2.9-rocm64-x86_64-linux", "torch29-cxx11-rocm63-x86_64-linux", "built for rocm 6.3, this machine has 6.4"),
    ("torch2.9-xpu20253-x86_64-linux", "torch29-cxx11-xpu20253-x86_64-linux", None),
    ("torch2.9-metal-aarch64-darwin26.0", "torch29-metal-aarch64-darwin", None),
    (
        "torch2.9-metal-aarch64-darwin15.5",
        "torch29-metal-aarch64-darwin",
        "require macOS 26.0 or later, this machine has 15.5",
    ),
    ("torch2.9-metal-aarch64-darwin15.5", "torch-metal", None),
    ("torch2.9-cpu-x86_64-windows", "torch29-cpu-x86_64-windows", None),
    ("torch2.9-cpu-x86_64-windows", "torch29-cxx11-cpu-x86_64-windows", "cxx11, this Torch has neither"),
    ("torch2.9-py3.14t-cpu-x86_64-linux", "torch29-cpu-x86_64-linux", "free-threaded Python before 3.15"),
    ("torch2.9-py3.14t-cpu-x86_64-linux", "torch-cpu", None),
    ("torch2.9-py3.15t-cpu-x86_64-linux", "torch29-cpu-x86_64-linux", None),
]


@pytest.mark.parametrize(("target", "name", "why"), FITS, ids=lambda value: str(value)[:44])
def test_a_name_fits_or_is_turned_down_with_a_reason(target: str, name: str, why: str | None) -> None:
    resolution = resolve([name], Target.parse(target))
    if why is None:
        assert resolution.decisions == (VariantAccepted(parse_variant(name)),)
        assert resolution.best == parse_variant(name)
    else:
        assert why in reason(resolution, name)
        assert resolution.best is None


def test_the_order_of_preference_is_that_of_the_formats() -> None:
    preferred = [
        "torch-stable-abi29-cu128-x86_64-linux",
        "torch-stable-abi29-cu126-x86_64-linux",
        "torch-stable-abi28-cu128-x86_64-linux",
        "torch29-cu126-x86_64-linux",
        "torch29-cxx11-cu128-x86_64-linux",
        "torch29-cxx11-cu126-x86_64-linux",
        "tvm-ffi01-cu128-x86_64-linux",
        "tvm-ffi01-cu120-x86_64-linux",
        "torch-cuda",
        "torch-universal",
    ]
    target = Target.parse("torch2.9-tvm-ffi0.1-cu128-x86_64-linux")
    resolution = resolve(reversed([*preferred, "torch-cpu"]), target)
    assert [variant.name for variant in resolution.accepted] == preferred
    assert resolution.best is resolution.accepted[0]


def test_those_that_nearly_fit_come_first_among_the_rejected() -> None:
    names = [
        "x",
        "torch29-cu129-x86_64-linux",
        "torch-cpu",
        "torch28-cu128-x86_64-linux",
        "torch29-cu128-aarch64-linux",
    ]
    rejected = [each.variant.variant_str for each in resolve(names, Target.parse(CUDA)).rejected]
    assert rejected == [names[1], names[3], names[4], names[2], names[0]]


@pytest.mark.parametrize("name", ["../../etc", "__pycache__", "torch-cuda\n", "x" * 10_000])
def test_a_folder_that_is_no_variant_is_a_rejection_like_the_others(name: str) -> None:
    resolution = resolve([name, "torch-cuda"], Target.parse(CUDA))
    rejected = resolution.rejected[0]
    assert rejected.variant == UnparsedVariant(name)
    assert rejected.variant.variant_str == name
    assert "is not a variant's name" in rejected.reason
    assert resolution.best is not None


COMPILED = "torch29-cxx11-cu128-x86_64-linux"
HOPPER = Target.parse(f"{CUDA}+sm_90")


def test_a_build_that_does_not_cover_the_device_gives_way_to_the_next() -> None:
    known = {COMPILED: metadata("cuda", "8.0"), "torch-cuda": metadata("cuda", "9.0")}
    resolution = resolve(["torch-cuda", COMPILED, "torch-universal"], HOPPER, metadata=known)
    assert resolution.best is not None
    assert resolution.best.name == "torch-cuda"
    assert "CUDA capability 9.0 of device 0 is not covered by the build's 8.0" in reason(resolution, COMPILED)
    assert [str(each.variant) for each in resolution.rejected if each.kind is RejectionKind.ARCH] == [COMPILED]


def test_a_noarch_build_that_excludes_the_device_falls_through_too() -> None:
    known = {"torch-cuda": metadata("cuda", "12.0"), "torch-universal": metadata("cuda", "8.0+PTX")}
    best = resolve(["torch-cuda", "torch-universal"], HOPPER, metadata=known).best
    assert best is not None
    assert best.name == "torch-universal"


@pytest.mark.parametrize(("target", "check"), [(HOPPER, False), (Target.parse(CUDA), True)], ids=["off", "no device"])
def test_where_architectures_are_not_compared_a_build_for_others_is_taken(target: Target, check: bool) -> None:
    best = resolve([COMPILED], target, metadata={COMPILED: metadata("cuda", "8.0")}, check_arch=check).best
    assert best is not None
    assert best.name == COMPILED


def test_a_build_that_declares_no_architectures_covers_every_device() -> None:
    assert resolve([COMPILED], HOPPER, metadata={COMPILED: metadata("cuda")}).best is not None


def test_a_build_whose_metadata_contradicts_its_name_is_turned_down() -> None:
    known = {COMPILED: metadata("cpu")}
    assert reason(resolve([COMPILED], HOPPER, metadata=known), COMPILED) == (
        "its metadata says it is for cpu, its name for cuda"
    )
    # A universal build may say any one backend.
    assert resolve(["torch-universal"], HOPPER, metadata={"torch-universal": metadata("cpu")}).best is not None


def test_a_build_whose_metadata_is_broken_is_turned_down_saying_so() -> None:
    known = {COMPILED: InvalidMetadata("metadata.json is not valid metadata: missing `id`")}
    resolution = resolve([COMPILED, "torch-cuda"], Target.parse(CUDA), metadata=known)
    assert "missing `id`" in reason(resolution, COMPILED)
    assert resolution.best is not None
    assert resolution.best.name == "torch-cuda"


MIXED = Target.parse(f"{CUDA}+sm_90+sm_80+sm_75")


@pytest.mark.parametrize(
    ("device", "current", "fits"),
    [
        (None, 0, True),
        (None, 1, False),
        (0, 1, True),
        (1, 0, False),
        ("cuda", 0, True),
        ("cuda:1", 0, False),
        ("cuda:0", 2, True),
    ],
)
def test_the_current_device_decides_unless_another_is_named(device: int | str | None, current: int, fits: bool) -> None:
    target = msgspec.structs.replace(MIXED, current_device=current)
    resolution = resolve([COMPILED], target, metadata={COMPILED: metadata("cuda", "9.0")}, device=device)
    assert (resolution.best is not None) == fits
    assert resolution.device is not None
    index = int(str(device).partition(":")[2] or 0) if isinstance(device, str) and ":" in device else device
    assert resolution.device.index == (index if isinstance(index, int) else current)


def test_visible_devices_that_the_best_build_does_not_cover_are_told() -> None:
    resolution = resolve([COMPILED], MIXED, metadata={COMPILED: metadata("cuda", "8.0", "9.0")})
    assert [device.arch for device in resolution.uncovered_devices] == ["7.5"]
    assert resolve([COMPILED], MIXED, metadata={COMPILED: metadata("cuda", "7.5+PTX")}).uncovered_devices == ()


@pytest.mark.parametrize(
    ("target", "asked", "chosen"),
    [
        (CUDA, "cuda", "cuda"),
        (CUDA, "cu", "cuda"),
        (CUDA, "cpu", "cpu"),
        ("torch2.9-cann82-aarch64-linux", "npu", "cann"),
        ("torch2.9-metal-aarch64-darwin26.0", "mps", "metal"),
        ("torch2.9-rocm64-x86_64-linux", "cuda", "rocm"),  # Torch's name for the device
        ("torch2.9-rocm64-x86_64-linux", "rocm", "rocm"),
    ],
)
def test_a_backend_is_chosen_by_any_of_its_names(target: str, asked: str, chosen: str) -> None:
    assert resolve([], Target.parse(target), backend=asked).backend == chosen
    assert resolve([], Target.parse(target), device=asked).backend == chosen


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"backend": "rocm"}, RequestError, r"`backend` is 'rocm'; this machine \(.*\) has cuda, cpu"),
        ({"backend": "gpu"}, RequestError, "`backend` is 'gpu'"),
        ({"backend": 3}, TypeError, "`backend`: expected a backend's name, got 3"),
        ({"device": 5}, RequestError, "`device` is 5; cuda has 0"),
        ({"device": -1}, RequestError, "`device` is -1"),
        ({"device": "cuda:5"}, RequestError, "`device` is 5"),
        ({"device": "cuda:x"}, RequestError, "`device`: expected an index or a name like 'cuda:1', got 'cuda:x'"),
        ({"device": "npu:0"}, RequestError, "`device` is 'npu:0'"),
        ({"device": True}, TypeError, r"`device`: expected .* got True \(bool\)"),
        ({"device": 1.5}, TypeError, r"`device`: expected .* got 1.5 \(float\)"),
        ({"device": "cuda:0", "backend": "cpu"}, RequestError, "which is not a device of `backend` 'cpu'"),
    ],
)
def test_what_the_machine_does_not_have_is_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        resolve([COMPILED], HOPPER, **options)


def test_a_backend_that_torch_is_not_built_for_gets_no_build_of_torchs() -> None:
    target = Target(
        os="linux",
        cpu="x86_64",
        torch="2.9.0+cpu",
        cxx11_abi=True,
        tvm_ffi="0.1.2",
        backends={"cuda": "12.8", "cpu": None},
        torch_backends=("cpu",),
        default_backend="cpu",
    )
    names = [COMPILED, "torch-cuda", "torch-cpu", "tvm-ffi01-cu128-x86_64-linux"]
    best = resolve(names, target).best
    assert best is not None
    assert best.name == "torch-cpu"
    asked = resolve(names, target, backend="cuda")
    assert [variant.name for variant in asked.accepted] == ["tvm-ffi01-cu128-x86_64-linux"]
    assert "needs a Torch for cuda, this one is for cpu" in reason(asked, "torch-cuda")


def test_each_build_is_chosen_accepted_or_rejected() -> None:
    names = ["torch-universal", "torch-cpu", "torch-cuda"]
    assert [each.row for each in resolve(names, CPU).decisions] == [
        ("torch-cpu", "chosen", "the best that fits"),
        ("torch-universal", "accepted", "fits, but torch-cpu is preferred"),
        ("torch-cuda", "rejected", "for cuda, not cpu"),
    ]
    [only] = resolve(["torch-cpu"], CPU).decisions
    assert only.row[2] == "the only one that fits"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_notebook_shows_decisions_as_a_table_in_which_nothing_is_markup(name: str) -> None:
    read = ReadHtml(VariantList(resolve(["torch-cpu", name], CPU).decisions)._repr_html_())
    assert read.cells[:6] == ["variant", "verdict", "reason", "torch-cpu", "chosen", "the only one that fits"]
    assert read.cells[7] == "rejected"
    assert read.tags == {"table", "thead", "tbody", "tr", "th", "td"}


def test_ten_thousand_variants_are_all_decided() -> None:
    names = [f"torch2{minor}-cxx11-cu1{cuda:02}-x86_64-linux" for minor in range(100) for cuda in range(100)]
    resolution = resolve(names, Target.parse(CUDA))
    assert len(resolution.decisions) == 10_000
    assert [variant.name for variant in resolution.accepted][:2] == [
        "torch29-cxx11-cu128-x86_64-linux",
        "torch29-cxx11-cu127-x86_64-linux",
    ]


versioned = st.sampled_from(["cu126", "cu128", "cu130", "rocm64", "xpu20253", "cann82", "cpu", "metal", "tpu"])
tails = st.tuples(versioned, st.sampled_from(["x86_64", "aarch64"]), st.sampled_from(["linux", "darwin"])).map("-".join)
heads = st.sampled_from(
    ["torch28", "torch29", "torch29-cxx11", "torch29-cxx98", "torch-stable-abi28", "torch-stable-abi29", "tvm-ffi01"]
)
noarch = st.sampled_from(["cuda", "cpu", "npu", "rocm", "universal", "strange"]).map("torch-{}".format)
names = st.lists(st.one_of(st.tuples(heads, tails).map("-".join), noarch, st.text(max_size=12)), max_size=12)
machines = st.sampled_from(
    [
        CUDA,
        f"{CUDA}+sm_90",
        f"{CUDA}+sm_80+sm_90",
        "torch2.9-cpu-x86_64-linux",
        "torch2.9-tvm-ffi0.1-rocm64-x86_64-linux+gfx942",
        "tvm-ffi0.1-cu128-x86_64-linux",
        "torch2.9-metal-aarch64-darwin26.0",
        "torch2.9-cann82-aarch64-linux",
        "torch2.9-py3.13t-cpu-x86_64-linux",
    ]
).map(Target.parse)
archs = st.lists(st.sampled_from(["8.0", "9.0", "9.0a", "8.0+PTX", "gfx942", "gfx90a"]), max_size=2)
known = st.dictionaries(
    st.one_of(st.tuples(heads, tails).map("-".join), noarch),
    st.builds(lambda kind, each: metadata(kind, *each), st.sampled_from(["cuda", "rocm", "cpu"]), archs),
    max_size=6,
)


@given(names, machines, known, st.booleans())
def test_every_name_gets_one_decision_and_what_is_accepted_is_for_the_machine(
    asked: list[str], machine: Target, facts: dict[str, Metadata], check: bool
) -> None:
    resolution = resolve(asked, machine, metadata=facts, check_arch=check)
    assert resolution == resolve(reversed(asked), machine, metadata=facts, check_arch=check)
    assert sorted(each.variant.variant_str for each in resolution.decisions) == sorted(set(asked))
    kinds = [isinstance(each, VariantRejected) for each in resolution.decisions]
    assert kinds == sorted(kinds)
    assert all(each.reason for each in resolution.rejected)
    assert resolution.best == next(iter(resolution.accepted), None)
    backend = backends.get(resolution.backend)
    for variant in resolution.accepted:
        assert isinstance(variant, Variant)
        assert variant.noarch or (variant.cpu, variant.os) == (machine.cpu, machine.os)
        assert variant.backend in (machine.default_backend, "universal")
        declared = facts[variant.name].backend if variant.name in facts and check else None
        if declared is not None and declared.type == backend.name and resolution.device is not None:
            assert backend.arch_reason(declared.archs, resolution.device) is None


def test_of_many_builds_the_accelerators_are_read_once_and_the_rest_in_a_few_steps() -> None:
    names = [f"torch2{minor}-cxx11-cu{cuda}-x86_64-linux" for minor in range(40) for cuda in (126, 128, 129, 130, 131)]
    target = Target.parse("torch2.9-cu128-x86_64-linux+sm_90")
    rank(names, target)
    calls: Counter[str] = Counter()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_name] += 1

    sys.setprofile(note)
    try:
        ranking = rank(names, target)
    finally:
        sys.setprofile(None)
    assert calls["named_by_accelerator"] == 5
    assert calls.total() < 40 * len(names)
    assert next(iter(ranking.fitting)) == "torch29-cxx11-cu128-x86_64-linux"
