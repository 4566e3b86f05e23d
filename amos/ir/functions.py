"""Functions of the expression language that are defined in the language itself.

Results are therefore the same everywhere: a definition is a fixed sequence of operations, each
of which rounds once. Arguments are computed once, whatever their number of uses. Names that
begin with an underscore are for other definitions.

The coefficients are minimax fits of the relative error: of ``exp`` between -ln(2)/2 and
ln(2)/2, where the argument is split as usual (Cody and Waite, 1980), and of odd rational
functions up to where ``erf`` and ``tanh`` are 1 to half an ulp; a little further these are
more than 1, to which they are limited.
"""

from __future__ import annotations

#: Of integers, or of floats if any argument is one.
DEFINITIONS = (
    "relu(x) = max(x, 0)",
    # A comparison with NaN gives the second argument.
    "clip(x, low, high) = _less(high, _greater(low, x))",
    "clamp(x, low, high) = _less(high, _greater(low, x))",
    "abs(x) = _greater(x, 0 - x)",
)
#: Of floats, to which integers are converted.
OF_FLOATS = (
    "rsqrt(x) = 1 / sqrt(x)",
    "times(x, high, low) = fma(x, high, x * low)",
    "hardsigmoid(x) = clip(x + 3, 0, 6) / 6",
    "hardswish(x) = x * hardsigmoid(x)",
    "_scaled(x, n, h) = x * _pow2(h) * _pow2(n - h)",
    "_exp_near(r) = fma(fma(fma(fma(fma(fma(0.0013814465, r, 0.008368781), r, 0.041668393), "
    "r, 0.1666652), r, 0.49999994), r, 1), r, 1)",
    "_exp_split(x, n) = _scaled(_exp_near(fma(n, 1.9046542e-9, fma(n, -0.6931472, x))), n, "
    "round(n * 0.5))",
    "_exp_within(x) = _exp_split(x, round(x * 1.442695))",
    "exp(x) = _exp_within(clip(x, -104, 89))",
    # For arguments up to 0: never infinite, and no smaller than the smallest normal number.
    "_exp_whole(x, n) = _exp_near(fma(n, 1.9046542e-9, fma(n, -0.6931472, x))) * _pow2(n)",
    "_exp_low(x) = _exp_whole(x, round(x * 1.442695))",
    "_exp_negative(x) = _exp_low(_greater(-87.33654, x))",
    # Of exponentials by their sum, which is at least 1 unless a row has no finite number.
    "_share(x, total) = x / total",
    "_share_or_nan(x, total) = x / (total + sqrt(_less(total - 0.5, 0)))",
    "_share_or_zero(x, total) = _choose(total, 0.5, x / total, 0)",
    # Of a number between the roots of 1/2 and 2, by the series of artanh; then the exponent's.
    "_log_series(s, t) = fma(s * t, fma(fma(fma(fma(0.18181819, t, 0.22222222), t, 0.2857143), t, "
    "0.4), t, 0.6666667), s * 2)",
    "_log_near(s) = _log_series(s, s * s)",
    "_log_split(m, e) = fma(e, 0.6931472, fma(e, -1.9046542e-9, _log_near((m - 1) / (m + 1))))",
    "_log_at(x, e) = _log_split(x * 0.5 * _pow2(0 - e), e + 1)",
    "_log_finite(x) = _log_at(x, _less(_exponent(x * 0.70710677), 126))",
    # Beyond the largest float there is infinity; of zero and below a root decides.
    "_log_within(x) = _choose(x, 3.4028234e38, x, _log_finite(_greater(x, 1.1754944e-38)))",
    "log(x) = _choose(x, 0, _log_within(x), 0 - 1 / sqrt(x + 0))",
    # Of -x up to where two to the power of n is infinite, which gives 0.
    "sigmoid(x) = 1 / (1 + _exp_low(clip(0 - x, -87.33654, 89)))",
    "silu(x) = x * sigmoid(x)",
    "_tanh_ratio(x, s) = x * fma(fma(fma(fma(1.3335574e-08, s, 2.0595358e-05), s, 0.0034947563), "
    "s, 0.13380326), s, 1) / fma(fma(fma(fma(7.768761e-07, s, 0.0003284273), s, 0.025873821), "
    "s, 0.4671364), s, 1)",
    "_tanh_within(x) = _tanh_ratio(x, x * x)",
    "tanh(x) = clip(_tanh_within(clip(x, -9.75, 9.75)), -1, 1)",
    "_erf_ratio(x, s) = x * fma(fma(fma(fma(fma(2.041906e-06, s, 0.00028478814), s, 0.0037791613), "
    "s, 0.05278887), s, 0.19077489), s, 1.1283791) / fma(fma(fma(fma(fma(3.8002326e-05, s, "
    "0.0011650845), s, 0.014996549), s, 0.11425362), s, 0.50240254), s, 1)",
    "_erf_within(x) = _erf_ratio(x, x * x)",
    "erf(x) = clip(_erf_within(clip(x, -4.15, 4.15)), -1, 1)",
    "gelu(x) = 0.5 * x * (1 + erf(x * 0.70710677))",
    "gelu_tanh(x) = 0.5 * x * (1 + tanh(x * fma(x * x, 0.035677407, 0.7978846)))",
)
