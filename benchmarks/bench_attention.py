"""Attention as one chain against PyTorch, onnxruntime and three kernels of AMOS, in turns.

    python benchmarks/bench_attention.py [--tokens 128,512] [--kinds f32,bf16] [--trials 12]

Heads are those of BERT-base: 12 of 64. All run on one core; prints the least milliseconds of
processor time of each, and the ratio to AMOS.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import amos  # noqa: E402 (the core is chosen first)
from amos.ir import Chain  # noqa: E402

Call = Callable[[], object]
HEADS, WIDTH = 12, 64
SCORES = "scores[h,q,k] += query[h,q,d] * key[h,k,d]"
SHARES = "p = softmax(scores[h,q,k] * 0.125, axis=k)"
OUT = "out[h,q,d] += p[h,q,k] * value[h,k,d]"


def _build(text: str, tokens: int, kind: str, trials: int) -> Any:
    sizes = dict(h=HEADS, q=tokens, k=tokens, d=WIDTH)
    extents = {
        name: size for name, size in sizes.items() if f"{name}]" in text or f"{name}," in text
    }
    narrow = [
        name for name in ("query", "key", "value", "p") if f"{name}[" in text or f"{name} =" in text
    ]
    dtypes = dict.fromkeys(narrow, kind)
    parse = Chain.parse if "softmax" in text else amos.Operator.parse
    operator = parse(text, extents=extents, dtypes=dtypes)
    result = amos.explore(operator, trials=trials, machine="host", progress=False)
    print("   ", result.best.candidate, flush=True)
    return amos.build(result.best)


def _contenders(tokens: int, kind: str, trials: int) -> dict[str, Call]:
    import torch

    torch.set_num_threads(1)
    shape = (HEADS, tokens, WIDTH)
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    tensors = [torch.from_numpy(x)[None] for x in (query, key, value)]
    if kind == "bf16":
        tensors = [x.bfloat16() for x in tensors]
    own = [x[0] for x in tensors]
    chain = _build("; ".join((SCORES, SHARES, OUT)), tokens, kind, trials)
    out = torch.empty(shape)
    three = [_build(text, tokens, kind, trials) for text in (SCORES, SHARES, OUT)]
    scores = torch.empty(HEADS, tokens, tokens)
    shares = torch.empty(HEADS, tokens, tokens, dtype=tensors[0].dtype)
    last = torch.empty(shape)

    def separate() -> object:
        three[0](query=own[0], key=own[1], out=scores)
        three[1](scores=scores, out=shares)
        return three[2](p=shares, value=own[2], out=last)

    attention = torch.nn.functional.scaled_dot_product_attention
    calls: dict[str, Call] = {
        "AMOS": lambda: chain(query=own[0], key=own[1], value=own[2], out=out),
        "three kernels": separate,
        "PyTorch": lambda: attention(*tensors),
    }
    expected = attention(*(x.float() for x in tensors))[0]
    for name, result in (("AMOS", out), ("three kernels", last)):
        calls[name]()
        print(f"    {name}: largest difference {float((result - expected).abs().max()):.2g}")
    if kind == "f32":
        calls["onnxruntime"] = _onnxruntime(query, key, value)
    return calls


def _onnxruntime(*arrays: np.ndarray) -> Call:
    import onnxruntime as ort
    from onnx import TensorProto, helper

    rows = [np.ascontiguousarray(x.transpose(1, 0, 2)).reshape(1, x.shape[1], -1) for x in arrays]
    names = ["query", "key", "value"]
    node = helper.make_node(
        "MultiHeadAttention", names, ["out"], domain="com.microsoft", num_heads=HEADS
    )
    values = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, rows[0].shape) for n in (*names, "out")
    ]
    graph = helper.make_graph([node], "attention", values[:3], values[3:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    inputs = dict(zip(names, rows, strict=True))
    return lambda: session.run(None, inputs)


def main() -> None:
    """Measure all sizes and kinds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", default="128,512")
    parser.add_argument("--kinds", default="f32,bf16")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    for tokens in map(int, options.tokens.split(",")):
        for kind in options.kinds.split(","):
            print(f"{tokens} tokens, {kind}")
            calls = _contenders(tokens, kind, options.trials)
            times = dict.fromkeys(calls, float("inf"))
            for _ in range(options.rounds):
                for name, call in calls.items():
                    start = time.process_time()
                    call()
                    times[name] = min(times[name], time.process_time() - start)
            for name, seconds in times.items():
                print(
                    f"    {name}: {1e3 * seconds:.3f} ms, {seconds / times['AMOS']:.2f}", flush=True
                )


if __name__ == "__main__":
    main()
