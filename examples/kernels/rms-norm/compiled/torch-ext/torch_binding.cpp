#include <torch/library.h>

#include "registration.h"
#include "torch_binding.h"

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def("rms_norm(Tensor input, Tensor weight, float eps) -> Tensor");
#if defined(CPU_KERNEL)
  ops.impl("rms_norm", c10::kCPU, &rms_norm);
#elif defined(CUDA_KERNEL)
  ops.impl("rms_norm", c10::kCUDA, &rms_norm);
#endif
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
