"""The registry, the builders' parameters, and what the builders compute."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest

from amos import operators
from amos.errors import OperatorError, UnknownNameError
from amos.ir import Operator
from amos.mapping import enumerate_mappings
from amos.operators import registry
from amos.validate import evaluate

EVERY = operators.names()


def execute(op: Operator, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The meaning of an operator, one scalar statement after another."""
    out = np.zeros(op.output.tensor.shape)
    for point in np.ndindex(*(it.extent for it in op.iterations)):
        values = dict(zip((it.name for it in op.iterations), point, strict=True))
        term = 1.0
        for load in op.sources:
            at = tuple(index.evaluate(values) for index in load.indices)
            in_bounds = all(0 <= i < n for i, n in zip(at, load.tensor.shape, strict=True))
            term *= arrays[load.tensor.name][at] if in_bounds else 0.0
        out[tuple(index.evaluate(values) for index in op.output.indices)] += term
    return out


def random(op: Operator) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {t.name: rng.integers(-4, 5, t.shape).astype(float) for t in op.inputs}


@pytest.mark.parametrize("name", EVERY)
def test_every_operator_says_what_it_builds(name: str) -> None:
    entry = operators.builder(name)
    assert getattr(operators, name) is entry is operators.builder(entry.code)
    assert name in dir(operators)
    assert entry.description in str(entry)
    op = operators.get(name)
    assert op.name == name
    assert all(load.tensor.dtype is None for load in op.operands)
    typed = operators.get(name, dtype="u8s8", name="mine")
    alone = len(typed.sources) == 1 and not typed.compute.sums_products
    kinds = ["uint8", "int8"][: len(typed.sources)] + ["uint8" if alone else "int32"]
    assert [t.tensor.dtype for t in typed.operands] == kinds
    assert typed.name == "mine"
    parameters = inspect.signature(entry).parameters
    assert {key: p.default for key, p in parameters.items()} == entry.defaults
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    text = str(entry.__doc__).split("``")[1]
    windows = "dilation" in entry.defaults and name != "transposed_conv2d"
    documented = entry(**({"stride": 1, "padding": 0} if windows else {}))
    shapes = {load.tensor.name: load.tensor.shape for load in documented.operands}
    assert Operator.parse(text, documented.extents, name=name, shapes=shapes) == documented


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_pooling_is_that_of_numpy(layout: str) -> None:
    rng = np.random.default_rng(0)
    sizes = dict(n=2, c=3, r=3, s=2, stride=2, padding=1, h=7, w=6)
    image = rng.integers(-99, -1, (2, 3, 7, 6)).astype(np.int8)
    axes = ["NCHW".index(letter) for letter in layout]
    inputs = {"image": np.ascontiguousarray(image.transpose(axes))}
    for name, fill, reduced in (("max_pool2d", -128, np.max), ("avg_pool2d", 0, np.sum)):
        op = operators.get(name, **sizes, layout=layout, dtype="s8")
        padded = np.pad(image, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=fill)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), (2, 3))[:, :, ::2, ::2]
        want = reduced(windows.astype(np.int64), axis=(-2, -1)).transpose(axes)
        got = evaluate(op, inputs)
        assert got.dtype == (np.int8 if name == "max_pool2d" else np.int32)
        np.testing.assert_array_equal(got, want)


def test_padding_of_a_maximum_fits_its_dtype() -> None:
    assert operators.get("max_pool2d", dtype="u8").sources[0].padding == 0
    assert operators.get("max_pool2d", dtype="s8").sources[0].padding == -128
    assert operators.get("max_pool2d").sources[0].padding == -math.inf
    mapping = enumerate_mappings(operators.get("max_pool2d"), "avx2_vpmaxub_acc_m32_u8_u8")[0]
    assert mapping.operator.sources[0].padding == 0


def test_an_unknown_attribute_is_none() -> None:
    with pytest.raises(AttributeError, match="no attribute 'conv9d'"):
        operators.conv9d  # noqa: B018


@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        ("conv1d", "NCH NHC"),
        ("conv3d", "NCDHW NDHWC"),
        ("grouped_conv2d", "NGCHW NHWGC"),
        *((f"{kind}conv2d", "NCHW NHWC") for kind in ("", "dilated_", "depthwise_", "batched_")),
    ],
)
def test_layouts_hold_the_same_operator_in_the_order_of_their_letters(
    name: str, layouts: str
) -> None:
    arguments: dict[str, object] = {
        "stride": 2,
        "dilation": 3,
        "padding": 1,
        "h": 65,
        "dtype": "u8s8",
    }
    ops = [operators.get(name, **arguments, layout=layout) for layout in layouts.split()]
    for op, layout in zip(ops, layouts.split(), strict=True):
        assert op.extents["p"] == 31
        image = {"C": "c", "D": "d*2 + t*3 - 1", "H": "p*2 + r*3 - 1", "W": "q*2 + s*3 - 1"}
        read = [image.get(letter, letter.lower()) for letter in layout]
        assert str(op.sources[0]) == f"pad(image[{', '.join(read)}])"
        out = {"C": "c, k" if name == "depthwise_conv2d" else "k", "D": "d", "H": "p", "W": "q"}
        written = [out.get(letter, letter.lower()) for letter in layout]
        assert str(op.output) == f"out[{', '.join(written)}]"
        sizes = dict(zip(map(str, op.sources[0].indices), op.inputs[0].shape, strict=True))
        assert sizes[image["H"]] == 65
        assert op.sources[1] == ops[0].sources[1]


def test_parameters_override_the_default_shape() -> None:
    assert operators.get("conv2d", n=16).extents == operators.conv2d().extents | {"n": 16}
    assert operators.get("conv2d", n=np.int64(2)).extents["n"] == 2


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"batch": 2}, "has no parameter 'batch'"),
        ({"strid": 2}, "did you mean 'stride'"),
        ({"n": 0}, "expected a positive integer, got 0"),
        ({"n": -1}, "expected a positive integer, got -1"),
        ({"n": 1.5}, "expected a positive integer, got 1.5"),
        ({"n": True}, "expected a positive integer, got True"),
        ({"n": None}, "expected a positive integer, got None"),
        ({"n": "4"}, "expected a positive integer, got '4'"),
        ({"stride": 0}, "expected a positive integer, got 0"),
        ({"padding": -1}, "not negative, got -1"),
        ({"layout": "HWCN"}, "expected NCHW or NHWC"),
        ({"name": 3}, "expected a text, got 3"),
        ({"dtype": "f17"}, "unknown dtype 'f17'"),
        ({"padding": 40}, "leaves no image along 'p'"),
        ({"h": 57, "p": 56}, "gives 55 outputs, not 56"),
        ({"h": 2}, "gives 0 outputs, expected at least one"),
        ({"h": 2, "p": 1}, "gives 0 outputs, not 1"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(OperatorError) as caught:
        operators.get("conv2d", **parameters)
    assert message in str(caught.value)


_WITH_IMAGES = [n for n in operators.names() if operators.builder(n).defaults.get("h", 0) is None]


@pytest.mark.parametrize("name", _WITH_IMAGES)
def test_outputs_follow_from_the_image(name: str) -> None:
    defaults = operators.builder(name).defaults
    sizes = {size: 40 for size in ("h", "w", "depth") if defaults.get(size, 0) is None}
    op = operators.get(name, **sizes, stride=2, padding=1)
    outputs = {"h": ("p", "r"), "w": ("q", "s"), "depth": ("d", "t")}
    for size in sizes:
        output, kernel = outputs[size]
        reach = int(defaults["dilation"] or 1) * (op.extents[kernel] - 1) + 1
        assert op.extents[output] == (40 + 2 - reach) // 2 + 1


def test_outputs_of_a_layer_follow_from_another_image() -> None:
    assert operators.resolve("resnet18:C5", {"h": 64}).extents["p"] == 64
    assert operators.resolve("resnet18:C5", {"h": 64}).extents["q"] == 28


def test_unknown_operator_suggests_a_name() -> None:
    with pytest.raises(UnknownNameError, match="unknown operator 'convd2': did you mean 'conv"):
        operators.get("convd2")


def test_names_and_codes_are_found_in_any_case() -> None:
    for word in ("gemm", "GEMM", "GMM", "gmm"):
        assert operators.builder(word) is operators.gemm


def test_positional_parameters_are_refused() -> None:
    with pytest.raises(OperatorError, match="by name"):
        operators.conv2d(1, 2)


def test_a_name_or_code_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_BUILDERS", dict(registry._BUILDERS))

    def gemm2() -> Operator:
        return operators.gemm()

    assert operators.register("GM2", "another product")(gemm2)().name == "gemm"
    with pytest.raises(OperatorError, match="is registered already"):
        operators.register("GM3", "the same name")(gemm2)
    gemm2.__name__ = "gemm3"
    with pytest.raises(OperatorError, match="is registered already"):
        operators.register("GMM", "the same code")(gemm2)


def test_one_dtype_for_a_tensor_that_is_read_twice() -> None:
    op = Operator.parse("o[i] += a[i] * a[i]", {"i": 3})
    assert registry.apply_dtype(op, "f16").inputs[0].dtype == "float16"
    with pytest.raises(OperatorError, match="gives tensor 'a' both uint8 and int8"):
        registry.apply_dtype(op, "u8s8")


def test_loop_order_follows_the_layout() -> None:
    small = {"n": 2, "c": 2, "k": 2, "p": 2, "q": 2}
    nchw, nhwc = (operators.get("conv2d", layout=layout, **small) for layout in ("NCHW", "NHWC"))
    assert [it.name for it in nchw.iterations] == list("nkpqcrs")
    assert [it.name for it in nhwc.iterations] == list("npqkrsc")


def convolve(image: np.ndarray, weight: np.ndarray, stride: int, dilation: int) -> np.ndarray:
    """image[n,c,h,w], weight[k,c,r,s] -> out[n,k,p,q], without padding."""
    r, s = ((size - 1) * dilation + 1 for size in weight.shape[2:])
    windows = np.lib.stride_tricks.sliding_window_view(image, (r, s), axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride, ::dilation, ::dilation]
    out: np.ndarray = np.einsum("ncpqrs,kcrs->nkpq", windows, weight)
    return out


@pytest.mark.parametrize(("stride", "dilation", "padding"), [(1, 1, 0), (2, 1, 1), (1, 2, 2)])
def test_convolution_is_the_textbooks(stride: int, dilation: int, padding: int) -> None:
    op = operators.conv2d(
        n=2, c=2, k=3, p=3, q=3, r=3, s=2, stride=stride, dilation=dilation, padding=padding
    )
    arrays = random(op)
    pads = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    expected = convolve(np.pad(arrays["image"], pads), arrays["weight"], stride, dilation)
    np.testing.assert_array_equal(execute(op, arrays), expected)


@pytest.mark.parametrize(
    ("r", "stride", "padding", "extra"), [(4, 2, 1, 0), (3, 2, 1, 1), (2, 2, 0, 0), (2, 3, 1, 1)]
)
def test_transposed_convolution_scatters_the_kernel(
    r: int, stride: int, padding: int, extra: int
) -> None:
    """Against the definition: every image element adds its kernel to the output."""
    h = 3
    p = (h - 1) * stride - 2 * padding + r + extra
    op = operators.transposed_conv2d(
        n=1, c=2, k=2, p=p, q=p, r=r, s=r, stride=stride, padding=padding
    )
    rng = np.random.default_rng(0)
    image = rng.integers(-4, 5, (1, 2, h, h)).astype(float)
    weight = rng.integers(-4, 5, (2, 2, r, r)).astype(float)
    full = np.zeros((1, 2, (h - 1) * stride + r + extra, (h - 1) * stride + r + extra))
    for y, x in np.ndindex(h, h):
        window = full[:, :, y * stride : y * stride + r, x * stride : x * stride + r]
        window += np.einsum("nc,ckrs->nkrs", image[:, :, y, x], weight)
    upsampled = np.zeros(op.inputs[0].shape)
    upsampled[:, :, ::stride, ::stride] = image
    inner = full[:, :, padding : padding + p, padding : padding + p]
    got = execute(op, {"upsampled": upsampled, "weight": weight})
    np.testing.assert_array_equal(got, inner)


@pytest.mark.parametrize(
    ("r", "s", "stride", "padding", "extra", "layout"),
    [
        (4, 4, 2, 1, 0, "NCHW"), (3, 3, 2, 1, 1, "NHWC"), (2, 2, 2, 0, 0, "NCHW"),
        (5, 5, 3, 1, 0, "NHWC"), (3, 5, 2, 0, 1, "NCHW"), (3, 3, 1, 1, 0, "NHWC"),
        (1, 1, 1, 0, 0, "NCHW"), (7, 7, 5, 2, 2, "NCHW"), (1, 1, 2, 0, 1, "NHWC"),
        (2, 2, 3, 1, 3, "NHWC"),
    ],
)  # fmt: skip
def test_phases_of_a_transposed_convolution_are_the_same_operator(
    r: int, s: int, stride: int, padding: int, extra: int, layout: str
) -> None:
    """Also where some phases have fewer taps than others, or none at all."""
    h = 3
    p, q = ((h - 1) * stride - 2 * padding + size + extra for size in (r, s))
    arguments = dict(
        n=1, c=2, k=2, p=p, q=q, r=r, s=s, stride=stride, padding=padding, layout=layout
    )
    whole, phases = (
        operators.get("transposed_conv2d", **arguments, form=f) for f in ("upsampled", "phases")
    )
    arrays = random(phases)
    upsampled = np.zeros(whole.inputs[0].shape)
    first = layout.index("H")
    upsampled[(slice(None),) * first + (slice(None, None, stride),) * 2] = arrays["image"]
    expected = execute(whole, {"upsampled": upsampled, "weight": arrays["weight"]})
    np.testing.assert_array_equal(execute(phases, arrays), expected)
    # No phase reads more taps than the longest one needs.
    taps = -(-(r + stride - 1) // stride) * -(-(s + stride - 1) // stride)
    assert phases.points <= whole.points * taps / (r * s)


def test_phases_that_differ_in_length_are_refused() -> None:
    with pytest.raises(OperatorError, match="5 outputs along 'q' are no multiple of the stride 2"):
        operators.transposed_conv2d(p=6, q=5, form="phases")
    with pytest.raises(OperatorError, match="unknown form 'zeros': expected 'upsampled' or"):
        operators.transposed_conv2d(form="zeros")


def test_transposed_convolution_refuses_what_no_image_gives() -> None:
    with pytest.raises(OperatorError, match="is not below the kernel's 4"):
        operators.transposed_conv2d(padding=4)
    with pytest.raises(OperatorError, match="no image gives 1 outputs along 'p'"):
        operators.transposed_conv2d(p=1)


def test_scan_mean_and_variance_mean_what_they_say() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 5))
    triangle = np.triu(np.ones((5, 5)))
    got = execute(operators.scan(n=3, k=5), {"data": x, "triangle": triangle})
    np.testing.assert_allclose(got, np.cumsum(x, axis=1))
    fifth = np.full(5, 1 / 5)
    got = execute(operators.mean(i=3, k=5), {"x": x, "coefficient": fifth})
    np.testing.assert_allclose(got, x.mean(axis=1))
    square = (x - x.mean(axis=1, keepdims=True)) ** 2
    got = execute(operators.variance(i=3, k=5), {"square": square, "coefficient": fifth})
    np.testing.assert_allclose(got, x.var(axis=1))


@pytest.mark.parametrize(("k", "block"), [(12, 3), (12, 12), (7, 1), (5, 5), (1, 1)])
def test_a_scan_by_blocks_is_the_scan(k: int, block: int) -> None:
    carry, within = operators.scan_by_blocks(n=3, k=k, block=block)
    assert within.epilogue is not None
    x = np.random.default_rng(0).integers(-9, 10, (3, k)).astype(float)
    before = (np.arange(k)[:, None] < np.arange(k // block) * block).astype(float)
    sums = execute(carry, {"data": x, "before": before})
    summed = execute(within, {"data": x, "triangle": np.triu(np.ones((block, block)))})
    # What the epilogue says: acc + carry[n,u].
    got = summed + np.repeat(sums, block, axis=1)
    np.testing.assert_array_equal(got, np.cumsum(x, axis=1))
    assert carry.points + within.points == 3 * k * (k // block + block)


def test_a_scan_by_blocks_needs_whole_blocks() -> None:
    with pytest.raises(OperatorError, match="7 elements are no multiple of the block 2"):
        operators.scan_by_blocks(n=2, k=7, block=2)


def test_attention_and_contraction_are_their_einsum() -> None:
    for name, spec in [
        ("attention_scores", "bhid,bhjd->bhij"),
        ("attention_values", "bhij,bhjd->bhid"),
    ]:
        op = operators.get(name, b=2, h=2, i=3, j=4, d=2)
        arrays = random(op)
        np.testing.assert_array_equal(execute(op, arrays), np.einsum(spec, *arrays.values()))
    op = operators.contraction(a=2, b=3, c=2, d=3, e=2, f=2)
    arrays = random(op)
    np.testing.assert_array_equal(
        execute(op, arrays), np.einsum("aebf,dfce->abcd", *arrays.values())
    )


WINDOWED = [
    name
    for name in EVERY
    if "padding" in operators.builder(name).defaults and name != "transposed_conv2d"
]


@pytest.mark.parametrize("name", WINDOWED)
def test_image_sizes_of_every_convolution(name: str) -> None:
    entry = operators.builder(name)
    shape: dict[str, int] = {key: 5 for key in "ncgkvijm" if key in entry.defaults}
    shape |= {key: 2 for key in "dpqtrs" if key in entry.defaults}
    shape |= {"stride": 2, "padding": 1, "dilation": 1}
    sizes = {key: 3 for key in ("h", "w", "depth") if key in entry.defaults}
    # Two outputs of a window of 2 at stride 2 read 4 elements, 2 of them padding.
    for arguments, size in (({}, 2), (sizes, 3)):
        image = operators.get(name, **shape, **arguments).inputs[0]
        assert sorted(image.shape)[: len(sizes)] == [size] * len(sizes)
