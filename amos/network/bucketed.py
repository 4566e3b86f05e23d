"""A compiled network with buckets: a call runs the smallest that holds its inputs.

Between two buckets inputs are padded with zeros and outputs are cut, which is right if the rows of
a dimension do not depend on each other. This is tested when the network is compiled; a dimension
that fails accepts only the sizes of its buckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from amos._display import Shown
from amos.errors import NetworkError
from amos.network.buckets import BucketedNetwork
from amos.network.checks import Check, check_results
from amos.network.export import export_models
from amos.network.external.compiled import CompiledNetwork
from amos.network.inputs import bind_inputs, random_arrays, values_of
from amos.network.profile import Profile
from amos.network.report import BucketReports

#: Factors of the random padding in tests of independence.
_FACTORS = (1, -30, 1000)
#: Ranges of integers in tests of padding by 0, which is then the least, the least or the largest.
_INTEGERS = ((0, 1), (1, 1), (-1, -1))
#: Sizes of the open dimensions.
_Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    """The axis of an output that grows with a dimension.

    Attributes:
        scale: its extent over the dimension's size.
    """

    axis: int
    scale: int


@dataclass(frozen=True)
class Dimension:
    """An open dimension of a compiled network.

    Attributes:
        sizes: its buckets, rising.
        rows: of each output; ``None`` where it does not grow.
        exact: why it takes only the sizes of its buckets; empty where padding is right.
    """

    name: str
    sizes: tuple[int, ...]
    rows: tuple[Rows | None, ...] = ()
    exact: str = ""

    def bucket(self, size: int) -> int:
        """Return the smallest bucket that holds a size, or raise NetworkError."""
        holding = [own for own in self.sizes if own == size or (0 < size < own and not self.exact)]
        if not holding:
            between = bool(self.exact) and size < self.sizes[-1]
            only = f" and nothing between: {self.exact}" if between else ""
            raise NetworkError(
                f"{self.name!r} is {size}, its buckets are {', '.join(map(str, self.sizes))}{only}"
            )
        return holding[0]

    def cut(self, outputs: Sequence[np.ndarray], size: int) -> tuple[np.ndarray, ...]:
        """Cut outputs to the rows that belong to a size."""
        return tuple(
            output
            if rows is None
            else np.ascontiguousarray(output.take(range(size * rows.scale), rows.axis))
            for output, rows in zip(outputs, self.rows, strict=True)
        )

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.sizes))
        return f"{self.name}: {f'only {sizes}: {self.exact}' if self.exact else f'up to {sizes}'}"


@dataclass(frozen=True, eq=False)
class CompiledBuckets(Shown):
    """A network, compiled for some sizes of its open dimensions.

    Called as :class:`CompiledNetwork <amos.network.external.compiled.CompiledNetwork>` is.

    Attributes:
        models: the compiled network for each combination of sizes.
    """

    network: BucketedNetwork
    models: Mapping[_Sizes, CompiledNetwork]
    dimensions: tuple[Dimension, ...]

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
        """Run the smallest bucket that holds the inputs.

        Raises:
            NetworkError: an input is missing, unknown or of another shape, or no bucket holds it.
            BuildError: an input is of another dtype or device.
        """
        model, sizes, inputs = self._select_bucket(arrays, named)
        outputs = model.outputs_of(inputs)
        for dimension, size in zip(self.dimensions, sizes, strict=True):
            if size not in dimension.sizes:
                outputs = dimension.cut(outputs, size)
        return outputs[0] if model.network.single else outputs

    def profile(self, /, *arrays: Any, repeat: int = 20, **named: Any) -> Profile:
        """Time each function in the bucket of a call; in the largest without inputs.

        See :meth:`CompiledNetwork.profile`.
        """
        if not arrays and not named:
            return self.models[max(self.models)].profile(repeat=repeat)
        model, _, inputs = self._select_bucket(arrays, named)
        return model.profile(*inputs, repeat=repeat)

    def check(self, /, *arrays: Any, **named: Any) -> tuple[Check, ...]:
        """Compare the bucket of a call with others that run the model; all without inputs.

        See :meth:`CompiledNetwork.check`, which has inputs padded as a call has.
        """
        if not arrays and not named:
            return tuple(check for model in self.models.values() for check in model.check())
        model, _, inputs = self._select_bucket(arrays, named)
        return model.check(*inputs)

    def report(self) -> BucketReports:
        """Report each bucket; see :meth:`CompiledNetwork.report`."""
        reports = tuple(model.report() for model in self.models.values())
        return BucketReports(self.network.name, reports)

    def export(self, folder: str | Path) -> tuple[Path, ...]:
        """Write a library of all buckets, a model of each; see :meth:`CompiledNetwork.export`."""
        return export_models([*self.models.values()], folder)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; seconds."""
        return {
            "network": self.network.name,
            "buckets": [model.to_dict() for model in self.models.values()],
            "exact": {each.name: each.exact for each in self.dimensions if each.exact},
        }

    def __str__(self) -> str:
        return "\n".join([*map(str, self.models.values()), *map(str, self.dimensions)])

    __repr__ = __str__

    def _select_bucket(
        self, arrays: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[CompiledNetwork, _Sizes, list[Any]]:
        """Return the bucket of a call, the sizes of the call, and its inputs padded."""
        values = bind_inputs(next(iter(self.network.networks.values())).inputs, arrays, named)
        sizes = self._sizes(values)
        pairs = zip(self.dimensions, sizes, strict=True)
        bucket = tuple(dimension.bucket(size) for dimension, size in pairs)
        return self.models[bucket], sizes, pad_inputs(self.network, values, bucket)

    def _sizes(self, values: Sequence[Any]) -> _Sizes:
        """Return the size of each open dimension; refuse inputs that disagree."""
        sizes: dict[str, int] = {}
        for value, (name, shape) in zip(values, self.network.shapes.items(), strict=True):
            got = tuple(map(int, getattr(value, "shape", ())))
            fits = len(got) == len(shape) and all(
                extent == (sizes.setdefault(own, extent) if isinstance(own, str) else own)
                for own, extent in zip(shape, got, strict=True)
            )
            if not fits:
                expected = ", ".join(str(sizes.get(str(own), own)) for own in shape)
                raise NetworkError(f"input {name!r}: expected shape ({expected}), got {got}")
        return tuple(sizes[dimension.name] for dimension in self.dimensions)


def join_buckets(
    network: BucketedNetwork, compiled: Iterable[CompiledNetwork], verify: bool
) -> CompiledBuckets:
    """Join compiled buckets, and test between which of them padding is right.

    Args:
        verify: try padding; otherwise only the sizes of the buckets are taken.
    """
    models = dict(zip(network.networks, compiled, strict=True))
    dimensions = [
        _test_dimension(network, models, position, verify) for position in range(len(network.sizes))
    ]
    return CompiledBuckets(network, models, tuple(dimensions))


def pad_inputs(network: BucketedNetwork, values: Sequence[Any], bucket: Sequence[int]) -> list[Any]:
    """Pad inputs with zeros up to the sizes of a bucket."""
    sizes: dict[Any, int] = dict(zip(network.sizes, bucket, strict=True))
    arrays = []
    ports = next(iter(network.networks.values())).inputs
    for value, port, shape in zip(values, ports, network.shapes.values(), strict=True):
        full = tuple(sizes.get(extent, extent) for extent in shape)
        if full != tuple(value.shape):
            array = values_of(replace(port, shape=tuple(value.shape)), value)
            value = np.zeros(full, array.dtype)
            value[tuple(map(slice, array.shape))] = array
        arrays.append(value)
    return arrays


def _test_dimension(
    network: BucketedNetwork, models: Mapping[_Sizes, CompiledNetwork], position: int, verify: bool
) -> Dimension:
    name, sizes = [*network.sizes.items()][position]
    if not verify:
        return Dimension(name, sizes, exact="padding was not verified")
    if len(sizes) == 1:
        return Dimension(name, sizes, exact="there is no other bucket to compare with")
    pairs = [
        (small, (*small[:position], larger, *small[position + 1 :]))
        for size, larger in pairwise(sizes)
        for small in models
        if small[position] == size
    ]
    try:
        # They may differ from one pair to another where sizes are multiplied.
        first, *further = (_find_rows(models, *pair, position) for pair in pairs)
        if first is None or any(each != first for each in further):
            return Dimension(name, sizes, exact="its outputs do not grow with it")
        dimension = Dimension(name, sizes, rows=first)
        faults = (_find_fault(network, models, dimension, position, *pair) for pair in pairs)
        return replace(dimension, exact=next(filter(None, faults), ""))
    except NetworkError as error:  # integers may be shapes
        return Dimension(name, sizes, exact=f"random inputs do not run: {error}")


def _find_rows(
    models: Mapping[_Sizes, CompiledNetwork], small: _Sizes, large: _Sizes, position: int
) -> tuple[Rows | None, ...] | None:
    """Return where outputs grow with a dimension; ``None`` if one is not proportional to it."""
    rows: list[Rows | None] = []
    results = (
        models[each].outputs_of(random_arrays(models[each].network)) for each in (small, large)
    )
    for first, second in zip(*results, strict=True):
        if first.ndim != second.ndim:
            return None
        extents = enumerate(zip(first.shape, second.shape, strict=True))
        grown = [Rows(axis, n // small[position]) for axis, (n, m) in extents if n != m]
        if len(grown) > 1 or any(
            result.shape[row.axis] != row.scale * sizes[position]
            for row in grown
            for result, sizes in ((first, small), (second, large))
        ):
            return None
        rows.append(grown[0] if grown else None)
    return tuple(rows)


def _find_fault(
    network: BucketedNetwork,
    models: Mapping[_Sizes, CompiledNetwork],
    dimension: Dimension,
    position: int,
    small: _Sizes,
    large: _Sizes,
) -> str:
    """Return why a larger bucket cannot replace a smaller one; empty if it can."""
    model, larger_model = models[small], models[large]
    size, full = small[position], large[position]
    single, larger = network.networks[small], network.networks[large]
    if single.divides_integers:
        return "integers are divided, and padding is 0"
    rounded = any(each.rounds for each in single.networks.values())
    for integers in _INTEGERS:
        arrays = random_arrays(single, integers=integers)
        result = dimension.cut(larger_model.outputs_of(pad_inputs(network, arrays, large)), size)
        check = check_results("", "", result, model.outputs_of(arrays), rounded=rounded)
        if not check.passed:
            return f"padded from {size} to {full} it differs by {check.difference:.3g}"
    arrays, noise = random_arrays(larger), random_arrays(larger, seed=1)
    outputs = larger_model.outputs_of(arrays)
    for rows, factor in product(sorted({1, size, full - 1}), _FACTORS):
        mixed = [
            _mix(values, factor, tuple(slice(rows if e == dimension.name else None) for e in s))
            for *values, s in zip(arrays, noise, network.shapes.values(), strict=True)
        ]
        first = dimension.cut(larger_model.outputs_of(mixed), rows)
        pairs = zip(first, dimension.cut(outputs, rows), strict=True)
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in pairs):
            return f"the first {rows} rows of {full} depend on the others"
    return ""


def _mix(values: Sequence[np.ndarray], factor: int, block: tuple[slice, ...]) -> np.ndarray:
    """Return a block of the first array within the second one times a factor."""
    own, noise = values
    mixed = noise * noise.dtype.type(factor) if noise.dtype.kind == "f" else noise.copy()
    mixed[block] = own[block]
    return mixed
