// Runs one kernel on tensors from standard input; writes the output to standard output.
// Each tensor ends where its memory does, up to the alignment that a kernel may rely on.
static void *tensor(size_t bytes) { return amos_emulation::guarded(bytes, 16); }

static void *read_tensor(size_t bytes) {
  void *memory = tensor(bytes);
  if (std::fread(memory, 1, bytes, stdin) != bytes) amos_emulation::fail("input too short");
  return memory;
}
