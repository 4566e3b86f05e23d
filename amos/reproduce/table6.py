"""AMOS, Table 6: number of mappings of each operator, in each form it is written in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from amos import operators
from amos.errors import MappingError, OperatorError
from amos.ir import Operator
from amos.mapping import enumerate_mappings
from amos.validate import RULES

_INTRINSIC = "wmma_m16n16k16_f16_f32"


@dataclass(frozen=True)
class Table6Row:
    """One form of one operator.

    Attributes:
        definition: the form, and where it deviates.
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


#: Other natural forms of the operators that Table 6 counts, besides the library's own: the
#: code, the statement, and a description of the form.
_FORMS = (
    ("GMM", "out[m,n] += a[m,k] * b[n,k]", "second matrix transposed"),
    ("C2D", "out[n,p,q,k] += image[n,p+r,q+s,c] * weight[r,s,c,k]", "NHWC layout"),
    ("GFC", "out[g,k] += x[g,c] * weight[g,k,c]", "one sample: nothing can fill i1"),
    ("MEN", "out[i] += coefficient[k] * x[k,i]", "mean of columns, coefficients first"),
    (
        "VAR",
        "out[i] += x[i,k] * x[i,k]",
        "square of one tensor: i stays a loop, calls fill one element",
    ),
    (
        "VAR",
        "out[i,j] += x[i,k] * y[j,k]",
        "all products of rows (a covariance), of which the diagonal is wanted",
    ),
    ("SCN", "out[i,n] += triangle[i,k] * data[k,n]", "scan of columns, triangle first"),
    ("SCN", "out[i] += data[k] * triangle[k,i]", "one segment: nothing can fill i1"),
)
#: The same for forms that, in our reading, are other operators than the counted ones.
_DEVIATING = (
    ("C2D", "out[k,p,q] += image[c,p+r,q+s] * weight[k,c,r,s]", "one sample, no loop over a batch"),
    (
        "T2D",
        "out[n,k,p,q] += image[n,c,p+r,q+s] * weight[c,k,r,s]",
        "kernel stored reversed: an ordinary convolution",
    ),
    (
        "T2D",
        "out[n,k,p*2+r,q*2+s] += image[n,c,p,q] * weight[c,k,r,s]",
        "scattering: several (p, r) add into one output, which needs atomic additions",
    ),
    (
        "DEP",
        "out[n,k,p,q] += image[n,k,p+r,q+s] * weight[k,r,s]",
        "without a channel multiplier: nothing can fill i2",
    ),
    (
        "CAP",
        "out[n,k,p,q,i,j] += image[n,c,p+r,q+s,i,m] * weight[k,c,r,s,m,j]",
        "capsules are pose matrices, i and j of them and the sum over m",
    ),
    (
        "CAP",
        "out[n,k,v,p,q] += image[n,c,u,p+r,q+s] * weight[k,v,c,u,r,s]",
        "capsules are vectors, also in the input: the sum over u",
    ),
    (
        "BCV",
        "out[g,n,k,p,q] += image[g,n,c,p+r,q+s] * weight[g,k,c,r,s]",
        "n samples share each of g sets of weights: grouped convolution",
    ),
    ("MEN", "out[i] += x[i,k]", "the plain sum, which has no second operand"),
    (
        "SCN",
        "out[b,n,i] += data[b,n,k] * triangle[k,i]",
        "segments of several rows: two loops can fill i1",
    ),
)

#: The library's forms of operators that the paper does not define.
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
    """Count mappings of each form, the library's first, in the paper's order; a row each.

    >>> [(row.code, row.counts["paper"]) for row in table6() if row.code == "T2D"]
    [('T2D', 7), ('T2D', 35), ('T2D', 0)]
    """
    rows = []
    for name, paper in operators.TABLE_6.items():
        builder = operators.builder(name)
        definition = _DEFINITIONS.get(builder.code, builder.description)
        rows.append(_row(builder.code, builder(), definition, paper, deviates=False))
        for deviates, forms in ((False, _FORMS), (True, _DEVIATING)):
            rows += [
                _row(code, text, definition, paper, deviates)
                for code, text, definition in forms
                if code == builder.code
            ]
    return rows


def _row(code: str, form: Operator | str, definition: str, paper: int, deviates: bool) -> Table6Row:
    statement, counts, reason = str(form), dict.fromkeys(RULES, 0), ""
    try:
        op = small(form, code) if isinstance(form, str) else form
        statement = str(op.compute)
        counts = {rule: enumerate_mappings(op, _INTRINSIC, rule).count for rule in RULES}
    except (MappingError, OperatorError) as error:
        reason = str(error)
    return Table6Row(code, definition, statement, paper, counts, deviates, reason)


def small(text: str, name: str) -> Operator:
    """Parse an operator with arbitrary extents, on which counts do not depend."""
    indices = "".join(re.findall(r"\[(.*?)\]", text))
    return Operator.parse(text, dict.fromkeys(re.findall("[a-z]", indices), 4), name=name)
