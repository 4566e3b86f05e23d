// Runs one kernel on tensors from standard input; writes the output to standard output.
// Each tensor ends where its memory does, up to the alignment that a kernel may rely on.
#include <sys/mman.h>
#include <unistd.h>

static void *tensor(size_t bytes) {
  const size_t page = sysconf(_SC_PAGESIZE), whole = (bytes + 15) / 16 * 16;
  const size_t room = (whole + page - 1) / page * page;
  char *memory = static_cast<char *>(mmap(nullptr, room + 2 * page, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) ||
      mprotect(memory + page + room, page, PROT_NONE))
    amos_emulation::fail("no memory");
  std::memset(memory + page, 0xff, room);
  return memory + page + room - whole;
}

static void *read_tensor(size_t bytes) {
  void *memory = tensor(bytes);
  if (std::fread(memory, 1, bytes, stdin) != bytes) amos_emulation::fail("input too short");
  return memory;
}
