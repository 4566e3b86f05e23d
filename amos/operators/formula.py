"""An operator of the library: one line of math as text, and a default for each parameter."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from amos.ir import Operator
from amos.operators.registry import Builder, build, register
from amos.operators.windows import IMAGE_AXES, Axis, letters, slide

__all__ = ["define"]

_STEPS = {"stride": 1, "dilation": 1, "padding": 0}
_TYPES = {"layout": "str", "dtype": "Dtype", "name": "str"}
_NO_EXTENTS: Mapping[str, str] = {}


def define(
    name: str,
    code: str,
    description: str,
    *,
    math: str | Mapping[str, str],
    defaults: Mapping[str, int],
    doc: str,
    derived: Mapping[str, str] = _NO_EXTENTS,
) -> Builder:
    """Put an operator into the library, with a parameter for each entry of ``defaults``.

    Where the math slides a window over ``image``, written ``image[n,c,p+r]``, the operator
    also has a stride, a dilation, a padding and the image's sizes as parameters, and the
    index becomes ``p*stride + r*dilation - padding``.

    Args:
        name, code, description: as :class:`~amos.operators.registry.Builder` has them.
        math: the statement; one for each layout, the default first, if there are several.
        defaults: extent by iteration, and steps of the window that are not 1, 1 and 0.
        doc: docstring, in which ``{math}`` stands for the (first) statement.
        derived: iterations that are as long as another one.
    """
    texts = {"": math} if isinstance(math, str) else math
    usual = next(iter(texts.values()))
    windows = [size for size, (p, r) in IMAGE_AXES.items() if f"{p}+{r}" in usual]
    extents = [key for key in defaults if key not in _STEPS]
    whole: dict[str, Any] = {key: defaults[key] for key in extents}
    if windows:
        whole |= {key: defaults.get(key, step) for key, step in _STEPS.items()}
        whole |= dict.fromkeys(windows)
    if len(texts) > 1:
        whole["layout"] = next(iter(texts))
    whole |= {"dtype": None, "name": name}

    def make(**parameters: Any) -> Operator:
        values = whole | parameters
        text = texts[letters(values["layout"], *texts)] if "layout" in values else usual
        ranges = {key: values[key] for key in extents}
        ranges |= {key: values[other] for key, other in derived.items()}
        shapes = {}
        if windows:
            text, shapes["image"] = slide(text, ranges, [Axis.of(s, values) for s in windows])
        return build(text, ranges, name=values["name"], dtype=values["dtype"], shapes=shapes)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = inspect.cleandoc(doc).replace("{math}", f"``{usual}``")
    make.__signature__ = _signature(whole)  # type: ignore[attr-defined]
    return register(code, description)(make)


def _signature(defaults: Mapping[str, Any]) -> inspect.Signature:
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = []
    for key, default in defaults.items():
        usual = "int | None" if default is None else "int"
        annotation = _TYPES.get(key, usual)
        parameters.append(inspect.Parameter(key, kind, default=default, annotation=annotation))
    return inspect.Signature(parameters, return_annotation="Operator")
