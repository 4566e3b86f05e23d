"""Networks on a unit that a simulator runs: its streams, and onnxruntime for everything else."""

from amos.streams.networks.compilation import compile_for_unit
from amos.streams.networks.compiled import LayerRun, UnitNetwork

__all__ = ["LayerRun", "UnitNetwork", "compile_for_unit"]
