"""Fused layers of PyTorch, which it does not export, as operators that it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from amos.network.packages import torch


def encoder_layer(source: Any, width: int, heads: int, *arguments: Any) -> Any:
    """Compute a Transformer's encoder layer with the arguments of ``torch``'s fused one.

    Args:
        source: batch × length × width.
        arguments: weights and biases of the joined projection and of the last one; whether GELU
            is the activation, and norms come first; epsilon; weights and biases of both norms
            and of both layers of the perceptron.
    """
    use_gelu, norm_first, epsilon = arguments[4:7]
    first, second = arguments[7:9], arguments[9:11]
    activate = torch.nn.functional.gelu if use_gelu else torch.nn.functional.relu

    def normalize(x: Any, weights: Sequence[Any]) -> Any:
        weight, bias = weights
        return torch.nn.functional.layer_norm(x, (width,), weight, bias, epsilon)

    def attend(x: Any) -> Any:
        return _attention(x, width, heads, arguments[:4])

    def perceive(x: Any) -> Any:
        inner = activate(torch.nn.functional.linear(x, *arguments[11:13]))
        return torch.nn.functional.linear(inner, *arguments[13:15])

    if norm_first:
        source = source + attend(normalize(source, first))
        return source + perceive(normalize(source, second))
    source = normalize(source + attend(source), first)
    return normalize(source + perceive(source), second)


def _attention(x: Any, width: int, heads: int, weights: Sequence[Any]) -> Any:
    """Compute self-attention."""
    parts = torch.nn.functional.linear(x, *weights[:2]).split(width, -1)
    query, key, value = (
        each.unflatten(-1, (heads, width // heads)).transpose(1, 2) for each in parts
    )
    mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    return torch.nn.functional.linear(mixed.transpose(1, 2).flatten(2), *weights[2:])


def exportable(node: Any) -> Callable[..., Any] | None:
    """Return a function that PyTorch exports in place of a node's; ``None`` to keep that."""
    name = getattr(node.target, "__name__", "")
    masked = any(each is not None for each in (*node.args[18:], *node.kwargs.values()))
    return encoder_layer if name == "_transformer_encoder_layer_fwd" and not masked else None
