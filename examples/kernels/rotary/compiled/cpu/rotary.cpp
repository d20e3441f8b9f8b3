#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "../torch-ext/torch_binding.h"
#include "rows.h"

namespace {

// Below this many values a second thread costs more than it saves.
constexpr int64_t kGrain = 16384;

bool known(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

at::Tensor side_by_side(const at::Tensor& tensor) { return tensor.stride(-1) == 1 ? tensor : tensor.contiguous(); }

// All four tensors have the sizes [B, M, N, 2 * half]; those that are smaller repeat with a stride of 0.
template <typename T>
void run(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, at::Tensor& output, bool inverse) {
  // Rows that are neighbours in memory are done one after the other.
  const int inner = x.stride(1) < x.stride(2) ? 1 : 2, outer = 3 - inner;
  const int64_t half = x.size(3) / 2, many = x.size(outer);
  const auto at_row = [&](const at::Tensor& tensor, int64_t batch, int64_t row) {
    return static_cast<const T*>(tensor.const_data_ptr()) + batch * tensor.stride(0) + row * tensor.stride(outer);
  };
  auto* to = static_cast<T*>(output.mutable_data_ptr());
  const int64_t values = x.size(inner) * x.size(3);
  at::parallel_for(0, x.size(0) * many, std::max<int64_t>(1, kGrain / values), [&](int64_t begin, int64_t end) {
    for (int64_t each = begin; each < end; ++each) {
      const int64_t batch = each / many, row = each % many;
      rotary_cpu::rotate(
          rotary_cpu::Rows<T>{at_row(x, batch, row), at_row(cos, batch, row), at_row(sin, batch, row),
                              to + batch * output.stride(0) + row * output.stride(outer), x.stride(inner),
                              cos.stride(inner), sin.stride(inner), output.stride(inner), x.size(inner), half},
          inverse);
    }
  });
}

at::Tensor rotate(const char* name, const at::Tensor& tensor, const at::Tensor& cosine, const at::Tensor& sine,
                  int64_t unsqueeze_dim, bool inverse) {
  TORCH_CHECK_TYPE(known(tensor), "rotary: `", name, "` is ", tensor.scalar_type(),
                   "; allowed are float32, float16 and bfloat16.");
  TORCH_CHECK_VALUE(tensor.dim() == 4, "rotary: `", name, "` has the shape ", tensor.sizes(), "; allowed are 4 dimensions.");
  TORCH_CHECK(tensor.is_cpu(), "rotary: `", name, "` is on ", tensor.device(), "; allowed is cpu.");
  auto cos = cosine.unsqueeze(unsqueeze_dim), sin = sine.unsqueeze(unsqueeze_dim);
  bool fits = cos.size(3) == tensor.size(3) && tensor.size(3) % 2 == 0;
  for (int64_t dim = 0; dim < 3; ++dim) {
    fits = fits && (cos.size(dim) == 1 || cos.size(dim) == tensor.size(dim));
  }
  TORCH_CHECK_VALUE(fits, "rotary: `", name, "` has the shape ", tensor.sizes(), ", and `cos` ", cosine.sizes(),
                    " with `unsqueeze_dim` ", unsqueeze_dim, " does not repeat to it; allowed is an even last dimension, equal in both.");

  const auto type = c10::promoteTypes(tensor.scalar_type(), cos.scalar_type());
  const auto x = side_by_side(tensor.to(type));
  auto output = at::empty_like(x);
  if (output.numel() == 0) {
    return output;
  }
  cos = side_by_side(cos.to(type)).expand(x.sizes());
  sin = side_by_side(sin.to(type)).expand(x.sizes());
  if (type == at::kFloat) {
    run<float>(x, cos, sin, output, inverse);
  } else if (type == at::kHalf) {
    run<rotary_cpu::Half>(x, cos, sin, output, inverse);
  } else {
    run<uint16_t>(x, cos, sin, output, inverse);
  }
  return output;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                          const at::Tensor& sin, int64_t unsqueeze_dim, bool inverse) {
  TORCH_CHECK_TYPE(known(cos), "rotary: `cos` is ", cos.scalar_type(), "; allowed are float32, float16 and bfloat16.");
  TORCH_CHECK_VALUE(cos.dim() == 3, "rotary: `cos` has the shape ", cos.sizes(), "; allowed are 3 dimensions.");
  TORCH_CHECK_VALUE(sin.scalar_type() == cos.scalar_type() && sin.sizes() == cos.sizes(), "rotary: `sin` is ",
                    sin.scalar_type(), " ", sin.sizes(), "; allowed is what `cos` is, ", cos.scalar_type(), " ", cos.sizes(), ".");
  TORCH_CHECK(cos.is_cpu() && sin.is_cpu(), "rotary: `cos` and `sin` are on ", cos.device(), " and ", sin.device(),
              "; allowed is the device of `q`, cpu.");
  auto rotated_q = rotate("q", q, cos, sin, unsqueeze_dim, inverse);
  return {std::move(rotated_q), rotate("k", k, cos, sin, unsqueeze_dim, inverse)};
}
