// The arithmetic of reductions, bit for bit that of `oxccl_plan::arith`: small floats are folded in
// float32 and rounded once, fp8 saturates, a NaN result is the canonical one, max and min prefer a
// number to a NaN and order -0 below +0. Compiled without contraction and without flushing.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

#include "abi.h"

namespace oxccl {

template <typename L>
__device__ inline L combine(int op, L a, L b) {
  switch (op) {
    case PROD: return a * b;
    case MAX: return a > b ? a : b;
    case MIN: return a < b ? a : b;
    default: return a + b;
  }
}

template <typename F, typename B>
__device__ inline F larger(F a, F b, B equal) {
  if (a == b) return equal;
  if (a != a) return b;
  return a < b ? b : a;
}

template <typename F, typename B>
__device__ inline F smaller(F a, F b, B equal) {
  if (a == b) return equal;
  if (a != a) return b;
  return a > b ? b : a;
}

template <>
__device__ inline float combine<float>(int op, float a, float b) {
  switch (op) {
    case PROD: return __fmul_rn(a, b);
    // The instructions prefer a number to a NaN and order -0 below +0.
    case MAX: return fmaxf(a, b);
    case MIN: return fminf(a, b);
    default: return __fadd_rn(a, b);
  }
}

template <>
__device__ inline double combine<double>(int op, double a, double b) {
  switch (op) {
    case PROD: return __dmul_rn(a, b);
    case MAX:
      return larger(a, b, __longlong_as_double(__double_as_longlong(a) & __double_as_longlong(b)));
    case MIN:
      return smaller(a, b, __longlong_as_double(__double_as_longlong(a) | __double_as_longlong(b)));
    default: return __dadd_rn(a, b);
  }
}

// Operations by which an element type is folded a word at a time.
constexpr uint32_t NONE_PACKED = 0, SUM_PACKED = 1 << SUM, ORDER_PACKED = 1 << MAX | 1 << MIN;

// Sums of four integers that wrap: the highest bits are added without a carry to the next one.
__device__ inline uint32_t add_bytes(uint32_t a, uint32_t b) {
  constexpr uint32_t HIGH = 0x80808080;
  return ((a & ~HIGH) + (b & ~HIGH)) ^ ((a ^ b) & HIGH);
}

// An element: the type in memory (Bits), and the type in which it is folded (Lane). Where PACKED
// says so of an operation, all elements of a word are folded at once by fold_word.
template <typename T>
struct Integer {
  using Bits = T;
  using Lane = T;
  static constexpr uint32_t PACKED = sizeof(T) == 1 ? SUM_PACKED | ORDER_PACKED : NONE_PACKED;
  template <int OP>
  __device__ static uint32_t fold_word(uint32_t a, uint32_t b) {
    return OP == MAX ? __vmaxu4(a, b) : OP == MIN ? __vminu4(a, b) : add_bytes(a, b);
  }
  __device__ static Lane widen(Bits b) { return b; }
  __device__ static Bits round(Lane l) { return l; }
  __device__ static Lane divide(Lane l, uint32_t n) { return Lane((long long)l / (long long)n); }
};

struct U64 : Integer<unsigned long long> {
  __device__ static Lane divide(Lane l, uint32_t n) { return l / n; }
};

// Sums and products of signed integers wrap, so they are folded as unsigned ones; comparisons and
// divisions look at the sign.
template <typename S, typename U>
struct Signed {
  using Bits = U;
  struct Lane {
    U v;
    __device__ Lane operator+(Lane o) const { return {U(v + o.v)}; }
    __device__ Lane operator*(Lane o) const { return {U(v * o.v)}; }
    __device__ bool operator>(Lane o) const { return S(v) > S(o.v); }
    __device__ bool operator<(Lane o) const { return S(v) < S(o.v); }
  };
  static constexpr uint32_t PACKED = sizeof(S) == 1 ? SUM_PACKED | ORDER_PACKED : NONE_PACKED;
  template <int OP>
  __device__ static uint32_t fold_word(uint32_t a, uint32_t b) {
    return OP == MAX ? __vmaxs4(a, b) : OP == MIN ? __vmins4(a, b) : add_bytes(a, b);
  }
  __device__ static Lane widen(Bits b) { return {b}; }
  __device__ static Bits round(Lane l) { return l.v; }
  __device__ static Lane divide(Lane l, uint32_t n) {
    return {U((long long)S(l.v) / (long long)n)};
  }
};

// Nothing is folded a word at a time.
struct NotPacked {
  static constexpr uint32_t PACKED = NONE_PACKED;
};

template <typename Two>
__device__ inline uint32_t word_of(Two v) {
  uint32_t w;
  memcpy(&w, &v, 4);
  return w;
}

// Folds two small floats in a word. A sum in float32 that is rounded to half of its digits or fewer
// is the sum rounded once, which one instruction gives; max and min are exact. All of them give a
// NaN as 0x7fff, the largest integer of 16 bits: the smaller one of it and the canonical NaN is
// right.
template <int OP, typename Two>
__device__ inline uint32_t fold_two(uint32_t a, uint32_t b, uint32_t canonical) {
  Two x, y;
  memcpy(&x, &a, 4);
  memcpy(&y, &b, 4);
  Two folded = OP == MAX ? __hmax2(x, y) : OP == MIN ? __hmin2(x, y) : __hadd2_rn(x, y);
  return __vmins2(word_of(folded), canonical);
}

struct F32 : NotPacked {
  using Bits = uint32_t;
  using Lane = float;
  __device__ static Lane widen(Bits b) { return __uint_as_float(b); }
  __device__ static Bits round(Lane l) { return l != l ? 0x7fc00000u : __float_as_uint(l); }
  __device__ static Lane divide(Lane l, uint32_t n) { return __fdiv_rn(l, float(n)); }
};

struct F64 : NotPacked {
  using Bits = unsigned long long;
  using Lane = double;
  __device__ static Lane widen(Bits b) { return __longlong_as_double(b); }
  __device__ static Bits round(Lane l) {
    return l != l ? 0x7ff8000000000000ull : (unsigned long long)__double_as_longlong(l);
  }
  __device__ static Lane divide(Lane l, uint32_t n) { return __ddiv_rn(l, double(n)); }
};

struct F16 {
  using Bits = uint16_t;
  using Lane = float;
  static constexpr uint32_t PACKED = SUM_PACKED | ORDER_PACKED, CANONICAL = 0x7e007e00;
  template <int OP>
  __device__ static uint32_t fold_word(uint32_t a, uint32_t b) {
    return fold_two<OP, __half2>(a, b, CANONICAL);
  }
  __device__ static uint32_t round_two(Lane low, Lane high) {
    return __vmins2(word_of(__floats2half2_rn(low, high)), CANONICAL);
  }
  __device__ static Lane widen(Bits b) { return __half2float(__ushort_as_half(b)); }
  __device__ static Bits round(Lane l) {
    return l != l ? 0x7e00 : __half_as_ushort(__float2half_rn(l));
  }
  __device__ static Lane divide(Lane l, uint32_t n) { return __fdiv_rn(l, float(n)); }
};

struct BF16 {
  using Bits = uint16_t;
  using Lane = float;
  static constexpr uint32_t PACKED = SUM_PACKED | ORDER_PACKED, CANONICAL = 0x7fc07fc0;
  template <int OP>
  __device__ static uint32_t fold_word(uint32_t a, uint32_t b) {
    return fold_two<OP, __nv_bfloat162>(a, b, CANONICAL);
  }
  __device__ static uint32_t round_two(Lane low, Lane high) {
    return __vmins2(word_of(__floats2bfloat162_rn(low, high)), CANONICAL);
  }
  __device__ static Lane widen(Bits b) { return __uint_as_float(uint32_t(b) << 16); }
  __device__ static Bits round(Lane l) {
    return l != l ? 0x7fc0 : __bfloat16_as_ushort(__float2bfloat16_rn(l));
  }
  __device__ static Lane divide(Lane l, uint32_t n) { return __fdiv_rn(l, float(n)); }
};

// Without instructions for fp8 each conversion is much code: it is compiled once, not wherever it
// is used.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
#define OXCCL_CONVERSION __device__ __noinline__ static
#else
#define OXCCL_CONVERSION __device__ static
#endif

template <__nv_fp8_interpretation_t KIND>
struct F8 : NotPacked {
  using Bits = uint8_t;
  using Lane = float;
  OXCCL_CONVERSION Lane widen(Bits b) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(b, KIND)));
  }
  OXCCL_CONVERSION Bits round(Lane l) {
    return l != l ? 0x7f : __nv_cvt_float_to_fp8(l, __NV_SATFINITE, KIND);
  }
  __device__ static Lane divide(Lane l, uint32_t n) { return __fdiv_rn(l, float(n)); }
};

// An element multiplied by the user's scalar, rounded once.
template <typename E>
__device__ inline typename E::Bits scaled(typename E::Bits b, uint64_t scale) {
  return E::round(combine(PROD, E::widen(b), E::widen(typename E::Bits(scale))));
}

}  // namespace oxccl

// Applies a macro to the number (`oxccl_plan::DataType`) and the class of each element type.
#define OXCCL_ELEMENTS(M)                       \
  M(0, Signed<signed char, uint8_t>)            \
  M(1, Integer<uint8_t>)                        \
  M(2, Signed<int, uint32_t>)                   \
  M(3, Integer<uint32_t>)                       \
  M(4, Signed<long long, unsigned long long>)   \
  M(5, U64)                                     \
  M(6, F16)                                     \
  M(7, F32)                                     \
  M(8, F64)                                     \
  M(9, BF16)                                    \
  M(10, F8<__NV_E4M3>)                          \
  M(11, F8<__NV_E5M2>)
