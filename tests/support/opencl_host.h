// Enough of OpenCL C to run kernels on the host, as C++: every work-item is a fiber, which runs
// until it comes to a barrier. Items run in ascending or in descending order, so that an order
// that no barrier enforces differs between two runs.
#pragma once
#include <ucontext.h>

#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __global
#define __private
#define __kernel
#define __local static
#define restrict __restrict__
#define CLK_LOCAL_MEM_FENCE 1

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned;

template <typename To, typename From>
To bits_as(const From &from) {
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
template <typename T, int N>
struct alignas(sizeof(T) * N) Vector {
  T at[N];
  Vector() = default;
  Vector(T value) { for (T &each : at) each = value; }
};
// A vector that lies anywhere in memory, as in a packed structure.
template <typename V>
struct Place {
  unsigned char bytes[sizeof(V)];
  operator V() const { return bits_as<V>(bytes); }
  void operator=(V value) { std::memcpy(bytes, value.at, sizeof bytes); }
};
template <typename T, int N>
Vector<T, N> operator*(Vector<T, N> a, Vector<T, N> b) {
  for (int i = 0; i < N; ++i) a.at[i] *= b.at[i];
  return a;
}
template <typename T, int N>
Vector<T, N> operator*(T a, Vector<T, N> b) { return Vector<T, N>(a) * b; }
template <typename T, int N>
Vector<T, N> operator+(Vector<T, N> a, Vector<T, N> b) {
  for (int i = 0; i < N; ++i) a.at[i] += b.at[i];
  return a;
}
struct int4 { int x, y, z, w; };
struct uint4 { unsigned x, y, z, w; };
template <typename W>
W product(W a, W b) { return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}; }
inline int4 operator*(int4 a, int4 b) { return product(a, b); }
inline uint4 operator*(uint4 a, uint4 b) { return product(a, b); }
template <typename T>
int4 convert_int4(Vector<T, 4> v) { return {v.at[0], v.at[1], v.at[2], v.at[3]}; }
template <typename T>
uint4 convert_uint4(Vector<T, 4> v) { return {v.at[0], v.at[1], v.at[2], v.at[3]}; }

#define WIDTH(T, N) using T##N = Vector<T, N>;
#define WIDTHS(T) WIDTH(T, 2) WIDTH(T, 4) WIDTH(T, 8) WIDTH(T, 16)
WIDTHS(float) WIDTHS(char) WIDTHS(uchar)

inline int add_sat(int a, int b) {
  const int64_t sum = int64_t{a} + b;
  return sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : static_cast<int>(sum);
}
inline int as_int(unsigned value) { return static_cast<int>(value); }
inline int as_int(float value) { return bits_as<int>(value); }
inline unsigned as_uint(int value) { return static_cast<unsigned>(value); }
inline unsigned as_uint(float value) { return bits_as<unsigned>(value); }
inline float as_float(unsigned value) { return bits_as<float>(value); }
inline float convert_float_rte(int value) { return static_cast<float>(value); }
inline int convert_int_sat_rte(float value) {
  if (value >= 0x1p31f) return INT32_MAX;
  return value <= -0x1p31f ? INT32_MIN : static_cast<int>(std::nearbyint(value));
}
using std::fma, std::rint, std::sqrt;
// Work-items run one after the other, so that these are plain.
template <typename T>
void atomic_add(volatile T *to, T value) { *to = as_uint(*to) + as_uint(value); }
template <typename T>
void atomic_max(volatile T *to, T value) { if (*to < value) *to = value; }
template <typename T>
void atomic_min(volatile T *to, T value) { if (value < *to) *to = value; }
inline int atomic_cmpxchg(volatile int *to, int expected, int value) {
  const int old = *to;
  if (old == expected) *to = value;
  return old;
}

namespace host {
struct Item {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 18);
  bool done;
};
inline std::vector<Item> items;
inline ucontext_t scheduler;
inline int group, current;
inline const std::function<void()> *kernel;

inline void enter() {
  (*kernel)();
  items[current].done = true;
  swapcontext(&items[current].context, &scheduler);
}

inline void launch(int groups, int count, bool descending, const std::function<void()> &run) {
  kernel = &run;
  items.resize(count);
  for (group = 0; group < groups; ++group) {
    for (Item &item : items) {
      item.done = false;
      getcontext(&item.context);
      item.context.uc_stack.ss_sp = item.stack.data();
      item.context.uc_stack.ss_size = item.stack.size();
      item.context.uc_link = nullptr;
      makecontext(&item.context, enter, 0);
    }
    for (int done = 0; done < count;) {
      for (int n = 0; n < count; ++n) {
        current = descending ? count - 1 - n : n;
        swapcontext(&scheduler, &items[current].context);
        done += items[current].done;
      }
      if (done % count) {
        std::fprintf(stderr, "work-items wait at different barriers\n");
        std::exit(9);
      }
    }
  }
}
}  // namespace host

inline int get_group_id(int) { return host::group; }
inline int get_local_id(int) { return host::current; }
inline int get_global_id(int) { return host::group * host::items.size() + host::current; }
inline void barrier(int) { swapcontext(&host::items[host::current].context, &host::scheduler); }
