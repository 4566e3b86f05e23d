/* Runs compiled networks as custom operators of onnxruntime. Tables of the networks follow the
 * first part; the structures below are onnxruntime's and TVM's C interfaces, as far as they are
 * used. onnxruntime's table of functions only grows at its end, so positions in it are stable. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* TVM: a tensor, an argument of a packed function, a piece of a parallel loop. */
typedef struct {
  void *data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t *shape;
  const int64_t *strides;
  uint64_t byte_offset;
} Tensor;

typedef struct {
  int32_t type_index;
  uint32_t zero;
  const void *pointer;
} Argument;

typedef int (*Function)(void *, const Argument *, int32_t, Argument *);
typedef struct {
  void *barrier;
  int32_t count;
} ParallelGroup;
typedef int (*ParallelBody)(int32_t, ParallelGroup *, void *);

enum { CPU_DEVICE = 1, DLTENSOR_POINTER = 7, MOST_DIMENSIONS = 16 };
enum { PLACE_INPUT, PLACE_OUTPUT, PLACE_ARENA, PLACE_CONSTANT };

/* onnxruntime: opaque objects, its table of functions, a custom operator. */
typedef struct OrtStatus OrtStatus;
typedef const void *const *Api;
typedef struct {
  Api (*get_api)(uint32_t version);
} ApiBase;

enum { API_VERSION = 17, ORT_FAIL = 1 };
enum {
  CREATE_STATUS = 0,
  CREATE_DOMAIN = 26,
  DOMAIN_ADD = 27,
  ADD_DOMAIN = 28,
  TENSOR_DATA = 51,
  TENSOR_RANK = 61,
  TENSOR_SHAPE = 62,
  TENSOR_INFO = 65,
  CONTEXT_INPUT = 90,
  CONTEXT_OUTPUT = 91,
  RELEASE_TENSOR_INFO = 99,
  PARALLEL_FOR = 274,
};
#define CALL(api, position, ...) ((OrtStatus * (*)(__VA_ARGS__))(api)[position])

typedef struct CustomOp {
  uint32_t version;
  void *(*create_kernel)(const struct CustomOp *, Api, const void *);
  const char *(*name)(const struct CustomOp *);
  const char *(*provider)(const struct CustomOp *);
  int (*input_type)(const struct CustomOp *, size_t);
  size_t (*input_count)(const struct CustomOp *);
  int (*output_type)(const struct CustomOp *, size_t);
  size_t (*output_count)(const struct CustomOp *);
  void (*compute)(void *, void *);
  void (*destroy)(void *);
  int (*input_characteristic)(const struct CustomOp *, size_t);
  int (*output_characteristic)(const struct CustomOp *, size_t);
  int (*input_memory)(const struct CustomOp *, size_t);
  int (*input_arity)(const struct CustomOp *);
  int (*input_homogeneity)(const struct CustomOp *);
  int (*output_arity)(const struct CustomOp *);
  int (*output_homogeneity)(const struct CustomOp *);
  OrtStatus *(*create_kernel_v2)(const struct CustomOp *, Api, const void *, void **);
  OrtStatus *(*compute_v2)(void *, void *);
  OrtStatus *(*infer_shapes)(const struct CustomOp *, void *);
  int (*start_version)(const struct CustomOp *);
  int (*end_version)(const struct CustomOp *);
  void *unused[4];
} CustomOp;

/* A network: ports, buffers, and calls in order. */
typedef struct {
  int type; /* onnxruntime's number of the element type */
  int rank;
  const int64_t *shape;
} Port;

typedef struct {
  uint8_t place, code, bits;
  int32_t rank;
  uint64_t index; /* number of the port, or offset in bytes in arena or constants */
  uint64_t begin; /* byte of that at which it begins */
  uint64_t size_bytes;
  const int64_t *shape;
} Buffer;

typedef struct {
  Function function; /* NULL copies the first buffer to the second */
  const char *name;
  uint32_t first, count; /* in the network's list of arguments */
} Step;

typedef struct {
  CustomOp op;
  const char *name;
  uint32_t input_count, output_count, buffer_count, step_count;
  const Port *inputs, *outputs;
  const Buffer *buffers;
  const uint32_t *arguments;
  const Step *steps;
  uint64_t arena_bytes;
  double *step_seconds; /* where a profile wants them */
} Network;

$tables

/* Memory that calls use and give back: arenas of networks and workspaces of kernels. What fills most of
 * a huge page gets huge pages: scattered small ones contend for sets of the caches and miss the TLB,
 * in some processes by far more than in others. */
enum { POOL_BLOCKS = 128, POOL_ALIGNMENT = 64, HUGE_PAGE = 2 << 20, LEAST_HUGE = HUGE_PAGE / 4 };
typedef struct {
  void *memory;
  size_t size;
  int used;
} Block;
static Block pool[POOL_BLOCKS];
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

static void *pool_allocate(size_t size, size_t alignment) {
  void *memory = aligned_alloc(alignment, size ? size : alignment);
  if (memory && alignment == HUGE_PAGE) madvise(memory, size, MADV_HUGEPAGE);
  return memory;
}

static void *pool_take(size_t size) {
  size_t alignment = size < LEAST_HUGE ? POOL_ALIGNMENT : HUGE_PAGE;
  size = (size + alignment - 1) / alignment * alignment;
  Block *best = NULL, *empty = NULL;
  void *memory = NULL;
  pthread_mutex_lock(&pool_lock);
  for (int i = 0; i < POOL_BLOCKS; ++i) {
    Block *block = &pool[i];
    if (!block->memory) {
      empty = empty ? empty : block;
    } else if (!block->used && block->size >= size && block->size <= 4 * size + 4096 &&
               (!best || block->size < best->size)) {
      best = block;
    }
  }
  if (best) {
    best->used = 1;
    memory = best->memory;
  } else if ((memory = pool_allocate(size, alignment)) && empty) {
    *empty = (Block){memory, size, 1};
  }
  pthread_mutex_unlock(&pool_lock);
  return memory;
}

static void pool_give_back(void *memory) {
  pthread_mutex_lock(&pool_lock);
  Block *block = NULL;
  for (int i = 0; i < POOL_BLOCKS && !block; ++i)
    if (pool[i].memory == memory) block = &pool[i];
  if (block) block->used = 0;
  pthread_mutex_unlock(&pool_lock);
  if (!block) free(memory);
}

static void *allocate_workspace(int type, int id, uint64_t size, int code, int bits) {
  (void)type, (void)id, (void)code, (void)bits;
  return pool_take(size);
}

static int free_workspace(int type, int id, void *memory) {
  (void)type, (void)id;
  pool_give_back(memory);
  return 0;
}

/* What kernels report of an error; the thread that calls them reads it. */
static __thread char error_text[512];

__attribute__((visibility("hidden"))) void TVMFFIErrorSetRaisedFromCStrParts(
    const char *kind, const char **parts, int32_t count) {
  size_t used = (size_t)snprintf(error_text, sizeof error_text, "%s: ", kind);
  for (int32_t i = 0; i < count && used < sizeof error_text; ++i)
    if (parts[i]) used += (size_t)snprintf(error_text + used, sizeof error_text - used, "%s", parts[i]);
}

#define TURN_SECONDS 0.004 /* that a thread has a core for, before others' turns */

static double read_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

static void sleep_while(atomic_uint *word, unsigned value, double seconds) {
  struct timespec limit = {0, (long)(seconds * 1e9)};
  if (seconds > 0) syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &limit, NULL, 0);
}

static void wake_all(atomic_uint *word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, CORE_COUNT, NULL, NULL, 0);
}

/* The number of threads that an operator uses. A late helper is one that the system took off its core
 * in a call, which then has to wait for it. Narrow calls, which do without as many helpers, follow: one
 * after the first late helper. Then their number grows at each late helper while they are about as fast
 * as wide calls, late ones included, and else shrinks. So beside threads that spin, an operator soon
 * keeps to cores of its own, and a lone disturbance costs little. The margin is for the first narrow
 * calls: helpers still spin beside them. */
#define MARGIN 0.9
#define LEAST_CALLS 0.25
#define MOST_SECONDS 0.4
enum { GROWTH = 4, MEMORY = 32 /* calls before a late helper that count in later means */ };
typedef struct {
  atomic_int width;
  _Atomic double calls, due_calls; /* narrow ones for each late helper, and from now on */
  _Atomic double mean_seconds[2];  /* of wide and narrow calls */
  atomic_int counts[2];
} Crew;

static int choose_width(Crew *crew, int *is_narrow) {
  int width = atomic_load_explicit(&crew->width, memory_order_relaxed);
  if (width == CORE_COUNT) return width;
  double due = atomic_load(&crew->due_calls);
  *is_narrow = due >= 1;
  atomic_store(&crew->due_calls, *is_narrow ? due - 1 : due);
  if (*is_narrow) return width;
  width = 2 * width < CORE_COUNT ? 2 * width : CORE_COUNT;
  atomic_store(&crew->width, width);
  return width;
}

/* Takes the time of a call into account, and how many helpers were late. */
static void count_call(Crew *crew, double seconds, int is_narrow, int late_count) {
  double calls = atomic_load(&crew->calls), mean = atomic_load(&crew->mean_seconds[is_narrow]);
  if (!calls) { /* the first call is slow for other reasons */
    atomic_store(&crew->calls, 1);
    return;
  }
  int count = atomic_load(&crew->counts[is_narrow]);
  count += count < INT32_MAX;
  atomic_store(&crew->mean_seconds[is_narrow], mean += (seconds - mean) / count);
  atomic_store(&crew->counts[is_narrow], count);
  if (!late_count) return;
  int width = atomic_load(&crew->width) - late_count;
  atomic_store(&crew->width, width < 1 ? 1 : width);
  if (is_narrow) return;
  double narrow = atomic_load(&crew->mean_seconds[1]);
  if (narrow > 0) calls = mean > MARGIN * narrow ? calls * GROWTH : calls / GROWTH;
  if (calls * narrow > MOST_SECONDS) calls = MOST_SECONDS / narrow;
  if (calls < LEAST_CALLS) calls = LEAST_CALLS;
  atomic_store(&crew->calls, calls);
  atomic_store(&crew->due_calls, atomic_load(&crew->due_calls) + calls);
  for (int i = 0; i < 2; ++i)
    if (atomic_load(&crew->counts[i]) > MEMORY) atomic_store(&crew->counts[i], MEMORY);
}

/* Parallel loops. A network enters the session's thread pool once: the first thread to arrive leads
 * and runs all steps, the others help with its loops. Each member first claims pieces of its own
 * range, whose data its caches have from the loop before, and then those that others have not begun:
 * nobody waits for a thread that the system does not run, unless it has claimed a piece. A thread that
 * waits for long sleeps, so that its core can run the late one. It does not yield: a thread that spins
 * would have the core for a whole turn. */
enum { PATIENCE_TICKS = 1 << 20 /* 0.3 to 0.5 ms */, FIELD_BITS = 20, FIELD_MASK = (1 << FIELD_BITS) - 1 };
typedef struct {
  _Alignas(64) atomic_uint_fast64_t claims; /* number of the loop | end of the range | next piece */
} Range;
typedef struct {
  Range ranges[CORE_COUNT];
  _Alignas(64) atomic_uint number; /* of the loop */
  ParallelBody body;
  void *data;
  int32_t count;
  atomic_uint sleepers; /* helpers that sleep until the next loop */
  _Alignas(64) atomic_uint finished; /* pieces of the loop */
  atomic_uint late; /* the last loop that the leader waited too long for */
  atomic_int is_asleep, failed; /* the leader, until pieces are finished */
  _Alignas(64) atomic_uint member_count, gone_count, done;
  OrtStatus *(*lead)(void *);
  void *lead_data;
  OrtStatus *status;
  int late_count; /* helpers that the leader waited too long for */
} Team;
static __thread Team *led_team;

static uint64_t read_ticks(void) { return __builtin_ia32_rdtsc(); }

/* Claims and runs pieces, of a member's own range first, until none is left. */
static void run_pieces(Team *team, int member) {
  for (int i = 0; i < CORE_COUNT; ++i) {
    atomic_uint_fast64_t *claims = &team->ranges[(member + i) % CORE_COUNT].claims;
    for (;;) {
      uint64_t claim = atomic_load_explicit(claims, memory_order_acquire);
      if ((claim & FIELD_MASK) >= (claim >> FIELD_BITS & FIELD_MASK)) break;
      claim = atomic_fetch_add_explicit(claims, 1, memory_order_acq_rel);
      if ((claim & FIELD_MASK) >= (claim >> FIELD_BITS & FIELD_MASK)) break;
      ParallelGroup group = {NULL, team->count};
      if (team->body((int32_t)(claim & FIELD_MASK), &group, team->data)) atomic_store(&team->failed, 1);
      atomic_fetch_add(&team->finished, 1);
      if (atomic_load(&team->is_asleep)) wake_all(&team->finished);
    }
  }
}

/* Waits for pieces of helpers, which take about as long as the leader's own did. */
static void wait_for_pieces(Team *team, unsigned pieces, uint64_t own_ticks) {
  uint64_t deadline = read_ticks() + own_ticks + own_ticks / 2 + PATIENCE_TICKS;
  unsigned finished;
  while ((finished = atomic_load_explicit(&team->finished, memory_order_acquire)) < pieces) {
    if (read_ticks() < deadline) {
      __builtin_ia32_pause();
      continue;
    }
    if (!atomic_exchange(&team->is_asleep, 1)) {
      team->late_count = (int)(pieces - finished);
      atomic_store(&team->late, atomic_load(&team->number));
    } else {
      sleep_while(&team->finished, finished, TURN_SECONDS);
    }
  }
  atomic_store_explicit(&team->is_asleep, 0, memory_order_relaxed);
}

static int launch_parallel(ParallelBody body, void *data, int count) {
  Team *team = led_team;
  unsigned number = atomic_load_explicit(&team->number, memory_order_relaxed) + 1;
  uint64_t pieces = count > 0 ? count : PIECE_COUNT, start = read_ticks();
  team->body = body;
  team->data = data;
  team->count = (int32_t)pieces;
  atomic_store_explicit(&team->finished, 0, memory_order_relaxed);
  for (uint64_t i = 0; i < CORE_COUNT; ++i)
    atomic_store_explicit(&team->ranges[i].claims,
                          (uint64_t)number << 2 * FIELD_BITS | (i + 1) * pieces / CORE_COUNT << FIELD_BITS |
                              i * pieces / CORE_COUNT,
                          memory_order_release);
  atomic_store(&team->number, number);
  if (atomic_load(&team->sleepers)) wake_all(&team->number);
  run_pieces(team, 0);
  if (atomic_load_explicit(&team->finished, memory_order_acquire) < pieces)
    wait_for_pieces(team, (unsigned)pieces, read_ticks() - start);
  return atomic_load(&team->failed) ? -1 : 0;
}

static void help(Team *team, int member) {
  uint64_t deadline = read_ticks() + PATIENCE_TICKS;
  for (unsigned last = 0; !atomic_load_explicit(&team->done, memory_order_acquire);) {
    unsigned number = atomic_load_explicit(&team->number, memory_order_acquire);
    if (number == last && read_ticks() < deadline) {
      __builtin_ia32_pause();
      continue;
    }
    if (number == last) {
      atomic_fetch_add(&team->sleepers, 1);
      sleep_while(&team->number, last, MOST_SECONDS);
      atomic_fetch_sub(&team->sleepers, 1);
    } else {
      last = number;
      run_pieces(team, member);
      if (atomic_load_explicit(&team->late, memory_order_relaxed) == number)
        sleep_while(&team->done, 0, TURN_SECONDS);
    }
    deadline = read_ticks() + PATIENCE_TICKS;
  }
  atomic_fetch_add(&team->gone_count, 1);
}

/* Ends a team and waits until its helpers are gone: onnxruntime would wait on the core that they need. */
static void dismiss(Team *team) {
  atomic_store(&team->done, 1);
  atomic_fetch_add(&team->number, 1);
  if (atomic_load(&team->sleepers)) wake_all(&team->number);
  if (team->late_count) wake_all(&team->done);
  uint64_t deadline = read_ticks() + PATIENCE_TICKS;
  unsigned gone, helpers;
  while ((gone = atomic_load(&team->gone_count)) < (helpers = atomic_load(&team->member_count) - 1)) {
    if (read_ticks() < deadline) {
      __builtin_ia32_pause();
      continue;
    }
    if (!team->late_count) team->late_count = (int)(helpers - gone);
    sleep_while(&team->gone_count, gone, 50e-6);
  }
}

static void join_team(void *data, size_t index) {
  (void)index;
  Team *team = data, *before = led_team;
  unsigned member = atomic_fetch_add(&team->member_count, 1);
  if (member) {
    help(team, (int)member);
    return;
  }
  led_team = team;
  team->status = team->lead(team->lead_data);
  led_team = before;
  dismiss(team);
}

/* Pointers that TVM's loader would set. */
typedef int (*Launch)(ParallelBody, void *, int);
__attribute__((weak, visibility("hidden"))) Launch __TVMBackendParallelLaunch;
__attribute__((weak, visibility("hidden"))) void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
__attribute__((weak, visibility("hidden"))) int (*__TVMBackendFreeWorkspace)(int, int, void *);

static const uint8_t *constants;

static OrtStatus *fail(Api api, const char *text) {
  return CALL(api, CREATE_STATUS, int, const char *)(ORT_FAIL, text);
}

typedef struct {
  const Network *network;
  Api api;
  void **inputs, **outputs;
  uint8_t *arena;
} Run;

static OrtStatus *run_steps(void *data) {
  const Run *run = data;
  const Network *network = run->network;
  Tensor tensors[network->buffer_count + 1];
  for (uint32_t i = 0; i < network->buffer_count; ++i) {
    const Buffer *buffer = &network->buffers[i];
    void *data = buffer->place == PLACE_INPUT    ? run->inputs[buffer->index]
                 : buffer->place == PLACE_OUTPUT ? run->outputs[buffer->index]
                 : buffer->place == PLACE_ARENA  ? run->arena + buffer->index
                                                 : (void *)(constants + buffer->index);
    data = (uint8_t *)data + buffer->begin;
    tensors[i] = (Tensor){data, CPU_DEVICE, 0, buffer->rank, buffer->code, buffer->bits, 1,
                          buffer->shape, NULL, 0};
  }
  for (uint32_t i = 0; i < network->step_count; ++i) {
    const Step *step = &network->steps[i];
    const uint32_t *list = network->arguments + step->first;
    if (!step->function) {
      memcpy(tensors[list[1]].data, tensors[list[0]].data, network->buffers[list[1]].size_bytes);
      continue;
    }
    double start = network->step_seconds ? read_clock() : 0;
    Argument arguments[MOST_ARGUMENTS], result = {0, 0, NULL};
    for (uint32_t k = 0; k < step->count; ++k)
      arguments[k] = (Argument){DLTENSOR_POINTER, 0, &tensors[list[k]]};
    error_text[0] = 0;
    if (step->function(NULL, arguments, (int32_t)step->count, &result)) {
      char text[640];
      snprintf(text, sizeof text, "AMOS: %s in %s failed: %s", step->name, network->name, error_text);
      return fail(run->api, text);
    }
    if (network->step_seconds) network->step_seconds[i] = read_clock() - start;
  }
  return NULL;
}

/* Whether a value has a port's shape; one of another rank, its extents but those of 1: a scalar may
   come as a row of one element. */
static int has_shape(const Port *port, const int64_t *shape, size_t rank) {
  if (rank == (size_t)port->rank) return !memcmp(shape, port->shape, rank * sizeof *shape);
  int k = 0;
  for (size_t i = 0; i < rank; ++i) {
    if (shape[i] == 1) continue;
    while (k < port->rank && port->shape[k] == 1) ++k;
    if (k == port->rank || port->shape[k++] != shape[i]) return 0;
  }
  while (k < port->rank && port->shape[k] == 1) ++k;
  return k == port->rank;
}

static void print_shape(char *text, size_t size, const int64_t *shape, size_t rank) {
  text[0] = 0;
  for (size_t k = 0; k < rank && k < MOST_DIMENSIONS; ++k) {
    size_t used = strlen(text);
    snprintf(text + used, size - used, k ? ", %lld" : "%lld", (long long)shape[k]);
  }
}

static OrtStatus *refuse_shape(Api api, const Network *network, uint32_t input, const int64_t *shape,
                               size_t rank) {
  const Port *port = &network->inputs[input];
  char expected[128], got[128], text[384];
  print_shape(expected, sizeof expected, port->shape, (size_t)port->rank);
  print_shape(got, sizeof got, shape, rank);
  snprintf(text, sizeof text,
           "AMOS: %s was compiled for input %u of shape (%s), got (%s); compile the model for this shape",
           network->name, input, expected, got);
  return fail(api, text);
}

static OrtStatus *bind_ports(const Network *network, Api api, void *context, void **inputs,
                             void **outputs) {
  OrtStatus *status = NULL;
  for (uint32_t i = 0; i < network->input_count && !status; ++i) {
    const void *value = NULL;
    void *info = NULL;
    const Port *port = &network->inputs[i];
    int64_t shape[MOST_DIMENSIONS];
    size_t rank = 0;
    status = CALL(api, CONTEXT_INPUT, const void *, size_t, const void **)(context, i, &value);
    if (!status) status = CALL(api, TENSOR_INFO, const void *, void **)(value, &info);
    if (!status) {
      status = CALL(api, TENSOR_RANK, const void *, size_t *)(info, &rank);
      if (!status && rank <= MOST_DIMENSIONS)
        status = CALL(api, TENSOR_SHAPE, const void *, int64_t *, size_t)(info, shape, rank);
      ((void (*)(void *))api[RELEASE_TENSOR_INFO])(info);
    }
    if (!status && (rank > MOST_DIMENSIONS || !has_shape(port, shape, rank)))
      return refuse_shape(api, network, i, shape, rank);
    if (!status) status = CALL(api, TENSOR_DATA, const void *, void **)(value, &inputs[i]);
  }
  for (uint32_t i = 0; i < network->output_count && !status; ++i) {
    const Port *port = &network->outputs[i];
    void *value = NULL;
    status = CALL(api, CONTEXT_OUTPUT, void *, size_t, const int64_t *, size_t, void **)(
        context, i, port->shape, (size_t)port->rank, &value);
    if (!status) status = CALL(api, TENSOR_DATA, const void *, void **)(value, &outputs[i]);
  }
  return status;
}

typedef struct {
  const Network *network;
  Api api;
  Crew crew;
} Kernel;

static OrtStatus *compute(void *data, void *context) {
  Kernel *kernel = data;
  const Network *network = kernel->network;
  void *inputs[network->input_count + 1], *outputs[network->output_count + 1];
  OrtStatus *status = bind_ports(network, kernel->api, context, inputs, outputs);
  if (status) return status;
  uint8_t *arena = pool_take(network->arena_bytes);
  if (!arena) return fail(kernel->api, "AMOS: out of memory");
  Run run = {network, kernel->api, inputs, outputs, arena};
  Team team = {.lead = run_steps, .lead_data = &run};
  double start = read_clock();
  int is_narrow = 0, width = choose_width(&kernel->crew, &is_narrow);
  if (width == 1)
    join_team(&team, 0);
  else
    status = CALL(kernel->api, PARALLEL_FOR, const void *, void (*)(void *, size_t), size_t, size_t,
                  void *)(context, join_team, (size_t)width, 0, &team);
  count_call(&kernel->crew, read_clock() - start, is_narrow, team.late_count);
  pool_give_back(arena);
  return status ? status : team.status;
}

static OrtStatus *create_kernel(const CustomOp *op, Api api, const void *info, void **kernel) {
  (void)info;
  Kernel *made = malloc(sizeof *made);
  if (!made) return fail(api, "AMOS: out of memory");
  *made = (Kernel){(const Network *)op, api, {.width = CORE_COUNT}};
  *kernel = made;
  return NULL;
}

static const char *name_of(const CustomOp *op) { return ((const Network *)op)->name; }
static const char *provider_of(const CustomOp *op) { return (void)op, NULL; }
static int input_type(const CustomOp *op, size_t i) { return ((const Network *)op)->inputs[i].type; }
static int output_type(const CustomOp *op, size_t i) { return ((const Network *)op)->outputs[i].type; }
static size_t input_count(const CustomOp *op) { return ((const Network *)op)->input_count; }
static size_t output_count(const CustomOp *op) { return ((const Network *)op)->output_count; }
static int zero_at(const CustomOp *op, size_t i) { return (void)op, (void)i, 0; }
static int one(const CustomOp *op) { return (void)op, 1; }
static int last_version(const CustomOp *op) { return (void)op, 0x7fffffff; }
static OrtStatus *no_shapes(const CustomOp *op, void *context) { return (void)op, (void)context, NULL; }

/* Registration: what the library needs is looked for once, in words where it is not there. */
static char refusal[1024];
static pthread_once_t prepared = PTHREAD_ONCE_INIT;

static int lists_feature(const char *flags, const char *feature) {
  size_t length = strlen(feature);
  for (const char *at = flags; (at = strstr(at, feature)); at += length)
    if (at[-1] == ' ' && (at[length] == ' ' || at[length] == '\n' || !at[length])) return 1;
  return 0;
}

static void check_features(const char *library) {
  static char line[16384];
  FILE *file = fopen("/proc/cpuinfo", "r");
  if (!file) return;
  while (fgets(line, sizeof line, file) && strncmp(line, "flags", 5)) line[0] = 0;
  fclose(file);
  for (const char *const *feature = needed_features; line[0] && *feature; ++feature)
    if (!lists_feature(line, *feature)) {
      snprintf(refusal, sizeof refusal,
               "%s was compiled for a CPU with %s, which this one lacks; compile the model here",
               library, *feature);
      return;
    }
}

static void map_constants(const char *library) {
  char path[4096];
  const char *slash = strrchr(library, '/');
  snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - library + 1) : 0, library, CONSTANTS_FILE);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat about;
  if (file < 0 || fstat(file, &about)) {
    snprintf(refusal, sizeof refusal, "%s: its constants, %s, are not beside it", library, CONSTANTS_FILE);
    if (file >= 0) close(file);
    return;
  }
  void *memory = about.st_size == CONSTANTS_BYTES
                     ? mmap(NULL, CONSTANTS_BYTES, PROT_READ, MAP_SHARED, file, 0)
                     : MAP_FAILED;
  close(file);
  if (memory == MAP_FAILED ||
      memcmp((const char *)memory + CONSTANTS_BYTES - sizeof CONSTANTS_DIGEST + 1, CONSTANTS_DIGEST,
             sizeof CONSTANTS_DIGEST - 1)) {
    snprintf(refusal, sizeof refusal, "%s: %s holds other constants than it was written with", library, path);
    return;
  }
  constants = memory;
}

static void prepare(void) {
  Dl_info about = {0};
  const char *library = dladdr((void *)prepare, &about) && about.dli_fname ? about.dli_fname : "libamos.so";
  check_features(library);
  if (!refusal[0]) map_constants(library);
  if (USES_TILES) syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */);
  __TVMBackendParallelLaunch = launch_parallel;
  __TVMBackendAllocWorkspace = allocate_workspace;
  __TVMBackendFreeWorkspace = free_workspace;
}

__attribute__((visibility("default"))) OrtStatus *RegisterCustomOps(void *options, const ApiBase *base) {
  Api api = base->get_api(API_VERSION);
  if (!api) return NULL; /* older than 1.17: says so by itself when it meets the operators */
  pthread_once(&prepared, prepare);
  if (refusal[0]) return fail(api, refusal);
  static void *domain;
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  OrtStatus *status = NULL;
  pthread_mutex_lock(&lock);
  if (!domain) {
    status = CALL(api, CREATE_DOMAIN, const char *, void **)(DOMAIN, &domain);
    for (int i = 0; i < NETWORK_COUNT && !status; ++i) {
      networks[i].op = (CustomOp){API_VERSION,    NULL,         name_of,       provider_of, input_type,
                                  input_count,    output_type,  output_count,  NULL,        free,
                                  zero_at,        zero_at,      zero_at,       one,         one,
                                  one,            one,          create_kernel, compute,     no_shapes,
                                  one,            last_version, {NULL}};
      status = CALL(api, DOMAIN_ADD, void *, const CustomOp *)(domain, &networks[i].op);
    }
  }
  pthread_mutex_unlock(&lock);
  return status ? status : CALL(api, ADD_DOMAIN, void *, void *)(options, domain);
}

/* Writes the seconds of each step of a network's last run to an array from now on; NULL ends that. */
__attribute__((visibility("default"))) void amos_profile(const char *network, double *step_seconds) {
  for (int i = 0; i < NETWORK_COUNT; ++i)
    if (!strcmp(networks[i].name, network)) networks[i].step_seconds = step_seconds;
}
