"""Fragments of one warp: how they are declared, loaded, multiplied and read, as CUDA C++.

Two families offer the same few functions to the kernel: ``load_a``, ``load_b``,
``clear``, ``multiply_add``. WMMA hides who holds what, so that its accumulators leave
through shared memory; with ``mma.sync`` every lane knows its elements, and sources of
16 bits come by ``ldmatrix``.
"""

from __future__ import annotations

import re
from math import prod

from amos.codegen.cuda.copies import column_text
from amos.codegen.cuda.types import cuda_type
from amos.intrinsics import FragmentLayout
from amos.intrinsics.expression import to_c
from amos.ir import dtype
from amos.machine.gpu_costs import WARP
from amos.plan.gpu_plan import GpuPlan
from amos.plan.shared_operand import SharedOperand

__all__ = ["copy_helpers", "fragment_code", "lane_place", "result_layout"]

_WMMA_TYPES = {"tfloat32": "wmma::precision::tf32"}
#: Types whose loads by the headers' functions compilers do not see to be from shared memory:
#: machine code then has generic loads, with addresses of 64 bits. PTX ISA, wmma.load.
_UNINFERRED = {"bfloat16": "bf16", "tfloat32": "tf32", "float64": "f64"}
_INLINE = "__device__ __forceinline__"


def fragment_code(program: GpuPlan) -> str:
    """Types and functions of the program's fragments."""
    return _mma(program) if program.mapping.intrinsic.open_registers else _wmma(program)


def copy_helpers(program: GpuPlan) -> str:
    """``copy_async`` and what belongs to it; nothing if the program has no such copies."""
    if not program.is_async:
        return ""
    return f"""#ifndef AMOS_EMULATION
// The bytes are zero if nothing is read (PTX ISA, cp.async: src-size).
template <int BYTES>
{_INLINE} void copy_async(void *to, const void *from, bool live) {{
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(address), "l"(from), "r"(live ? 16 : 0) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :: "r"(address), "l"(from), "n"(BYTES), "r"(live ? BYTES : 0) : "memory");
}}
{_INLINE} void commit_copies() {{ asm volatile("cp.async.commit_group;" ::: "memory"); }}
template <int PENDING>
{_INLINE} void wait_copies() {{
  asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}}
#endif
"""


def _wmma(program: GpuPlan) -> str:
    m, n, k = program.mapping.intrinsic.shape
    a, b = program.sources
    kind = _WMMA_TYPES.get(a.tile.dtype, cuda_type(a.tile.dtype).name)
    declared = [
        f"using Fragment{letter} = wmma::fragment<wmma::matrix_{letter.lower()}, {m}, {n}, {k}, "
        f"{kind}, wmma::{'col' if source.tile.transposed else 'row'}_major>;"
        for letter, source in (("A", a), ("B", b))
    ]
    shape = f"m{m}n{n}k{k}"
    return "\n".join(
        [
            "using namespace nvcuda;",
            *declared,
            f"using FragmentC = wmma::fragment<wmma::accumulator, {m}, {n}, {k}, "
            f"{cuda_type(program.accumulator).name}>;",
            *(_wmma_load(program, source, shape) for source in (a, b)),
            _wmma_store(program, shape),
            f"{_INLINE} void clear(FragmentC &f) {{\n"
            f"  wmma::fill_fragment(f, {cuda_type(program.accumulator).zero});\n}}",
            f"{_INLINE} void multiply_add(\n"
            "    FragmentC &c, const FragmentA &a, const FragmentB &b) {\n"
            "  wmma::mma_sync(c, a, b, c);\n}",
        ]
    )


def _wmma_load(program: GpuPlan, source: SharedOperand, shape: str) -> str:
    letter = "ab"[source.number]
    head = (
        f"{_INLINE} void load_{letter}(Fragment{letter.upper()} &f, "
        f"const {cuda_type(source.tile.dtype).name} *from) {{\n"
    )
    plain = f"  wmma::load_matrix_sync(f, from, {source.row});\n"
    if source.tile.dtype not in _UNINFERRED:
        return f"{head}{plain}}}"
    count, held, constraint = _words(program, source.number)
    side = "col" if source.tile.transposed else "row"
    name = f"wmma.load.{letter}.sync.aligned.{side}.{shape}.shared.{_UNINFERRED[source.tile.dtype]}"
    values = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"={constraint}"(x[{i}])' for i in range(count))
    text = (
        f"  {held} *const x = reinterpret_cast<{held} *>(f.x);\n"
        "  const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(from));\n"
        f'  asm volatile("{name} {{{values}}}, [%{count}], %{count + 1};"\n'
        f'               : {outputs} : "r"(place), "r"({source.row}) : "memory");\n'
    )
    return f"{head}{_either(plain, text)}{_rounded(source)}}}"


def _wmma_store(program: GpuPlan, shape: str) -> str:
    """An accumulator to shared memory, contiguous where the output is."""
    side, columns = "col" if program.by_columns else "row", program.scratch_shape[1]
    result = cuda_type(program.accumulator).name
    head = f"{_INLINE} void store_c({result} *to, const FragmentC &f) {{\n"
    plain = f"  wmma::store_matrix_sync(to, f, {columns}, wmma::mem_{side}_major);\n"
    if program.mapping.intrinsic.dtypes[0] not in ("tfloat32", "float64"):
        return f"{head}{plain}}}"
    kind = "f64" if result == "double" else "f32"
    count = prod(program.scratch_shape) // WARP
    values = ", ".join(f"%{i}" for i in range(1, count + 1))
    inputs = ", ".join(f'"{"d" if kind == "f64" else "f"}"(f.x[{i}])' for i in range(count))
    text = (
        "  const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(to));\n"
        f'  asm volatile("wmma.store.d.sync.aligned.{side}.{shape}.shared.{kind} '
        f'[%0], {{{values}}}, %{count + 1};"\n'
        f'               :: "r"(place), {inputs}, "r"({columns}) : "memory");\n'
    )
    return f"{head}{_either(plain, text)}}}"


def _either(emulated: str, text: str) -> str:
    return f"#ifdef AMOS_EMULATION\n{emulated}#else\n{text}#endif\n"


def _words(program: GpuPlan, operand: int) -> tuple[int, str, str]:
    """Registers of a fragment of WMMA, their C type and constraint."""
    intrinsic = program.mapping.intrinsic
    lane = intrinsic.fragment_bytes(intrinsic.operands[operand]) // WARP
    if intrinsic.dtypes[operand] == "float64":
        return lane // 8, "double", "d"
    return lane // 4, "unsigned", "r"


def _rounded(source: SharedOperand) -> str:
    if source.tile.dtype != "tfloat32":
        return ""
    return "  for (int i = 0; i < f.num_elements; ++i) f.x[i] = wmma::__float_to_tf32(f.x[i]);\n"


def result_layout(program: GpuPlan) -> FragmentLayout:
    """Which lane holds which element of an accumulator of ``mma.sync``."""
    return _layouts(program)[-1]


def _layouts(program: GpuPlan) -> list[FragmentLayout]:
    intrinsic = program.mapping.intrinsic
    by_name = {statement.operand: statement.layout for statement in intrinsic.memory}
    found = [by_name[load.tensor.name] for load in intrinsic.operands]
    return [layout for layout in found if layout is not None]


def _mma(program: GpuPlan) -> str:
    intrinsic, result = program.mapping.intrinsic, cuda_type(program.accumulator)
    kinds = intrinsic.dtypes
    layouts = _layouts(program)
    parts, counts = [], []
    for letter, kind, layout in zip("ABC", kinds, layouts, strict=True):
        held, count = _register(kind, layout)
        counts.append(count)
        parts.append(f"struct Fragment{letter} {{ {held} x[{count}]; }};")
    parts.append(
        f"{_INLINE} void clear(FragmentC &f) {{\n"
        f"  for (int i = 0; i < {counts[2]}; ++i) f.x[i] = 0;\n}}"
    )
    parts.append(
        f"{_INLINE} {result.name} element(const FragmentC &f, int e) {{\n"
        f"  return reinterpret_cast<const {result.name} *>(f.x)[e];\n}}"
    )
    loads = {
        (layout.elements // 2, source.tile.columns.target != "r1")
        for source, layout in zip(program.sources, layouts, strict=False)
        if source.size == 2
    }
    parts += [_matrix_load(count, transposed) for count, transposed in sorted(loads)]
    for letter, source, layout in zip("AB", program.sources, layouts, strict=False):
        parts.append(_mma_load(letter, source, layout))
    parts.append(_multiply(program, counts))
    return "\n".join(parts)


def _register(kind: str, layout: FragmentLayout) -> tuple[str, int]:
    """C type and number of registers that hold a lane's elements."""
    known = dtype(kind)
    if known.bits == 64:
        return "double", layout.elements
    held = {"float32": "float", "int32": "int"}.get(known.name, "unsigned")
    return held, max(1, layout.elements * known.bits // 32)


def lane_place(program: GpuPlan, source: SharedOperand) -> bool:
    """Whether ``lane_a`` or ``lane_b`` says where in a fragment a lane begins to load.

    Added once a stage, it leaves constants between the fragments of a warp, which the
    instruction has room for.
    """
    return program.mapping.intrinsic.open_registers and source.size == 2


def _mma_load(letter: str, source: SharedOperand, layout: FragmentLayout) -> str:
    head = (
        f"{_INLINE} void load_{letter.lower()}(Fragment{letter} &f, "
        f"const {cuda_type(source.tile.dtype).name} *from) {{\n"
    )
    if source.size == 2:
        return _ldmatrix(letter, source, layout, head)
    return head + "  const int lane = threadIdx.x % 32;\n" + _plain_load(source, layout) + "\n}"


def _ldmatrix(letter: str, source: SharedOperand, layout: FragmentLayout, head: str) -> str:
    """Eight-by-eight matrices of 16-bit elements, each lane naming one of their rows.

    The first register of a lane holds the matrix at the origin; the next one lies
    eight rows further for A, and eight steps of the reduction further for B.
    """
    count = layout.elements // 2
    # Row and column, in multiples of 8, of matrix number q in the operand's own order.
    second = "q % 2 * 8", "q / 2 * 8"
    across, down = second if letter == "A" else ("0", "q * 8")
    own = {"i1": across, "i2": across, "r1": down}
    columns, rows = source.tile.columns.target, source.tile.rows.target
    # A register holds two neighbours along the reduction: rows of shared memory that
    # run along it are taken as they are, others are transposed on the way.
    row = f"({own[rows]} + lane % 8)"
    return (
        f"{_INLINE} int lane_{letter.lower()}() {{\n"
        f"  const int lane = threadIdx.x % 32, q = lane / 8 % {count};\n"
        f"  return {row} * {source.row} + {column_text(source, row, own[columns])};\n}}\n"
        f"{head}  {_matrix_name(count, columns != 'r1')}(f.x, from);\n}}"
    )


def _matrix_name(count: int, transposed: bool) -> str:
    return f"load_matrices_x{count}{'_trans' if transposed else ''}"


def _matrix_load(count: int, transposed: bool) -> str:
    """``ldmatrix`` (PTX ISA), which the host emulates."""
    registers = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"=r"(x[{i}])' for i in range(count))
    kind = f"m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    return f"""{_INLINE} void {_matrix_name(count, transposed)}(unsigned *x, const void *row) {{
#ifdef AMOS_EMULATION
  amos_emulation::load_matrices(x, row, {count}, {"true" if transposed else "false"});
#else
  const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.{kind} {{{registers}}}, [%{count}];"
               : {outputs} : "r"(from) : "memory");
#endif
}}"""


def _plain_load(source: SharedOperand, layout: FragmentLayout) -> str:
    """Element by element; four bytes at once where a register's elements are neighbours."""
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
    held = "double" if source.size == 8 else cuda_type(source.tile.dtype).name
    value = f"from[{at}]"
    if source.tile.dtype == "tfloat32":  # the instruction itself would cut off what is too fine
        value = f"nvcuda::wmma::__float_to_tf32({value})"
    return (
        f"  for (int e = 0; e < {layout.elements}; ++e)\n"
        f"    reinterpret_cast<{held} *>(f.x)[e] = {value};"
    )


def _place(where: dict[str, str], rows: str, columns: str, source: SharedOperand, e: str) -> str:
    def formula(index: str) -> str:
        return to_c(re.sub(r"\be\b", f"({e})", where[index]))

    column = column_text(source, formula(rows), formula(columns))
    return f"({formula(rows)}) * {source.row} + {column}"


def _multiply(program: GpuPlan, counts: list[int]) -> str:
    intrinsic = program.mapping.intrinsic
    m, n, k = intrinsic.shape
    short = [dtype(name).short for name in intrinsic.dtypes]
    kinds = ".".join((short[2], short[0], short[1], short[2]))
    constraints = {"float64": "d", "float32": "f"}
    numbers, groups = iter(range(99)), []
    for which in (2, 0, 1):
        groups.append("{" + ", ".join(f"%{next(numbers)}" for _ in range(counts[which])) + "}")
    held = [constraints.get(name, "r") for name in intrinsic.dtypes]
    outputs = ", ".join(f'"+{held[2]}"(c.x[{i}])' for i in range(counts[2]))
    inputs = ", ".join(
        f'"{held[i]}"({letter}.x[{r}])' for i, letter in enumerate("ab") for r in range(counts[i])
    )
    widths = (k, n, n)
    tables = ", ".join(
        f"[](int lane, int e) {{ return ({to_c(layout.where[0][1])}) * {width} + "
        f"{to_c(layout.where[1][1])}; }}"
        for layout, width in zip(_layouts(program), widths, strict=True)
    )
    types = ", ".join(_emulated(name) for name in (intrinsic.dtypes[0], intrinsic.dtypes[2]))
    return f"""{_INLINE} void multiply_add(FragmentC &c, const FragmentA &a, const FragmentB &b) {{
#ifdef AMOS_EMULATION
  amos_emulation::multiply<{types}, {m}, {n}, {k}>(c.x, a.x, b.x, {tables});
#else
  asm volatile("mma.sync.aligned.m{m}n{n}k{k}.row.col.{kinds} "
               "{groups[0]}, {groups[1]}, {groups[2]}, {groups[0]};"
               : {outputs}
               : {inputs});
#endif
}}"""


def _emulated(name: str) -> str:
    """Type of an element where the multiplication is emulated."""
    short = dtype(name).short
    names = {"f16": "half", "bf16": "__nv_bfloat16", "s8": "signed char", "u8": "unsigned char"}
    names |= {"e4m3": "amos_emulation::e4m3", "e5m2": "amos_emulation::e5m2"}
    return names.get(short, {"f64": "double", "s32": "int"}.get(short, "float"))
