"""Epilogues of convolutions that tests of every generator share."""

from __future__ import annotations

__all__ = ["EPILOGUES", "REQUANTIZE"]

REQUANTIZE = "u8(relu((acc + bias[k]) * scale[k]) + zero[])"
#: Text, and dtypes of its tensors: every function, result and dtype, per channel and for all.
EPILOGUES: list[tuple[str, dict[str, str]]] = [
    (REQUANTIZE, {"bias": "int32"}),
    ("s8(acc * scale[k] + skip[n,p,q,k] * 0.3)", {"skip": "uint8"}),
    ("s8((acc - zero[]) * scale[])", {"zero": "uint8"}),
    ("skip[n,p,q,k] - acc * scale[k]", {"skip": "bfloat16"}),
    ("max(acc - 7, skip[n,p,q,k] * 3)", {"skip": "int16"}),
    ("bf16(acc * scale[k] + 0.1)", {}),
    ("s32(acc * scale[k] * 1000000)", {}),
    ("s16(clip(acc, -40000, 30000))", {}),
    ("round(acc * 0.125) + f32(skip[n,p,q,k])", {"skip": "int8"}),
    ("u8(min(acc + skip[n,p,q,k], 100))", {"skip": "uint16"}),
    ("gelu(acc * scale[k]) + silu(skip[n,p,q,k] / 3) * tanh(acc * 0.001)", {"skip": "float16"}),
    ("f16(exp(acc * -1e-4) * row[p] - erf(acc * scale[k]) / rsqrt(abs(acc) + 1))", {}),
    ("bf16((u8(acc * 0.01 + 9) - 9) * scale[k] + bf16(gelu_tanh(fma(acc, 1e-3, row[q]))))", {}),
    ("s32(acc * acc * 70001 - sum[k])", {"sum": "int32"}),
    ("s8(round(acc / scale[k]) + zero[k])", {"zero": "int8"}),
    ("s8(s32(acc) + 64 >> 3)", {}),
    # From here on of integers: shifts, what no int32 holds on either side, clamped floats.
    ("s8((acc + bias[k] + 64 >> 7) - 3)", {"bias": "int32"}),
    ("u8((acc - 9000) * scale[k] * 1e9)", {}),
    ("s8((acc - 9000) * scale[k] * 1e9)", {}),
    ("u8(min(max(acc * scale[k], 0), 99.5))", {}),
    # LLVM sees that neither term is NaN; products of 3e9 and odd numbers lie between two floats.
    ("acc + skip[n,p,q,k] * 3000000000.0", {"skip": "uint8"}),
]
