"""Named operators: their builders, registration, look-up and checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from amos.errors import OperatorError, UnknownNameError, quote, suggestion
from amos.ir import Operator, resolve_dtypes
from amos.ir import dtype as read_dtype
from amos.ir.limits import whole_number

#: A request that :func:`amos.ir.resolve_dtypes` reads.
Dtype = str | tuple[str, ...] | None

#: Parameters that are no extents and have a type of their own.
_WORDS = ("layout", "form", "dtype", "name")
#: Parameters of windows and images.
_WINDOW = ("r", "s", "t", "stride", "dilation", "padding", "h", "w", "depth")


@dataclass(frozen=True)
class Builder:
    """A function from extents to an :class:`Operator`, checked before it runs.

    Attributes:
        code: code in AMOS's Table 6 (``"C2D"``); our own for the other operators.
        defaults: every parameter with its default.
        layouts: values of its parameter ``layout``, if it has one.
    """

    name: str
    code: str
    description: str
    make: Callable[..., Operator]
    defaults: Mapping[str, int | str | None]
    layouts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Lets help() and editors show the function's own text.
        object.__setattr__(self, "__doc__", self.make.__doc__)

    @property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Signature(
            [inspect.Parameter(key, kind, default=value) for key, value in self.defaults.items()],
            return_annotation=Operator,
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Default extents, but for windows, their steps, and images that follow from others."""
        return {
            key: size
            for key, size in self.defaults.items()
            if isinstance(size, int) and key not in _WINDOW
        }

    def __call__(self, *args: object, **kwargs: object) -> Operator:
        """Build the operator; OperatorError for a parameter unknown or out of range."""
        if args:
            raise OperatorError(f"operator {self.name!r}: write its parameters by name, as n=1")
        return self.make(**{key: self._check(key, value) for key, value in kwargs.items()})

    def _check(self, key: str, value: object) -> object:
        if key not in self.defaults:
            raise OperatorError(
                f"operator {self.name!r} has no parameter {key!r}: "
                f"parameters are {', '.join(self.defaults)}{suggestion(key, self.defaults)}"
            )
        if key == "name" and not isinstance(value, str):
            raise OperatorError(
                f"name of operator {self.name!r}: expected a text, got {quote(value)}"
            )
        if key in _WORDS or (value is None and self.defaults[key] is None):
            return value
        where = f"parameter {key!r} of operator {self.name!r}"
        return whole_number(value, where, least=0 if key == "padding" else 1)

    def __str__(self) -> str:
        return f"{self.name} ({self.code}): {self.description}"


_BUILDERS: dict[str, Builder] = {}


def add(entry: Builder) -> Builder:
    """Put a builder into the library, whose names and codes are distinct."""
    for existing in _BUILDERS.values():
        if entry.name == existing.name or entry.code == existing.code:
            raise OperatorError(
                f"operator {entry.name!r} ({entry.code}) is registered already: {existing}"
            )
    _BUILDERS[entry.name] = entry
    return entry


def register(code: str, description: str) -> Callable[[Callable[..., Operator]], Builder]:
    """Decorate a function to put it into the library under its own name, which must be free."""

    def put(make: Callable[..., Operator]) -> Builder:
        parameters = inspect.signature(make).parameters.values()
        defaults = {p.name: p.default for p in parameters}
        return add(Builder(make.__name__, code, description, make, defaults))

    return put


def names() -> tuple[str, ...]:
    """List the names of all operators of the library, sorted."""
    return tuple(sorted(_BUILDERS))


def builder(name: str) -> Builder:
    """Look a builder up by its name or by its code, in any case.

    Raises:
        UnknownNameError: neither is registered.

    >>> builder("C2D").name
    'conv2d'
    """
    key = str(name).lower()
    for entry in _BUILDERS.values():
        if key in (entry.name, entry.code.lower()):
            return entry
    raise UnknownNameError("operator", str(name), names())


def get(name: str, /, **parameters: object) -> Operator:
    """Build an operator of the library; parameters override its default shape.

    Raises:
        UnknownNameError: there is no such operator.
        OperatorError: a parameter is unknown or out of range.

    >>> get("gemm", m=4, n=8, k=16).extents
    {'m': 4, 'n': 8, 'k': 16}
    """
    return builder(name)(**parameters)


def build(
    text: str,
    extents: Mapping[str, int],
    *,
    name: str,
    dtype: Dtype,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Operator:
    """Parse one line of math; ``dtype`` is read by :func:`amos.ir.resolve_dtypes`."""
    return apply_dtype(Operator.parse(text, extents, name=name, shapes=shapes), dtype)


def apply_dtype(op: Operator, dtype: Dtype) -> Operator:
    """Fill in open dtypes by one short request, as ``"f16"`` or ``"u8s8"``.

    A sum of products accumulates in the usual dtype; any other statement has its
    output in the dtype of its sources, where that is one.

    Raises:
        OperatorError: the request is unknown, or asks for two dtypes of one tensor.
    """
    dtypes: dict[str, str] = {}
    kinds = resolve_dtypes(dtype, len(op.sources))
    if isinstance(dtype, str) and not op.compute.sums_products and len({*kinds[:-1]}) == 1:
        kinds = (*kinds[:-1], kinds[0] and read_dtype(kinds[0]).name)
    for load, kind in zip(op.operands, kinds, strict=True):
        if kind is not None and dtypes.setdefault(load.tensor.name, kind) != kind:
            raise OperatorError(
                f"dtype {dtype!r} gives tensor {load.tensor.name!r} "
                f"both {dtypes[load.tensor.name]} and {kind}"
            )
    return op.with_dtypes(dtypes)
