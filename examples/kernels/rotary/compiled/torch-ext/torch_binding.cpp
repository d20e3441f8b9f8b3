#include <torch/library.h>

#include "registration.h"
#include "torch_binding.h"

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  // `_inference`: the same without a derivative, whose registration in Python costs small tensors a few microseconds.
  ops.def("rotary(Tensor q, Tensor k, Tensor cos, Tensor sin, int unsqueeze_dim, bool inverse) -> (Tensor, Tensor)");
  ops.def("rotary_inference(Tensor q, Tensor k, Tensor cos, Tensor sin, int unsqueeze_dim, bool inverse) -> (Tensor, Tensor)");
#if defined(CPU_KERNEL)
  ops.impl("rotary", c10::kCPU, &rotary);
  ops.impl("rotary_inference", c10::kCPU, &rotary);
#elif defined(CUDA_KERNEL)
  ops.impl("rotary", c10::kCUDA, &rotary);
  ops.impl("rotary_inference", c10::kCUDA, &rotary);
#endif
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
