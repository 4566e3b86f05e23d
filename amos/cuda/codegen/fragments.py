"""Fragments of one warp: how they are declared, loaded, multiplied and read, as CUDA C++.

Two families offer the same few functions to the kernel: ``load_a``, ``load_b``,
``clear``, ``multiply_add``. WMMA hides which lane holds what, so that its accumulators leave
through shared memory; with ``mma.sync`` every lane knows its elements, and sources of
16 bits come by ``ldmatrix``.
"""

from __future__ import annotations

import re
from math import prod

from amos.codegen.device.text import block
from amos.cuda.codegen.copies import column_text
from amos.cuda.codegen.text import INLINE, cuda_type
from amos.cuda.plan import GpuPlan
from amos.cuda.shared_operand import SharedOperand
from amos.intrinsics import FragmentLayout
from amos.intrinsics.expression import to_c
from amos.intrinsics.mma import Registers, multiply_text
from amos.ir import dtype
from amos.machine.gpu_costs import WARP

_WMMA_TYPES = {"tfloat32": "wmma::precision::tf32"}
#: Types that the headers load in a way which hides from compilers that the memory is shared:
#: machine code then has generic loads, with addresses of 64 bits. PTX ISA, wmma.load.
_UNINFERRED = {"bfloat16": "bf16", "tfloat32": "tf32", "float64": "f64"}
_ZERO = {"float16": "half(0.0f)", "float32": "0.0f", "float64": "0.0", "int32": "0"}
#: Types of elements that only the emulation computes with.
_EMULATED = {"float8_e4m3": "amos_emulation::e4m3", "float8_e5m2": "amos_emulation::e5m2"}
_COPIES = f"""#ifndef AMOS_EMULATION
// The bytes are zero if nothing is read (PTX ISA, cp.async: src-size).
template <int BYTES>
{INLINE} void copy_async(void *to, const void *from, bool live) {{
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(address), "l"(from), "r"(live ? 16 : 0) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :: "r"(address), "l"(from), "n"(BYTES), "r"(live ? BYTES : 0) : "memory");
}}
{INLINE} void commit_copies() {{ asm volatile("cp.async.commit_group;" ::: "memory"); }}
template <int PENDING>
{INLINE} void wait_copies() {{
  asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}}
#endif
"""


_SHIFTS = f"""// Sixteen bytes that begin anywhere in a tensor, `count` elements of them in a row:
// two aligned pieces, shifted into place, or element by element at an end.
template <typename T>
{INLINE} uint4 read_unaligned(const T *from, int count, const T *end) {{
  constexpr int size = sizeof(T), elements = 16 / size;
  const unsigned shift = reinterpret_cast<unsigned long long>(from) % 16;
  const uint4 *piece = reinterpret_cast<const uint4 *>(from - shift / size);
  unsigned w[8] = {{}};
  if (count >= elements && reinterpret_cast<const T *>(piece + 2) <= end) {{
    const uint4 low = piece[0], high = piece[1];
    w[0] = low.x, w[1] = low.y, w[2] = low.z, w[3] = low.w;
    w[4] = high.x, w[5] = high.y, w[6] = high.z, w[7] = high.w;
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = shift & 8 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = shift & 4 ? w[i + 1] : w[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], shift % 4 * 8);
  }} else {{
#pragma unroll
    for (int e = 0; e < elements; ++e)
      if (e < count) {{
        const unsigned bits = size == 1 ? *reinterpret_cast<const unsigned char *>(from + e)
                                        : *reinterpret_cast<const unsigned short *>(from + e);
        w[e * size / 4] |= bits << e * size % 4 * 8;
      }}
  }}
  return uint4{{w[0], w[1], w[2], w[3]}};
}}
"""


def fragment_code(plan: GpuPlan) -> str:
    """Write types and functions of the plan's fragments."""
    return "\n".join(_mma(plan) if plan.mapping.intrinsic.open_registers else _wmma(plan))


def copy_helpers(plan: GpuPlan) -> str:
    """Write the helpers of copies that the plan needs: ``copy_async``, ``read_unaligned``."""
    shifts = _SHIFTS if any(source.is_realigned for source in plan.sources) else ""
    return (_COPIES if plan.is_async else "") + shifts


def _wmma(plan: GpuPlan) -> list[str]:
    m, n, k = plan.mapping.intrinsic.shape
    kind = _WMMA_TYPES.get(plan.sources[0].tile.dtype, cuda_type(plan.sources[0].tile.dtype))
    result = cuda_type(plan.accumulator)
    return [
        "using namespace nvcuda;",
        *(
            f"using Fragment{letter} = wmma::fragment<wmma::matrix_{letter.lower()}, {m}, {n}, "
            f"{k}, {kind}, wmma::{_side(source)}_major>;"
            for letter, source in zip("AB", plan.sources, strict=True)
        ),
        f"using FragmentC = wmma::fragment<wmma::accumulator, {m}, {n}, {k}, {result}>;",
        *(_wmma_load(source, f"m{m}n{n}k{k}") for source in plan.sources),
        _wmma_store(plan, f"m{m}n{n}k{k}"),
        f"{INLINE} void clear(FragmentC &f) {{\n"
        f"  wmma::fill_fragment(f, {_ZERO[plan.accumulator]});\n}}",
        f"{INLINE} void multiply_add(\n"
        "    FragmentC &c, const FragmentA &a, const FragmentB &b) {\n"
        "  wmma::mma_sync(c, a, b, c);\n}",
    ]


def _side(source: SharedOperand) -> str:
    return "col" if source.tile.transposed else "row"


def _load_head(source: SharedOperand) -> str:
    letter = "ab"[source.number]
    kind = cuda_type(source.tile.dtype)
    return f"{INLINE} void load_{letter}(Fragment{letter.upper()} &f, const {kind} *from) {{\n"


def _wmma_load(source: SharedOperand, shape: str) -> str:
    body = f"  wmma::load_matrix_sync(f, from, {source.row});\n"
    if kind := _UNINFERRED.get(source.tile.dtype):
        registers = Registers.of(source.tile.dtype, source.tile.elements // WARP)
        name = f"wmma.load.{'ab'[source.number]}.sync.aligned.{_side(source)}.{shape}.shared.{kind}"
        values, count = registers.values("%#"), registers.count
        outputs = registers.values(f'"={registers.constraint}"(x[#])')
        body = _either(
            body,
            f"  {registers.type} *const x = reinterpret_cast<{registers.type} *>(f.x);\n"
            "  const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(from));\n"
            f'  asm volatile("{name} {{{values}}}, [%{count}], %{count + 1};"\n'
            f'               : {outputs} : "r"(place), "r"({source.row}) : "memory");\n',
        )
    if source.tile.dtype == "tfloat32":
        body += (
            "  for (int i = 0; i < f.num_elements; ++i) f.x[i] = wmma::__float_to_tf32(f.x[i]);\n"
        )
    return f"{_load_head(source)}{body}}}"


def _wmma_store(plan: GpuPlan, shape: str) -> str:
    """Store an accumulator in shared memory, contiguous where the output is."""
    side, columns = "col" if plan.by_columns else "row", plan.scratch_shape[1]
    head = f"{INLINE} void store_c({cuda_type(plan.accumulator)} *to, const FragmentC &f) {{\n"
    body = f"  wmma::store_matrix_sync(to, f, {columns}, wmma::mem_{side}_major);\n"
    if plan.mapping.intrinsic.dtypes[0] in ("tfloat32", "float64"):
        kind = dtype(plan.accumulator).short
        registers = Registers.of(kind, prod(plan.scratch_shape) // WARP)
        inputs = registers.values(f'"{registers.constraint}"(f.x[#])')
        body = _either(
            body,
            "  const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(to));\n"
            f'  asm volatile("wmma.store.d.sync.aligned.{side}.{shape}.shared.{kind} '
            f'[%0], {{{registers.values("%#", 1)}}}, %{registers.count + 1};"\n'
            f'               :: "r"(place), {inputs}, "r"({columns}) : "memory");\n',
        )
    return f"{head}{body}}}"


def _either(emulated: str, text: str) -> str:
    return f"#ifdef AMOS_EMULATION\n{emulated}#else\n{text}#endif\n"


def result_layout(plan: GpuPlan) -> FragmentLayout:
    """Return which lane holds which element of an accumulator of ``mma.sync``."""
    return _layouts(plan)[-1]


def _layouts(plan: GpuPlan) -> list[FragmentLayout]:
    intrinsic = plan.mapping.intrinsic
    by_name = {statement.operand: statement.layout for statement in intrinsic.memory}
    layouts = [by_name[load.tensor.name] for load in intrinsic.operands]
    return [layout for layout in layouts if layout is not None]


def _mma(plan: GpuPlan) -> list[str]:
    result, layouts = cuda_type(plan.accumulator), _layouts(plan)
    kinds = plan.mapping.intrinsic.dtypes
    registers = [Registers.of(kind, x.elements) for kind, x in zip(kinds, layouts, strict=True)]
    loads = {
        (layout.elements // 2, source.tile.columns.target != "r1")
        for source, layout in zip(plan.sources, layouts, strict=False)
        if source.size == 2
    }
    return [
        *(
            f"struct Fragment{letter} {{ {own.type} x[{own.count}]; }};"
            for letter, own in zip("ABC", registers, strict=True)
        ),
        f"{INLINE} void clear(FragmentC &f) {{\n"
        f"  for (int i = 0; i < {registers[2].count}; ++i) f.x[i] = 0;\n}}",
        f"{INLINE} {result} element(const FragmentC &f, int e) {{\n"
        f"  return reinterpret_cast<const {result} *>(f.x)[e];\n}}",
        *(_matrix_load(count, transposed) for count, transposed in sorted(loads)),
        *(_mma_load(source, layouts[source.number]) for source in plan.sources),
        _multiply(plan, registers),
    ]


def lane_place(plan: GpuPlan, source: SharedOperand) -> bool:
    """Return whether ``lane_a`` or ``lane_b`` gives the place where a lane begins to load.

    Added once a stage, it leaves constants between the fragments of a warp, which the
    instruction has room for.
    """
    return plan.mapping.intrinsic.open_registers and source.size == 2


def _mma_load(source: SharedOperand, layout: FragmentLayout) -> str:
    if source.size == 2:
        return _ldmatrix(source, layout)
    lane = "  const int lane = threadIdx.x % 32;\n"
    return f"{_load_head(source)}{lane}{_plain_load(source, layout)}\n}}"


def _ldmatrix(source: SharedOperand, layout: FragmentLayout) -> str:
    """Load 8×8 matrices of 16-bit elements, each lane naming one of their rows.

    The first register of a lane holds the matrix at the origin; the next one lies
    eight rows further for A, and eight steps of the reduction further for B.
    """
    count = layout.elements // 2
    # Row and column, in multiples of 8, of matrix number q in the operand's own order.
    second = "q % 2 * 8", "q / 2 * 8"
    across, down = ("0", "q * 8") if source.number else second
    own = {"i1": across, "i2": across, "r1": down}
    columns, rows = source.tile.columns.target, source.tile.rows.target
    # A register holds two neighbours along the reduction: rows of shared memory that
    # run along it are taken as they are, others are transposed on the way.
    row = f"({own[rows]} + lane % 8)"
    return (
        f"{INLINE} int lane_{'ab'[source.number]}() {{\n"
        f"  const int lane = threadIdx.x % 32, q = lane / 8 % {count};\n"
        f"  return {row} * {source.row} + {column_text(source, row, own[columns])};\n}}\n"
        f"{_load_head(source)}  {_matrix_name(count, columns != 'r1')}(f.x, from);\n}}"
    )


def _matrix_name(count: int, transposed: bool) -> str:
    return f"load_matrices_x{count}{'_trans' if transposed else ''}"


def _matrix_load(count: int, transposed: bool) -> str:
    """Write ``ldmatrix`` (PTX ISA), which the host emulates."""
    registers = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"=r"(x[{i}])' for i in range(count))
    kind = f"m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    return f"""{INLINE} void {_matrix_name(count, transposed)}(unsigned *x, const void *row) {{
#ifdef AMOS_EMULATION
  amos_emulation::load_matrices(x, row, {count}, {"true" if transposed else "false"});
#else
  const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.{kind} {{{registers}}}, [%{count}];"
               : {outputs} : "r"(from) : "memory");
#endif
}}"""


def _plain_load(source: SharedOperand, layout: FragmentLayout) -> str:
    """Load by element, or four bytes at once where a register's elements are neighbours."""
    where = dict(layout.where)
    packed = 4 // source.size
    columns, rows = source.tile.columns.target, source.tile.rows.target
    if packed > 1 and columns == "r1":
        at = _place(where, rows, columns, source, f"r * {packed}")
        return (
            f"  for (int r = 0; r < {layout.elements // packed}; ++r)\n"
            f"    f.x[r] = *reinterpret_cast<const unsigned *>(from + {at});"
        )
    at = _place(where, rows, columns, source, "e")
    kind = "double" if source.size == 8 else cuda_type(source.tile.dtype)
    value = f"from[{at}]"
    if source.tile.dtype == "tfloat32":  # the instruction itself would cut off what is too fine
        value = f"nvcuda::wmma::__float_to_tf32({value})"
    return (
        f"  for (int e = 0; e < {layout.elements}; ++e)\n"
        f"    reinterpret_cast<{kind} *>(f.x)[e] = {value};"
    )


def _place(where: dict[str, str], rows: str, columns: str, source: SharedOperand, e: str) -> str:
    def formula(index: str) -> str:
        return to_c(re.sub(r"\be\b", f"({e})", where[index]))

    column = column_text(source, formula(rows), formula(columns))
    return f"({formula(rows)}) * {source.row} + {column}"


def _multiply(plan: GpuPlan, registers: list[Registers]) -> str:
    intrinsic = plan.mapping.intrinsic
    m, n, k = intrinsic.shape
    tables = ", ".join(
        f"[](int lane, int e) {{ return ({to_c(layout.where[0][1])}) * {width} + "
        f"{to_c(layout.where[1][1])}; }}"
        for layout, width in zip(_layouts(plan), (k, n, n), strict=True)
    )
    types = ", ".join(_EMULATED.get(x) or cuda_type(x) for x in intrinsic.dtypes[::2])
    lines = [
        f"{INLINE} void multiply_add(FragmentC &c, const FragmentA &a, const FragmentB &b) {{",
        "#ifdef AMOS_EMULATION",
        f"  amos_emulation::multiply<{types}, {m}, {n}, {k}>(c.x, a.x, b.x, {tables});",
        "#else",
        *block(multiply_text((m, n, k), intrinsic.dtypes, registers)),
        "#endif",
        "}",
    ]
    return "\n".join(lines)
