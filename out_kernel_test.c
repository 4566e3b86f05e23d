/* Made by amos export: checks out_kernel against the operator's own loops.
 * With a number of runs as its argument it also prints their median time. */
#define _POSIX_C_SOURCE 200112L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "out_kernel.h"

static inline uint64_t random_bits(uint64_t stream, uint64_t i) {
  uint64_t z = (stream + i + 1) * UINT64_C(11400714819323198485);
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return (z ^ (z >> 31)) >> 32;
}

static inline uint16_t bfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float from_bfloat16(uint16_t value) {
  uint32_t bits = (uint32_t)value << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

static inline int64_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return value == 0 ? 0 : bits;
}


static struct block {
  struct block *next;
  void *memory;
} *blocks;

static void release(void) {
  while (blocks) {
    struct block *first = blocks;
    blocks = first->next;
    free(first->memory);
    free(first);
  }
}

/* Zeros, and nothing behind them: a tool that looks for reads outside sees every one. */
static void *allocate(size_t count, size_t size) {
  struct block *block = malloc(sizeof *block);
  size_t bytes = count * size ? count * size : 1;
  if (!block || posix_memalign(&block->memory, 64, bytes)) exit(3);
  block->next = blocks;
  blocks = block;
  return memset(block->memory, 0, bytes);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

static int order(const void *a, const void *b) {
  return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

int main(int argc, char **argv) {
  if (!out_kernel_supported()) {
    printf("out_kernel: this CPU lacks an instruction that the kernel needs\n");
    return 77;
  }
  atexit(release);
  uint8_t *of_a = allocate(48, sizeof *of_a);
  for (size_t i = 0; i < 48; ++i)
    of_a[i] = (uint8_t)((int64_t)(random_bits(UINT64_C(0) << 40, i) % 256) + (0));
  int8_t *of_weight = allocate(256, sizeof *of_weight);
  for (size_t i = 0; i < 256; ++i)
    of_weight[i] = (int8_t)((int64_t)(random_bits(UINT64_C(1) << 40, i) % 256) + (-128));
  int8_t *of_packed_weight = allocate(256, sizeof *of_packed_weight);
  out_kernel_pack_weight(of_weight, of_packed_weight);
  int32_t *of_out = allocate(192, sizeof *of_out);
  void *workspace = allocate(OUT_KERNEL_WORKSPACE, 1);
  memset(of_out, 0x55, 192 * sizeof *of_out);
  out_kernel(of_a, of_packed_weight, of_out, workspace);
  uint64_t digest = 0;
  for (size_t i = 0; i < 192; ++i)
    digest += (uint64_t)(int64_t)of_out[i] * ((uint64_t)i * UINT64_C(0x9E3779B97F4A7C15) | 1);
  if (digest != UINT64_C(10293337419687356501)) {
    printf("the output differs from NumPy's at the time of the export\n");
    return 1;
  }
  size_t wrong = 0;
  for (int64_t at_i = 0; at_i < 6; ++at_i)
    for (int64_t at_j = 0; at_j < 32; ++at_j)
    {
      int64_t sum = 0;
      for (int64_t at_k = 0; at_k < 8; ++at_k)
        sum += (int64_t)of_a[((at_i)) * 8 + (at_k)] * (int64_t)of_weight[((at_j)) * 8 + (at_k)];
      wrong += of_out[((at_i)) * 32 + (at_j)] != (int32_t)sum;
    }
  if (wrong) {
    printf("out_kernel: %zu of 192 elements are wrong\n", wrong);
    return 1;
  }
  printf("out_kernel: 192 elements are right\n");
  int runs = argc > 1 ? atoi(argv[1]) : 0;
  if (runs > 0) {
    double *times = allocate(runs, sizeof *times);
    for (int run = 0; run < runs; ++run) {
      double start = seconds();
      out_kernel(of_a, of_packed_weight, of_out, workspace);
      times[run] = seconds() - start;
    }
    qsort(times, runs, sizeof *times, order);
    printf("out_kernel: %.4f ms, median of %d runs\n", times[runs / 2] * 1e3, runs);
  }
  return 0;
}
