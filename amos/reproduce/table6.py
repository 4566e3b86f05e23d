"""AMOS, Table 6: number of mappings of each operator, in each form it is written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from amos import intrinsics, operators
from amos.errors import MappingError, OperatorError
from amos.ir import Operator
from amos.mapping import enumerate_mappings
from amos.validate import RULES

__all__ = ["Table6Row", "table6"]

_INTRINSIC = "wmma_m16n16k16_f16_f32"


@dataclass(frozen=True)
class _Form:
    """A way to write one of the paper's operators.

    Attributes:
        code: the operator in Table 6.
        text: its statement; empty for the library's own form.
        definition: what the form is, and where it deviates.
        deviates: whether it is another operator than the one that is counted in
            Table 6, to our reading.
    """

    code: str
    text: str
    definition: str
    deviates: bool = False


@dataclass(frozen=True)
class Table6Row:
    """One form of one operator.

    Attributes:
        code: the operator's code in the paper.
        definition: what the form is, and where it deviates.
        statement: one line of math.
        paper: the paper's count.
        counts: our count for each rule.
        deviates: whether the form differs from the operator that the paper counts.
        reason: why the intrinsic cannot be used at all; empty if it can.
    """

    code: str
    definition: str
    statement: str
    paper: int
    counts: Mapping[str, int]
    deviates: bool
    reason: str = ""

    @property
    def agrees(self) -> bool:
        """Whether rule ``"paper"`` counts what the paper prints."""
        return self.counts["paper"] == self.paper


#: Other natural forms, beside the library's own.
_FORMS = (
    _Form("GMM", "out[m,n] += a[m,k] * b[n,k]", "second matrix transposed"),
    _Form("C2D", "out[n,p,q,k] += image[n,p+r,q+s,c] * weight[r,s,c,k]", "NHWC layout"),
    _Form(
        "C2D",
        "out[k,p,q] += image[c,p+r,q+s] * weight[k,c,r,s]",
        "one sample, no loop over a batch",
        deviates=True,
    ),
    _Form(
        "T2D",
        "out[n,k,p,q] += image[n,c,p+r,q+s] * weight[c,k,r,s]",
        "kernel stored reversed: an ordinary convolution",
        deviates=True,
    ),
    _Form(
        "T2D",
        "out[n,k,p*2+r,q*2+s] += image[n,c,p,q] * weight[c,k,r,s]",
        "scattering: several (p, r) add into one output, which needs atomic additions",
        deviates=True,
    ),
    _Form(
        "DEP",
        "out[n,k,p,q] += image[n,k,p+r,q+s] * weight[k,r,s]",
        "without a channel multiplier: nothing can fill i2",
        deviates=True,
    ),
    _Form(
        "CAP",
        "out[n,k,p,q,i,j] += image[n,c,p+r,q+s,i,m] * weight[k,c,r,s,m,j]",
        "capsules are pose matrices, i and j of them and the sum over m",
        deviates=True,
    ),
    _Form(
        "CAP",
        "out[n,k,v,p,q] += image[n,c,u,p+r,q+s] * weight[k,v,c,u,r,s]",
        "capsules are vectors, also in the input: the sum over u",
        deviates=True,
    ),
    _Form(
        "BCV",
        "out[g,n,k,p,q] += image[g,n,c,p+r,q+s] * weight[g,k,c,r,s]",
        "n samples share each of g sets of weights: grouped convolution",
        deviates=True,
    ),
    _Form(
        "GFC",
        "out[g,k] += x[g,c] * weight[g,k,c]",
        "one sample: nothing can fill i1",
    ),
    _Form("MEN", "out[i] += coefficient[k] * x[k,i]", "mean of columns, coefficients first"),
    _Form(
        "MEN",
        "out[i] += x[i,k]",
        "the plain sum, which has no second operand",
        deviates=True,
    ),
    _Form(
        "VAR",
        "out[i] += x[i,k] * x[i,k]",
        "square of one tensor: i stays a loop, calls fill one element",
    ),
    _Form(
        "VAR",
        "out[i,j] += x[i,k] * y[j,k]",
        "all products of rows (a covariance), of which the diagonal is wanted",
    ),
    _Form("SCN", "out[i,n] += triangle[i,k] * data[k,n]", "scan of columns, triangle first"),
    _Form("SCN", "out[i] += data[k] * triangle[k,i]", "one segment: nothing can fill i1"),
    _Form(
        "SCN",
        "out[b,n,i] += data[b,n,k] * triangle[k,i]",
        "segments of several rows: two loops can fill i1",
        deviates=True,
    ),
)

#: How the library writes what the paper does not define.
_DEFINITIONS = {
    "GMV": "matrix times vector; nothing can fill i2",
    "T2D": "over the zero-inserted image, kernel read backwards: r and s match nothing",
    "GRP": "groups are a loop of their own",
    "DEP": "with a channel multiplier k beside c",
    "CAP": "each output channel is a vector v",
    "BCV": "each sample has weights of its own",
    "GFC": "groups are a loop of their own",
    "MEN": "times a vector of coefficients; nothing can fill i2",
    "VAR": "squares times a vector of coefficients; nothing can fill i2",
    "SCN": "times a triangle of ones",
    "DIL": "a 2-D convolution with steps in r and s",
}


def table6() -> list[Table6Row]:
    """One row for each form: the library's first, then the others, in the paper's order.

    >>> [(row.code, row.counts["paper"]) for row in table6() if row.code == "T2D"]
    [('T2D', 7), ('T2D', 35), ('T2D', 0)]
    """
    rows = []
    for name, count in operators.TABLE_6.items():
        builder = operators.builder(name)
        own = _Form(builder.code, "", _DEFINITIONS.get(builder.code, builder.description))
        rows.append(_row(own, builder(), count))
        rows += [_form_row(form, count) for form in _FORMS if form.code == builder.code]
    return rows


def _form_row(form: _Form, paper: int) -> Table6Row:
    try:
        return _row(form, _operator(form), paper)
    except OperatorError as error:
        none = dict.fromkeys(RULES, 0)
        return Table6Row(
            form.code, form.definition, form.text, paper, none, form.deviates, str(error)
        )


def _operator(form: _Form) -> Operator:
    """A form with extents that say nothing: counts do not depend on them."""
    letters = {c for part in form.text.split("[")[1:] for c in part.split("]")[0] if c.isalpha()}
    return Operator.parse(form.text, dict.fromkeys(sorted(letters), 4), name=form.code)


def _row(form: _Form, op: Operator, paper: int) -> Table6Row:
    unit = intrinsics.get(_INTRINSIC)
    counts, reason = dict.fromkeys(RULES, 0), ""
    try:
        counts = {rule: enumerate_mappings(op, unit, rule).count for rule in RULES}
    except MappingError as error:
        reason = str(error)
    return Table6Row(
        form.code, form.definition, str(op.compute), paper, counts, form.deviates, reason
    )
