"""Costs of CUDA machines besides calls and bandwidth, and limits of their thread blocks."""

from __future__ import annotations

from dataclasses import dataclass

from amos.errors import BuildError, MachineError

#: Threads of a warp, most of a block, and 32-bit registers of one multiprocessor and of
#: one thread (CUDA C++ Programming Guide, Technical Specifications per Compute
#: Capability; the same from sm_70 to sm_120).
WARP, MAX_THREADS, REGISTER_FILE, THREAD_REGISTERS = 32, 1024, 65536, 255
#: Registers of a thread that hold no fragment. Without a limit compilers take up to 120, most
#: often about 30. Told to do with 48, they spilled more than 64 bytes in one of the 75 kernels of
#: ``amos reproduce cuda`` and in none of 270 random ones; with 40 in two and one; with 56 in none.
OTHER_REGISTERS = 56
#: First architecture with ``cp.async``, and bytes that it moves at least (PTX ISA).
ASYNC, ASYNC_BYTES = 80, 4
#: Bytes that every row of a fragment in shared memory starts at a multiple of, and that
#: a copy moves at most.
ROW_ALIGNMENT = 16
#: Most copies of a thread that kernels unroll, and hold in registers while the stage before is
#: multiplied. More would displace the accumulators.
HELD_COPIES = 8
#: Unrolling of a longer loop of copies.
LOOPED_COPIES = 4
#: The newest known architecture.
_NEWEST = 121


@dataclass(frozen=True)
class GpuCosts:
    """Costs of generated CUDA kernels, in cycles of one multiprocessor.

    Figures are published, read from machine code, or estimates, which are marked. A machine's
    own are in the table ``gpu`` of its file.

    Attributes:
        l2_latency: a load that the L2 cache answers.
        memory_latency: a load that memory answers. These two and the next are means of
            A100 and H800 in arXiv 2402.13499.
        shared_latency: a load from shared memory.
        sm_bandwidth: bytes a cycle that one multiprocessor reads from the L2 cache at
            most (estimate: two sectors of 32 bytes).
        row_bandwidth: the same for rows of fragments that are copied in pieces of 4 bytes and
            more, one sector at a time (estimate: as above; measured on an H200).
        barrier: one ``__syncthreads`` of a block (estimate).
        start: starting a block, and its first addresses (estimate).
        copy: instructions of one copy into shared memory (7 to 16 in the machine code of
            GEMM for sm_80, in loops that are unrolled and in loops that are not).
        digits: instructions for each division in the address of a copy (9 in convolutions whose
            window is fused).
        realign: instructions that shift a piece of 16 bytes into place (32 in the machine code
            of GEMM for sm_80, without those for the ends of rows).
        store: instructions of one store of a result (estimate).
        atomic: factor on the bytes of an atomic addition at the L2 cache, which reads and writes
            them (estimate).
        clear: seconds between a memset and the kernel after it (estimate).
        overlap: as :attr:`amos.machine.Costs.overlap` (estimate).
    """

    l2_latency: float = 262.0
    memory_latency: float = 472.0
    shared_latency: float = 29.0
    sm_bandwidth: float = 64.0
    row_bandwidth: float = 64.0
    barrier: float = 30.0
    start: float = 500.0
    copy: float = 12.0
    digits: float = 9.0
    realign: float = 32.0
    store: float = 10.0
    atomic: float = 2.0
    clear: float = 1.5e-6
    overlap: float = 4.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0:
                raise MachineError(f"gpu: {name} is negative: {value}")
        if not (min(self.sm_bandwidth, self.row_bandwidth) > 0 and self.overlap > 0):
            raise MachineError("gpu: sm_bandwidth and overlap must be positive")


@dataclass(frozen=True)
class Multiprocessor:
    """Capacities of one multiprocessor of an architecture."""

    architecture: int
    threads: int
    blocks: int
    shared: int

    @property
    def reserved(self) -> int:
        """Bytes of shared memory that the driver reserves in each block, from sm_80 on."""
        return 1024 if self.architecture >= ASYNC else 0

    @property
    def block_shared(self) -> int:
        """Bytes of shared memory that one block may have, after opting in."""
        return self.shared - self.reserved


#: CUDA C++ Programming Guide, Technical Specifications per Compute Capability.
_MULTIPROCESSORS = tuple(
    Multiprocessor(architecture, threads, blocks, shared * 1024)
    for architecture, threads, blocks, shared in (
        (70, 2048, 32, 96),
        (75, 1024, 16, 64),
        (80, 2048, 32, 164),
        (86, 1536, 16, 100),
        (87, 1536, 16, 164),
        (89, 1536, 24, 100),
        (90, 2048, 32, 228),
        (120, 1536, 32, 100),
    )
)


def multiprocessor(architecture: int) -> Multiprocessor:
    """Return the limits of an architecture, as 80 for ``sm_80``, or of the nearest older one."""
    older = [unit for unit in _MULTIPROCESSORS if unit.architecture <= architecture]
    return older[-1] if older else _MULTIPROCESSORS[0]


def capability(architecture: str) -> int:
    """Parse ``"sm_80"`` as 80; raise BuildError if that is no architecture."""
    digits = architecture.removeprefix("sm_").rstrip("a")
    if not architecture.startswith("sm_") or not digits.isdigit():
        raise BuildError(f"architecture {architecture!r}: expected a name such as 'sm_80'")
    if int(digits) > _NEWEST:
        raise BuildError(f"architecture {architecture!r}: sm_{_NEWEST} is the newest known here")
    return int(digits)
