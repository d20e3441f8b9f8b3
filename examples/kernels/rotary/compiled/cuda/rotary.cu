#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/ScalarType.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "../torch-ext/torch_binding.h"

namespace {

constexpr int kThreads = 256;
constexpr int kHeads = 4;  // heads of a token that a thread turns by the same angles

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(__half value) { return __half2float(value); }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ __forceinline__ T narrow(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else {
    return __float2bfloat16_rn(value);
  }
}

// Moved with loads and stores of 8 or 16 bytes.
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector {
  T values[N];
};

struct Strides {
  int64_t batch, token, head, value;
};

// Queries or keys, and where they go.
template <typename T, typename Output>
struct Heads {
  const T* from;
  Output* to;
  Strides from_strides, to_strides;
  int count;
};

template <typename T, typename Angle>
struct Arguments {
  Heads<T, Angle> q, k;
  const Angle* cos;
  const Angle* sin;
  Strides cos_strides, sin_strides;
  int64_t batches, tokens;
  int half;
  int vectors, slots;  // of a half; threads that share a token's heads
  int tokens_a_block;
  bool inverse;
};

template <typename T, int Size>
__device__ __forceinline__ Vector<T, Size> load(const T* from) {
  return *reinterpret_cast<const Vector<T, Size>*>(from);
}

// Each thread turns `Size` values of the first half of a head against those of the second, for up to `kHeads` heads of one
// token: it reads its angles once, and has all heads under way before it uses the first.
template <typename T, typename Angle, int Size>
__global__ void __launch_bounds__(kThreads) rotate(const Arguments<T, Angle> with) {
  const int a_token = with.vectors * with.slots, lane = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int among = lane / a_token, rest = lane - among * a_token;
  const int64_t number = blockIdx.x * static_cast<int64_t>(with.tokens_a_block) + among;
  if (among >= with.tokens_a_block || number >= with.batches * with.tokens) {
    return;
  }
  const int slot = rest / with.vectors, column = (rest - slot * with.vectors) * Size;
  const int64_t batch = number / with.tokens, token = number - batch * with.tokens;
  const auto from = [&](const Heads<T, Angle>& heads, int head, int at) {
    const Strides& by = heads.from_strides;
    return heads.from + batch * by.batch + token * by.token + head * by.head + at * by.value;
  };
  const auto to = [&](const Heads<T, Angle>& heads, int head, int at) {
    const Strides& by = heads.to_strides;
    return heads.to + batch * by.batch + token * by.token + head * by.head + at * by.value;
  };

  Vector<T, Size> first[kHeads], second[kHeads];
#pragma unroll
  for (int each = 0; each < kHeads; ++each) {
    const int head = slot + each * with.slots;
    if (head < with.q.count) {
      first[each] = load<T, Size>(from(with.q, head, column));
      second[each] = load<T, Size>(from(with.q, head, column + with.half));
    } else if (head < with.q.count + with.k.count) {
      first[each] = load<T, Size>(from(with.k, head - with.q.count, column));
      second[each] = load<T, Size>(from(with.k, head - with.q.count, column + with.half));
    }
  }
  const auto angle = [&](const Angle* angles, const Strides& by, int at) {
    return load<Angle, Size>(angles + batch * by.batch + token * by.token + at * by.value);
  };
  const auto cos_of_first = angle(with.cos, with.cos_strides, column);
  const auto cos_of_second = angle(with.cos, with.cos_strides, column + with.half);
  auto sin_of_first = angle(with.sin, with.sin_strides, column);
  auto sin_of_second = angle(with.sin, with.sin_strides, column + with.half);
  const float sign = with.inverse ? -1.0f : 1.0f;
  if (with.inverse) {  // the transposed rotation: the signs change and each half takes the other's sine
    const auto swapped = sin_of_first;
    sin_of_first = sin_of_second;
    sin_of_second = swapped;
  }
#pragma unroll
  for (int each = 0; each < kHeads; ++each) {
    const int head = slot + each * with.slots;
    Vector<Angle, Size> turned_first, turned_second;
#pragma unroll
    for (int i = 0; i < Size; ++i) {
      const float a = widen(first[each].values[i]), b = widen(second[each].values[i]);
      turned_first.values[i] =
          narrow<Angle>(a * widen(cos_of_first.values[i]) - sign * b * widen(sin_of_first.values[i]));
      turned_second.values[i] =
          narrow<Angle>(b * widen(cos_of_second.values[i]) + sign * a * widen(sin_of_second.values[i]));
    }
    using Values = Vector<Angle, Size>;
    if (head < with.q.count) {
      *reinterpret_cast<Values*>(to(with.q, head, column)) = turned_first;
      *reinterpret_cast<Values*>(to(with.q, head, column + with.half)) = turned_second;
    } else if (head < with.q.count + with.k.count) {
      *reinterpret_cast<Values*>(to(with.k, head - with.q.count, column)) = turned_first;
      *reinterpret_cast<Values*>(to(with.k, head - with.q.count, column + with.half)) = turned_second;
    }
  }
}

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
void launch(Arguments<T, Angle> with) {
  const int heads = with.q.count + with.k.count;
  with.vectors = with.half / Size;
  with.slots = (heads + kHeads - 1) / kHeads;
  const int64_t a_token = static_cast<int64_t>(with.vectors) * with.slots, tokens = with.batches * with.tokens;
  with.tokens_a_block = static_cast<int>(std::clamp<int64_t>(kThreads / a_token, 1, tokens));
  const int64_t lanes = with.tokens_a_block * a_token, threads = std::min<int64_t>(lanes, kThreads);
  const int64_t blocks = (tokens + with.tokens_a_block - 1) / with.tokens_a_block;
  TORCH_CHECK(a_token <= INT32_MAX && blocks <= INT32_MAX && (lanes + threads - 1) / threads <= UINT16_MAX,
              "rotary: `q` and `k` have too many tokens, or heads of too many values, for one launch.");
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>((lanes + threads - 1) / threads));
  rotate<T, Angle, Size><<<grid, static_cast<unsigned>(threads), 0, c10::cuda::getCurrentCUDAStream()>>>(with);
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
  constexpr int kSize = 4;  // 8 values of two bytes would take so many registers that few threads are at work
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
  TORCH_CHECK(known(tensor), "rotary: `", name, "` is ", tensor.scalar_type(),
              "; allowed are float32, float16 and bfloat16.");
  TORCH_CHECK(tensor.dim() == 4, "rotary: `", name, "` has the shape ", tensor.sizes(), "; allowed are 4 dimensions.");
  TORCH_CHECK(tensor.device() == cos.device(), "rotary: `", name, "` is on ", tensor.device(),
              "; allowed is the device of `cos`, ", cos.device(), ".");
  const bool fits = (cos.size(0) == 1 || cos.size(0) == tensor.size(0)) && cos.size(1) == tensor.size(3 - heads) &&
                    cos.size(2) == tensor.size(3) && tensor.size(3) % 2 == 0;
  TORCH_CHECK(fits, "rotary: `", name, "` has the shape ", tensor.sizes(), ", and `cos` ", cos.sizes(),
              " with `unsqueeze_dim` ", heads,
              " does not repeat to it; allowed is an even last dimension, equal in both.");
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                          const at::Tensor& sin, int64_t unsqueeze_dim, bool inverse) {
  TORCH_CHECK(known(cos), "rotary: `cos` is ", cos.scalar_type(), "; allowed are float32, float16 and bfloat16.");
  TORCH_CHECK(cos.dim() == 3, "rotary: `cos` has the shape ", cos.sizes(), "; allowed are 3 dimensions.");
  TORCH_CHECK(sin.scalar_type() == cos.scalar_type() && sin.sizes() == cos.sizes() && sin.device() == cos.device(),
              "rotary: `sin` is ", sin.scalar_type(), " ", sin.sizes(), "; allowed is what `cos` is, ",
              cos.scalar_type(), " ", cos.sizes(), ".");
  TORCH_CHECK(unsqueeze_dim == 1 || unsqueeze_dim == 2, "rotary: `unsqueeze_dim` is ", unsqueeze_dim,
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
