"""Networks on a unit that a simulator runs: its streams, and onnxruntime for everything else."""

from amos.network.units.compilation import compile_for_unit
from amos.network.units.compiled import LayerRun, UnitNetwork

__all__ = ["LayerRun", "UnitNetwork", "compile_for_unit"]
