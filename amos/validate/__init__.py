"""Validity of matchings by three rules, with reasons (AMOS, section 5.2)."""

from amos.validate.algorithm1 import algorithm_1, algorithm_1_batch, holds_on_matched
from amos.validate.buffers import random_inputs
from amos.validate.execute import execute_matching
from amos.validate.fusion import FusionVerdict, fusable, fuse
from amos.validate.pairing import RULES, Pairing, check_compatible
from amos.validate.semantics import evaluate
from amos.validate.verdict import Verdict, check_matching
from amos.validate.zero_points import ZeroPointFold, fold_zero_point

__all__ = [
    "RULES",
    "FusionVerdict",
    "Pairing",
    "Verdict",
    "ZeroPointFold",
    "algorithm_1",
    "algorithm_1_batch",
    "check_compatible",
    "check_matching",
    "evaluate",
    "execute_matching",
    "fold_zero_point",
    "fusable",
    "fuse",
    "holds_on_matched",
    "random_inputs",
]
