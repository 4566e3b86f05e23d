// NVIDIA's driver as far as kernels need it, on the host. A module's image is a shared
// library, as fake_nvcc.py makes one, in which the kernel runs thread by thread.
//
// FAKE_CUDA_LOG names a file that calls are written to, FAKE_CUDA_FAIL and FAKE_CUDA_HANG a
// function that fails or never returns, or "cuLaunchKernel:NAME" for one kernel; "@FILE" is what
// that file says at the time. As on a GPU, every call after such a failure fails with it, unless
// it was that of loading a module. Addresses that were not allocated are refused, and so is what
// a stream may not do while it is recorded. FAKE_CUDA_OLD is a driver that knows no graphs.
#include <dlfcn.h>
#include <elf.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

using Entry = int (*)(unsigned, unsigned, unsigned, unsigned, void **);
// What a block may ask for (CUDA C++ Programming Guide), as far as tests have such GPUs.
static const int CAPABILITY_SHARED = (CAPABILITY == 80 ? 163 : CAPABILITY == 90 ? 227 : 99) * 1024;
enum { INVALID = 1, NO_MEMORY = 2, BAD_IMAGE = 200, NOT_FOUND = 500, ILLEGAL = 700 };

struct Function {
  Entry entry;
  int allowed, arguments;
  std::string name;
};
using Graph = std::vector<std::function<int()>>;
struct Stream {
  Graph *recorded;
};
static std::map<uint64_t, size_t> memory;
static std::map<void *, Function> functions;
static bool harmed;

static std::string setting(const char *variable) {
  const char *value = std::getenv(variable);
  if (!value || *value != '@') return value ? value : "";
  std::string text;
  if (FILE *file = std::fopen(value + 1, "r")) {
    for (int c; (c = std::fgetc(file)) != EOF;) text += static_cast<char>(c);
    std::fclose(file);
  }
  return text;
}

static bool meant(const char *variable, const char *name, const std::string &who) {
  const std::string given = setting(variable);
  return given == name || given == std::string(name) + ":" + who;
}

static int called(const char *name, const std::string &arguments = "",
                  const std::string &who = "?") {
  if (const char *file = std::getenv("FAKE_CUDA_LOG")) {
    if (FILE *log = std::fopen(file, "a")) {
      std::fprintf(log, "%s %s\n", name, arguments.c_str());
      std::fclose(log);
    }
  }
  while (meant("FAKE_CUDA_HANG", name, who)) pause();
  const bool fails = meant("FAKE_CUDA_FAIL", name, who);
  harmed = harmed || (fails && std::strcmp(name, "cuModuleLoadData"));
  return harmed || fails ? ILLEGAL : 0;
}

// Now, or when the graph that a stream is recorded into is launched.
static int ordered(void *stream, std::function<int()> what) {
  Stream *given = static_cast<Stream *>(stream);
  if (!given || !given->recorded) return what();
  given->recorded->push_back(std::move(what));
  return 0;
}

static bool known(uint64_t at, size_t size) {
  auto found = memory.upper_bound(at);
  if (found == memory.begin()) return false;
  --found;
  return at + size <= found->first + found->second;
}

extern "C" {
int cuInit(unsigned) { return called("cuInit"); }
int cuDriverGetVersion(int *version) { return *version = 12090, 0; }
int cuDeviceGet(int *device, int) { return *device = 0, called("cuDeviceGet"); }
int cuDevicePrimaryCtxRetain(void **context, int) {
  return *context = nullptr, called("cuDevicePrimaryCtxRetain");
}
int cuCtxSetCurrent(void *) { return called("cuCtxSetCurrent"); }
int cuCtxPushCurrent_v2(void *) { return called("cuCtxPushCurrent"); }
int cuCtxPopCurrent_v2(void **) { return called("cuCtxPopCurrent"); }
int cuCtxSynchronize() { return called("cuCtxSynchronize"); }
int cuDeviceGetName(char *name, int size, int) {
  return std::snprintf(name, size, "Fake GPU"), called("cuDeviceGetName");
}
int cuDeviceGetAttribute(int *value, int which, int) {
  *value = which == 75   ? CAPABILITY / 10
           : which == 76 ? CAPABILITY % 10
           : which == 38 ? 1 << 20
           : which == 97 ? CAPABILITY_SHARED
                         : -1;
  return *value < 0 ? INVALID : 0;
}
int cuGetErrorString(int status, const char **text) {
  return *text = status == ILLEGAL ? "an illegal memory access was encountered"
                 : status == BAD_IMAGE ? "device kernel image is invalid"
                                       : "invalid argument", 0;
}
int cuMemAlloc_v2(uint64_t *pointer, size_t size) {
  void *made = std::aligned_alloc(256, (size + 255) / 256 * 256);
  if (!made) return NO_MEMORY;
  memory[*pointer = reinterpret_cast<uint64_t>(made)] = size;
  return called("cuMemAlloc");
}
int cuMemFree_v2(uint64_t pointer) {
  if (harmed) return ILLEGAL;
  if (!memory.erase(pointer)) return INVALID;
  std::free(reinterpret_cast<void *>(pointer));
  return 0;
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
  if (!known(to, size)) return INVALID;
  std::memcpy(reinterpret_cast<void *>(to), from, size);
  return called("cuMemcpyHtoD", std::to_string(size));
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
  if (!known(from, size)) return INVALID;
  std::memcpy(to, reinterpret_cast<void *>(from), size);
  return called("cuMemcpyDtoH", std::to_string(size));
}
int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t size) {
  if (!known(to, size)) return INVALID;
  std::memset(reinterpret_cast<void *>(to), value, size);
  return called("cuMemsetD8", std::to_string(size));
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t size, void *stream) {
  return ordered(stream, [=] { return cuMemsetD8_v2(to, value, size); });
}
int cuModuleLoadData(void **module, const void *image) {
  const auto *head = static_cast<const Elf64_Ehdr *>(image);
  if (std::memcmp(head->e_ident, ELFMAG, SELFMAG)) return BAD_IMAGE;
  const size_t size = head->e_shoff + size_t{head->e_shnum} * head->e_shentsize;
  const char *folder = std::getenv("TMPDIR");
  std::string name = std::string(folder ? folder : "/tmp") + "/fake-cuda-XXXXXX";
  const int file = mkstemp(name.data());
  if (file < 0 || write(file, image, size) != static_cast<ssize_t>(size)) return NO_MEMORY;
  close(file);
  *module = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  unlink(name.c_str());
  return *module ? called("cuModuleLoadData") : BAD_IMAGE;
}
int cuModuleUnload(void *module) { return dlclose(module) ? INVALID : called("cuModuleUnload"); }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  void *found = dlsym(module, ("launch_" + std::string(name)).c_str());
  if (!found) return NOT_FOUND;
  void *count = dlsym(module, ("count_" + std::string(name)).c_str());
  functions[found] = {reinterpret_cast<Entry>(found), 48 * 1024, *static_cast<int *>(count), name};
  *function = found;
  return called("cuModuleGetFunction", name);
}
int cuFuncSetAttribute(void *function, int which, int value) {
  if (which != 8 || value > CAPABILITY_SHARED) return INVALID;
  functions.at(function).allowed = value;
  return called("cuFuncSetAttribute", std::to_string(value));
}
static int launched(Function kernel, unsigned gx, unsigned gy, unsigned tx, unsigned dynamic,
                    std::vector<uint64_t> values) {
  std::vector<void *> arguments;
  for (auto &value : values) arguments.push_back(&value);
  if (const int status = kernel.entry(gx, gy, tx, dynamic, arguments.data())) return status;
  return called("cuLaunchKernel", std::to_string(gx) + " " + std::to_string(gy) + " " +
                                      std::to_string(tx) + " " + std::to_string(dynamic),
                kernel.name);
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned tx, unsigned ty,
                   unsigned tz, unsigned dynamic, void *stream, void **arguments, void **extra) {
  const Function kernel = functions.at(function);
  if (gy > 65535 || gz != 1 || ty != 1 || tz != 1 || tx > 1024 || extra) return INVALID;
  if (static_cast<int>(dynamic) > kernel.allowed) return INVALID;
  std::vector<uint64_t> values;
  for (int n = 0; n < kernel.arguments; ++n) values.push_back(*static_cast<uint64_t *>(arguments[n]));
  return ordered(stream, [=] { return launched(kernel, gx, gy, tx, dynamic, values); });
}
int cuStreamCreate(void **stream, unsigned) {
  return *stream = new Stream{}, called("cuStreamCreate");
}
int cuStreamDestroy_v2(void *stream) {
  return delete static_cast<Stream *>(stream), called("cuStreamDestroy");
}
int cuStreamBeginCapture_v2(void *stream, int) {
  if (std::getenv("FAKE_CUDA_OLD")) return INVALID;
  static_cast<Stream *>(stream)->recorded = new Graph;
  return called("cuStreamBeginCapture");
}
int cuStreamEndCapture(void *stream, void **graph) {
  Stream *given = static_cast<Stream *>(stream);
  *graph = given->recorded;
  given->recorded = nullptr;
  return called("cuStreamEndCapture");
}
int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long) {
  *made = new Graph(*static_cast<Graph *>(graph));
  return called("cuGraphInstantiate", std::to_string(static_cast<Graph *>(graph)->size()));
}
int cuGraphLaunch(void *made, void *) {
  for (const auto &what : *static_cast<Graph *>(made))
    if (const int status = what()) return status;
  return called("cuGraphLaunch");
}
int cuGraphDestroy(void *graph) { return delete static_cast<Graph *>(graph), 0; }
int cuGraphExecDestroy(void *made) {
  return delete static_cast<Graph *>(made), called("cuGraphExecDestroy");
}
int cuEventCreate(void **event, unsigned) {
  return *event = std::calloc(1, sizeof(timespec)), called("cuEventCreate");
}
int cuEventDestroy_v2(void *event) { return std::free(event), 0; }
int cuEventRecord(void *event, void *) {
  if (harmed) return ILLEGAL;
  return clock_gettime(CLOCK_MONOTONIC, static_cast<timespec *>(event)), 0;
}
int cuEventSynchronize(void *) { return called("cuEventSynchronize"); }
int cuEventElapsedTime(float *elapsed, void *from, void *to) {
  const auto *a = static_cast<timespec *>(from), *b = static_cast<timespec *>(to);
  *elapsed = (b->tv_sec - a->tv_sec) * 1e3f + (b->tv_nsec - a->tv_nsec) * 1e-6f;
  return 0;
}
}
