#include <torch/library.h>

#include "registration.h"
#include "torch_binding.h"

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def("rotary(Tensor q, Tensor k, Tensor cos, Tensor sin, int unsqueeze_dim, bool inverse) -> (Tensor, Tensor)");
#if defined(CPU_KERNEL)
  ops.impl("rotary", c10::kCPU, &rotary);
#endif
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
