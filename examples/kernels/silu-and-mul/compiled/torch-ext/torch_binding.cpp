#include <torch/library.h>

#include "registration.h"
#include "torch_binding.h"

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def("silu_mul(Tensor gate, Tensor up) -> Tensor");
  ops.def("silu_mul_backward(Tensor grad, Tensor gate, Tensor up) -> (Tensor, Tensor)");
#if defined(CPU_KERNEL)
  ops.impl("silu_mul", c10::kCPU, &silu_mul);
  ops.impl("silu_mul_backward", c10::kCPU, &silu_mul_backward);
#endif
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
