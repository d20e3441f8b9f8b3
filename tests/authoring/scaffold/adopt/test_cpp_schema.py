"""A C++ signature becomes a schema, or the reason why it cannot."""

from __future__ import annotations

import pytest

from kernels.authoring.scaffold.adopt.cpp_schema import NotMapped, operator_of, operators_of_schemas
from kernels.authoring.scaffold.adopt.cpp_source import read_cpp


def schema(declared: str, before: str = "") -> str:
    source = read_cpp(f"{before}\n{declared} {{}}")
    [function] = source.functions
    return operator_of(function.name, function, source).schema


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("torch::Tensor f(torch::Tensor x, const at::Tensor& y)", "f(Tensor x, Tensor y) -> Tensor"),
        ("Tensor f(const Tensor& x, optional<Tensor> m = nullopt)", "f(Tensor x, Tensor? m=None) -> Tensor"),
        ("void f(torch::Tensor& out, const torch::Tensor x)", "f(Tensor(a!) out, Tensor x) -> ()"),
        ("void f(torch::Tensor out, torch::Tensor x)", "f(Tensor(a!) out, Tensor(b!) x) -> ()"),
        ("void f(float* out, const float* __restrict__ x, int n)", "f(Tensor(a!) out, Tensor x, int n) -> ()"),
        ("void f(float* const out, const float* const x)", "f(Tensor(a!) out, Tensor x) -> ()"),
        ("at::Tensor f(int a, int64_t b = 3, size_t c = 4u)", "f(int a, int b=3, int c=4) -> Tensor"),
        ("at::Tensor f(float a = 1e-6f, double b = 2.)", "f(float a=1e-6, float b=2.) -> Tensor"),
        ("at::Tensor f(bool a = true, bool b = false)", "f(bool a=True, bool b=False) -> Tensor"),
        ("at::Tensor f(int a = 1, int b = OTHER)", "f(int a, int b) -> Tensor"),
        ("at::Tensor f(const std::string& mode)", "f(str mode) -> Tensor"),
        ("at::Tensor f(std::vector<int64_t> d, at::IntArrayRef e)", "f(int[] d, int[] e) -> Tensor"),
        ("std::vector<at::Tensor> f(std::vector<at::Tensor> x)", "f(Tensor[] x) -> Tensor[]"),
        ("std::tuple<at::Tensor, torch::Tensor> f(at::Tensor x)", "f(Tensor x) -> (Tensor, Tensor)"),
        ("int64_t f(at::Tensor in, at::Scalar s, at::ScalarType t)", "f(Tensor in_, Scalar s, ScalarType t) -> int"),
        ("at::Tensor f(at::Tensor, int)", "f(Tensor argument_0, int argument_1) -> Tensor"),
        ("__global__ void f(const half* x)", "f(Tensor x, int[] grid, int[] block, int shared_bytes=0) -> ()"),
        ("__global__ void f(int grid)", "f(int grid, int[] grid_, int[] block, int shared_bytes=0) -> ()"),
    ],
)  # fmt: skip
def test_a_signature_has_a_schema(declared: str, expected: str) -> None:
    import torch

    assert schema(declared) == expected
    torch._C.parse_schema(expected)


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("template <typename T> void f(T* x)", "it is a template"),
        ("void f(std::tuple<int, int> sizes)", r"the type std::tuple<int, int> of its parameter sizes"),
        ("void f(float** x)", r"float\*\*"),
        ("void f(const Params* x)", r"const Params\*"),
        ("void f(cudaStream_t stream)", "cudaStream_t"),
        ("Result f(at::Tensor x)", "its return type Result"),
    ],
)
def test_what_no_schema_has_is_said(declared: str, says: str) -> None:
    with pytest.raises(NotMapped, match=says):
        schema(declared)


def test_names_that_the_file_gives_to_types_are_known() -> None:
    assert (
        schema("void f(const real* x, size n)", "typedef half real; using size = int64_t;")
        == "f(Tensor x, int n) -> ()"
    )


def test_schemas_of_the_file_itself_become_functions() -> None:
    found, left = operators_of_schemas(
        ["f(Tensor x, Tensor(a!) out, *, float eps=1e-6, int[] sizes=[]) -> (Tensor, Tensor)", "g.out(Tensor x) -> ()"]
    )
    assert left == ["g.out"]
    [operator] = found
    assert [(each.name, each.python, each.default, each.is_written) for each in operator.arguments] == [
        ("x", "torch.Tensor", "", False),
        ("out", "torch.Tensor", "", True),
        ("eps", "float", "1e-6", False),
        ("sizes", "list[int]", "", False),
    ]


@pytest.mark.parametrize("name", ["ops", "torch", "__all__"])
def test_a_name_of_the_package_itself_is_not_given_to_a_function(name: str) -> None:
    with pytest.raises(NotMapped, match=f"the package uses the name '{name}' itself"):
        schema(f"at::Tensor {name}(at::Tensor x)")


def test_a_function_with_more_parameters_than_an_operator_can_have_is_not_mapped() -> None:
    parameters = ", ".join(f"int x{number}" for number in range(300))
    with pytest.raises(NotMapped, match="it has 300 parameters"):
        schema(f"at::Tensor f({parameters})")
