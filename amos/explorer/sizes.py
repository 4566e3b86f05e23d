"""Sizes of an instruction, its buffers and its machine, as the page changes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amos.errors import AmosError
from amos.explore.sweep import resize, value_of
from amos.explorer.state import FieldError
from amos.intrinsics import Intrinsic
from amos.machine import Machine

#: Paths of a sweep that may be changed begin so.
_PATHS = ("extents.", "memory.", "machine.")
#: Sliders go from an eighth to eight times of the described value.
_FACTORS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)


def settings_of(text: str) -> dict[str, Any]:
    """Parse values by path; raise FieldError if the text is no list of them."""
    settings = {}
    for setting in filter(None, (piece.strip() for piece in text.split(","))):
        path, sign, value = (piece.strip() for piece in setting.partition("="))
        if not (sign and value and path.startswith(_PATHS)):
            raise FieldError(
                "sizes",
                f"{setting!r}: expected PATH=VALUE, of {', '.join(_PATHS)} as in `amos sweep`",
            )
        settings[path] = value_of(value)
    return settings


def resize_unit(
    unit: Intrinsic, machine: Machine | None, text: str
) -> tuple[Intrinsic, Machine | None]:
    """Change the sizes of an intrinsic and its machine, or raise FieldError."""
    if not (settings := settings_of(text)):
        return unit, machine
    if machine is None:
        raise FieldError("sizes", "choose a machine: a call takes as long there in any size")
    try:
        return resize(unit, machine, settings)
    except AmosError as error:
        raise FieldError("sizes", str(error)) from None


def sliders(unit: Intrinsic, text: str) -> Iterator[dict[str, Any]]:
    """Yield for each extent and buffer its path, described, present and offered values."""
    settings = settings_of(text)
    described = {f"extents.{name}": extent for name, extent in unit.extents.items()}
    described |= {f"memory.{pad.name}.capacity": pad.capacity for pad in unit.scratchpads}
    for path, base in described.items():
        value = settings.get(path, base)
        offered = {int(base * factor) for factor in _FACTORS if base * factor >= 1} | {value}
        yield {"path": path, "base": base, "value": value, "values": sorted(offered, key=float)}
