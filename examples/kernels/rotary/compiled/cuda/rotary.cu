#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/ScalarType.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "../torch-ext/torch_binding.h"
#include "turn.cuh"

namespace {

using namespace rotary_cuda;

bool known(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

// The strides of a tensor [B, H, S, D] or, with the heads at dimension 2, [B, S, H, D].
Strides strides_of(const at::Tensor& tensor, int64_t heads) {
  return {tensor.stride(0), tensor.stride(3 - heads), tensor.stride(heads), tensor.stride(3)};
}

// The strides of angles [B or 1, S, D].
Strides strides_of(const at::Tensor& angles) {
  return {angles.size(0) > 1 ? angles.stride(0) : 0, angles.stride(1), 0, angles.stride(2)};
}

bool whole(const Strides& strides, const void* pointer, int size) {
  return strides.value == 1 && strides.batch % size == 0 && strides.token % size == 0 && strides.head % size == 0 &&
         reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

template <typename T, typename Angle, int Size>
void launch(const Arguments<T, Angle>& with) {
  constexpr int kCount = sizeof(Angle) == 2 && Size > 1 ? 2 : 4;  // heads of a thread, as measured
  const int heads = with.q.count + with.k.count;
  const int x = std::min(with.half / Size, 32);
  const int y = std::min((heads + kCount - 1) / kCount, kMostThreads / x);
  const int z = std::min(kMostThreads / (x * y), 64);
  const int64_t blocks = (with.tokens + z - 1) / z, groups = (heads + y * kCount - 1) / (y * kCount);
  TORCH_CHECK(blocks <= INT32_MAX && groups <= UINT16_MAX,
              "rotary: `q` and `k` have too many tokens or heads for one launch.");
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(groups),
                  static_cast<unsigned>(std::min<int64_t>(with.batches, UINT16_MAX)));
  const dim3 threads(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
  rotate<T, Angle, Size, kCount><<<grid, threads, 0, c10::cuda::getCurrentCUDAStream()>>>(with);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T, typename Angle>
void run(const at::Tensor& q, const at::Tensor* k, const at::Tensor& cos, const at::Tensor& sin, at::Tensor& q_output,
         at::Tensor* k_output, int64_t heads, bool inverse) {
  const auto side = [&](const at::Tensor& tensor, at::Tensor& output) {
    return Heads<T, Angle>{static_cast<const T*>(tensor.const_data_ptr()), static_cast<Angle*>(output.mutable_data_ptr()),
                           strides_of(tensor, heads), strides_of(output, heads), static_cast<int>(tensor.size(heads))};
  };
  Arguments<T, Angle> with{};
  with.q = side(q, q_output);
  if (k != nullptr) {
    with.k = side(*k, *k_output);
  }
  with.cos = static_cast<const Angle*>(cos.const_data_ptr());
  with.sin = static_cast<const Angle*>(sin.const_data_ptr());
  with.cos_strides = strides_of(cos);
  with.sin_strides = strides_of(sin);
  with.batches = q.size(0);
  with.tokens = q.size(3 - heads);
  with.half = static_cast<int>(q.size(3) / 2);
  with.inverse = inverse;
  if (with.batches * with.tokens * with.half * (with.q.count + with.k.count) == 0) {
    return;
  }
  constexpr int kSize = 16 / sizeof(Angle);
  bool all = with.half % kSize == 0 && whole(with.cos_strides, with.cos, kSize) && whole(with.sin_strides, with.sin, kSize);
  for (const auto* side : {&with.q, &with.k}) {
    all = all && (side->count == 0 || (whole(side->from_strides, side->from, kSize) &&
                                       whole(side->to_strides, side->to, kSize)));
  }
  all ? launch<T, Angle, kSize>(with) : launch<T, Angle, 1>(with);
}

template <typename... Rest>
void for_types(c10::ScalarType values, c10::ScalarType angles, Rest&&... rest) {
  if (values == at::kFloat) {
    run<float, float>(rest...);
  } else if (values == at::kHalf) {
    angles == at::kHalf ? run<__half, __half>(rest...) : run<__half, float>(rest...);
  } else {
    angles == at::kBFloat16 ? run<__nv_bfloat16, __nv_bfloat16>(rest...) : run<__nv_bfloat16, float>(rest...);
  }
}

void check(const char* name, const at::Tensor& tensor, const at::Tensor& cos, int64_t heads) {
  TORCH_CHECK_TYPE(known(tensor), "rotary: `", name, "` is ", tensor.scalar_type(),
                   "; allowed are float32, float16 and bfloat16.");
  TORCH_CHECK_VALUE(tensor.dim() == 4, "rotary: `", name, "` has the shape ", tensor.sizes(), "; allowed are 4 dimensions.");
  TORCH_CHECK(tensor.device() == cos.device(), "rotary: `", name, "` is on ", tensor.device(),
              "; allowed is the device of `cos`, ", cos.device(), ".");
  const bool fits = (cos.size(0) == 1 || cos.size(0) == tensor.size(0)) && cos.size(1) == tensor.size(3 - heads) &&
                    cos.size(2) == tensor.size(3) && tensor.size(3) % 2 == 0;
  TORCH_CHECK_VALUE(fits, "rotary: `", name, "` has the shape ", tensor.sizes(), ", and `cos` ", cos.sizes(),
                    " with `unsqueeze_dim` ", heads,
                    " does not repeat to it; allowed is an even last dimension, equal in both.");
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                          const at::Tensor& sin, int64_t unsqueeze_dim, bool inverse) {
  TORCH_CHECK_TYPE(known(cos), "rotary: `cos` is ", cos.scalar_type(), "; allowed are float32, float16 and bfloat16.");
  TORCH_CHECK_VALUE(cos.dim() == 3, "rotary: `cos` has the shape ", cos.sizes(), "; allowed are 3 dimensions.");
  TORCH_CHECK_VALUE(sin.scalar_type() == cos.scalar_type() && sin.sizes() == cos.sizes() && sin.device() == cos.device(),
                    "rotary: `sin` is ", sin.scalar_type(), " ", sin.sizes(), "; allowed is what `cos` is, ",
                    cos.scalar_type(), " ", cos.sizes(), ".");
  TORCH_CHECK_VALUE(unsqueeze_dim == 1 || unsqueeze_dim == 2, "rotary: `unsqueeze_dim` is ", unsqueeze_dim,
                    "; allowed are 1 and 2.");
  check("q", q, cos, unsqueeze_dim);
  check("k", k, cos, unsqueeze_dim);
  const c10::cuda::CUDAGuard guard(q.device());
  const auto turn = [&](const at::Tensor& x, const at::Tensor* y) {
    const auto type = c10::promoteTypes(x.scalar_type(), cos.scalar_type());
    // Values and angles of two narrow types meet in float32, as do wide values and narrow angles.
    const bool as_is = x.scalar_type() == type || type == cos.scalar_type();
    const auto values = as_is ? x : x.to(type);
    const auto cosine = cos.to(type), sine = sin.to(type);
    const auto like = [&](const at::Tensor& of) {
      const auto options = of.options().dtype(type);
      return of.stride(3) == 1 ? at::empty_like(of, options) : at::empty(of.sizes(), options);
    };
    auto output = like(x);
    auto other = y != nullptr ? like(*y) : at::Tensor();
    const auto others = y == nullptr || as_is ? y : nullptr;
    for_types(values.scalar_type(), type, values, others, cosine, sine, output, others != nullptr ? &other : nullptr,
              unsqueeze_dim, inverse);
    if (y != nullptr && others == nullptr) {
      for_types(type, type, y->to(type), static_cast<const at::Tensor*>(nullptr), cosine, sine, other,
                static_cast<at::Tensor*>(nullptr), unsqueeze_dim, inverse);
    }
    return std::tuple(output, other);
  };
  const bool together = q.scalar_type() == k.scalar_type() && q.size(0) == k.size(0);
  if (together) {
    return turn(q, &k);
  }
  return {std::get<0>(turn(q, nullptr)), std::get<0>(turn(k, nullptr))};
}
