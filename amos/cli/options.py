"""Options that commands share, and the operator and the intrinsic that they describe."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import amos
from amos.errors import OperatorError

if TYPE_CHECKING:
    from amos.intrinsics import Intrinsic
    from amos.ir import Operator

OperatorText = Annotated[
    str,
    typer.Argument(
        metavar="OPERATOR",
        help="A name (conv2d), a layer (resnet18:C5), or the text itself "
        "('out[i,j] += a[i,k] * b[k,j]').",
    ),
]
IntrinsicName = Annotated[
    str | None,
    typer.Argument(
        metavar="INTRINSIC",
        help="A name that `amos intrinsics list` shows, or a TOML file; by default that of the "
        "last --intrinsic.",
    ),
]
IntrinsicNames = Annotated[
    str | None,
    typer.Argument(
        metavar="INTRINSIC",
        help="A name that `amos intrinsics list` shows, several with commas between them, a "
        "family, or a TOML file; by default all that the machine has.",
    ),
]
IntrinsicFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--intrinsic", metavar="FILE", help="Describe an intrinsic in TOML; repeat for more."
    ),
]
MachineName = Annotated[
    str,
    typer.Option(metavar="NAME", help="A name that `amos machines list` shows, or a TOML file."),
]
Extents = Annotated[
    list[str] | None, typer.Option(metavar="NAME=SIZE,...", help="Extents of iterations.")
]
Dtypes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[TENSOR=]DTYPE,...",
        help="dtype of all (f16, u8s8), or of single tensors (image=u8,weight=s8).",
    ),
]
TensorDtypes = Annotated[
    list[str] | None, typer.Option("--dtype", metavar="TENSOR=DTYPE,...", help="dtypes of tensors.")
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(metavar="TENSOR=SIZES", help="Shape of a tensor: image=1,56,56,64."),
]
Layout = Annotated[
    str | None, typer.Option(metavar="NAME", help="Layout of a library operator: NHWC.")
]
Constants = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TENSOR",
        help="Input that stays the same from call to call and may be packed ahead; repeat for "
        "more, 'none' for none. By default those named weight….",
    ),
]
EpilogueText = Annotated[
    str | None,
    typer.Option(
        metavar="EXPRESSION",
        help="What is stored of a sum: 'u8(relu((acc + bias[k]) * scale[k]))'. Tensors are f32 "
        "unless --dtype says so.",
    ),
]
PrologueTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--prologue",
        metavar="SOURCE=EXPRESSION",
        help="What a source is computed of: 'image = relu(x[n,c,h,w] * scale[c])', or "
        "'image[n,c,h,w] = …' to name its dimensions; repeat for other sources.",
    ),
]
OutputText = Annotated[
    str | None,
    typer.Option(
        "--output",
        metavar="ACCESS",
        help="Where results are stored instead: 'y[n, p*28 + q, k]'; its shape, if it is larger, "
        "with --shape.",
    ),
]
ResultTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--result",
        metavar="RESULT",
        help="One more result of the same sums, 'f[n,k] = f32(acc)', or a reduction of them, "
        "'top[n] max= acc', min= or +=; repeat for more.",
    ),
]
RuleName = Literal["paper", "access", "gather"]
Rule = Annotated[RuleName, typer.Option(help="What counts as a valid matching.")]
Commute = Annotated[
    bool, typer.Option("--commute", help="Also try the sources in other orders where allowed.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Csv = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", help="Also write the rows to a file.")
]
Limit = Annotated[int | None, typer.Option(min=0, metavar="N", help="List at most N rows.")]
Fix = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Give a schedule variable a value (tile.p=7, parallel=2); repeat for more. "
        "Dots may be written as underscores.",
    ),
]

_WHOLE = re.compile(r"[+-]?\d+")
_NEXT_DTYPE = re.compile(r",(?=\s*\w+\s*=)")

# How explore searches, within which limits, and where it measures.
Trials = Annotated[
    int | None, typer.Option(help="Candidates to measure; by default 64, of few schedules 16.")
]
Seed = Annotated[int, typer.Option(help="Seed of the random generator.")]
MethodName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Search method: ga, cga, cga1, sa, random, ga_plain, ga_sr, ga_sat, ga_mo, "
        "exhaustive.",
    ),
]
RecordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Keep every trial in this SQLite file, and go on from what is there."
    ),
]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds that one candidate may take.")]
MemoryLimit = Annotated[
    int | None,
    typer.Option("--memory-limit", metavar="MIB", min=16, help="Memory of one candidate."),
]
TimeLimit = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Begin no trial after that long.")
]
FlushCache = Annotated[bool, typer.Option("--flush-cache", help="Time each run with cold caches.")]
ExecutorAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Measure on a Dask cluster, tcp://HOST:PORT, on a board, rpc://HOST:PORT/KEY, or "
        "for a described GPU on the one here, gpu; model measures nothing.",
    ),
]
Implementation = Annotated[
    str | None, typer.Option(metavar="KIND", help="native or generic; native where the CPU can.")
]
TilingName = Annotated[
    str, typer.Option(metavar="NAME", help="hardware, divisors of loops, or few schedules.")
]
Stagnation = Annotated[int | None, typer.Option(metavar="N", help="End after N idle trials.")]
Epsilon = Annotated[
    float, typer.Option(metavar="SHARE", help="Share of candidates drawn by chance.")
]
ExportFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write the best candidates as CUDA kernels, for a GPU."),
]
Top = Annotated[int, typer.Option(min=1, help="How many, with --export.")]


def load_intrinsics(files: Iterable[Path] | None, name: str | None = None) -> list[Intrinsic]:
    """Register the intrinsics of ``--intrinsic`` for this run, and of a file in a name's place."""
    own = [Path(name)] if name is not None and name.endswith(".toml") else []
    return [amos.intrinsics.load(file) for file in [*(files or ()), *own]]


def read_intrinsic(name: str | None, files: Iterable[Path] | None) -> Intrinsic:
    """Read the intrinsic that a command's arguments name.

    Raises:
        AmosError: a file is not well formed, or there is no such intrinsic.
        typer.BadParameter: neither a name nor a file is given.
    """
    described = load_intrinsics(files, name)
    if name is not None and not name.endswith(".toml"):
        return amos.intrinsics.get(name)
    if not described:
        raise typer.BadParameter(
            "name one, or describe one with --intrinsic FILE", param_hint="INTRINSIC"
        )
    return described[-1]


def read_intrinsics(
    name: str | None, files: Iterable[Path] | None
) -> Intrinsic | str | list[str] | None:
    """Read a command's intrinsics: one, several, a family, ``None`` for all."""
    described = load_intrinsics(files, name)
    if name is None or name.endswith(".toml"):
        return described[-1] if described else None
    return name.split(",") if "," in name else name


def read_operator(
    operator: OperatorText,
    extent: Extents = None,
    dtype: Dtypes = None,
    shape: Shapes = None,
    layout: Layout = None,
    constant: Constants = None,
    prologue: PrologueTexts = None,
    epilogue: EpilogueText = None,
    output: OutputText = None,
    result: ResultTexts = None,
) -> Operator:
    """Read the operator that a command's arguments describe.

    Raises:
        AmosError: there is no such operator, or the parts do not fit together.
        typer.BadParameter: an option is not of the form that its help shows.
    """
    from amos.operators.lookup import read_pair, read_shapes

    common: str | None = None
    single: dict[str, str] = {}
    for item in _split_dtypes(dtype):
        if "=" in item:
            with _option("--dtype"):
                single.update([read_pair(item, "TENSOR=DTYPE")])
        else:
            common = item
    with _option("--shape"):
        sizes = read_shapes(shape or ())
    before = [_prologue(text) for text in prologue or ()]
    after = [text for text in (epilogue, output, *(result or ())) if text is not None]
    stored = _extra_tensors(before, after)
    op = amos.operators.resolve(
        operator,
        extents=read_extents(extent),
        dtype=common,
        dtypes={name: kind for name, kind in single.items() if name not in stored},
        shapes={name: size for name, size in sizes.items() if name not in stored},
        layout=layout,
    )
    if constant is not None:
        op = op.with_constants(() if constant == ["none"] else constant)
    if output is not None:
        op = op.with_output(output, _select_types(output, stored, {}, sizes)[1])
    for source, expression in before:
        op = op.with_prologue(source, expression, *_select_types(expression, stored, single, sizes))
    if epilogue is not None:
        op = op.with_epilogue(epilogue, *_select_types(epilogue, stored, single, sizes))
    for text in result or ():
        op = op.with_result(text, *_select_types(text, stored, single, sizes))
    return op


def takes_operator(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command on an operator, given by OPERATOR and the options of that operator.

    These are the options of :func:`read_operator`, the same for every such command.
    """
    (_, *own), (first, *described) = _parameters(command), _parameters(read_operator)
    names = [parameter.name for parameter in (first, *described)]

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        op = read_operator(**{name: arguments.pop(name) for name in names})
        command(op, **arguments)

    run.__signature__ = inspect.Signature([first, *own, *described])  # type: ignore[attr-defined]
    run.__annotations__ = {}  # they are in the signature
    return run


def _parameters(function: Callable[..., Any]) -> Collection[inspect.Parameter]:
    """Return parameters with resolved annotations, except the class of operators."""
    signature = inspect.signature(function, locals={"Operator": object}, eval_str=True)
    return signature.parameters.values()


def _prologue(text: str) -> tuple[str, str]:
    """Split ``--prologue`` into source and expression."""
    source, sign, expression = text.partition("=")
    if not sign:
        raise typer.BadParameter(
            f"expected SOURCE=EXPRESSION, got {text!r}", param_hint="--prologue"
        )
    return source, expression.strip()


def _extra_tensors(prologues: Iterable[tuple[str, str]], expressions: Iterable[str]) -> set[str]:
    """Return the tensors that only expressions read, without the sources of prologues."""
    from amos.ir.expression_parser import tensors_in

    sources, texts = zip(*prologues, strict=True) if prologues else ((), ())
    read = {name for text in (*texts, *expressions) for name in tensors_in(text)}
    return read - {source.partition("[")[0].strip() for source in sources}


def _select_types(
    text: str,
    stored: Collection[str],
    dtypes: Mapping[str, str],
    shapes: Mapping[str, Sequence[int]],
) -> tuple[dict[str, str], dict[str, Sequence[int]]]:
    """Select the dtypes and shapes of an expression's tensors that no statement reads."""
    from amos.ir.expression_parser import tensors_in

    names = [name for name in tensors_in(text) if name in stored]
    return (
        {name: dtypes[name] for name in names if name in dtypes},
        {name: shapes[name] for name in names if name in shapes},
    )


def read_extents(items: Iterable[str] | None) -> dict[str, int]:
    """Read the extents of ``--extent``; raise typer.BadParameter if an option is not NAME=SIZE."""
    from amos.operators import lookup

    with _option("--extent"):
        return lookup.read_extents(items or ())


def read_dtypes(items: Iterable[str] | None) -> dict[str, str]:
    """Read the dtypes of ``--dtype`` by tensor."""
    from amos.operators.lookup import read_pair

    with _option("--dtype"):
        return dict(read_pair(item, "TENSOR=DTYPE") for item in _split_dtypes(items))


def _split_dtypes(items: Iterable[str] | None) -> list[str]:
    """Split lists of dtypes; commas of ranges, as in ``s8 in [-64, 64]``, separate nothing."""
    return [each.strip() for item in items or () for each in _NEXT_DTYPE.split(item)]


def read_fixes(items: Iterable[str] | None) -> tuple[tuple[str, int | str], ...]:
    """Read names and values of ``--fix``, in the order given."""
    from amos.operators.lookup import read_pair

    with _option("--fix"):
        pairs = [read_pair(item, "NAME=VALUE") for item in items or ()]
    return tuple((name, int(value) if _WHOLE.fullmatch(value) else value) for name, value in pairs)


@contextmanager
def _option(name: str) -> Iterator[None]:
    """Turn an error in an option's text into one that names the option."""
    try:
        yield
    except OperatorError as error:
        raise typer.BadParameter(str(error), param_hint=name) from None
