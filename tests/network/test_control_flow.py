"""Branches and loops whose course is known ahead: the model that is read does the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import checker, parser

import amos
from amos.codegen.c.compiler import c_compiler
from amos.network.reading.model import _ModelReader, read_model
from amos.network.sessions import plain_session

_MOST = np.iinfo(np.int64).max
#: As tf2onnx writes ``tf.map_fn``: a carried count decides, with sizes of a shape.
_MAPPED = f"""
g (float[rows, 4] x) => (float[n, 3] y)
<int64[1] first = {{0}}, int64[1] second = {{1}}, int64 limit = {{{_MOST}}}, int64 zero = {{0}}> {{
    shape = Shape (x)
    rows = Slice (shape, first, second)
    size = Squeeze (rows)
    goes = Less (zero, size)
    last, y = Loop (limit, goes, zero) <body = b (int64 trip, bool on, int64 count) =>
        (bool stays, int64 next, float[3] row)
        <int64 one = {{1}}, float[4, 3] w = {{1,2,3,4,5,6,7,8,9,10,11,12}}> {{
            element = Gather (x, count)
            row = MatMul (element, w)
            next = Add (count, one)
            less = Less (next, size)
            stays = And (less, on)
    }}>
}}
"""


def _model(text: str, opset: int = 17) -> Any:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>{text}')


def _read_equal(model: Any, external: Sequence[str] | None = (), **inputs: np.ndarray) -> None:
    """Hold the model that is read, with these nodes of bodies, against the one that was written."""
    read = read_model(model, {name: each.shape for name, each in inputs.items()}).model
    checker.check_model(read)
    if external is not None:
        operators = [node.op_type for node in read.graph.node]
        assert [each for each in operators if each in ("If", "Loop", "Scan")] == [*external]
    expected, results = (plain_session(each).run(None, inputs) for each in (model, read))
    for result, right in zip(results, expected, strict=True):
        assert (result.dtype, result.shape) == (right.dtype, right.shape)
        np.testing.assert_allclose(result, right, rtol=1e-5, atol=1e-6)


def _values(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_loop_over_the_rows_of_a_shape(rows: int, opset: int) -> None:
    _read_equal(_model(_MAPPED, opset), x=_values(rows, 4))


@pytest.mark.skipif(c_compiler() is None, reason="needs a C compiler")
def test_a_product_behind_a_loop_is_compiled() -> None:
    network = amos.load_network(_model(_MAPPED), shapes={"x": (2, 4)})
    assert not network.external
    x = _values(2, 4)
    (expected,) = plain_session(_model(_MAPPED)).run(None, {"x": x})
    np.testing.assert_allclose(amos.compile(network, progress=False)(x), expected, rtol=1e-5)


def _loop(limit: str, condition: str, stays: str, more: str = "") -> str:
    """A loop that carries a tensor and stacks another one, which the graph around it has, too."""
    return f"""
    g (float[2, 3] x, bool flag, int64 size) => (float[2, 3] y, float[n, 2, 3] z)
    <int64 three = {{3}}, int64 none = {{0}}, int64 many = {{400}}, bool true = {{1}}, {more}
     bool false = {{0}}> {{
        negative = Neg (x)
        a, z = Loop ({limit}, {condition}, x) <body = b (int64 trip, bool on, float[2, 3] state) =>
            (bool stays, float[2, 3] sum, float[2, 3] product) {{
                stays = {stays}
                number = Cast <to = 1> (trip)
                sum = Add (state, number)
                product = Mul (sum, negative)
        }}>
        y = Relu (a)
    }}
    """


@pytest.mark.parametrize(
    ("limit", "condition", "stays", "is_known"),
    [
        ("three", "true", "Identity (on)", True),
        ("three", "", "Identity (true)", True),
        ("three", "", "Identity (false)", False),  # ONNX makes three trips, onnxruntime one
        ("three", "true", "Identity (false)", True),
        ("three", "true", "Identity (flag)", False),
        ("three", "flag", "Identity (on)", False),
        ("size", "true", "Identity (on)", False),
        ("many", "true", "Identity (on)", False),  # the model would be too large
        ("none", "true", "Identity (on)", False),  # stacks no tensors
        ("many", "true", "Less (trip, three)", True),
    ],
)
def test_loops_of_known_trips(limit: str, condition: str, stays: str, is_known: bool) -> None:
    model = _model(_loop(limit, condition, stays))
    inputs = {"x": _values(2, 3), "flag": np.array(True), "size": np.array(2)}
    _read_equal(model, () if is_known else ["Loop"], **inputs)


#: Bodies inside of bodies.
_NESTED = """
g (float[2, 3] x, bool flag) => (float[2, 3] z)
<int64 two = {2}, int64 three = {3}, bool true = {1}> {
    y = Loop (two, true, x) <body = b (int64 trip, bool on, float[2, 3] state) =>
        (bool still, float[2, 3] result) <float[3] w = {1, 2, 3}> {
            still = Identity (on)
            inner = Loop (three, on, state) <body = c (int64 step, bool go, float[2, 3] s) =>
                (bool goes, float[2, 3] r) <float[3] v = {1, -2, 3}, int64 zero = {0}> {
                    goes = Identity (go)
                    first = Equal (step, zero)
                    changed = If (first) <
                        then_branch = d () => (float[2, 3] e) { e = Mul (s, w) },
                        else_branch = f () => (float[2, 3] e) { e = Add (s, v) }>
                    r = If (flag) <
                        then_branch = h () => (float[2, 3] e) { e = Mul (changed, v) },
                        else_branch = i () => (float[2, 3] e) { e = Sub (changed, state) }>
            }>
            result = Tanh (inner)
    }>
    z = Sub (x, y)
}
"""


@pytest.mark.parametrize("result", ["z", "y/0/result", "y/w", "y/0/inner/2/r", "inner/0/changed"])
def test_bodies_inside_of_bodies_have_names_of_their_own(result: str) -> None:
    model = _model(_NESTED)
    model.graph.node[-1].output[0] = model.graph.output[0].name = result
    for flag in (True, False):
        _read_equal(model, ["If"] * 6, x=_values(2, 3), flag=np.array(flag))


def test_a_large_loop_is_not_read_in_each_trip_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = list[str]()
    read_node = _ModelReader.read_node

    def count_and_read(reader: _ModelReader, node: Any) -> None:
        reads.append(node.op_type)
        read_node(reader, node)

    monkeypatch.setattr(_ModelReader, "read_node", count_and_read)
    text = """g (float[4] x) => (float[4] y) <int64 trips = {300}> {
        y = Loop (trips, , x) <body = b (int64 n, bool on, float[4] a) => (bool on, float[4] c) {
            c = Loop (trips, , a) <body = d (int64 m, bool o, float[4] e) => (bool o, float[4] f) {
                f = Sin (e)
            }>
        }>
    }"""
    _read_equal(_model(text), ["Loop"], x=_values(4))
    assert reads.count("Sin") < 20 * 300


def _scan(rng: np.random.Generator) -> str:
    inputs, outputs = ([int(n) for n in rng.integers(-2, 2, 2)] for _ in range(2))
    directions = [[int(n) for n in rng.integers(0, 2, 2)] for _ in range(2)]
    return f"""
    g (float[3, 3] x, float[3] first) => (float[3] last, float[n, m] y, float[n, m] z) {{
        last, y, z = Scan <num_scan_inputs = 2, scan_input_axes = {inputs},
            scan_input_directions = {directions[0]}, scan_output_axes = {outputs},
            scan_output_directions = {directions[1]},
            body = b (float[3] state, float[3] p, float[3] q) =>
                (float[3] next, float[3] sum, float[3] other) {{
                    scaled = Mul (state, p)
                    sum = Add (scaled, q)
                    next = Tanh (sum)
                    other = Sub (next, first)
            }}> (first, x, x)
    }}
    """


@pytest.mark.parametrize("seed", range(8))
def test_scans_along_any_axes(seed: int) -> None:
    text = _scan(np.random.default_rng(seed))
    _read_equal(_model(text), x=_values(3, 3), first=_values(3))


class _Drawing:
    """Draws nodes that read what is around them, some with bodies of their own, as text."""

    def __init__(self, seed: int) -> None:
        self.rng, self.count = np.random.default_rng(seed), 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def pick(self, *choices: str) -> str:
        return choices[self.rng.integers(len(choices))]

    def nodes(self, names: list[str], depth: int) -> str:
        """Several nodes; the names of their results are appended."""
        kinds = ["Add", "Mul", "Tanh"] + ["If", "Loop", "Scan"] * bool(depth)
        text = ""
        for _ in range(self.rng.integers(2, 5)):
            kind = self.pick(*kinds)
            if kind in ("If", "Loop", "Scan"):
                node = getattr(self, f"draw_{kind.lower()}")(names, depth - 1)
            else:
                operands = [self.pick(*names) for _ in range(2 - (kind == "Tanh"))]
                node = f"{kind} ({', '.join(operands)})"
            names.append(self.name())
            text += f"{names[-1]} = {node}\n"
        return text

    def draw_if(self, names: list[str], depth: int) -> str:
        branches = []
        for _ in range(2):
            own = [*names]
            text = self.nodes(own, depth)
            branches.append(f"{self.name()} () => (float[2, 2] {own[-1]}) {{ {text} }}")
        condition = self.pick("true", "false", "flag")
        return f"If ({condition}) <then_branch = {branches[0]}, else_branch = {branches[1]}>"

    def draw_loop(self, names: list[str], depth: int) -> str:
        trip, on, still, state = (self.name() for _ in range(4))
        own = [*names, state]
        text = self.nodes(own, depth)
        test = self.pick(f"Identity ({on})", f"Less ({trip}, one)", f"And ({on}, flag)")
        ports = f"int64 {trip}, bool {on}, float[2, 2] {state}"
        body = f"{self.name()} ({ports}) => (bool {still}, float[2, 2] {own[-1]})"
        limit, first = self.pick("one", "two", "size"), self.pick(*names)
        return f"Loop ({limit}, true, {first}) <body = {body} {{ {text} {still} = {test} }}>"

    def draw_scan(self, names: list[str], depth: int) -> str:
        state, row = self.name(), self.name()
        own = [*names, state]
        text = self.nodes(own, depth) + f"{self.name()} = Add ({own[-1]}, {row})\n"
        ports = f"float[2, 2] {state}, float[2] {row}"
        body = f"{self.name()} ({ports}) => (float[2, 2] v{self.count - 1})"
        axis, first, rows = self.rng.integers(2), self.pick(*names), self.pick(*names)
        attributes = f"num_scan_inputs = 1, scan_input_axes = [{axis}]"
        return f"Scan <{attributes}, body = {body} {{ {text} }}> ({first}, {rows})"


@pytest.mark.parametrize("seed", range(60))
def test_drawn_bodies(seed: int) -> None:
    names = ["x"]
    text = _Drawing(seed).nodes(names, 2)
    ports = "float[2, 2] x, bool flag, int64 size"
    numbers = "int64 one = {1}, int64 two = {2}, bool true = {1}, bool false = {0}"
    model = _model(f"g ({ports}) => (float[2, 2] {names[-1]}) <{numbers}> {{ {text} }}")
    inputs = {"x": _values(2, 2), "flag": np.array(seed % 3 > 0), "size": np.array(2)}
    _read_equal(model, None, **inputs)
