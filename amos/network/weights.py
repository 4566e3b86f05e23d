"""Where the constants of a network are: in large pages, or in a file beside its library.

Each run of a network reads all of its weights. In pages of 4 KiB every 64th line is on another
page, whose place has to be looked up, and beyond which hardware fetches nothing ahead.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from amos.network.program import Shared

#: Bytes of a block of constants, a whole number of large pages; and those of which the place
#: of each constant is a multiple.
_BLOCK, _ALIGNED = 1 << 25, 64
#: Bytes from which on a constant is kept in a file: those of a page.
_LARGE = 4096


class LargePages:
    """Copies constants of the engine one behind the other."""

    def __init__(self) -> None:
        self._block = np.empty(0, np.uint8)
        self._used = 0

    def __call__(self, constant: Any) -> Any:
        """The constant at its new place; itself where it is empty or NumPy lacks its dtype."""
        from tvm import relax, runtime

        tensor = constant.value
        if 0 in tensor.shape or not hasattr(np, str(tensor.dtype)):
            return constant
        return relax.const(runtime.from_dlpack(self._copy(np.from_dlpack(tensor))))

    def _copy(self, array: np.ndarray) -> np.ndarray:
        start = -(-self._used // _ALIGNED) * _ALIGNED
        if start + array.nbytes > self._block.size:
            self._block, start = _large_pages(max(array.nbytes, _BLOCK)), 0
        self._used = start + array.nbytes
        copy = self._block[start : self._used].view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy


def _large_pages(size: int) -> np.ndarray:
    """Memory that nobody has used, for which the system is asked for large pages."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system that is built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


@dataclass(frozen=True)
class Weight:
    """A constant in a file.

    Attributes:
        offset: of its first byte.
        shape: its extents.
        dtype: of its elements.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: str


class WeightFile:
    """Writes large constants into a file, equal ones once; functions get them as arguments.

    Attributes:
        path: of the file.
        arguments: of each function, behind the network's inputs.
    """

    def __init__(self, path: Path) -> None:
        self.arguments: dict[str, list[Weight]] = {}
        self.path, self._size = path, 0
        self._offsets: dict[bytes, int] = {}
        path.touch()

    def __call__(self, module: Any) -> Any:
        """A module of functions with more arguments."""
        import tvm
        from tvm import relax

        functions = {
            name: self._separated(name, function)
            if isinstance(function, relax.Function)
            else function
            for name, function in module.functions.items()
        }
        return tvm.IRModule(functions, attrs=module.attrs)

    @property
    def digest(self) -> str:
        """Of all that is in the file."""
        return sha256(b"".join(self._offsets)).hexdigest()

    def _separated(self, name: Any, function: Any) -> Any:
        import tvm
        from tvm import relax

        arguments: dict[Any, Weight] = {}
        replaced = Shared(self._argument(arguments))
        function = replaced(tvm.IRModule({name: function}))[name]
        self.arguments[name.name_hint] = list(arguments.values())
        return relax.Function(
            [*function.params, *arguments],
            function.body,
            function.ret_ty,
            function.is_pure,
            function.attrs,
        )

    def _argument(self, arguments: dict[Any, Weight]) -> Callable[[Any], Any]:
        """Makes an argument of a large constant, and notes it."""
        from tvm import relax

        def placed(constant: Any) -> Any:
            shape, kind = tuple(map(int, constant.value.shape)), str(constant.value.dtype)
            values = constant.value.numpy().tobytes()
            if len(values) < _LARGE:
                return constant
            variable = relax.Var(f"weight{len(arguments)}", relax.TensorType(shape, kind))
            arguments[variable] = Weight(self._offset(values), shape, kind)
            return variable

        return placed

    def _offset(self, values: bytes) -> int:
        key = sha256(values).digest()
        if key not in self._offsets:
            self._offsets[key] = self._size
            padding = bytes(-len(values) % _ALIGNED)
            with self.path.open("ab") as file:
                file.write(values + padding)
            self._size += len(values) + len(padding)
        return self._offsets[key]
