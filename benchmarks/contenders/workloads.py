"""The workloads: layers of ResNet-18, Heron's Table 9, and AMOS's fifteen operators.

Names read ``resnet18:C5`` (batch 1), ``resnet18:C5@16``, ``heron:G1``, or
``gemv:resnet50.fc``: the operator, then the network and layer whose shape it has.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

import amos
from amos.ir import Operator
from amos.operators import scan_by_blocks
from amos.operators.registry import builder
from amos.operators.tables import layer_entry, layers
from amos.validate import random_inputs

#: The operand that is known ahead where it is not called weight; none if empty.
WEIGHTS = {
    "gemv": "a",
    "gemm": "b",
    "bmm": "",
    "mean": "coefficient",
    "variance": "coefficient",
    "scan": "triangle",
}

#: Shapes by operator and layer. Convolutions are given as the operator's parameters.
SHAPES: dict[str, dict[str, dict[str, int]]] = {
    "gemv": {
        "resnet50.fc": dict(m=1000, k=2048),
        "vgg16.fc6": dict(m=4096, k=25088),
        "vgg16.fc7": dict(m=4096, k=4096),
        "bert.query": dict(m=768, k=768),
        "bert.up": dict(m=3072, k=768),
        "bert.down": dict(m=768, k=3072),
    },
    "gemm": {
        "bert.query": dict(m=128, n=768, k=768),
        "bert.up": dict(m=128, n=3072, k=768),
        "bert.down": dict(m=128, n=768, k=3072),
        "bert_large.up": dict(m=384, n=4096, k=1024),
        "vit.qkv": dict(m=197, n=2304, k=768),
        "mlp_mixer.tokens": dict(m=768, n=384, k=196),
    },
    "conv1d": {
        "wav2vec.1": dict(c=512, k=512, p=3199, r=3, stride=2),
        "wav2vec.2": dict(c=512, k=512, p=1599, r=3, stride=2),
        "wav2vec.5": dict(c=512, k=512, p=199, r=2, stride=2),
        "wav2vec.6": dict(c=512, k=512, p=99, r=2, stride=2),
        "wavenet.dilated": dict(c=32, k=64, p=1024, r=2),
        "textcnn.5": dict(c=300, k=100, p=60, r=5),
    },
    "conv2d": {
        "vgg16.2": dict(c=64, k=64, p=224, q=224, r=3, s=3),
        "vgg16.8": dict(c=512, k=512, p=28, q=28, r=3, s=3),
        "resnet50.1x1": dict(c=256, k=64, p=56, q=56, r=1, s=1),
        "resnet50.wide": dict(c=512, k=2048, p=7, q=7, r=1, s=1),
        "mobilenet.pointwise": dict(c=512, k=512, p=14, q=14, r=1, s=1),
        "inception.5x5": dict(c=48, k=64, p=35, q=35, r=5, s=5),
    },
    "conv3d": {
        "c3d.2": dict(c=64, k=128, d=16, p=56, q=56, t=3, r=3, s=3),
        "c3d.3a": dict(c=128, k=256, d=8, p=28, q=28, t=3, r=3, s=3),
        "c3d.4b": dict(c=512, k=512, d=4, p=14, q=14, t=3, r=3, s=3),
        "c3d.5a": dict(c=512, k=512, d=2, p=7, q=7, t=3, r=3, s=3),
        "r2plus1d.spatial": dict(c=64, k=144, d=16, p=56, q=56, t=1, r=3, s=3),
        "r2plus1d.temporal": dict(c=144, k=64, d=16, p=56, q=56, t=3, r=1, s=1),
    },
    "transposed_conv2d": {
        "dcgan.1": dict(c=1024, k=512, p=8, q=8),
        "dcgan.2": dict(c=512, k=256, p=16, q=16),
        "dcgan.3": dict(c=256, k=128, p=32, q=32),
        "dcgan.4": dict(c=128, k=3, p=64, q=64),
        "pix2pix.up1": dict(c=512, k=512, p=4, q=4),
        "pix2pix.up4": dict(c=1024, k=256, p=32, q=32),
    },
    "grouped_conv2d": {
        "resnext50.1": dict(g=32, c=4, k=4, p=56, q=56),
        "resnext50.2": dict(g=32, c=8, k=8, p=28, q=28),
        "resnext50.3": dict(g=32, c=16, k=16, p=14, q=14),
        "resnext50.4": dict(g=32, c=32, k=32, p=7, q=7),
        "shufflenet.2": dict(g=3, c=80, k=20, p=28, q=28, r=1, s=1),
        "alexnet.2": dict(g=2, c=48, k=128, p=27, q=27, r=5, s=5),
    },
    "dilated_conv2d": {
        "deeplab.aspp6": dict(c=512, k=512, p=33, q=33, dilation=6),
        "deeplab.aspp12": dict(c=2048, k=256, p=33, q=33, dilation=12),
        "deeplab.stage4": dict(c=512, k=512, p=33, q=33, dilation=2),
        "drn.5": dict(c=256, k=256, p=28, q=28, dilation=2),
        "drn.6": dict(c=512, k=512, p=28, q=28, dilation=4),
        "espnet.d2": dict(c=25, k=25, p=128, q=128, dilation=2),
    },
    "depthwise_conv2d": {
        "mobilenet.1": dict(c=32, p=112, q=112),
        "mobilenet.3": dict(c=128, p=56, q=56),
        "mobilenet.5": dict(c=256, p=28, q=28),
        "mobilenet.7": dict(c=512, p=14, q=14),
        "mobilenet.13": dict(c=1024, p=7, q=7),
        "efficientnet.5x5": dict(c=240, p=28, q=28, r=5, s=5),
    },
    "capsule_conv2d": {
        "capsnet.primary": dict(c=256, k=32, v=8, p=6, q=6, r=9, s=9, stride=2),
        "capsnet.cifar": dict(c=256, k=64, v=8, p=8, q=8, r=9, s=9, stride=2),
        "capsnet.small": dict(c=128, k=16, v=8, p=6, q=6, r=9, s=9, stride=2),
        "deepcaps.1": dict(c=128, k=32, v=4, p=16, q=16, r=3, s=3, stride=1),
        "deepcaps.2": dict(c=128, k=32, v=8, p=8, q=8, r=3, s=3, stride=1),
        "deepcaps.3": dict(c=256, k=32, v=8, p=4, q=4, r=3, s=3, stride=1),
    },
    "batched_conv2d": {
        "condconv.14": dict(n=4, c=256, k=256, p=14, q=14),
        "condconv.28": dict(n=4, c=128, k=128, p=28, q=28),
        "condconv.7": dict(n=4, c=512, k=512, p=7, q=7),
        "weightnet.56": dict(n=4, c=64, k=64, p=56, q=56),
        "dynamic.1x1": dict(n=8, c=256, k=256, p=14, q=14, r=1, s=1),
        "stylegan.16": dict(n=4, c=512, k=512, p=16, q=16),
    },
    "grouped_fc": {
        "shapes.64": dict(n=16, g=16, c=64, k=64),
        "bert.heads": dict(n=128, g=12, c=64, k=64),
        "moe.8": dict(n=32, g=8, c=512, k=512),
        "moe.up": dict(n=16, g=8, c=512, k=2048),
        "capsnet.votes": dict(n=16, g=32, c=8, k=160),
        "delight.4": dict(n=64, g=4, c=128, k=128),
    },
    **{
        name: {
            "bert.128": dict(i=128, k=768),
            "bert.512": dict(i=512, k=768),
            "bert_large": dict(i=384, k=1024),
            "vit.197": dict(i=197, k=768),
            "resnet50.pool": dict(i=2048, k=49),
            "mobilenet.pool": dict(i=1024, k=49),
        }
        for name in ("mean", "variance")
    },
    "bmm": {
        "bert.scores": dict(b=12, m=128, n=128, k=64),
        "bert.values": dict(b=12, m=128, n=64, k=128),
        "bert_large.scores": dict(b=16, m=384, n=384, k=64),
        "bert_large.values": dict(b=16, m=384, n=64, k=384),
        "vit.scores": dict(b=12, m=197, n=197, k=64),
        "vit.values": dict(b=12, m=197, n=64, k=197),
    },
    "dense": {
        "resnet50.fc.16": dict(m=16, n=1000, k=2048),
        "vgg16.fc7.16": dict(m=16, n=4096, k=4096),
        "mlp.mnist": dict(m=64, n=512, k=784),
        "dlrm.bottom": dict(m=128, n=256, k=512),
        "dlrm.top": dict(m=128, n=1024, k=479),
        "bert.pooler": dict(m=8, n=768, k=768),
    },
    "scan": {
        "histogram": dict(n=1024, k=256),
        "bert.128": dict(n=768, k=128),
        "bert.512": dict(n=768, k=512),
        "mamba.64": dict(n=1536, k=64),
        "softmax.1000": dict(n=128, k=1000),
        "integral.224": dict(n=224, k=224),
    },
}
#: A dense layer is a matrix product of few rows.
_BUILT = {"dense": "gemm"}
_FLAT = {"conv1d": "NHC", "conv2d": "NHWC", "dilated_conv2d": "NHWC", "batched_conv2d": "NHWC"}
_FLAT |= {"conv3d": "NDHWC", "grouped_conv2d": "NHWGC", "depthwise_conv2d": "NHWC"}
_FLAT |= {"transposed_conv2d": "NHWC"}
#: Block of a scan by its length, near the square root; shorter ones are one product.
_BLOCKS = {1000: 40, 512: 32, 256: 16, 224: 16, 128: 16}
#: The form of an operator that is mapped, where its builder knows several.
_FORMS = {"transposed_conv2d": {"form": "phases"}}


def chosen_dtype() -> str:
    """``u8s8``, ``u8s7`` (half-range weights, as libraries without VNNI ask for), or ``f32``."""
    return os.environ.get("AMOS_BENCH_DTYPE", "u8s8")


@dataclass(frozen=True)
class Workload:
    """A named operator and its parameters."""

    name: str
    operator: str
    parameters: tuple[tuple[str, Any], ...]

    @cached_property
    def values(self) -> dict[str, Any]:
        return dict(self.parameters)

    def op_parameter(self, name: str) -> Any:
        """What the operator's builder is given, or its default."""
        return self.values.get(name, builder(self.operator).defaults[name])

    @cached_property
    def op(self) -> Operator:
        """The operator in the chosen dtype, channels last where its builder knows that layout.

        Activations are unsigned and weights signed, as quantized networks have them.
        """
        weight, dtype = WEIGHTS.get(self.operator, "weight"), chosen_dtype()
        if self.operator == "gemv" and dtype == "u8s8":
            dtype = ("s8", "u8", "s32")
        made = builder(self.operator)(**self.values, dtype=dtype, name=self.name)
        return replace(made, constants=(weight,) if weight else ())

    @cached_property
    def stages(self) -> tuple[Operator, ...]:
        """The operators that are mapped, one after the other: the last has the result.

        What an earlier one makes the next read under the name of its output.
        """
        block = _BLOCKS.get(self.op.extents["k"]) if self.operator == "scan" else None
        if block is None:
            return (self.op,)
        return scan_by_blocks(**self.values, block=block, dtype=chosen_dtype(), name=self.name)

    @property
    def operations(self) -> int:
        """Arithmetic operations of all stages."""
        return sum(op.operations for op in self.stages)

    def inputs(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Random data; the constants that make an operator what its name says are these.

        A row is summed with coefficients of one, and a scan's triangle is one up to its
        diagonal.
        """
        made = random_inputs(self.op, rng)
        if self.operator in ("mean", "variance"):
            made["coefficient"][:] = 1
        elif self.operator == "scan":
            made["triangle"][:] = np.triu(np.ones(made["triangle"].shape))
        return made

    def staged_inputs(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What the stages are given, of what the operator is."""
        if len(self.stages) == 1:
            return inputs
        elements, blocks = self.stages[0].inputs[1].shape
        block = elements // blocks
        before = np.arange(elements)[:, None] < np.arange(blocks) * block
        corner = np.ascontiguousarray(inputs["triangle"][:block, :block])
        return {"data": inputs["data"], "triangle": corner, "before": before.astype(np.int8)}


def find(name: str) -> Workload:
    """The workload of a name; a KeyError if there is none."""
    text, _, batch = name.partition("@")
    table, _, row = text.partition(":")
    if table in SHAPES:
        values: dict[str, Any] = dict(SHAPES[table][row])
        operator = _BUILT.get(table, table)
        if table in _FLAT:
            values |= _layout(table) | _FORMS.get(table, {})
    else:
        entry = layer_entry(text)
        operator, values = entry.operator, dict(entry.parameters)
        if entry.layout:
            values["layout"] = entry.layout
    if batch:
        values["n"] = int(batch)
    return Workload(name, operator, tuple(values.items()))


def _layout(operator: str) -> dict[str, str]:
    """The layout with channels last, where the operator's builder takes it."""
    made = builder(operator)
    if "layout" not in made.defaults:
        return {}
    try:
        made(layout=_FLAT[operator])
    except amos.AmosError:
        return {}
    return {"layout": _FLAT[operator]}


def names(selection: str) -> list[str]:
    """Workloads of a selection: comma-separated names, tables, or ``all``."""
    resnet = list(layers("resnet18"))
    groups = {
        "resnet18": resnet,
        "resnet18@16": [f"{name}@16" for name in resnet],
        "heron": list(layers("heron")),
        **{op: [f"{op}:{row}" for row in rows] for op, rows in SHAPES.items()},
    }
    groups["operators"] = [name for op in SHAPES for name in groups[op]]
    groups["all"] = groups["resnet18"] + groups["resnet18@16"] + groups["heron"]
    groups["all"] += groups["operators"]
    chosen: list[str] = []
    for part in selection.split(","):
        for name in groups.get(part, [part]):
            find(name)
            if name not in chosen:
                chosen.append(name)
    return chosen
