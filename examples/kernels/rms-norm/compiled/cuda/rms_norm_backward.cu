#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <optional>

#include "../torch-ext/backward_in_torch.h"
#include "../torch-ext/torch_binding.h"
#include "rows.cuh"

// y = w * x * r with r = (mean(x^2) + eps)^(-1/2), so with g = w * dy:  dx = r * (g - x * r * mean(g * x * r)).
//
// The blocks share the rows, and each adds up its part of the weight's gradient in registers; `sum_rows` adds the parts.
// Rows that are longer than a block's registers are divided between the blocks of a team. Each block tells the others its
// two sums of every row in one word of memory, which says by its sign whether it was written. It adds up its next row
// before it waits for the words of this one, which by then are there. All blocks of the launch run at once (a cooperative
// launch).

namespace rms_norm_cuda {

namespace {

constexpr int kMostThreads = 512;  // of a block that has a row to itself
constexpr int kTeamThreads = 256;  // of a block that shares it: several such fit a multiprocessor
constexpr int kLongRow = 1024;     // values, from which on the parts of the weight's gradient are worth being few

template <typename Input, typename Output>
struct Arguments {
  const Output* grad;
  const Input* input;
  const Input* added;  // null, or a gradient that is added to that of `input`
  Input* grad_input;
  float* partial;            // [teams, n]
  long long* words;          // [rows, parts], all -1
  int64_t rows, n, grad_stride, input_stride, added_stride;
  int parts;
  float eps;
};

// Rows of a thread that are under way to it or in use.
template <int Lanes, bool Team>
constexpr int kStagesOf = Lanes != 0 || Team ? 4 : 3;

// To shared memory without a register in between, and without waiting for it; what no such copy exists for is loaded.
template <typename T>
__device__ __forceinline__ void fetch(T* to, const T* from) {
  if constexpr (sizeof(T) % 16 == 0) {
#pragma unroll
    for (int byte = 0; byte < static_cast<int>(sizeof(T)); byte += 16) {
      __pipeline_memcpy_async(reinterpret_cast<char*>(to) + byte, reinterpret_cast<const char*>(from) + byte, 16);
    }
  } else {
    *to = *from;
  }
}

__device__ __forceinline__ void sum_of_lanes_32(float& first, float& second) {
  first = sum_of_lanes<32>(first);
  second = sum_of_lanes<32>(second);
}

// The sums over a block. `of_warp` is another one in the next call: then one barrier is enough.
__device__ __forceinline__ void sum_of_block(float& first, float& second, float2* of_warp) {
  sum_of_lanes_32(first, second);
  const int lane = threadIdx.x % 32;
  if (lane == 0) {
    of_warp[threadIdx.x / 32] = make_float2(first, second);
  }
  __syncthreads();
  const float2 of_mine = lane < blockDim.x / 32 ? of_warp[lane] : make_float2(0.0f, 0.0f);
  first = of_mine.x;
  second = of_mine.y;
  sum_of_lanes_32(first, second);
}

__device__ __forceinline__ void tell(float squares, float products, volatile long long* word) {
  const long long high = __float_as_int(squares) & 0x7FFFFFFF;  // a sum of squares, or NaN: the sign says nothing
  *word = high << 32 | static_cast<unsigned>(__float_as_int(products));
}

// The sums over a team, of which this lane has asked for its first word already. Every warp waits for itself; all add in
// the same order.
__device__ __forceinline__ void sum_of_team(float& squares, float& products, const volatile long long* words,
                                            long long word, int parts) {
  squares = products = 0.0f;
  for (int each = threadIdx.x % 32; each < parts;) {
    while (word < 0) {
      word = words[each];
    }
    squares += __int_as_float(static_cast<int>(word >> 32));
    products += __int_as_float(static_cast<int>(word));
    each += 32;
    word = each < parts ? words[each] : 0;
  }
  sum_of_lanes_32(squares, products);
}

template <typename Input, typename Weight, int Size, int PerThread, int Lanes, bool Team, bool Add>
__global__ void __launch_bounds__(Team ? kTeamThreads : kMostThreads, Team && sizeof(Input) == 2 ? 3 : 1)
    backward_kernel(const Arguments<Input, Weight> with, const Weight* __restrict__ weight) {
  constexpr int kStages = kStagesOf<Lanes, Team>;
  using Values = Vector<Input, Size>;
  using Grads = Vector<Weight, Size>;
  extern __shared__ __align__(16) unsigned char staged[];
  __shared__ float2 of_warp[2][32];
  const int threads = Lanes == 0 ? blockDim.x : Lanes, rows_a_block = blockDim.x / threads;
  const int part = Lanes == 0 ? blockIdx.x % with.parts : 0;
  const int64_t team = blockIdx.x / with.parts, teams = gridDim.x / with.parts;
  const int first = part * threads * PerThread + threadIdx.x % threads, vectors = static_cast<int>(with.n / Size);

  // Every thread fetches for itself alone: no barrier stands between a copy and its use.
  auto* const values = reinterpret_cast<Values*>(staged) + threadIdx.x;
  auto* const grads = reinterpret_cast<Grads*>(values - threadIdx.x + kStages * PerThread * blockDim.x) + threadIdx.x;
  auto* const others = reinterpret_cast<Values*>(grads - threadIdx.x + kStages * PerThread * blockDim.x) + threadIdx.x;
  const auto slot = [&](int stage, int each) { return (stage * PerThread + each) * blockDim.x; };
  const auto fetch_row = [&](int64_t row, int stage) {
    if (row < with.rows) {
#pragma unroll
      for (int each = 0; each < PerThread; ++each) {
        const int at = first + each * threads;
        if (at < vectors) {
          fetch(values + slot(stage, each), reinterpret_cast<const Values*>(with.input + row * with.input_stride) + at);
          fetch(grads + slot(stage, each), reinterpret_cast<const Grads*>(with.grad + row * with.grad_stride) + at);
          if constexpr (Add) {
            fetch(others + slot(stage, each), reinterpret_cast<const Values*>(with.added + row * with.added_stride) + at);
          }
        }
      }
    }
    __pipeline_commit();
  };

  Grads by[PerThread];
  float grad_weight[PerThread][Size] = {};
#pragma unroll
  for (int each = 0; each < PerThread; ++each) {
    if (first + each * threads < vectors) {
      by[each] = reinterpret_cast<const Grads*>(weight)[first + each * threads];
    }
  }

  const auto sum_row = [&](bool inside, int stage, float& squares, float& products) {
    squares = products = 0.0f;
#pragma unroll
    for (int each = 0; each < PerThread; ++each) {
      if (inside && first + each * threads < vectors) {
        const Values x = values[slot(stage, each)];
        const Grads dy = grads[slot(stage, each)];
#pragma unroll
        for (int i = 0; i < Size; ++i) {
          const float value = widen(x.values[i]);
          squares += value * value;
          products += widen(dy.values[i]) * widen(by[each].values[i]) * value;
        }
      }
    }
  };
  const auto finish_row = [&](int64_t row, bool inside, int stage, float squares, float products) {
    const float rstd = rsqrtf(squares / static_cast<float>(with.n) + with.eps);
    const float mean = products * rstd / static_cast<float>(with.n);
    auto* to = reinterpret_cast<Values*>(with.grad_input + row * with.n);
#pragma unroll
    for (int each = 0; each < PerThread; ++each) {
      if (inside && first + each * threads < vectors) {
        const Values x = values[slot(stage, each)];
        const Grads dy = grads[slot(stage, each)];
        Values result;
#pragma unroll
        for (int i = 0; i < Size; ++i) {
          const float normed = widen(x.values[i]) * rstd, grad = widen(dy.values[i]);
          result.values[i] = narrow<Input>(rstd * (grad * widen(by[each].values[i]) - normed * mean));
          grad_weight[each][i] += grad * widen(narrow<Input>(normed));
        }
        if constexpr (Add) {
          const Values other = others[slot(stage, each)];
#pragma unroll
          for (int i = 0; i < Size; ++i) {
            result.values[i] = narrow<Input>(widen(result.values[i]) + widen(other.values[i]));
          }
        }
        to[first + each * threads] = result;
      }
    }
  };

  const auto next = [](int stage) { return stage == kStages - 1 ? 0 : stage + 1; };
  const int64_t step = teams * rows_a_block, mine = threadIdx.x / threads;
  int64_t base = team * rows_a_block;
  for (int stage = 0; stage < kStages - 1; ++stage) {
    fetch_row(base + mine + stage * step, stage);
  }
  float squares, products;
  int stage = 0, parity = 0;
  if constexpr (Team) {
    const int lane = threadIdx.x % 32;
    const auto tell_row = [&](int64_t row, int at) {
      if (row < with.rows) {
        sum_row(true, at, squares, products);
        sum_of_block(squares, products, of_warp[parity]);
        parity ^= 1;
        if (threadIdx.x == 0) {
          tell(squares, products, with.words + row * with.parts + part);
        }
      }
    };
    __pipeline_wait_prior(kStages - 2);
    tell_row(base, 0);
    for (; base < with.rows; base += step) {
      fetch_row(base + (kStages - 1) * step, stage == 0 ? kStages - 1 : stage - 1);
      __pipeline_wait_prior(kStages - 2);
      const volatile long long* const words = with.words + base * with.parts;
      const long long word = lane < with.parts ? words[lane] : 0;
      tell_row(base + step, next(stage));
      sum_of_team(squares, products, words, word, with.parts);
      finish_row(base, true, stage, squares, products);
      stage = next(stage);
    }
  } else {
    for (; base < with.rows; base += step) {
      const int64_t row = base + mine;
      const bool inside = row < with.rows;
      fetch_row(row + (kStages - 1) * step, stage == 0 ? kStages - 1 : stage - 1);
      __pipeline_wait_prior(kStages - 1);
      sum_row(inside, stage, squares, products);
      if constexpr (Lanes == 0) {
        sum_of_block(squares, products, of_warp[parity]);
        parity ^= 1;
      } else {
        squares = sum_of_lanes<Lanes>(squares);
        products = sum_of_lanes<Lanes>(products);
      }
      finish_row(row, inside, stage, squares, products);
      stage = next(stage);
    }
  }
  __pipeline_wait_prior(0);

  float* const to = with.partial + team * with.n;
  if constexpr (Lanes == 0) {
#pragma unroll
    for (int each = 0; each < PerThread; ++each) {
      const int at = first + each * threads;
      if (at < vectors) {
#pragma unroll
        for (int i = 0; i < Size; ++i) {
          to[static_cast<int64_t>(at) * Size + i] = grad_weight[each][i];
        }
      }
    }
  } else {
    // The rows of a block were divided between its warps, and between the halves of a warp: both are added here.
    float* const of_block = reinterpret_cast<float*>(staged);
    __syncthreads();
#pragma unroll
    for (int each = 0; each < PerThread; ++each) {
#pragma unroll
      for (int i = 0; i < Size; ++i) {
        if constexpr (Lanes == 16) {
          grad_weight[each][i] += __shfl_xor_sync(0xFFFFFFFFu, grad_weight[each][i], 16);
        }
        const int at = first + each * threads;
        if (threadIdx.x % 32 < Lanes && at < vectors) {
          of_block[(threadIdx.x / 32) * with.n + at * Size + i] = grad_weight[each][i];
        }
      }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < with.n; at += blockDim.x) {
      float sum = 0.0f;
      for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) {
        sum += of_block[warp * with.n + at];
      }
      to[at] = sum;
    }
  }
}

// The sum of `count` rows of `n` values, of which a block adds 32 columns.
template <typename Weight>
__global__ void __launch_bounds__(1024) sum_rows(const float* __restrict__ from, Weight* __restrict__ to, int count, int64_t n) {
  __shared__ float of_rows[32][33];
  const int64_t column = blockIdx.x * static_cast<int64_t>(32) + threadIdx.x;
  float sum = 0.0f;
  if (column < n) {
#pragma unroll 4
    for (int row = threadIdx.y; row < count; row += 32) {
      sum += from[row * n + column];
    }
  }
  of_rows[threadIdx.x][threadIdx.y] = sum;
  __syncthreads();
  sum = sum_of_lanes<32>(of_rows[threadIdx.y][threadIdx.x]);
  const int64_t summed = blockIdx.x * static_cast<int64_t>(32) + threadIdx.y;
  if (threadIdx.x == 0 && summed < n) {
    to[summed] = narrow<Weight>(sum);
  }
}

struct Launch {
  int threads, parts;
};

template <typename Input, typename Weight, int Size, int PerThread, int Lanes, bool Team, bool Add>
bool launch(Arguments<Input, Weight> with, const Weight* weight, Weight* grad_weight, const at::Tensor& like, Launch as,
            cudaStream_t stream) {
  const auto kernel = backward_kernel<Input, Weight, Size, PerThread, Lanes, Team, Add>;
  const int threads = as.threads, rows_a_block = Lanes ? threads / Lanes : 1;
  const size_t a_value = (Add ? 2 : 1) * sizeof(Input) + sizeof(Weight);
  const size_t shared = std::max<size_t>(kStagesOf<Lanes, Team> * PerThread * Size * a_value * threads,
                                         Lanes ? threads / 32 * with.n * sizeof(float) : 0);
  int most_shared = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, like.get_device()));
  if (shared + 1024 > static_cast<size_t>(most_shared)) {
    return false;
  }
  if (shared > 32 * 1024) {  // more than 48 kB, with what the kernel declares, has to be asked for
    C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  }
  int at_once = 0, multiprocessors = 0;
  C10_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, kernel, threads, shared));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, like.get_device()));
  const int64_t groups = (with.rows + rows_a_block - 1) / rows_a_block;
  if (with.n >= kLongRow && as.parts == 1 && groups < 16 * multiprocessors) {
    at_once = std::min(at_once, 2);
  }
  const int64_t teams = std::min<int64_t>(static_cast<int64_t>(at_once) * multiprocessors / as.parts, groups);
  if (teams == 0) {
    return false;
  }
  auto partial = at::empty({teams, with.n}, like.options().dtype(at::kFloat));
  with.partial = static_cast<float*>(partial.mutable_data_ptr());
  with.parts = as.parts;
  at::Tensor words;
  if (as.parts > 1) {
    words = at::empty({with.rows, as.parts}, like.options().dtype(at::kLong));
    with.words = static_cast<long long*>(words.mutable_data_ptr());
    C10_CUDA_CHECK(cudaMemsetAsync(with.words, 0xFF, words.nbytes(), stream));
  }
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(teams * as.parts));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &cooperative;
  config.numAttrs = as.parts > 1 ? 1 : 0;
  C10_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, with, weight));
  sum_rows<Weight><<<static_cast<unsigned>((with.n + 31) / 32), dim3(32, 32), 0, stream>>>(
      with.partial, grad_weight, static_cast<int>(teams), with.n);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return true;
}

int up_to_warps(int64_t threads) { return static_cast<int>((threads + 31) / 32 * 32); }

template <typename Input, typename Weight, bool Add>
bool choose(const Arguments<Input, Weight>& with, const Weight* weight, Weight* grad_weight, const at::Tensor& like,
            bool whole, cudaStream_t stream) {
  constexpr int kSize = 16 / sizeof(Input), kByValue = 8;
  const auto run = [&](auto size, auto per_thread, auto lanes, auto team, Launch as) {
    return launch<Input, Weight, decltype(size)::value, decltype(per_thread)::value, decltype(lanes)::value,
                  decltype(team)::value, Add>(with, weight, grad_weight, like, as, stream);
  };
  using std::integral_constant;
  const auto run_block = [&](auto size, auto per_thread, Launch as) {
    const integral_constant<int, 0> block;
    return as.parts > 1 ? run(size, per_thread, block, std::true_type(), as)
                        : run(size, per_thread, block, std::false_type(), as);
  };
  const int64_t vectors = whole ? with.n / kSize : with.n, a_thread = whole ? 2 : kByValue;
  const bool alone = vectors <= a_thread * kMostThreads;
  const int64_t parts = alone ? 1 : (vectors + a_thread * kTeamThreads - 1) / (a_thread * kTeamThreads);
  if (parts > INT16_MAX) {
    return false;
  }
  const Launch shared{up_to_warps((vectors + parts * a_thread - 1) / (parts * a_thread)), static_cast<int>(parts)};
  if (!whole) {
    return run_block(integral_constant<int, 1>(), integral_constant<int, kByValue>(), shared);
  }
  if (vectors <= 16) {
    return run(integral_constant<int, kSize>(), integral_constant<int, 1>(), integral_constant<int, 16>(),
               std::false_type(), {256, 1});
  }
  if (vectors <= 64) {
    return run(integral_constant<int, kSize>(), integral_constant<int, 2>(), integral_constant<int, 32>(),
               std::false_type(), {256, 1});
  }
  return run_block(integral_constant<int, kSize>(), integral_constant<int, 2>(), shared);
}

}  // namespace

}  // namespace rms_norm_cuda

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& input,
                                                     const at::Tensor& weight, double eps,
                                                     const std::optional<at::Tensor>& added) {
  using namespace rms_norm_cuda;
  check(input, weight);
  TORCH_CHECK(grad.sizes() == input.sizes() && grad.scalar_type() == weight.scalar_type(),
              "rms_norm_backward: `grad` is ", grad.scalar_type(), " ", grad.sizes(), "; allowed is ",
              weight.scalar_type(), " ", input.sizes(), ".");
  TORCH_CHECK(!added.has_value() || (added->sizes() == input.sizes() && added->scalar_type() == input.scalar_type()),
              "rms_norm_backward: `added` is not like `input`.");
  const c10::cuda::CUDAGuard guard(input.device());
  if (input.numel() == 0) {
    return {at::empty(input.sizes(), input.options()), at::zeros(weight.sizes(), weight.options())};
  }
  auto grad_input = at::empty(input.sizes(), input.options());
  auto grad_weight = at::empty(weight.sizes(), weight.options());
  const Rows rows(input), grads(grad), others(added.has_value() ? *added : input);
  const auto scale = weight.contiguous();
  const auto stream = c10::cuda::getCurrentCUDAStream();
  bool done = false;
  for_types(input, weight, [&](auto of_input, auto of_weight) {
    using Input = decltype(of_input);
    using Weight = decltype(of_weight);
    constexpr int kSize = 16 / sizeof(Input);
    const bool whole = rows.whole(kSize) && grads.whole(kSize) && others.whole(kSize) && aligned(scale.const_data_ptr());
    const auto* other = added.has_value() ? static_cast<const Input*>(others.tensor.const_data_ptr()) : nullptr;
    const Arguments<Input, Weight> with{static_cast<const Weight*>(grads.tensor.const_data_ptr()),
                                        static_cast<const Input*>(rows.tensor.const_data_ptr()),
                                        other,
                                        static_cast<Input*>(grad_input.mutable_data_ptr()),
                                        nullptr,
                                        nullptr,
                                        rows.count,
                                        rows.n,
                                        grads.stride,
                                        rows.stride,
                                        others.stride,
                                        1,
                                        static_cast<float>(eps)};
    const auto* by = static_cast<const Weight*>(scale.const_data_ptr());
    auto* to = static_cast<Weight*>(grad_weight.mutable_data_ptr());
    done = other == nullptr ? choose<Input, Weight, false>(with, by, to, input, whole, stream)
                            : choose<Input, Weight, true>(with, by, to, input, whole, stream);
  });
  return done ? std::tuple(grad_input, grad_weight) : backward_in_torch(grad, input, weight, eps, added);
}
