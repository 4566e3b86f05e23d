"""An operator and an intrinsic compared: candidates of each iteration (AMOS, section 4.1).

A :class:`Pairing` holds access matrices as bit sets: bit ``m`` of a column says that the
iteration indexes operand ``m`` (sources in order, then the destination). Everything that
enumerates or judges matchings starts here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from operator import index as as_index

import numpy as np

from amos.errors import MappingError, OperatorError, quote
from amos.intrinsics import Intrinsic
from amos.ir import BufferLoad, Compute, DType, Operator, dtype
from amos.ir.combining import function
from amos.ir.padding import check_padding, padding_of

#: Rules of validity, from the strictest to the widest.
RULES = ("paper", "access", "gather")

Candidates = tuple[tuple[int, ...], ...]


def check_rule(rule: str) -> str:
    """Check that a rule exists, and return it; raise MappingError if there is no such rule."""
    if rule not in RULES:
        raise MappingError(f"unknown rule {quote(rule)}: rules are {', '.join(map(repr, RULES))}")
    return rule


@dataclass(frozen=True)
class Pairing:
    """An operator whose statement and dtypes an intrinsic takes, operand by operand.

    Attributes:
        operator: the software; a tensor without a dtype takes that of its operand.
        order: for each source of the intrinsic the index of the operator's
            source that feeds it.
    """

    operator: Operator
    intrinsic: Intrinsic
    order: tuple[int, ...]

    @staticmethod
    def of(operator: Operator, intrinsic: Intrinsic, order: Sequence[int] | None = None) -> Pairing:
        """Pair sources in the order given, or in ``order``.

        A sum of an operator wraps around. A saturating intrinsic computes the same
        only where no sum can leave the destination's range, whatever the data.

        Raises:
            MappingError: these are no operator and intrinsic, ``order`` is no permutation
                of the sources, or their numbers, the arithmetic or the dtypes differ.
        """
        check_types(operator, intrinsic)
        count, expected = len(operator.sources), len(intrinsic.sources)
        if count != expected:
            raise MappingError(
                f"{operator.name} cannot use {intrinsic.name}: it has {count} "
                f"source{'s' * (count != 1)}, the intrinsic takes {expected}"
            )
        try:
            chosen = tuple(map(as_index, range(count) if order is None else order))
        except TypeError:
            chosen = ()
        if sorted(chosen) != list(range(count)):
            raise MappingError(
                f"order {quote(order)}: expected a permutation of the {count} sources "
                f"of {operator.name}"
            )
        pairing = Pairing(operator, intrinsic, chosen)
        pairing._check_operands()
        if intrinsic.arithmetic.saturate:
            pairing._check_sums()
        return pairing

    def _check_operands(self) -> None:
        """Refuse another arithmetic, other dtypes, and padding that is no value of them."""
        ours, theirs = self.operator.compute.arithmetic, self.intrinsic.compute.arithmetic
        if ours != theirs:
            raise self.refusal(f"its arithmetic is {ours}, the intrinsic's is {theirs}")
        if self.order and self.order[0] and not function(self.operator.compute.join).commutes:
            raise self.refusal("its sources are subtracted, so that their order counts")
        fed: dict[str, tuple[str, str]] = {}
        operands = zip(self.loads, self.intrinsic.operands, self.intrinsic.kinds, strict=True)
        for load, operand, expected in operands:
            tensor, into = load.tensor, operand.tensor.name
            stated = tensor.kind or expected
            read = operand is not self.intrinsic.destination and expected.stores(stated)
            if stated != expected and not read:
                raise self.refusal(
                    f"`{tensor.name}` is {stated.declared}, its operand `{into}` is "
                    f"{expected.declared}{self._advise(tensor.name)}"
                )
            if load.padding and tensor.dtype is None:
                self._check_padding(load, expected)
            first_operand, kind = fed.setdefault(tensor.name, (into, expected.declared))
            if kind != expected.declared:
                raise self.refusal(
                    f"`{tensor.name}` feeds both `{first_operand}` ({kind}) and `{into}` "
                    f"({expected.declared})"
                )

    def _advise(self, source: str) -> str:
        """Suggest to fold the zero point of a source that is computed as a difference."""
        prologue = self.operator.prologue(source)
        if prologue is None or prologue.expression.name not in ("subtract", "add"):
            return ""
        is_integer = dtype(prologue.dtype).is_integer and prologue.kind == "int32"
        return "; amos.fold_zero_point takes a zero point out" if is_integer else ""

    def _check_padding(self, load: BufferLoad, kind: DType) -> None:
        """Refuse a padding value that is none of the dtype which fills in an open one."""
        try:
            value = padding_of(load.padding, kind)
            check_padding(value, kind, f"padding of `{load.tensor.name}`")
        except OperatorError as error:
            raise self.refusal(str(error)) from None

    def _check_sums(self) -> None:
        """Refuse an operator whose sums can reach the intrinsic's saturation limits."""
        *sources, target = (
            load.tensor.kind or kind
            for load, kind in zip(self.loads, self.intrinsic.kinds, strict=True)
        )
        low, high = target.limits
        products = [prod(corner) for corner in product(*(kind.limits for kind in sources))]
        # Padding adds zeros, and a partial sum has fewer products.
        least, most = min(0, *products), max(0, *products)
        count = prod(it.extent for it in self.operator.reduce)
        if count * least < low or count * most > high:
            safe = min(limit // value for limit, value in ((low, least), (high, most)) if value)
            raise self.refusal(
                f"its sums wrap around, the intrinsic's saturate, and {count} products can "
                f"leave {target.name}; up to {safe} products cannot"
            )

    def refusal(self, why: str) -> MappingError:
        """Make the error that says why the operator cannot use the intrinsic."""
        return MappingError(f"{self.operator.name} cannot use {self.intrinsic.name}: {why}")

    @cached_property
    def loads(self) -> tuple[BufferLoad, ...]:
        """The operator's accesses, one for each operand of the intrinsic."""
        return (*(self.operator.sources[m] for m in self.order), self.operator.output)

    @cached_property
    def typed(self) -> Operator:
        """The operator with open dtypes taken from the intrinsic."""
        kinds = zip(self.loads, self.intrinsic.kinds, strict=True)
        return self.operator.with_dtypes({load.tensor.name: kind.declared for load, kind in kinds})

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """Columns of X: for each software iteration the operands it indexes."""
        return _columns(self.operator.compute, self.loads)

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """Columns of Z: for each intrinsic iteration the operands it indexes."""
        return _columns(self.intrinsic.compute, self.intrinsic.operands)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """A name for each operand's tensor; the whole access if a tensor occurs twice."""
        tensors = [load.tensor.name for load in self.loads]
        return tuple(
            str(load) if tensors.count(load.tensor.name) > 1 else load.tensor.name
            for load in self.loads
        )

    @cached_property
    def fed(self) -> tuple[str, ...]:
        """Which tensor feeds each operand, as ``a = image``: the rows of Z."""
        pairs = zip(self.intrinsic.operands, self.loads, strict=True)
        return tuple(f"{operand.tensor.name} = {load.tensor.name}" for operand, load in pairs)

    @property
    def access_matrix(self) -> np.ndarray:
        """X with a row for each operand of the intrinsic, as in :attr:`labels`."""
        rows: np.ndarray = self.operator.access_matrix[[*self.order, -1]]
        return rows

    @cached_property
    def conflicts(self) -> tuple[int, ...]:
        """For each software iteration those that share a dimension with it, and itself.

        Two iterations in one index, such as ``p*2 + r``, cannot both be chosen
        by a base match: an operand of an intrinsic has one iteration a dimension.
        """
        place = {it.name: s for s, it in enumerate(self.operator.iterations)}
        barred = [1 << s for s in range(len(place))]
        for load in self.loads:
            for index in load.indices:
                members = [place[name] for name in index.names]
                mask = sum(1 << s for s in members)
                for s in members:
                    barred[s] |= mask
        return tuple(barred)

    def candidates(self, rule: str) -> Candidates:
        """List the intrinsic iterations to which each software iteration may go.

        ``"gather"``: kinds agree and every source that the software iteration
        indexes is indexed by the intrinsic iteration. ``"access"``: the columns
        of X and Z are equal. ``"paper"``: also, with all other iterations removed, the
        operator's index lists equal the intrinsic's.
        """
        if rule == "gather":
            return self._gather
        if rule == "access":
            return tuple(
                tuple(t for t in options if self.slots[t] == column)
                for options, column in zip(self._gather, self.columns, strict=True)
            )
        return tuple(
            tuple(t for t in options if self.obstacle(s, t) is None)
            for s, options in enumerate(self.candidates("access"))
        )

    @cached_property
    def _gather(self) -> Candidates:
        # Kinds agree exactly when the destination's entries do.
        dst = 1 << len(self.order)
        return tuple(
            tuple(t for t, z in enumerate(self.slots) if not x & ~z and not (x ^ z) & dst)
            for x in self.columns
        )

    def obstacle(self, s: int, t: int) -> str | None:
        """Explain why no base match sends ``s`` to ``t``, given that their columns are equal.

        None if one may: in every operand ``s`` occurs in as many dimensions as
        ``t`` does (one, as a rule), each time with a positive coefficient.
        """
        name, step = self.operator.iterations[s].name, self.intrinsic.iterations[t].name
        for load, operand, label in zip(
            self.loads, self.intrinsic.operands, self.labels, strict=True
        ):
            places = [
                (d, c) for d, index in enumerate(load.indices) for n, c in index.terms if n == name
            ]
            expected = sum(step in index.names for index in operand.indices)
            if len(places) != expected:
                return (
                    f"`{name}` indexes {len(places)} dimensions of `{label}` "
                    f"and `{step}` indexes {expected} of `{operand.tensor.name}`"
                )
            for d, c in places:
                if c < 0:
                    return f"`{name}` is reversed in dimension {d} of `{label}`"
        return None

    @cached_property
    def rank(self) -> int:
        """The largest number of intrinsic iterations that can be non-empty at once.

        A maximum bipartite matching over the gather candidates, whatever the rule, so that
        paper ⊆ access ⊆ gather also holds for idle matchings: those that fill fewer. Nearly
        always all intrinsic iterations with a candidate can be filled at once, so that one may
        be empty only if it has none. Only where two of them compete for the same software
        iteration is the rank smaller.
        """
        owner: dict[int, int] = {}

        def place(s: int, seen: set[int]) -> bool:
            for t in self._gather[s]:
                if t not in seen:
                    seen.add(t)
                    if t not in owner or place(owner[t], seen):
                        owner[t] = s
                        return True
            return False

        return sum(place(s, set()) for s in range(len(self._gather)))


def check_types(operator: object, intrinsic: object) -> None:
    """Raise MappingError for objects that are no operator and intrinsic."""
    for value, kind, hint in (
        (operator, Operator, "amos.Operator.parse reads math, amos.operators.resolve names"),
        (intrinsic, Intrinsic, "amos.intrinsics.get finds one by name"),
    ):
        if not isinstance(value, kind):
            got = repr(value) if isinstance(value, str) else type(value).__name__
            raise MappingError(f"expected an {kind.__name__}, got {got}; {hint}")


def check_compatible(
    op: Operator, intrinsic: Intrinsic, order: Sequence[int] | None = None
) -> Pairing:
    """Pair them if some mapping of the operator onto the intrinsic can exist.

    Beyond :meth:`Pairing.of`, at least one software iteration must have an intrinsic
    iteration to go to, under the widest rule.

    Raises:
        MappingError: the operator cannot use the intrinsic; the message says why.
    """
    pairing = Pairing.of(op, intrinsic, order)
    if not pairing.rank:
        why = "; ".join(
            f"`{it.name}` ({it.kind}): {_explain_no_fit(pairing, t)}"
            for t, it in enumerate(intrinsic.iterations)
        )
        raise pairing.refusal(f"no iteration can go anywhere. {why}")
    return pairing


def _explain_no_fit(pairing: Pairing, t: int) -> str:
    """Explain why no software iteration can go to intrinsic iteration ``t``."""
    step, reasons = pairing.intrinsic.iterations[t], []
    for it, column in zip(pairing.operator.iterations, pairing.columns, strict=True):
        if it.kind == step.kind:
            extra = column & ~pairing.slots[t]
            m = (extra & -extra).bit_length() - 1
            operand = pairing.intrinsic.operands[m].tensor.name
            reasons.append(f"`{it.name}` indexes `{pairing.labels[m]}`, not indexed in `{operand}`")
    return ", ".join(reasons) or f"{pairing.operator.name} has no {step.kind} iteration"


def _columns(compute: Compute, loads: Sequence[BufferLoad]) -> tuple[int, ...]:
    rows = [load.names for load in loads]
    return tuple(
        sum(1 << m for m, row in enumerate(rows) if it.name in row) for it in compute.iterations
    )
