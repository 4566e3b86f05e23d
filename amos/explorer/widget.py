"""The explorer in a notebook: a widget that asks the kernel."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

from amos.errors import ToolchainError
from amos.explorer import assets
from amos.explorer.engine import Engine
from amos.explorer.state import State
from amos.explorer.subject import AUTO
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.machine import Machine


def widget(
    operator: str | Operator = "conv2d",
    intrinsic: str | Intrinsic = "wmma_m16n16k16_f16_f32",
    rule: str = "access",
    machine: str | Machine = AUTO,
    *,
    commute: bool = False,
    engine: Engine | None = None,
) -> Any:
    """Create an explorer that a notebook shows.

    Args:
        operator: a name, a layer, math with its extents in it, or an operator.
        intrinsic: the intrinsic; one of your own has to be registered.
        commute: also look at the other orders of the sources.

    Returns:
        An anywidget. Its ``state`` holds the latest choices, ``verdict`` their
        verdict, ``mapping`` the mapping or ``None``, and ``code`` the Python for it.

    Raises:
        FieldError: what it would begin with cannot be used.
        ToolchainError: anywidget is not installed.
    """
    described = [machine] if isinstance(machine, Machine) else []
    state = replace(
        _begin(operator),
        intrinsic=intrinsic if isinstance(intrinsic, str) else intrinsic.name,
        rule=rule,
        machine=machine.name if isinstance(machine, Machine) else machine,
        commute=commute,
    )
    engine = engine or Engine(machines=described)
    engine.initial = state
    engine.check()
    return _widget()(engine, state)


def _begin(operator: str | Operator) -> State:
    if isinstance(operator, str):
        return State(operator=operator)
    dtypes = [kind.declared for load in operator.operands if (kind := load.tensor.kind)]
    return State(
        operator=str(operator.compute),
        extents=", ".join(f"{name}={size}" for name, size in operator.extents.items()),
        dtype=",".join(dtypes) if len(dtypes) == len(operator.operands) else "",
    )


@lru_cache(maxsize=1)
def _widget() -> Any:
    """Create the class with the first widget, as it needs anywidget."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise ToolchainError(
            "the explorer in a notebook needs anywidget: pip install 'amos-mapper[notebook]'; "
            "`amos serve` needs nothing"
        ) from error

    class Explorer(anywidget.AnyWidget):  # type: ignore[misc]
        """The explorer."""

        _esm = assets.module("widget.js")
        _css = assets.read("explorer.css").decode()
        state = traitlets.Dict().tag(sync=True)

        def __init__(self, engine: Engine, state: State) -> None:
            super().__init__(state=asdict(state))
            self._engine = engine
            self.on_msg(self._hear)

        def __repr__(self) -> str:
            return f"Explorer({self.state['operator']} on {self.state['intrinsic']})"

        def _hear(self, _: object, content: object, __: object) -> None:
            """Answer the page; anything but a numbered message is ignored."""
            if isinstance(content, dict) and isinstance(content.get("number"), int):
                answer = self._engine.answer(content.get("message"))
                self.send({"number": content["number"], "answer": answer})

        @property
        def mapping(self) -> Any:
            return self._engine.judge(self.state)[1]

        @property
        def verdict(self) -> Any:
            return self._engine.judge(self.state)[0]

        @property
        def code(self) -> str:
            answer = self._engine.answer({"kind": "judge", "state": self.state})
            return str(answer["code"])

    return Explorer
