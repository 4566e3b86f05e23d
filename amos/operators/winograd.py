"""Winograd's convolution: 3×3 windows on tiles of 4×4 results, by a quarter of the products.

An image is cut into overlapping tiles of 6×6 elements, one for each 4×4 results (Lavin and
Gray, *Fast Algorithms for Convolutional Neural Networks*, 2016, F(4×4, 3×3)). With ``d`` a tile
and ``g`` a window, the results are ``Aᵀ((G g Gᵀ) ⊙ (Bᵀ d B))A``: 36 products for 16 results,
where the definition takes 144. Summed over channels, the products at each of the 36 positions
are a matrix product, so the instruction computes one batched product.

*In floats* sums round differently, by two to four times as much as those of the definition.

*In integers* nothing rounds. ``Bᵀ`` has whole numbers, and of bytes it makes integers of 16 bits.
The rows of ``G`` are multiplied by their divisors, so that they have whole numbers too;
then ``Aᵀ`` can be chosen so that a result at (i, j) comes out times ``DIVISORS[i] * DIVISORS[j]``.
All of that holds modulo 2**32, where division by an odd number is a product with its inverse,
and division by a power of two a shift, of a result that :meth:`Winograd.is_exact` bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from amos.ir import Operator

#: Results along one side of a tile, and elements of the image that they depend on.
RESULTS, ELEMENTS = 4, 6
#: Points at which polynomials are multiplied, besides 0 and infinity, each with its negative: in
#: floats those that halve the errors of 1 and 2, which keep integers whole.
_POINTS = {False: (5 / 8, 3 / 2), True: (1, 2)}
#: Factor of integer results along each side.
DIVISORS = (24, 12, 6, 6)


@dataclass(frozen=True, eq=False)
class _Matrices:
    """The matrices of two points and their negatives.

    Attributes:
        image: ``Bᵀ``.
        windows: ``G`` without its denominators.
        scales: the denominators, one for each row.
        results: ``Aᵀ``.
    """

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
    True: (
        _PAIRS,
        _MATRICES[True].results * np.array(DIVISORS)[:, None] / _MATRICES[True].scales @ _APART,
    ),
}
#: Most bits by which a result is shifted, and that it needs before the shift.
_SHIFT = 6
#: Share of excess rows that the busiest core may have.
_IMBALANCE = 1 / 16


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
        bands: number of bands of equally many rows of tiles, so that caches hold the intermediate
            tensors. The last one begins earlier if they do not divide the rows.
        cores: number of cores, each of which computes bands of single images by itself; 1 if all
            cores compute each band, of all images.
    """

    image: tuple[int, ...]
    result: tuple[int, ...]
    padding: tuple[int, ...]
    depth: int = 1
    dtype: str = "float32"
    bands: int = 1
    cores: int = 1

    @property
    def integer(self) -> bool:
        """Whether it is computed in integers."""
        return self.dtype != "float32"

    @property
    def kinds(self) -> tuple[str, str]:
        """dtypes of the factors and of the sums."""
        return ("int16", "int32") if self.integer else ("float32", "float32")

    @property
    def channels(self) -> int:
        """Channels of the image."""
        return self.image[-1]

    @property
    def features(self) -> int:
        """Channels of the result."""
        return self.result[-1]

    @property
    def rows(self) -> int:
        """Number of rows of tiles in an image."""
        return -(-self.result[-3] // RESULTS)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tiles in a band of one image."""
        return -(-self.rows // self.bands), -(-self.result[-2] // RESULTS)

    @property
    def images(self) -> int:
        """Number of images of a band."""
        return self.image[0] if self.cores == 1 else 1

    @property
    def count(self) -> int:
        """Number of bands of all images."""
        return self.bands * self.image[0] // self.images

    @property
    def rounds(self) -> int:
        """Number of bands that the busiest core computes, one after the other."""
        return -(-self.count // self.cores)

    @property
    def factor(self) -> tuple[int, int, int]:
        """Extents of a transformed band: positions in a tile, tiles, channels."""
        return ELEMENTS**2, self.images * prod((*self.image[1:-3], *self.grid)), self.channels

    @property
    def sums(self) -> tuple[int, int, int]:
        """Extents of the product of a band: positions in a tile, tiles, features."""
        return ELEMENTS**2, self.images * prod((*self.result[1:-3], *self.grid)), self.features

    @property
    def bytes(self) -> int:
        """Bytes of the transformed band and its product together."""
        sizes = zip((self.factor, self.sums), self.kinds, strict=True)
        return sum(prod(shape) * np.dtype(kind).itemsize for shape, kind in sizes)

    def with_bands(self, size: int) -> Winograd:
        """Split into bands of at most ``size`` bytes, or into single rows.

        Takes the fewest bands that leave the busiest core few more rows than needed.

        """
        forms = [replace(self, bands=n) for n in range(1, self.rows + 1)]
        fitting = [each for each in forms if each.bytes <= size] or forms[-1:]
        most = (1 + _IMBALANCE) * min(each.rounds * each.grid[0] for each in fitting)
        return next(each for each in fitting if each.rounds * each.grid[0] <= most)

    @property
    def operator(self) -> Operator:
        """The product of a band: of a transformed image ``x`` and windows ``weight``.

        >>> print(Winograd((1, 8, 8, 16), (1, 8, 8, 32), (1, 1)).operator.compute)
        out[b, t, k] += x[b, t, c] * weight[b, c, k]
        """
        extents = dict(b=ELEMENTS**2, c=self.channels, k=self.features)
        text, positions = "out[b,t,k] += x[b,t,c] * weight[b,c,k]", {"t": self.factor[1]}
        if len(self.image) == 5:
            text = f"out[b,n,d,t,k] += {self._in_depth} * weight[b,s,c,k]"
            positions = dict(n=self.images, d=self.result[1], t=prod(self.grid), s=self.depth)
        kinds = dict(zip(("x", "weight", "out"), (self.kinds[0], *self.kinds), strict=True))
        of_x = (self.image[1] if name == "d" else n for name, n in positions.items() if name != "s")
        return Operator.parse(
            text,
            extents | positions,
            kinds,
            name="winograd",
            shapes={"x": (ELEMENTS**2, *of_x, self.channels)},
            constants=["weight"],
        )

    @property
    def _in_depth(self) -> str:
        before = self.padding[0]
        beyond = self.result[1] + self.depth - 1 - before > self.image[1]
        read = f"x[b,n,d+s-{before},t,c]" if before else "x[b,n,d+s,t,c]"
        return f"pad({read})" if before or beyond else read

    def windows(self, weight: np.ndarray) -> np.ndarray:
        """Transform the windows to the form that the product reads.

        Args:
            weight: ``(k, c, 3, 3)`` or ``(k, c, depth, 3, 3)``.

        >>> form = Winograd((1, 8, 8, 16), (1, 8, 8, 32), (1, 1), dtype="uint8")
        >>> form.windows(np.ones((32, 16, 3, 3), np.int8))[:, 0, 0].reshape(6, 6)[:2]
        array([[ 1,  3,  1,  7,  3,  1],
               [ 3,  9,  3, 21,  9,  3]], dtype=int16)
        """
        matrices = _MATRICES[self.integer]
        matrix = matrices.windows if self.integer else matrices.windows / matrices.scales[:, None]
        taps = weight.reshape(*weight.shape[:2], -1, 3, 3).astype(matrix.dtype)
        transformed = np.einsum("ir,kcdrs,js->ijdck", matrix, taps, matrix, optimize=True)
        axes = (self.depth,) if len(self.image) == 5 else ()
        shaped = transformed.reshape(ELEMENTS**2, *axes, *transformed.shape[-2:])
        return np.asarray(shaped, self.kinds[0])

    def is_exact(self, weight: np.ndarray) -> bool:
        """Return whether the last shift overflows for no image of integers."""
        low, high = np.iinfo(self.dtype).min, np.iinfo(self.dtype).max
        taps = weight.reshape(weight.shape[0], -1).astype(np.int64)
        above, below = taps.clip(min=0).sum(1), taps.clip(max=0).sum(1)
        largest = max((above * high + below * low).max(), -(above * low + below * high).min())
        return bool(largest << _SHIFT < 2**31)
