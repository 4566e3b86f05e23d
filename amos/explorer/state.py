"""The explorer's settings, read from a page that is not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NoReturn, TypeVar, get_type_hints

from amos._tables import TableReader
from amos.errors import AmosError

T = TypeVar("T")

#: Characters that a field may hold, and loops that a matching may assign.
_LONGEST, _LOOPS = 1000, 64
#: The field at which the page shows errors of values without a field of their own.
_SHOWN_AT = {"assignment": "matching"} | dict.fromkeys(("first", "count", "words"), "filter")


class FieldError(AmosError):
    """A field of the explorer holds something that cannot be used; said as on the command line."""

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(message)


@dataclass(frozen=True)
class State:
    """Everything that is chosen on the page.

    Attributes:
        operator: a name of the library, a layer, or math.
        extents: ``k=64, p=28``, what differs from the operator's own.
        dtype: one request for all tensors, or nothing.
        machine: name of the machine that the model predicts for, ``auto`` for the
            first one that has a rate for the intrinsic, or nothing.
        sizes: ``extents.i2=8, memory.acc.capacity=32k``, what differs from the descriptions
            of intrinsic and machine.
        commute: also look at the other orders of the sources.
        assignment: for each software iteration its intrinsic iteration or -1;
            ``None`` for the first mapping that there is.
        order: for each source of the intrinsic the operator's source that feeds it;
            ``None`` for that of the first mapping.
    """

    operator: str = "conv2d"
    extents: str = ""
    dtype: str = ""
    layout: str = ""
    intrinsic: str = "wmma_m16n16k16_f16_f32"
    rule: str = "access"
    machine: str = "auto"
    sizes: str = ""
    commute: bool = False
    assignment: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        texts = ("operator", "extents", "dtype", "layout", "intrinsic", "rule", "machine", "sizes")
        for name in texts:
            text = getattr(self, name)
            if len(text) > _LONGEST:
                raise FieldError(name, f"expected at most {_LONGEST} characters, got {len(text)}")
            if not text.isprintable():
                raise FieldError(name, "expected one line of printable text")
        for name, numbers, least in (("matching", self.assignment, -1), ("order", self.order, 0)):
            if len(numbers or ()) > _LOOPS:
                raise FieldError(name, f"expected a list of at most {_LOOPS} whole numbers")
            if any(not least <= number < _LOOPS for number in numbers or ()):
                raise FieldError(name, f"expected whole numbers from {least} on")

    @staticmethod
    def read(value: object) -> State:
        """Read a state from decoded JSON, texts short and numbers whole, or raise FieldError."""
        if not isinstance(value, Mapping):
            raise FieldError("", f"state: expected an object, got {type(value).__name__}")
        if unknown := value.keys() - {field.name for field in fields(State)}:
            raise FieldError("", f"state: unknown field {str(unknown.pop())[:40]!r}")
        return read_fields(State, value)


class _Reader(TableReader):
    """Attributes an error to a field of the page."""

    def fail(self, key: str, message: str) -> NoReturn:
        name = key.partition("[")[0]
        raise FieldError(_SHOWN_AT.get(name, name), message)


def read_fields(kind: type[T], table: Mapping[str, Any]) -> T:
    """Read a dataclass from decoded JSON; missing and null fields have their defaults."""
    reader, kinds = _Reader("", "", FieldError), get_type_hints(kind)
    stated = {name: table[name] for name in kinds if table.get(name) is not None}
    return kind(**{name: reader.read(kinds[name], value, name) for name, value in stated.items()})
