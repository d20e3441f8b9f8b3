#pragma once

// What both directions share on the host: tensors as rows, and the types they come in.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "values.cuh"

namespace rms_norm_cuda {

inline bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// A tensor as `count` rows of `n` values that lie side by side, `stride` values apart.
struct Rows {
  at::Tensor tensor;
  int64_t count, n, stride;

  explicit Rows(const at::Tensor& of) : tensor(of), count(1), n(of.size(-1)), stride(n) {
    if (of.is_contiguous()) {  // without the cost of a view, which small tensors would notice
      count = n ? of.numel() / n : 0;
      return;
    }
    tensor = of.reshape({-1, n});
    if (n > 1 && tensor.stride(1) != 1) {
      tensor = tensor.contiguous();
    }
    count = tensor.size(0);
    stride = tensor.stride(0);
  }

  // Whether every row can be moved in vectors of `size` values.
  bool whole(int size) const {
    return n % size == 0 && (count == 1 || stride % size == 0) && aligned(tensor.const_data_ptr());
  }
};

// Calls `call(input_type, weight_type)` with values of the types that two tensors have; the result has the second.
template <typename Call>
void for_types(const at::Tensor& input, const at::Tensor& weight, const Call& call) {
  const bool same = weight.scalar_type() == input.scalar_type();
  if (input.scalar_type() == at::kFloat) {
    call(float(), float());
  } else if (input.scalar_type() == at::kHalf) {
    same ? call(__half(), __half()) : call(__half(), float());
  } else {
    same ? call(__nv_bfloat16(), __nv_bfloat16()) : call(__nv_bfloat16(), float());
  }
}

void check(const at::Tensor& input, const at::Tensor& weight);

}  // namespace rms_norm_cuda
