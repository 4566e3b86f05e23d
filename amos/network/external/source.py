"""The C source of a library of compiled networks, with tables of calls, and its constants."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib.resources import files
from math import prod
from pathlib import Path
from string import Template

import numpy as np

from amos.network.external.straight_line import ALIGNMENT_BYTES, COPY, Buffer, Place, StraightLine
from amos.network.graph import Node

#: Of each dtype: onnxruntime's number of the element type, DLPack's kind and bits.
ELEMENT_TYPES = {
    "float32": (1, 2, 32),
    "uint8": (2, 1, 8),
    "int8": (3, 0, 8),
    "uint16": (4, 1, 16),
    "int16": (5, 0, 16),
    "int32": (6, 0, 32),
    "int64": (7, 0, 64),
    "bool": (9, 6, 8),
    "float16": (10, 2, 16),
    "float64": (11, 2, 64),
    "uint32": (12, 1, 32),
    "bfloat16": (16, 4, 16),
}
#: Hexadecimal digits of the digest in the name of the file of constants.
_DIGITS = 16
#: Pieces of a parallel loop per core: more would leave data in the caches of other cores.
_PIECES_PER_CORE = 1


class Constants:
    """Collects constants, equal ones once, in a file that all processes map.

    The file ends with the digest of all of them, which the library compares with its own.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._offsets: dict[bytes, int] = {}
        self._size = 0

    def offset_of(self, array: np.ndarray) -> int:
        """Return the first byte of an array in the file, which holds it from now on."""
        values = array.tobytes()
        key = sha256(values).digest()
        if key not in self._offsets:
            self._offsets[key] = self._size
            padded = values + bytes(-len(values) % ALIGNMENT_BYTES)
            self._parts.append(padded)
            self._size += len(padded)
        return self._offsets[key]

    @property
    def digest(self) -> str:
        """Digest of all constants and their order."""
        return sha256(b"".join(self._offsets)).hexdigest()

    @property
    def file_name(self) -> str:
        """Name of the file, with digits of its digest."""
        return f"constants-{self.digest[:_DIGITS]}.bin"

    @property
    def file_bytes(self) -> int:
        """Size of the file in bytes."""
        return self._size + len(self.digest)

    def write(self, folder: Path) -> Path:
        """Write the file into a folder; returns its path."""
        path = folder / self.file_name
        with path.open("wb") as file:
            file.writelines(self._parts)
            file.write(self.digest.encode())
        return path


def library_source(
    networks: Sequence[StraightLine],
    constants: Constants,
    *,
    domain: str,
    cores: int,
    features: Sequence[str],
    uses_tiles: bool,
) -> str:
    """Write the C source of a library.

    Args:
        cores: that the kernels were compiled for.
        features: of the CPU, without which the library refuses to be registered.
        uses_tiles: whether kernels use AMX.
    """
    tables = _Tables(constants)
    entries = [tables.network(number, each) for number, each in enumerate(networks)]
    functions = sorted({step.function for each in networks for step in each.steps} - {COPY})
    most = max((len(step.buffers) for each in networks for step in each.steps), default=1)
    needed = "".join(f"{json.dumps(name)}, " for name in sorted(features))
    text = "\n".join(
        [
            f"#define DOMAIN {json.dumps(domain)}",
            f"#define CONSTANTS_FILE {json.dumps(constants.file_name)}",
            f"#define CONSTANTS_BYTES {constants.file_bytes}",
            f"#define CONSTANTS_DIGEST {json.dumps(constants.digest)}",
            f"enum {{ USES_TILES = {int(uses_tiles)}, CORE_COUNT = {cores} }};",
            f"enum {{ PIECE_COUNT = {_PIECES_PER_CORE * cores} }};",
            f"enum {{ MOST_ARGUMENTS = {most}, NETWORK_COUNT = {len(networks)} }};",
            f"static const char *const needed_features[] = {{{needed}NULL}};",
            *(f"extern int {symbol_of(name)}" + _SIGNATURE for name in functions),
            *tables.lines,
            "static Network networks[] = {",
            *entries,
            "};",
        ]
    )
    template = files("amos.network").joinpath("templates", "libamos.c")
    return Template(template.read_text(encoding="utf-8")).substitute(tables=text)


#: Signature of a packed function of TVM.
_SIGNATURE = "(void *, const Argument *, int32_t, Argument *);"


def symbol_of(function: str) -> str:
    """Return the symbol of a function of TVM in an object file."""
    return f"__tvm_ffi_{function}"


class _Tables:
    """Declarations in C, shapes once each."""

    def __init__(self, constants: Constants) -> None:
        self.constants, self.lines = constants, list[str]()
        self.shapes: dict[tuple[int, ...], str] = {}

    def network(self, number: int, program: StraightLine) -> str:
        """Declare the tables of a network; returns its entry in the table of networks."""
        prefix = f"network{number}"
        buffers: dict[Buffer, int] = {}
        arguments: list[int] = []
        steps = []
        for step in program.steps:
            function = symbol_of(step.function) if step.function != COPY else "NULL"
            place = f"{len(arguments)}, {len(step.buffers)}"
            steps.append(f"{{{function}, {json.dumps(step.function)}, {place}}}")
            arguments += [buffers.setdefault(each, len(buffers)) for each in step.buffers]
        self.table("Port", f"{prefix}_inputs", map(self.port, program.inputs))
        self.table("Port", f"{prefix}_outputs", map(self.port, program.outputs))
        rows = [self.buffer(each, program) for each in buffers]
        self.table("Buffer", f"{prefix}_buffers", rows)
        self.table("uint32_t", f"{prefix}_arguments", map(str, arguments))
        self.table("Step", f"{prefix}_steps", steps)
        counts = [len(program.inputs), len(program.outputs), len(buffers), len(steps)]
        tables = ("inputs", "outputs", "buffers", "arguments", "steps")
        return (
            f"  {{{{0}}, {json.dumps(program.name)}, {', '.join(map(str, counts))}, "
            f"{', '.join(f'{prefix}_{name}' for name in tables)}, {program.arena_bytes}u, NULL}},"
        )

    def table(self, kind: str, name: str, rows: Iterable[str]) -> None:
        """Declare an array, of one empty element where it has none."""
        body = ",\n  ".join(rows) or ("0" if kind == "uint32_t" else "{0}")
        self.lines.append(f"static const {kind} {name}[] = {{\n  {body}}};")

    def port(self, port: Node) -> str:
        number, _, _ = ELEMENT_TYPES[port.dtype]
        return f"{{{number}, {len(port.shape)}, {self.shape(port.shape)}}}"

    def buffer(self, buffer: Buffer, program: StraightLine) -> str:
        _, code, bits = ELEMENT_TYPES[buffer.dtype]
        index = buffer.index
        if buffer.place is Place.CONSTANT:
            index = self.constants.offset_of(program.constants[index])
        size = prod(buffer.shape) * bits // 8
        shape = self.shape(buffer.shape)
        return (
            f"{{PLACE_{buffer.place.name}, {code}, {bits}, {len(buffer.shape)}, {index}u, "
            f"{buffer.begin}u, {size}u, {shape}}}"
        )

    def shape(self, shape: tuple[int, ...]) -> str:
        """Declare extents once; returns their name."""
        if shape not in self.shapes:
            self.shapes[shape] = name = f"shape{len(self.shapes)}"
            extents = ", ".join(map(str, shape)) or "0"
            self.lines.append(f"static const int64_t {name}[] = {{{extents}}};")
        return self.shapes[shape]
