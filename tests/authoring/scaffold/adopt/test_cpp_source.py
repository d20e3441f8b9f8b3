"""A C++ file's functions and registrations are found without a compiler."""

from __future__ import annotations

import pytest

from kernels.authoring.scaffold.adopt.cpp_source import read_cpp

SOURCE = r"""
#include <torch/extension.h>
#include "common.h"
// void in_a_comment(int) {}
/* torch::Tensor in_another(torch::Tensor x) { return x; } */
#define CHECK(x) TORCH_CHECK(x, "{ ( \" }")
constexpr char kText[] = "void in_a_text(int x) {";
constexpr char kRaw[] = R"x(void in_a_raw_text(int x) { ")x";
struct Config { int member(int a) { return a; } int b = 1; };
template <typename T, int N>
__global__ void __launch_bounds__(256) generic(const T* __restrict__ a) { call("}"); }
template <> int specialised<float>(int x);
extern "C" __global__ void kernel(const float* a, float *b, int n) {}
extern "C" void solve(const float* A, float* C, int N) { kernel<<<1, 2>>>(A, N); kernel<<<dim3(1, 2), 2, 0, s>>>(A); }
extern "C" { void declared(float x[], unsigned int n); }
__device__ float on_the_device(float x) { return x; }
namespace a::b { namespace {
[[nodiscard]] static std::vector<torch::Tensor> pair(torch::Tensor x, const at::Tensor &y, float eps = 1e-6f,
    std::tuple<int,int> q = {1,2}) { char c = '{'; if (x) { return {x}; } }
} }
namespace c {
auto trailing(const torch::Tensor& x) -> torch::Tensor { return x; }
inline void no_parameters(void) {}
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &a::b::pair, "m.def(\"no\", &no)");
  // m.def("commented", &commented);
  m.def("wrapped", torch::wrap_pybind_function(c::trailing));
}
TORCH_LIBRARY(foo, m) { m.def("two(Tensor a,"
  " Tensor b) -> Tensor"); m.def("overload.out(Tensor a) -> ()"); }
TORCH_LIBRARY_IMPL(foo, CPU, m) { m.impl(TORCH_SELECTIVE_NAME("two"), TORCH_FN(two_on_the_cpu)); }
typedef unsigned long long id_type;
using real = float;
int main() { return 0; }
"""


def test_functions_are_found_with_their_namespaces_and_parameters() -> None:
    functions = {each.name: each for each in read_cpp(SOURCE).functions}
    assert list(functions) == [
        "generic", "kernel", "solve", "declared", "pair", "trailing", "no_parameters",
    ]  # fmt: skip
    assert functions["pair"].qualified == "a::b::pair"
    assert functions["pair"].returns == "std::vector<torch::Tensor>"
    assert [(each.type, each.name, each.default) for each in functions["pair"].parameters] == [
        ("torch::Tensor", "x", ""),
        ("const at::Tensor&", "y", ""),
        ("float", "eps", "1e-6f"),
        ("std::tuple<int, int>", "q", "{1, 2}"),
    ]
    assert [each.type for each in functions["kernel"].parameters] == ["const float*", "float*", "int"]
    assert [each.type for each in functions["declared"].parameters] == ["float*", "unsigned int"]
    assert (functions["generic"].is_template, functions["generic"].is_kernel) == (True, True)
    assert (functions["kernel"].is_template, functions["kernel"].is_kernel) == (False, True)
    assert functions["declared"].is_declaration
    assert functions["trailing"].returns == "torch::Tensor"
    assert functions["no_parameters"].parameters == ()
    assert SOURCE.splitlines()[functions["solve"].line - 1].startswith('extern "C" void solve')


def test_registrations_are_found() -> None:
    source = read_cpp(SOURCE)
    assert source.python_names == {"forward": "pair", "wrapped": "trailing"}
    assert source.schemas == ("two(Tensor a, Tensor b) -> Tensor", "overload.out(Tensor a) -> ()")
    assert source.implementations == {"two": "two_on_the_cpu"}
    assert source.includes == ("<torch/extension.h>", '"common.h"')
    assert source.aliases == {"id_type": "unsigned long long", "real": "float"}
    assert source.on_default_stream == (14,)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "}}}}", "((((", "void f(", 'char* x = "', "/* never closed", "namespace a {", "void f(int x) {", "'",
        "#if 0",
        "template <", "a" * 20_000, "(" * 20_000, "namespace a { " * 500, "void f(int x, " * 2000, "\0\x7f\ufffd<<<>>>",
    ],
    ids=lambda text: ascii(text[:12]),
)  # fmt: skip
def test_a_broken_file_is_read_to_its_end(text: str) -> None:
    assert read_cpp(text).python_names == {}


@pytest.mark.parametrize(
    "text",
    [
        '"\\' * 100_000, "'\\" * 100_000, 'R"(' * 100_000, "/*" * 100_000, "<<<" * 200_000,
        "typedef " + " " * 100_000, "using x = " + " " * 100_000, "typedef a " * 20_000,
        'PYBIND11_MODULE(x, m) { m.def("x", ' + "static_cast<a>(&" * 100 + "1); }",
        "alignas(" * 20_000 + ")" * 20_000 + "x;", "[[" * 100_000 + ";", "namespace " * 50_000 + "() {}",
    ],
    ids=lambda text: ascii(text[:12]),
)  # fmt: skip
def test_a_text_that_is_made_to_take_long_does_not(text: str) -> None:
    source = read_cpp(f"int first(int a) {{}}\n{text}")
    assert [each.name for each in source.functions] == ["first"]
