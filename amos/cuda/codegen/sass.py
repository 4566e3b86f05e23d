"""Which Tensor Core instructions a compiled kernel holds.

NVIDIA's disassemblers drop old architectures one by one (the one of CUDA 13.3 refuses
sm_70), so that instructions are read here: since Volta each has 16 bytes, and the low
12 bits say which one it is and where its operands are (Jia et al., Dissecting the
NVIDIA Volta GPU Architecture via Microbenchmarking, 2018, section 2.1). The numbers
below were read from ``cuobjdump -sass`` on sm_75 to sm_120; ``0x236`` is Volta's.
"""

from __future__ import annotations

import struct
from collections import Counter

from amos.errors import BuildError

_OPCODES = {
    0x236: "HMMA",
    0x23C: "HMMA",
    0x237: "IMMA",
    0x23F: "DMMA",
    0x23D: "BMMA",
    0x27A: "QMMA",
}
_SECTION = struct.Struct("<IIQQQQIIQQ")
_INSTRUCTION = 16


def tensor_core_instructions(cubin: bytes) -> Counter[str]:
    """Count each Tensor Core instruction in a ``cubin``, by mnemonic.

    Raises:
        BuildError: that is no 64-bit ELF file.
    """
    if cubin[:5] != b"\x7fELF\x02":
        raise BuildError("expected a cubin, which is a 64-bit ELF file")
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    count, names_at = struct.unpack_from("<HH", cubin, 0x3C)
    sections = [_SECTION.unpack_from(cubin, start + _SECTION.size * i) for i in range(count)]
    names = sections[names_at][4]
    counts: Counter[str] = Counter()
    for section in sections:
        at = names + section[0]
        if cubin[at : cubin.index(b"\0", at)].startswith(b".text"):
            offset, size = section[4], section[5]
            words = struct.iter_unpack("<QQ", cubin[offset : offset + size // 16 * _INSTRUCTION])
            codes = (first & 0xFFF for first, _ in words)
            counts.update(_OPCODES[code] for code in codes if code in _OPCODES)
    return counts
