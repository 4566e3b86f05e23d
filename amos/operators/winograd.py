"""Winograd's convolution: 3×3 windows on tiles of 4×4 results, by a quarter of the products.

An image is cut into overlapping tiles of 6×6 elements, one for each 4×4 results (Lavin and
Gray, *Fast Algorithms for Convolutional Neural Networks*, 2016, F(4×4, 3×3)). With ``d`` a tile
and ``g`` a window, the results are ``Aᵀ((G g Gᵀ) ⊙ (Bᵀ d B))A``: 36 products for 16 results,
where the definition takes 144. Summed over channels, the products at each of the 36 positions
are a matrix product, so the instruction computes one batched product. All of it is a chain of
three statements: two transforms by literal matrices, and the product between them.

*In floats* sums round differently, by two to four times as much as those of the definition.

*In integers* nothing rounds. ``Bᵀ`` has whole numbers, and of bytes it makes integers of 16 bits.
The rows of ``G`` are multiplied by their divisors, so that they have whole numbers too;
then ``Aᵀ`` can be chosen so that all results come out times 576. All of that holds modulo 2**32,
where division by 9 is a product with its inverse, and division by 64 a shift, of a result that
:meth:`Winograd.is_exact` bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from amos.ir import Chain, Epilogue, Operator
from amos.ir.chain import Statement
from amos.ir.epilogue import ACC
from amos.ir.expression import Node
from amos.ir.transforms import Transform

#: Results along one side of a tile, and elements of the image that they depend on.
RESULTS, ELEMENTS = 4, 6
#: Points at which polynomials are multiplied, besides 0 and infinity, each with its negative: in
#: floats those that halve the errors of 1 and 2, which keep integers whole.
_POINTS = {False: (5 / 8, 3 / 2), True: (1, 2)}
#: Factor of integer results along each side.
_FACTOR = 24


@dataclass(frozen=True, eq=False)
class _Matrices:
    """``Bᵀ``, ``G`` without denominators, these by row, and ``Aᵀ`` of two points and negatives."""

    image: np.ndarray
    windows: np.ndarray
    scales: np.ndarray
    results: np.ndarray

    @staticmethod
    def of(a: float, b: float) -> _Matrices:
        """Build the matrices by Toom and Cook.

        Each row of ``Bᵀ`` is the product of the factors of all points but one.
        """
        points = np.array([0, a, -a, b, -b])
        linear, (aa, bb) = -(a * a + b * b), (a * a, b * b)
        image = [
            [aa * bb, 0, linear, 0, 1, 0],
            [0, -a * bb, -bb, a, 1, 0],
            [0, a * bb, -bb, -a, 1, 0],
            [0, -aa * b, -aa, b, 1, 0],
            [0, aa * b, -aa, -b, 1, 0],
            [0, aa * bb, 0, linear, 0, 1],
        ]
        at_a, at_b = 2 * aa * (aa - bb), 2 * bb * (bb - aa)
        return _Matrices(
            image=np.array(image),
            windows=np.vstack([points[:, None] ** np.arange(3), [0, 0, 1]]),
            scales=np.array([aa * bb, at_a, at_a, at_b, at_b, 1]),
            results=np.hstack([points ** np.arange(4)[:, None], [[0], [0], [0], [1]]]),
        )


_MATRICES = {integer: _Matrices.of(*points) for integer, points in _POINTS.items()}
#: Sums and differences of values at a point and its negative, and the reverse of it.
_PAIRS = np.eye(ELEMENTS)
_PAIRS[1:3, 1:3] = _PAIRS[3:5, 3:5] = [[1, 1], [1, -1]]
_APART = _PAIRS / np.abs(_PAIRS).sum(1)
#: ``Bᵀ`` as two matrices, the first of which is applied first: together they have fewer terms.
INTO_TILES = {integer: (_APART @ own.image, _PAIRS) for integer, own in _MATRICES.items()}
#: ``Aᵀ`` likewise, of floats, and of integers with whole numbers for windows.
OUT_OF_TILES = {
    False: (_PAIRS, _MATRICES[False].results @ _APART),
    True: (_PAIRS, _MATRICES[True].results * (_FACTOR / _MATRICES[True].scales) @ _APART),
}
#: Bits that integer results are shifted by, and had more before.
_SHIFT = 6
#: The statements of a chain; three dimensions have further indices.
_TEXT = (
    "tile[a,b,n,{z}y,x,c] += pairs[b,f] * split[f,j] * pairs[a,e] * split[e,i]"
    " * pad(image[n,{z}4*y+i-{rows},4*x+j-{columns},c]); "
    "product[a,b,n,{d}y,x,k] += {tile} * weight[a,b,{t}c,k]; "
    "out[n,{d}4*y+p,4*x+q,k] += merge[q,h] * halves[h,b] * merge[p,g] * halves[g,a]"
    " * product[a,b,n,{d}y,x,k]"
)


@dataclass(frozen=True)
class Winograd:
    """A convolution with windows of 3×3 and strides of 1, channels last, by tiles.

    In three dimensions tiles span the last two, and the product sums taps along the first one,
    as it sums channels.

    Attributes:
        image: extents ``(n, h, w, c)`` or ``(n, d, h, w, c)``.
        result: extents ``(n, p, q, k)`` or ``(n, d, p, q, k)``.
        padding: elements before the image along each axis between.
        depth: taps along the first of three dimensions.
        dtype: of the image; the window's is ``float32`` too, or ``int8``.
    """

    image: tuple[int, ...]
    result: tuple[int, ...]
    padding: tuple[int, ...]
    depth: int = 1
    dtype: str = "float32"

    @property
    def integer(self) -> bool:
        """Whether it is computed in integers."""
        return self.dtype != "float32"

    @property
    def rows(self) -> int:
        """Number of rows of tiles in an image."""
        return -(-self.result[-3] // RESULTS)

    def build_chain(self, operator: Operator) -> Chain:
        """Return the chain that computes a convolution of this form, with its epilogue.

        >>> operator = Operator.parse(
        ...     "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
        ...     dict(n=1, p=8, q=8, k=32, c=16, r=3, s=3),
        ... )
        >>> chain = Winograd((1, 8, 8, 16), (1, 8, 8, 32), (1, 1)).build_chain(operator)
        >>> print(chain.steps[1].compute)
        product[a, b, n, y, x, k] += tile[a, b, n, y, x, c] * weight[a, b, c, k]
        """
        into, out_of = INTO_TILES[self.integer], OUT_OF_TILES[self.integer]
        names = ("split", "pairs", "halves", "merge")
        pairs = zip(names, (*into, *out_of), strict=True)
        literals = (f"{name} = {self._round(matrix)}" for name, matrix in pairs)
        extents = dict.fromkeys("abefghij", ELEMENTS) | dict.fromkeys("pq", RESULTS)
        extents |= dict(n=self.image[0], c=self.image[-1], k=self.result[-1])
        extents |= dict(y=self.rows, x=-(-self.result[-2] // RESULTS))
        more, tile = dict(d="", t="", z=""), "tile[a,b,n,y,x,c]"
        if len(self.image) == 5:
            front, planes = self.padding[0], self.image[1]
            more = dict(d="d,", t="t,", z="z,")
            extents |= dict(d=self.result[1], t=self.depth, z=planes)
            is_padded = front or self.result[1] + self.depth - 1 - front > planes
            tile = f"tile[a,b,n,d+t-{front},y,x,c]"
            tile = f"pad({tile})" if is_padded else tile
        rows, columns = self.padding[-2:]
        text = "; ".join((*literals, _TEXT.format(rows=rows, columns=columns, tile=tile, **more)))
        kinds = dict(image=self.dtype) | (
            dict(tile="int16", weight="int16") if self.integer else {}
        )
        shapes = dict(image=self.image, out=self.result)
        *before, last = Chain.parse(text, extents, kinds, "winograd", shapes).statements
        sums = last.steps[0]
        assert isinstance(sums, Transform)
        finished = Statement(last.text, (_finish(sums, operator),))
        return Chain((*before, finished), "winograd")

    def _round(self, matrix: np.ndarray) -> list[list[float]]:
        """Return the rows of a matrix, of whole numbers where those of integers are."""
        kind = round if self.integer else float
        return [[kind(x) for x in row] for row in matrix]

    def windows(self, weight: np.ndarray) -> np.ndarray:
        """Transform the windows to the form that the product reads.

        >>> form = Winograd((1, 8, 8, 16), (1, 8, 8, 32), (1, 1), dtype="uint8")

        >>> form.windows(np.ones((32, 16, 3, 3), np.int8))[:2, :, 0, 0]
        array([[ 1,  3,  1,  7,  3,  1],
               [ 3,  9,  3, 21,  9,  3]], dtype=int16)
        """
        matrices = _MATRICES[self.integer]
        matrix = matrices.windows if self.integer else matrices.windows / matrices.scales[:, None]
        taps = weight.reshape(*weight.shape[:2], -1, 3, 3).astype(matrix.dtype)
        transformed = np.einsum("ir,kcdrs,js->ijdck", matrix, taps, matrix, optimize=True)
        depth = (self.depth,) if len(self.image) == 5 else ()
        shaped = transformed.reshape(ELEMENTS, ELEMENTS, *depth, *transformed.shape[-2:])
        return np.ascontiguousarray(shaped, "int16" if self.integer else "float32")

    def is_exact(self, weight: np.ndarray) -> bool:
        """Return whether the last shift overflows for no image of integers."""
        low, high = np.iinfo(self.dtype).min, np.iinfo(self.dtype).max
        taps = weight.reshape(weight.shape[0], -1).astype(np.int64)
        above, below = taps.clip(min=0).sum(1), taps.clip(max=0).sum(1)
        largest = max((above * high + below * low).max(), -(above * low + below * high).min())
        return bool(largest << _SHIFT < 2**31)


def _finish(sums: Transform, operator: Operator) -> Transform:
    """Return the inverse transform with a convolution's epilogue; integers are divided first."""
    accumulator = Node(ACC)
    if sums.is_integer:
        inverse = pow(_FACTOR**2 >> _SHIFT, -1, 2**32)
        product = Node("multiply", (accumulator, Node("number", value=inverse)))
        accumulator = Node("shift", (product, Node("number", value=_SHIFT)))
    own = operator.epilogue
    if own is None and not sums.is_integer:
        return sums
    names = (index.names[0] for index in operator.output.indices)
    places = dict(zip(names, sums.destination.indices, strict=True))

    def place(node: Node) -> Node:
        if node.name == ACC:
            return accumulator
        load = node.load and node.load.substitute(places)
        return replace(node, load=load, arguments=tuple(map(place, node.arguments)))

    expression = accumulator if own is None else place(own.expression)
    epilogue = Epilogue(expression, None if own is None else own.dtype)
    tensor = replace(operator.result, shape=sums.destination.tensor.shape)
    destination = replace(sums.destination, tensor=tensor)
    return replace(sums, destination=destination, epilogue=epilogue)
