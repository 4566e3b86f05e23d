"""Fields of a schedule: their checks, and their entries in records and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal

from amos.errors import ScheduleError

#: Bound of all numbers, so that products of two of them fit 64 bits.
_LIMIT = 1 << 31
#: A value of a schedule variable.
Value = int | str
#: The owners of a variable's values, if it has several.
Owners = Literal["", "spatial", "reduce", "operand"]


@dataclass(frozen=True)
class Variable:
    """Description of a field: its checks and its entry in a dictionary.

    Attributes:
        key: its name in a dictionary, before a dot where each loop or operand has a value.
        default: value of a missing key; ``None`` for an order of loops.
        lowest: the smallest allowed number.
        words: values that are no numbers.
        per: owners of the values: ``"spatial"`` or ``"reduce"`` loops, or ``"operand"``; empty
            if there is one value.
        always: whether the default is written as well.
        written_with: field with which, if it has a value, the default is written.
    """

    key: str
    default: Value | None
    lowest: int = 1
    words: tuple[str, ...] = ()
    per: Owners = ""
    always: bool = False
    written_with: str = ""

    def normalize(self, name: str, value: Any) -> Any:
        """Return the value of a field as it is stored.

        Raises:
            ScheduleError: it is of another type, or no value that the field may have.
        """
        if self.default is None:
            right = isinstance(value, tuple) and all(isinstance(each, str) for each in value)
            if value is not None and not right:
                raise ScheduleError(f"{name} = {value!r}: expected names of loops")
        elif not self.per:
            self._check(name, "", value)
        elif not isinstance(value, MappingType):
            raise ScheduleError(f"{name} = {value!r}: expected a value for each name")
        else:
            for key, single in value.items():
                self._check(name, f".{key}", single)
            return Defaulted(value, self.default)
        return value

    def entries(self, value: Any, companion: Any) -> Iterator[tuple[str, Value]]:
        """Yield the entries of a dictionary that hold a value of the field."""
        if self.per:
            for name, single in value.items():
                if self.always or single != self.default:
                    yield f"{self.key}.{name}", single
        elif value != self.default or companion is not None:
            yield self.key, " ".join(value) if self.default is None else value

    def _label(self, name: str, suffix: str) -> str:
        label = f"{self.key}{suffix}"
        return label if name == self.key else f"{name}{suffix} ({label})"

    def _check(self, name: str, suffix: str, value: Any) -> None:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if value in self.words if self.words else is_whole and self.lowest <= value < _LIMIT:
            return
        expected = " or ".join(self.words) or f"a whole number, {self.lowest} or more"
        if not self.words and is_whole and value >= _LIMIT:
            expected = f"a whole number, at most {_LIMIT - 1}"
        raise ScheduleError(f"{self._label(name, suffix)} = {value!r}: expected {expected}")


class Defaulted(dict[str, Any]):
    """A value for each loop or operand; the default for those that are not named."""

    def __init__(self, values: MappingType[str, Any], default: Value) -> None:
        super().__init__(values)
        self.default = default

    def __missing__(self, key: str) -> Value:
        return self.default


def variable(key: str, default: Value | None, **more: Any) -> Any:
    """Declare a field of a schedule, see :class:`Variable`."""
    kind = Variable(key, default, **more)
    start: Any = {"default_factory": dict} if kind.per else {"default": default}
    return field(**start, metadata={"variable": kind})


@cache
def variables_of(kind: type[Any]) -> dict[str, Variable]:
    """Return the variables of a class of schedules, by the name of the field."""
    return {each.name: each.metadata["variable"] for each in fields(kind)}


@cache
def names_of(kind: type[Any]) -> dict[str, str]:
    """Return the fields of a class of schedules by the keys of their variables."""
    return {each.metadata["variable"].key: each.name for each in fields(kind)}
