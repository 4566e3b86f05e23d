"""``--format c`` and ``--format so``: C source, header, a test program, the rules that build them,
and the shared library that this machine's compiler makes of it.

The kernel takes plain pointers, allocates nothing and keeps no state. OpenMP, where
the compiler is told to use it, runs the loops that the schedule made parallel.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import warnings
from math import prod
from pathlib import Path

from amos.chains import ChainCandidate
from amos.chains.c_source import c_chain
from amos.codegen.c.compiler import INSTALL, compiler_command, complaint
from amos.codegen.c.source import CKernel, Parameter, c_kernel
from amos.errors import ExportError
from amos.export.cpuid import feature_query
from amos.export.reference import test_program
from amos.export.request import Request
from amos.ir import Chain, Operator, Tensor
from amos.plan import Candidate
from amos.plan.planning import cpu_limits

#: Options that the text relies on: wrapping integers, and aliasing only through memcpy. Vectors
#: wider than the CPU's never cross a function that is not inlined, so their ABI does not matter.
OPTIONS = ("-O3", "-fwrapv", "-fopenmp", "-Wno-psabi")
#: A library that lacks a function is refused when it is linked, not when it is loaded.
_COMPLETE = ("-Wl,-z,defs",) if sys.platform == "linux" else ()

_INTRINSICS = """#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif
"""
#: Linux grants a process the tile registers of AMX on request.
_TILES = """#include <sys/syscall.h>
#include <unistd.h>
"""
_GRANTED = """
static int tiles_are_granted(void) {
  return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
}
__attribute__((constructor)) static void ask_for_tiles(void) { (void)tiles_are_granted(); }
"""
#: For users who build the source with options of their own.
_ROUNDS = """/* A product is rounded before it is added, and no sum is reordered. */
#ifdef __FAST_MATH__
#error "results would not be exact: build without -ffast-math"
#endif
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

"""


def files(request: Request) -> dict[str, str | bytes]:
    """Write the files of an export by name; see :func:`amos.export.formats.formats`."""
    return dict(_texts(request, _kernel(request)))


def library(request: Request) -> dict[str, str | bytes]:
    """Compile the library, and return it with the other files, or raise ExportError."""
    compiler = compiler_command()
    if compiler is None:
        raise ExportError(f"format so: no C compiler: {INSTALL}")
    kernel, name = _kernel(request), request.name
    texts = _texts(request, kernel)
    with tempfile.TemporaryDirectory(prefix="amos-") as folder:
        for file, text in texts.items():
            Path(folder, file).write_text(text, encoding="utf-8")
        command = [*compiler, *OPTIONS, *kernel.flags, "-mtune=native", "-fPIC", "-shared"]
        command += ["-o", f"lib{name}.so", f"{name}.c", "-lm", *_COMPLETE]
        if problem := complaint(command, folder):
            if complaint([word for word in command if word != "-fopenmp"], folder):
                raise ExportError(
                    f"format so: {shlex.join(compiler)} refuses the source: {problem}"
                )
            alone = f"{shlex.join(compiler)} has no OpenMP: the library runs on one core"
            warnings.warn(f"format so: {alone}", stacklevel=3)
        return {f"lib{name}.so": Path(folder, f"lib{name}.so").read_bytes(), **texts}


def _kernel(request: Request) -> CKernel:
    limits, candidate = cpu_limits(request.machine), request.candidate
    if isinstance(candidate, ChainCandidate):
        return c_chain(candidate, limits, request.implementation)
    if not isinstance(candidate, Candidate):
        raise ExportError(
            f"{candidate.chain.name}: expected a kernel of a chain for CPUs, got one for an OpenCL "
            "device; format opencl writes it"
        )
    return c_kernel(candidate, limits, request.implementation)


def _texts(request: Request, kernel: CKernel) -> dict[str, str]:
    name = request.name
    return {
        f"{name}.h": _header(request, kernel),
        f"{name}.c": _source(request, kernel),
        f"{name}_test.c": test_program(request, kernel),
        f"{name}.mk": _rules(name, kernel),
    }


def _prototype(name: str, kernel: CKernel) -> str:
    inputs = [f"const {p.kind} *restrict {p.name}" for p in kernel.inputs]
    results = [f"{p.kind} *restrict {p.name}" for p in kernel.results]
    return f"void {name}({', '.join([*inputs, *results])}, void *workspace)"


def _packer(name: str, kernel: CKernel, parameter: Parameter) -> str:
    pointers = [f"const {source.kind} *restrict {source.name}" for source in parameter.packed]
    pointers.append(f"{parameter.kind} *restrict packed")
    return f"void {name}_pack_{kernel.names.tensors[parameter.tensor]}({', '.join(pointers)})"


def _describe_request(request: Request) -> str:
    candidate = request.candidate
    if isinstance(candidate, ChainCandidate):
        products = "".join(
            f" * {name:10} {each.mapping}\n *            {each.schedule}\n"
            for name, each in candidate.products.items()
        )
        return f" * chain      {candidate.chain}\n * tiles      {candidate.tiling}\n{products}"
    mapping = candidate.mapping
    return (
        f" * operator   {mapping.operator}\n * intrinsic  {mapping.intrinsic.name}\n"
        f" * mapping    {mapping}\n * schedule   {candidate.schedule}\n"
    )


def _header(request: Request, kernel: CKernel) -> str:
    name, guard = request.name, f"{request.name.upper()}_H"
    operator = request.operator
    descriptions = "\n".join(f" *   {_parameter(operator, p)}" for p in kernel.parameters)
    packers = "".join(
        f"/* Pack {p.tensor}, once for any number of calls. */\n{_packer(name, kernel, p)};\n\n"
        for p in kernel.parameters
        if p.packed
    )
    needs = ", ".join(kernel.features) or "nothing special"
    prototypes = f"{_prototype(name, kernel)};\n\n{packers}".replace("*restrict ", "*")
    return f"""/* Made by amos export.
{_describe_request(request)} */
#ifndef {guard}
#define {guard}

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

/* Bytes of scratch memory that a call needs, aligned to 64; NULL will do for 0.
 * Calls that run at the same time need scratch memory of their own. */
#define {name.upper()}_WORKSPACE {kernel.workspace}

/* Contiguous arrays, the last index fastest; results overlap nothing.
{descriptions} */
{prototypes}/* Whether this CPU has what the kernel needs: {needs}. */
int {name}_supported(void);

#ifdef __cplusplus
}}
#endif
#endif
"""


def _parameter(operator: Operator | Chain, parameter: Parameter) -> str:
    tensors = {tensor.name: tensor for tensor in (*operator.inputs, *operator.results)}
    read = [source.tensor for source in parameter.packed] or [parameter.tensor]
    description = "; ".join(_describe_tensor(tensors[name]) for name in read)
    packed = f", packed into {parameter.elements} elements" if parameter.packed else ""
    stores = []
    if isinstance(operator, Operator):
        stores = [operator.store, *(result.store for result in operator.further)]
    store = next((x for x in stores if x and x.tensor.name == parameter.tensor), None)
    is_partial = (
        store and prod(operator.extents[name] for name in store.names) < store.tensor.elements
    )
    remark = f"; what {store} does not reach is left as it is" if is_partial else ""
    return f"{parameter.name}: {description}{packed}{remark}"


def _describe_tensor(tensor: Tensor) -> str:
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    bits = ", as bit patterns" if tensor.dtype == "bfloat16" else ""
    return f"{tensor.name}, {tensor.dtype}{bits}, {shape}"


def _source(request: Request, kernel: CKernel) -> str:
    name = request.name
    packers = "".join(
        f"\n{_packer(name, kernel, p)} {{\n{kernel.packing[p.name]}}}\n"
        for p in kernel.parameters
        if p.packed
    )
    text = kernel.helpers + kernel.body
    include = _INTRINSICS if "_mm" in text or "_tile" in text else ""
    query = feature_query(kernel.features)
    tests = list(query.tests)
    granted = ""
    if any(each.startswith("amx") for each in kernel.features):
        include, granted = include + _TILES, _GRANTED
        tests.append("tiles_are_granted()")
    return f"""/* Made by amos export. Build: cc {_flags(kernel)} -c {name}.c
{_describe_request(request)} */
{_ROUNDS if kernel.rounds else ""}#include "{name}.h"

#include <stddef.h>
#include <string.h>
{include}
{kernel.helpers}
{_prototype(name, kernel)} {{
  (void)workspace;
{kernel.body}}}
{packers}{granted}{query.helper}
int {name}_supported(void) {{
  return {" && ".join(tests) or "1"};
}}
"""


def _flags(kernel: CKernel) -> str:
    return " ".join((*OPTIONS, *kernel.flags))


def _rules(name: str, kernel: CKernel) -> str:
    return f"""# Made by amos export.  make -f {name}.mk test
CC ?= cc
CFLAGS ?= {_flags(kernel)} -mtune=native

.PHONY: test
test: {name}_test
\t./{name}_test

{name}_test: {name}_test.c {name}.c {name}.h
\t$(CC) $(CFLAGS) -o $@ {name}_test.c {name}.c -lm

lib{name}.so: {name}.c {name}.h
\t$(CC) $(CFLAGS) -fPIC -shared -o $@ {name}.c
"""
