"""A compiled network as files: a library, its weights, and C++ that runs it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from amos._toolchain import load_tvm
from amos.codegen.c.compiler import compiler_command
from amos.codegen.tir.arrays import to_tensor
from amos.errors import NetworkError, checked_path
from amos.network.network import Port
from amos.network.silence import silent
from amos.network.weights import Weight, WeightFile

if TYPE_CHECKING:
    from amos.network.model import CompiledNetwork

_LIBRARY, _SAMPLE = "libnetwork.so", "sample"
#: Weights have their digest in their name, so that no library ever reads those of another one.
_WEIGHTS = "weights-{}.bin"
_DIGITS = 16
#: How folders of what is not complete begin; the number of the process follows.
_PARTIAL = ".amos-"
#: How the C++ of a process asks for the tile registers of AMX.
_ASK_FOR_TILES = (
    "  syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */);\n"
)
#: DLPack's kinds of elements by how dtypes begin.
_KINDS = {
    "float": "kDLFloat",
    "bfloat": "kDLBfloat",
    "int": "kDLInt",
    "uint": "kDLUInt",
    "bool": "kDLBool",
}


def export_network(models: Mapping[str, CompiledNetwork], folder: str | Path) -> tuple[Path, ...]:
    """See :meth:`CompiledNetwork.export <amos.network.model.CompiledNetwork.export>`.

    Args:
        models: functions of one executable, each by the folder of its C++ and sample.
        folder: where to.
    """
    target = checked_path("export", folder, NetworkError)
    try:
        target.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        partial = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{os.getpid()}-", dir=target))
    except OSError as error:
        raise NetworkError(f"export to {str(target)!r}: {error.strerror}") from error
    try:
        alone = [*models] == [""]
        if alone and compiler_command() is not None and not _has_cpp_compiler():
            _write_operator(models[""], partial)
            lacking = "no C++ compiler: only the files for onnxruntime were written"
            warnings.warn(lacking, stacklevel=3)
            return _moved(partial, target)
        weights = _write_library([*models.values()], partial)
        for name, model in models.items():
            (partial / name / _SAMPLE).mkdir(parents=True)
            _write_example(model, weights, partial / name, "/.." if name else "")
        if alone:
            _write_operator(models[""], partial)
        return _moved(partial, target)
    except OSError as error:
        raise NetworkError(f"export to {str(target)!r}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _has_cpp_compiler() -> bool:
    load_tvm()
    from tvm.support.cc import get_cc

    return bool(get_cc())


def _write_operator(model: CompiledNetwork, folder: Path) -> None:
    """Write what an application of onnxruntime loads, unless the network needs TVM to run."""
    from amos.network.external.library import MissingCompiler
    from amos.network.external.straight_line import OnlyInTvm
    from amos.network.external.whole import write_whole

    if find_spec("onnx") is None:
        return
    try:
        write_whole(model, folder)
    except (MissingCompiler, OnlyInTvm) as error:
        warnings.warn(f"no model for onnxruntime was written: {error}", stacklevel=4)


def _remove_leftovers(target: Path) -> None:
    """Remove what exports that were killed have left behind."""
    for path in target.glob(f"{_PARTIAL}*-*"):
        process = path.name.removeprefix(_PARTIAL).partition("-")[0]
        if process.isdigit() and not Path("/proc", process).exists():
            shutil.rmtree(path, ignore_errors=True)


def _moved(partial: Path, target: Path) -> tuple[Path, ...]:
    """Put what was written in its place, each file at once and the library last.

    Then nobody reads older weights.
    """
    written = sorted(path.relative_to(partial) for path in partial.rglob("*") if path.is_file())
    for path in sorted(written, key=lambda path: path.name == _LIBRARY):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial / path, target / path)
    digits = "[0-9a-f]" * _DIGITS
    stale = [*target.glob(_WEIGHTS.format(digits)), *target.glob(f"constants-{digits}.bin")]
    for path in stale:
        if path.relative_to(target) not in written:
            path.unlink()
    return tuple(target / path for path in written)


def _write_library(models: Sequence[CompiledNetwork], folder: Path) -> WeightFile:
    """Write a library of functions, and their weights, which are arguments behind the inputs.

    Inside the library they would be in memory four times while it is loaded.

    Raises:
        NetworkError: there is no C++ compiler, or it fails.
    """
    from amos.network.linking import linked

    weights = WeightFile(folder / "weights")
    executable = linked(models, weights)
    try:
        with tempfile.TemporaryDirectory(dir=folder) as objects, silent():
            executable.export_library(str(folder / _LIBRARY), workspace_dir=objects)
    except Exception as error:  # what a missing or failing compiler raises, TVM decides
        why = "".join(str(error).strip().splitlines()[-1:])
        why = why if _has_cpp_compiler() else "there is no C++ compiler on the PATH"
        raise NetworkError(f"{models[0].network.name}: no library was linked: {why}") from error
    weights.path = weights.path.rename(folder / _WEIGHTS.format(weights.digest[:_DIGITS]))
    return weights


def _write_example(
    model: CompiledNetwork, weights: WeightFile, folder: Path, to_library: str
) -> None:
    """Write C++ that runs a function of the library, a sample and a makefile."""
    from amos.network.model import random_arrays

    network, inputs = model.network, random_arrays(model.network)
    for what, arrays, ports in (
        ("input", inputs, network.inputs),
        ("output", model.outputs_of(inputs), network.outputs),
    ):
        for number, (array, port) in enumerate(zip(arrays, ports, strict=True)):
            bits = to_tensor(array, port.dtype).numpy()  # float32 stands for bfloat16 here
            (folder / _SAMPLE / f"{what}{number}.bin").write_bytes(bits.tobytes())
    tiles = any(kernel.tiled for kernel in model.kernels.values())
    text = _template("example.cpp.in").substitute(
        name=" ".join(network.name.split()),  # stands in a comment of one line
        library=f"{to_library}/{_LIBRARY}",
        weights_file=f"{to_library}/{weights.path.name}",
        function=model.function,
        inputs=",\n".join(map(_port, network.inputs)),
        weights=",\n".join(map(_weight, weights.arguments[model.function])),
        outputs=len(network.outputs),
        headers="#include <sys/syscall.h>\n#include <unistd.h>\n" if tiles else "",
        tiles=_ASK_FOR_TILES if tiles else "",
    )
    (folder / "example.cpp").write_text(text, encoding="utf-8")
    makefile = _template("Makefile.in").substitute(**_packages())
    (folder / "Makefile").write_text(makefile, encoding="utf-8")


def _template(name: str) -> Template:
    return Template(files("amos.network").joinpath("templates", name).read_text(encoding="utf-8"))


def _port(port: Port) -> str:
    """An input as an initializer of C++."""
    if _kind(port.dtype) is None:
        raise NetworkError(f"input {port}: has no dtype that C++ can be given")
    return f"    {{{json.dumps(port.name)}, {_tensor(port.shape, port.dtype)}}}"


def _weight(weight: Weight) -> str:
    """A weight as an initializer of C++."""
    return f"    {{{weight.offset}, {_tensor(weight.shape, weight.dtype)}}}"


def _tensor(shape: Sequence[int], dtype: str) -> str:
    """Extents and dtype as initializers of C++."""
    bits = dtype.removeprefix(dtype.rstrip("0123456789")) or "8"
    return f"{{{', '.join(map(str, shape))}}}, {{{_kind(dtype)}, {bits}, 1}}"


def _kind(dtype: str) -> str | None:
    return _KINDS.get(dtype.rstrip("0123456789"))


def _packages() -> dict[str, Any]:
    """Where TVM's headers and libraries are."""
    import tvm_ffi

    tvm = load_tvm()
    return {"tvm": Path(tvm.__path__[0]), "ffi": Path(tvm_ffi.__path__[0])}
