/* Vectors as the mathematical functions of this folder see them. Each function is written once, with the types and
 * operations named here, and compiled for single numbers, AVX2 and AVX-512. An operation rounds the same way in all
 * three, so an element has the same bits whichever of them computes it, in a full vector or in a tail.
 *
 *   BITS      32 or 64: the precision
 *   PREFIX    f32 and f64 for single numbers (the compiler may vectorise loops over them), v32 and v64 for vectors
 *   E, V      an element; a vector of LANES elements
 *   U, M      the elements' bits as unsigned integers; a mask
 *
 *   v_set(e)                           e in every lane
 *   v_load_some, v_store_some          the first `count` lanes, all where count is LANES or more; others are loaded
 *                                      as 1
 *   v_widen_some, v_narrow_some        the same from and to floats; for vectors of doubles
 *   v_fma v_abs v_sqrt v_trunc
 *   v_min(a, b), v_max(a, b)           b where one of them is NaN
 *   v_bits, v_real                     the bits of a vector as integers, and back
 *   v_less v_equal v_ordered           comparisons; v_ordered: neither is NaN
 *   v_select(m, a, b) v_any(m) v_not(m)   masks have & and |, too
 *   v_scale(x, n)                      x·2^n for a whole n, rounded once
 *   v_log_ends(x, y)                   a logarithm y of x, mended where x is 0, negative, infinite or NaN
 *
 * + - * / work on two V and on V and E; + - & | ^ << >> on U. */
#ifndef KILN_CPU_LANES_H
#define KILN_CPU_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define KILN_LANE static inline __attribute__((always_inline, unused))

#ifdef __clang__
#define KILN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KILN_UNROLL _Pragma("GCC unroll 32")
#endif

#define v_set         F(lane_set)
#define v_load_some   F(lane_load_some)
#define v_store_some  F(lane_store_some)
#define v_widen_some  F(lane_widen_some)
#define v_narrow_some F(lane_narrow_some)
#define v_fma         F(lane_fma)
#define v_min         F(lane_min)
#define v_max         F(lane_max)
#define v_abs         F(lane_abs)
#define v_sqrt        F(lane_sqrt)
#define v_trunc       F(lane_trunc)
#define v_bits        F(lane_bits)
#define v_real        F(lane_real)
#define v_less        F(lane_less)
#define v_equal       F(lane_equal)
#define v_ordered     F(lane_ordered)
#define v_select      F(lane_select)
#define v_any         F(lane_any)
#define v_not         F(lane_not)
#define v_scale       F(lane_scale)
#define v_log_ends    F(lane_log_ends)
#define v_signed      F(lane_signed)
#define v_polynomial  F(lane_polynomial)
#define v_patch       F(lane_patch)

#endif
