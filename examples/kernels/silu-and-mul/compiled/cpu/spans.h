#pragma once

#include <cstdint>

namespace silu_mul_cpu {

// A float16 value, as its bits.
struct Half {
  uint16_t bits;
};

// `n` values side by side. A bfloat16 value is passed as its 16 bits.
void forward(const float* gate, const float* up, float* output, int64_t n);
void forward(const uint16_t* gate, const uint16_t* up, uint16_t* output, int64_t n);
void forward(const Half* gate, const Half* up, Half* output, int64_t n);

void backward(const float* grad, const float* gate, const float* up, float* grad_gate, float* grad_up, int64_t n);
void backward(const uint16_t* grad, const uint16_t* gate, const uint16_t* up, uint16_t* grad_gate, uint16_t* grad_up,
              int64_t n);
void backward(const Half* grad, const Half* gate, const Half* up, Half* grad_gate, Half* grad_up, int64_t n);

}  // namespace silu_mul_cpu
