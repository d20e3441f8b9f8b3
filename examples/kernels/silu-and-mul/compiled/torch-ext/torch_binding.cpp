#include <torch/library.h>

#include "registration.h"
#include "torch_binding.h"

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  // `_inference`: the same without a derivative, whose registration in Python costs small tensors a few microseconds.
  ops.def("silu_mul(Tensor gate, Tensor up) -> Tensor");
  ops.def("silu_mul_inference(Tensor gate, Tensor up) -> Tensor");
  ops.def("silu_mul_backward(Tensor grad, Tensor gate, Tensor up) -> (Tensor, Tensor)");
#if defined(CPU_KERNEL)
  ops.impl("silu_mul", c10::kCPU, &silu_mul);
  ops.impl("silu_mul_inference", c10::kCPU, &silu_mul);
  ops.impl("silu_mul_backward", c10::kCPU, &silu_mul_backward);
#elif defined(CUDA_KERNEL)
  ops.impl("silu_mul", c10::kCUDA, &silu_mul);
  ops.impl("silu_mul_inference", c10::kCUDA, &silu_mul);
  ops.impl("silu_mul_backward", c10::kCUDA, &silu_mul_backward);
#endif
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
