#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "../torch-ext/torch_binding.h"
#include "spans.h"

namespace {

// Below this many values a second thread costs more than it saves.
constexpr int64_t kGrain = 16384;

// A tensor as rows of values that lie side by side: `[rows, n]`, contiguous ones as a single row. The two halves of the
// last dimension of a contiguous tensor are such rows as they are, without a copy.
at::Tensor as_rows(const at::Tensor& tensor, bool single) {
  if (single) {
    return tensor.contiguous().view({1, -1});
  }
  auto rows = tensor.reshape({-1, tensor.size(-1)});
  return rows.size(1) > 1 && rows.stride(1) != 1 ? rows.contiguous() : rows;
}

void check(const at::Tensor& gate, const at::Tensor& up) {
  const auto type = gate.scalar_type();
  TORCH_CHECK_TYPE(type == at::kFloat || type == at::kHalf || type == at::kBFloat16, "silu_mul: `gate` is ", type,
                   "; allowed are float32, float16 and bfloat16.");
  TORCH_CHECK_TYPE(up.scalar_type() == gate.scalar_type(), "silu_mul: `up` is ", up.scalar_type(),
                   "; allowed is the type of `gate`, ", gate.scalar_type(), ".");
  TORCH_CHECK_VALUE(up.sizes() == gate.sizes(), "silu_mul: `up` has the shape ", up.sizes(),
                    "; allowed is the shape of `gate`, ", gate.sizes(), ".");
  TORCH_CHECK(up.is_cpu(), "silu_mul: `up` is on ", up.device(), "; allowed is the device of `gate`, cpu.");
}

// Splits `rows` x `n` values between the threads and calls `span(row, column, length)` for each piece of a row.
template <typename Span>
void for_each_span(int64_t rows, int64_t n, const Span& span) {
  at::parallel_for(0, rows * n, kGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t row = begin / n, column = begin % n, length = std::min(end - begin, n - column);
      span(row, column, length);
      begin += length;
    }
  });
}

template <typename T>
const T* at_row(const at::Tensor& rows, int64_t row, int64_t column) {
  return static_cast<const T*>(rows.const_data_ptr()) + row * rows.stride(0) + column;
}

template <typename Call>
void for_type(const at::Tensor& tensor, const Call& call) {
  if (tensor.scalar_type() == at::kFloat) {
    call(float());
  } else if (tensor.scalar_type() == at::kHalf) {
    call(silu_mul_cpu::Half());
  } else {
    call(uint16_t());
  }
}

}  // namespace

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) {
  check(gate, up);
  auto output = at::empty(gate.sizes(), gate.options());
  if (output.numel() == 0) {
    return output;
  }
  const bool single = gate.dim() == 0 || (gate.is_contiguous() && up.is_contiguous());
  const auto gates = as_rows(gate, single), ups = as_rows(up, single);
  for_type(gate, [&](auto value) {
    using T = decltype(value);
    auto* to = static_cast<T*>(output.mutable_data_ptr());
    const int64_t n = gates.size(1);
    for_each_span(gates.size(0), n, [&](int64_t row, int64_t column, int64_t length) {
      silu_mul_cpu::forward(at_row<T>(gates, row, column), at_row<T>(ups, row, column), to + row * n + column, length);
    });
  });
  return output;
}

std::tuple<at::Tensor, at::Tensor> silu_mul_backward(const at::Tensor& grad, const at::Tensor& gate,
                                                     const at::Tensor& up) {
  check(gate, up);
  check(gate, grad);
  auto grad_gate = at::empty(gate.sizes(), gate.options()), grad_up = at::empty(gate.sizes(), gate.options());
  if (gate.numel() == 0) {
    return {grad_gate, grad_up};
  }
  const auto gates = as_rows(gate, true), ups = as_rows(up, true), grads = as_rows(grad, true);
  for_type(gate, [&](auto value) {
    using T = decltype(value);
    auto* to_gate = static_cast<T*>(grad_gate.mutable_data_ptr());
    auto* to_up = static_cast<T*>(grad_up.mutable_data_ptr());
    for_each_span(1, gates.size(1), [&](int64_t row, int64_t column, int64_t length) {
      silu_mul_cpu::backward(at_row<T>(grads, row, column), at_row<T>(gates, row, column), at_row<T>(ups, row, column),
                             to_gate + column, to_up + column, length);
    });
  });
  return {grad_gate, grad_up};
}
