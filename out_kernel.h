/* Made by amos export.
 * operator   out[i, j] += a[i, k] * weight[j, k]  with i=6, j=32, k=8  (a: u8, weight: s8, out: s32)
 * intrinsic  vnni_dpbusd_m16k4_u8_s8_s32
 * mapping    [i1, r1] ← [j mod 16, k mod 4]
 * schedule   order=i i1.tile, parallel=2, reduce=r1.tile, tile.i=6, tile.i1.tile=2, unroll=4
 */
#ifndef OUT_KERNEL_H
#define OUT_KERNEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of scratch memory that a call needs, aligned to 64; NULL will do for 0.
 * Calls that run at the same time need scratch memory of their own. */
#define OUT_KERNEL_WORKSPACE 0

/* Contiguous arrays, the last index fastest; the output overlaps no input.
 *   a: a, uint8, 6x8
 *   packed_weight: weight, int8, 32x8, packed into 256 elements
 *   out: out, int32, 6x32 */
void out_kernel(const uint8_t *a, const int8_t *packed_weight, int32_t *out, void *workspace);

/* Pack weight, once for any number of calls. */
void out_kernel_pack_weight(const int8_t *given, int8_t *packed);

/* Whether this CPU has what the kernel needs: avx512_vnni. */
int out_kernel_supported(void);

#ifdef __cplusplus
}
#endif
#endif
