"""LLVM's description of this CPU."""

from __future__ import annotations

from typing import Any

from amos._toolchain import tvm
from amos.codegen.tir.pool import use_pool
from amos.codegen.tir.statements import tests_digits
from amos.machine.cpu import cpu

#: LLVM's names for what intrinsics require of a CPU, in the words of Linux.
LLVM_FEATURES = {
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
    "amx_tile": "amx-tile",
    "asimddp": "dotprod",
    "avx2": "avx2",
    "avx512_bf16": "avx512bf16",
    "avx512_vnni": "avx512vnni",
    "avx512bw": "avx512bw",
    "avx512f": "avx512f",
    "avx512vl": "avx512vl",
    "avx_vnni": "avxvnni",
    "f16c": "f16c",
    "fma": "fma",
    "i8mm": "i8mm",
}


#: Features that LLVM may not use. ``INSERTQ`` and ``EXTRQ``, which permute bytes, have no VEX form:
#: while the upper half of any vector register is in use, one takes 200 to 350 ns on a Zen 3.
_SLOW_FEATURES = frozenset({"sse4a"})

#: LLVM's level of optimization. The third compiles up to 50 times as long where reductions are
#: short, and its code is no faster. Intrinsics are vectorized already; LLVM 22 computes wrong sums
#: of products in 64 bits where its SLP vectorizer looks for more vectors.
_OPTIMIZATION = {"opt-level": 2, "cl-opt": ["-vectorize-slp=0"]}


def host_target(*, loops: bool = True) -> Any:
    """Return TVM's target for this CPU, whose kernels run in one pool of threads.

    LLVM guesses a model from the processor's identification. Under a hypervisor that hides the
    model it guesses an older one, and then aborts on an instruction that the CPU has; so features
    that the guess lacks are added. Features that only the guess has are removed, where the system
    describes the CPU: their code would end with SIGILL. Instructions that are too slow are removed
    as well.
    """
    use_pool()
    llvm = tvm.target.codegen
    named = {"kind": "llvm", "mcpu": str(llvm.llvm_get_system_cpu()), "num-cores": cpu().cores}
    described: dict[str, Any] = {**named, **_OPTIMIZATION}
    if not loops:
        described["cl-opt"] = [*described["cl-opt"], "-vectorize-loops=0"]
    guess = tvm.target.Target(described)
    guessed = {str(name) for name in llvm.llvm_get_cpu_features(guess)}
    here = {LLVM_FEATURES[name] for name in LLVM_FEATURES.keys() & cpu().features}
    differing = [f"+{name}" for name in sorted(here - guessed)]
    differing += [f"-{name}" for name in sorted(guessed & _SLOW_FEATURES)]
    if cpu().features:
        beyond = guessed.intersection(LLVM_FEATURES.values()) - here
        differing += [f"-{name}" for name in sorted(beyond)]
    return tvm.target.Target({**described, "mattr": differing}) if differing else guess


def vectorizes_loops(module: Any, kind: str) -> bool:
    """Return whether LLVM may make vectors of a kernel's loops.

    LLVM 22 makes one wrong masked load of a loop that reads element ``s % 4`` under a condition
    in step ``s``, as copies do that replicate guarded lanes.

    Args:
        kind: ``"native"`` or ``"generic"``, whose loops LLVM has to vectorize.
    """
    tested = any(tests_digits(function.body) for function in module.functions.values())
    return kind == "generic" or not tested
