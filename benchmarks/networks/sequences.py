"""Transformers, a recurrent cell and a perceptron."""

from __future__ import annotations

from math import sqrt

import numpy as np

from networks.graph import Definition, Graph

__all__ = ["SEQUENCES"]

#: Width, heads and layers of both transformers.
_WIDTH, _HEADS, _LAYERS = 768, 12, 12
#: Standard deviation of their weights at the start of training.
_DEVIATION = 0.02


def _bert(g: Graph) -> str:
    """BERT's encoder, base configuration, 128 tokens (Devlin et al., 2019, section 3)."""
    x = _layer_norm(g, _embedding(g, g.tokens(128), 30522, 128))
    for _ in range(_LAYERS):
        x = _layer_norm(g, g.add("Add", _attention(g, x, 128, causal=False), x))
        y = _gelu_erf(g, g.linear(x, 4 * _WIDTH, _DEVIATION))
        x = _layer_norm(g, g.add("Add", g.linear(y, _WIDTH, _DEVIATION), x))
    return x


def _gpt2(g: Graph) -> str:
    """GPT-2 small, 64 tokens at once (Radford et al., 2019, section 2.3)."""
    table = g.random(50257, _WIDTH, deviation=_DEVIATION)
    x = _embedding(g, g.tokens(64), 50257, 64, table)
    for _ in range(_LAYERS):
        x = g.add("Add", x, _attention(g, _layer_norm(g, x), 64, causal=True))
        y = g.linear(_layer_norm(g, x), 4 * _WIDTH, _DEVIATION)
        x = g.add("Add", x, g.linear(_gelu_tanh(g, y), _WIDTH, _DEVIATION))
    words = g.add("Transpose", table, perm=[1, 0])
    return g.add("MatMul", _layer_norm(g, x), words, channels=50257)


def _embedding(g: Graph, tokens: str, words: int, count: int, table: str = "") -> str:
    table = table or g.random(words, _WIDTH, deviation=_DEVIATION)
    places = g.random(count, _WIDTH, deviation=_DEVIATION)
    return g.add("Add", g.add("Gather", table, tokens, channels=_WIDTH), places)


def _layer_norm(g: Graph, x: str) -> str:
    scale = g.uniform(_WIDTH, low=0.5, high=1.5)
    return g.add("LayerNormalization", x, scale, g.random(_WIDTH, deviation=0.1), axis=-1)


def _attention(g: Graph, x: str, count: int, causal: bool) -> str:
    each = _WIDTH // _HEADS

    def heads(perm: list[int]) -> str:
        y = g.reshape(g.linear(x, _WIDTH, _DEVIATION), g.batch, count, _HEADS, each)
        return g.add("Transpose", y, perm=perm)

    query, key, value = heads([0, 2, 1, 3]), heads([0, 2, 3, 1]), heads([0, 2, 1, 3])
    score = g.add("MatMul", query, key)
    score = g.add("Mul", score, g.constant(np.float32(1 / sqrt(each))))
    if causal:
        later = np.triu(np.full((count, count), -1e4, np.float32), 1)
        score = g.add("Add", score, g.constant(later))
    y = g.add("MatMul", g.add("Softmax", score, axis=-1), value)
    y = g.add("Transpose", y, perm=[0, 2, 1, 3])
    y = g.reshape(y, g.batch, count, _WIDTH, channels=_WIDTH)
    return g.linear(y, _WIDTH, _DEVIATION)


def _gelu_erf(g: Graph, x: str) -> str:
    scaled = g.add("Div", x, g.constant(np.float32(sqrt(2))))
    y = g.add("Add", g.add("Erf", scaled), g.constant(np.float32(1)))
    return g.add("Mul", g.add("Mul", x, y), g.constant(np.float32(0.5)))


def _gelu_tanh(g: Graph, x: str) -> str:
    cube = g.add("Mul", g.add("Mul", x, x), x)
    y = g.add("Add", x, g.add("Mul", cube, g.constant(np.float32(0.044715))))
    y = g.add("Tanh", g.add("Mul", y, g.constant(np.float32(sqrt(2 / np.pi)))))
    y = g.add("Add", y, g.constant(np.float32(1)))
    return g.add("Mul", g.add("Mul", x, y), g.constant(np.float32(0.5)))


def _mi_lstm(g: Graph) -> str:
    """A step of a multiplicative-integration LSTM (Wu et al., 2016, equation 4)."""
    width = 1024
    x, state, cell = (g.rows(name, width) for name in ("x", "state", "cell"))
    gates = []
    for _ in range(4):
        wx, uh = (
            g.add("MatMul", source, g.random(width, width, deviation=sqrt(1 / width)))
            for source in (x, state)
        )
        both = g.add("Mul", g.add("Mul", wx, uh), g.uniform(width, low=0.5, high=1.5))
        gates.append(g.add("Add", both, g.add("Add", wx, uh)))
    i, f, o = (g.add("Sigmoid", gate) for gate in gates[:3])
    fresh = g.add("Mul", i, g.add("Tanh", gates[3]))
    cell = g.add("Add", g.add("Mul", f, cell), fresh)
    return g.linear(g.add("Mul", o, g.add("Tanh", cell)), width)


def _mlp(g: Graph) -> str:
    """Three layers of 1024."""
    x = g.rows("x", 784)
    for _ in range(3):
        x = g.add("Relu", g.gemm(x, 1024))
    return g.gemm(x, 10)


SEQUENCES: dict[str, Definition] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "mi_lstm": _mi_lstm,
    "mlp": _mlp,
}
