#pragma once

#include <cstdint>

namespace rms_norm_cpu {

// A float16 value, as its bits.
struct Half {
  uint16_t bits;
};

// Normalises `rows` rows of `n` values. A bfloat16 value is passed as its 16 bits. Rows of `input` lie `input_stride`
// values apart, rows of `output` lie `n` apart.
//
// The output has the type of both others, or else is float.
void rows(const float* input, const float* weight, float* output, int64_t rows, int64_t n,
          int64_t input_stride, float eps);
void rows(const uint16_t* input, const uint16_t* weight, uint16_t* output, int64_t rows, int64_t n,
          int64_t input_stride, float eps);
void rows(const uint16_t* input, const float* weight, float* output, int64_t rows, int64_t n,
          int64_t input_stride, float eps);
void rows(const float* input, const uint16_t* weight, float* output, int64_t rows, int64_t n,
          int64_t input_stride, float eps);
void rows(const Half* input, const Half* weight, Half* output, int64_t rows, int64_t n,
          int64_t input_stride, float eps);
void rows(const Half* input, const float* weight, float* output, int64_t rows, int64_t n,
          int64_t input_stride, float eps);
void rows(const Half* input, const uint16_t* weight, float* output, int64_t rows, int64_t n,
          int64_t input_stride, float eps);
void rows(const float* input, const Half* weight, float* output, int64_t rows, int64_t n,
          int64_t input_stride, float eps);
void rows(const uint16_t* input, const Half* weight, float* output, int64_t rows, int64_t n,
          int64_t input_stride, float eps);

}  // namespace rms_norm_cpu
