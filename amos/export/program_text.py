"""The C of an export's test program, without the parts that depend on the operator."""

from __future__ import annotations

#: Compares with NumPy's result, by its digest.
DIGEST = """  digest = 0;
  for (size_t i = 0; i < {elements}; ++i)
    digest += (uint64_t){element} * ((uint64_t)i * UINT64_C(0x9E3779B97F4A7C15) | 1);
  if (digest != {digest}) {{
    printf("{tensor} differs from NumPy's at the time of the export\\n");
    return 1;
  }}
"""

#: Compares some elements with NumPy's result.
SAMPLES = """  static const struct {{ size_t at; double value; }} some_{tensor}[] = {{
    {rows}}};
  wrong = 0;
  for (size_t n = 0; n < {count}; ++n) {{
    size_t i = some_{tensor}[n].at;
    double got = {element}, value = some_{tensor}[n].value;
    wrong += !(got == value || fabs(got - value) <= {allowed} || (got != got && value != value));
  }}
  if (wrong) {{
    printf("%zu of {count} elements of {tensor} are not what NumPy had\\n", wrong);
    return 1;
  }}
"""

#: The whole program.
PROGRAM = """/* Made by amos export: checks {name} against what NumPy had.
 * With a number of runs as its argument it also prints their median time. */
#define _POSIX_C_SOURCE 200112L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "{name}.h"

static inline uint64_t random_bits(uint64_t stream, uint64_t i) {{
  uint64_t z = (stream + i + 1) * {odd};
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return (z ^ (z >> 31)) >> 32;
}}

static inline uint16_t bfloat16(float value) {{
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}}

static inline float from_bfloat16(uint16_t value) {{
  uint32_t bits = (uint32_t)value << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}}

static inline int64_t float_bits(float value) {{
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return value == 0 ? 0 : value != value ? 1 : bits;
}}

/* Floats of many magnitudes, 24 bits or 8 bits long. */
static inline float scaled(uint64_t bits, int length) {{
  int32_t value = (int32_t)(bits % (UINT64_C(1) << length)) - (1 << (length - 2));
  return ldexpf((float)value, -length - (int)(bits >> 27) % 20);
}}

static struct block {{
  struct block *next;
  void *memory;
}} *blocks;

static void release(void) {{
  while (blocks) {{
    struct block *first = blocks;
    blocks = first->next;
    free(first->memory);
    free(first);
  }}
}}

/* Zeros, and nothing behind them: a tool that looks for reads outside sees every one. */
static void *allocate(size_t count, size_t size) {{
  struct block *block = malloc(sizeof *block);
  size_t bytes = count * size ? count * size : 1;
  if (!block || posix_memalign(&block->memory, 64, bytes)) exit(3);
  block->next = blocks;
  blocks = block;
  return memset(block->memory, 0, bytes);
}}

static double seconds(void) {{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}}

static int order(const void *a, const void *b) {{
  return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}}

int main(int argc, char **argv) {{
  if (!{name}_supported()) {{
    printf("{name}: this CPU lacks an instruction that the kernel needs\\n");
    return 77;
  }}
  atexit(release);
{made}{results}  void *workspace = allocate({upper}_WORKSPACE, 1);
{filled}  {call};
  uint64_t digest;
  size_t wrong;
  (void)digest, (void)wrong;
{checks}  printf("{name}: {compared}\\n");
  int runs = argc > 1 ? atoi(argv[1]) : 0;
  if (runs > 0) {{
    double *times = allocate(runs, sizeof *times);
    for (int run = 0; run < runs; ++run) {{
      double start = seconds();
      {call};
      times[run] = seconds() - start;
    }}
    qsort(times, runs, sizeof *times, order);
    printf("{name}: %.4f ms, median of %d runs\\n", times[runs / 2] * 1e3, runs);
  }}
  return 0;
}}
"""
