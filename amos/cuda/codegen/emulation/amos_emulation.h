// CUDA on the host: enough of it to run a generated kernel, one block after another.
//
// Every CUDA thread is a fiber. A warp runs until each of its threads has come to a barrier
// of the block before the next warp begins, in ascending or descending order: as far ahead of
// the others as a GPU could let it. So an order which no barrier enforces differs between two
// runs. Copies by cp.async arrive when they are waited for, or at once: a missing wait, or a
// stage that is overwritten too early, differs between the two. Threads of a warp that come
// to different instructions for a whole warp are found out. Shared memory starts as NaN,
// it and tensors end where their memory does, and what hardware asks of addresses is checked.
#pragma once
#define AMOS_EMULATION 1

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct dim3 { unsigned x, y, z; };

namespace amos_emulation {

[[noreturn]] inline void fail(const char *what) {
  std::fprintf(stderr, "emulation: %s\n", what);
  std::exit(9);
}

// Memory that ends where no other begins, up to a multiple of an alignment.
inline unsigned char *guarded(size_t bytes, size_t alignment) {
  const size_t page = sysconf(_SC_PAGESIZE), whole = (bytes + alignment - 1) / alignment * alignment;
  const size_t room = (whole + page - 1) / page * page;
  char *memory = static_cast<char *>(mmap(nullptr, room + 2 * page, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) ||
      mprotect(memory + page + room, page, PROT_NONE))
    fail("no memory");
  std::memset(memory + page, 0xff, room);
  return reinterpret_cast<unsigned char *>(memory + page + room - whole);
}

inline float narrow(float value, int bits, int least, float top) {
  if (!std::isfinite(value) || value == 0) return value;
  int exponent;
  std::frexp(value, &exponent);
  exponent = exponent - 1 < least ? least : exponent - 1;
  const double unit = std::ldexp(1.0, exponent - bits);
  const double rounded = std::nearbyint(value / unit) * unit;
  return std::fabs(rounded) > top ? std::copysign(INFINITY, value) : static_cast<float>(rounded);
}

inline uint16_t to_half(float value) {
  uint32_t word;
  value = narrow(value, 10, -14, 65504.0f);
  std::memcpy(&word, &value, 4);
  const uint32_t sign = word >> 16 & 0x8000;
  if (std::isnan(value)) return sign | 0x7e00;
  if (std::isinf(value)) return sign | 0x7c00;
  const float size = std::fabs(value);
  if (size < std::ldexp(1.0f, -14)) return sign | static_cast<uint32_t>(std::ldexp(size, 24));
  return sign | (((word >> 13 & 0x3fc00) - (112 << 10)) + (word >> 13 & 0x3ff));
}

inline float from_half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float size = exponent == 31 ? (fraction ? NAN : INFINITY)
               : exponent     ? std::ldexp(1024.0f + fraction, exponent - 25)
                              : std::ldexp(static_cast<float>(fraction), -24);
  return bits & 0x8000 ? -size : size;
}

// An eight-bit float: value = 1.fraction * 2^(exponent - bias).
template <int FRACTION, int BIAS>
struct Tiny {
  uint8_t bits;
  operator float() const {
    const int exponent = (bits & 127) >> FRACTION, fraction = bits & ((1 << FRACTION) - 1);
    const bool special = FRACTION == 3 ? (bits & 127) == 127 : exponent == 31;
    if (special) return NAN;
    const float size = exponent ? std::ldexp(1.0f + std::ldexp(fraction, -FRACTION), exponent - BIAS)
                                : std::ldexp(static_cast<float>(fraction), 1 - BIAS - FRACTION);
    return bits & 128 ? -size : size;
  }
};
using e4m3 = Tiny<3, 7>;
using e5m2 = Tiny<2, 15>;

}  // namespace amos_emulation

struct half {
  uint16_t bits;
  half() = default;
  explicit half(float value) : bits(amos_emulation::to_half(value)) {}
  operator float() const { return amos_emulation::from_half(bits); }
};

struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float value) {
    uint32_t word;
    value = amos_emulation::narrow(value, 7, -126, 3.3895313892515355e38f);
    std::memcpy(&word, &value, 4);
    bits = word >> 16;
  }
  operator float() const {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
  }
};

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __int2float_rn(int value) { return static_cast<float>(value); }
inline int __float2int_rn(float value) {
  if (value >= 0x1p31f) return INT32_MAX;
  if (value <= -0x1p31f) return INT32_MIN;
  return static_cast<int>(std::nearbyint(value));
}
inline float __half2float(half value) { return value; }
inline half __float2half_rn(float value) { return half(value); }
inline float __bfloat162float(__nv_bfloat16 value) { return value; }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return __nv_bfloat16(value); }

namespace amos_emulation {

struct Copy {
  void *to;
  unsigned char data[16];
  int bytes;
};

struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  dim3 index;
  bool done;
  const char *waits;  // for what: one of the block, anything else of its warp; null: it runs
  std::vector<Copy> open;               // copies of the group that is being made
  std::vector<std::vector<Copy>> groups;  // groups on their way
};

// What the lanes of a warp show each other, and two matrices that are put together of it.
struct Exchange {
  const void *first[32], *second[32];
  uint16_t rows[32][8];
  double left[1024], right[1024];
  bool gathered;
};

struct Machine {
  std::vector<Thread> threads;
  ucontext_t scheduler;
  Thread *current = nullptr;
  void (*kernel)() = nullptr;
  dim3 block{}, grid{};
  Exchange exchange[32];
  bool late = false, descending = false;
};

inline Machine machine;

inline void enter() {
  machine.kernel();
  machine.current->done = true;
  swapcontext(&machine.current->context, &machine.scheduler);
}

constexpr const char *of_block = "__syncthreads";

inline void wait(const char *what) {
  machine.current->waits = what;
  swapcontext(&machine.current->context, &machine.scheduler);
}

inline int lane() { return machine.current->index.x % 32; }
inline int warp() { return machine.current->index.x / 32; }

// Runs a warp until all of its threads are done or wait for the block.
inline void run_warp(int first) {
  for (;;) {
    for (int n = 0; n < 32; ++n) {
      Thread &thread = machine.threads[first + (machine.descending ? 31 - n : n)];
      if (thread.done || thread.waits) continue;
      machine.current = &thread;
      swapcontext(&machine.scheduler, &thread.context);
    }
    const Thread &one = machine.threads[first];
    for (int n = first; n < first + 32; ++n) {
      const Thread &other = machine.threads[n];
      if (other.done != one.done || (!one.done && std::strcmp(other.waits, one.waits)))
        fail("threads of a warp wait at different barriers");
    }
    if (one.done || one.waits == of_block) return;
    for (int n = first; n < first + 32; ++n) machine.threads[n].waits = nullptr;
  }
}

// Runs warp after warp, each as far as a barrier of the block lets it.
inline void run_block() {
  const int count = static_cast<int>(machine.threads.size());
  for (;;) {
    int done = 0;
    for (int first = 0; first < count; first += 32)
      run_warp(machine.descending ? count - 32 - first : first);
    for (auto &thread : machine.threads) {
      done += thread.done;
      thread.waits = nullptr;
    }
    if (done == count) return;
    if (done) fail("threads wait at different barriers");
  }
}

inline void launch(dim3 grid, int threads, void *shared, size_t bytes, bool descending, bool late,
                   void (*kernel)()) {
  machine.kernel = kernel;
  machine.grid = grid;
  machine.late = late;
  machine.descending = descending;
  machine.threads.resize(threads);
  for (machine.block.y = 0; machine.block.y < grid.y; ++machine.block.y)
    for (unsigned x = 0; x < grid.x; ++x) {
      machine.block.x = descending ? grid.x - 1 - x : x;
      std::memset(shared, 0xff, bytes);
      for (int n = 0; n < threads; ++n) {
        Thread &thread = machine.threads[n];
        thread.stack.resize(1 << 16);
        thread.index = {static_cast<unsigned>(n), 0, 0};
        thread.done = false;
        thread.waits = nullptr;
        thread.open.clear();
        thread.groups.clear();
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.data();
        thread.context.uc_stack.ss_size = thread.stack.size();
        thread.context.uc_link = nullptr;
        makecontext(&thread.context, enter, 0);
      }
      run_block();
      for (auto &thread : machine.threads)
        for (auto &group : thread.groups)
          if (!group.empty()) fail("a block ends while its copies are on their way");
    }
}

inline void check_address(const void *address, unsigned alignment, const char *what) {
  if (reinterpret_cast<uintptr_t>(address) % alignment) fail(what);
}

template <typename T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double,
                               std::conditional_t<std::is_same_v<T, int>, int, float>>;

}  // namespace amos_emulation

#define threadIdx (amos_emulation::machine.current->index)
#define blockIdx (amos_emulation::machine.block)

inline void __syncthreads() { amos_emulation::wait(amos_emulation::of_block); }
inline void __syncwarp() { amos_emulation::wait("__syncwarp"); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  using namespace amos_emulation;
  Exchange &seen = machine.exchange[warp()];
  seen.first[lane()] = &value;
  wait("__shfl_xor_sync");
  const T other = *static_cast<const T *>(seen.first[lane() ^ mask]);
  wait("__shfl_xor_sync");
  return other;
}

template <typename T>
T atomicAdd(T *to, T value) {
  using Wide = std::conditional_t<std::is_same_v<T, int>, unsigned, T>;
  const T before = *to;
  *to = static_cast<T>(static_cast<Wide>(before) + static_cast<Wide>(value));
  return before;
}

template <typename T>
T atomicMax(T *to, T value) {
  const T before = *to;
  if (value > before) *to = value;
  return before;
}

template <typename T>
T atomicMin(T *to, T value) {
  const T before = *to;
  if (value < before) *to = value;
  return before;
}

inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  const auto both = static_cast<unsigned long long>(high) << 32 | low;
  return static_cast<unsigned>(both >> (shift & 31));
}

template <int BYTES>
void copy_async(void *to, const void *from, bool live) {
  using namespace amos_emulation;
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16);
  check_address(to, BYTES, "cp.async: destination not aligned");
  check_address(from, BYTES, "cp.async: source not aligned");
  Copy copy{to, {}, BYTES};
  if (live) std::memcpy(copy.data, from, BYTES);
  if (machine.late) machine.current->open.push_back(copy);
  else std::memcpy(to, copy.data, BYTES);
}

inline void commit_copies() {
  auto &thread = *amos_emulation::machine.current;
  thread.groups.push_back(thread.open);
  thread.open.clear();
}

template <int PENDING>
void wait_copies() {
  auto &thread = *amos_emulation::machine.current;
  for (; thread.groups.size() > PENDING; thread.groups.erase(thread.groups.begin()))
    for (const auto &copy : thread.groups.front()) std::memcpy(copy.to, copy.data, copy.bytes);
}

namespace amos_emulation {

// ldmatrix (PTX ISA): lane n gives the address of row n % 8 of matrix n / 8, and gets
// columns 2 * (n % 4) and the next of row n / 4 of each, or of its transpose.
inline void load_matrices(unsigned *x, const void *row, int count, bool transposed) {
  auto &rows = machine.exchange[warp()].rows;
  const int n = lane();
  if (n < 8 * count) {
    check_address(row, 16, "ldmatrix: row not aligned");
    std::memcpy(rows[n], row, 16);
  }
  wait("ldmatrix");
  for (int q = 0; q < count; ++q) {
    uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      int r = n / 4, c = n % 4 * 2 + i;
      if (transposed) std::swap(r, c);
      pair[i] = rows[q * 8 + r][c];
    }
    std::memcpy(x + q, pair, 4);
  }
  wait("ldmatrix");
}

// c += a * b of a warp whose lanes hold elements where three functions say.
template <typename T, typename R, int M, int N, int K, typename X, typename Y, typename A,
          typename B, typename C>
void multiply(X *c, const Y *a, const Y *b, A where_a, B where_b, C where_c) {
  Exchange &seen = machine.exchange[warp()];
  seen.first[lane()] = a;
  seen.second[lane()] = b;
  seen.gathered = false;
  wait("mma");
  if (!seen.gathered)
    for (int n = 0; n < 32; ++n) {
      for (int e = 0; e < M * K / 32; ++e)
        seen.left[where_a(n, e)] = static_cast<const T *>(seen.first[n])[e];
      for (int e = 0; e < K * N / 32; ++e)
        seen.right[where_b(n, e)] = static_cast<const T *>(seen.second[n])[e];
    }
  seen.gathered = true;
  R *const mine = reinterpret_cast<R *>(c);
  for (int e = 0; e < M * N / 32; ++e) {
    const int at = where_c(lane(), e);
    Sum<R> sum = mine[e];
    for (int k = 0; k < K; ++k)
      sum += static_cast<Sum<R>>(seen.left[at / N * K + k] * seen.right[k * N + at % N]);
    mine[e] = static_cast<R>(sum);
  }
  wait("mma");
}

}  // namespace amos_emulation

namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

template <typename T>
struct Held { using type = T; };
template <>
struct Held<precision::tf32> { using type = float; };

// Which lane holds what is no business of a program: here element i is lane i % 32's.
template <typename USE, int M, int N, int K, typename T, typename LAYOUT = void>
struct fragment {
  using element = typename Held<T>::type;
  static constexpr bool is_a = std::is_same_v<USE, matrix_a>, is_b = std::is_same_v<USE, matrix_b>;
  static constexpr int rows = is_b ? K : M, columns = is_a ? K : N;
  static constexpr int num_elements = rows * columns / 32;
  element x[num_elements];
};

template <typename T>
void check(const T *from, unsigned row) {
  amos_emulation::check_address(from, 32, "wmma: address of a fragment not aligned");
  if (row * sizeof(T) % 16) amos_emulation::fail("wmma: length of a row is no multiple of 16 bytes");
}

template <typename USE, int M, int N, int K, typename T, typename LAYOUT>
void load_matrix_sync(fragment<USE, M, N, K, T, LAYOUT> &f,
                      const typename Held<T>::type *from, unsigned row) {
  check(from, row);
  for (int e = 0; e < f.num_elements; ++e) {
    const int i = e * 32 + amos_emulation::lane(), r = i / f.columns, c = i % f.columns;
    f.x[e] = from[std::is_same_v<LAYOUT, row_major> ? r * row + c : c * row + r];
  }
  // All lanes take part, but what others wrote before is not awaited by that.
  amos_emulation::wait("load_matrix_sync");
}

template <int M, int N, int K, typename T>
void store_matrix_sync(T *to, const fragment<accumulator, M, N, K, T> &f, unsigned row,
                       layout_t layout) {
  check(to, row);
  amos_emulation::wait("store_matrix_sync");
  for (int e = 0; e < f.num_elements; ++e) {
    const int i = e * 32 + amos_emulation::lane(), r = i / N, c = i % N;
    to[layout == mem_row_major ? r * row + c : c * row + r] = f.x[e];
  }
}

template <int M, int N, int K, typename T>
void fill_fragment(fragment<accumulator, M, N, K, T> &f, T value) {
  for (auto &x : f.x) x = value;
}

inline float __float_to_tf32(float value) {
  uint32_t word;
  std::memcpy(&word, &value, 4);
  if (std::isfinite(value)) word = (word + 0x1000) & ~0x1fffu;
  std::memcpy(&value, &word, 4);
  return value;
}

template <int M, int N, int K, typename T, typename S, typename LA, typename LB>
void mma_sync(fragment<accumulator, M, N, K, S> &d, const fragment<matrix_a, M, N, K, T, LA> &a,
              const fragment<matrix_b, M, N, K, T, LB> &b,
              const fragment<accumulator, M, N, K, S> &c) {
  d = c;
  const auto plain = [](int lane, int e) { return e * 32 + lane; };
  amos_emulation::multiply<typename Held<T>::type, S, M, N, K>(d.x, a.x, b.x, plain, plain, plain);
}

}  // namespace wmma
}  // namespace nvcuda
