"""What the explorer is set to, read from a page that is not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
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
        assignment: for each software iteration its intrinsic iteration or -1;
            ``None`` for the first mapping that there is.
    """

    operator: str = "conv2d"
    extents: str = ""
    dtype: str = ""
    layout: str = ""
    intrinsic: str = "wmma_m16n16k16_f16_f32"
    rule: str = "paper"
    machine: str = "auto"
    assignment: tuple[int, ...] | None = None

    @staticmethod
    def read(value: object) -> State:
        """A state from decoded JSON; what is left out has its default.

        Raises:
            FieldError: this is no state; texts are short, numbers are whole.
        """
        if not isinstance(value, Mapping):
            raise FieldError("", f"state: expected an object, got {type(value).__name__}")
        known = [field.name for field in fields(State)]
        given: dict[str, Any] = dict(value)
        if strange := [name for name in given if name not in known]:
            raise FieldError("", f"state: unknown field {str(strange[0])[:40]!r}")
        assignment = given.pop("assignment", None)
        for name, text in given.items():
            if not isinstance(text, str):
                raise FieldError(name, f"expected a text, got {type(text).__name__}")
            if len(text) > _LONGEST:
                raise FieldError(name, f"expected at most {_LONGEST} characters, got {len(text)}")
            if not text.isprintable():
                raise FieldError(name, "expected one line of printable text")
        if assignment is not None:
            if not isinstance(assignment, list | tuple) or len(assignment) > _LOOPS:
                raise FieldError("matching", f"expected a list of at most {_LOOPS} whole numbers")
            if any(type(t) is not int or not -1 <= t < _LOOPS for t in assignment):
                raise FieldError("matching", "expected whole numbers from -1 on")
            assignment = tuple(assignment)
        return State(**given, assignment=assignment)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)
