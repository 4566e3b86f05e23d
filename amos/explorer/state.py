"""What the explorer is set to, read from a page that is not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from amos.errors import AmosError

__all__ = ["FieldError", "State"]

#: Characters that a field may hold, and loops that a matching may assign.
_LONGEST, _LOOPS = 1000, 64


class FieldError(AmosError):
    """A field of the explorer holds something that cannot be used.

    Args:
        field: name of the field.
        message: what the command line would say.
    """

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
        layout: layout of a library operator, or nothing.
        intrinsic: name of the intrinsic.
        rule: the rule that judges.
        machine: name of the machine that the model predicts for, ``auto`` for the
            first one that has a rate for the intrinsic, or nothing.
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
    commute: bool = False
    assignment: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None

    @staticmethod
    def read(value: object) -> State:
        """A state from decoded JSON; what is left out has its default.

        Raises:
            FieldError: this is no state; texts are short, numbers are whole.
        """
        if not isinstance(value, Mapping):
            raise FieldError("", f"state: expected an object, got {type(value).__name__}")
        given: dict[str, Any] = dict(value)
        if strange := given.keys() - {field.name for field in fields(State)}:
            raise FieldError("", f"state: unknown field {str(strange.pop())[:40]!r}")
        assignment = _numbers("matching", given.pop("assignment", None), -1)
        order = _numbers("order", given.pop("order", None), 0)
        commute = given.pop("commute", False)
        if type(commute) is not bool:
            raise FieldError("commute", f"expected true or false, got {type(commute).__name__}")
        for name, text in given.items():
            if not isinstance(text, str):
                raise FieldError(name, f"expected a text, got {type(text).__name__}")
            if len(text) > _LONGEST:
                raise FieldError(name, f"expected at most {_LONGEST} characters, got {len(text)}")
            if not text.isprintable():
                raise FieldError(name, "expected one line of printable text")
        return State(**given, commute=commute, assignment=assignment, order=order)


def _numbers(name: str, value: object, least: int) -> tuple[int, ...] | None:
    """A short list of whole numbers, or ``None`` for none."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) > _LOOPS:
        raise FieldError(name, f"expected a list of at most {_LOOPS} whole numbers")
    if any(type(number) is not int or not least <= number < _LOOPS for number in value):
        raise FieldError(name, f"expected whole numbers from {least} on")
    return tuple(value)
