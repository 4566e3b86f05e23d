/* Made by amos export. Build: cc -O3 -fwrapv -fopenmp -Wno-psabi -mavx512f -mavx512vnni -c out_kernel.c
 * operator   out[i, j] += a[i, k] * weight[j, k]  with i=6, j=32, k=8  (a: u8, weight: s8, out: s32)
 * intrinsic  vnni_dpbusd_m16k4_u8_s8_s32
 * mapping    [i1, r1] ← [j mod 16, k mod 4]
 * schedule   order=i i1.tile, parallel=2, reduce=r1.tile, tile.i=6, tile.i1.tile=2, unroll=4
 */
#include "out_kernel.h"

#include <stddef.h>
#include <string.h>
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

static inline int32_t load_i32(const void *from) {
  int32_t value;
  memcpy(&value, from, sizeof value);
  return value;
}
typedef int32_t i32x16 __attribute__((vector_size(64)));
static inline i32x16 load_i32x16(const void *from) {
  i32x16 value;
  memcpy(&value, from, sizeof value);
  return value;
}
static inline void store_i32x16(void *to, i32x16 value) {
  memcpy(to, &value, sizeof value);
}
static inline i32x16 all_i32x16(int32_t value) {
  return value - (i32x16){0};
}
typedef int8_t i8x64 __attribute__((vector_size(64)));
static inline i8x64 load_i8x64(const void *from) {
  i8x64 value;
  memcpy(&value, from, sizeof value);
  return value;
}
static inline void store_i8x64(void *to, i8x64 value) {
  memcpy(to, &value, sizeof value);
}
static inline i8x64 all_i8x64(int8_t value) {
  return value - (i8x64){0};
}

void out_kernel(const uint8_t *restrict a, const int8_t *restrict packed_weight, int32_t *restrict out, void *workspace) {
  (void)workspace;
  int32_t main_global[192] __attribute__((aligned(64)));
  store_i32x16(main_global + 0, all_i32x16(0));
  store_i32x16(main_global + 16, all_i32x16(0));
  store_i32x16(main_global + 32, all_i32x16(0));
  store_i32x16(main_global + 48, all_i32x16(0));
  store_i32x16(main_global + 64, all_i32x16(0));
  store_i32x16(main_global + 80, all_i32x16(0));
  store_i32x16(main_global + 96, all_i32x16(0));
  store_i32x16(main_global + 112, all_i32x16(0));
  store_i32x16(main_global + 128, all_i32x16(0));
  store_i32x16(main_global + 144, all_i32x16(0));
  store_i32x16(main_global + 160, all_i32x16(0));
  store_i32x16(main_global + 176, all_i32x16(0));
  for (int64_t r1_tile = 0; r1_tile < 2; ++r1_tile) {
    const int64_t cse_v1 = (r1_tile * 4);
    const int64_t cse_v2 = (r1_tile * 128);
    store_i32x16(main_global + 0, (i32x16)_mm512_dpbusd_epi32((__m512i)load_i32x16(main_global + 0), (__m512i)((i8x64)all_i32x16(load_i32(a + cse_v1))), (__m512i)load_i8x64(packed_weight + cse_v2)));
    const int64_t cse_v3 = (cse_v2 + 64);
    store_i32x16(main_global + 16, (i32x16)_mm512_dpbusd_epi32((__m512i)load_i32x16(main_global + 16), (__m512i)((i8x64)all_i32x16(load_i32(a + cse_v1))), (__m512i)load_i8x64(packed_weight + cse_v3)));
    const int64_t cse_v4 = (cse_v1 + 8);
    store_i32x16(main_global + 32, (i32x16)_mm512_dpbusd_epi32((__m512i)load_i32x16(main_global + 32), (__m512i)((i8x64)all_i32x16(load_i32(a + cse_v4))), (__m512i)load_i8x64(packed_weight + cse_v2)));
    store_i32x16(main_global + 48, (i32x16)_mm512_dpbusd_epi32((__m512i)load_i32x16(main_global + 48), (__m512i)((i8x64)all_i32x16(load_i32(a + cse_v4))), (__m512i)load_i8x64(packed_weight + cse_v3)));
    const int64_t cse_v5 = (cse_v1 + 16);
    store_i32x16(main_global + 64, (i32x16)_mm512_dpbusd_epi32((__m512i)load_i32x16(main_global + 64), (__m512i)((i8x64)all_i32x16(load_i32(a + cse_v5))), (__m512i)load_i8x64(packed_weight + cse_v2)));
    store_i32x16(main_global + 80, (i32x16)_mm512_dpbusd_epi32((__m512i)load_i32x16(main_global + 80), (__m512i)((i8x64)all_i32x16(load_i32(a + cse_v5))), (__m512i)load_i8x64(packed_weight + cse_v3)));
    const int64_t cse_v6 = (cse_v1 + 24);
    store_i32x16(main_global + 96, (i32x16)_mm512_dpbusd_epi32((__m512i)load_i32x16(main_global + 96), (__m512i)((i8x64)all_i32x16(load_i32(a + cse_v6))), (__m512i)load_i8x64(packed_weight + cse_v2)));
    store_i32x16(main_global + 112, (i32x16)_mm512_dpbusd_epi32((__m512i)load_i32x16(main_global + 112), (__m512i)((i8x64)all_i32x16(load_i32(a + cse_v6))), (__m512i)load_i8x64(packed_weight + cse_v3)));
    const int64_t cse_v7 = (cse_v1 + 32);
    store_i32x16(main_global + 128, (i32x16)_mm512_dpbusd_epi32((__m512i)load_i32x16(main_global + 128), (__m512i)((i8x64)all_i32x16(load_i32(a + cse_v7))), (__m512i)load_i8x64(packed_weight + cse_v2)));
    store_i32x16(main_global + 144, (i32x16)_mm512_dpbusd_epi32((__m512i)load_i32x16(main_global + 144), (__m512i)((i8x64)all_i32x16(load_i32(a + cse_v7))), (__m512i)load_i8x64(packed_weight + cse_v3)));
    const int64_t cse_v8 = (cse_v1 + 40);
    store_i32x16(main_global + 160, (i32x16)_mm512_dpbusd_epi32((__m512i)load_i32x16(main_global + 160), (__m512i)((i8x64)all_i32x16(load_i32(a + cse_v8))), (__m512i)load_i8x64(packed_weight + cse_v2)));
    store_i32x16(main_global + 176, (i32x16)_mm512_dpbusd_epi32((__m512i)load_i32x16(main_global + 176), (__m512i)((i8x64)all_i32x16(load_i32(a + cse_v8))), (__m512i)load_i8x64(packed_weight + cse_v3)));
  }
  for (int64_t ax0 = 0; ax0 < 6; ++ax0) {
    for (int64_t ax1 = 0; ax1 < 2; ++ax1) {
      for (int64_t ax2 = 0; ax2 < 16; ++ax2) {
        const int64_t cse_v9 = (((ax0 * 32) + (ax1 * 16)) + ax2);
        out[cse_v9] = main_global[cse_v9];
      }
    }
  }
}

void out_kernel_pack_weight(const int8_t *restrict given, int8_t *restrict packed) {
  for (int64_t i1 = 0; i1 < 2; ++i1) {
    for (int64_t i2 = 0; i2 < 2; ++i2) {
      for (int64_t i3 = 0; i3 < 16; ++i3) {
        for (int64_t i4 = 0; i4 < 4; ++i4) {
          packed[(((i1 * 128) + (i2 * 64)) + (i3 * 4)) + i4] = given[(((i2 * 128) + (i3 * 8)) + (i1 * 4)) + i4];
        }
      }
    }
  }
}

int out_kernel_supported(void) {
  return __builtin_cpu_supports("avx512vnni") != 0;
}
