#include <torch/library.h>

#include "registration.h"
#include "torch_binding.h"

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  // `_inference`: the same without a derivative, whose registration in Python costs small tensors a few microseconds.
  ops.def("rms_norm(Tensor input, Tensor weight, float eps) -> Tensor");
  ops.def("rms_norm_inference(Tensor input, Tensor weight, float eps) -> Tensor");
  ops.def("fused_add_rms_norm(Tensor input, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)");
  ops.def("fused_add_rms_norm_inference(Tensor input, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)");
  ops.def("rms_norm_backward(Tensor grad, Tensor input, Tensor weight, float eps, Tensor? added) -> (Tensor, Tensor)");
#if defined(CPU_KERNEL)
  ops.impl("rms_norm", c10::kCPU, &rms_norm);
  ops.impl("rms_norm_inference", c10::kCPU, &rms_norm);
  ops.impl("fused_add_rms_norm", c10::kCPU, &fused_add_rms_norm);
  ops.impl("fused_add_rms_norm_inference", c10::kCPU, &fused_add_rms_norm);
  ops.impl("rms_norm_backward", c10::kCPU, &rms_norm_backward);
#elif defined(CUDA_KERNEL)
  ops.impl("rms_norm", c10::kCUDA, &rms_norm);
  ops.impl("rms_norm_inference", c10::kCUDA, &rms_norm);
  ops.impl("fused_add_rms_norm", c10::kCUDA, &fused_add_rms_norm);
  ops.impl("fused_add_rms_norm_inference", c10::kCUDA, &fused_add_rms_norm);
  ops.impl("rms_norm_backward", c10::kCUDA, &rms_norm_backward);
#endif
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
