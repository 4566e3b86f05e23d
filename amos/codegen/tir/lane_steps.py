"""Straight code over the lanes of vectors, as TensorIR."""

from __future__ import annotations

from typing import Any

from amos._toolchain import tirx


class LaneSteps:
    """Statements over the lanes of a vector, each of which computes a value."""

    def __init__(self, lanes: int) -> None:
        self._lanes, self.lane = lanes, tirx.Var("lane", "int32")
        self.statements: list[Any] = []
        self._values: list[Any] = []

    def value(self, value: Any) -> Any:
        """Compute an expression here, once; return its value."""
        name = f"value{len(self._values)}"
        vector = tirx.decl_buffer((self._lanes,), str(value.ty.dtype), name, scope="local")
        self._values.append(vector)
        self.statements.append(tirx.BufferStore(vector, value, [self.lane]))
        return tirx.BufferLoad(vector, [self.lane])

    @property
    def loop(self) -> Any:
        """The loop over the lanes."""
        vectors = tirx.ForKind.VECTORIZED
        loop = tirx.For(self.lane, 0, self._lanes, vectors, tirx.SeqStmt(self.statements))
        return tirx.SeqStmt([*map(tirx.AllocBuffer, self._values), loop])
