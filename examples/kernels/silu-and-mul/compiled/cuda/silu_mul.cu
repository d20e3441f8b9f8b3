#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "../torch-ext/torch_binding.h"

namespace {

constexpr int kThreads = 128;
// Vectors of each tensor that a thread has under way: enough to keep the memory busy.
template <int Size>
constexpr int kPerThread = Size == 1 ? 8 : 2;

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

template <typename T, int N>
struct alignas(sizeof(T) * N) Vector {
  T values[N];
};

__device__ __forceinline__ float sigmoid(float value) { return __fdividef(1.0f, 1.0f + __expf(-value)); }

struct Forward {
  template <typename T, int N>
  __device__ static void apply(const Vector<T, N> (&in)[2], Vector<T, N> (&out)[1]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float gate = widen(in[0].values[i]);
      out[0].values[i] = narrow<T>(__fdividef(gate, 1.0f + __expf(-gate)) * widen(in[1].values[i]));
    }
  }
};

struct Backward {
  template <typename T, int N>
  __device__ static void apply(const Vector<T, N> (&in)[3], Vector<T, N> (&out)[2]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float grad = widen(in[0].values[i]), gate = widen(in[1].values[i]), up = widen(in[2].values[i]);
      const float s = sigmoid(gate);
      out[0].values[i] = narrow<T>(grad * up * s * (1.0f + gate * (1.0f - s)));
      out[1].values[i] = narrow<T>(grad * gate * s);
    }
  }
};

// Tensors as rows of `a_row` vectors; the results' rows follow each other.
template <typename T, typename Index, int Inputs, int Outputs>
struct Arguments {
  const T* inputs[Inputs];
  T* outputs[Outputs];
  int64_t strides[Inputs];
  Index vectors, a_row;  // in all, of a row
};

template <typename Function, typename T, typename Index, int Size, int Inputs, int Outputs>
__global__ void __launch_bounds__(kThreads) by_vector(const Arguments<T, Index, Inputs, Outputs> with) {
  using Values = Vector<T, Size>;
  const Index first = static_cast<Index>(blockIdx.x) * (kThreads * kPerThread<Size>) + threadIdx.x;
  Values in[kPerThread<Size>][Inputs];
#pragma unroll
  for (int each = 0; each < kPerThread<Size>; ++each) {
    const Index at = first + each * kThreads;
    if (at < with.vectors) {
      const bool single = with.a_row == with.vectors;
      const Index row = single ? 0 : at / with.a_row, column = single ? at : at - row * with.a_row;
#pragma unroll
      for (int tensor = 0; tensor < Inputs; ++tensor) {
        const T* from = with.inputs[tensor] + static_cast<int64_t>(row) * with.strides[tensor];
        in[each][tensor] = reinterpret_cast<const Values*>(from)[column];
      }
    }
  }
#pragma unroll
  for (int each = 0; each < kPerThread<Size>; ++each) {
    const Index at = first + each * kThreads;
    if (at < with.vectors) {
      Values out[Outputs];
      Function::apply(in[each], out);
#pragma unroll
      for (int tensor = 0; tensor < Outputs; ++tensor) {
        reinterpret_cast<Values*>(with.outputs[tensor])[at] = out[tensor];
      }
    }
  }
}

// A tensor as rows of values that lie side by side. Contiguous ones are a single row; the two halves of a larger tensor's
// last dimension are rows as they are.
at::Tensor as_rows(const at::Tensor& tensor) {
  auto rows = tensor.reshape({-1, tensor.size(-1)});
  return rows.size(1) > 1 && rows.stride(1) != 1 ? rows.contiguous() : rows;
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

template <typename Function, typename T, typename Index, int Size, int Inputs, int Outputs>
void launch(const std::array<at::Tensor, Inputs>& inputs, const std::array<at::Tensor, Outputs>& outputs, bool single) {
  Arguments<T, Index, Inputs, Outputs> with{};
  const int64_t values = outputs[0].numel(), n = single ? values : inputs[0].size(1);
  for (int each = 0; each < Inputs; ++each) {
    with.inputs[each] = static_cast<const T*>(inputs[each].const_data_ptr());
    with.strides[each] = single ? 0 : inputs[each].stride(0);
  }
  for (int each = 0; each < Outputs; ++each) {
    with.outputs[each] = static_cast<T*>(outputs[each].mutable_data_ptr());
  }
  with.vectors = static_cast<Index>(values / Size);
  with.a_row = static_cast<Index>(n / Size);
  constexpr int kVectors = kThreads * kPerThread<Size>;
  const int64_t blocks = (values / Size + kVectors - 1) / kVectors;
  by_vector<Function, T, Index, Size, Inputs, Outputs>
      <<<static_cast<unsigned>(blocks), kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(with);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename Function, typename T, int Inputs, int Outputs>
void run_as(const std::array<at::Tensor, Inputs>& inputs, const std::array<at::Tensor, Outputs>& outputs, bool single) {
  constexpr int kSize = 16 / sizeof(T);
  const int64_t values = outputs[0].numel();
  bool whole = (single ? values : inputs[0].size(1)) % kSize == 0;
  for (const auto& input : inputs) {
    whole = whole && aligned(input.const_data_ptr()) && (single || input.size(0) == 1 || input.stride(0) % kSize == 0);
  }
  if (whole && values / kSize < INT32_MAX) {
    launch<Function, T, uint32_t, kSize, Inputs, Outputs>(inputs, outputs, single);
  } else if (values < INT32_MAX) {
    launch<Function, T, uint32_t, 1, Inputs, Outputs>(inputs, outputs, single);
  } else {
    launch<Function, T, uint64_t, 1, Inputs, Outputs>(inputs, outputs, single);
  }
}

template <typename Function, int Inputs, int Outputs>
void run(std::array<at::Tensor, Inputs> inputs, const std::array<at::Tensor, Outputs>& outputs) {
  if (outputs[0].numel() == 0) {
    return;
  }
  const bool single = std::all_of(inputs.begin(), inputs.end(), [](const auto& each) { return each.is_contiguous(); });
  if (!single) {
    std::transform(inputs.begin(), inputs.end(), inputs.begin(), as_rows);
  }
  const auto type = outputs[0].scalar_type();
  if (type == at::kFloat) {
    run_as<Function, float, Inputs, Outputs>(inputs, outputs, single);
  } else if (type == at::kHalf) {
    run_as<Function, __half, Inputs, Outputs>(inputs, outputs, single);
  } else {
    run_as<Function, __nv_bfloat16, Inputs, Outputs>(inputs, outputs, single);
  }
}

void check(const char* name, const at::Tensor& gate, const at::Tensor& other) {
  const auto type = gate.scalar_type();
  TORCH_CHECK_TYPE(type == at::kFloat || type == at::kHalf || type == at::kBFloat16, "silu_mul: `gate` is ", type,
                   "; allowed are float32, float16 and bfloat16.");
  TORCH_CHECK_TYPE(other.scalar_type() == type, "silu_mul: `", name, "` is ", other.scalar_type(),
                   "; allowed is the type of `gate`, ", type, ".");
  TORCH_CHECK_VALUE(other.sizes() == gate.sizes(), "silu_mul: `", name, "` has the shape ", other.sizes(),
                    "; allowed is the shape of `gate`, ", gate.sizes(), ".");
  TORCH_CHECK(other.device() == gate.device(), "silu_mul: `", name, "` is on ", other.device(),
              "; allowed is the device of `gate`, ", gate.device(), ".");
}

}  // namespace

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) {
  check("up", gate, up);
  const c10::cuda::CUDAGuard guard(gate.device());
  auto output = at::empty(gate.sizes(), gate.options());
  run<Forward, 2, 1>({gate, up}, {output});
  return output;
}

std::tuple<at::Tensor, at::Tensor> silu_mul_backward(const at::Tensor& grad, const at::Tensor& gate,
                                                     const at::Tensor& up) {
  check("up", gate, up);
  check("grad", gate, grad);
  const c10::cuda::CUDAGuard guard(gate.device());
  auto grad_gate = at::empty(gate.sizes(), gate.options()), grad_up = at::empty(gate.sizes(), gate.options());
  run<Backward, 3, 2>({grad, gate, up}, {grad_gate, grad_up});
  return {grad_gate, grad_up};
}
