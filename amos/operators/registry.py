"""Named operators: what a builder is, how it is registered, looked up and checked."""

from __future__ import annotations

import difflib
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from amos.errors import OperatorError, UnknownNameError, shown
from amos.ir import Operator, resolve_dtypes
from amos.ir.limits import WORD
from amos.operators.windows import with_outputs

__all__ = ["Builder", "Dtype", "apply_dtype", "build", "builder", "get", "names", "register"]

#: What :func:`amos.ir.resolve_dtypes` reads.
Dtype = str | tuple[str, ...] | None

#: Parameters that are no extents and have a type of their own.
_WORDS = ("layout", "form", "dtype", "name")


@dataclass(frozen=True)
class Builder:
    """A function from extents to an :class:`Operator`, checked before it runs.

    Attributes:
        name: name in the registry, for example ``"conv2d"``.
        code: code in AMOS's Table 6 (``"C2D"``); our own for the other operators.
        description: one line in plain words.
        make: the function itself.
    """

    name: str
    code: str
    description: str
    make: Callable[..., Operator]

    def __post_init__(self) -> None:
        # Lets help() and editors show the function's own text and signature.
        object.__setattr__(self, "__doc__", self.make.__doc__)
        object.__setattr__(self, "__wrapped__", self.make)

    @cached_property
    def defaults(self) -> Mapping[str, int | str | None]:
        """Every parameter with its default."""
        parameters = inspect.signature(self.make).parameters.values()
        return {p.name: p.default for p in parameters}

    def __call__(self, *args: object, **kwargs: object) -> Operator:
        """Build the operator.

        Raises:
            OperatorError: an unknown parameter, or one that is out of range.
        """
        if args:
            raise OperatorError(f"operator {self.name!r}: write its parameters by name, as n=1")
        checked = {key: self._checked(key, value) for key, value in kwargs.items()}
        return self.make(**with_outputs(checked, self.defaults))

    def _checked(self, key: str, value: object) -> object:
        if key not in self.defaults:
            near = difflib.get_close_matches(key, list(self.defaults), n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise OperatorError(
                f"operator {self.name!r} has no parameter {key!r}: "
                f"parameters are {', '.join(self.defaults)}{hint}"
            )
        if key == "name" and not isinstance(value, str):
            raise OperatorError(
                f"name of operator {self.name!r}: expected a text, got {shown(value)}"
            )
        if key in _WORDS or (value is None and self.defaults[key] is None):
            return value
        lowest = 0 if key == "padding" else 1
        expected = "a positive integer" if lowest else "an integer that is not negative"
        try:
            number = operator.index(value) if not isinstance(value, bool) else -1  # type: ignore[arg-type]
        except TypeError:
            number = -1
        if not lowest <= number < WORD:
            raise OperatorError(
                f"parameter {key!r} of operator {self.name!r}: expected {expected}, "
                f"got {shown(value)}"
            )
        return number

    def __str__(self) -> str:
        return f"{self.name} ({self.code}): {self.description}"


_BUILDERS: dict[str, Builder] = {}


def register(code: str, description: str) -> Callable[[Callable[..., Operator]], Builder]:
    """Decorator: put a function into the library under its own name.

    Raises:
        OperatorError: the name or the code is taken.
    """

    def add(make: Callable[..., Operator]) -> Builder:
        name = make.__name__
        for other in _BUILDERS.values():
            if name == other.name or code == other.code:
                raise OperatorError(f"operator {name!r} ({code}) is registered already: {other}")
        made = Builder(name, code, description, make)
        _BUILDERS[name] = made
        return made

    return add


def names() -> tuple[str, ...]:
    """Names of all operators of the library, sorted."""
    return tuple(sorted(_BUILDERS))


def builder(name: str) -> Builder:
    """Look a builder up by its name or by its code, in any case.

    Raises:
        UnknownNameError: neither is registered.

    >>> builder("C2D").name
    'conv2d'
    """
    wanted = str(name).lower()
    for entry in _BUILDERS.values():
        if wanted in (entry.name, entry.code.lower()):
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
    """One line of math into an operator; ``dtype`` as :func:`amos.ir.resolve_dtypes` reads it."""
    return apply_dtype(Operator.parse(text, extents, name=name, shapes=shapes), dtype)


def apply_dtype(op: Operator, dtype: Dtype) -> Operator:
    """Fill in open dtypes by one short request, as ``"f16"`` or ``"u8s8"``.

    Raises:
        OperatorError: the request is unknown, or asks for two dtypes of one tensor.
    """
    wanted: dict[str, str] = {}
    for load, kind in zip(op.operands, resolve_dtypes(dtype, len(op.sources)), strict=True):
        if kind is not None and wanted.setdefault(load.tensor.name, kind) != kind:
            raise OperatorError(
                f"dtype {dtype!r} gives tensor {load.tensor.name!r} "
                f"both {wanted[load.tensor.name]} and {kind}"
            )
    return op.with_dtypes(wanted)
