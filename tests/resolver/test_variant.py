"""Variant names parse and print exactly; nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import backends
from kernels.errors import InvalidVariant, RequestError
from kernels.resolver.variant import UnparsedVariant, Variant, parse_variant

# kind, framework version, ABI tag, backend, accelerator version, processor, system
PARSED = {
    "torch-cuda": ("torch-noarch", None, None, "cuda", None, None, None),
    "torch-cpu": ("torch-noarch", None, None, "cpu", None, None, None),
    "torch-npu": ("torch-noarch", None, None, "cann", None, None, None),
    "torch-universal": ("torch-noarch", None, None, "universal", None, None, None),
    "torch-metal": ("torch-noarch", None, None, "metal", None, None, None),
    "torch-ttnn": ("torch-noarch", None, None, "ttnn", None, None, None),
    "torch213-cxx11-cu130-x86_64-linux": ("torch", (2, 13), "cxx11", "cuda", (13, 0), "x86_64", "linux"),
    "torch26-cxx98-cu118-x86_64-linux": ("torch", (2, 6), "cxx98", "cuda", (11, 8), "x86_64", "linux"),
    "torch212-metal-aarch64-darwin": ("torch", (2, 12), None, "metal", None, "aarch64", "darwin"),
    "torch210-cu128-x86_64-windows": ("torch", (2, 10), None, "cuda", (12, 8), "x86_64", "windows"),
    "torch29-cxx11-xpu20252-x86_64-linux": ("torch", (2, 9), "cxx11", "xpu", (2025, 2), "x86_64", "linux"),
    "torch29-cxx11-rocm63-x86_64-linux": ("torch", (2, 9), "cxx11", "rocm", (6, 3), "x86_64", "linux"),
    "torch29-cxx11-cann82-aarch64-linux": ("torch", (2, 9), "cxx11", "cann", (8, 2), "aarch64", "linux"),
    "torch29-cxx11-cpu-riscv64-linux": ("torch", (2, 9), "cxx11", "cpu", None, "riscv64", "linux"),
    "torch29-neuron-x86_64-linux": ("torch", (2, 9), None, "neuron", None, "x86_64", "linux"),
    "torch-stable-abi29-cu130-x86_64-linux": ("torch-stable-abi", (2, 9), None, "cuda", (13, 0), "x86_64", "linux"),
    "torch-stable-abi210-tpu-x86_64-linux": ("torch-stable-abi", (2, 10), None, "tpu", None, "x86_64", "linux"),
    "tvm-ffi01-cu128-x86_64-linux": ("tvm-ffi", (0, 1), None, "cuda", (12, 8), "x86_64", "linux"),
    "tvm-ffi112-cpu-x86_64-linux": ("tvm-ffi", (1, 12), None, "cpu", None, "x86_64", "linux"),
}


@pytest.mark.parametrize("name", PARSED)
def test_a_name_says_what_a_build_was_made_for(name: str) -> None:
    found = parse_variant(name)
    assert PARSED[name] == (
        found.kind, found.framework_version, found.abi, found.backend, found.accelerator_version, found.cpu, found.os,
    )  # fmt: skip
    assert found.noarch == (found.kind == "torch-noarch")
    assert found.name == found.variant_str == str(found) == name


HOSTILE = [
    "",
    "torch",
    "torch-",
    "torch--cuda",
    "torch-../../etc",
    "torch-cuda/..",
    "../torch-cuda",
    "torch-cuda\n",
    "torch-cuda\x00",
    "torch-CUDA",
    "torch-cuda ",
    "torch２９-cu128-x86_64-linux",
    "torch29-cu128-x86_64",
    "torch29-cu128-x86_64-linux-extra",
    "torch29-cxx14-cu128-x86_64-linux",
    "torch2-cu128-x86_64-linux",
    "torch209-cu128-x86_64-linux",  # would print as torch29
    "torch29-cu0128-x86_64-linux",
    "torch29-cu8-x86_64-linux",
    "torch29-cuda128-x86_64-linux",
    "torch29-tt14-x86_64-linux",
    "torch29-universal-x86_64-linux",
    "torch29-cu128-x86/64-linux",
    "torch29-cu128-..-linux",
    "torch-stable-abi-cu128-x86_64-linux",
    "torch-stable-abi29-cxx11-cu128-x86_64-linux",
    "tvm-ffi-cu128-x86_64-linux",
    "tvm-ffi01-cxx11-cu128-x86_64-linux",
    "jax05-cu128-x86_64-linux",
    "torch-" + "a" * 10_000,
    "torch29-cu" + "1" * 10_000 + "-x86_64-linux",
    "__pycache__",
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[:40])
def test_what_is_no_variants_name_is_refused_in_a_short_printable_message(name: str) -> None:
    with pytest.raises(InvalidVariant) as caught:
        parse_variant(name)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def test_a_name_that_is_not_text_is_refused() -> None:
    with pytest.raises(InvalidVariant):
        parse_variant(None)  # type: ignore[arg-type]


@given(st.text(max_size=60) | st.text("torch-sablefi019cuxpm_86vn", max_size=60))
def test_a_name_that_parses_prints_as_it_was(name: str) -> None:
    try:
        variant = parse_variant(name)
    except InvalidVariant:
        return
    assert variant.name == name


minors = st.integers(0, 9)
accelerators = st.sampled_from(backends.all_backends()).flatmap(
    lambda backend: st.tuples(
        st.just(backend.name), st.tuples(st.integers(0, 2030), minors) if backend.versioned else st.none()
    )
)


@given(
    kind=st.sampled_from(["torch", "torch-stable-abi", "tvm-ffi"]),
    framework=st.tuples(minors, st.integers(0, 99)),
    accelerator=accelerators,
    cpu=st.sampled_from(["x86_64", "aarch64", "riscv64"]),
    system=st.sampled_from(["linux", "darwin", "windows"]),
    abi=st.sampled_from([None, "cxx11", "cxx98"]),
)
def test_a_compiled_variant_that_is_written_parses_back(
    kind: str,
    framework: tuple[int, int],
    accelerator: tuple[str, tuple[int, int] | None],
    cpu: str,
    system: str,
    abi: str | None,
) -> None:
    tag = abi if kind == "torch" else None
    variant = Variant.compiled(kind, framework, *accelerator, cpu=cpu, os=system, abi=tag)  # type: ignore[arg-type]
    assert parse_variant(variant.name) == variant
    assert (variant.framework_version, variant.accelerator_version) == (framework, accelerator[1])
    assert hash(variant) == hash(parse_variant(variant.name))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("torch", (10, 2), "cuda", (12, 8)), InvalidVariant),  # would read as 1.02
        (("torch", (2, 9), "cuda", (12, 10)), ValueError),
        (("torch", (2, 9), "gpu", None), RequestError),
        (("torch-stable-abi", (12, 9), "cpu", None), InvalidVariant),
    ],
)
def test_what_no_name_can_say_is_refused(arguments: tuple[object, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        Variant.compiled(*arguments, cpu="x86_64", os="linux")  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", [each.name for each in backends.all_backends()])
def test_every_backend_has_a_noarch_variant(backend: str) -> None:
    variant = Variant.for_noarch(backend)
    assert (variant.noarch, variant.backend) == (True, backend)


def test_a_folder_that_is_no_variant_keeps_its_name() -> None:
    assert UnparsedVariant("x y").variant_str == str(UnparsedVariant("x y")) == "x y"
