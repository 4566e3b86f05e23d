"""Samples: inputs on which errors are measured, and by which integers get their ranges."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from amos.codegen.scheduling import last_line
from amos.errors import NetworkError, quote
from amos.network.external.partition import PartitionedNetwork
from amos.network.inputs import bind_inputs, random_arrays
from amos.network.network import Port

#: A file of NumPy's format ``npz``, or inputs of each call: by name, or in order.
Samples = str | Path | Iterable[Mapping[str, Any] | Sequence[Any]]
#: Random inputs where there are no samples.
RANDOM_COUNT = 2


def read_samples(network: PartitionedNetwork, samples: Samples | None) -> list[list[np.ndarray]]:
    """Return the inputs of each call, in the order of the network's; random ones without samples.

    Arrays of a file are one sample, or have an axis of samples ahead of the axes of the input.
    """
    if samples is None:
        return [random_arrays(network, seed) for seed in range(RANDOM_COUNT)]
    if isinstance(samples, str | os.PathLike):
        samples = _read_file(network, Path(samples))
    if not isinstance(samples, Iterable):
        raise NetworkError(f"samples: expected a file or inputs of calls, got {quote(samples)}")
    values = [_read_call(network, each) for each in samples]
    if not values:
        raise NetworkError("samples: there is none")
    return values


def _read_file(network: PartitionedNetwork, path: Path) -> list[dict[str, np.ndarray]]:
    try:
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            arrays = {} if isinstance(file, np.ndarray) else dict(file)
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise NetworkError(f"samples {str(path)!r}: {last_line(error)}") from None
    if not arrays:
        raise NetworkError(f"samples {str(path)!r}: expected a file of numpy.savez, by input")
    ranks = {port.name: len(port.shape) for port in network.inputs}
    if unknown := [name for name in arrays if name not in ranks]:
        names = ", ".join(ranks)
        raise NetworkError(f"samples {str(path)!r}: no input {unknown[0]!r}; inputs are {names}")
    stacks = {
        name: array if array.ndim > ranks[name] else array[None] for name, array in arrays.items()
    }
    counts = {name: len(array) for name, array in stacks.items()}
    if len({*counts.values()}) > 1:
        lengths = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise NetworkError(f"samples {str(path)!r}: not as many of each input: {lengths}")
    return [
        {name: array[n] for name, array in stacks.items()}
        for n in range(max(counts.values(), default=0))
    ]


def _read_call(network: PartitionedNetwork, sample: Any) -> list[np.ndarray]:
    if isinstance(sample, np.ndarray):
        sample = (sample,)
    if not isinstance(sample, Mapping | Sequence):
        raise NetworkError(f"samples: expected inputs by name or in order, got {quote(sample)}")
    ordered, named = ((), sample) if isinstance(sample, Mapping) else (tuple(sample), {})
    values = bind_inputs(network.inputs, ordered, named)
    return [_check_array(port, value) for port, value in zip(network.inputs, values, strict=True)]


def _check_array(port: Port, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.shape != port.shape or str(array.dtype) != port.dtype:
        raise NetworkError(
            f"samples: {port.name!r} is {port.dtype} of shape {port.shape}, "
            f"got {array.dtype} of shape {array.shape}"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise NetworkError(f"samples: {port.name!r} has elements that are not finite")
    return array
